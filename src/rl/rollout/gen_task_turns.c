/* Generation tasks between two turns of the model. */
#include <math.h>

#include "base/utf8.h"
#include "rl/rollout/gen_task_priv.h"

/* The text of the model's turn, without a special token at its end. */
static ml_str text_of_turn(const ml_gen_task *x) {
    const ml_sample *s = &x->sample;
    const ml_tokenizer *t = x->group->set->ctx->tokenizer;
    int32_t n = s->n_response - x->turn_at;

    if (n > 0 && ml_tokenizer_is_special(t, s->token[s->n_token - 1]))
        n--;
    return ml_gen_task_text(x, x->turn_at, n, false);
}

/* On a thread of the environment: the reply's message does not stay valid. */
static void on_reply(ml_turn *turn) {
    ml_gen_task *x = turn->ud;

    if (turn->reply.outcome != ML_REWARD_OK)
        ml_str_copy(x->why, sizeof x->why, ml_str_of(turn->reply.why));
    ml_group_set_replied(x->group->set, x);
}

void ml_gen_task_end_turn(ml_gen_task *x) {
    const ml_sample *s = &x->sample;
    ml_str answer = text_of_turn(x);

    if (x->aborted) {
        ml_gen_task_complete(x, ML_SAMPLE_ABORTED);
        return;
    }
    x->turn->replied = on_reply;
    x->turn->ud = x;
    x->turn->last = s->token[s->n_token - 1];
    x->turn->in = (miles_turn_in){ .size = sizeof x->turn->in,
                                   .index = s->index,
                                   .seed = (int64_t)x->group->set->how->seed,
                                   .turn = s->n_turn,
                                   .prompt = s->prompt.ptr,
                                   .prompt_len = s->prompt.len,
                                   .response = s->response.ptr,
                                   .response_len = s->response.len,
                                   .answer = answer.ptr,
                                   .answer_len = answer.len,
                                   .label = s->label.len ? s->label.ptr : NULL,
                                   .label_len = s->label.len,
                                   .metadata = s->metadata.len ? s->metadata.ptr : NULL,
                                   .metadata_len = s->metadata.len };
    ml_group_set_await_reply(x->group->set, x);
    ml_turns_submit(x->group->set->ctx->turns, x->turn);
}

/* Appends tokens that the model did not generate: they are masked, never trained on. */
static void append(ml_gen_task *x, const ml_tokens *ids) {
    ml_sample *s = &x->sample;

    for (int64_t i = 0; i < ids->n; i++) {
        x->token[s->n_token++] = ids->id[i];
        x->mask[s->n_response] = 0;
        s->logprob[s->n_response] = 0.0F;
        s->version[s->n_response] = s->version[s->n_response - 1];
        s->n_response++;
        if (x->group->set->how->support)
            ml_gen_task_add_supports(
                x, (ml_str){ "", 1 }); /* an empty record: a length of 0 */
    }
    x->turn_at = s->n_response;
    s->n_turn++;
}

/* Whether the turn, response and context limits allow n more tokens and a generated one. */
static bool has_room(const ml_gen_task *x, int64_t n) {
    const ml_group_set *f = x->group->set;

    return x->sample.n_turn < ml_turns_max(f->ctx->turns) &&
           x->sample.n_response + n < f->how->max_new &&
           x->sample.n_token + n < f->ctx->context;
}

static void fail(ml_gen_task *x, ml_reward_outcome outcome) {
    x->outcome = outcome;
    ml_gen_task_complete(x, ML_SAMPLE_FAILED);
}

static void go_on(ml_gen_task *x, const ml_tokens *ids) {
    ml_err err = { 0 };

    append(x, ids);
    if (ml_gen_task_submit(x, &err) == ML_OK)
        return;
    ml_str_copy(x->why, sizeof x->why, ml_str_of(err.msg));
    fail(x, ML_REWARD_INVALID);
}

void ml_gen_task_take_reply(ml_gen_task *x) {
    const ml_reply *r;
    ml_tokens ids;

    if (x->group->set->ctx->generate) {
        ml_gen_task_take_made(x);
        return;
    }
    r = &x->turn->reply;
    ids = x->turn->ids;
    x->turn->ids = (ml_tokens){ 0 };
    if (x->aborted) {
        ml_gen_task_complete(x, ML_SAMPLE_ABORTED);
    } else if (r->outcome != ML_REWARD_OK) {
        fail(x, r->outcome);
    } else if (ids.n == 0) {
        x->sample.has_reward = !isnan(r->reward);
        x->sample.reward = x->sample.has_reward ? r->reward : 0.0;
        ml_gen_task_complete(x, ML_SAMPLE_COMPLETED);
    } else if (!has_room(x, ids.n)) {
        ml_gen_task_complete(x, ML_SAMPLE_TRUNCATED);
    } else {
        go_on(x, &ids);
    }
    ml_tokens_release(&ids);
}
