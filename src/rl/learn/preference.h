/* preference.h - losses on preferences: pairs of a chosen and a rejected answer, or single
 * answers that are desirable or not.
 *
 * With S the sum of an answer's log-probs, R that of the reference, N its tokens, all of the
 * chosen (c) and the rejected (r) answer to a prompt:
 *
 *   dpo    -log sigmoid(h), h = beta ((Sc - Rc) - (Sr - Rr)); with label smoothing e,
 *          -(1 - e) log sigmoid(h) - e log sigmoid(-h)            Rafailov et al., 2023
 *   hinge  max(0, 1 - h)                                          Zhao et al., 2023
 *   ipo    ((Sc - Rc) / Nc - (Sr - Rr) / Nr - 1 / (2 beta))^2     Azar et al., 2023
 *   simpo  -log sigmoid(beta (Sc / Nc - Sr / Nr) - gamma)         Meng et al., 2024
 *   orpo   the mean of -log p over all tokens of chosen conversations,
 *          - beta log sigmoid(o(Sc / Nc) - o(Sr / Nr)), o(x) = x - log(1 - e^x)   Hong et al., 2024
 *   kto    desirable: w+ (1 - sigmoid(beta (S - R - kl))), others: w- (1 - sigmoid(beta (kl -
 *          (S - R)))), kl = max(0, mean of S - R over the prompts with the answers of other
 *          prompts), without a gradient                           Ethayarajh et al., 2024
 *
 * The loss of a step is the mean over its pairs, or answers.  An answer's derivative depends on
 * the other one, too: both are scored before the step, with the weights that it starts from, so
 * that samples may still be trained in any packing.
 *
 * thread: any. */
#ifndef ML_RL_LEARN_PREFERENCE_H
#define ML_RL_LEARN_PREFERENCE_H

#include <math.h>

#include "base/arena.h"
#include "base/err.h"
#include "rl/recipe.h"

static inline double ml_log_sigmoid(double x) {
    return x < 0 ? x - log1p(exp(x)) : -log1p(exp(-x));
}

static inline double ml_sigmoid(double x) {
    return x < 0 ? exp(x) / (1 + exp(x)) : 1 / (1 + exp(-x));
}

/* What a sample's miles_sample.preference has. */
enum {
    ML_PREFERENCE_LOSS, /* its part of the loss */
    ML_PREFERENCE_CHOSEN,
    ML_PREFERENCE_REJECTED, /* the implied reward, if it is of this kind */
    ML_PREFERENCE_MARGIN,   /* of the pair, at its chosen answer */
    ML_PREFERENCE_ACCURACY,
    ML_PREFERENCE_KL, /* kto */
    ML_PREFERENCE_NUMBERS
};

/* A sample that is compared. */
typedef struct ml_preference_row {
    miles_sample *row;
    int64_t n_answer; /* the last tokens are the answer */
    bool desirable;   /* of kto; of pairs, the first is chosen */
} ml_preference_row;

/* row [n]: chosen and rejected in turn; kto: an answer, and the same prompt with another one.
 * Sets `advantage`, the negative derivative of each token, and `preference`. */
ml_status ml_preferences_compute(ml_arena *a, const ml_preference_opts *o,
                                 const ml_preference_row *row, int64_t n, ml_err *err);

#endif
