/* gen_score.h - something that generates scores answers that are there already.
 *
 * A teacher behind HTTP, or the engine that drew them, by prefill.
 *
 * thread: the caller's; it waits. */
#ifndef ML_RL_GEN_SCORE_H
#define ML_RL_GEN_SCORE_H

#include "engine/gen.h"
#include "train/micro.h"

typedef struct ml_scorer {
    ml_gen *gen;
    const char *who;   /* for messages: "the teacher" */
    float temperature; /* that logits are divided by */
} ml_scorer;

/* Log-probs of the response tokens into logprob[i] [n_response].  All samples are asked for at
 * once. */
ml_status ml_gen_score(const ml_scorer *by, const ml_train_sample *s, int32_t n,
                       float *const *logprob, ml_err *err);

#endif
