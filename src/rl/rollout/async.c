#include "rl/rollout/async.h"

#include <errno.h>
#include <stdlib.h>
#include <time.h>

#include "base/log.h"
#include "rl/rollout/async_priv.h"

enum { PATIENCE_S = 30 }; /* of waiting for a group before a warning is logged */

/* --- versions -------------------------------------------------------------------- */

static bool make_room(ml_async *s) {
    int64_t cap = 2 * s->cap_published + 64;
    uint64_t *more;

    if (s->n_published < s->cap_published)
        return true;
    more = realloc(s->published, (size_t)cap * sizeof *more);
    if (!more)
        return false;
    s->published = more;
    s->cap_published = cap;
    return true;
}

ml_status ml_async_published(ml_async *s, uint64_t version, ml_err *err) {
    bool room;

    pthread_mutex_lock(&s->lock);
    room = make_room(s);
    if (room)
        s->published[s->n_published++] = version;
    pthread_mutex_unlock(&s->lock);
    return room ? ML_OK
                : ml_fail(err, ML_ENOMEM, "no memory to remember weight version %llu",
                          (unsigned long long)version);
}

int64_t ml_async_staleness(const ml_async *s, const ml_async_group *g) {
    uint64_t oldest = UINT64_MAX;
    int64_t n = 0;

    for (int32_t i = 0; i < g->id.n_sample; i++) {
        const ml_sample *x = &g->task[i]->sample;
        for (int32_t t = 0; t < x->n_response; t++)
            oldest = x->version[t] < oldest ? x->version[t] : oldest;
    }
    while (n < s->n_published && s->published[s->n_published - 1 - n] > oldest)
        n++;
    return n;
}

/* --- a rollout batch ------------------------------------------------------------- */

typedef struct round {
    ml_async_group **group; /* [n] */
    int64_t n, n_looked, sum_stale, max_stale;
    int64_t max_trained; /* maximum staleness of the groups in the batch */
} round;

/* No group is generating and the queue is full, so the worker will start none: if the
 * buffer extension takes no group either, the rollout batch would never be complete. */
static bool is_stuck(const ml_async *s) {
    return s->generating.n == 0 && s->queue.n >= s->opts.capacity + s->opts.max_groups;
}

/* Waits until more than n_left groups are queued (the number that the buffer extension
 * left there) or no more can arrive.  Logs a warning every PATIENCE_S seconds; fails if
 * the worker has failed.  The caller holds the lock. */
static ml_status await_group(ml_async *s, int64_t n_left, ml_err *err) {
    struct timespec until;

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += PATIENCE_S;
    while (s->st == ML_OK && s->queue.n <= n_left && !is_stuck(s))
        if (pthread_cond_timedwait(&s->change, &s->lock, &until) == ETIMEDOUT) {
            ml_log(ML_LOG_WARN, "No completed rollout groups for %d.0s: %lld are under way",
                   PATIENCE_S, (long long)s->generating.n);
            until.tv_sec += PATIENCE_S;
        }
    if (s->st != ML_OK && err)
        *err = s->err;
    return s->st;
}

static void look_at(ml_async *s, round *r, const ml_async_group *g) {
    int64_t stale = ml_async_staleness(s, g);

    r->n_looked++;
    r->sum_stale += stale;
    r->max_stale = stale > r->max_stale ? stale : r->max_stale;
}

/* Calls the buffer extension whenever a group has been queued since its last call. */
static ml_status take_picked(ml_async *s, round *r, ml_err *err) {
    int64_t wanted = s->opts.run->opts.rollout_batch_size, n_left = 0, n;
    ml_status st = ML_OK;

    while (r->n < wanted && st == ML_OK) {
        st = await_group(s, n_left, err);
        if (st == ML_OK && s->queue.n <= n_left)
            return ml_fail(err, ML_EFORMAT,
                           "%s leaves all of %lld groups waiting, and no more can come: "
                           "take some, or let them go",
                           s->opts.buffer->base.name, (long long)s->queue.n);
        if (st != ML_OK)
            return st;
        st = ml_async_select(s, r->group + r->n, wanted - r->n, &n, err);
        for (int64_t i = 0; st == ML_OK && i < n; i++)
            look_at(s, r, r->group[r->n + i]);
        r->n += st == ML_OK ? n : 0;
        n_left = s->queue.n;
        pthread_cond_broadcast(&s->change);
    }
    return st;
}

