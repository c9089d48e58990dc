#include "cli/train_remote.h"

#include <string.h>
#include <unistd.h>

#include "base/dir.h"
#include "base/log.h"
#include "cli/keys.h"
#include "gen/remote.h"
#include "model/weight_dir.h"

/* "host:port", or a complete URL. */
static const char *url_of(ml_arena *a, const char *addr) {
    return strstr(addr, "://") ? addr : ml_arena_printf(a, "http://%s", addr);
}

/* The absolute path, because engines may have another working directory or machine:
 * nothing is created here. */
static const char *whole_path(ml_arena *a, const char *path) {
    char here[4096];

    return *path == '/' || !getcwd(here, sizeof here)
               ? path
               : ml_arena_printf(a, "%s/%s", here, path);
}

static ml_status open_stream(ml_train_gen *t, const ml_config *c, ml_err *err) {
    ml_weight_stream_opts o = {
        .delta = { .source = t->weight_dir,
                   .encoding = (ml_delta_encoding)c->mode.delta_encoding,
                   .checksum = (ml_checksum)c->mode.delta_checksum,
                   .file_bytes = (size_t)c->mode.shard_bytes },
        .spec = &t->run->spec,
        .from = t->run->from,
    };

    t->pull = (ml_pull){ .local = whole_path(&t->arena, c->mode.local_dir),
                         .source = t->weight_dir,
                         .version = -1 };
    return ml_weight_stream_open(&t->stream, &o, err);
}

ml_status ml_train_remote_dir(ml_train_gen *t, const ml_config *c, ml_err *err) {
    const char *dir = c->mode.weight_dir
                          ? c->mode.weight_dir
                          : ml_arena_printf(&t->arena, "%s/rollout_weights", c->train.save);

    ml_status st;

    if (c->train.dry_run) {
        t->weight_dir = dir; /* which is not changed */
        return ML_OK;
    }
    st = ml_dir_make_whole(&t->weight_dir, &t->arena, dir, err);

    return st == ML_OK && c->mode.transfer == ML_TRANSFER_DISK_DELTA
               ? open_stream(t, c, err)
               : st;
}

size_t ml_train_remote_bytes(const ml_train_gen *t) {
    return t->stream ? ml_weights_bytes(&t->run->spec, t->run->from, t->run->opts.dtype)
                     : 0;
}

ml_status ml_train_remote_open(ml_train_gen *t, const ml_config *c, ml_err *err) {
    const char **url = ML_NEW(&t->arena, const char *, c->mode.addrs.n);
    ml_remote_opts o = { .url = url,
                         .n_url = c->mode.addrs.n,
                         .spec = &t->run->spec,
                         .retry_s = ML_TRAIN_RETRY_S,
                         .connect_s = ML_TRAIN_CONNECT_S,
                         .request_s = c->mode.request_s,
                         .check_s = c->mode.check_s,
                         .check_timeout_s = c->mode.check_timeout_s,
                         .warn_s = ML_TRAIN_WARN_S };
    ml_secret *key = ML_NEW(&t->arena, ml_secret, 1);
    ml_status st = ml_key_find(key, c->mode.engine_key, c->mode.engine_key_file,
                               "--rollout-external-api-key", err);

    if (st != ML_OK)
        return st;
    o.api_key = ml_key_text(key);
    for (int i = 0; i < c->mode.addrs.n; i++)
        url[i] = url_of(&t->arena, c->mode.addrs.word[i]);
    st = ml_remote_open(&t->gen, &o, err);
    if (st == ML_OK)
        st = ml_remote_check(t->gen, err);
    if (st != ML_OK)
        ml_err_prefix(err, "--rollout-external-engine-addrs");
    return st;
}

/* --- publishing ------------------------------------------------------------------- */

static ml_status call_hook(ml_train_gen *t, const char *dir, ml_err *err) {
    return ml_observe(&t->run->observers,
                      &(ml_loop_event){ .kind = ML_ON_WEIGHTS_WRITTEN,
                                        .rollout = t->run->rollout,
                                        .what = dir },
                      err);
}

