/* losses.h - the built-in losses of Tinker's forward_backward.
 *
 * Each is a sum over the tokens of a column.  With p the log-prob of a target, q the given
 * log-prob of the sampler, A the advantage, w the weight and r = exp(p - q):
 *
 *     cross_entropy        -w p
 *     importance_sampling  -r A
 *     ppo                  -min(r A, clip(r) A)
 *     cispo                -clip(r) A p, where clip(r) is a constant
 *     dro                  -(A p - beta/2 (p - q)^2)
 *     gspo                 -min(s A, clip(s) A), with s = exp(mean of p - q over the tokens
 *                          whose advantage is not 0) (Zheng et al., 2025)
 *
 * clip limits to clip_low_threshold .. clip_high_threshold: 0.8 and 1.2, for cispo 0 and 4, if
 * the request does not set them; beta is 0.05.
 *
 * thread: any; no state. */
#ifndef ML_TINKER_LOSSES_H
#define ML_TINKER_LOSSES_H

#include "tinker/datum.h"

typedef struct ml_pass_loss ml_pass_loss;
typedef double ml_pass_loss_fn(const ml_pass_loss *l, const ml_datum_column *c,
                               const float *logprob, float *dlogprob);

struct ml_pass_loss {
    ml_pass_loss_fn *fn;
    double low, high, beta;
};

/* The loss that a request names, with its settings; checks that each datum has its inputs. */
ml_status ml_pass_loss_of(ml_pass_loss *out, const ml_pass_request *p, ml_err *err);

/* The loss of a column; dlogprob [n] receives its derivatives. */
double ml_pass_loss_at(const ml_pass_loss *l, const ml_datum_column *c,
                       const float *logprob, float *dlogprob);

#endif
