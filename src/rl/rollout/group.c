#include "rl/rollout/group.h"

#include "base/log.h"
#include "rl/rollout/gen_task_priv.h"

enum { HOPELESS = 100 }; /* rollout batches of groups of which none was kept */

/* --- lists -------------------------------------------------------------------- */

void ml_group_list_push(ml_group_list *l, ml_gen_group *g) {
    g->next = NULL;
    *(l->last ? &l->last->next : &l->first) = g;
    l->last = g;
    l->n++;
}

void ml_group_list_remove(ml_group_list *l, ml_gen_group *g) {
    ml_gen_group **at = &l->first, *before = NULL;

    for (; *at != g; at = &before->next)
        before = *at;
    *at = g->next;
    if (l->last == g)
        l->last = before;
    l->n--;
}

int64_t ml_group_list_samples(const ml_group_list *l, bool kept_only,
                              const ml_sample **out) {
    int64_t n = 0;

    for (const ml_gen_group *g = l->first; g; g = g->next)
        for (int32_t i = 0; (!kept_only || g->fate == ML_GROUP_KEPT) && i < g->id.n_sample;
             i++)
            out[n++] = &g->task[i]->sample;
    return n;
}

int64_t ml_group_list_kept(const ml_group_list *l, const ml_sample **out) {
    int64_t n = 0;

    for (const ml_gen_group *g = l->first; g; g = g->next)
        for (int32_t i = 0; g->fate == ML_GROUP_KEPT && i < g->id.n_sample; i++)
            for (int32_t k = 0; k <= g->task[i]->n_more; k++, n++)
                if (out)
                    out[n] = k ? &g->task[i]->more[k - 1] : &g->task[i]->sample;
    return n;
}

int64_t ml_group_list_drawn(const ml_group_list *l) {
    int64_t n = 0;

    for (const ml_gen_group *g = l->first; g; g = g->next)
        n += g->n_drawn;
    return n;
}

/* --- sets --------------------------------------------------------------------- */

void ml_group_set_init(ml_group_set *s, const ml_gen_ctx *ctx, const ml_sampling *how,
                       const ml_dataset *dataset) {
    *s = (ml_group_set){ .ctx = ctx,
                         .how = how,
                         .dataset = dataset,
                         .encoder = ml_encoder_new(ctx->tokenizer),
                         .last_waiting = &s->waiting };
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->change, NULL);
}

void ml_group_set_release(ml_group_set *s) {
    ml_encoder_free(s->encoder);
    pthread_cond_destroy(&s->change);
    pthread_mutex_destroy(&s->lock);
}

ml_gen_group *ml_group_set_add(ml_group_set *s, ml_group id, ml_arena *a) {
    ml_gen_group *g = ML_NEW(a, ml_gen_group, 1);

    *g = (ml_gen_group){ .set = s,
                         .id = id,
                         .arena = a,
                         .task = ML_NEW(a, ml_gen_task *, id.n_sample),
                         .n_left = id.n_sample,
                         .n_open = id.n_sample };
    pthread_mutex_lock(&s->lock);
    ml_group_list_push(&s->groups, g);
    pthread_mutex_unlock(&s->lock);
    return g;
}

/* --- the environment's replies ------------------------------------------------ */

void ml_group_set_await_reply(ml_group_set *s, ml_gen_task *x) {
    x->next_waiting = NULL;
    *s->last_waiting = x;
    s->last_waiting = &x->next_waiting;
    pthread_mutex_lock(&s->lock);
    x->replied = false;
    s->n_unanswered++;
    pthread_mutex_unlock(&s->lock);
}

/* On a thread of the environment.  The generator is notified under the lock: afterwards the
 * set and the generator may be closed. */
void ml_group_set_replied(ml_group_set *s, ml_gen_task *x) {
    ml_gen *gen = s->ctx->gen;

    pthread_mutex_lock(&s->lock);
    x->replied = true;
    s->n_unanswered--;
    pthread_cond_broadcast(&s->change);
    gen->notify(gen);
    pthread_mutex_unlock(&s->lock);
}

/* Removes the tasks that have a reply from the waiting ones. */
static ml_gen_task *replied_tasks(ml_group_set *s) {
    ml_gen_task *first = NULL, **last = &first, **at = &s->waiting, *x;

    pthread_mutex_lock(&s->lock);
    while ((x = *at) != NULL) {
        if (!x->replied) {
            at = &x->next_waiting;
            continue;
        }
        *at = x->next_waiting;
        *last = x;
        last = &x->next_waiting;
    }
    *last = NULL;
    s->last_waiting = at;
    pthread_mutex_unlock(&s->lock);
    return first;
}

/* In the order in which the turns ended, so that in lockstep the generator gets its requests
 * in an order that does not depend on timing. */
static void take_replies(ml_group_set *s) {
    for (ml_gen_task *x = replied_tasks(s), *next; x; x = next) {
        next = x->next_waiting;
        ml_gen_task_take_reply(x);
    }
}

static void wait_for_replies(ml_group_set *s) {
    pthread_mutex_lock(&s->lock);
    while (s->n_unanswered > 0)
        pthread_cond_wait(&s->change, &s->lock);
    pthread_mutex_unlock(&s->lock);
}

void ml_group_set_take_all_replies(ml_group_set *s) {
    wait_for_replies(s);
    take_replies(s);
}

/* --- generating --------------------------------------------------------------- */

static bool is_closed(ml_group_set *s) {
    bool closed;

    pthread_mutex_lock(&s->lock);
    closed = s->closed;
    pthread_mutex_unlock(&s->lock);
    return closed;
}

