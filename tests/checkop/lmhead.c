/* lmhead.c - the LM head: log-probabilities and entropies of some rows of a batch. */
#include "tests/checkop/checkop.h"

#include "backend/cpu/lmhead.h"

#include <math.h>
#include <string.h>

static const struct variant {
    int32_t n, n_loss, vocab, width;
    ml_dtype dtype;
    float temperature, softcap, amp; /* amp: amplitude of x */
    bool logits;
} variants[] = {
    { 3, 0, 17, 8, ML_F32, 1.0f, 0.0f, 2.0f, false },
    { 1, 1, 1, 1, ML_F32, 1.0f, 0.0f, 2.0f, true },
    { 9, 4, 17, 12, ML_F32, 1.0f, 0.0f, 3.0f, true },
    { 7, 7, 1000, 16, ML_BF16, 0.7f, 0.0f, 2.0f, false },
    { 20, 18, 1024, 20, ML_F32, 1.3f, 6.0f, 3.0f, true },
    { 21, 19, 2500, 17, ML_F32, 0.7f, 0.0f, 2.0f, true },
    { 5, 3, 17000, 6, ML_BF16, 1.0f, 30.0f, 4.0f, true },
    { 290, 270, 40, 5, ML_F32, 1.0f, 0.0f, 3.0f, false },
};

/* Ascending rows with gaps; every fifth is scored for its entropy only. */
static void build_rows(ck_case *c, const struct variant *v) {
    int32_t *row = ML_NEW(c->arena, int32_t, v->n_loss + 1);
    int32_t *id = ck_ints(c, v->n_loss, v->vocab);

    for (int32_t i = 0; i < v->n_loss; i++) {
        int32_t skip = v->n - v->n_loss;
        row[i] = i + (i * skip + skip) / (v->n_loss + 1);
        if (i % 5 == 2)
            id[i] = -1;
    }
    c->rows.n_token = v->n;
    c->rows.n_loss = v->n_loss;
    c->rows.loss_row = row;
    c->rows.loss_id = id;
    c->rows.temperature = v->temperature;
}

static void build(ck_case *c, int i) {
    const struct variant *v = &variants[i];

    ck_name(c, "%s-n%d.%d-v%d-k%d-t%g-cap%g", ml_dtype_name(v->dtype), v->n, v->n_loss,
            v->vocab, v->width, (double)v->temperature, (double)v->softcap);
    build_rows(c, v);
    c->attr.logit_softcap = v->softcap;
    c->in[0] = ck_mat(v->n, v->width);
    ck_fill(c, &c->in[0], v->amp);
    c->w[0] = ck_mat(v->vocab, v->width);
    c->w[0].dtype = v->dtype;
    c->w[0].layout = ML_PANELS;
    ck_fill(c, &c->w[0], 1.0f);
    c->out[0] = ck_vec(v->n_loss);
    c->out[1] = ck_vec(v->n_loss);
    c->out[2] = ck_mat(v->n_loss, 2);
    if (v->logits)
        c->out[3] = ck_mat(v->n_loss, v->vocab);
}

/* Logits of loss row i, softcapped. */
static void logits_of(const ck_case *c, const ck_ref *r, int64_t i, double *z) {
    int64_t vocab = c->w[0].shape[0], width = c->w[0].shape[1];
    const double *x = r->in[0] + c->rows.loss_row[i] * width;
    double cap = (double)c->attr.logit_softcap;

    for (int64_t j = 0; j < vocab; j++) {
        z[j] = 0.0;
        for (int64_t k = 0; k < width; k++)
            z[j] += x[k] * r->w[0][j * width + k];
        if (cap != 0.0)
            z[j] = cap * tanh(z[j] / cap);
    }
}

static void forward(const ck_case *c, ck_ref *r) {
    int64_t vocab = c->w[0].shape[0];
    double *z = ML_NEW(c->arena, double, vocab), t = (double)c->rows.temperature;

    for (int64_t i = 0; i < c->rows.n_loss; i++) {
        int32_t id = c->rows.loss_id[i];
        double m = -(double)INFINITY, l = 0.0, u = 0.0;
        logits_of(c, r, i, z);
        for (int64_t j = 0; j < vocab; j++)
            m = fmax(m, z[j] / t);
        for (int64_t j = 0; j < vocab; j++) {
            double p = exp(z[j] / t - m);
            l += p;
            u += p * (z[j] / t - m);
        }
        r->out[0][i] = id < 0 ? 0.0 : z[id] / t - m - log(l);
        r->out[1][i] = log(l) - u / l;
        r->out[2][2 * i] = m;
        r->out[2][2 * i + 1] = l;
        if (r->out[3])
            memcpy(r->out[3] + i * vocab, z, (size_t)vocab * sizeof *z);
    }
}

static float at(const ml_tensor *t, int64_t i) {
    return ((const float *)t->data)[i];
}

