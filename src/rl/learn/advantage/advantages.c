#include "rl/learn/advantage/advantages.h"

#include "rl/learn/advantage/whiten.h"
#include "rl/learn/loss/kl.h"

double **ml_columns_new(ml_arena *a, const miles_batch *b) {
    double **column = ML_NEW(a, double *, b->n + 1);

    for (int64_t i = 0; i < b->n; i++)
        column[i] = ML_NEW(a, double, b->sample[i]->n + 1);
    return column;
}

/* The log-probs, over the whole vocabulary, of the policy that generated the rollout; NULL: not
 * known. */
static const double *student(const ml_recipe *r, const miles_sample *s) {
    if (s->old_full_log_prob)
        return s->old_full_log_prob;
    return r->num.use_rollout_logprobs ? s->rollout_log_prob : s->old_log_prob;
}

static ml_status lacks(int64_t i, const char *what, const char *why, ml_err *err) {
    return ml_fail(err, ML_EFORMAT, "sample %lld has no %s, which %s needs", (long long)i,
                   what, why);
}

/* Copies the samples and fills in kl. */
static ml_status with_kl(miles_batch *out, ml_arena *a, const ml_recipe *r,
                         const miles_batch *b, ml_err *err) {
    miles_sample *copy = ML_NEW(a, miles_sample, b->n + 1);
    const miles_sample **view = ML_NEW(a, const miles_sample *, b->n + 1);
    double **kl = ml_columns_new(a, b);

    for (int64_t i = 0; i < b->n; i++) {
        const miles_sample *s = b->sample[i];
        const double *policy = student(r, s);
        copy[i] = *s;
        copy[i].kl = kl[i];
        view[i] = &copy[i];
        if (s->n && !policy)
            return lacks(i, "log-probs of the old policy", "--kl-coef", err);
        if (s->n && !s->ref_log_prob)
            return lacks(i, "ref_log_probs", "--kl-coef", err);
        for (int64_t t = 0; t < s->n; t++)
            kl[i][t] = ml_kl_estimate((miles_kl)r->num.kl_loss_type, policy[t],
                                      s->ref_log_prob[t], NULL)
                           .value;
    }
    *out = (miles_batch){ sizeof *out, b->n, view };
    return ML_OK;
}

/* The student's log-prob minus the teacher's, or the values that the rollout supplied. */
static ml_status reverse_kl(double *out, const ml_recipe *r, const miles_sample *s,
                            int64_t i, ml_err *err) {
    const double *policy = student(r, s);

    if (!s->opd_reverse_kl && s->n && !policy)
        return lacks(i, "log-probs of the old policy", "--use-opd", err);
    if (!s->opd_reverse_kl && s->n && !s->teacher_log_prob)
        return lacks(i, "teacher_log_probs", "--use-opd", err);
    for (int64_t t = 0; t < s->n; t++)
        out[t] =
            s->opd_reverse_kl ? s->opd_reverse_kl[t] : policy[t] - s->teacher_log_prob[t];
    return ML_OK;
}

static ml_status distil(ml_advantages *out, ml_arena *a, const ml_recipe *r,
                        const miles_batch *b, ml_err *err) {
    ml_status st = ML_OK;

    out->opd_reverse_kl = ml_columns_new(a, b);
    for (int64_t i = 0; i < b->n && st == ML_OK; i++) {
        double *kl = out->opd_reverse_kl[i];
        st = reverse_kl(kl, r, b->sample[i], i, err);
        for (int64_t t = 0; t < b->sample[i]->n; t++) {
            double by = r->opd_kl_coef * kl[t];
            out->advantage[i][t] -= by;
            if (r->advantage->needs & MILES_RETURNS_ARE_ADVANTAGES)
                out->returns[i][t] -= by;
        }
    }
    return st;
}

static ml_status whiten(ml_advantages *out, ml_arena *a, const miles_batch *b,
                        ml_err *err) {
    const uint8_t **mask = ML_NEW(a, const uint8_t *, b->n + 1);
    int64_t *n = ML_NEW(a, int64_t, b->n + 1), total = 0;

    for (int64_t i = 0; i < b->n; i++) {
        mask[i] = b->sample[i]->mask;
        n[i] = b->sample[i]->n;
        total += n[i];
    }
    return total ? ml_whiten(out->advantage, mask, n, b->n, true, err) : ML_OK;
}

ml_status ml_advantages_compute(ml_advantages *out, ml_arena *a, const ml_recipe *r,
                                const miles_batch *batch, ml_err *err) {
    miles_batch in = *batch;
    miles_error why = { "" };
    ml_status st = ML_OK;

    *out = (ml_advantages){ ml_columns_new(a, batch), ml_columns_new(a, batch), NULL };
    if (r->num.kl_coef != 0.0 && (r->advantage->needs & MILES_USES_KL))
        st = with_kl(&in, a, r, batch, err);
    if (st == ML_OK && r->advantage->run(&in, &r->num, out->advantage, out->returns, &why))
        st = ml_fail(err, ML_EFORMAT, "%.480s", why.text);
    if (st == ML_OK && r->use_opd)
        st = distil(out, a, r, &in, err);
    if (st == ML_OK && r->normalize_advantages)
        st = whiten(out, a, &in, err);
    return st;
}