static ml_status take_groups(ml_async *s, round *r, ml_err *err) {
    int64_t wanted = s->opts.run->opts.rollout_batch_size;

    if (s->opts.buffer)
        return take_picked(s, r, err);
    while (r->n < wanted) {
        ml_status st = await_group(s, 0, err);
        ml_async_group *g;
        int64_t stale;
        if (st != ML_OK)
            return st;
        g = ml_async_pop(&s->queue);
        stale = ml_async_staleness(s, g);
        look_at(s, r, g);
        if (s->opts.max_stale < 0 || stale <= s->opts.max_stale) {
            r->group[r->n++] = g;
            r->max_trained = stale > r->max_trained ? stale : r->max_trained;
        } else {
            s->counts.n_stale++;
            ml_async_drop_group(s, g);
        }
        pthread_cond_broadcast(&s->change);
    }
    return ML_OK;
}

static int by_index(const void *x, const void *y) {
    int64_t a = (*(ml_async_group *const *)x)->id.first_index,
            b = (*(ml_async_group *const *)y)->id.first_index;
    return a < b ? -1 : a > b;
}

/* Masks tokens generated by other weights than the sample's last token: they are context
 * and are not trained on. */
static void mask_old(ml_sample *x, ml_arena *a) {
    uint8_t *mask = ML_NEW(a, uint8_t, x->n_response + 1);

    for (int32_t t = 0; t < x->n_response; t++)
        mask[t] =
            x->version[t] == x->version[x->n_response - 1] && (!x->mask || x->mask[t]);
    x->mask = mask;
}

static void gather(ml_async *s, const round *r, ml_rollout_batch *out, ml_arena *a) {
    int32_t size = s->opts.run->opts.source.n_samples_per_prompt;
    ml_sample *sample = ML_NEW(a, ml_sample, r->n * size + 1);

    qsort(r->group, (size_t)r->n, sizeof *r->group, by_index);
    out->sample = ML_NEW(a, const ml_sample *, r->n *size + 1);
    for (int64_t i = 0; i < r->n; i++) {
        out->n_drawn += r->group[i]->tasks.n_drawn;
        for (int32_t k = 0; k < size; k++) {
            ml_sample_copy(&sample[out->n], a, &r->group[i]->task[k]->sample);
            if (s->opts.mask_old)
                mask_old(&sample[out->n], a);
            out->sample[out->n] = &sample[out->n];
            out->n++;
        }
    }
}

static void report(ml_async *s, const round *r, ml_rollout_batch *out) {
    ml_metrics *f = &out->metrics;
    int64_t n = 0, sum = 0, most = 0;

    for (const ml_async_group *g = s->queue.first; g; g = g->next, n++) {
        int64_t stale = ml_async_staleness(s, g);
        sum += stale;
        most = stale > most ? stale : most;
    }
    ml_drop_reasons_report(&s->drop_reasons, f);
    ml_metrics_add(f, "rollout/fully_async/", "queue_size", (double)n);
    ml_metrics_add(f, "rollout/fully_async/", "aborted_groups_filtered",
                   (double)s->counts.n_aborted);
    ml_metrics_add(f, "rollout/fully_async/", "stale_groups_filtered",
                   (double)s->counts.n_stale);
    ml_metrics_add(f, "rollout/fully_async/", "avg_staleness",
                   (double)r->sum_stale / (double)r->n_looked);
    ml_metrics_add(f, "rollout/fully_async/", "max_staleness", (double)r->max_stale);
    ml_metrics_add(f, "rollout/fully_async/", "trained_max_staleness",
                   (double)r->max_trained);
    ml_metrics_add(f, "rollout/fully_async/", "buffer_avg_staleness",
                   n ? (double)sum / (double)n : 0.0);
    ml_metrics_add(f, "rollout/fully_async/", "buffer_max_staleness", (double)most);
    out->n_drawn += s->counts.n_drawn;
    s->counts = (ml_async_counts){ 0 };
    ml_arena_release(&s->reasons);
    ml_arena_init(&s->reasons, "reasons");
    s->drop_reasons = (ml_drop_reasons){ .arena = &s->reasons };
}

static ml_status start(ml_async *s, ml_err *err) {
    ml_text line = { 0 };

    if (s->started)
        return ML_OK;
    if (pthread_create(&s->worker, NULL, ml_async_work, s) != 0)
        return ml_fail(err, ML_EIO, "the system gives no thread for the rollout worker");
    s->started = true;
    ml_text_printf(&line, "Continuous async rollout worker started: %lld groups at a time",
                   (long long)s->opts.max_groups);
    s->opts.say(line.ptr);
    ml_text_release(&line);
    return ML_OK;
}

