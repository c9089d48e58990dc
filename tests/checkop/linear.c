#include "tests/checkop/checkop.h"

#include <string.h>

#include "tensor/codes.h"

#include <math.h>

/* Sizes around a tile (14 or 6 rows, 16 columns), a block of depth (352), a span of
 * blocks (2112) and a block of rows (512), for all three GEMMs. */
static const struct variant {
    int32_t m, n, k;
    ml_dtype dtype;
    bool bias;
    bool exact;     /* as in the head of a critic */
    int32_t len[4]; /* rows of each sequence; none: one of all rows */
    bool gpu_only;
    float amp; /* of the weight, if not 1 */
} variants[] = {
    { 0, 5, 3, ML_F32, true },
    { 1, 1, 1, ML_F32, false },
    { 1, 16, 16, ML_BF16, true },
    { 1, 150, 33, ML_BF16, true },
    { 2, 15, 31, ML_F32, true },
    { 5, 80, 17, ML_BF16, false },
    { 6, 17, 15, ML_F32, false },
    { 7, 129, 40, ML_F32, true },
    { 14, 33, 20, ML_BF16, true },
    { 15, 31, 64, ML_F32, true },
    { 29, 48, 353, ML_F32, true },
    { 16, 360, 17, ML_BF16, false },
    { 33, 65, 47, ML_BF16, true },
    { 355, 20, 19, ML_F32, true },
    { 520, 17, 6, ML_BF16, false },
    { 8, 18, 530, ML_F32, false },
    { 15, 3, 2120, ML_BF16, true },
    { 150, 1, 70, ML_F32, true, .exact = true },
    { 61, 33, 20, ML_F32, true, .len = { 1, 40, 3, 17 } },
    { 780, 17, 35, ML_BF16, true, .len = { 5, 705, 70 } },
};

static void build_variant(ck_case *c, const struct variant *v) {
    ck_name(c, "%s-m%d-n%d-k%d%s", ml_dtype_name(v->dtype), v->m, v->n, v->k,
            v->exact     ? "-value"
            : v->amp > 0 ? "-large"
            : v->len[0]  ? "-seqs"
            : v->bias    ? "-bias"
                         : "");
    c->exact = v->exact;
    c->gpu_only = v->gpu_only;
    c->rows.n_token = v->m;
    if (v->len[0])
        ck_page_rows(c, v->len, 4);
    c->in[0] = ck_mat(v->m, v->k);
    ck_fill(c, &c->in[0], 1.0f);
    c->w[0] = ck_mat(v->n, v->k);
    c->w[0].dtype = v->dtype;
    c->w[0].layout = ML_PANELS;
    ck_fill(c, &c->w[0], v->amp > 0 ? v->amp : 1.0f);
    if (v->bias) {
        c->w[1] = ck_vec(v->n);
        ck_fill(c, &c->w[1], 1.0f);
    }
    c->out[0] = ck_mat(v->m, v->n);
}

static void build(ck_case *c, int i) {
    build_variant(c, &variants[i]);
}

static double dot(const double *x, const double *w, int64_t k) {
    double sum = 0.0;
    for (int64_t i = 0; i < k; i++)
        sum += x[i] * w[i];
    return sum;
}

static void forward(const ck_case *c, ck_ref *r) {
    const int64_t m = c->out[0].shape[0], n = c->out[0].shape[1], k = c->in[0].shape[1];

    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++)
            r->out[0][i * n + j] =
                dot(r->in[0] + i * k, r->w[0] + j * k, k) + (r->w[1] ? r->w[1][j] : 0.0);
}

/* ---- the exact contract: outputs are FMA chains ---- */

enum { OUTPUTS = 352, ROWS = 176 }; /* of a chain of dx and of dw, at most */

/* f32 values, widened; gradients are added to what dx, dw and db hold. */
typedef struct exact {
    const double *x, *w, *bias, *dy, *dx, *dw, *db;
    int64_t m, n, k;
    const ml_rows *rows;
} exact;

