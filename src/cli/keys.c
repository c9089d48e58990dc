#include "cli/keys.h"

static ml_status open_tls(ml_tls **out, const ml_config *c, ml_err *err) {
    ml_tls_files files = { c->access.tls_cert, c->access.tls_key, c->access.tls_password,
                           c->access.tls_client_ca };

    return files.cert ? ml_tls_server_new(out, &files, err) : ML_OK;
}

ml_status ml_access_of(ml_access_opts *out, ml_server_keys *keys, const ml_config *c,
                       ml_err *err) {
    ml_status st = ml_secret_find(&keys->api, c->access.api_key, c->access.api_key_file,
                                  "--api-key", err);

    if (st == ML_OK)
        st = ml_secret_find(&keys->admin, c->access.admin_key, c->access.admin_key_file,
                            "--admin-api-key", err);
    if (st == ML_OK)
        st = ml_secret_find(&keys->worker, c->access.worker_key, c->access.worker_key_file,
                            "--worker-api-key", err);
    if (st == ML_OK)
        st = open_tls(&keys->tls, c, err);
    *out = (ml_access_opts){ .api_key = ml_secret_text(&keys->api),
                             .admin_key = ml_secret_text(&keys->admin),
                             .allowed_host = c->access.hosts.word,
                             .n_host = c->access.hosts.n,
                             .allowed_origin = c->access.origins.word,
                             .n_origin = c->access.origins.n,
                             .insecure = c->access.insecure,
                             .tls = keys->tls };
    return st;
}

void ml_server_keys_release(ml_server_keys *keys) {
    ml_tls_free(keys->tls);
}
