/* tls.h - TLS for servers and clients, by OpenSSL.
 *
 * TLS 1.2 or newer.  A client verifies the server's certificate against the authorities of
 * the system, or those of the environment variables SSL_CERT_FILE and SSL_CERT_DIR, and
 * against the host name of the URL.
 *
 * thread: an ml_tls may be shared by event loops; a connection belongs to its loop. */
#ifndef ML_NET_TLS_H
#define ML_NET_TLS_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

typedef struct ml_tls ml_tls;

typedef struct ml_tls_files {
    const char *cert;      /* PEM: the server's certificate, then those that signed it */
    const char *key;       /* PEM: its private key; NULL: in `cert` */
    const char *password;  /* of the key; NULL: none */
    const char *client_ca; /* PEM: clients must have a certificate signed by one of these;
                              NULL: clients need none */
} ml_tls_files;

ml_status ml_tls_server_new(ml_tls **out, const ml_tls_files *files, ml_err *err);
ml_status ml_tls_client_new(ml_tls **out, ml_err *err);
void ml_tls_free(ml_tls *t); /* NULL is allowed; connections keep what they need */

/* --- connections, for the files of this module ----------------------------------------- */

struct bufferevent;
struct event_base;

/* Takes ownership of fd, unless it returns NULL: out of memory. */
struct bufferevent *ml_tls_accept(ml_tls *t, struct event_base *base, int fd);
struct bufferevent *ml_tls_connect(ml_tls *t, struct event_base *base, const char *host);
/* Tells the peer that no more will be sent. */
void ml_tls_end(struct bufferevent *bev);
/* Describes the error of a connection; false: TLS reported none. */
bool ml_tls_error(struct bufferevent *bev, char *out, size_t cap);

#endif