void ml_group_set_step_end(void *set) {
    ml_group_set *s = set;

    if (s->lockstep && !s->ctx->generate) /* whose requests need further steps */
        wait_for_replies(s);
    take_replies(s);
    if (s->decide && !is_closed(s))
        s->decide(s->ud);
}

static void set_closed(ml_group_set *s, bool closed) {
    pthread_mutex_lock(&s->lock);
    s->closed = closed;
    pthread_cond_broadcast(&s->change);
    pthread_mutex_unlock(&s->lock);
}

void ml_group_set_close(ml_group_set *s) {
    for (ml_gen_group *g = s->groups.first; g; g = g->next)
        if (g->fate == ML_GROUP_UNDECIDED)
            ml_gen_group_abort(g);
    set_closed(s, true);
}

static void wait_for_all(ml_group_set *s) {
    bool aborts = s->ctx->generate != NULL;

    pthread_mutex_lock(&s->lock);
    while (s->n_open > 0 || !s->closed) {
        if (s->closed && s->decide && aborts) { /* the requests of the user's functions */
            aborts = false;
            pthread_mutex_unlock(&s->lock);
            s->ctx->gen->abort_all(s->ctx->gen);
            pthread_mutex_lock(&s->lock);
            continue;
        }
        pthread_cond_wait(&s->change, &s->lock);
    }
    pthread_mutex_unlock(&s->lock);
}

ml_status ml_group_set_generate(ml_group_set *s, ml_status (*start)(void *ud, ml_err *err),
                                void *ud, ml_err *err) {
    ml_gen *gen = s->ctx->gen;
    ml_status st;

    set_closed(s, false);
    gen->pause(gen);
    gen->on_step_end(gen, ml_group_set_step_end, s);
    st = start(ud, err);
    if (st != ML_OK)
        ml_group_set_close(s);
    else if (!s->decide)
        set_closed(s, true);
    gen->resume(gen);
    wait_for_all(s);
    gen->on_step_end(gen, NULL, NULL);
    return st;
}

/* --- one group ---------------------------------------------------------------- */

void ml_gen_group_abort(ml_gen_group *g) {
    ml_gen *gen = g->set->ctx->gen;

    for (int32_t i = 0; i < g->id.n_sample; i++) {
        ml_gen_task *x = g->task[i];
        if (!x || x->ended)
            continue;
        x->aborted = true; /* between two turns it has no valid ticket */
        if (!g->set->ctx->generate)
            gen->abort(gen, x->ticket);
    }
}

ml_group_state ml_gen_group_state(ml_gen_group *g) {
    ml_group_state state;

    pthread_mutex_lock(&g->set->lock);
    state = g->state;
    pthread_mutex_unlock(&g->set->lock);
    return state;
}

void ml_gen_group_wait(ml_gen_group *g) {
    pthread_mutex_lock(&g->set->lock);
    while (g->state != ML_GROUP_DONE)
        pthread_cond_wait(&g->set->change, &g->set->lock);
    pthread_mutex_unlock(&g->set->lock);
}

/* The sample because of which the group cannot be trained on, or NULL. */
static const ml_gen_task *incomplete_sample(const ml_gen_group *g) {
    for (int32_t i = 0; i < g->id.n_sample; i++)
        if (g->task[i]->sample.status == ML_SAMPLE_ABORTED)
            return g->task[i];
    for (int32_t i = 0; g->set->ctx->rewards && i < g->id.n_sample; i++)
        if (!g->task[i]->sample.has_reward)
            return g->task[i];
    return NULL;
}

static void drop_incomplete(ml_gen_group *g, const ml_gen_task *x,
                            char reason[ML_REASON_CAP]) {
    bool aborted = x->sample.status == ML_SAMPLE_ABORTED;

    g->fate = aborted ? ML_GROUP_ABORTED : ML_GROUP_NO_REWARD;
    ml_str_copy(reason, ML_REASON_CAP,
                ml_str_of(aborted ? "aborted" : ml_reward_outcome_name(x->outcome)));
    ml_log(ML_LOG_WARN, "sample %lld has no reward, its group is dropped: %s",
           (long long)x->sample.index, x->why);
}

ml_status ml_gen_group_decide(ml_gen_group *g, const miles_group_filter *filter,
                              char reason[ML_REASON_CAP], ml_err *err) {
    const ml_gen_task *bad = incomplete_sample(g);
    const ml_sample **s;
    bool keep = true;
    ml_status st = ML_OK;

    reason[0] = 0;
    if (bad) {
        drop_incomplete(g, bad, reason);
        return ML_OK;
    }
    if (filter) {
        s = ML_NEW(g->arena, const ml_sample *, g->id.n_sample);
        for (int32_t i = 0; i < g->id.n_sample; i++)
            s[i] = &g->task[i]->sample;
        st = ml_group_filter_run(filter, s, g->id.n_sample, &keep, reason, err);
    }
    g->fate = keep && st == ML_OK ? ML_GROUP_KEPT : ML_GROUP_FILTERED;
    return st;
}

ml_status ml_group_set_count(ml_group_set *s, const ml_gen_group *g, int64_t wanted,
                             ml_err *err) {
    s->n_dropped = g->fate == ML_GROUP_KEPT ? 0 : s->n_dropped + 1;
    if (s->n_dropped < HOPELESS * wanted)
        return ML_OK;
    return ml_fail(err, ML_EFORMAT,
                   "the rollout kept none of the last %lld groups; the reward of the last "
                   "one's first sample is %g. Check whether answers are truncated or "
                   "aborted, and whether the reward and the filter are the intended ones",
                   (long long)s->n_dropped, g->task[0]->sample.reward);
}
