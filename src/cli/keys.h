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
    ml_tls *tls; /* NULL: plain HTTP */
} ml_server_keys;

/* Access settings of the server or router; `out` points into `keys`. */
ml_status ml_access_of(ml_access_opts *out, ml_server_keys *keys, const ml_config *c,
                       ml_err *err);
void ml_server_keys_release(ml_server_keys *keys);

/* "https" if the server has a certificate. */
static inline const char *ml_server_scheme(const ml_server_keys *keys) {
    return keys->tls ? "https" : "http";
}

#endif
