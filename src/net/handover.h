/* handover.h - passes a listening socket from a server to the one that replaces it.
 *
 * Both are given the same path of a Unix socket.  A server that starts takes the listening
 * socket of the one that is there; connections that wait in its queue are lost by neither.
 * Only processes of the same user are answered.
 *
 * thread: the event loop's. */
#ifndef ML_NET_HANDOVER_H
#define ML_NET_HANDOVER_H

#include "base/err.h"
#include "net/http_server.h"
#include "net/loop.h"

typedef struct ml_handover ml_handover;

/* ML_EUSAGE: too long for a Unix socket. */
ml_status ml_handover_check(const char *path, ml_err *err);

/* A connection may have a request on its way to a server that was replaced: for
 * ml_http_server_stop_accepting. */
#define ML_HANDOVER_GRACE_S 5.0

typedef struct ml_listen {
    const char *host;
    int port;
    const char *path; /* of the Unix socket; NULL: none, the server just listens */
} ml_listen;

/* Opens a server.  It takes over the listening socket of the server at w->path, if there is
 * one, and offers it to a later one; `taken` is called with `ud` when a later one accepts
 * connections.  *h is NULL without a path. */
ml_status ml_handover_open(ml_http_server **out, ml_handover **h, ml_loop *l,
                           const ml_listen *w, ml_http_limits limits, ml_http_handler *fn,
                           ml_loop_fn *taken, void *ud, ml_err *err);
void ml_handover_close(ml_handover *h); /* before the server; NULL is allowed */

#endif