/* s + a[0] * b[0] + a[a_step] * b[b_step] + .., each step rounded once. */
static float chain(double s, const double *a, int64_t a_step, const double *b,
                   int64_t b_step, int64_t n) {
    float sum = (float)s;
    for (int64_t i = 0; i < n; i++)
        sum = fmaf((float)a[i * a_step], (float)b[i * b_step], sum);
    return sum;
}

static float exact_y(const exact *v, int64_t i, int64_t j) {
    float y = chain(0.0, v->x + i * v->k, 1, v->w + j * v->k, 1, v->k);
    return v->bias ? y + (float)v->bias[j] : y;
}

static float exact_dx(const exact *v, int64_t i, int64_t q) {
    float dx = (float)v->dx[i * v->k + q];

    for (int64_t j = 0; j < v->n; j += OUTPUTS)
        dx += chain(0.0, v->dy + i * v->n + j, 1, v->w + j * v->k + q, v->k,
                    v->n - j > OUTPUTS ? OUTPUTS : v->n - j);
    return dx;
}

/* The first row after the sequence of row t. */
static int64_t end_of_seq(const exact *v, int64_t t) {
    int32_t i = 0;

    while (i < v->rows->n_seq && v->rows->seq_start[i + 1] <= t)
        i++;
    return v->rows->n_seq ? v->rows->seq_start[i + 1] : v->m;
}

static float exact_dw(const exact *v, int64_t j, int64_t q) {
    float dw = (float)v->dw[j * v->k + q];

    for (int64_t t = 0, end; t < v->m; t = end) {
        end = end_of_seq(v, t);
        end = end - t > ROWS ? t + ROWS : end;
        dw += chain(0.0, v->x + t * v->k + q, v->k, v->dy + t * v->n + j, v->n, end - t);
    }
    return dw;
}

static float exact_db(const exact *v, int64_t zero, int64_t j) {
    float db = (float)v->db[j];

    (void)zero;
    for (int64_t t = 0; t < v->m;) {
        double sum = 0;
        for (int64_t end = end_of_seq(v, t); t < end; t++)
            sum += v->dy[t * v->n + j];
        db += (float)sum;
    }
    return db;
}

static void check_exact(ck_env *e, const ck_case *c, const exact *v, const ml_tensor *t,
                        const char *what, float (*want)(const exact *, int64_t, int64_t)) {
    const double *got = t->data ? ck_values(c->arena, t) : NULL;
    const int64_t cols = t->n_dim ? t->shape[t->n_dim - 1] : 1;

    for (int64_t i = 0; got && i < ml_tensor_count(t); i++)
        if (got[i] != (double)want(v, i / cols, i % cols)) {
            ck_fail(e, "%s[%lld, %lld] is %.9g, its chains give %.9g", what,
                    (long long)(i / cols), (long long)(i % cols), got[i],
                    (double)want(v, i / cols, i % cols));
            return;
        }
}

static const double *values(const ck_case *c, const ml_tensor *t) {
    return t->data ? ck_values(c->arena, t) : NULL;
}

static void check_chains(ck_env *e, const ck_case *c) {
    const exact v = {
        .x = values(c, &c->in[0]),
        .w = values(c, &c->w[0]),
        .bias = values(c, &c->w[1]),
        .dy = values(c, &c->dout[0]),
        .dx = values(c, &c->din[0]),
        .dw = values(c, &c->dw[0]),
        .db = values(c, &c->dw[1]),
        .m = c->out[0].shape[0],
        .n = c->out[0].shape[1],
        .k = c->in[0].shape[1],
        .rows = &c->rows,
    };
    ck_mode mode = { .backward = true, .add = true, .in_place = CK_ALL, .only = CK_ALL };
    ck_result r;

    mode.backend = e->n_backend - 1;
    ck_run(e, c, mode, &r);
    check_exact(e, c, &v, &r.out[0], "y", exact_y);
    check_exact(e, c, &v, &r.din[0], "dx", exact_dx);
    check_exact(e, c, &v, &r.dw[0], "dw", exact_dw);
    check_exact(e, c, &v, &r.dw[1], "db", exact_db);
}

/* These chains are the CPU's; tensor cores accumulate differently. */
static void also(ck_env *e, const ck_case *c) {
    if (e->backend[0].dev->host)
        check_chains(e, c);
}

