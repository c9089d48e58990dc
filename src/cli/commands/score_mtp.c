#include "cli/commands/score_mtp.h"

#include <stdio.h>
#include <string.h>

/* --- masks -------------------------------------------------------------------- */

/* A vector of n int32 numbers of the file; NULL: there is none. */
static ml_status numbers(const ml_st_file *f, const char *name, int64_t n,
                         const int32_t **out, ml_err *err) {
    const ml_st_tensor *t = ml_st_find(f, ml_str_of(name));

    *out = t ? t->data : NULL;
    if (t && (t->dtype != ML_ST_I32 || t->n_dim != 1 || t->shape[0] != n))
        return ml_fail(err, ML_EFORMAT, "%s: %s must be a vector of %lld int32 numbers",
                       f->path, name, (long long)n);
    return ML_OK;
}

static ml_status read_mask(ml_train_sample *s, const ml_st_file *f, int32_t i, ml_arena *a,
                           ml_err *err) {
    const int32_t *mask;
    uint8_t *own;
    char name[32];
    ml_status st;

    snprintf(name, sizeof name, "loss_mask.%d", i);
    st = numbers(f, name, s->n_response, &mask, err);
    if (st != ML_OK || !mask)
        return st;
    s->mask = own = ML_NEW(a, uint8_t, s->n_response + 1);
    for (int32_t k = 0; k < s->n_response; k++)
        own[k] = mask[k] != 0;
    return ML_OK;
}

static ml_status read_samples(ml_score_mtp *m, const ml_score_mtp_in *in,
                              const ml_st_file *f, ml_arena *a, ml_err *err) {
    const int32_t *prompt;
    ml_status st = numbers(f, "prompt_len", in->seq->n, &prompt, err);

    m->sample = ML_NEW(a, ml_train_sample, in->seq->n);
    for (int32_t i = 0; i < in->seq->n && st == ML_OK; i++) {
        ml_train_sample *s = &m->sample[i];
        int32_t n = in->seq->len[i], p = prompt ? prompt[i] : 1;
        if (p < 1 || p > n)
            return ml_fail(err, ML_EFORMAT,
                           "%s: prompt_len of sequence %d is %d; expected 1 to %d",
                           in->input, i, p, n);
        *s =
            (ml_train_sample){ .token = in->seq->id[i], .n_token = n, .n_response = n - p };
        st = read_mask(s, f, i, a, err);
        m->n_loss += ml_mtp_rows(NULL, s);
    }
    return st;
}

/* --- open ----------------------------------------------------------------------- */

static void list_named(ml_score_mtp *m, const ml_checkpoint *c, ml_arena *a) {
    int32_t n;
    const ml_named *all = ml_named_list(&m->spec, c, a, &n);
    ml_named *list = ML_NEW(a, ml_named, n);

    for (int32_t i = 0; i < n; i++)
        if (!m->spec.param[all[i].param].frozen)
            list[m->n_named++] = all[i];
    m->named = list;
}

ml_status ml_score_mtp_open(ml_score_mtp *m, const ml_score_mtp_in *in, ml_arena *a,
                            ml_err *err) {
    ml_st_file *f;
    ml_status st = ml_mtp_open(&m->spec, in->dir, err);

    if (st == ML_OK)
        st = ml_weights_check(&m->spec, in->checkpoint, err);
    if (st != ML_OK)
        return st;
    m->on = true;
    m->factor = in->factor;
    st = ml_st_open(&f, in->input, err);
    if (st != ML_OK)
        return st;
    st = read_samples(m, in, f, a, err);
    ml_st_close(f);
    if (st == ML_OK && in->grads)
        list_named(m, in->checkpoint, a);
    return st;
}

ml_status ml_score_mtp_load(ml_score_mtp *m, const ml_score_mtp_in *in,
                            ml_weight_dtype dtype, const ml_spec *trunk,
                            const ml_weights *of, ml_backend *be, ml_arena *a,
                            ml_err *err) {
    ml_status st;

    ml_spec_keep_kv(&m->spec, ml_weights_kv_dtype(trunk, in->checkpoint, dtype));
    st = ml_mtp_load(&m->weights, &m->spec, in->checkpoint, dtype, trunk, of, be, a, err);
    if (st == ML_OK)
        st = ml_mtp_runner_open(&m->runner, &m->spec, &m->weights, NULL, in->grads, true,
                                be, a, err);
    if (st == ML_OK && in->grads)
        ml_grads_zero(&m->runner.grads);
    return st;
}

void ml_score_mtp_close(ml_score_mtp *m) {
    ml_mtp_runner_close(&m->runner);
    ml_weights_close(&m->weights);
    ml_spec_close(&m->spec);
}

/* --- sequences ------------------------------------------------------------------ */

ml_status ml_score_mtp_run(ml_score_mtp *m, ml_trunk_rows trunk, int32_t first, int32_t end,
                           ml_err *err) {
    float by = m->n_loss ? (float)(m->factor / (double)m->n_loss) : 0.0f;
    ml_bin bin = { .n = end - first };
    double *sum;
    ml_arena a;
    ml_status st;

    ml_arena_init(&a, "sequences");
    bin.item = ML_NEW(&a, int32_t, bin.n);
    for (int32_t i = 0; i < bin.n; i++)
        bin.item[i] = first + i;
    sum = ML_NEW(&a, double, bin.n);
    st = ml_mtp_runner_run(&m->runner, trunk, m->sample, &bin, by, sum, err);
    for (int32_t i = 0; i < bin.n; i++)
        m->loss += sum[i];
    ml_arena_release(&a);
    return st;
}

float ml_score_mtp_loss(const ml_score_mtp *m) {
    return m->n_loss ? (float)(m->loss / (double)m->n_loss) : 0.0f;
}
