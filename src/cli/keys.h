/* keys.h - API keys and certificates from flags, files and the environment.
 *
 * thread: any; before other threads start. */
#ifndef ML_CLI_KEYS_H
#define ML_CLI_KEYS_H

#include "base/secret.h"
#include "cli/config.h"
#include "serve/access.h"

typedef struct ml_server_keys {
    ml_secret api, admin, worker;
    ml_api_keys clients; /* of --api-key-file */
    ml_access_log *log;  /* NULL: none */
    ml_tls *tls;         /* NULL: plain HTTP */
} ml_server_keys;

/* Access settings of a server; `out` points into `keys`.  may: the limits that keys can have. */
ml_status ml_access_of(ml_access_opts *out, ml_server_keys *keys, const ml_config *c,
                       const bool may[ML_N_LIMIT], ml_err *err);
/* SIGHUP opens the access log again, if there is one. */
ml_status ml_server_keys_on_hangup(ml_server_keys *keys, ml_loop *l, ml_err *err);
void ml_server_keys_release(ml_server_keys *keys);

/* "https" if the server has a certificate. */
static inline const char *ml_server_scheme(const ml_server_keys *keys) {
    return keys->tls ? "https" : "http";
}

#endif
