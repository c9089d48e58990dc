#include "rl/learn/loss/step_loss.h"

#include <string.h>

#include "base/bug.h"
#include "rl/builtins.h"
#include "rl/learn/loss/covariance.h"
#include "rl/learn/reduce/divisors.h"

static bool any_has(const miles_batch *b, size_t field) {
    for (int64_t i = 0; i < b->n; i++) {
        const double *column;
        memcpy(&column, (const char *)b->sample[i] + field, sizeof column);
        if (column)
            return true;
    }
    return false;
}

static void copy_samples(ml_step_loss *s, ml_arena *a, const miles_batch *b) {
    s->n = b->n;
    s->sample = ML_NEW(a, miles_sample, b->n + 1);
    for (int64_t i = 0; i < b->n; i++) {
        s->sample[i] = *b->sample[i];
        s->sample[i].kept = s->sample[i].mask;
        s->sample[i].weight = NULL;
    }
}

static ml_status refused(const miles_extension *ext, const miles_error *why, ml_err *err) {
    return ml_fail(err, ML_EFORMAT, "%s: %.480s", ext->name, why->text);
}

static ml_status correct(ml_step_loss *s, ml_arena *a, const miles_correction *c,
                         const miles_batch *b, ml_err *err) {
    double **weight = ML_NEW(a, double *, b->n + 1);
    uint8_t **kept = ML_NEW(a, uint8_t *, b->n + 1);
    int32_t n = c->metrics(&s->num, s->metric + s->n_metric);
    miles_error why = { "" };

    ML_BUG_IF(n > MILES_METRIC_MAX);
    s->n_metric += n;
    s->correction_number = ML_NEW(a, double, b->n *n + 1);
    for (int64_t i = 0; i < b->n; i++) {
        int64_t len = b->sample[i]->n;
        weight[i] = ML_NEW(a, double, len + 1);
        kept[i] = ML_NEW(a, uint8_t, len + 1);
        for (int64_t t = 0; t < len; t++) {
            weight[i][t] = 1.0;
            kept[i][t] = b->sample[i]->mask[t];
        }
        s->sample[i].weight = weight[i];
        s->sample[i].kept = kept[i];
    }
    if (c->run(b, &s->num, weight, kept, s->correction_number, &why))
        return refused(&c->base, &why, err);
    return ML_OK;
}

/* The tokens that a loss treats in another way, by their covariance. */
static ml_status choose(ml_step_loss *s, ml_arena *a, const miles_batch *b, ml_err *err) {
    bool clips = s->loss == &ml_loss_clip_cov;
    uint8_t **chosen;

    if (!clips && s->loss != &ml_loss_kl_cov)
        return ML_OK;
    chosen = ML_NEW(a, uint8_t *, b->n + 1);
    for (int64_t i = 0; i < b->n; i++)
        s->sample[i].chosen = chosen[i] = ML_NEW(a, uint8_t, b->sample[i]->n + 1);
    return clips ? ml_covariance_clip(chosen, b, &s->num, a, err)
                 : ml_covariance_largest(chosen, b, &s->num, a, err);
}

static ml_status divide(ml_step_loss *s, ml_arena *a, const miles_reducer *reducer,
                        const miles_batch *b, ml_err *err) {
    miles_error why = { "" };

    s->sample_divisor = s->policy_divisor = ML_NEW(a, double, b->n + 1);
    s->denominator = ml_divisors(s->sample_divisor, b, s->num.calculate_per_token_loss);
    if (!reducer)
        return ML_OK;
    s->policy_divisor = ML_NEW(a, double, b->n + 1);
    if (reducer->run(b, &s->num, s->denominator, s->policy_divisor, &why))
        return refused(&reducer->base, &why, err);
    return ML_OK;
}

ml_status ml_step_loss_init(ml_step_loss *out, ml_arena *a, const ml_recipe *r,
                            const miles_loss *loss, const miles_batch *batch, ml_err *err) {
    /* Corrections apply to the policy only: the engine does not compute values. */
    const miles_correction *correction = loss == r->critic_loss ? NULL : r->correction;
    ml_status st = ML_OK;

    *out = (ml_step_loss){ .num = r->num, .loss = loss };
    out->num.has_rollout_logprobs =
        any_has(batch, offsetof(miles_sample, rollout_log_prob));
    out->num.has_opd_reverse_kl = any_has(batch, offsetof(miles_sample, opd_reverse_kl));
    out->num.use_correction = correction != NULL;
    copy_samples(out, a, batch);
    out->n_metric = out->n_loss_metric = loss->metrics(&out->num, out->metric);
    ML_BUG_IF(out->n_metric > MILES_METRIC_MAX);
    out->loss_number = ML_NEW(a, double, batch->n * out->n_metric + 1);
    out->policy = ML_NEW(a, double, batch->n + 1);
    out->other = ML_NEW(a, double, batch->n + 1);
    if (correction)
        st = correct(out, a, correction, batch, err);
    if (st == ML_OK)
        st = choose(out, a, batch, err);
    if (st == ML_OK)
        st = divide(out, a, r->reducer, batch, err);
    return st;
}

