/* Grading of generation tasks: one by one, or the samples of a prompt together. */
#include <string.h>
#include "rl/rollout/gen_task_priv.h"

/* Closes a task.  The group's owner may free it from then on.  The policy learns of a group
 * that is done; the generator is notified under the lock, as in ml_group_set_replied. */
static void close_one(ml_gen_task *x) {
    ml_gen_group *g = x->group;
    ml_group_set *s = g->set;
    ml_gen *gen = s->ctx->gen;

    ml_work_count_add(s->ctx->work_count);
    pthread_mutex_lock(&s->lock);
    s->n_open--;
    if (--g->n_open == 0)
        g->state = ML_GROUP_DONE;
    pthread_cond_broadcast(&s->change);
    if (s->decide && g->state == ML_GROUP_DONE)
        gen->notify(gen);
    pthread_mutex_unlock(&s->lock);
}

/* Callback of the rewards, on a reward thread. */
static void take_reward(void *ud, const ml_reward_result *r) {
    ml_gen_task *x = ud;

    x->outcome = r->outcome;
    x->sample.has_reward = r->outcome == ML_REWARD_OK;
    x->sample.reward = x->sample.has_reward ? r->reward : 0.0;
    x->sample.n_part = r->n_part;
    if (r->n_part)
        memcpy(x->sample.part, r->part, (size_t)r->n_part * sizeof *r->part);
    if (!x->sample.has_reward)
        ml_str_copy(x->why, sizeof x->why, ml_str_of(r->why));
    close_one(x);
}

static bool contains(const int32_t *id, int32_t n, int32_t token) {
    for (int32_t i = 0; i < n; i++)
        if (id[i] == token)
            return true;
    return false;
}

/* Whether the last token is an end or stop token.  The model generated it, because a graded
 * sample never ends with tokens of the environment. */
static bool ends_in_stop(const ml_gen_task *x) {
    const ml_sample *s = &x->sample;
    const ml_gen_ctx *at = x->group->set->ctx;
    const ml_sampling *how = x->group->set->how;

    return s->n_response > 0 &&
           (contains(at->end, at->n_end, s->token[s->n_token - 1]) ||
            contains(how->stop_id, how->n_stop_id, s->token[s->n_token - 1]));
}

/* The response as rewards see it: without the end token. */
static ml_str answer_of(const ml_gen_task *x) {
    const ml_sample *s = &x->sample;

    return ends_in_stop(x)
               ? ml_gen_task_text(x, 0, s->n_response - 1, x->group->set->how->skip_special)
               : s->response;
}

static const miles_reward_in *question_of(ml_gen_task *x) {
    const ml_sample *s = &x->sample;
    ml_str answer = answer_of(x);

    for (int32_t i = 0; i < s->n_token; i++)
        x->wide[i] = s->token[i];
    x->question = (miles_reward_in){ .size = sizeof x->question,
                                     .index = s->index,
                                     .group = s->group,
                                     .n_response = s->n_response,
                                     .status = (int32_t)s->status,
                                     .mask = s->mask,
                                     .log_prob = s->logprob,
                                     .seed = (int64_t)x->group->set->how->seed,
                                     .prompt = s->prompt.ptr,
                                     .prompt_len = s->prompt.len,
                                     .response = answer.ptr,
                                     .response_len = answer.len,
                                     .raw_response = s->response.ptr,
                                     .raw_response_len = s->response.len,
                                     .label = s->label.len ? s->label.ptr : NULL,
                                     .label_len = s->label.len,
                                     .metadata = s->metadata.len ? s->metadata.ptr : NULL,
                                     .metadata_len = s->metadata.len,
                                     .token = x->wide,
                                     .n_token = s->n_token,
                                     .messages = x->messages.len ? x->messages.ptr : NULL,
                                     .messages_len = x->messages.len };
    return &x->question;
}

static bool is_graded_together(const ml_gen_group *g) {
    return g->set->ctx->rewards && g->set->ctx->group_rewards;
}

/* With the last task, the group may be freed. */
static void close_begun(ml_gen_task *const *task, int32_t n) {
    int32_t n_begun = 0;

    for (int32_t i = 0; i < n; i++)
        n_begun += task[i] && task[i]->begun;
    for (int32_t i = 0; n_begun > 0; i++)
        if (task[i]->begun && n_begun--)
            close_one(task[i]);
}

/* All samples have ended. */
static void grade_together(ml_gen_group *g) {
    int32_t n = g->id.n_sample;
    const miles_reward_in **question = ML_NEW(g->arena, const miles_reward_in *, n);
    void **ud = ML_NEW(g->arena, void *, n);

    for (int32_t i = 0; i < n; i++) {
        question[i] = question_of(g->task[i]);
        ud[i] = g->task[i];
    }
    ml_rewards_submit_group(g->set->ctx->rewards, question, n, take_reward, ud);
}

/* Counts n samples that have ended, or were not started, and grades the group if it is to be
 * graded together and these were the last. */
static void leave(ml_gen_group *g, int32_t n, bool started, bool spoiled) {
    ml_group_set *s = g->set;
    bool last;

    pthread_mutex_lock(&s->lock);
    s->n_open -= started ? 0 : n;
    g->n_open -= started ? 0 : n;
    g->n_left -= n;
    last = g->n_left == 0;
    if (last)
        g->state = g->n_open ? ML_GROUP_GRADING : ML_GROUP_DONE;
    spoiled = g->spoiled |= spoiled;
    pthread_mutex_unlock(&s->lock);
    if (last && is_graded_together(g) && spoiled)
        close_begun(g->task, g->id.n_sample);
    else if (last && is_graded_together(g))
        grade_together(g);
}

void ml_gen_task_grade(ml_gen_task *x) {
    ml_rewards *rewards = x->group->set->ctx->rewards;
    bool whole =
        x->sample.status == ML_SAMPLE_COMPLETED || x->sample.status == ML_SAMPLE_TRUNCATED;
    bool together = is_graded_together(x->group);

    leave(x->group, 1, true, !whole);
    if (together)
        return;
    if (rewards && !x->sample.has_reward && whole)
        ml_rewards_submit(rewards, question_of(x), take_reward, x);
    else
        close_one(x);
}

void ml_gen_group_give_up(ml_gen_group *g) {
    int32_t n_rest = 0;

    for (int32_t i = 0; i < g->id.n_sample; i++)
        n_rest += !g->task[i] || !g->task[i]->begun;
    ml_work_count_expect(g->set->ctx->work_count, -n_rest);
    leave(g, n_rest, false, true);
}
