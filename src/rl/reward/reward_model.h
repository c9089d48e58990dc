/* reward_model.h - a reward model as a reward: the score of a conversation.
 *
 * The model is a sequence classification checkpoint of transformers with one label
 * (ml_spec.reward).  The prompt's messages and the response, as the message of the assistant,
 * are rendered with its own chat template and encoded with its own tokenizer, as in its training
 * (data/preference_sample.h); a prompt that is text is followed by the response as text.
 *
 * Callers wait in a queue; the first one scores all that wait, packed into batches, while the
 * others go on waiting.  A score does not depend on what else is in a batch.
 *
 * thread: open, start and close from one; grade from any. */
#ifndef ML_RL_REWARD_REWARD_MODEL_H
#define ML_RL_REWARD_REWARD_MODEL_H

#include "backend/backend.h"
#include "miles/plugin.h"
#include "model/weights.h"

typedef struct ml_reward_model ml_reward_model;

typedef struct ml_reward_model_opts {
    const char *dir;
    ml_weight_dtype dtype;
    ml_backend_opts backend;
    int64_t max_tokens; /* of a batch; a longer conversation is one of its own */
} ml_reward_model_opts;

/* Checks the checkpoint, and reads tokenizer and chat template. */
ml_status ml_reward_model_open(ml_reward_model **out, const ml_reward_model_opts *o,
                               ml_err *err);
size_t ml_reward_model_bytes(const ml_reward_model *m);           /* once it is started */
ml_status ml_reward_model_start(ml_reward_model *m, ml_err *err); /* loads the weights */
/* Frees the weights while nobody asks; start loads them again. */
void ml_reward_model_stop(ml_reward_model *m);
void ml_reward_model_close(ml_reward_model *m); /* NULL is allowed */

/* As miles_reward.run; the model has been started. */
int ml_reward_model_grade(ml_reward_model *m, const miles_reward_in *in,
                          miles_reward_out *out, miles_error *err);

#endif