static void clear(double *x, int64_t n) {
    if (x)
        memset(x, 0, (size_t)n * sizeof *x);
}

void ml_step_loss_add(ml_step_loss *s, ml_arena *a,
                      int (*more)(const miles_sample *sample, const miles_algo *algo,
                                  miles_loss_out *out, miles_error *err)) {
    int64_t longest = 1;

    for (int64_t i = 0; i < s->n; i++)
        longest = s->sample[i].n > longest ? s->sample[i].n : longest;
    s->more = more;
    s->more_d_log_prob = ML_NEW(a, double, longest);
    s->more_d_entropy = ML_NEW(a, double, longest);
}

static int run_more(const ml_step_loss *s, const miles_sample *in, miles_loss_out *out,
                    miles_error *err) {
    miles_loss_out own = *out;

    own.policy = own.other = 0;
    own.d_log_prob = s->more_d_log_prob;
    own.d_entropy = s->more_d_entropy;
    own.metric = NULL;
    clear(own.d_log_prob, in->n);
    clear(own.d_entropy, in->n);
    if (s->more(in, &s->num, &own, err))
        return 1;
    out->policy += own.policy;
    out->other += own.other;
    for (int64_t t = 0; t < in->n; t++) {
        out->d_log_prob[t] += own.d_log_prob[t];
        out->d_entropy[t] += own.d_entropy[t];
    }
    return 0;
}

ml_status ml_step_loss_sample(ml_step_loss *s, int64_t i, ml_model_outputs now,
                              ml_derivatives d, ml_err *err) {
    miles_sample in = s->sample[i];
    miles_error why = { "" };
    miles_loss_out out = {
        .size = sizeof out,
        .policy_scale = 1.0 / (s->policy_divisor[i] * s->denominator),
        .other_scale = 1.0 / (s->sample_divisor[i] * s->denominator),
        .d_log_prob = d.log_prob,
        .d_entropy = d.entropy,
        .d_value = d.value,
        .metric = s->loss_number + i * s->n_loss_metric,
        .d_full_log_prob = d.full_log_prob,
    };

    in.log_prob = now.log_prob;
    in.entropy = now.entropy;
    in.value = now.value;
    in.full_log_prob = now.full_log_prob;
    clear(d.log_prob, in.n);
    clear(d.entropy, in.n);
    clear(d.value, in.n);
    clear(d.full_log_prob, in.n);
    if (s->loss->run(&in, &s->num, &out, &why) ||
        (s->more && run_more(s, &in, &out, &why))) {
        ml_status st = refused(&s->loss->base, &why, err);
        ml_err_prefix(err, "sample %lld", (long long)i);
        return st;
    }
    s->policy[i] = out.policy;
    s->other[i] = out.other;
    return ML_OK;
}

static const double *divisor_of(const ml_step_loss *s, miles_mean mean) {
    switch (mean) {
    case MILES_MEAN_POLICY: return s->policy_divisor;
    case MILES_MEAN_SAMPLE: return s->sample_divisor;
    case MILES_MEAN_NONE: break;
    }
    return NULL;
}

void ml_step_loss_totals(const ml_step_loss *s, double *loss, double *metric) {
    int32_t n_first = s->n_loss_metric, n_second = s->n_metric - n_first;

    *loss = ml_fold(s->policy, 1, s->n, s->policy_divisor, s->denominator) +
            ml_fold(s->other, 1, s->n, s->sample_divisor, s->denominator);
    for (int32_t k = 0; k < n_first; k++)
        metric[k] = ml_fold(s->loss_number + k, n_first, s->n,
                            divisor_of(s, s->metric[k].mean), s->denominator);
    for (int32_t k = 0; k < n_second; k++)
        metric[n_first + k] = ml_fold(s->correction_number + k, n_second, s->n,
                                      s->sample_divisor, s->denominator);
}
