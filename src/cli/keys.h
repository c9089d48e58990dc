/* keys.h - API keys from flags, files and the environment.
 *
 * thread: any; before other threads start. */
#ifndef ML_CLI_KEYS_H
#define ML_CLI_KEYS_H

#include "base/secret.h"
#include "cli/config.h"
#include "serve/access.h"

/* The key in a file, if one is given, otherwise the text; empty if neither is given.
 * `flag` is the name of the text's flag; the file's flag has the suffix "-file". */
ml_status ml_key_find(ml_secret *out, const char *text, const char *file, const char *flag,
                      ml_err *err);

typedef struct ml_server_keys {
    ml_secret api, admin, worker;
} ml_server_keys;

/* Access settings of the server or router; `out` points into `keys`. */
ml_status ml_access_of(ml_access_opts *out, ml_server_keys *keys, const ml_config *c,
                       ml_err *err);

/* NULL if there is none. */
const char *ml_key_text(const ml_secret *s);

#endif
