/* linear_fp8_back.c - gradients of LINEAR as FP8 products, which GPUs alone have.
 *
 * The reference rounds the operands as the kernels do, and multiplies in f64. */
#include <math.h>

#include "tests/checkop/checkop.h"

#include "tensor/codes.h"

enum { GROUP = 128 };

/* Groups of tokens that are whole and that are not; rows that no alignment divides; one group and several,
 * also numbers of them that four does not divide. */
static const struct variant {
    int32_t m, n, k;
    ml_grad_format format;
    bool bias;
} variants[] = {
    { 1, 128, 128, ML_GRAD_E4M3, false },   { 16, 256, 384, ML_GRAD_E5M2, true },
    { 131, 384, 256, ML_GRAD_E4M3, true },  { 256, 640, 128, ML_GRAD_E4M3, false },
    { 300, 128, 512, ML_GRAD_E5M2, false }, { 1037, 256, 256, ML_GRAD_E4M3, true },
};

/* All weights of a block have one scale. */
static void join_scales(ck_case *c, const ml_tensor *w) {
    float *scale = ML_NEW(c->arena, float, w->shape[1]);

    for (int64_t i = 0; i < w->shape[0]; i++) {
        for (int64_t g = 0; i % GROUP == 0 && g < w->shape[1] / GROUP; g++)
            scale[g] = (1.0f + ck_uniform(c, 0.5f)) / 448.0f;
        ml_codes_put_scales(w, i, scale);
    }
}

static void build(ck_case *c, int i) {
    const struct variant *v = &variants[i];

    ck_name(c, "grad-%s-m%d-n%d-k%d%s", v->format == ML_GRAD_E5M2 ? "e5m2" : "e4m3", v->m,
            v->n, v->k, v->bias ? "-bias" : "");
    c->rows.n_token = v->m;
    c->grad_format = v->format;
    c->in[0] = ck_mat(v->m, v->k);
    ck_fill(c, &c->in[0], 1.0f);
    c->w[0] = ck_mat(v->n, v->k);
    c->w[0].dtype = ML_FP8_BLOCKWISE;
    c->w[0].layout = ML_PANELS;
    ck_fill(c, &c->w[0], 1.0f);
    join_scales(c, &c->w[0]);
    if (v->bias) {
        c->w[1] = ck_vec(v->n);
        ck_fill(c, &c->w[1], 1.0f);
    }
    c->out[0] = ck_mat(v->m, v->n);
}

/* A matrix with elements [i * row + j * col]: rounded in groups of 128 of a row. */
static double *rounded(const ck_case *c, ml_dtype format, const float *x, int64_t rows,
                       int64_t cols, int64_t row, int64_t col) {
    double *out = ML_NEW(c->arena, double, rows *cols);
    float group[GROUP];
    uint8_t code[GROUP];

    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j += GROUP) {
            const int64_t n = cols - j < GROUP ? cols - j : GROUP;
            float scale;
            for (int64_t k = 0; k < n; k++)
                group[k] = x[i * row + (j + k) * col];
            scale = ml_kv_encode(format, group, n, code);
            for (int64_t k = 0; k < n; k++)
                out[i * cols + j + k] =
                    (double)ml_kv_code_value(format, code[k]) * (double)scale;
        }
    return out;
}

/* The columns of x [m, k], rounded in blocks of 128 x 128: [k, m]. */
static double *rounded_blocks(const ck_case *c, const float *x, int64_t m, int64_t k) {
    double *out = ML_NEW(c->arena, double, m *k);
    float *block = ML_NEW(c->arena, float, GROUP *GROUP);
    uint8_t *code = ML_NEW(c->arena, uint8_t, GROUP * GROUP);

    for (int64_t i = 0; i < m; i += GROUP)
        for (int64_t j = 0; j < k; j += GROUP) {
            const int64_t rows = m - i < GROUP ? m - i : GROUP;
            float scale;
            for (int64_t e = 0; e < rows * GROUP; e++)
                block[e] = x[(i + e / GROUP) * k + j + e % GROUP];
            scale = ml_kv_encode(ML_KV_E4M3, block, rows * GROUP, code);
            for (int64_t e = 0; e < rows * GROUP; e++)
                out[(j + e % GROUP) * m + i + e / GROUP] =
                    (double)ml_kv_code_value(ML_KV_E4M3, code[e]) * (double)scale;
        }
    return out;
}

/* The largest error of some of the rows, relative to the largest value; each is a sum of products of rows
 * of a and b. */
static double worst_of(const double *got, const double *a, const double *b, int64_t rows,
                       int64_t cols, int64_t n) {
    double worst = 0, top = 0;

    for (int64_t i = 0; i < rows; i += 1 + rows / 64)
        for (int64_t j = 0; j < cols; j++) {
            double sum = 0, error;
            for (int64_t k = 0; k < n; k++)
                sum += a[i * n + k] * b[j * n + k];
            error = fabs(got[i * cols + j] - sum);
            worst = error <= worst ? worst : error; /* a NaN stays */
            top = fmax(top, fabs(sum));
        }
    return worst / top;
}

/* Sums of a group are cut at 2^-13 in each step of 32; dx is rounded to bf16, too. */
static void same_as_reference(ck_env *e, const ck_case *c) {
    const int64_t m = c->in[0].shape[0], n = c->w[0].shape[0], k = c->w[0].shape[1];
    const ml_dtype format = c->grad_format == ML_GRAD_E5M2 ? ML_KV_E5M2 : ML_KV_E4M3;
    const float *x = c->in[0].data, *dy = c->dout[0].data;
    const double *w = ck_values(c->arena, &c->w[0]);
    double *w_cols = ML_NEW(c->arena, double, n *k), error;
    ck_mode mode = { .backward = true, .in_place = CK_ALL, .only = CK_ALL };
    ck_result r;

    for (int64_t i = 0; i < n * k; i++)
        w_cols[i % k * n + i / k] = w[i];
    ck_run(e, c, mode, &r);
    error = worst_of(ck_values(c->arena, &r.din[0]), rounded(c, format, dy, m, n, n, 1),
                     w_cols, m, k, n);
    if (!(error <= 0x1p-8))
        ck_fail(e, "din[0] is %.3g of its largest value from f64; %.3g allowed", error,
                0x1p-8);
    error = worst_of(ck_values(c->arena, &r.dw[0]), rounded(c, format, dy, n, m, 1, n),
                     rounded_blocks(c, x, m, k), n, k, m);
    if (!(error <= 0x1p-10))
        ck_fail(e, "dw[0] is %.3g of its largest value from f64; %.3g allowed", error,
                0x1p-10);
}

const ck_suite ck_linear_fp8_back = {
    .op = ML_OP_LINEAR,
    .n_case = sizeof variants / sizeof *variants,
    .build = build,
    .forward = ck_forward_rounded,
    .ref_out = 1,
    .grad_out = 1,
    .rounds = true,
    .row_out = 1,
    .device_only = true,
    .also = same_as_reference,
};
