#include "gen/tenants.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/bug.h"
#include "base/oom.h"

typedef struct tenant tenant;

/* A request in flight. */
typedef struct flight {
    struct flight *next, **at; /* in the tenant's list */
    tenant *of;
    ml_gen_fn *fn;
    void *ud;
    uint64_t ticket; /* 0: not known yet */
    int n_ref;       /* submit's, and that of the last call; under the tenant's lock */
} flight;

struct tenant {
    ml_gen gen; /* first */
    tenant *next;
    ml_tenants *all;
    int32_t slot, adapter_id;
    uint64_t version;
    ml_step_end_fn *step_end; /* NULL: none; under the lock of all */
    void *step_ud;
    pthread_mutex_t lock; /* of the list */
    flight *flights;
};

struct ml_tenants {
    ml_gen *shared;
    pthread_mutex_t lock;  /* of the list of tenants, and of their step ends */
    pthread_mutex_t pause; /* of n_pause */
    tenant *first;
    int32_t n_pause;
    atomic_int n_adapter_id;
    uint64_t *version; /* [cap] of the tokens in a call; the generator's thread's */
    int32_t cap;
};

static tenant *of(ml_gen *g) {
    return (tenant *)g;
}

/* --- requests ----------------------------------------------------------------------- */

static ml_scored with_version(ml_tenants *all, ml_scored s, uint64_t version) {
    if (s.n > all->cap) {
        all->version =
            ml_memory_grow(all->version, (size_t)s.n * sizeof *all->version, "versions");
        all->cap = s.n;
    }
    for (int32_t i = 0; i < s.n; i++)
        all->version[i] = version;
    s.version = all->version;
    return s;
}

/* ends: the request is not in flight any more.  The last call may come before submit
 * returns. */
static void drop_flight(flight *f, int n_ref, bool ends) {
    pthread_mutex_t *lock = &f->of->lock;
    bool last;

    pthread_mutex_lock(lock);
    if (ends) {
        *f->at = f->next;
        if (f->next)
            f->next->at = f->at;
    }
    f->n_ref -= n_ref;
    last = f->n_ref == 0;
    pthread_mutex_unlock(lock);
    if (last)
        free(f);
}

static void on_update(void *ud, const ml_gen_update *u) {
    flight *f = ud;
    tenant *t = f->of;
    ml_gen_update own = *u;
    ml_gen_fn *fn = f->fn;
    void *fn_ud = f->ud;

    /* Both parts of a call have the same version, in the same memory. */
    own.prompt = with_version(t->all, own.prompt, t->version);
    own.answer = with_version(t->all, own.answer, t->version);
    own.prompt.version = own.answer.version;
    own.version = t->version;
    if (u->finish != ML_FINISH_NOT)
        drop_flight(f, 1, true);
    fn(fn_ud, &own);
}

static flight *new_flight(tenant *t, ml_gen_fn *fn, void *ud) {
    flight *f = calloc(1, sizeof *f);

    if (!f)
        return NULL;
    *f = (flight){ .of = t, .fn = fn, .ud = ud, .at = &t->flights, .n_ref = 2 };
    pthread_mutex_lock(&t->lock);
    f->next = t->flights;
    if (f->next)
        f->next->at = &f->next;
    t->flights = f;
    pthread_mutex_unlock(&t->lock);
    return f;
}

static ml_status submit(ml_gen *g, const ml_gen_request *r, ml_gen_fn *fn, void *ud,
                        uint64_t *ticket, ml_err *err) {
    tenant *t = of(g);
    ml_gen *shared = t->all->shared;
    ml_gen_request own = *r;
    flight *f = new_flight(t, fn, ud);
    ml_status st;

    if (!f)
        return ml_fail(err, ML_ENOMEM, "out of memory for a request");
    own.adapter = 1 + t->slot;
    own.adapter_id = t->adapter_id;
    st = shared->submit(shared, &own, on_update, f, ticket, err);
    pthread_mutex_lock(&t->lock);
    f->ticket = st == ML_OK ? *ticket : 0;
    pthread_mutex_unlock(&t->lock);
    if (st == ML_OK)
        drop_flight(f, 1, false);
    else /* there will be no call, which has the other reference */
        drop_flight(f, 2, true);
    return st;
}

static void abort_one(ml_gen *g, uint64_t ticket) {
    ml_gen *shared = of(g)->all->shared;
    shared->abort(shared, ticket);
}