const ck_suite ck_linear = {
    .op = ML_OP_LINEAR,
    .n_case = sizeof variants / sizeof *variants,
    .build = build,
    .forward = forward,
    .ref_out = 1,
    .grad_out = 1,
    .row_out = 1,
    .also = also,
};

/* ---- quantized weights ---- */

/* Sizes around eight inputs, a group of them, a span and a block of depth; rows and panels of every
 * kind of register tile. */
static const struct variant coded[] = {
    { 1, 16, 8, ML_INT4, false },
    { 1, 150, 576, ML_INT4, true },
    { 3, 31, 33, ML_INT4_G128, true },
    { 16, 140, 130, ML_INT4_G128, false },
    { 17, 20, 2200, ML_INT4, true },
    { 40, 33, 361, ML_INT4, false },
    { 1, 129, 200, ML_NF4, true },
    { 33, 17, 65, ML_NF4, false },
    { 1, 40, 96, ML_MXFP4, true },
    { 20, 48, 70, ML_MXFP4, false },
    { 1, 260, 300, ML_FP8, true },
    { 7, 130, 129, ML_FP8, false },
    { 50, 33, 400, ML_FP8, true },
    { 2, 144, 260, ML_INT8, false },
    { 30, 16, 127, ML_INT8, true },
    { 530, 20, 40, ML_INT8, false },
    { 1, 70, 2200, ML_INT4_G128, true },
    { 4, 100, 2201, ML_INT8, true },
    { 5, 75, 137, ML_NF4, true },
    { 6, 45, 96, ML_MXFP4, false },
    { 8, 33, 2120, ML_FP8, true },
    { 13, 40, 77, ML_INT4, true },
    /* Whole panels and steps, whose codes the products of up to 512 rows read on a GPU. */
    { 1, 48, 1280, ML_INT4, true },
    { 8, 32, 256, ML_INT8, false },
    { 11, 64, 512, ML_FP8, true },
    { 16, 16, 768, ML_INT4_G128, false },
    { 17, 48, 1280, ML_FP8, false },
    { 32, 32, 256, ML_INT4, true },
    { 24, 16, 512, ML_INT8, true },
    { 30, 80, 256, ML_INT4_G128, true },
    { 33, 16, 256, ML_INT4, false },
    { 2, 9008, 256, ML_INT4, false },
    { 3, 9008, 256, ML_FP8, true, .gpu_only = true },
    { 64, 64, 128, ML_INT8, true },
    { 65, 208, 384, ML_FP8, false },
    { 100, 80, 1280, ML_INT4, true },
    { 200, 80, 640, ML_INT4_G128, false, .gpu_only = true },
    { 260, 528, 128, ML_INT8, false, .gpu_only = true },
    { 512, 80, 384, ML_FP8, true, .gpu_only = true },
    { 513, 32, 256, ML_INT4, true },
    /* Scales on both sides of 1/2, where the FMA that makes values of codes on a GPU overflows. */
    { 1, 48, 1280, ML_INT4, false, .amp = 8.0f },
    { 16, 16, 1024, ML_INT4_G128, true, .amp = 8.0f },
    { 17, 9008, 512, ML_INT4, false, .gpu_only = true, .amp = 8.0f },
};

static void build_coded(ck_case *c, int i) {
    build_variant(c, &coded[i]);
}

/* The bits of the same op over the dequantized weight, in f32. */
static void same_as_f32(ck_env *e, const ck_case *c) {
    ck_case wide = *c;
    ck_mode mode = { .backward = true, .add = true, .in_place = CK_ALL, .only = CK_ALL };
    ck_result a, b;

    wide.w[0] = ck_widened(&wide, &c->w[0]);
    mode.backend = e->n_backend - 1;
    ck_run(e, c, mode, &a);
    ck_run(e, &wide, mode, &b);
    ck_same_result(e, "differs from the dequantized weight", &b, &a);
}

const ck_suite ck_linear_codes = {
    .op = ML_OP_LINEAR,
    .n_case = sizeof coded / sizeof *coded,
    .build = build_coded,
    .forward = forward,
    .ref_out = 1,
    .grad_out = 1,
    .frozen = true,
    .row_out = 1,
    .also = same_as_f32,
};

