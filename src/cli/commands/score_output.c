#include "cli/commands/score_output.h"

#include <stdio.h>
#include <stdlib.h>

#include "io/safetensors.h"

#define PIECE_BYTES ((size_t)1 << 20) /* gradients are written in pieces of this size */

/* The output tensors of a sequence, in this order: log-probs, entropies, logits, logits of
 * the multi-token prediction module. */
static int32_t per_sequence(const ml_score_output *o) {
    return 1 + o->config->score.entropy + o->config->score.logits + (o->mtp != NULL);
}

/* --- opening ---------------------------------------------------------------- */

/* The tensors of the checkpoint that get a gradient. */
static void list_named(ml_score_output *o, const ml_checkpoint *checkpoint, ml_arena *a) {
    int32_t n;
    const ml_named *all = ml_named_list(o->spec, checkpoint, a, &n);
    ml_named *list = ML_NEW(a, ml_named, n);

    for (int32_t i = 0; i < n && !o->adapters->n; i++)
        if (!o->spec->param[all[i].param].frozen)
            list[o->n_named++] = all[i];
    o->named = list;
}

static void declare(ml_arena *a, ml_st_tensor *t, const char *name, int32_t n_dim,
                    int64_t rows, int64_t cols) {
    *t = (ml_st_tensor){ .name = ml_str_of(ml_arena_printf(a, "%s", name)),
                         .dtype = ML_ST_F32,
                         .n_dim = n_dim,
                         .shape = { rows, cols } };
}

static int32_t declare_sequence(const ml_score_output *o, ml_arena *a, ml_st_tensor *t,
                                int32_t i) {
    const ml_config *c = o->config;
    int32_t at = 0;
    char name[40];

    snprintf(name, sizeof name, "logprobs.%d", i);
    declare(a, &t[at++], name, 1, o->seq->len[i] - 1, 0);
    snprintf(name, sizeof name, "entropy.%d", i);
    if (c->score.entropy)
        declare(a, &t[at++], name, 1, o->seq->len[i] - 1, 0);
    snprintf(name, sizeof name, "logits.%d", i);
    if (c->score.logits)
        declare(a, &t[at++], name, 2, o->seq->len[i], o->spec->n_vocab);
    snprintf(name, sizeof name, "mtp_logits.%d", i);
    if (o->mtp)
        declare(a, &t[at++], name, 2, o->seq->len[i] - 1, o->spec->n_vocab);
    return at;
}

static int32_t declare_grads(ml_arena *a, ml_st_tensor *t, const ml_named *named,
                             int32_t n) {
    for (int32_t i = 0; i < n; i++) {
        declare(a, &t[i], ml_arena_printf(a, "grad.%s", named[i].name), named[i].n_dim,
                named[i].shape[0], named[i].shape[1]);
        t[i].shape[2] = named[i].shape[2];
    }
    return n;
}

static ml_status create(ml_score_output *o, ml_arena *a, ml_err *err) {
    const ml_score_adapters *x = o->adapters;
    int32_t n = o->seq->n * per_sequence(o) + o->n_named, at = 0;
    ml_st_tensor *t;

    for (int32_t i = 0; i < x->n; i++)
        n += x->n_named[i];
    n += o->mtp ? o->mtp->n_named : 0;
    t = ML_NEW(a, ml_st_tensor, n + 2);
    for (int32_t i = 0; i < o->seq->n; i++)
        at += declare_sequence(o, a, t + at, i);
    if (o->config->score.grads)
        declare(a, &t[at++], "loss", 1, 1, 0);
    at += declare_grads(a, t + at, o->named, o->n_named);
    if (o->config->score.grads && o->mtp) {
        declare(a, &t[at++], "mtp_loss", 1, 1, 0);
        at += declare_grads(a, t + at, o->mtp->named, o->mtp->n_named);
    }
    for (int32_t i = 0; i < x->n; i++)
        for (int32_t k = 0; k < x->n_named[i]; k++) {
            const ml_named *d = &x->named[i][k];
            declare(a, &t[at], ml_score_adapters_grad(x, a, i, k), d->n_dim, d->shape[0],
                    d->shape[1]);
            t[at++].shape[2] = d->shape[2];
        }
    return ml_st_create(&o->file, o->config->score.output,
                        &(ml_st_layout){ .n = at, .tensor = t }, err);
}

ml_status ml_score_output_open(ml_score_output *out, const ml_config *c, const ml_spec *s,
                               const ml_sequences *seq, const ml_checkpoint *checkpoint,
                               const ml_score_adapters *x, const ml_score_mtp *mtp,
                               bool writes, ml_arena *a, ml_err *err) {
    *out =
        (ml_score_output){ .config = c, .spec = s, .seq = seq, .adapters = x, .mtp = mtp };
    if (c->score.grads)
        list_named(out, checkpoint, a);
    return writes ? create(out, a, err) : ML_OK;
}

