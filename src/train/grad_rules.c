#include "train/grad_rules.h"

#include <fnmatch.h>
#include <math.h>

static bool fits(const ml_grad_rule *r, const ml_param *p) {
    char name[512];
    return fnmatch(r->pattern, ml_param_name(p, 0, name, sizeof name), 0) == 0;
}

static ml_status check_rule(const ml_grad_rule *r, const ml_spec *s, ml_err *err) {
    if (!isfinite(r->scale) || !isfinite(r->max_norm) || r->max_norm < 0)
        return ml_fail(err, ML_EUSAGE,
                       "the gradients of \"%s\" get scale %g and largest norm %g: expected "
                       "finite numbers, and a norm of at least 0 (0: no limit)",
                       r->pattern, r->scale, r->max_norm);
    for (int32_t i = 0; i < s->n_param; i++)
        if (fits(r, &s->param[i]))
            return ML_OK;
    return ml_fail(err, ML_EUSAGE,
                   "the pattern \"%s\" for gradients matches no parameter: names look like "
                   "%s",
                   r->pattern, s->param[0].name);
}

ml_status ml_grad_rules_check(const ml_grad_rules *r, const ml_spec *s, ml_err *err) {
    ml_status st = ML_OK;

    if (!isfinite(r->clip_grad) || r->clip_grad < 0)
        st =
            ml_fail(err, ML_EUSAGE,
                    "the gradients of the step are limited to norm %g: expected at least 0 "
                    "(0: no limit)",
                    r->clip_grad);
    for (int32_t i = 0; i < r->n && st == ML_OK; i++)
        st = check_rule(&r->rule[i], s, err);
    return st;
}

void ml_grad_rules_factors(double *factor, const ml_grad_rules *r, const ml_spec *s,
                           const double *square, double grad_scale) {
    for (int32_t i = 0; i < s->n_param; i++)
        factor[i] = 1.0;
    for (const ml_grad_rule *x = r->rule; x < r->rule + r->n; x++) {
        double sum = 0, norm, clip = 1.0;
        for (int32_t i = 0; i < s->n_param; i++)
            if (fits(x, &s->param[i])) {
                factor[i] *= x->scale;
                sum += square[i] * factor[i] * factor[i];
            }
        norm = sqrt(sum) * fabs(grad_scale);
        if (x->max_norm > 0 && x->max_norm / (norm + 1e-6) < 1.0)
            clip = x->max_norm / (norm + 1e-6);
        for (int32_t i = 0; i < s->n_param; i++)
            if (fits(x, &s->param[i]))
                factor[i] *= clip;
    }
}
