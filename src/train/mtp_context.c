#include "train/mtp_context.h"

#include "base/bug.h"
#include "model/spec_context.h"

ml_status ml_mtp_context_open(ml_mtp_context *out, const ml_spec *module,
                              const ml_context_opts *opts, ml_comm *group, ml_backend *be,
                              ml_err *err) {
    *out = (ml_mtp_context){ .opts = *opts, .group = group };
    ml_ranks_open(&out->ranks, group, be);
    return ml_spec_context(&out->spec, module, opts->n_rank, opts->rank, NULL, err);
}

void ml_mtp_context_close(ml_mtp_context *x) {
    ml_ranks_close(&x->ranks);
    ml_spec_close(&x->spec);
    *x = (ml_mtp_context){ 0 };
}

/* --- rows ------------------------------------------------------------------- */

/* The sample that the module sees: each row has the token after it, and scores the one after
 * that. */
static ml_train_sample moved(const ml_mtp_runner *r, const ml_train_sample *s,
                             ml_arena *a) {
    int32_t n = s->n_token;
    int32_t *token = ML_NEW(a, int32_t, n), *target = ML_NEW(a, int32_t, n);
    uint8_t *mask = ML_NEW(a, uint8_t, n);

    for (int32_t p = 0; p < n; p++) {
        int32_t score = p + 1 < n ? ml_mtp_target(r->vocab, s, p) : ML_TARGET_SKIP;
        token[p] = s->token[p + 1 < n ? p + 1 : p];
        mask[p] = score != ML_TARGET_SKIP;
        target[p] = mask[p] ? score : 0;
    }
    return (ml_train_sample){
        .token = token, .n_token = n, .n_response = n, .mask = mask, .target = target
    };
}

static ml_bin move_all(const ml_mtp_runner *r, ml_train_sample *to,
                       const ml_train_sample *s, const ml_bin *bin, ml_arena *a) {
    ml_bin own = { .item = ML_NEW(a, int32_t, bin->n + 1), .n = bin->n };

    for (int32_t i = 0; i < bin->n; i++) {
        own.item[i] = i;
        to[i] = moved(r, &s[bin->item[i]], a);
    }
    return own;
}

static int64_t rows_of(const ml_mtp_runner *r, const ml_train_sample *s,
                       const ml_bin *bin) {
    int64_t n = 0;

    for (int32_t i = 0; i < bin->n; i++)
        n += ml_mtp_rows(r->vocab, &s[bin->item[i]]);
    return n;
}

/* --- the module --------------------------------------------------------------- */

static void take_sums(ml_micro *m, float by, double *sum) {
    for (int32_t i = 0; i < m->n_sample; i++)
        for (int32_t p = 0; p < m->io[i].n_response; p++)
            if (m->io[i].mask[p]) {
                sum[i] -= (double)m->io[i].logprob[p];
                m->io[i].dlogprob[p] = -by;
            }
}

static ml_status run_rows(ml_mtp_runner *r, ml_trunk_rows trunk, float by, double *sum,
                          ml_err *err) {
    ml_micro *m = &r->micro;
    ml_run run = { .weights = r->weights, .rows = &m->batch.rows };
    ml_status st;

    ML_BUG_IF(m->batch.rows.n_token != trunk.rows->n_token);
    ml_mtp_take_trunk(r->plan, r->spec, &m->batch.rows, 0, trunk, 0, trunk.rows->n_token,
                      r->be);
    ml_plan_forward(r->plan, &run);
    ml_plan_read(r->plan, &m->batch.rows, m->own_logprob, NULL, NULL);
    st = r->be->dev->sync(r->be->stream, err);
    if (st == ML_OK)
        st = ml_plan_check(r->plan, err);
    if (st == ML_OK)
        st = ml_micro_exchange(m, &r->context->ranks, err);
    if (st != ML_OK)
        return st;
    ml_micro_spread(m);
    take_sums(m, by, sum);
    if (!r->backward || !ml_micro_collect(m))
        return ML_OK;
    ml_grads_bind(&r->grads, &run);
    ml_plan_backward(r->plan, &run, m->own_dlogprob, NULL);
    return r->be->dev->sync(r->be->stream, err);
}

ml_status ml_mtp_context_run(ml_mtp_runner *r, ml_trunk_rows trunk,
                             const ml_train_sample *s, const ml_bin *bin, float by,
                             double *sum, ml_err *err) {
    ml_train_sample *x;
    ml_status st;
    ml_arena a;
    ml_bin own;

    for (int32_t i = 0; i < bin->n; i++)
        sum[i] = 0;
    if (!rows_of(r, s, bin))
        return ML_OK;
    ml_arena_init(&a, "pieces of samples");
    x = ML_NEW(&a, ml_train_sample, bin->n + 1);
    own = move_all(r, x, s, bin, &a);
    st = ml_mtp_runner_grow(
        r, ml_micro_max(r->caps, ml_micro_need(x, &own, &r->context->opts)), err);
    if (st == ML_OK) {
        ml_micro_fill(&r->micro, x, &own, false, 1.0f);
        st = run_rows(r, trunk, by, sum, err);
    }
    ml_arena_release(&a);
    return st;
}