static ml_status collect(void *ud, int64_t rollout, ml_rollout_batch *out, ml_arena *a,
                         ml_err *err) {
    ml_async *s = ud;
    const ml_train_run_opts *o = &s->opts.run->opts;
    round r = { .group = ML_NEW(a, ml_async_group *, o->rollout_batch_size) };
    ml_status st = start(s, err);

    (void)rollout;
    if (st != ML_OK)
        return st;
    ml_work_count_clear(s->opts.gen_ctx.work_count);
    ml_async_hold(s, false); /* ml_async_save leaves it held */
    pthread_mutex_lock(&s->lock);
    st = take_groups(s, &r, err);
    if (st == ML_OK) {
        gather(s, &r, out, a);
        report(s, &r, out);
    }
    pthread_mutex_unlock(&s->lock);
    for (int64_t i = 0; i < r.n; i++)
        ml_async_free_group(r.group[i]);
    if (st == ML_OK)
        ml_rollout_batch_report(out, o->source.n_samples_per_prompt,
                                s->opts.gen_ctx.turns != NULL);
    return st;
}

/* --- open and close --------------------------------------------------------------- */

/* Step-end callback, on the generator's thread: continues multi-turn conversations. */
static void on_ended(void *ud) {
    ml_async *s = ud;

    pthread_mutex_lock(&s->lock);
    for (ml_async_group *g = s->generating.first; g; g = g->next)
        ml_gen_tasks_continue_turns(&g->tasks);
    pthread_mutex_unlock(&s->lock);
}

ml_status ml_async_open(ml_async **out, const ml_async_opts *o, ml_err *err) {
    ml_async *s = calloc(1, sizeof *s);
    pthread_mutexattr_t kind;

    if (!s)
        return ml_fail(err, ML_ENOMEM, "no memory for the rollout worker");
    s->opts = *o;
    pthread_mutexattr_init(&kind);
    pthread_mutexattr_settype(&kind, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&s->lock, &kind);
    pthread_mutexattr_destroy(&kind);
    pthread_cond_init(&s->change, NULL);
    ml_arena_init(&s->reasons, "reasons");
    s->drop_reasons.arena = &s->reasons;
    ml_partial_buffer_init(&s->partial_buffer, o->run->opts.source.n_samples_per_prompt);
    if (o->gen_ctx.turns)
        o->gen_ctx.gen->on_step_end(o->gen_ctx.gen, on_ended, s);
    *out = s;
    return ML_OK;
}

/* Continues the conversations whose turn has ended in the meantime, and installs the
 * step-end callback again. */
static void watch_again(ml_async *s) {
    ml_gen *gen = s->opts.gen_ctx.gen;

    gen->pause(gen);
    on_ended(s);
    gen->on_step_end(gen, on_ended, s);
    gen->resume(gen);
}

void ml_async_hold(ml_async *s, bool hold) {
    pthread_mutex_lock(&s->lock);
    s->paused = hold;
    pthread_cond_broadcast(&s->change);
    pthread_mutex_unlock(&s->lock);
    if (!hold && s->opts.gen_ctx.turns)
        watch_again(s); /* an evaluation may have replaced the callback */
}

static bool all_complete(const ml_async *s) {
    for (const ml_async_group *g = s->generating.first; g; g = g->next)
        if (g->n_left > 0)
            return false;
    return true;
}

/* Aborts and frees all groups.  The generator still calls on_ended while this waits. */
static void drain(ml_async *s) {
    ml_async_group *g;

    pthread_mutex_lock(&s->lock);
    for (g = s->generating.first; g; g = g->next)
        ml_gen_tasks_abort(&g->tasks, g->task, g->id.n_sample);
    while (!all_complete(s))
        pthread_cond_wait(&s->change, &s->lock);
    while ((g = ml_async_pop(&s->generating)) || (g = ml_async_pop(&s->queue)))
        ml_async_free_group(g);
    pthread_mutex_unlock(&s->lock);
}

void ml_async_close(ml_async *s) {
    if (!s)
        return;
    pthread_mutex_lock(&s->lock);
    s->stopping = true;
    pthread_cond_broadcast(&s->change);
    pthread_mutex_unlock(&s->lock);
    if (s->started)
        pthread_join(s->worker, NULL);
    drain(s);
    if (s->opts.gen_ctx.turns)
        s->opts.gen_ctx.gen->on_step_end(s->opts.gen_ctx.gen, NULL, NULL);
    ml_partial_buffer_release(&s->partial_buffer);
    ml_arena_release(&s->reasons);
    free(s->published);
    pthread_cond_destroy(&s->change);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

ml_rollout ml_rollout_async(ml_async *s) {
    return (ml_rollout){
        .collect = collect, .save = ml_async_save, .load = ml_async_load, .ud = s
    };
}
