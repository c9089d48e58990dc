/* Weight updates: from a checkpoint, or from the versions that a trainer publishes. */
#include <stdio.h>
#include <stdlib.h>

#include "io/local_checkpoint.h"
#include "serve/admin_priv.h"
#include "serve/weight_path.h"

typedef ml_admin_task task;

typedef struct update_body {
    ml_str model_path, load_format, weight_version, new_version;
    int32_t published;
    bool abort_all, flush;
} update_body;

static const ml_field update_rows[] = {
    { "model_path", ML_FIELD_STR, offsetof(update_body, model_path) },
    { "load_format", ML_FIELD_STR, offsetof(update_body, load_format) },
    { "weight_version", ML_FIELD_STR, offsetof(update_body, weight_version) },
    { "abort_all_requests", ML_FIELD_BOOL, offsetof(update_body, abort_all) },
    { "flush_cache", ML_FIELD_BOOL, offsetof(update_body, flush) },
    /* miles only: the version of the copy made by /pull_weights; any other is rejected */
    { "published_version", ML_FIELD_I32, offsetof(update_body, published) },
    { "torch_empty_cache", ML_FIELD_IGNORE },
    { "recapture_cuda_graph", ML_FIELD_IGNORE },
    { "keep_pause", ML_FIELD_IGNORE }, /* only /continue_generation ends a pause */
    { "token_step", ML_FIELD_IGNORE },
    { "is_async", ML_FIELD_REFUSE,
      .why = "the reply is sent when the new weights are in use" },
    { "manifest", ML_FIELD_REFUSE, .why = "checkpoints are checked against config.json" },
    { 0 },
};

ml_switch ml_admin_switch(const ml_admin *a, const task *t) {
    switch (a->mode) {
    case ML_NOT_PAUSED: return t->abort_all ? ML_SWITCH_ABORT : ML_SWITCH_FINISH;
    case ML_PAUSE_ABORT: /* later requests are queued, and hold no KV pages */
    case ML_PAUSE_RETRACT: return t->abort_all ? ML_SWITCH_ABORT : ML_SWITCH_RECOMPUTE;
    case ML_PAUSE_IN_PLACE: return t->abort_all ? ML_SWITCH_ABORT : ML_SWITCH_INEXACT_KV;
    }
    return ML_SWITCH_FINISH;
}

/* Replaces *path by its resolved form, if it is below an allowed root. */
static ml_status check_path(task *t, const char **path, const char *member) {
    const ml_server_opts *o = &t->server->opts;
    ml_weight_roots roots = { o->weight_root, o->n_weight_root, o->model_path };

    return ml_weight_path_check(path, &t->arena, &roots, *path, member, &t->err);
}

/* A published copy that cannot be loaded is corrupt: it is disowned, so that the next pull
 * writes it again. */
static void load(const ml_admin *a, task *t) {
    ml_gen *g = a->server->opts.gen;
    ml_hold hold;

    t->st = check_path(t, &t->dir, "model_path");
    if (t->st == ML_OK)
        t->st = ml_local_checkpoint_hold(&hold, t->dir, t->published, &t->err);
    if (t->st != ML_OK)
        return;
    t->st = g->load(g, t->dir, t->version, ml_admin_switch(a, t), &t->err);
    if (t->st == ML_EFORMAT && t->published >= 0)
        ml_local_checkpoint_disown(t->dir);
    ml_local_checkpoint_release(&hold);
}

static void run_update(ml_admin *a, task *t) {
    ml_gen *g = a->server->opts.gen;
    ml_gen_stats stats;

    g->stats(g, &stats);
    t->n_paused = a->mode == ML_NOT_PAUSED ? 0 : stats.n_running;
    load(a, t);
    g->stats(g, &stats);
    t->version = stats.version;
}

static void add_paused(const task *t, ml_json_out *o) {
    ml_json_key(o, "num_paused_requests");
    ml_json_int(o, t->n_paused);
}

static void reply_updated(task *t, ml_http_call *c) {
    ml_server *s = t->server;
    char number[24];

    snprintf(number, sizeof number, "%llu", (unsigned long long)t->version);
    if (!t->st)
        ml_server_set_label(s, t->version, t->label.len ? t->label : ml_str_of(number));
    if (!t->st)
        snprintf(s->model_path, sizeof s->model_path, "%s", t->dir);
    ml_admin_reply(t, c, "The weights were updated.", add_paused);
}