/* ---- inputs in FP8 ---- */

static const struct variant rounded[] = {
    { 1, 130, 260, ML_FP8_BLOCKWISE, true },
    { 9, 33, 128, ML_FP8_BLOCKWISE, false },
    { 40, 20, 200, ML_FP8_BLOCKWISE, true },
    { 1, 130, 260, ML_MXFP8, false },
    { 9, 33, 128, ML_MXFP8, true },
    { 40, 20, 70, ML_MXFP8, false },
    /* Tiles of 8 to 128 tokens on a GPU, and more stages of copies than it has at a time. */
    { 5, 140, 2120, ML_FP8_BLOCKWISE, true },
    { 14, 70, 1800, ML_FP8_BLOCKWISE, false },
    { 30, 129, 1672, ML_FP8_BLOCKWISE, false },
    { 90, 200, 640, ML_FP8_BLOCKWISE, true },
    { 300, 40, 1100, ML_FP8_BLOCKWISE, false, .gpu_only = true },
    { 1040, 20, 1100, ML_FP8_BLOCKWISE, false, .gpu_only = true },
    { 130, 40, 96, ML_MXFP8, true },
    /* Blocks that share scales. */
    { 50, 256, 640, ML_FP8_BLOCKWISE, false },
    { 150, 384, 520, ML_FP8_BLOCKWISE, true },
    { 600, 128, 1160, ML_FP8_BLOCKWISE, false, .gpu_only = true },
};

static void build_rounded(ck_case *c, int i) {
    build_variant(c, &rounded[i]);
}

/* A case whose input has the rounded values. */
static ck_case round_input(const ck_case *c) {
    ck_case r = *c;
    const int64_t rows = c->in[0].shape[0], cols = c->in[0].shape[1];
    float *x = ML_NEW(c->arena, float, rows *cols + 1);

    for (int64_t i = 0; i < rows; i++)
        ml_fp8_round(c->w[0].dtype, (const float *)c->in[0].data + i * cols, cols, 0, cols,
                     x + i * cols);
    r.in[0].data = x;
    return r;
}

void ck_forward_rounded(const ck_case *c, ck_ref *r) {
    const ck_case x = round_input(c);

    memcpy(r->in[0], ck_values(c->arena, &x.in[0]),
           (size_t)ml_tensor_count(&x.in[0]) * sizeof(double));
    forward(c, r);
}

/* Whether products of codes run on FP8 tensor cores. */
static bool multiplies_codes(const ck_env *e, const ck_case *c) {
    const char *path = e->backend[0].path;
    return c->w[0].dtype == ML_FP8_BLOCKWISE && path && strstr(path, "wgmma");
}

static float to_bf16(float x) {
    return ml_bf16_to_f32(ml_f32_to_bf16(x));
}

/* Output (row, j) of LINEAR, or of an expert: a bias is added after the rounding, or before. */
static float output_of(const ck_case *c, const ck_fp8_row *x, int64_t expert, int64_t j) {
    const int64_t n = c->out[0].shape[1], k = c->in[0].shape[1];
    const ck_fp8_row w = ck_fp8_weight(c->arena, &c->w[0], expert, j);
    const float y = ck_wgmma_dot(x, &w, k);
    const float *bias = c->w[1].data;

    if (!bias)
        return to_bf16(y);
    return to_bf16((c->w[0].n_dim == 3 ? y : to_bf16(y)) + bias[expert * n + j]);
}

/* Outputs of a GPU that multiplies codes: those of some rows and columns, by the software model. */
static void same_as_model(ck_env *e, const ck_case *c, const ml_tensor *y) {
    const int64_t rows = c->in[0].shape[0], n = c->out[0].shape[1], k = c->in[0].shape[1];
    const int32_t *start = c->in[1].data;
    const double *got = ck_values(c->arena, y);

    for (int64_t i = 0, expert = 0; i < rows; i += 1 + rows / 64) {
        const ck_fp8_row x =
            ck_fp8_input(c->arena, (const float *)c->in[0].data + i * k, k);
        while (start && start[expert + 1] <= i)
            expert++;
        for (int64_t j = i % 2; j < n; j += 1 + n / 64)
            if (got[i * n + j] != (double)output_of(c, &x, expert, j)) {
                ck_fail(e, "out[%lld, %lld] is %.9g, by the model of wgmma %.9g",
                        (long long)i, (long long)j, got[i * n + j],
                        (double)output_of(c, &x, expert, j));
                return;
            }
    }
}

