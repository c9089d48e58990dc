#include "tinker/losses.h"

#include <math.h>
#include <stddef.h>

#include "base/exp.h"

static double clip(const ml_pass_loss *l, double r) {
    return r < l->low ? l->low : r > l->high ? l->high : r;
}

static double cross_entropy(const ml_pass_loss *l, const ml_datum_column *c, const float *p,
                            float *dp) {
    const float *w = c->input[ML_DATUM_WEIGHTS];
    double sum = 0;

    (void)l;
    for (int32_t i = 0; i < c->n; i++) {
        double weight = w ? (double)w[i] : 1.0;
        sum -= weight * (double)p[i];
        dp[i] = (float)-weight;
    }
    return sum;
}

static double importance_sampling(const ml_pass_loss *l, const ml_datum_column *c,
                                  const float *p, float *dp) {
    const float *q = c->input[ML_DATUM_LOGPROBS], *a = c->input[ML_DATUM_ADVANTAGES];
    double sum = 0;

    (void)l;
    for (int32_t i = 0; i < c->n; i++) {
        double x = a[i] == 0 ? 0 : ml_exp((double)p[i] - (double)q[i]) * (double)a[i];
        sum -= x;
        dp[i] = (float)-x;
    }
    return sum;
}

static double ppo(const ml_pass_loss *l, const ml_datum_column *c, const float *p,
                  float *dp) {
    const float *q = c->input[ML_DATUM_LOGPROBS], *a = c->input[ML_DATUM_ADVANTAGES];
    double sum = 0;

    for (int32_t i = 0; i < c->n; i++) {
        double r = a[i] == 0 ? 1 : ml_exp((double)p[i] - (double)q[i]);
        double x = r * (double)a[i], y = clip(l, r) * (double)a[i];
        sum -= x < y ? x : y;
        dp[i] = (float)(x <= y ? -x : 0);
    }
    return sum;
}

static double cispo(const ml_pass_loss *l, const ml_datum_column *c, const float *p,
                    float *dp) {
    const float *q = c->input[ML_DATUM_LOGPROBS], *a = c->input[ML_DATUM_ADVANTAGES];
    double sum = 0;

    for (int32_t i = 0; i < c->n; i++) {
        double x =
            a[i] == 0 ? 0 : clip(l, ml_exp((double)p[i] - (double)q[i])) * (double)a[i];
        sum -= x * (double)p[i];
        dp[i] = (float)-x;
    }
    return sum;
}

/* Positions with neither an advantage nor a log-prob of the sampler are those of the prompt. */
static double dro(const ml_pass_loss *l, const ml_datum_column *c, const float *p,
                  float *dp) {
    const float *q = c->input[ML_DATUM_LOGPROBS], *a = c->input[ML_DATUM_ADVANTAGES];
    double sum = 0;

    for (int32_t i = 0; i < c->n; i++) {
        double d = (double)p[i] - (double)q[i], beta = l->beta;
        if (a[i] == 0 && q[i] == 0)
            beta = d = 0;
        sum -= (double)a[i] * (double)p[i] - 0.5 * beta * d * d;
        dp[i] = (float)-((double)a[i] - beta * d);
    }
    return sum;
}

static double gspo(const ml_pass_loss *l, const ml_datum_column *c, const float *p,
                   float *dp) {
    const float *q = c->input[ML_DATUM_LOGPROBS], *a = c->input[ML_DATUM_ADVANTAGES];
    double sum = 0, mean = 0, slope = 0, s, n = 0;

    for (int32_t i = 0; i < c->n; i++)
        if (a[i] != 0) {
            mean += (double)p[i] - (double)q[i];
            n++;
        }
    s = n > 0 ? ml_exp(mean / n) : 1;
    for (int32_t i = 0; i < c->n; i++) {
        double x = s * (double)a[i], y = clip(l, s) * (double)a[i];
        sum -= x < y ? x : y;
        slope -= x <= y ? x : 0;
    }
    for (int32_t i = 0; i < c->n; i++)
        dp[i] = (float)(a[i] != 0 ? slope / n : 0);
    return sum;
}

typedef struct row {
    const char *name;
    ml_pass_loss loss; /* with its default settings */
    bool samples;      /* needs log-probs and advantages */
} row;

static const row rows[] = {
    { "cross_entropy", { cross_entropy, 0, 0, 0 }, false },
    { "importance_sampling", { importance_sampling, 0, 0, 0 }, true },
    { "ppo", { ppo, 0.8, 1.2, 0 }, true },
    { "cispo", { cispo, 0, 4, 0 }, true },
    { "dro", { dro, 0, 0, 0.05 }, true },
    { "gspo", { gspo, 0.8, 1.2, 0 }, true },
    { 0 },
};

static ml_status set_one(ml_pass_loss *l, const row *r, const ml_loss_setting *s,
                         ml_err *err) {
    double *at = NULL;

    if (ml_str_is(s->name, "clip_low_threshold") && r->loss.high > 0)
        at = &l->low;
    if (ml_str_is(s->name, "clip_high_threshold") && r->loss.high > 0)
        at = &l->high;
    if (ml_str_is(s->name, "beta") && r->loss.beta > 0)
        at = &l->beta;
    if (!at)
        return ml_fail(
            err, ML_EUSAGE,
            "loss_fn_config: %s has no setting \"%.*s\"; ppo, cispo and gspo have "
            "clip_low_threshold and clip_high_threshold, dro has beta",
            r->name, (int)(s->name.len < 80 ? s->name.len : 80), s->name.ptr);
    if (!isfinite(s->value) || s->value < 0)
        return ml_fail(err, ML_EUSAGE, "loss_fn_config: %.*s is %g, expected 0 or more",
                       (int)(s->name.len < 80 ? s->name.len : 80), s->name.ptr, s->value);
    *at = s->value;
    return ML_OK;
}

static ml_status check_inputs(const ml_pass_request *p, const row *r, ml_err *err) {
    for (int32_t d = 0; d < p->n_datum && r->samples; d++)
        for (int i = ML_DATUM_LOGPROBS; i <= ML_DATUM_ADVANTAGES; i++)
            if (!p->column[p->datum[d].first].input[i])
                return ml_fail(err, ML_EUSAGE,
                               "datum %d: the loss %s needs \"%s\" in loss_fn_inputs", d,
                               r->name, ml_datum_input[i]);
    return ML_OK;
}

ml_status ml_pass_loss_of(ml_pass_loss *out, const ml_pass_request *p, ml_err *err) {
    const row *r = rows;
    ml_status st = ML_OK;

    while (r->name && !ml_str_is(p->loss, r->name))
        r++;
    if (!r->name)
        return ml_fail(err, ML_EUSAGE,
                       "the loss \"%.*s\" is not known; this server has cross_entropy, "
                       "importance_sampling, ppo, cispo, dro and gspo, and custom losses "
                       "through forward_backward_custom",
                       (int)(p->loss.len < 80 ? p->loss.len : 80), p->loss.ptr);
    *out = r->loss;
    for (int32_t i = 0; i < p->n_setting && st == ML_OK; i++)
        st = set_one(out, r, &p->setting[i], err);
    if (st == ML_OK && out->low > out->high)
        st = ml_fail(err, ML_EUSAGE,
                     "loss_fn_config: clip_low_threshold %g exceeds clip_high_threshold %g",
                     out->low, out->high);
    return st == ML_OK ? check_inputs(p, r, err) : st;
}

double ml_pass_loss_at(const ml_pass_loss *l, const ml_datum_column *c,
                       const float *logprob, float *dlogprob) {
    return l->fn(l, c, logprob, dlogprob);
}
