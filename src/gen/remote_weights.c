/* remote_weights.c - weight updates of all servers. */
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "gen/remote_priv.h"

/* The limit of attempts or of time is reached. */
static bool is_enough(const ml_remote *r, int32_t n, double waited) {
    return (r->opts.n_attempt > 0 && n >= r->opts.n_attempt) ||
           (r->opts.request_s > 0 && waited >= r->opts.request_s);
}

/* Repeats the requests until all servers have succeeded.  An unreachable server is retried
 * within the limits of attempts and time; a refusal is final. */
static ml_status post_all(ml_remote *r, ml_remote_steps steps, ml_err *err) {
    double began = ml_clock_s(), waited, warn_after = 0;
    ml_text done = { 0 };
    ml_err why = { 0 };
    ml_status st;

    for (int32_t n = 1;; n++) {
        st = ml_remote_request_all(r, "POST", steps, &done, &why);
        waited = ml_clock_s() - began;
        if (st != ML_EAGAIN || is_enough(r, n, waited) ||
            ml_remote_check_given_up(r, &why) != ML_OK)
            break;
        if (waited >= warn_after) {
            ml_log(ML_LOG_WARN, "%s; waiting with the new weights until it has them",
                   why.msg);
            warn_after = 2 * waited > r->opts.warn_s ? 2 * waited : r->opts.warn_s;
        }
        usleep((useconds_t)(r->opts.retry_s * 1e6));
    }
    if (st == ML_EAGAIN && r->opts.request_s > 0 && waited >= r->opts.request_s)
        ml_err_prefix(&why, "no successful reply to %s for %g s", steps.step->path,
                      r->opts.request_s);
    if (st != ML_OK && err)
        *err = why;
    ml_text_release(&done);
    return st == ML_EAGAIN ? ML_EPEER : st;
}

/* Stores what a lost server is sent when it comes back; returns what it was before. */
static ml_remote_steps keep(ml_remote *r, ml_remote_steps steps) {
    ml_remote_steps before;

    pthread_mutex_lock(&r->lock);
    before = r->weights.steps;
    r->weights.steps = steps;
    pthread_mutex_unlock(&r->lock);
    return before;
}

static const char *kept(ml_remote *r, const char *text) {
    return ml_arena_str(&r->arena, text, strlen(text));
}

static ml_remote_step *copy_steps(ml_remote *r, const ml_remote_step *step, int32_t n) {
    ml_remote_step *own;

    pthread_mutex_lock(&r->lock); /* servers that are added use the arena, too */
    own = ML_NEW(&r->arena, ml_remote_step, n);
    for (int32_t i = 0; i < n; i++)
        own[i] = (ml_remote_step){ kept(r, step[i].path), kept(r, step[i].body) };
    pthread_mutex_unlock(&r->lock);
    return own;
}

static void write_pull(ml_text *out, const ml_pull *p) {
    ml_text_printf(out, "{\"local_checkpoint_dir\":");
    ml_json_quote(out, ml_str_of(p->local));
    ml_text_printf(out, ",\"source_dir\":");
    ml_json_quote(out, ml_str_of(p->source));
    ml_text_printf(out, ",\"target_version\":%lld}", (long long)p->version);
}

static void write_load(ml_text *out, const char *dir, const ml_pull *p, uint64_t version,
                       ml_switch how) {
    ml_text_printf(out, "{\"model_path\":");
    ml_json_quote(out, ml_str_of(dir));
    ml_text_printf(out, ",\"weight_version\":\"%llu\",\"abort_all_requests\":%s",
                   (unsigned long long)version, how == ML_SWITCH_ABORT ? "true" : "false");
    if (p)
        ml_text_printf(out, ",\"published_version\":%lld", (long long)p->version);
    ml_text_printf(out, "}");
}

static uint64_t next_version(ml_remote *r, uint64_t version) {
    pthread_mutex_lock(&r->lock);
    version = version ? version : r->stats.version + 1;
    if (version > r->weights.newest)
        r->weights.newest = version;
    pthread_mutex_unlock(&r->lock);
    return version;
}

/* All servers take `now`; one that comes back later takes `back`. */
static ml_status update(ml_remote *r, ml_remote_steps now, ml_remote_steps back,
                        uint64_t version, ml_err *err) {
    ml_remote_steps before = keep(r, back);
    ml_status st = post_all(r, now, err);

    if (st != ML_OK) {
        keep(r, before);
        return st;
    }
    pthread_mutex_lock(&r->lock);
    r->stats.version = version;
    pthread_mutex_unlock(&r->lock);
    ml_remote_run_on_loop(r, ml_remote_mark_all_loaded, r);
    return ML_OK;
}

ml_status ml_remote_update(ml_gen *g, const ml_remote_step *step, int32_t n,
                           uint64_t version, ml_err *err) {
    ml_remote *r = (ml_remote *)g;
    ml_remote_steps all = { step, n };

    return update(r, all, all, next_version(r, version), err);
}

/* p NULL: from a directory that all servers can read. */
static ml_status load(ml_remote *r, const char *dir, const ml_pull *p, uint64_t version,
                      ml_switch how, ml_err *err) {
    ml_text body = { 0 }, pull = { 0 };
    ml_remote_step step[2] = { { "/pull_weights", NULL },
                               { "/update_weights_from_disk", NULL } };
    int32_t first = p ? 0 : 1;
    const ml_remote_step *own;
    ml_status st;

    if (how == ML_SWITCH_FINISH || how == ML_SWITCH_INEXACT_KV)
        return ml_fail(err, ML_EUNSUP,
                       "servers recompute or abort requests in flight when weights change; "
                       "otherwise pause and wait for them to finish");
    version = next_version(r, version);
    write_load(&body, dir, p, version, how);
    if (p)
        write_pull(&pull, p);
    step[0].body = pull.ptr;
    step[1].body = body.ptr;
    own = copy_steps(r, step + first, 2 - first);
    st = update(r, (ml_remote_steps){ own + 1 - first, 1 },
                (ml_remote_steps){ own, 2 - first }, version, err);
    ml_text_release(&pull);
    ml_text_release(&body);
    return st;
}

ml_status ml_remote_load(ml_gen *g, const char *dir, uint64_t version, ml_switch how,
                         ml_err *err) {
    return load((ml_remote *)g, dir, NULL, version, how, err);
}

ml_status ml_remote_load_pulled(ml_gen *g, const ml_pull *p, uint64_t version,
                                ml_switch how, ml_err *err) {
    return load((ml_remote *)g, p->local, p, version, how, err);
}

ml_status ml_remote_pull(ml_gen *g, const ml_pull *p, ml_err *err) {
    ml_text body = { 0 };
    ml_status st;

    write_pull(&body, p);
    st = post_all((ml_remote *)g,
                  (ml_remote_steps){ &(ml_remote_step){ "/pull_weights", body.ptr }, 1 },
                  err);
    ml_text_release(&body);
    return st;
}

ml_status ml_remote_check(ml_gen *g, ml_err *err) {
    ml_remote_steps health = { &(ml_remote_step){ "/health", "" }, 1 };
    ml_text done = { 0 };
    ml_status st = ml_remote_request_all((ml_remote *)g, "GET", health, &done, err);

    ml_text_release(&done);
    if (st != ML_OK)
        ml_err_prefix(err, "an engine is not reachable");
    return st == ML_EAGAIN ? ML_EPEER : st;
}
