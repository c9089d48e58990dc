/* Worker thread of the async rollout: starts groups and checks those that have ended. */
#include <stdlib.h>

#include "rl/rollout/async_priv.h"
#include "rl/rollout/prompt_results.h"

ml_gen_group *ml_async_pop(ml_group_list *l) {
    ml_gen_group *g = l->first;

    if (g)
        ml_group_list_remove(l, g);
    return g;
}

/* --- groups ------------------------------------------------------------------- */

/* Each group has an arena of its own, because it is freed on its own. */
static ml_gen_group *new_group(ml_async *s, ml_group id) {
    ml_arena *a = calloc(1, sizeof *a);

    if (!a)
        return NULL;
    ml_arena_init(a, "a group");
    return ml_group_set_add(&s->set, id, a);
}

void ml_async_free_group(ml_gen_group *g) {
    ml_arena *a = g->arena;

    ml_arena_release(a);
    free(a);
}

void ml_async_drop_group(ml_async *s, ml_gen_group *g) {
    if (s->opts.retry && g->id.row >= 0) /* row < 0: no prompt in the data set to retry */
        ml_data_source_add(s->opts.feed.source, &g->id, 1);
    s->counts.n_drawn += g->n_drawn;
    ml_async_free_group(g);
}

/* --- starting groups ------------------------------------------------------------ */

/* Starts the next group, without the lock. */
static ml_status begin(ml_async *s, ml_group id, const ml_sample *partial, ml_err *err) {
    ml_gen_group *g;
    ml_status st;

    s->busy = true;
    pthread_mutex_unlock(&s->set.lock);
    g = new_group(s, id);
    st = !g        ? ml_fail(err, ML_ENOMEM, "out of memory for a group of samples")
         : partial ? ml_gen_group_resume(g, partial, false, err)
                   : ml_gen_group_start(g, (uint64_t)id.first_index, err);
    pthread_mutex_lock(&s->set.lock);
    s->busy = false;
    return st;
}

static ml_status begin_next(ml_async *s, ml_err *err) {
    const ml_sample *partial = ml_partial_buffer_take(&s->partial_buffer);
    ml_group id;

    if (partial)
        id = (ml_group){ partial->row, partial->group, partial->index,
                         s->partial_buffer.n_per_group };
    else if (ml_data_source_get(s->opts.feed.source, &id, 1) != 1)
        return ml_fail(err, ML_EFORMAT, "%s contains no prompts",
                       s->opts.feed.dataset->opts.path);
    return begin(s, id, partial, err);
}

/* Queued groups above the capacity count as generating. */
static bool may_begin(const ml_async *s) {
    int64_t excess = s->queue.n - s->opts.capacity;

    return s->st == ML_OK && !s->stopping && !s->paused &&
           s->set.groups.n + (excess > 0 ? excess : 0) < s->opts.max_groups;
}

/* --- deciding about groups that are done ---------------------------------------- */

static ml_gen_group *first_done(ml_async *s) {
    ml_gen_group *g = s->set.groups.first;

    while (g && g->state != ML_GROUP_DONE)
        g = g->next;
    return g;
}

static ml_status judge(ml_async *s, ml_gen_group *g, ml_err *err) {
    char reason[ML_REASON_CAP];
    ml_status st;

    s->busy = true;
    pthread_mutex_unlock(&s->set.lock);
    st = ml_gen_group_decide(g, s->opts.filter, reason, err);
    pthread_mutex_lock(&s->set.lock);
    s->busy = false;
    if (st == ML_OK)
        st = ml_group_set_count(&s->set, g, s->opts.feed.batch, err);
    ml_group_list_remove(&s->set.groups, g);
    ml_prompt_results_group(s->opts.feed.source, g);
    if (g->fate == ML_GROUP_KEPT) {
        ml_group_list_push(&s->queue, g);
    } else if (g->fate == ML_GROUP_ABORTED) {
        s->counts.n_aborted++;
        ml_async_drop_group(s, g);
    } else {
        if (reason[0])
            ml_drop_reasons_count(&s->drop_reasons, reason);
        s->counts.n_drawn += g->n_drawn;
        ml_async_free_group(g);
    }
    return st;
}

void *ml_async_work(void *async_rollout) {
    ml_async *s = async_rollout;

    pthread_mutex_lock(&s->set.lock);
    while (!s->stopping) {
        ml_gen_group *g = s->st == ML_OK ? first_done(s) : NULL;
        ml_err err = { 0 };
        ml_status st;
        if (!g && !may_begin(s)) {
            pthread_cond_wait(&s->set.change, &s->set.lock);
            continue;
        }
        st = g ? judge(s, g, &err) : begin_next(s, &err);
        if (st != ML_OK && s->st == ML_OK) {
            s->st = st;
            s->err = err;
        }
        pthread_cond_broadcast(&s->set.change);
    }
    pthread_mutex_unlock(&s->set.lock);
    return NULL;
}
