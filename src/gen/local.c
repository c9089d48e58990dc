#include "gen/local.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/bug.h"
#include "engine/request.h"
#include "model/weights_checksum.h"

/* A set of weights, loaded or dummy, that this generator owns. */
typedef struct weight_set {
    ml_weights w;
    ml_arena arena;
} weight_set;

/* An operation that another thread wants run between steps; on that thread's stack. */
typedef struct command command;
typedef struct local local;
typedef ml_status command_fn(local *l, command *c); /* ML_EAGAIN: retry after a step */

struct command {
    command *next;
    command_fn *fn;
    bool done;
    ml_status st;
    ml_err *err;
    /* arguments; each operation uses some */
    const ml_weights *weights;
    weight_set *set;
    char *dir; /* of a load: owned by l after success */
    ml_step_end_fn *step_end;
    void *ud;
    uint64_t version;
    ml_switch how;
    bool flag[2];
};

struct local {
    ml_gen gen; /* first, so that the ml_gen * can be cast to local * */
    ml_local_opts opts;
    ml_engine *engine;
    weight_set *own; /* the weights in use, or NULL: they are the caller's */
    char *dir;       /* checkpoint of `own`; NULL: dummy weights */
    bool paused, no_kv, no_weights;
    ml_step_end_fn *step_end;
    void *step_end_ud;
    int64_t n_ended; /* requests that had ended at the last call_step_end */

    pthread_t thread;
    pthread_mutex_t lock; /* guards the fields below */
    pthread_cond_t wake, done;
    ml_request_list inbox;
    uint64_t n_ticket;
    int32_t n_queued;   /* in the inbox and in the engine's queue, as of the last step */
    ml_gen_stats stats; /* as of the last step */
    uint64_t *abort;    /* [n_abort] tickets */
    int32_t n_abort, cap_abort;
    command *first, *last;
    bool notified; /* the step-end callback is to run before the next step */
    bool stopping;
};

static local *of(ml_gen *g) {
    return (local *)g;
}

/* --- weights ------------------------------------------------------------------ */

static void free_set(weight_set *s) {
    if (!s)
        return;
    ml_weights_close(&s->w);
    ml_arena_release(&s->arena);
    free(s);
}

static ml_status read_set(const ml_local_opts *o, weight_set *s, const char *dir,
                          ml_err *err) {
    ml_checkpoint *c = NULL;
    ml_status st;

    if (!dir)
        return ml_weights_dummy(&s->w, o->spec, o->dtype, o->seed, o->be, &s->arena, err);
    st = ml_checkpoint_open(&c, dir, err);
    if (st == ML_OK)
        st = ml_weights_load(&s->w, o->spec, c, o->dtype, o->be, &s->arena, err);
    if (st == ML_OK)
        st = ml_weights_check_checksum(&s->w, o->spec, dir, err);
    ml_checkpoint_close(c);
    return st;
}

static ml_status new_set(weight_set **out, const ml_local_opts *o, const char *dir,
                         uint64_t version, ml_err *err) {
    weight_set *s = calloc(1, sizeof *s);
    ml_status st;

    if (!s)
        return ml_fail(err, ML_ENOMEM, "out of memory for a set of weights");
    ml_arena_init(&s->arena, "weights");
    st = read_set(o, s, dir, err);
    if (st != ML_OK) {
        free_set(s);
        return st;
    }
    s->w.version = version;
    *out = s;
    return ML_OK;
}

/* --- the engine's thread ------------------------------------------------------- */

static void take_inbox(local *l) {
    while (l->inbox.first) {
        ml_request *r = l->inbox.first;
        ml_list_remove(&l->inbox, r);
        ml_engine_add(l->engine, r);
    }
}

static void run_aborts(local *l) {
    uint64_t *abort = l->abort;
    int32_t n = l->n_abort;

    l->abort = NULL;
    l->n_abort = l->cap_abort = 0;
    pthread_mutex_unlock(&l->lock); /* aborting invokes the callback */
    for (int32_t i = 0; i < n; i++)
        ml_engine_abort(l->engine, abort[i], "aborted");
    free(abort);
    pthread_mutex_lock(&l->lock);
}

/* Runs each queued command once; those that return ML_EAGAIN stay first in the queue. */
static void run_commands(local *l) {
    command *c = l->first, *again = NULL, **tail = &again;

    l->first = l->last = NULL;
    while (c) {
        command *next = c->next;
        pthread_mutex_unlock(&l->lock);
        c->st = c->fn(l, c);
        pthread_mutex_lock(&l->lock);
        c->next = NULL;
        if (c->st == ML_EAGAIN) {
            *tail = c;
            tail = &c->next;
        } else {
            c->done = true;
            pthread_cond_broadcast(&l->done);
        }
        c = next;
    }
    if (again) {
        *tail = l->first;
        l->first = again;
        for (l->last = again; l->last->next;)
            l->last = l->last->next;
    }
}

