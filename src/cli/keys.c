#include "cli/keys.h"

#include <signal.h>

static ml_status open_tls(ml_tls **out, const ml_config *c, ml_err *err) {
    ml_tls_files files = { c->access.tls_cert, c->access.tls_key, c->access.tls_password,
                           c->access.tls_client_ca };

    return files.cert ? ml_tls_server_new(out, &files, err) : ML_OK;
}

/* Clients that share a server must not be able to change it. */
static ml_status check_admin(const ml_server_keys *keys, const ml_config *c, ml_err *err) {
    if (keys->clients.n < 2 || keys->admin.text[0])
        return ML_OK;
    return ml_fail(err, ML_EUSAGE,
                   "--api-key-file: %s has %d keys, and each could change the server: set "
                   "--admin-api-key-file FILE, too",
                   c->access.api_key_file, keys->clients.n);
}

static ml_status read_keys(ml_server_keys *keys, const ml_config *c, const bool *may,
                           ml_err *err) {
    ml_status st;

    if (c->access.api_key_file) {
        st = ml_api_keys_read(&keys->clients, c->access.api_key_file, "--api-key-file",
                              c->access.limit, may, err);
        if (st == ML_OK)
            keys->api = keys->clients.key[0].secret;
    } else {
        st = ml_secret_find(&keys->api, c->access.api_key, NULL, "--api-key", err);
    }
    if (st == ML_OK)
        st = ml_secret_find(&keys->admin, c->access.admin_key, c->access.admin_key_file,
                            "--admin-api-key", err);
    if (st == ML_OK)
        st = ml_secret_find(&keys->worker, c->access.worker_key, c->access.worker_key_file,
                            "--worker-api-key", err);
    return st == ML_OK ? check_admin(keys, c, err) : st;
}

ml_status ml_access_of(ml_access_opts *out, ml_server_keys *keys, const ml_config *c,
                       const bool may[ML_N_LIMIT], ml_err *err) {
    ml_status st = read_keys(keys, c, may, err);

    if (st == ML_OK)
        st = open_tls(&keys->tls, c, err);
    if (st == ML_OK && c->access.access_log)
        st = ml_access_log_open(&keys->log, c->access.access_log,
                                (size_t)c->access.access_log_bytes, err);
    *out = (ml_access_opts){ .api_key = ml_secret_text(&keys->api),
                             .keys = keys->clients.n ? &keys->clients : NULL,
                             .admin_key = ml_secret_text(&keys->admin),
                             .log = keys->log,
                             .allowed_host = c->access.hosts.word,
                             .n_host = c->access.hosts.n,
                             .allowed_origin = c->access.origins.word,
                             .n_origin = c->access.origins.n,
                             .insecure = c->access.insecure,
                             .tls = keys->tls };
    for (int i = 0; i < ML_N_LIMIT; i++)
        out->limit[i] = c->access.limit[i];
    return st;
}

static void on_hangup(void *ud) {
    ml_access_log_reopen(ud);
}

ml_status ml_server_keys_on_hangup(ml_server_keys *keys, ml_loop *l, ml_err *err) {
    return keys->log ? ml_loop_on_signal(l, SIGHUP, on_hangup, keys->log, err) : ML_OK;
}

void ml_server_keys_release(ml_server_keys *keys) {
    ml_access_log_close(keys->log);
    ml_api_keys_release(&keys->clients);
    ml_tls_free(keys->tls);
}