/* Forward has the bits of f32 weights and the rounded input, or of the software model; backward those
 * of f32 weights. */
static void same_as_rounded(ck_env *e, const ck_case *c) {
    ck_case wide = round_input(c), plain = *c;
    ck_mode mode = { .in_place = CK_ALL, .only = CK_ALL };
    ck_result a, b;

    wide.w[0] = ck_widened(&wide, &c->w[0]);
    plain.w[0] = wide.w[0];
    mode.backend = e->n_backend - 1;
    ck_run(e, c, mode, &a);
    if (multiplies_codes(e, c)) {
        same_as_model(e, c, &a.out[0]);
    } else {
        ck_run(e, &wide, mode, &b);
        ck_same_result(e, "differs from the rounded input", &b, &a);
    }
    mode.backward = true;
    ck_run(e, &plain, mode, &b);
    ck_run(e, c, mode, &a);
    ck_same(e, "the input's gradient differs from f32 weights", &b.din[0], &a.din[0]);
}

const ck_suite ck_linear_fp8 = {
    .op = ML_OP_LINEAR,
    .n_case = sizeof rounded / sizeof *rounded,
    .build = build_rounded,
    .forward = ck_forward_rounded,
    .ref_out = 1,
    .grad_out = 1,
    .frozen = true,
    .rounds = true,
    .row_out = 1,
    .also = same_as_rounded,
};

/* ---- moe-linear ---- */

static const struct moe_variant {
    int32_t experts, most; /* rows of an expert: 0 .. most */
    int32_t n, k;
    ml_dtype dtype;
    bool bias;
} moe_variants[] = {
    { 1, 0, 4, 4, ML_F32 },          { 3, 1, 1, 1, ML_F32 },
    { 4, 3, 17, 15, ML_BF16 },       { 8, 20, 33, 31, ML_BF16 },
    { 60, 2, 16, 40, ML_F32 },       { 2, 400, 20, 16, ML_F32 },
    { 6, 9, 20, 18, ML_BF16, true }, { 3, 420, 136, 72, ML_BF16, true },
};

/* The starts of the experts' rows; the op reads nothing else of `group`. */
static ml_tensor group_of(ck_case *c, const struct moe_variant *v) {
    ml_tensor t = ck_vec(v->experts + 1);
    int32_t *start = ML_NEW(c->arena, int32_t, t.shape[0]);

    for (int32_t e = 0; e < v->experts; e++)
        start[e + 1] = start[e] + ck_below(c, v->most + 1);
    t.dtype = ML_I32;
    t.data = start;
    return t;
}

static const struct moe_variant coded_moe[] = {
    { 8, 3, 33, 40, ML_INT4, true },
    { 4, 20, 17, 130, ML_FP8 },
    { 9, 2, 16, 72, ML_NF4 },
    { 3, 40, 20, 33, ML_INT8, true },
    { 5, 4, 48, 64, ML_MXFP4 },
    /* Whole panels and steps; the last three have more rows than the kernel of few rows takes. */
    { 8, 3, 48, 256, ML_INT4, true },
    { 4, 20, 80, 512, ML_FP8 },
    { 3, 30, 16, 256, ML_INT8 },
    { 2, 40, 32, 768, ML_INT4_G128, true },
    { 1, 90, 16, 256, ML_INT8, true },
    { 3, 200, 80, 384, ML_FP8, false },
    { 2, 260, 144, 256, ML_INT4, true },
};