static bool may_step(const local *l) {
    return !l->paused && !l->no_kv && !l->no_weights;
}

static void take_stock(local *l) {
    ml_engine_stats(l->engine, &l->stats);
    l->stats.paused = l->paused;
    l->n_queued = l->inbox.n + (int32_t)l->stats.n_waiting;
}

/* Fails the queued commands, whose callers wait. */
static void refuse_commands(local *l) {
    for (command *c = l->first, *next; c; c = next) {
        next = c->next;
        c->st = ml_fail(c->err, ML_EUSAGE, "the engine is closing");
        c->done = true;
    }
    l->first = l->last = NULL;
    pthread_cond_broadcast(&l->done);
}

static void call_step_end(local *l, bool notified) {
    ml_gen_stats now;
    int64_t n_ended;

    ml_engine_stats(l->engine, &now);
    n_ended = now.n_finished + now.n_aborted;
    if (l->step_end && (notified || n_ended != l->n_ended))
        l->step_end(l->step_end_ud);
    l->n_ended = n_ended;
}

static bool has_work(const local *l) {
    return l->inbox.first || l->n_abort || l->first || (l->notified && !l->paused);
}

static void *run(void *ud) {
    local *l = ud;
    bool busy = false, notified;

    pthread_mutex_lock(&l->lock);
    for (;;) {
        while (!l->stopping && !busy && !has_work(l))
            pthread_cond_wait(&l->wake, &l->lock);
        take_inbox(l);
        if (l->n_abort)
            run_aborts(l);
        run_commands(l);
        take_stock(l);
        if (l->stopping)
            break;
        notified = l->notified && !l->paused;
        l->notified = l->notified && !notified;
        pthread_mutex_unlock(&l->lock);
        busy = may_step(l) && ml_engine_step(l->engine);
        call_step_end(l, notified);
        pthread_mutex_lock(&l->lock);
        take_stock(l);
    }
    take_inbox(l); /* requests that arrived while aborts or commands ran */
    refuse_commands(l);
    pthread_mutex_unlock(&l->lock);
    ml_engine_abort_all(l->engine, "the engine is closing");
    return NULL;
}

/* --- from other threads --------------------------------------------------------- */

