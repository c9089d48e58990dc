/* judge_model.h - the language model of a judge (llm_judge.h), in an engine of its own in this
 * process.
 *
 * A question is the message of a user: it is rendered with the model's own chat template and
 * encoded with its own tokenizer, as miles serve does, and a reply has the same tokens as there
 * for the same seed.  Questions of several threads are one batch; a reply does not depend on what
 * else is in it.
 *
 * thread: open, start, stop and close from one; ask from any. */
#ifndef ML_RL_REWARD_JUDGE_MODEL_H
#define ML_RL_REWARD_JUDGE_MODEL_H

#include "backend/backend.h"
#include "model/weights.h"
#include "rl/reward/rewards.h"

typedef struct ml_judge_model ml_judge_model;

typedef struct ml_judge_model_opts {
    const char *dir;
    ml_weight_dtype dtype;
    ml_backend_opts backend;
    int64_t context;       /* tokens of a question and its reply; at most the model's */
    int32_t prefill_chunk; /* tokens of a step */
} ml_judge_model_opts;

/* Checks the checkpoint, and reads tokenizer and chat template. */
ml_status ml_judge_model_open(ml_judge_model **out, const ml_judge_model_opts *o,
                              ml_err *err);
size_t ml_judge_model_bytes(const ml_judge_model *m);           /* once it is started */
ml_status ml_judge_model_start(ml_judge_model *m, ml_err *err); /* loads the weights */
/* Frees weights and KV cache while nobody asks; start loads them again. */
void ml_judge_model_stop(ml_judge_model *m);
void ml_judge_model_close(ml_judge_model *m); /* NULL is allowed */

/* Appends the reply to a question, as text without special tokens; the model has been
 * started.  ML_EUSAGE: the question is longer than the context. */
ml_status ml_judge_model_ask(ml_judge_model *m, ml_text *reply, ml_str question,
                             const ml_llm_judge_opts *how, uint64_t seed, ml_err *err);

#endif