static void build_moe_variant(ck_case *c, const struct moe_variant *v) {
    int32_t rows;

    ck_name(c, "%s-e%d-n%d-k%d-rows%d", ml_dtype_name(v->dtype), v->experts, v->n, v->k,
            v->most);
    if (v->bias)
        ck_name(c, "%s-e%d-n%d-k%d-rows%d-bias", ml_dtype_name(v->dtype), v->experts, v->n,
                v->k, v->most);
    c->in[1] = group_of(c, v);
    rows = ((const int32_t *)c->in[1].data)[v->experts];
    c->in[0] = ck_mat(rows, v->k);
    ck_fill(c, &c->in[0], 1.0f);
    c->w[0] = ck_cube(v->experts, v->n, v->k);
    c->w[0].dtype = v->dtype;
    c->w[0].layout = ML_PANELS;
    ck_fill(c, &c->w[0], 1.0f);
    if (v->bias) {
        c->w[1] = ck_mat(v->experts, v->n);
        ck_fill(c, &c->w[1], 1.0f);
    }
    c->out[0] = ck_mat(rows, v->n);
}

static void forward_moe(const ck_case *c, ck_ref *r) {
    const int64_t n_expert = c->w[0].shape[0], n = c->w[0].shape[1], k = c->w[0].shape[2];
    const int32_t *start = c->in[1].data;

    for (int64_t e = 0; e < n_expert; e++)
        for (int64_t i = start[e]; i < start[e + 1]; i++)
            for (int64_t j = 0; j < n; j++)
                r->out[0][i * n + j] = dot(r->in[0] + i * k, r->w[0] + (e * n + j) * k, k) +
                                       (c->w[1].data ? r->w[1][e * n + j] : 0.0);
}

/* A row has the same bits without the other rows of its expert. */
static void check_expert_row(ck_env *e, const ck_case *c, const ml_tensor *all,
                             int32_t row) {
    const int32_t *start = c->in[1].data;
    int32_t *alone = ML_NEW(c->arena, int32_t, c->in[1].shape[0]);
    ck_mode mode = { .in_place = CK_ALL, .only = CK_ALL };
    ml_tensor want = *all;
    ck_case s = *c;
    ck_result r;

    for (int64_t i = 0; i < c->in[1].shape[0]; i++)
        alone[i] = start[i] > row;
    s.in[1].data = alone;
    s.in[0].shape[0] = s.out[0].shape[0] = want.shape[0] = 1;
    s.in[0].data = (char *)s.in[0].data + (size_t)row * ml_tensor_bytes(&s.in[0]);
    want.data = (char *)want.data + (size_t)row * ml_tensor_bytes(&want);
    mode.backend = e->n_backend - 1;
    ck_run(e, &s, mode, &r);
    ck_same(e, "differs from its row in the batch: out", &want, &r.out[0]);
}

static void also_moe(ck_env *e, const ck_case *c) {
    ck_mode mode = { .in_place = CK_ALL, .only = CK_ALL };
    int32_t rows = (int32_t)c->in[0].shape[0];
    ck_result r;

    mode.backend = e->n_backend - 1;
    ck_run(e, c, mode, &r);
    for (int32_t row = 0; row < rows; row += 1 + rows / 16)
        check_expert_row(e, c, &r.out[0], row);
}

static void build_moe(ck_case *c, int i) {
    build_moe_variant(c, &moe_variants[i]);
}

static void build_coded_moe(ck_case *c, int i) {
    build_moe_variant(c, &coded_moe[i]);
}

const ck_suite ck_moe_linear_codes = {
    .op = ML_OP_MOE_LINEAR,
    .n_case = sizeof coded_moe / sizeof *coded_moe,
    .build = build_coded_moe,
    .forward = forward_moe,
    .ref_out = 1,
    .grad_out = 1,
    .frozen = true,
    .also = same_as_f32,
};

static const struct moe_variant rounded_moe[] = {
    { 5, 4, 40, 300, ML_FP8_BLOCKWISE, true }, { 3, 70, 136, 264, ML_FP8_BLOCKWISE, false },
    { 2, 300, 33, 130, ML_FP8_BLOCKWISE },     { 6, 9, 20, 96, ML_MXFP8, true },
    { 4, 40, 72, 128, ML_MXFP8, false },       { 3, 300, 128, 264, ML_FP8_BLOCKWISE, true },
};

static void build_rounded_moe(ck_case *c, int i) {
    build_moe_variant(c, &rounded_moe[i]);
}