static ml_status publish_whole(ml_train_gen *t, const ml_weights *w, ml_err *err) {
    ml_text path = { 0 };
    ml_status st = ml_weight_dir_write(&path, t->weight_dir, w, &t->run->spec, t->run->from,
                                       t->shard_bytes, err);

    if (st == ML_OK)
        st = call_hook(t, path.ptr, err);
    if (st == ML_OK) {
        t->gen->pause(t->gen); /* requests in flight are recomputed, not waited for */
        st = t->gen->load(t->gen, path.ptr, w->version, ML_SWITCH_RECOMPUTE, err);
        t->gen->resume(t->gen);
    }
    ml_text_release(&path);
    return st;
}

/* On the first pull, engines discard copies of another run's versions. */
static ml_status pull(ml_train_gen *t, int64_t version, ml_err *err) {
    ml_status st = ML_OK;

    if (t->pull.version < 0) {
        t->pull.version = 0;
        st = ml_remote_pull(t->gen, &t->pull, err);
    }
    if (st != ML_OK || version == 0)
        return st;
    t->pull.version = version;
    return ml_remote_pull(t->gen, &t->pull, err);
}

static ml_status deliver(ml_train_gen *t, const ml_weight_update *update,
                         const ml_weights *w, ml_err *err) {
    ml_status st = update->dir ? call_hook(t, update->dir, err) : ML_OK;

    if (st == ML_OK)
        st = pull(t, update->version, err);
    if (st != ML_OK)
        return st;
    t->gen->pause(t->gen);
    st = ml_remote_load_pulled(t->gen, &t->pull, w->version, ML_SWITCH_RECOMPUTE, err);
    t->gen->resume(t->gen);
    return st;
}

static void report(const ml_weight_update *n) {
    if (!n->dir)
        ml_log(ML_LOG_INFO, "weight_sync: engines begin with the weights they have");
    else if (n->is_whole)
        ml_log(ML_LOG_INFO, "weight_sync: %s is whole, %zu bytes", n->dir, n->n_byte);
    else
        ml_log(ML_LOG_INFO,
               "weight_sync: %s is a delta of %zu bytes; %zu of %zu have changed", n->dir,
               n->n_written, n->n_changed, n->n_byte);
}

/* Miles' metrics; for full weights the changed fraction is not known. */
static void record(ml_train_gen *t, const ml_weight_update *n) {
    ml_metrics metrics;
    ml_arena a;

    if (!n->dir)
        return;
    ml_arena_init(&a, "figures of weights");
    ml_metrics_init(&metrics, &a);
    if (!n->is_whole)
        ml_metrics_add(&metrics, "perf/", "update_weights_density",
                       (double)n->n_changed / (double)n->n_byte);
    ml_metrics_add(&metrics, "perf/", "update_weights_wire_bytes",
                   (double)(n->is_whole ? n->n_byte : n->n_written));
    ml_run_log_timing(&t->run->log, t->run->rollout, &metrics);
    ml_arena_release(&a);
}

static ml_status publish_version(ml_weight_update *out, ml_train_gen *t,
                                 const ml_weights *w, bool whole, ml_err *err) {
    ml_status st = ml_weight_stream_publish(out, t->stream, w, whole, err);

    if (st != ML_OK)
        return st;
    report(out);
    record(t, out);
    return deliver(t, out, w, err);
}

/* If an engine cannot apply a delta, the full weights are published. */
static ml_status publish_delta(ml_train_gen *t, const ml_weights *w, ml_err *err) {
    ml_weight_update update;
    ml_err why = { 0 };
    ml_status st = publish_version(&update, t, w, false, &why);

    if (st == ML_EPEER && !update.is_whole) {
        ml_log(ML_LOG_WARN, "%s; all of the weights are published instead", why.msg);
        return publish_version(&update, t, w, true, err);
    }
    if (st != ML_OK && err)
        *err = why;
    return st;
}

ml_status ml_train_remote_publish(ml_train_gen *t, const ml_weights *w, ml_err *err) {
    return t->stream ? publish_delta(t, w, err) : publish_whole(t, w, err);
}
