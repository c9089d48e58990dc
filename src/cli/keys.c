#include "cli/keys.h"

#include <stdio.h>

ml_status ml_key_find(ml_secret *out, const char *text, const char *file, const char *flag,
                      ml_err *err) {
    char name[80];

    *out = (ml_secret){ 0 };
    snprintf(name, sizeof name, "%s%s", flag, file ? "-file" : "");
    if (file)
        return ml_secret_read(out, file, name, err);
    return text ? ml_secret_take(out, ml_str_of(text), name, err) : ML_OK;
}

const char *ml_key_text(const ml_secret *s) {
    return s->text[0] ? s->text : NULL;
}

ml_status ml_access_of(ml_access_opts *out, ml_server_keys *keys, const ml_config *c,
                       ml_err *err) {
    ml_status st = ml_key_find(&keys->api, c->access.api_key, c->access.api_key_file,
                               "--api-key", err);

    if (st == ML_OK)
        st = ml_key_find(&keys->admin, c->access.admin_key, c->access.admin_key_file,
                         "--admin-api-key", err);
    if (st == ML_OK)
        st = ml_key_find(&keys->worker, c->access.worker_key, c->access.worker_key_file,
                         "--worker-api-key", err);
    *out = (ml_access_opts){ .api_key = ml_key_text(&keys->api),
                             .admin_key = ml_key_text(&keys->admin),
                             .allowed_host = c->access.hosts.word,
                             .n_host = c->access.hosts.n,
                             .allowed_origin = c->access.origins.word,
                             .n_origin = c->access.origins.n,
                             .insecure = c->access.insecure };
    return st;
}
