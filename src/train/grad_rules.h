/* grad_rules.h - changes to the gradients of some parameters in one step: scales, masks and
 * limits of norms.
 *
 * A rule is applied as a factor of each parameter's gradients when the optimizer reads them;
 * the gradients themselves stay as they are.
 *
 * thread: any; no state. */
#ifndef ML_TRAIN_GRAD_RULES_H
#define ML_TRAIN_GRAD_RULES_H

#include "model/spec.h"

typedef struct ml_grad_rule {
    const char *pattern; /* shell pattern of names */
    double scale;        /* 0: masked */
    double max_norm;     /* of the scaled gradients of all these parameters; 0: no limit */
} ml_grad_rule;

typedef struct ml_grad_rules {
    const ml_grad_rule *rule; /* [n] in order */
    int32_t n;
    double clip_grad; /* instead of the optimizer's */
} ml_grad_rules;

/* ML_EUSAGE: a number out of range, or a pattern that matches nothing. */
ml_status ml_grad_rules_check(const ml_grad_rules *r, const ml_spec *s, ml_err *err);

/* The factors of parameters [n_param], from the sums of squares of their gradients, which
 * are multiplied by grad_scale. */
void ml_grad_rules_factors(double *factor, const ml_grad_rules *r, const ml_spec *s,
                           const double *square, double grad_scale);

#endif
