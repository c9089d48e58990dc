/* Generation tasks between two turns of the model. */
#include <math.h>

#include "base/utf8.h"
#include "rl/rollout/gen_task_priv.h"

void ml_gen_task_end_turn(ml_gen_task *x) {
    ml_gen_tasks *f = x->all;

    if (f->n_pending_turn == f->cap_pending_turn) {
        ml_gen_task **more = ML_NEW(f->arena, ml_gen_task *, 2 * f->cap_pending_turn + 16);
        for (int64_t i = 0; i < f->n_pending_turn; i++)
            more[i] = f->pending_turn[i];
        f->pending_turn = more;
        f->cap_pending_turn = 2 * f->cap_pending_turn + 16;
    }
    f->pending_turn[f->n_pending_turn++] = x;
}

/* The text of the model's turn, without a special token at its end. */
static ml_str text_of_turn(const ml_gen_task *x) {
    const ml_sample *s = &x->sample;
    const ml_tokenizer *t = x->all->at->tokenizer;
    int32_t n = s->n_response - x->turn_at;

    if (n > 0 && ml_tokenizer_is_special(t, s->token[s->n_token - 1]))
        n--;
    return ml_gen_task_text(x, x->turn_at, n, false);
}

static void fill_turn(ml_gen_task *x) {
    const ml_sample *s = &x->sample;
    ml_str answer = text_of_turn(x);

    x->turn->last = s->token[s->n_token - 1];
    x->turn->in = (miles_turn_in){ .size = sizeof x->turn->in,
                                   .index = s->index,
                                   .seed = (int64_t)x->all->how->seed,
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
    }
    x->turn_at = s->n_response;
    s->n_turn++;
}

/* Whether the turn, response and context limits allow n more tokens and a generated one. */
static bool has_room(const ml_gen_task *x, int64_t n) {
    const ml_gen_tasks *f = x->all;

    return x->sample.n_turn < ml_turns_max(f->at->turns) &&
           x->sample.n_response + n < f->how->max_new &&
           x->sample.n_token + n < f->at->context;
}

static void fail(ml_gen_task *x, ml_reward_outcome outcome, const char *why) {
    x->outcome = outcome;
    ml_str_copy(x->why, sizeof x->why, ml_str_of(why));
    ml_gen_task_complete(x, ML_SAMPLE_FAILED);
}

static void take_reply(ml_gen_task *x) {
    const ml_reply *r = &x->turn->reply;
    ml_err err = { 0 };

    if (r->outcome != ML_REWARD_OK) {
        fail(x, r->outcome, r->why);
    } else if (x->turn->ids.n == 0) {
        x->sample.has_reward = !isnan(r->reward);
        x->sample.reward = x->sample.has_reward ? r->reward : 0.0;
        ml_gen_task_complete(x, ML_SAMPLE_COMPLETED);
    } else if (!has_room(x, x->turn->ids.n)) {
        ml_gen_task_complete(x, ML_SAMPLE_TRUNCATED);
    } else {
        append(x, &x->turn->ids);
        if (ml_gen_task_submit(x, &err) != ML_OK)
            fail(x, ML_REWARD_INVALID, err.msg);
    }
}

void ml_gen_tasks_continue_turns(ml_gen_tasks *f) {
    ml_gen_task **pending_turn = f->pending_turn;
    int64_t n_pending_turn = f->n_pending_turn, n = 0;
    ml_turn **turn = n_pending_turn ? ML_NEW(f->arena, ml_turn *, n_pending_turn) : NULL;

    f->pending_turn = NULL;
    f->n_pending_turn = f->cap_pending_turn = 0;
    for (int64_t i = 0; i < n_pending_turn; i++) {
        if (pending_turn[i]->aborted) {
            ml_gen_task_complete(pending_turn[i], ML_SAMPLE_ABORTED);
            continue;
        }
        fill_turn(pending_turn[i]);
        turn[n] = pending_turn[i]->turn;
        pending_turn[n++] = pending_turn[i];
    }
    if (n)
        ml_turns_run(f->at->turns, turn, n);
    for (int64_t i = 0; i < n; i++) {
        take_reply(pending_turn[i]);
        ml_tokens_release(&turn[i]->ids);
    }
}
