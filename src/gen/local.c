#include "gen/local.h"

#include <stdlib.h>
#include <string.h>

#include "base/bug.h"
#include "base/log.h"
#include "gen/local_priv.h"

static ml_local *of(ml_gen *g) {
    return (ml_local *)g;
}

/* --- the engine's thread ------------------------------------------------------- */

/* The lock is held. */
static void take_order(ml_local *l, ml_order *o) {
    *o = (ml_order){ .requests = l->inbox,
                     .abort = l->abort,
                     .n_abort = l->n_abort,
                     .first = l->first,
                     .stop = l->stopping };
    l->inbox = (ml_request_list){ 0 };
    l->abort = NULL;
    l->n_abort = l->cap_abort = 0;
    l->first = l->last = NULL;
}

static void add_requests(ml_local *l, ml_request_list *from) {
    while (from->first) {
        ml_request *r = from->first;
        ml_list_remove(from, r);
        ml_engine_add(l->engine, r);
    }
}

static void take_stock(ml_local *l) {
    ml_engine_stats(l->engine, &l->stats);
    l->stats.paused = l->paused;
    l->n_queued = l->inbox.n + (int32_t)l->stats.n_waiting;
}

static void finish(ml_local *l, ml_command *c) {
    if (c->received) {
        if (c->st != ML_OK) {
            ml_weight_set_free(c->set);
            free(c->dir);
        }
        free(c);
        return;
    }
    pthread_mutex_lock(&l->lock);
    take_stock(l); /* what its caller sees next */
    c->done = true;
    pthread_cond_broadcast(&l->done);
    pthread_mutex_unlock(&l->lock);
}

/* Runs each command once, those to retry first; they keep their order. */
static void run_commands(ml_local *l, ml_command *fresh) {
    ml_command *c = l->retry, **tail = &c, *next;

    while (*tail)
        tail = &(*tail)->next;
    *tail = fresh;
    l->retry = NULL;
    tail = &l->retry;
    for (; c; c = next) {
        next = c->next;
        c->next = NULL;
        c->st = ml_local_do(l, c);
        if (c->st == ML_EAGAIN) {
            *tail = c;
            tail = &c->next;
        } else {
            finish(l, c);
        }
    }
}

static void apply_order(ml_local *l, ml_order *o) {
    add_requests(l, &o->requests);
    for (int32_t i = 0; i < o->n_abort; i++)
        ml_engine_abort(l->engine, o->abort[i], "aborted");
    free(o->abort);
    run_commands(l, o->first);
}

/* Fails commands, whose callers wait. */
static void refuse_commands(ml_local *l, ml_command *c, const char *why) {
    for (ml_command *next; c; c = next) {
        next = c->next;
        c->st = ml_fail(c->err, ML_EUSAGE, "%s", why);
        finish(l, c);
    }
}

static void call_step_end(ml_local *l, bool notified) {
    ml_gen_stats now;
    int64_t n_ended;

    ml_engine_stats(l->engine, &now);
    n_ended = now.n_finished + now.n_aborted;
    if (l->step_end && (notified || n_ended != l->n_ended))
        l->step_end(l->step_end_ud);
    l->n_ended = n_ended;
}

static bool has_work(const ml_local *l) {
    return l->inbox.first || l->n_abort || l->first || l->retry ||
           (l->notified && !l->paused);
}

/* busy: the last step had requests, so there may be another. */
static ml_status next_order(ml_local *l, ml_order *o, bool busy, ml_err *err) {
    if (ml_rank_group_follows(&l->group))
        return ml_order_receive(l, o, err);
    pthread_mutex_lock(&l->lock);
    while (!l->stopping && !busy && !has_work(l))
        pthread_cond_wait(&l->wake, &l->lock);
    take_order(l, o);
    pthread_mutex_unlock(&l->lock);
    return ml_rank_group_leads(&l->group) ? ml_order_send(l, o, err) : ML_OK;
}

/* True: the step-end callback was asked for and may run. */
static bool take_notice(ml_local *l) {
    bool notified;

    pthread_mutex_lock(&l->lock);
    take_stock(l);
    notified = l->notified && !l->paused;
    l->notified = l->notified && !notified;
    pthread_mutex_unlock(&l->lock);
    return notified;
}

