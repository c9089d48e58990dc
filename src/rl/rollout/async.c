#include "rl/rollout/async.h"

#include <errno.h>
#include <stdlib.h>
#include <time.h>

#include "base/log.h"
#include "rl/answers.h"
#include "rl/rollout/async_priv.h"
#include "rl/rollout/prompt_results.h"

enum { VERSIONS = 64 };   /* saved weight versions; limit of counted staleness */
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

    pthread_mutex_lock(&s->set.lock);
    room = make_room(s);
    if (room)
        s->published[s->n_published++] = version;
    pthread_mutex_unlock(&s->set.lock);
    return room ? ML_OK
                : ml_fail(err, ML_ENOMEM,
                          "out of memory for the record of weight version %llu",
                          (unsigned long long)version);
}

/* Number of weight publications since the group's oldest token was generated. */
static int64_t staleness(const ml_async *s, const ml_gen_group *g) {
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

/* --- selection of queued groups by a buffer extension --------------------------------- */

/* The queued groups in the form that the extension sees. */
static miles_waiting view_of(ml_async *s, ml_arena *a, int64_t want) {
    int32_t size = s->opts.feed.n_per_prompt;
    int64_t n = s->queue.n, i = 0, k, *stale = ML_NEW(a, int64_t, n + 1);
    const ml_sample **sample = ML_NEW(a, const ml_sample *, n *size + 1);

    for (const ml_gen_group *g = s->queue.first; g; g = g->next)
        stale[i++] = staleness(s, g);
    k = ml_group_list_samples(&s->queue, false, sample);
    return (miles_waiting){ .size = sizeof(miles_waiting),
                            .answers = ml_answers_of(a, sample, k, -1),
                            .n_group = n,
                            .staleness = stale,
                            .n_want = want };
}

static ml_status check_decisions(const miles_extension *ext, const int32_t *decision,
                                 int64_t n, int64_t want, ml_err *err) {
    int64_t n_train = 0;

    for (int64_t i = 0; i < n; i++) {
        if (decision[i] < MILES_KEEP_WAITING || decision[i] > MILES_DROP)
            return ml_fail(err, ML_EFORMAT,
                           "%s returned the decision %d for a group; expected MILES_TRAIN, "
                           "MILES_KEEP_WAITING or MILES_DROP",
                           ext->name, decision[i]);
        n_train += decision[i] == MILES_TRAIN;
    }
    return n_train <= want
               ? ML_OK
               : ml_fail(
                     err, ML_EFORMAT,
                     "%s selected %lld groups for training; the rollout needs at most %lld",
                     ext->name, (long long)n_train, (long long)want);
}

static void part(ml_async *s, const int32_t *decision, ml_gen_group **out, int64_t *n) {
    ml_group_list stay = { 0 };
    ml_gen_group *g;

    for (int64_t i = 0; (g = ml_async_pop(&s->queue)); i++)
        if (decision[i] == MILES_TRAIN) {
            out[(*n)++] = g;
        } else if (decision[i] == MILES_KEEP_WAITING) {
            ml_group_list_push(&stay, g);
        } else {
            s->counts.n_stale++;
            ml_async_drop_group(s, g);
        }
    s->queue = stay;
}

/* Lets opts.buffer decide about each queued group.  The groups it selects for training, at
 * most `want`, go to `out`; *n is their number.  The caller holds the lock. */
static ml_status select_groups(ml_async *s, ml_gen_group **out, int64_t want, int64_t *n,
                               ml_err *err) {
    const miles_buffer *ext = s->opts.buffer;
    miles_error why = { "" };
    miles_waiting waiting;
    int32_t *decision;
    ml_arena a;
    ml_status st;

    *n = 0;
    ml_arena_init(&a, "queued groups");
    waiting = view_of(s, &a, want);
    decision = ML_NEW(&a, int32_t, waiting.n_group + 1);
    st = ext->run(&waiting, decision, &why) == 0
             ? ML_OK
             : ml_extension_failed(&ext->base, &why, err);
    if (st == ML_OK)
        st = check_decisions(&ext->base, decision, waiting.n_group, want, err);
    if (st == ML_OK)
        part(s, decision, out, n);
    ml_arena_release(&a);
    return st;
}

/* --- a rollout batch ------------------------------------------------------------- */

typedef struct round {
    ml_gen_group **group; /* [n] */
    int64_t n, n_looked, sum_stale, max_stale;
    int64_t max_trained; /* maximum staleness of the groups in the batch */
} round;

/* No group is generating and the queue is full, so the worker will start none: if the
 * buffer extension takes no group either, the rollout batch would never be complete. */
static bool is_stuck(const ml_async *s) {
    return s->set.groups.n == 0 && s->queue.n >= s->opts.capacity + s->opts.max_groups;
}

/* Waits until more than n_left groups are queued (the number that the buffer extension
 * left there) or no more can arrive.  Logs a warning every PATIENCE_S seconds; fails if
 * the worker has failed.  The caller holds the lock. */
static ml_status await_group(ml_async *s, int64_t n_left, ml_err *err) {
    struct timespec until;

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += PATIENCE_S;
    while (s->st == ML_OK && s->queue.n <= n_left && !is_stuck(s))
        if (pthread_cond_timedwait(&s->set.change, &s->set.lock, &until) == ETIMEDOUT) {
            ml_log(ML_LOG_WARN,
                   "No completed rollout groups for %d.0s: %lld are being generated",
                   PATIENCE_S, (long long)s->set.groups.n);
            until.tv_sec += PATIENCE_S;
        }
    if (s->st != ML_OK && err)
        *err = s->err;
    return s->st;
}

/* Counts the group's staleness, and returns it. */
static int64_t look_at(ml_async *s, round *r, const ml_gen_group *g) {
    int64_t stale = staleness(s, g);

    r->n_looked++;
    r->sum_stale += stale;
    r->max_stale = stale > r->max_stale ? stale : r->max_stale;
    return stale;
}

/* The group will be trained on. */
static void use(round *r, ml_gen_group *g, int64_t stale) {
    r->group[r->n++] = g;
    r->max_trained = stale > r->max_trained ? stale : r->max_trained;
}

/* Calls the buffer extension whenever a group has been queued since its last call. */
static ml_status take_picked(ml_async *s, round *r, ml_err *err) {
    int64_t wanted = s->opts.feed.batch, n_left = 0, n;
    ml_status st = ML_OK;

    while (r->n < wanted && st == ML_OK) {
        st = await_group(s, n_left, err);
        if (st == ML_OK && s->queue.n <= n_left)
            return ml_fail(
                err, ML_EFORMAT,
                "%s keeps all %lld queued groups waiting, and the queue is full: it "
                "must select or drop some of them",
                s->opts.buffer->base.name, (long long)s->queue.n);
        if (st != ML_OK)
            return st;
        st = select_groups(s, r->group + r->n, wanted - r->n, &n, err);
        for (int64_t i = 0; st == ML_OK && i < n; i++)
            use(r, r->group[r->n], look_at(s, r, r->group[r->n]));
        n_left = s->queue.n;
        pthread_cond_broadcast(&s->set.change);
    }
    return st;
}

static ml_status take_groups(ml_async *s, round *r, ml_err *err) {
    int64_t wanted = s->opts.feed.batch;

    if (s->opts.buffer)
        return take_picked(s, r, err);
    while (r->n < wanted) {
        ml_status st = await_group(s, 0, err);
        ml_gen_group *g;
        int64_t stale;
        if (st != ML_OK)
            return st;
        g = ml_async_pop(&s->queue);
        stale = look_at(s, r, g);
        if (s->opts.max_stale < 0 || stale <= s->opts.max_stale) {
            use(r, g, stale);
        } else {
            s->counts.n_stale++;
            ml_async_drop_group(s, g);
        }
        pthread_cond_broadcast(&s->set.change);
    }
    return ML_OK;
}

static int by_index(const void *x, const void *y) {
    int64_t a = (*(ml_gen_group *const *)x)->id.first_index,
            b = (*(ml_gen_group *const *)y)->id.first_index;
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
    int32_t size = s->opts.feed.n_per_prompt;
    ml_sample *sample = ML_NEW(a, ml_sample, r->n * size + 1);

    qsort(r->group, (size_t)r->n, sizeof *r->group, by_index);
    out->sample = ML_NEW(a, const ml_sample *, r->n *size + 1);
    for (int64_t i = 0; i < r->n; i++) {
        out->n_drawn += r->group[i]->n_drawn;
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

    for (const ml_gen_group *g = s->queue.first; g; g = g->next, n++) {
        int64_t stale = staleness(s, g);
        sum += stale;
        most = stale > most ? stale : most;
    }
    ml_prompt_results_report(s->opts.feed.source, f);
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
        return ml_fail(err, ML_EIO, "cannot create a thread for the rollout worker");
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
    round r = { .group = ML_NEW(a, ml_gen_group *, s->opts.feed.batch) };
    ml_status st = start(s, err);

    (void)rollout;
    if (st != ML_OK)
        return st;
    ml_work_count_clear(s->opts.gen_ctx.work_count);
    ml_async_hold(s, false); /* save leaves it held */
    pthread_mutex_lock(&s->set.lock);
    st = take_groups(s, &r, err);
    if (st == ML_OK) {
        gather(s, &r, out, a);
        report(s, &r, out);
    }
    pthread_mutex_unlock(&s->set.lock);
    for (int64_t i = 0; i < r.n; i++)
        ml_async_free_group(r.group[i]);
    if (st == ML_OK)
        ml_rollout_batch_report(out, s->opts.feed.n_per_prompt,
                                s->opts.gen_ctx.turns != NULL);
    return st;
}

/* --- open and close --------------------------------------------------------------- */

ml_status ml_async_open(ml_async **out, const ml_async_opts *o, ml_err *err) {
    ml_async *s = calloc(1, sizeof *s);

    if (!s)
        return ml_fail(err, ML_ENOMEM, "out of memory for the rollout worker");
    s->opts = *o;
    ml_group_set_init(&s->set, &s->opts.gen_ctx, &s->opts.how, o->feed.dataset);
    ml_arena_init(&s->reasons, "reasons");
    s->drop_reasons.arena = &s->reasons;
    ml_partial_buffer_init(&s->partial_buffer, o->feed.n_per_prompt);
    if (o->gen_ctx.turns)
        o->gen_ctx.gen->on_step_end(o->gen_ctx.gen, ml_group_set_step_end, &s->set);
    *out = s;
    return ML_OK;
}

/* Continues the conversations whose replies have arrived in the meantime, and installs the
 * step-end callback again. */
static void watch_again(ml_async *s) {
    ml_gen *gen = s->opts.gen_ctx.gen;

    gen->pause(gen);
    ml_group_set_step_end(&s->set);
    gen->on_step_end(gen, ml_group_set_step_end, &s->set);
    gen->resume(gen);
}

void ml_async_hold(ml_async *s, bool hold) {
    pthread_mutex_lock(&s->set.lock);
    s->paused = hold;
    pthread_cond_broadcast(&s->set.change);
    while (hold && s->busy)
        pthread_cond_wait(&s->set.change, &s->set.lock);
    pthread_mutex_unlock(&s->set.lock);
    if (!hold && s->opts.gen_ctx.turns)
        watch_again(s); /* an evaluation may have replaced the callback */
}

/* Aborts and frees all groups.  The generator still calls the set's step-end callback while
 * this waits. */
static void drain(ml_async *s) {
    ml_gen_group *g;

    for (g = s->set.groups.first; g; g = g->next)
        ml_gen_group_abort(g);
    for (g = s->set.groups.first; g; g = g->next)
        ml_gen_group_wait(g);
    while ((g = ml_async_pop(&s->set.groups)) || (g = ml_async_pop(&s->queue)))
        ml_async_free_group(g);
}

void ml_async_close(ml_async *s) {
    if (!s)
        return;
    pthread_mutex_lock(&s->set.lock);
    s->stopping = true;
    pthread_cond_broadcast(&s->set.change);
    pthread_mutex_unlock(&s->set.lock);
    if (s->started)
        pthread_join(s->worker, NULL);
    drain(s);
    if (s->opts.gen_ctx.turns)
        s->opts.gen_ctx.gen->on_step_end(s->opts.gen_ctx.gen, NULL, NULL);
    ml_group_set_release(&s->set);
    ml_partial_buffer_release(&s->partial_buffer);
    ml_arena_release(&s->reasons);
    free(s->published);
    free(s);
}

/* --- snapshots ------------------------------------------------------------------------ */

static void save_held(ml_async *s, ml_text *out) {
    int32_t size = s->partial_buffer.n_per_group;
    ml_arena a;
    const ml_sample **sample;
    int64_t n;

    ml_arena_init(&a, "groups to save");
    sample = ML_NEW(&a, const ml_sample *, (s->queue.n + s->set.groups.n) * size + 1);
    n = ml_group_list_samples(&s->queue, false, sample);
    n += ml_group_list_samples(&s->set.groups, false, sample + n);
    ml_partial_buffer_save(&s->partial_buffer, sample, n, out);
    ml_arena_release(&a);
}

/* While this runs, no group is started, no token generated and no sample graded.  A
 * conversation is saved in the middle of a turn, never between two: its environment's reply
 * is waited for.  Threads that end a sample need the lock, so this locks it only after they
 * are idle. */
static void save(void *async_rollout, ml_text *out) {
    ml_async *s = async_rollout;
    ml_gen *gen = s->opts.gen_ctx.gen;
    int64_t from;

    ml_async_hold(s, true);
    gen->pause(gen);
    ml_group_set_take_all_replies(&s->set);
    if (s->opts.gen_ctx.rewards)
        ml_rewards_wait(s->opts.gen_ctx.rewards);
    pthread_mutex_lock(&s->set.lock);
    from = s->n_published > VERSIONS ? s->n_published - VERSIONS : 0;
    ml_text_printf(out, "\"published\": [");
    for (int64_t i = from; i < s->n_published; i++)
        ml_text_printf(out, "%s%llu", i > from ? ", " : "",
                       (unsigned long long)s->published[i]);
    ml_text_printf(out, "], \"held\": ");
    save_held(s, out);
    pthread_mutex_unlock(&s->set.lock);
    gen->resume(gen);
    /* Stays held until the next collect: the snapshot also has the data source's position,
     * which must not advance before that is saved. */
}

static ml_status load(void *async_rollout, ml_str state, const char *name, ml_err *err) {
    ml_async *s = async_rollout;
    ml_partial_buffer_bounds bounds =
        ml_partial_buffer_bounds_of(&s->opts.feed, s->opts.how.max_new);
    const ml_json *doc, *list;
    ml_arena a;
    ml_status st;

    ml_arena_init(&a, "versions");
    st = ml_json_parse(&doc, &a, state, name, err);
    list = st == ML_OK ? ml_json_get(doc, "published") : NULL;
    for (const ml_json *e = list ? list->child : NULL; e && st == ML_OK; e = e->next) {
        int64_t version;
        if (!ml_json_i64(e, &version) || version < 0)
            st = ml_fail(err, ML_EFORMAT,
                         "%s: \"published\" is not a list of weight versions", name);
        else
            st = ml_async_published(s, (uint64_t)version, err);
    }
    ml_arena_release(&a);
    return st == ML_OK
               ? ml_partial_buffer_load(&s->partial_buffer, state, &bounds, name, err)
               : st;
}

ml_rollout ml_rollout_async(ml_async *s) {
    return (ml_rollout){ .collect = collect, .save = save, .load = load, .ud = s };
}