/* With stored logits the bits are the same. */
static void check_stored(ck_env *e, const ck_case *c, const ck_result *all) {
    int64_t vocab = c->w[0].shape[0];
    const ml_cpu_kern *kern = ml_cpu(e->backend[e->n_backend - 1].stream)->kern;

    for (int64_t i = 0; c->out[3].n_dim && i < c->rows.n_loss; i++) {
        const float *z = (const float *)all->out[3].data + i * vocab;
        ml_logprob p =
            ml_logprob_of(kern, z, vocab, c->rows.loss_id[i], c->rows.temperature);
        if (p.logprob != at(&all->out[0], i) || p.entropy != at(&all->out[1], i) ||
            p.m != at(&all->out[2], 2 * i) || p.l != at(&all->out[2], 2 * i + 1))
            ck_fail(e, "row %lld differs when computed from its logits", (long long)i);
    }
}

static ml_tensor row_of(const ml_tensor *t, int64_t i) {
    ml_tensor r = *t;
    r.shape[0] = 1;
    if (t->data)
        r.data = (char *)t->data + ml_tensor_bytes(&r) * (size_t)i;
    return r;
}

/* Each loss row alone, as in decode. */
static void check_alone(ck_env *e, const ck_case *c, const ck_result *all) {
    ck_mode m = { .backend = e->n_backend - 1, .in_place = CK_ALL, .only = CK_ALL };

    m.backward = true;
    for (int64_t i = 0; i < c->rows.n_loss && i < 20; i++) {
        int32_t zero = 0, row = c->rows.loss_row[i];
        ck_case one = *c;
        ck_result r;
        ml_tensor want = row_of(&all->din[0], row);
        ck_name(&one, "%.60s (row %d alone)", c->name, row);
        one.rows.n_token = one.rows.n_loss = 1;
        one.rows.loss_row = &zero;
        one.rows.loss_id = c->rows.loss_id + i;
        one.in[0] = row_of(&c->in[0], row);
        one.din[0] = row_of(&c->din[0], row);
        for (int k = 0; k < ML_OP_OUT; k++) {
            one.out[k] = row_of(&c->out[k], i);
            one.dout[k] = row_of(&c->dout[k], i);
        }
        ck_run(e, &one, m, &r);
        for (int k = 0; k < ML_OP_OUT; k++) {
            ml_tensor o = row_of(&all->out[k], i);
            ck_same(e, "differs from the batch: out", &o, &r.out[k]);
        }
        if (e->backend[0].dev->host) /* a GPU's backward is only repeatable */
            ck_same(e, "differs from the batch: dx", &want, &r.din[0]);
    }
    e->now = c;
}

/* An absent gradient of the entropy equals a gradient of zero. */
static void check_no_entropy(ck_env *e, const ck_case *c) {
    ck_mode m = { .in_place = CK_ALL, .only = CK_ALL, .backward = true };
    ck_case none = *c, zero = *c;
    ck_result a, b;

    none.dout[1].data = NULL;
    zero.dout[1].data = ml_arena_take(c->arena, ml_tensor_bytes(&c->dout[1]) + 1, 1);
    ck_run(e, &none, m, &a);
    ck_run(e, &zero, m, &b);
    e->now = c;
    ck_same_result(e, "differs without an entropy gradient", &a, &b);
}

/* Logits without log-probs, as in decode, have the same bits. */
static void check_only_logits(ck_env *e, const ck_case *c, const ck_result *all) {
    ck_mode m = { .backend = e->n_backend - 1, .in_place = CK_ALL, .only = CK_ALL };
    ck_case only = *c;
    ck_result r;

    if (!c->out[3].n_dim)
        return;
    ck_name(&only, "%.60s (only logits)", c->name);
    for (int k = 0; k < 3; k++)
        only.out[k] = (ml_tensor){ 0 };
    ck_run(e, &only, m, &r);
    e->now = c;
    ck_same(e, "differs without log-probs: logits", &all->out[3], &r.out[3]);
}

/* --- sampling supports --- */

/* Of row i: the whole vocabulary, or about a third of it and the token. */
static ml_str support_of(ck_case *c, int64_t i, bool *in) {
    int64_t vocab = c->w[0].shape[0], n = 0;
    int32_t *id = ML_NEW(c->arena, int32_t, vocab), own = c->rows.loss_id[i];
    uint8_t *bytes = ML_NEW(c->arena, uint8_t, ml_support_max(vocab));

    for (int32_t j = 0; j < vocab; j++) {
        in[j] = i % 4 == 1 || j == own || ck_below(c, 3) == 0 || (own < 0 && j == 0);
        if (in[j])
            id[n++] = j;
    }
    return (ml_str){ (const char *)bytes,
                     i % 4 == 1 ? 0 : ml_support_write(bytes, id, n, vocab) };
}

/* In f64: the log-prob of row i over its support; adds d times its gradient by x to dx, and
 * the absolute values to size. */