static void abort_all(ml_gen *g) {
    tenant *t = of(g);

    pthread_mutex_lock(&t->lock);
    for (const flight *f = t->flights; f; f = f->next)
        if (f->ticket)
            abort_one(g, f->ticket);
    pthread_mutex_unlock(&t->lock);
}

/* --- steps ---------------------------------------------------------------------------- */

static void pause_steps(ml_gen *g) {
    ml_tenants *all = of(g)->all;

    pthread_mutex_lock(&all->pause);
    if (all->n_pause++ == 0)
        all->shared->pause(all->shared);
    pthread_mutex_unlock(&all->pause);
}

static void resume_steps(ml_gen *g) {
    ml_tenants *all = of(g)->all;

    pthread_mutex_lock(&all->pause);
    if (--all->n_pause == 0)
        all->shared->resume(all->shared);
    pthread_mutex_unlock(&all->pause);
}

/* On the generator's thread. */
static void on_step_end(void *ud) {
    ml_tenants *all = ud;

    pthread_mutex_lock(&all->lock);
    for (tenant *t = all->first; t; t = t->next)
        if (t->step_end)
            t->step_end(t->step_ud);
    pthread_mutex_unlock(&all->lock);
}

static void set_step_end(ml_gen *g, ml_step_end_fn *fn, void *ud) {
    tenant *t = of(g);

    pthread_mutex_lock(&t->all->lock);
    t->step_end = fn;
    t->step_ud = ud;
    pthread_mutex_unlock(&t->all->lock);
}

static void notify(ml_gen *g) {
    ml_gen *shared = of(g)->all->shared;
    shared->notify(shared);
}

/* --- the rest ------------------------------------------------------------------------- */

static bool flush(ml_gen *g) {
    ml_gen *shared = of(g)->all->shared;
    return shared->flush(shared);
}

static ml_status load(ml_gen *g, const char *dir, uint64_t version, ml_switch how,
                      ml_err *err) {
    (void)g;
    (void)version;
    (void)how;
    return ml_fail(err, ML_EUNSUP, "%s: the weights of a shared generator do not change",
                   dir);
}

static void stats(ml_gen *g, ml_gen_stats *out) {
    ml_gen *shared = of(g)->all->shared;

    shared->stats(shared, out);
    out->version = of(g)->version;
}

static void close_tenant(ml_gen *g) {
    tenant *t = of(g), **at = &t->all->first;

    ML_BUG_IF(t->flights);
    pthread_mutex_lock(&t->all->lock);
    while (*at != t)
        at = &(*at)->next;
    *at = t->next;
    pthread_mutex_unlock(&t->all->lock);
    pthread_mutex_destroy(&t->lock);
    free(t);
}

ml_status ml_tenant_gen_open(ml_gen **out, ml_tenants *all, int32_t slot, ml_err *err) {
    tenant *t = calloc(1, sizeof *t);

    if (!t)
        return ml_fail(err, ML_ENOMEM, "out of memory for the generator of an adapter");
    *t = (tenant){ .gen = { .name = "tenant",
                            .submit = submit,
                            .abort = abort_one,
                            .abort_all = abort_all,
                            .pause = pause_steps,
                            .resume = resume_steps,
                            .flush = flush,
                            .load = load,
                            .stats = stats,
                            .close = close_tenant,
                            .on_step_end = set_step_end,
                            .notify = notify },
                   .all = all,
                   .slot = slot };
    pthread_mutex_init(&t->lock, NULL);
    pthread_mutex_lock(&all->lock);
    t->next = all->first;
    all->first = t;
    pthread_mutex_unlock(&all->lock);
    *out = &t->gen;
    return ML_OK;
}

void ml_tenant_gen_renew(ml_gen *g, uint64_t version) {
    tenant *t = of(g);

    t->version = version;
    t->adapter_id = 1 + atomic_fetch_add(&t->all->n_adapter_id, 1);
}

ml_status ml_tenants_open(ml_tenants **out, ml_gen *shared, ml_err *err) {
    ml_tenants *all = calloc(1, sizeof *all);

    if (!all)
        return ml_fail(err, ML_ENOMEM, "out of memory for the tenants of a generator");
    all->shared = shared;
    pthread_mutex_init(&all->lock, NULL);
    pthread_mutex_init(&all->pause, NULL);
    shared->on_step_end(shared, on_step_end, all);
    *out = all;
    return ML_OK;
}

void ml_tenants_close(ml_tenants *all) {
    if (!all)
        return;
    all->shared->on_step_end(all->shared, NULL, NULL);
    pthread_mutex_destroy(&all->lock);
    pthread_mutex_destroy(&all->pause);
    free(all->version);
    free(all);
}
