/* tcp.h - blocking TCP connections with time limits, for bulk data between processes.
 *
 * Every call waits at most the connection's idle limit without a byte of progress, so a
 * peer that hangs is an error that names it, not a wait without end.
 *
 * thread: one owner for each connection; ml_tcp_break may be called by any thread. */
#ifndef ML_NET_TCP_H
#define ML_NET_TCP_H

#include <stddef.h>

#include "base/err.h"

typedef struct ml_tcp {
    int fd;        /* -1: closed */
    double idle_s; /* limit of a wait for the peer */
    char peer[80]; /* its address, for messages */
} ml_tcp;

/* Listens at a port that the system chooses. */
ml_status ml_tcp_listen(int *fd, int *port, const char *host, ml_err *err);
/* The next connection.  ML_EAGAIN: none came within wait_s. */
ml_status ml_tcp_accept(ml_tcp *out, int fd, double wait_s, double idle_s, ml_err *err);
ml_status ml_tcp_connect(ml_tcp *out, const char *host, int port, double idle_s,
                         ml_err *err);
void ml_tcp_close(ml_tcp *t);
/* Calls that wait for the peer fail from now on; the owner still closes it. */
void ml_tcp_break(ml_tcp *t);

/* All bytes, or ML_EPEER. */
ml_status ml_tcp_write(ml_tcp *t, const void *bytes, size_t n, ml_err *err);
ml_status ml_tcp_read(ml_tcp *t, void *bytes, size_t n, ml_err *err);
/* The same without a limit on the wait for the first byte.  ML_EAGAIN: the peer has closed
 * the connection before it. */
ml_status ml_tcp_read_next(ml_tcp *t, void *bytes, size_t n, ml_err *err);

/* The address of this machine from which packets to `host` go. */
ml_status ml_tcp_address_towards(char out[64], const char *host, ml_err *err);

#endif
