/* Worker thread of the async rollout: starts groups and checks those that have ended. */
#include <stdlib.h>

#include "base/log.h"
#include "rl/rollout/async_priv.h"

#define HOPELESS 100 /* give up after dropping this many batches of groups in a row */

/* --- lists -------------------------------------------------------------------- */

void ml_async_push(ml_async_list *l, ml_async_group *g) {
    g->next = NULL;
    *(l->last ? &l->last->next : &l->first) = g;
    l->last = g;
    l->n++;
}

ml_async_group *ml_async_pop(ml_async_list *l) {
    ml_async_group *g = l->first;

    if (!g)
        return NULL;
    l->first = g->next;
    if (!l->first)
        l->last = NULL;
    l->n--;
    return g;
}

/* Removes the first group that has ended. */
static ml_async_group *pop_ended(ml_async_list *l) {
    ml_async_list rest = { 0 };
    ml_async_group *g, *found = NULL;

    while ((g = ml_async_pop(l)))
        if (!found && g->n_left == 0)
            found = g;
        else
            ml_async_push(&rest, g);
    *l = rest;
    return found;
}

/* --- groups ------------------------------------------------------------------- */

static void on_task_complete(void *ud, ml_gen_task *x) {
    ml_async_group *g = ud;
    ml_async *s = g->async_rollout;

    (void)x;
    pthread_mutex_lock(&s->lock);
    g->n_left--;
    pthread_cond_broadcast(&s->change);
    pthread_mutex_unlock(&s->lock);
}

static ml_async_group *new_group(ml_async *s, ml_group id) {
    ml_async_group *g = calloc(1, sizeof *g);

    if (!g)
        return NULL;
    g->async_rollout = s;
    g->id = id;
    g->n_left = id.n_sample;
    ml_arena_init(&g->arena, "a group");
    ml_gen_tasks_init(&g->tasks, &s->opts.gen_ctx, &s->opts.how, &s->opts.run->dataset,
                      &g->arena);
    g->tasks.on_complete = on_task_complete;
    g->tasks.on_complete_ud = g;
    g->task = ML_NEW(&g->arena, ml_gen_task *, id.n_sample);
    return g;
}

void ml_async_free_group(ml_async_group *g) {
    ml_gen_tasks_release(&g->tasks);
    ml_arena_release(&g->arena);
    free(g);
}

void ml_async_drop_group(ml_async *s, ml_async_group *g) {
    if (s->opts.retry && g->id.row >= 0) /* row < 0: no prompt in the data set to retry */
        ml_data_source_add(s->opts.run->source, &g->id, 1);
    s->counts.n_drawn += g->tasks.n_drawn;
    ml_async_free_group(g);
}

/* --- starting groups ------------------------------------------------------------ */

static ml_status begin(ml_async *s, ml_group id, const ml_sample *partial, ml_err *err) {
    ml_async_group *g = new_group(s, id);
    ml_status st;

    if (!g)
        return ml_fail(err, ML_ENOMEM, "no memory for a group of samples");
    ml_async_push(&s->generating, g);
    st = partial ? ml_gen_tasks_resume(&g->tasks, g->task, partial, id.n_sample, false, err)
                 : ml_gen_tasks_start(&g->tasks, g->task, &g->id, (uint64_t)id.first_index,
                                      err);
    g->n_left -= id.n_sample - (int32_t)g->tasks.n_begun; /* not started: will not end */
    return st;
}

static ml_status begin_next(ml_async *s, ml_err *err) {
    const ml_sample *partial = ml_partial_buffer_take(&s->partial_buffer);
    ml_group id;

    if (partial)
        return begin(s,
                     (ml_group){ partial->row, partial->group, partial->index,
                                 s->partial_buffer.n_per_group },
                     partial, err);
    if (ml_data_source_get(s->opts.run->source, &id, 1) != 1)
        return ml_fail(err, ML_EFORMAT, "%s: there is no prompt in it",
                       s->opts.run->opts.data.path);
    return begin(s, id, NULL, err);
}

/* Queued groups above the capacity count as generating. */
static bool may_begin(const ml_async *s) {
    int64_t excess = s->queue.n - s->opts.capacity;

    return s->st == ML_OK && !s->stopping && !s->paused &&
           s->generating.n + (excess > 0 ? excess : 0) < s->opts.max_groups;
}

/* --- checking groups that have ended -------------------------------------------- */

/* At least one sample was aborted. */
static bool was_aborted(const ml_async_group *g) {
    for (int32_t i = 0; i < g->id.n_sample; i++)
        if (g->task[i]->sample.status == ML_SAMPLE_ABORTED)
            return true;
    return false;
}

static bool has_rewards(ml_async *s, const ml_async_group *g) {
    for (int32_t i = 0; s->opts.gen_ctx.rewards && i < g->id.n_sample; i++) {
        const ml_gen_task *x = g->task[i];
        if (x->sample.has_reward)
            continue;
        ml_drop_reasons_count(&s->drop_reasons, ml_reward_outcome_name(x->outcome));
        ml_log(ML_LOG_WARN, "sample %lld has no reward, its group is dropped: %s",
               (long long)x->sample.index, x->why);
        return false;
    }
    return true;
}

static bool passes_filter(ml_async *s, ml_async_group *g) {
    const ml_sample **sample = ML_NEW(&g->arena, const ml_sample *, g->id.n_sample);
    char reason[ML_REASON_CAP];
    bool keep = false;

    if (!s->opts.filter)
        return true;
    for (int32_t i = 0; i < g->id.n_sample; i++)
        sample[i] = &g->task[i]->sample;
    s->st =
        ml_group_filter_run(s->opts.filter, sample, g->id.n_sample, &keep, reason, &s->err);
    if (!keep && reason[0])
        ml_drop_reasons_count(&s->drop_reasons, reason);
    return keep && s->st == ML_OK;
}

/* Fails the run if a reward that always fails, a filter that drops everything or an engine
 * that aborts everything would keep the rollout batch from ever being complete. */
static void check_hope(ml_async *s) {
    if (++s->n_dropped < HOPELESS * s->opts.run->opts.rollout_batch_size)
        return;
    s->st =
        ml_fail(&s->err, ML_EFORMAT,
                "none of the last %lld groups was worth training on: are the answers cut "
                "off or aborted, or is the reward not what it should be?",
                (long long)s->n_dropped);
}

static void judge(ml_async *s, ml_async_group *g) {
    if (was_aborted(g)) {
        check_hope(s);
        s->counts.n_aborted++;
        ml_async_drop_group(s, g);
    } else if (has_rewards(s, g) && passes_filter(s, g)) {
        s->n_dropped = 0;
        ml_async_push(&s->queue, g);
    } else {
        check_hope(s);
        s->counts.n_drawn += g->tasks.n_drawn;
        ml_async_free_group(g);
    }
}

void *ml_async_work(void *async_rollout) {
    ml_async *s = async_rollout;
    ml_async_group *g;

    pthread_mutex_lock(&s->lock);
    while (!s->stopping) {
        while ((g = pop_ended(&s->generating))) {
            judge(s, g);
            pthread_cond_broadcast(&s->change);
        }
        if (!may_begin(s)) {
            pthread_cond_wait(&s->change, &s->lock);
            continue;
        }
        s->st = begin_next(s, &s->err);
        pthread_cond_broadcast(&s->change);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}