static ml_status submit(ml_gen *g, const ml_gen_request *req, ml_gen_fn *fn, void *ud,
                        uint64_t *ticket, ml_err *err) {
    local *l = of(g);
    ml_request *r;
    ml_status st = ml_request_new(&r, &l->opts.engine, l->opts.spec->n_vocab, req, err);

    if (st != ML_OK)
        return st;
    r->fn = fn;
    r->ud = ud;
    pthread_mutex_lock(&l->lock);
    if (l->n_queued >= l->opts.engine.max_waiting) {
        st = ml_fail(err, ML_EAGAIN, "the queue is full: %d requests are waiting",
                     l->n_queued);
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
    local *l = of(g);
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
static ml_status have_done(local *l, command *c) {
    pthread_mutex_lock(&l->lock);
    *(l->last ? &l->last->next : &l->first) = c;
    l->last = c;
    pthread_cond_signal(&l->wake);
    while (!c->done)
        pthread_cond_wait(&l->done, &l->lock);
    pthread_mutex_unlock(&l->lock);
    return c->st;
}

static ml_status do_abort_all(local *l, command *c) {
    (void)c;
    ml_engine_abort_all(l->engine, "aborted");
    return ML_OK;
}

static ml_status do_pause(local *l, command *c) {
    l->paused = c->flag[0];
    return ML_OK;
}

static ml_status do_set_step_end(local *l, command *c) {
    l->step_end = c->step_end;
    l->step_end_ud = c->ud;
    return ML_OK;
}

static ml_status do_flush(local *l, command *c) {
    c->flag[0] = ml_engine_flush(l->engine);
    return ML_OK;
}

/* Switches the weights; frees those that this generator owned before. */
static ml_status do_switch(local *l, command *c) {
    ml_status st = ml_engine_switch(l->engine, c->weights, c->how);

    if (st == ML_EAGAIN && !may_step(l))
        return ml_fail(c->err, ML_EUSAGE,
                       "generation is paused with requests in flight, which cannot finish: "
                       "continue it, abort them, or let their KV cache be recomputed");
    if (st != ML_OK)
        return st;
    free_set(l->own);
    l->own = c->set;
    l->no_weights = false;
    return ML_OK;
}

static ml_status do_load(local *l, command *c) {
    ml_gen_stats now;
    ml_status st = ML_OK;

    ml_engine_stats(l->engine, &now);
    if (!c->set) /* else this is a retry */
        st = new_set(&c->set, &l->opts, c->dir, c->version ? c->version : now.version + 1,
                     c->err);
    if (st != ML_OK)
        return st;
    c->weights = &c->set->w;
    st = do_switch(l, c);
    if (st == ML_OK) {
        free(l->dir);
        l->dir = c->dir;
    }
    return st;
}

static ml_status do_release(local *l, command *c) {
    if (c->flag[0] && !l->no_kv) {
        ml_engine_release_kv(l->engine);
        l->no_kv = true;
    }
    if (c->flag[1] && l->own) {
        c->version = l->own->w.version;
        ml_weights_close(&l->own->w);
        l->own->w.version = c->version; /* stats need it meanwhile */
        l->no_weights = true;
    }
    return ML_OK;
}

static ml_status do_take(local *l, command *c) {
    ml_status st = ML_OK;

    if (c->flag[1] && l->no_weights) {
        uint64_t version = l->own->w.version;
        ml_arena_release(&l->own->arena);
        st = read_set(&l->opts, l->own, l->dir, c->err);
        l->own->w.version = version;
        l->no_weights = st != ML_OK;
    }
    if (c->flag[0] && l->no_kv && st == ML_OK) {
        st = ml_engine_take_kv(l->engine, c->err);
        l->no_kv = st != ML_OK;
    }
    return st;
}

static void abort_all(ml_gen *g) {
    have_done(of(g), &(command){ .fn = do_abort_all });
}

static void pause_steps(ml_gen *g) {
    have_done(of(g), &(command){ .fn = do_pause, .flag = { true } });
}

static void resume_steps(ml_gen *g) {
    have_done(of(g), &(command){ .fn = do_pause });
}

static void set_step_end(ml_gen *g, ml_step_end_fn *fn, void *ud) {
    have_done(of(g), &(command){ .fn = do_set_step_end, .step_end = fn, .ud = ud });
}

static void notify(ml_gen *g) {
    local *l = of(g);
    pthread_mutex_lock(&l->lock);
    l->notified = true;
    pthread_cond_signal(&l->wake);
    pthread_mutex_unlock(&l->lock);
}

static bool flush(ml_gen *g) {
    command c = { .fn = do_flush };
    have_done(of(g), &c);
    return c.flag[0];
}

static void stats(ml_gen *g, ml_gen_stats *out) {
    local *l = of(g);
    pthread_mutex_lock(&l->lock);
    *out = l->stats;
    out->n_waiting = l->n_queued;
    pthread_mutex_unlock(&l->lock);
}

static ml_status load(ml_gen *g, const char *dir, uint64_t version, ml_switch how,
                      ml_err *err) {
    command c = { .fn = do_load, .version = version, .how = how, .err = err };
    ml_status st;

    c.dir = strdup(dir);
    st = c.dir ? have_done(of(g), &c) : ml_fail(err, ML_ENOMEM, "out of memory for a path");
    if (st != ML_OK) {
        free_set(c.set);
        free(c.dir);
    }
    return st;
}

ml_status ml_local_switch(ml_gen *g, const ml_weights *w, ml_switch how, ml_err *err) {
    command c = { .fn = do_switch, .weights = w, .how = how, .err = err };
    return have_done(of(g), &c);
}

void ml_local_release(ml_gen *g, bool kv, bool weights) {
    have_done(of(g), &(command){ .fn = do_release, .flag = { kv, weights } });
}

ml_status ml_local_take(ml_gen *g, bool kv, bool weights, ml_err *err) {
    command c = { .fn = do_take, .flag = { kv, weights }, .err = err };
    return have_done(of(g), &c);
}

/* --- opening and closing ------------------------------------------------------ */

static void free_local(local *l) {
    ml_engine_close(l->engine);
    free_set(l->own);
    free(l->abort);
    free(l->dir);
    pthread_cond_destroy(&l->wake);
    pthread_cond_destroy(&l->done);
    pthread_mutex_destroy(&l->lock);
    free(l);
}

static void close_gen(ml_gen *g) {
    local *l = of(g);
    pthread_mutex_lock(&l->lock);
    l->stopping = true;
    pthread_cond_signal(&l->wake);
    pthread_mutex_unlock(&l->lock);
    pthread_join(l->thread, NULL);
    free_local(l);
}

ml_status ml_local_open(ml_gen **out, const ml_local_opts *o, ml_err *err) {
    local *l = calloc(1, sizeof *l);
    const ml_weights *w = o->weights;
    ml_status st = ML_OK;

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
    if (!w) {
        l->dir = o->dir ? strdup(o->dir) : NULL;
        st = new_set(&l->own, o, o->dir, o->version, err);
        w = st == ML_OK ? &l->own->w : NULL;
    }
    if (st == ML_OK)
        st = ml_engine_open(&l->engine, o->spec, w, o->be, &o->engine, err);
    if (st == ML_OK)
        take_stock(l);
    if (st == ML_OK && pthread_create(&l->thread, NULL, run, l) != 0)
        st = ml_fail(err, ML_ENOMEM, "cannot create a thread for the engine");
    if (st != ML_OK) {
        free_local(l);
        return st;
    }
    *out = &l->gen;
    return ML_OK;
}