static void take_stock_after_step(ml_local *l) {
    pthread_mutex_lock(&l->lock);
    take_stock(l);
    pthread_mutex_unlock(&l->lock);
}

/* Ends everything that was asked for and not done yet. */
static void end_all(ml_local *l, const char *why) {
    ml_order o;

    pthread_mutex_lock(&l->lock);
    take_order(l, &o);
    pthread_mutex_unlock(&l->lock);
    free(o.abort);
    add_requests(l, &o.requests);
    refuse_commands(l, l->retry, why);
    l->retry = NULL;
    refuse_commands(l, o.first, why);
    ml_engine_abort_all(l->engine, why);
    take_stock_after_step(l);
}

/* A rank has left, or parted from the others: nothing can be generated any more. */
static void stay_failed(ml_local *l, const ml_err *why) {
    ml_log(ML_LOG_WARN, "the engine stops: %s", why->msg);
    pthread_mutex_lock(&l->lock);
    l->failed = *why;
    pthread_mutex_unlock(&l->lock);
    if (ml_rank_group_follows(&l->group))
        return;
    for (bool stopping = false; !stopping;) {
        end_all(l, why->msg);
        call_step_end(l, false);
        pthread_mutex_lock(&l->lock);
        while (!l->stopping && !l->inbox.first && !l->first && !l->n_abort)
            pthread_cond_wait(&l->wake, &l->lock);
        stopping = l->stopping;
        pthread_mutex_unlock(&l->lock);
    }
}

static ml_status run_steps(ml_local *l, ml_err *err) {
    bool busy = false, notified;

    for (;;) {
        ml_order o;
        ml_status st = next_order(l, &o, busy, err);
        if (st == ML_OK || !ml_rank_group_follows(&l->group))
            apply_order(l, &o);
        if (st != ML_OK)
            return st;
        notified = take_notice(l);
        if (o.stop)
            return ML_OK;
        busy = ml_local_may_step(l) && ml_engine_step(l->engine);
        call_step_end(l, notified);
        take_stock_after_step(l);
        st = ml_engine_check(l->engine, err);
        if (st != ML_OK)
            return st;
    }
}

static void *run(void *ud) {
    ml_local *l = ud;
    ml_err err = { 0 };
    ml_status st = run_steps(l, &err);

    if (st != ML_OK && ml_rank_group_follows(&l->group)) /* the others learn why */
        l->opts.engine.comm->agree(l->opts.engine.comm, st, &err);
    if (st != ML_OK)
        stay_failed(l, &err);
    end_all(l, "the engine is closing");
    return NULL;
}

/* --- from other threads --------------------------------------------------------- */

static ml_status submit(ml_gen *g, const ml_gen_request *req, ml_gen_fn *fn, void *ud,
                        uint64_t *ticket, ml_err *err) {
    ml_local *l = of(g);
    ml_request *r;
    ml_status st;

    st = ml_request_new(&r, &l->opts.engine, l->opts.spec->n_vocab, req, err);
    if (st != ML_OK)
        return st;
    r->fn = fn;
    r->ud = ud;
    pthread_mutex_lock(&l->lock);
    if (l->failed.code != ML_OK)
        st = ml_fail(err, ML_EPEER, "the engine has stopped: %s", l->failed.msg);
    else if (l->n_queued >= l->opts.engine.max_waiting)
        st = ml_fail(err, ML_EAGAIN, "the queue is full: %d requests are waiting",
                     l->n_queued);
    if (st != ML_OK) {
        pthread_mutex_unlock(&l->lock);
        ml_request_free(r);
        return st;
    }
    *ticket = r->ticket = r->arrival = ++l->n_ticket;
    ml_list_insert(&l->inbox, r);
    l->n_queued++;
    pthread_cond_signal(&l->wake);
    pthread_mutex_unlock(&l->lock);
    return ML_OK;
}

static void abort_one(ml_gen *g, uint64_t ticket) {
    ml_local *l = of(g);
    pthread_mutex_lock(&l->lock);
    if (l->n_abort == l->cap_abort) {
        l->cap_abort = l->cap_abort ? 2 * l->cap_abort : 16;
        l->abort = realloc(l->abort, (size_t)l->cap_abort * sizeof *l->abort);
        ML_BUG_IF(!l->abort);
    }
    l->abort[l->n_abort++] = ticket;
    pthread_cond_signal(&l->wake);
    pthread_mutex_unlock(&l->lock);
}

