/* gen_score.h - a generator computes the log-probs of existing answers, by prefill.
 *
 * The generator is a teacher behind HTTP or the engine that generated the answers.
 *
 * thread: the caller's, which blocks until all scores have arrived. */
#ifndef ML_RL_LEARN_GEN_SCORE_H
#define ML_RL_LEARN_GEN_SCORE_H

#include "gen/gen.h"
#include "train/micro.h"

typedef struct ml_scorer {
    ml_gen *gen;
    const char *who;   /* for error messages: "the teacher" */
    float temperature; /* logits are divided by it */
} ml_scorer;

/* Writes the log-probs of the response tokens to logprob[i] [n_response].  All samples are
 * submitted at once. */
ml_status ml_gen_score(const ml_scorer *by, const ml_train_sample *s, int32_t n,
                       float *const *logprob, ml_err *err);

#endif
