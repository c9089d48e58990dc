/* Grading of generation tasks: one by one, or the samples of a prompt together. */
#include <string.h>
#include "rl/rollout/gen_task_priv.h"

/* Closes a task.  Its owner may free it from the call of `on_complete` on. */
static void close_one(ml_gen_task *x) {
    ml_gen_tasks *f = x->all;
    void (*on_complete)(void *ud, ml_gen_task *x) = f->on_complete;
    void *ud = f->on_complete_ud;

    ml_work_count_add(f->at->work_count);
    pthread_mutex_lock(&f->lock);
    f->n_open--;
    pthread_cond_signal(&f->change);
    pthread_mutex_unlock(&f->lock);
    if (on_complete)
        on_complete(ud, x);
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
    const ml_gen_ctx *at = x->all->at;
    const ml_sampling *how = x->all->how;

    return s->n_response > 0 &&
           (contains(at->end, at->n_end, s->token[s->n_token - 1]) ||
            contains(how->stop_id, how->n_stop_id, s->token[s->n_token - 1]));
}

/* The response as rewards see it: without the end token. */
static ml_str answer_of(const ml_gen_task *x) {
    const ml_sample *s = &x->sample;

    return ends_in_stop(x)
               ? ml_gen_task_text(x, 0, s->n_response - 1, x->all->how->skip_special)
               : s->response;
}

static const miles_reward_in *question_of(ml_gen_task *x) {
    const ml_sample *s = &x->sample;
    ml_str answer = answer_of(x);

    for (int32_t i = 0; i < s->n_token; i++)
        x->wide[i] = s->token[i];
    x->question = (miles_reward_in){ .size = sizeof x->question,
                                     .index = s->index,
                                     .seed = (int64_t)x->all->how->seed,
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
                                     .n_token = s->n_token };
    return &x->question;
}

/* All samples have ended: grades the group, or closes its tasks if it is spoiled. */
static void grade_group(ml_reward_group *c) {
    ml_gen_task **member = c->member;
    int32_t n = c->n;

    for (int32_t i = 0; i < n && !c->spoiled; i++) {
        c->question[i] = question_of(member[i]);
        c->ud[i] = member[i];
    }
    if (!c->spoiled)
        ml_rewards_submit_group(member[0]->all->at->rewards, c->question, n, take_reward,
                                c->ud);
    else
        for (int32_t i = 0; i < n; i++) /* the last close_one may free the group: no c-> */
            if (member[i]->begun)
                close_one(member[i]);
}

/* Counts n samples of the group that have ended or will not be started. */
static void leave_group(ml_gen_tasks *f, ml_reward_group *c, int32_t n, bool spoiled) {
    bool last;

    pthread_mutex_lock(&f->lock);
    c->spoiled |= spoiled;
    c->n_left -= n;
    last = n > 0 && c->n_left == 0;
    pthread_mutex_unlock(&f->lock);
    if (last)
        grade_group(c);
}

static void submit_for_reward(ml_gen_task *x) {
    ml_rewards_submit(x->all->at->rewards, question_of(x), take_reward, x);
}

void ml_gen_task_grade(ml_gen_task *x) {
    ml_gen_tasks *f = x->all;
    bool whole =
        x->sample.status == ML_SAMPLE_COMPLETED || x->sample.status == ML_SAMPLE_TRUNCATED;

    if (x->reward_group)
        leave_group(f, x->reward_group, 1, !whole);
    else if (f->at->rewards && !x->sample.has_reward && whole)
        submit_for_reward(x);
    else
        close_one(x);
}

/* --- reward groups ----------------------------------------------------------------- */

void ml_reward_group_open(ml_gen_tasks *f, ml_gen_task **member, int32_t n) {
    ml_reward_group *c;

    if (!f->at->rewards || !f->at->group_rewards)
        return;
    c = ML_NEW(f->arena, ml_reward_group, 1);
    *c = (ml_reward_group){ .member = member,
                            .question = ML_NEW(f->arena, const miles_reward_in *, n),
                            .ud = ML_NEW(f->arena, void *, n),
                            .n = n,
                            .n_left = n };
    for (int32_t i = 0; i < n; i++)
        member[i]->reward_group = c;
}

void ml_reward_group_give_up(ml_gen_tasks *f, ml_gen_task *const *member, int32_t n) {
    int32_t n_rest = 0;

    for (int32_t i = 0; i < n; i++)
        n_rest += member[i] && !member[i]->begun;
    if (n_rest && member[0]->reward_group)
        leave_group(f, member[0]->reward_group, n_rest, true);
}