/* Queues a command for the engine's thread and waits until it is done. */
static ml_status have_done(ml_local *l, ml_command *c) {
    pthread_mutex_lock(&l->lock);
    *(l->last ? &l->last->next : &l->first) = c;
    l->last = c;
    pthread_cond_signal(&l->wake);
    while (!c->done)
        pthread_cond_wait(&l->done, &l->lock);
    pthread_mutex_unlock(&l->lock);
    return c->st;
}

static void abort_all(ml_gen *g) {
    have_done(of(g), &(ml_command){ .kind = ML_DO_ABORT_ALL });
}

static void pause_steps(ml_gen *g) {
    have_done(of(g), &(ml_command){ .kind = ML_DO_PAUSE, .flag = { true } });
}

static void resume_steps(ml_gen *g) {
    have_done(of(g), &(ml_command){ .kind = ML_DO_PAUSE });
}

static void set_step_end(ml_gen *g, ml_step_end_fn *fn, void *ud) {
    have_done(of(g), &(ml_command){ .kind = ML_DO_SET_STEP_END, .step_end = fn, .ud = ud });
}

static void notify(ml_gen *g) {
    ml_local *l = of(g);
    pthread_mutex_lock(&l->lock);
    l->notified = true;
    pthread_cond_signal(&l->wake);
    pthread_mutex_unlock(&l->lock);
}

static bool flush(ml_gen *g) {
    ml_command c = { .kind = ML_DO_FLUSH };
    have_done(of(g), &c);
    return c.flag[0];
}

static void stats(ml_gen *g, ml_gen_stats *out) {
    ml_local *l = of(g);
    pthread_mutex_lock(&l->lock);
    *out = l->stats;
    out->n_waiting = l->n_queued;
    pthread_mutex_unlock(&l->lock);
}

static ml_status load(ml_gen *g, const char *dir, uint64_t version, ml_switch how,
                      ml_err *err) {
    ml_command c = { .kind = ML_DO_LOAD, .version = version, .how = how, .err = err };
    ml_status st;

    c.dir = strdup(dir);
    st = c.dir ? have_done(of(g), &c) : ml_fail(err, ML_ENOMEM, "out of memory for a path");
    if (st != ML_OK) {
        ml_weight_set_free(c.set);
        free(c.dir);
    }
    return st;
}

ml_status ml_local_group_do(ml_gen *g, ml_group_op op, const char *json, uint64_t version,
                            ml_switch how, ml_err *err) {
    ml_command c = {
        .kind = ML_DO_GROUP, .op = op, .version = version, .how = how, .err = err
    };
    ml_status st;

    c.dir = strdup(json);
    st = c.dir ? have_done(of(g), &c)
               : ml_fail(err, ML_ENOMEM, "out of memory for a request");
    if (st != ML_OK) {
        ml_weight_set_free(c.set);
        free(c.dir);
    }
    return st;
}

ml_status ml_local_set_adapter(ml_gen *g, int32_t slot, const ml_adapter_source *from,
                               ml_err *err) {
    const char *text = from->json ? from->json : from->dir;
    ml_command c = { .kind = ML_DO_ADAPTER,
                     .slot = slot,
                     .version = from->version,
                     .how = from->how,
                     .crc64 = from->crc64 ? strtoull(from->crc64, NULL, 16) : 0,
                     .flag = { from->json != NULL, from->crc64 != NULL },
                     .err = err };
    ml_status st;

    c.dir = text ? strdup(text) : NULL;
    if (text && !c.dir)
        return ml_fail(err, ML_ENOMEM, "out of memory for a path");
    st = have_done(of(g), &c);
    if (st != ML_OK)
        free(c.dir);
    return st;
}

ml_status ml_local_embed(ml_gen *g, const ml_embed_request *q, ml_err *err) {
    ml_command c = { .kind = ML_DO_EMBED, .embed = q, .err = err };
    return have_done(of(g), &c);
}

ml_status ml_local_switch(ml_gen *g, const ml_weights *w, ml_switch how, ml_err *err) {
    ml_command c = { .kind = ML_DO_SWITCH, .weights = w, .how = how, .err = err };
    return have_done(of(g), &c);
}

