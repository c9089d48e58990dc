/* remote_weights.c - new weights for all servers. */
#include <unistd.h>

#include "base/json.h"
#include "base/log.h"
#include "engine/remote_priv.h"

/* Until all have them.  One that is not there is waited for while attempts last; one that
 * says no will not change its mind. */
static ml_status send_weights(ml_remote *r, const char *body, ml_err *err) {
    ml_err why = { 0 };
    ml_status st;

    for (int32_t n = 1;; n++) {
        st = ml_remote_tell_all(r, "POST", "/update_weights_from_disk", body, &why);
        if (st != ML_EAGAIN || (r->opts.n_attempt > 0 && n >= r->opts.n_attempt) ||
            ml_remote_hope(r, &why) != ML_OK)
            break;
        if (n == 1)
            ml_log(ML_LOG_WARN, "%s; new weights wait until it has them", why.msg);
        usleep((useconds_t)(r->opts.retry_s * 1e6));
    }
    if (st != ML_OK && err)
        *err = why;
    return st == ML_EAGAIN ? ML_EPEER : st;
}

/* What a server that was lost is told when it comes back. */
static const char *keep_weights(ml_remote *r, const char *body) {
    const char *before;

    pthread_mutex_lock(&r->lock);
    before = r->weights;
    r->weights = body;
    pthread_mutex_unlock(&r->lock);
    return before;
}

ml_status ml_remote_load(ml_gen *g, const char *dir, uint64_t version, ml_switch how,
                         ml_err *err) {
    ml_remote *r = (ml_remote *)g;
    const char *before;
    ml_text body = { 0 };
    ml_status st;

    if (how == ML_SWITCH_FINISH || how == ML_SWITCH_INEXACT_KV)
        return ml_fail(err, ML_EUNSUP,
                       "servers put requests in flight back, or abort them, when weights "
                       "change; pause and wait for them to finish otherwise");
    pthread_mutex_lock(&r->lock);
    version = version ? version : r->stats.version + 1;
    ml_text_printf(&body, "{\"model_path\":");
    ml_json_quote(&body, ml_str_of(dir));
    ml_text_printf(&body, ",\"weight_version\":\"%llu\",\"abort_all_requests\":%s}",
                   (unsigned long long)version, how == ML_SWITCH_ABORT ? "true" : "false");
    pthread_mutex_unlock(&r->lock);
    before = keep_weights(r, ml_arena_str(&r->arena, body.ptr, body.len));
    st = send_weights(r, body.ptr, err);
    ml_text_release(&body);
    if (st != ML_OK) {
        keep_weights(r, before);
        return st;
    }
    pthread_mutex_lock(&r->lock);
    r->stats.version = version;
    pthread_mutex_unlock(&r->lock);
    ml_remote_have_done(r, ml_remote_found, r);
    return ML_OK;
}

ml_status ml_remote_check(ml_gen *g, ml_err *err) {
    ml_status st = ml_remote_tell_all((ml_remote *)g, "GET", "/health", "", err);

    if (st != ML_OK)
        ml_err_prefix(err, "an engine is not there");
    return st == ML_EAGAIN ? ML_EPEER : st;
}