static double over_of(const ck_case *c, const ck_ref *r, int64_t i, const bool *in,
                      double d, double *dx, double *size) {
    int64_t vocab = c->w[0].shape[0], width = c->w[0].shape[1];
    int32_t id = c->rows.loss_id[i];
    double *z = ML_NEW(c->arena, double, vocab), t = (double)c->rows.temperature, l = 0;
    double cap = (double)c->attr.logit_softcap, m = -(double)INFINITY;

    logits_of(c, r, i, z);
    for (int64_t j = 0; j < vocab; j++)
        m = in[j] ? fmax(m, z[j] / t) : m;
    for (int64_t j = 0; j < vocab; j++)
        l += in[j] ? exp(z[j] / t - m) : 0;
    for (int64_t j = 0; j < vocab && id >= 0; j++) {
        double p = in[j] ? exp(z[j] / t - m) / l : 0, dz = d * ((j == id) - p) / t;
        dz *= cap != 0 ? 1 - z[j] / cap * (z[j] / cap) : 1;
        for (int64_t k = 0; k < width; k++) {
            dx[k] += dz * r->w[0][j * width + k];
            size[k] += fabs(dz * r->w[0][j * width + k]);
        }
    }
    return id < 0 ? 0 : z[id] / t - m - log(l);
}

static void compare_over(ck_env *e, const ck_case *c, const ml_support_rows *s,
                         bool *const *in, const ck_result *got) {
    double rough = e->backend[0].act == ML_F32 ? 1e-5 : 0x1p-7;
    int64_t width = c->w[0].shape[1];
    ck_ref r = { .in[0] = ck_values(c->arena, &c->in[0]),
                 .w[0] = ck_values(c->arena, &c->w[0]) };
    double *from = ck_values(c->arena, &got->din[0]);

    for (int64_t i = 0; i < c->rows.n_loss; i++) {
        double *dx = ML_NEW(c->arena, double, width),
               *size = ML_NEW(c->arena, double, width);
        double want = over_of(c, &r, i, in[i], (double)s->dlogprob[i], dx, size);
        if (!(fabs((double)s->logprob[i] - want) <= 1e-4 * (1 + fabs(want))))
            ck_fail(e, "row %lld: log-prob over its support %g, expected %g", (long long)i,
                    (double)s->logprob[i], want);
        if (s->of[i].len == 0 && s->logprob[i] != at(&got->out[0], i))
            ck_fail(e, "row %lld: log-prob over all tokens differs", (long long)i);
        for (int64_t k = 0; k < width; k++)
            if (!(fabs(from[c->rows.loss_row[i] * width + k] - dx[k]) <=
                  rough * (size[k] + 1e-3)))
                ck_fail(e, "row %lld: gradient %g, expected %g", (long long)i,
                        from[c->rows.loss_row[i] * width + k], dx[k]);
    }
}

/* The log-prob over the support of each row, and its gradient alone. */
static void check_supports(ck_env *e, const ck_case *c) {
    ck_mode m = { .backend = e->n_backend - 1, .in_place = CK_ALL, .only = CK_ALL };
    int64_t n = c->rows.n_loss;
    ml_str *of = ML_NEW(c->arena, ml_str, n + 1);
    float *x = ML_NEW(c->arena, float, 4 * n + 1);
    bool **in = ML_NEW(c->arena, bool *, n + 1);
    ml_support_rows s = { .of = of, .logprob = x, .stat = x + n, .dlogprob = x + 3 * n };
    ck_case over = *c;
    ck_result r;

    ck_name(&over, "%.60s (supports)", c->name);
    for (int64_t i = 0; i < n; i++) {
        in[i] = ML_NEW(c->arena, bool, c->w[0].shape[0]);
        of[i] = support_of(&over, i, in[i]);
        x[3 * n + i] = ck_uniform(&over, 1.0f);
    }
    over.rows.support = &s;
    for (int k = 0; k < 2; k++)
        over.dout[k].data = ml_arena_take(c->arena, ml_tensor_bytes(&c->dout[k]) + 1, 1);
    m.backward = true;
    ck_run(e, &over, m, &r);
    compare_over(e, &over, &s, in, &r);
    e->now = c;
}

static void also(ck_env *e, const ck_case *c) {
    ck_mode m = { .in_place = CK_ALL, .only = CK_ALL, .backward = true };
    ck_result all;

    ck_run(e, c, m, &all);
    if (e->backend[0].dev->host)
        check_stored(e, c, &all);
    check_alone(e, c, &all);
    check_only_logits(e, c, &all);
    check_no_entropy(e, c);
    check_supports(e, c);
}

const ck_suite ck_lmhead = {
    .op = ML_OP_LMHEAD,
    .n_case = sizeof variants / sizeof *variants,
    .build = build,
    .forward = forward,
    .ref_out = 15,
    .grad_out = 3,
    .also = also,
};
