#include "train/mtp_runner.h"

#include "base/bug.h"
#include "train/mtp_context.h"

ml_status ml_mtp_runner_open(ml_mtp_runner *r, const ml_spec *s, const ml_weights *w,
                             const ml_draft_vocab *vocab, bool backward, bool logits,
                             ml_backend *be, ml_arena *a, ml_err *err) {
    *r = (ml_mtp_runner){ .spec = s,
                          .weights = w,
                          .vocab = vocab,
                          .be = be,
                          .backward = backward,
                          .logits = logits };
    ml_arena_init(&r->arena, "multi-token prediction");
    if (!backward)
        return ML_OK;
    return ml_grads_open(&r->grads, s, ml_mtp_parts(s, be->linear, a), true, be, a, err);
}

void ml_mtp_runner_release(ml_mtp_runner *r) {
    ml_plan_free(r->plan);
    r->plan = NULL;
    r->caps = (ml_batch_caps){ 0 };
    ml_micro_release(&r->micro);
    ml_arena_release(&r->arena);
}

void ml_mtp_runner_close(ml_mtp_runner *r) {
    if (!r->spec)
        return;
    ml_mtp_runner_release(r);
    ml_grads_close(&r->grads);
    *r = (ml_mtp_runner){ 0 };
}

/* --- rows ------------------------------------------------------------------- */

/* Whether row p is in the loss: token p + 3 of the sample is, or, of an EAGLE-3 head, token
 * p + 2. */
static bool counts(const ml_draft_vocab *v, const ml_train_sample *s, int32_t p) {
    int32_t at = p + (v ? 2 : 3) - (s->n_token - s->n_response);

    return at >= 0 && at < s->n_response && (!s->mask || s->mask[at]) &&
           (!v || v->draft[s->token[p + 2]] != ML_NONE);
}

int32_t ml_mtp_target(const ml_draft_vocab *vocab, const ml_train_sample *s, int32_t p) {
    if (!counts(vocab, s, p))
        return ML_TARGET_SKIP;
    return vocab ? vocab->draft[s->token[p + 2]] : s->token[p + 2];
}

int64_t ml_mtp_rows(const ml_draft_vocab *vocab, const ml_train_sample *s) {
    int64_t n = 0;

    for (int32_t p = 0; p + 1 < s->n_token; p++)
        n += counts(vocab, s, p);
    return n;
}

static ml_batch_caps need_of(const ml_mtp_runner *r, const ml_train_sample *s,
                             const ml_bin *bin) {
    ml_batch_caps c = { .n_token = 1, .n_seq = 1, .n_loss = 1, .n_page = 1 };

    for (int32_t i = 0; i < bin->n; i++) {
        const ml_train_sample *x = &s[bin->item[i]];
        c.n_token += x->n_token - 1;
        c.n_loss += r->logits ? x->n_token - 1 : (int32_t)ml_mtp_rows(r->vocab, x);
        c.n_page += ml_kv_pages_for(x->n_token);
        c.n_seq++;
    }
    return ml_micro_max(c, r->caps);
}

ml_plan_opts ml_mtp_runner_plan(const ml_spec *s, ml_batch_caps caps, bool backward,
                                bool logits) {
    return (ml_plan_opts){ .caps = caps,
                           .backward = backward,
                           .logits = logits,
                           .first = ML_MTP_FIRST,
                           .end = s->n_node };
}

static bool same_caps(ml_batch_caps a, ml_batch_caps b) {
    return a.n_token == b.n_token && a.n_seq == b.n_seq && a.n_loss == b.n_loss &&
           a.n_page == b.n_page && a.n_share == b.n_share;
}

/* Arrays of rows; pieces of samples are a micro-batch. */
static void take_arrays(ml_mtp_runner *r) {
    if (r->context) {
        ml_micro_init(&r->micro, r->caps, &r->context->opts, false);
        return;
    }
    ml_batch_init(&r->batch, &r->arena, r->caps);
    r->target = ML_NEW(&r->arena, int32_t, r->caps.n_token);
    r->logprob = ML_NEW(&r->arena, float, r->caps.n_loss);
    r->dlogprob = ML_NEW(&r->arena, float, r->caps.n_loss);
}