static void forward_rounded_moe(const ck_case *c, ck_ref *r) {
    const ck_case x = round_input(c);

    memcpy(r->in[0], ck_values(c->arena, &x.in[0]),
           (size_t)ml_tensor_count(&x.in[0]) * sizeof(double));
    forward_moe(c, r);
}

static void also_rounded_moe(ck_env *e, const ck_case *c) {
    same_as_rounded(e, c);
    also_moe(e, c);
}

const ck_suite ck_moe_linear_fp8 = {
    .op = ML_OP_MOE_LINEAR,
    .n_case = sizeof rounded_moe / sizeof *rounded_moe,
    .build = build_rounded_moe,
    .forward = forward_rounded_moe,
    .ref_out = 1,
    .grad_out = 1,
    .frozen = true,
    .rounds = true,
    .also = also_rounded_moe,
};

const ck_suite ck_moe_linear = {
    .op = ML_OP_MOE_LINEAR,
    .n_case = sizeof moe_variants / sizeof *moe_variants,
    .build = build_moe,
    .forward = forward_moe,
    .ref_out = 1,
    .grad_out = 1,
    .also = also_moe,
};

/* Tiles of 256 columns, more tiles than blocks; gradients of weights whose last tile has outputs of
 * one team only, or an odd number of boxes, and those of experts without rows. */
static const struct moe_variant wide_moe[] = {
    { 3, 420, 232, 256, ML_BF16, true }, { 4, 300, 512, 480, ML_BF16 },
    { 4, 300, 6400, 8, ML_BF16 },        { 9, 200, 136, 248, ML_BF16 },
    { 150, 3, 72, 456, ML_BF16 },
};

static void build_wide_moe(ck_case *c, int i) {
    build_moe_variant(c, &wide_moe[i]);
}

const ck_suite ck_moe_linear_wide = {
    .op = ML_OP_MOE_LINEAR,
    .n_case = sizeof wide_moe / sizeof *wide_moe,
    .build = build_wide_moe,
    .forward = forward_moe,
    .ref_out = 1,
    .grad_out = 1,
    .device_only = true,
    .also = also_moe,
};

/* ---- head-linear ---- */

static const struct head_variant {
    int32_t rows, heads, n, k;
    ml_dtype dtype;
} head_variants[] = {
    { 0, 2, 4, 4, ML_F32 },       { 1, 1, 1, 1, ML_F32 },      { 5, 4, 32, 16, ML_F32 },
    { 9, 3, 20, 33, ML_BF16 },    { 70, 16, 17, 24, ML_BF16 }, { 40, 2, 64, 40, ML_F32 },
    { 100, 1, 136, 72, ML_BF16 },
};

static void build_head(ck_case *c, int i) {
    const struct head_variant *v = &head_variants[i];

    ck_name(c, "%s-m%d-h%d-n%d-k%d", ml_dtype_name(v->dtype), v->rows, v->heads, v->n,
            v->k);
    c->attr.n_head = v->heads;
    c->rows.n_token = v->rows;
    c->in[0] = ck_mat(v->rows, (int64_t)v->heads * v->k);
    ck_fill(c, &c->in[0], 1.0f);
    c->w[0] = ck_cube(v->heads, v->n, v->k);
    c->w[0].dtype = v->dtype;
    c->w[0].layout = ML_PANELS;
    ck_fill(c, &c->w[0], 1.0f);
    c->out[0] = ck_mat(v->rows, (int64_t)v->heads * v->n);
}

static void forward_head(const ck_case *c, ck_ref *r) {
    const int64_t h = c->w[0].shape[0], n = c->w[0].shape[1], k = c->w[0].shape[2];

    for (int64_t t = 0; t < c->rows.n_token; t++)
        for (int64_t i = 0; i < h; i++)
            for (int64_t j = 0; j < n; j++)
                r->out[0][(t * h + i) * n + j] =
                    dot(r->in[0] + (t * h + i) * k, r->w[0] + (i * n + j) * k, k);
}

const ck_suite ck_head_linear = {
    .op = ML_OP_HEAD_LINEAR,
    .n_case = sizeof head_variants / sizeof *head_variants,
    .build = build_head,
    .forward = forward_head,
    .ref_out = 1,
    .grad_out = 1,
    .row_out = 1,
};