void ml_serve_update_from_disk(ml_server *s, ml_http_call *c) {
    task *t = ml_admin_new_task(s, c);
    update_body b = { .flush = true, .published = -1 };
    ml_err err = { 0 };
    ml_status st = ml_admin_read(t, &b, update_rows, false, &err);

    if (!st && !b.model_path.len)
        st = ml_fail(&err, ML_EUSAGE, "expected \"model_path\", a checkpoint's directory");
    if (!st && b.load_format.len && !ml_str_is(b.load_format, "auto") &&
        !ml_str_is(b.load_format, "safetensors"))
        st = ml_fail(&err, ML_EUSAGE,
                     "\"load_format\": expected \"auto\" or \"safetensors\"");
    if (!st && !b.flush)
        st = ml_fail(&err, ML_EUNSUP,
                     "\"flush_cache\": false is not supported: the cache holds keys and "
                     "values of the old weights");
    if (!st)
        st = ml_weight_path_of(&t->dir, &t->arena, b.model_path, "model_path", &err);
    if (!st)
        st = ml_weight_version_read(&t->version, b.weight_version, &err);
    if (st) {
        ml_admin_refuse(t, &err);
        return;
    }
    t->label = b.weight_version;
    t->published = b.published;
    t->abort_all = b.abort_all;
    t->run = run_update;
    t->reply = reply_updated;
    ml_admin_hand_over(t);
}

static const ml_field version_rows[] = {
    { "new_version", ML_FIELD_STR, offsetof(update_body, new_version) },
    { "abort_all_requests", ML_FIELD_BOOL, offsetof(update_body, abort_all) },
    { 0 },
};

static void add_version(const task *t, ml_json_out *o) {
    ml_json_key(o, "new_version");
    ml_json_str(o, t->label);
}

/* Sets a new label for the weights in use.  As in SGLang, requests in flight are aborted
 * unless the request disables that. */
void ml_serve_update_version(ml_server *s, ml_http_call *c) {
    task *t = ml_admin_new_task(s, c);
    update_body b = { .abort_all = true };
    ml_gen_stats stats;
    ml_err err = { 0 };
    ml_status st = ml_admin_read(t, &b, version_rows, false, &err);

    if (!st && !b.new_version.len)
        st = ml_fail(&err, ML_EUSAGE, "expected \"new_version\", a string");
    if (st) {
        ml_admin_refuse(t, &err);
        return;
    }
    if (b.abort_all)
        ml_admin_abort_all(s);
    s->opts.gen->stats(s->opts.gen, &stats);
    ml_server_set_label(s, stats.version, b.new_version);
    t->label = b.new_version;
    ml_admin_reply(t, c, "The weight version was updated.", add_version);
    ml_admin_free_task(t);
}

/* --- versions that a trainer publishes ---------------------------------------- */

typedef struct pull_body {
    ml_str local, source;
    int32_t target;
} pull_body;

static const ml_field pull_rows[] = {
    { "local_checkpoint_dir", ML_FIELD_STR, offsetof(pull_body, local) },
    { "source_dir", ML_FIELD_STR, offsetof(pull_body, source) },
    { "target_version", ML_FIELD_I32, offsetof(pull_body, target) },
    { 0 },
};

/* Only copies files; requests in flight continue. */
static void run_pull(ml_admin *a, task *t) {
    t->st = check_path(t, &t->dir, "local_checkpoint_dir");
    if (t->st == ML_OK)
        t->st = check_path(t, &t->source, "source_dir");
    if (t->st == ML_OK)
        t->st = ml_local_checkpoint_pull(t->dir, a->server->opts.model_path, t->source,
                                         t->published, &t->err);
}

static void reply_pulled(task *t, ml_http_call *c) {
    ml_admin_reply(t, c, "The weights were pulled.", NULL);
}

void ml_serve_pull_weights(ml_server *s, ml_http_call *c) {
    task *t = ml_admin_new_task(s, c);
    pull_body b = { .target = -1 };
    ml_err err = { 0 };
    ml_status st = ml_admin_read(t, &b, pull_rows, false, &err);

    if (!st && (!b.local.len || !b.source.len || b.target < 0))
        st = ml_fail(&err, ML_EUSAGE,
                     "expected \"local_checkpoint_dir\", \"source_dir\" and "
                     "\"target_version\", a number >= 0");
    if (!st)
        st = ml_weight_path_of(&t->dir, &t->arena, b.local, "local_checkpoint_dir", &err);
    if (!st)
        st = ml_weight_path_of(&t->source, &t->arena, b.source, "source_dir", &err);
    if (st) {
        ml_admin_refuse(t, &err);
        return;
    }
    t->published = b.target;
    t->run = run_pull;
    t->reply = reply_pulled;
    ml_admin_hand_over(t);
}