ml_status ml_mtp_runner_grow(ml_mtp_runner *r, ml_batch_caps caps, ml_err *err) {
    const ml_spec *s = r->context ? &r->context->spec : r->spec;
    ml_plan_opts opts = ml_mtp_runner_plan(s, caps, r->backward, r->logits);
    ml_status st;

    if (r->plan && same_caps(caps, r->caps))
        return ML_OK;
    ml_mtp_runner_release(r);
    r->caps = caps;
    if (r->context)
        opts.group[ML_GROUP_CP] = r->context->group;
    st = ml_plan_new(&r->plan, s, r->be, opts, err);
    if (st == ML_OK)
        st = ml_plan_alloc(r->plan, err);
    take_arrays(r);
    return st;
}

static int32_t target_of(const ml_mtp_runner *r, const ml_train_sample *s, int32_t p) {
    int32_t id = ml_mtp_target(r->vocab, s, p);

    return id == ML_TARGET_SKIP && r->logits ? ML_TARGET_NONE : id;
}

static void add_sample(ml_mtp_runner *r, const ml_train_sample *s, ml_trunk_rows trunk,
                       int32_t seq) {
    int32_t n = s->n_token - 1, at = r->batch.rows.n_token;

    if (n < 1)
        return;
    for (int32_t p = 0; p < n; p++)
        r->target[p] = target_of(r, s, p);
    ml_batch_add(&r->batch, s->token + 1, r->target, n, 0, NULL);
    ml_mtp_take_trunk(r->plan, r->spec, &r->batch.rows, at, trunk,
                      trunk.rows->seq_start[seq], n, r->be);
}

/* --- the module --------------------------------------------------------------- */

/* The next n rows of the loss from row `at` on: the sum of those that count, in their order;
 * `by` times their derivatives. */
static double sum_of(ml_mtp_runner *r, int32_t at, int32_t n, float by) {
    double sum = 0;

    for (int32_t k = at; k < at + n; k++) {
        bool target = r->batch.rows.loss_id[k] >= 0;
        sum -= target ? (double)r->logprob[k] : 0.0;
        r->dlogprob[k] = target ? -by : 0.0f;
    }
    return sum;
}

static int32_t loss_rows(const ml_mtp_runner *r, const ml_train_sample *s) {
    return r->logits ? s->n_token - 1 : (int32_t)ml_mtp_rows(r->vocab, s);
}

static void take_sums(ml_mtp_runner *r, const ml_train_sample *s, const ml_bin *bin,
                      float by, double *sum) {
    int32_t at = 0;

    for (int32_t i = 0; i < bin->n; i++) {
        int32_t n = loss_rows(r, &s[bin->item[i]]);
        sum[i] = sum_of(r, at, n, by);
        at += n;
    }
    ML_BUG_IF(at != r->batch.rows.n_loss);
}

ml_status ml_mtp_runner_run(ml_mtp_runner *r, ml_trunk_rows trunk, const ml_train_sample *s,
                            const ml_bin *bin, float by, double *sum, ml_err *err) {
    ml_run run = { .weights = r->weights, .rows = &r->batch.rows };
    ml_status st;

    if (r->context)
        return ml_mtp_context_run(r, trunk, s, bin, by, sum, err);
    st = ml_mtp_runner_grow(r, need_of(r, s, bin), err);
    for (int32_t i = 0; i < bin->n; i++)
        sum[i] = 0;
    if (st != ML_OK)
        return st;
    ML_BUG_IF(trunk.rows->n_seq != bin->n);
    ml_batch_clear(&r->batch);
    r->batch.rows.temperature = 1;
    for (int32_t i = 0; i < bin->n; i++)
        add_sample(r, &s[bin->item[i]], trunk, i);
    if (!r->batch.rows.n_token || !r->batch.rows.n_loss)
        return ML_OK;
    ml_plan_forward(r->plan, &run);
    ml_plan_read(r->plan, &r->batch.rows, r->logprob, NULL, NULL);
    st = r->be->dev->sync(r->be->stream, err);
    if (st != ML_OK)
        return st;
    take_sums(r, s, bin, by, sum);
    if (!r->backward || by == 0.0f)
        return ML_OK;
    ml_grads_bind(&r->grads, &run);
    ml_plan_backward(r->plan, &run, r->dlogprob, NULL);
    return r->be->dev->sync(r->be->stream, err);
}
