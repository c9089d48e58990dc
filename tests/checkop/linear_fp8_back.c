/* linear_fp8_back.c - gradients of LINEAR as FP8 products, which GPUs alone have.
 *
 * The reference rounds the operands as the kernels do, and multiplies in f64. */
#include <math.h>
#include <string.h>

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

/* Rounds n numbers to a format with the scale amax / its largest number; returns the scale.  KV codes
 * of numbers up to the format's largest have the scale 1. */
static float encode_group(ml_dtype format, float *x, int64_t n, uint8_t *code) {
    const float most = format == ML_KV_E5M2 ? 57344.0f : 448.0f;
    float amax = 0.0f, scale, inverse;

    for (int64_t i = 0; i < n; i++)
        amax = fmaxf(amax, fabsf(x[i]));
    scale = fmaxf(amax, 1e-30f) / most;
    inverse = 1.0f / scale;
    for (int64_t i = 0; i < n; i++)
        x[i] = fmaxf(fminf(x[i] * inverse, most), -most);
    return scale * ml_kv_encode(format, x, n, code);
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
            scale = encode_group(format, group, n, code);
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
            scale = encode_group(ML_KV_E4M3, block, rows * GROUP, code);
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

/* ---- LINEARs with one input ---- */

/* The case's LINEAR on the device, which two with its first outputs and the others must equal. */
typedef struct split {
    const ck_case *c;
    ml_backend *be;
    ml_buf memory;
    size_t used;
    ml_op_args whole;
} split;

static void *take(split *s, size_t bytes) {
    void *at = (unsigned char *)s->memory.ptr + s->used;

    s->used += (bytes + 255) / 256 * 256;
    return at;
}

/* Columns [begin, end) of a matrix, in bf16. */
static ml_tensor send_columns(split *s, const ml_tensor *t, int64_t begin, int64_t end) {
    ml_tensor to = ck_mat(t->shape[0], end - begin);
    const float *from = t->data;
    uint16_t *x = ML_NEW(s->c->arena, uint16_t, ml_tensor_count(&to));

    to.dtype = ML_BF16;
    to.data = take(s, ml_tensor_bytes(&to));
    for (int64_t i = 0; i < ml_tensor_count(&to); i++)
        x[i] = ml_f32_to_bf16(
            from[i / (end - begin) * t->shape[1] + begin + i % (end - begin)]);
    s->be->dev->copy_in(s->be->stream, to.data, x, ml_tensor_bytes(&to));
    return to;
}

static ml_tensor send_zeros(split *s, ml_dtype dtype, int64_t rows, int64_t cols) {
    ml_tensor to = ck_mat(rows, cols);

    to.dtype = dtype;
    to.data = take(s, ml_tensor_bytes(&to));
    s->be->dev->copy_in(s->be->stream, to.data,
                        ML_NEW(s->c->arena, unsigned char, (int64_t)ml_tensor_bytes(&to)),
                        ml_tensor_bytes(&to));
    return to;
}

static ml_tensor send_codes(split *s, const ml_tensor *w) {
    ml_tensor to = *w;
    unsigned char *rows;

    to.layout = ml_codes_layout(w->dtype, s->be->linear);
    rows = ML_NEW(s->c->arena, unsigned char, (int64_t)ml_tensor_bytes(&to));
    to.data = rows;
    for (int64_t i = 0; i < w->shape[0]; i++) {
        const ck_fp8_row row = ck_fp8_weight(s->c->arena, w, 0, i);
        ml_codes_put(&to, i, 0, w->shape[1], row.code);
        ml_codes_put_scales(&to, i, row.scale);
    }
    to.data = take(s, ml_tensor_bytes(&to));
    s->be->dev->copy_in(s->be->stream, to.data, rows, ml_tensor_bytes(&to));
    return to;
}

/* Rows [begin, end) of a matrix on the device; whole panels. */
static ml_tensor rows_of(const ml_tensor *t, int64_t begin, int64_t end) {
    ml_tensor before = *t, rows = *t;

    before.shape[0] = begin;
    rows.shape[0] = end - begin;
    rows.data = (unsigned char *)t->data + ml_tensor_bytes(&before);
    return rows;
}

/* Outputs [begin, end) of the whole. */
static ml_op_call part_of(split *s, int64_t begin, int64_t end, const ml_tensor *dx,
                          const ml_tensor *dw, bool add) {
    ml_op_call part = { .op = ML_OP_LINEAR, .args = s->whole };

    part.args.w[0] = rows_of(&s->whole.w[0], begin, end);
    part.args.dw[0] = rows_of(dw, begin, end);
    part.args.dout[0] = send_columns(s, &s->c->dout[0], begin, end);
    part.args.out[0] = part.args.dout[0];
    part.args.din[0] = *dx;
    part.args.din_add[0] = add;
    part.args.dw_write[0] = true;
    return part;
}

static bool open_split(split *s, ck_env *e, const ck_case *c) {
    const int64_t m = c->in[0].shape[0], n = c->w[0].shape[0], k = c->w[0].shape[1];
    ml_err err;

    *s = (split){ .c = c, .be = &e->backend[0] };
    if (s->be->dev->alloc(s->be->dev, &s->memory, (size_t)64 << 20, ML_MEM_ACT, &err)) {
        ck_fail(e, "%s", err.msg);
        return false;
    }
    s->whole =
        (ml_op_args){ .attr = &c->attr, .rows = &c->rows, .grad_format = c->grad_format };
    s->whole.in[0] = send_columns(s, &c->in[0], 0, k);
    s->whole.w[0] = send_codes(s, &c->w[0]);
    s->whole.dout[0] = s->whole.out[0] = send_columns(s, &c->dout[0], 0, n);
    s->whole.din[0] = send_zeros(s, ML_BF16, m, k);
    s->whole.dw[0] = send_zeros(s, ML_F32, n, k);
    return true;
}

static bool same_bytes(split *s, const ml_tensor *a, const ml_tensor *b) {
    const size_t bytes = ml_tensor_bytes(a);
    unsigned char *x = ML_NEW(s->c->arena, unsigned char, 2 * (int64_t)bytes);
    ml_err err;

    s->be->dev->copy_out(s->be->stream, x, a->data, bytes);
    s->be->dev->copy_out(s->be->stream, x + bytes, b->data, bytes);
    return s->be->dev->sync(s->be->stream, &err) == ML_OK &&
           memcmp(x, x + bytes, bytes) == 0;
}

/* Backward of two LINEARs with one input as one piece of work has the bits of one LINEAR with all outputs.
 * That adds to zeros, they write, also over the numbers of a first run. */
static void same_as_whole(ck_env *e, const ck_case *c) {
    const int64_t m = c->in[0].shape[0], n = c->w[0].shape[0], k = c->w[0].shape[1];
    ml_tensor dx, dw;
    ml_op_call part[2];
    split s;

    if (n == GROUP || !open_split(&s, e, c))
        return;
    dx = send_zeros(&s, ML_BF16, m, k);
    dw = send_zeros(&s, ML_F32, n, k);
    part[0] = part_of(&s, GROUP, n, &dx, &dw, false);
    part[1] = part_of(&s, 0, GROUP, &dx, &dw, true);
    s.whole.scratch = take(&s, 0);
    part[0].args.scratch = part[1].args.scratch = s.whole.scratch;
    s.be->ops->backward[ML_OP_LINEAR](s.be->stream, &s.whole);
    s.be->ops->together_back(s.be->stream, part, 2);
    if (s.be->ops->together_back(s.be->stream, part, 2) != 2)
        ck_fail(e, "two products with one input are not computed together");
    else if (!same_bytes(&s, &s.whole.din[0], &dx) || !same_bytes(&s, &s.whole.dw[0], &dw))
        ck_fail(e, "gradients of two products with one input differ from those of one");
    s.be->dev->free(&s.memory);
}

static void also(ck_env *e, const ck_case *c) {
    same_as_reference(e, c);
    same_as_whole(e, c);
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
    .also = also,
};
