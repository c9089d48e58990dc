/* gen_score.h - generators compute the log-probs of existing answers, by prefill.
 *
 * A generator is a teacher, or the engine that generated the answers.
 *
 * thread: the caller's, which blocks until all scores have arrived. */
#ifndef ML_RL_LEARN_GEN_SCORE_H
#define ML_RL_LEARN_GEN_SCORE_H

#include "gen/gen.h"
#include "rl/sample.h"

/* Who scores, for error messages, and how. */
typedef struct ml_scorer {
    ml_gen *gen;
    const char *who;   /* for error messages: "the teacher" */
    float temperature; /* logits are divided by it */
} ml_scorer;

/* An answer to score, and its results. */
typedef struct ml_score_item {
    ml_scorer by;
    const int32_t *token; /* [n_token] the last n_response are scored */
    int32_t n_token, n_response;
    int32_t n_top;       /* most probable tokens of each position to return */
    const int32_t *also; /* [n_response][n_also] further ids of each position; -1: none */
    int32_t n_also;
    float *logprob;      /* [n_response] */
    int32_t *top_id;     /* [n_response][n_top] */
    float *top_logprob;  /* [n_response][n_top] */
    float *also_logprob; /* [n_response][n_also] */
} ml_score_item;

/* An item that scores a sample's answer into logprob. */
ml_score_item ml_score_item_of(const ml_scorer *by, const ml_sample *s, float *logprob);

/* Scores all items; they are submitted at once. */
ml_status ml_gen_score(ml_score_item *item, int32_t n, ml_err *err);

#endif
