#include "rl/learn/train_rows.h"

#include <string.h>

#include "backend/support.h"

double *ml_train_rows_widen(ml_arena *a, const float *v, int32_t n) {
    double *out = ML_NEW(a, double, n + 1);
    for (int32_t i = 0; i < n; i++)
        out[i] = (double)v[i];
    return out;
}

static const uint8_t *mask_of(ml_arena *a, const ml_sample *x) {
    uint8_t *mask = ML_NEW(a, uint8_t, x->n_response + 1);
    if (x->mask && !x->remove)
        memcpy(mask, x->mask, (size_t)x->n_response);
    else
        memset(mask, x->remove ? 0 : 1, (size_t)x->n_response);
    return mask;
}

static const int64_t *versions_of(ml_arena *a, const ml_sample *x) {
    int64_t *out = ML_NEW(a, int64_t, x->n_response + 1);
    for (int32_t i = 0; i < x->n_response; i++)
        out[i] = (int64_t)x->version[i];
    return out;
}

static miles_sample row_of(ml_arena *a, const ml_sample *x, const uint8_t *mask) {
    miles_sample row = { .size = sizeof row,
                         .n = x->n_response,
                         .group = x->group,
                         .rollout = x->rollout,
                         .reward = x->reward,
                         .mask = mask,
                         .kept = mask };

    if (x->logprob)
        row.rollout_log_prob = ml_train_rows_widen(a, x->logprob, x->n_response);
    if (x->teacher_logprob)
        row.teacher_log_prob = ml_train_rows_widen(a, x->teacher_logprob, x->n_response);
    if (x->opd_reverse_kl)
        row.opd_reverse_kl = ml_train_rows_widen(a, x->opd_reverse_kl, x->n_response);
    if (x->version)
        row.weight_version = versions_of(a, x);
    return row;
}

/* The support of each response token; the records were checked. */
static const ml_str *supports_of(ml_arena *a, const ml_sample *x) {
    ml_str *out = ML_NEW(a, ml_str, x->n_response + 1), left = x->supports;

    for (int32_t i = 0; i < x->n_response; i++)
        ml_support_take(&left, &out[i]);
    return out;
}

ml_train_rows ml_train_rows_of(ml_arena *a, const ml_sample *const *sample, int32_t n) {
    ml_train_rows out = { .train = ML_NEW(a, ml_train_sample, n + 1),
                          .row = ML_NEW(a, miles_sample, n + 1),
                          .view = ML_NEW(a, const miles_sample *, n + 1) };

    for (int32_t i = 0; i < n; i++) {
        const ml_sample *x = sample[i];
        const uint8_t *mask = mask_of(a, x);
        out.train[i] =
            (ml_train_sample){ x->token, x->n_token, x->n_response, mask, x->rollout };
        if (x->supports.len)
            out.train[i].support = supports_of(a, x);
        out.row[i] = row_of(a, x, mask);
        out.view[i] = &out.row[i];
    }
    return out;
}