/* --- writing ---------------------------------------------------------------- */

static ml_status put(ml_score_output *o, int32_t tensor, int64_t at, int64_t n,
                     const float *v, ml_err *err) {
    return ml_st_write(o->file, tensor, (size_t)at * sizeof *v, v, (size_t)n * sizeof *v,
                       err);
}

ml_status ml_score_output_rows(ml_score_output *o, int32_t i, int32_t at, int32_t n,
                               ml_score_rows x, ml_err *err) {
    int32_t tensor = i * per_sequence(o);
    int32_t scored = at + n < o->seq->len[i] ? n : o->seq->len[i] - 1 - at;
    int64_t vocab = o->spec->n_vocab;
    ml_status st = put(o, tensor++, at, scored, x.logprob, err);

    for (int32_t k = 0; k < scored; k++)
        o->nll -= (double)x.logprob[k];
    if (st == ML_OK && o->config->score.entropy)
        st = put(o, tensor++, at, scored, x.entropy, err);
    if (st == ML_OK && o->config->score.logits)
        st = put(o, tensor, at * vocab, n * vocab, x.logits, err);
    return st;
}

ml_status ml_score_output_loss(ml_score_output *o, ml_err *err) {
    float loss = (float)(o->nll / (double)o->seq->n_next);
    return put(o, o->seq->n * per_sequence(o), 0, 1, &loss, err);
}

static ml_status put_named(ml_score_output *o, int32_t tensor, const ml_spec *s,
                           const ml_named *named, const ml_weights *grads, ml_err *err) {
    ml_slices all = ml_named_slices(named);
    int64_t step = (int64_t)(PIECE_BYTES / sizeof(float)) / all.n_value;
    ml_status st = ML_OK;
    float *piece;

    step = step < 1 ? 1 : step;
    piece = malloc((size_t)(step * all.n_value) * sizeof *piece);
    if (!piece)
        return ml_fail(err, ML_ENOMEM, "out of memory for %lld gradients",
                       (long long)(step * all.n_value));
    for (int64_t r = 0; r < all.n_slice && st == ML_OK; r += step) {
        int64_t n = all.n_slice - r < step ? all.n_slice - r : step;
        ml_named_read(grads, s, named, r, n, ML_F32, piece);
        st = put(o, tensor, r * all.n_value, n * all.n_value, piece, err);
    }
    free(piece);
    return st;
}

ml_status ml_score_output_grad(ml_score_output *o, int32_t k, const ml_weights *grads,
                               ml_err *err) {
    const ml_score_adapters *x = o->adapters;
    int32_t tensor = o->seq->n * per_sequence(o) + 1 + k;

    return x->n ? put_named(o, tensor, &x->lora[0].spec, &x->named[0][k], grads, err)
                : put_named(o, tensor, o->spec, &o->named[k], grads, err);
}

ml_status ml_score_output_mtp_rows(ml_score_output *o, int32_t i, const float *logits,
                                   ml_err *err) {
    return put(o, (i + 1) * per_sequence(o) - 1, 0,
               (int64_t)(o->seq->len[i] - 1) * o->spec->n_vocab, logits, err);
}

ml_status ml_score_output_mtp(ml_score_output *o, ml_err *err) {
    const ml_score_mtp *m = o->mtp;
    int32_t tensor = o->seq->n * per_sequence(o) + 1 + o->n_named;
    float loss = ml_score_mtp_loss(m);
    ml_status st = put(o, tensor++, 0, 1, &loss, err);

    for (int32_t k = 0; k < m->n_named && st == ML_OK; k++)
        st = put_named(o, tensor++, &m->spec, &m->named[k], &m->runner.grads.sum, err);
    return st;
}

ml_status ml_score_output_adapters(ml_score_output *o, ml_err *err) {
    const ml_score_adapters *x = o->adapters;
    int32_t tensor = o->seq->n * per_sequence(o) + 1;
    ml_status st = ML_OK;

    for (int32_t i = 0; i < x->n && st == ML_OK; i++) {
        ml_lora_join_grads(&x->lora[i]);
        for (int32_t k = 0; k < x->n_named[i] && st == ML_OK; k++)
            st = put_named(o, tensor++, &x->lora[i].spec, &x->named[i][k],
                           &x->lora[i].grads, err);
    }
    return st;
}

ml_status ml_score_output_commit(ml_score_output *o, ml_err *err) {
    ml_status st = o->file ? ml_st_commit(o->file, err) : ML_OK;

    o->file = NULL;
    return st;
}

void ml_score_output_abort(ml_score_output *o) {
    ml_st_abort(o->file);
    o->file = NULL;
}
