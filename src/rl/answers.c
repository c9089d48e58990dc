#include "rl/answers.h"

_Static_assert((int)MILES_PENDING == (int)ML_SAMPLE_PENDING &&
                   (int)MILES_FAILED == (int)ML_SAMPLE_FAILED,
               "a sample's status is a number of the interface");

static miles_answer view(const ml_sample *s) {
    return (miles_answer){ .size = sizeof(miles_answer),
                           .index = s->index,
                           .group = s->group,
                           .row = s->row,
                           .status = (int32_t)s->status,
                           .n_turn = s->n_turn,
                           .has_reward = s->has_reward,
                           .reward = s->reward,
                           .prompt = s->prompt.ptr,
                           .prompt_len = s->prompt.len,
                           .response = s->response.ptr,
                           .response_len = s->response.len,
                           .label = s->label.len ? s->label.ptr : NULL,
                           .label_len = s->label.len,
                           .metadata = s->metadata.len ? s->metadata.ptr : NULL,
                           .metadata_len = s->metadata.len,
                           .token = s->token,
                           .n_token = s->n_token,
                           .n_response = s->n_response,
                           .mask = s->mask,
                           .log_prob = s->logprob,
                           .version = s->version };
}

const miles_answers *ml_answers_of(ml_arena *a, const ml_sample *const *s, int64_t n,
                                   int64_t rollout) {
    miles_answers *out = ML_NEW(a, miles_answers, 1);
    miles_answer *answer = ML_NEW(a, miles_answer, n + 1);
    const miles_answer **list = ML_NEW(a, const miles_answer *, n + 1);

    for (int64_t i = 0; i < n; i++) {
        answer[i] = view(s[i]);
        list[i] = &answer[i];
    }
    *out = (miles_answers){ sizeof *out, rollout, n, list };
    return out;
}

ml_status ml_extension_failed(const miles_extension *ext, const miles_error *why,
                              ml_err *err) {
    return ml_fail(err, ML_EFORMAT, "%s: %.*s", ext->name, (int)sizeof why->text,
                   why->text[0] ? why->text : "failed without an error message");
}