void ml_local_release(ml_gen *g, bool kv, bool weights) {
    have_done(of(g), &(ml_command){ .kind = ML_DO_RELEASE, .flag = { kv, weights } });
}

ml_status ml_local_take(ml_gen *g, bool kv, bool weights, ml_err *err) {
    ml_command c = { .kind = ML_DO_TAKE, .flag = { kv, weights }, .err = err };
    return have_done(of(g), &c);
}

/* --- opening and closing ------------------------------------------------------ */

static void free_local(ml_local *l) {
    ml_embedder_free(l->embedder);
    ml_engine_close(l->engine);
    ml_local_leave_groups(l);
    ml_rank_group_close(&l->group);
    ml_weight_set_free(l->own);
    ml_local_close_adapters(l);
    free(l->abort);
    free(l->dir);
    pthread_cond_destroy(&l->wake);
    pthread_cond_destroy(&l->done);
    pthread_mutex_destroy(&l->lock);
    free(l);
}

static void close_gen(ml_gen *g) {
    ml_local *l = of(g);
    pthread_mutex_lock(&l->lock);
    l->stopping = true;
    pthread_cond_signal(&l->wake);
    pthread_mutex_unlock(&l->lock);
    pthread_join(l->thread, NULL);
    free_local(l);
}

/* On several ranks all succeed or all fail. */
static ml_status open_engine(ml_local *l, ml_err *err) {
    const ml_local_opts *o = &l->opts;
    const ml_weights *w = o->weights;
    ml_status st = ml_rank_group_open(&l->group, o->engine.comm, err);

    if (st != ML_OK)
        return st;
    if (!w) {
        l->dir = o->dir ? strdup(o->dir) : NULL;
        st = ml_weight_set_new(&l->own, o, o->dir, o->version, err);
        w = st == ML_OK ? &l->own->w : NULL;
        if (st == ML_OK)
            ml_local_adopt(l, l->own);
        st = ml_rank_group_agree(&l->group, st, err);
    }
    if (st == ML_OK) {
        st = ml_engine_open(&l->engine, o->spec, w, o->be, &o->engine, err);
        st = ml_rank_group_agree(&l->group, st, err);
    }
    if (st == ML_OK && o->embed_tokens)
        st = ml_embedder_new(&l->embedder, o->spec, o->be, o->embed_tokens, err);
    if (st == ML_OK)
        take_stock(l);
    return st;
}

static ml_status new_local(ml_local **out, const ml_local_opts *o, ml_err *err) {
    ml_local *l = calloc(1, sizeof *l);
    ml_status st;

    if (!l)
        return ml_fail(err, ML_ENOMEM, "out of memory for an engine");
    l->gen = (ml_gen){ .name = "local",
                       .submit = submit,
                       .abort = abort_one,
                       .abort_all = abort_all,
                       .pause = pause_steps,
                       .resume = resume_steps,
                       .flush = flush,
                       .load = load,
                       .stats = stats,
                       .on_step_end = set_step_end,
                       .notify = notify,
                       .close = close_gen };
    l->opts = *o;
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->wake, NULL);
    pthread_cond_init(&l->done, NULL);
    st = open_engine(l, err);
    if (st == ML_OK)
        *out = l;
    else
        free_local(l);
    return st;
}

ml_status ml_local_open(ml_gen **out, const ml_local_opts *o, ml_err *err) {
    ml_local *l = NULL;
    ml_status st = new_local(&l, o, err);

    if (st != ML_OK)
        return st;
    ML_BUG_IF(!l);
    if (pthread_create(&l->thread, NULL, run, l) != 0) {
        free_local(l);
        return ml_fail(err, ML_ENOMEM, "cannot create a thread for the engine");
    }
    *out = &l->gen;
    return ML_OK;
}

ml_status ml_local_follow(const ml_local_opts *o, ml_err *err) {
    ml_local *l = NULL;
    ml_status st = new_local(&l, o, err);

    if (st != ML_OK)
        return st;
    ML_BUG_IF(!ml_rank_group_follows(&l->group));
    run(l);
    st = l->failed.code;
    if (st != ML_OK)
        *err = l->failed;
    free_local(l);
    return st;
}
