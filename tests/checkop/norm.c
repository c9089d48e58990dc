#include "tests/checkop/checkop.h"

#include <math.h>

enum { NO_WEIGHT = -1 };

static const struct variant {
    int32_t n, groups, width;
    ml_dtype dtype;
    bool plus_one;
    float eps;
    int32_t n_weight; /* rows of the weight, 0: one for all groups; or NO_WEIGHT */
    int32_t len[4];   /* rows of each sequence; none: one of all rows */
} variants[] = {
    { 0, 1, 8, ML_F32, false, 1e-6f },
    { 1, 1, 1, ML_F32, false, 0.5f },
    { 3, 1, 15, ML_F32, false, 1e-6f },
    { 3, 1, 16, ML_F32, true, 1e-5f },
    { 5, 1, 17, ML_BF16, false, 1e-6f },
    { 2, 3, 31, ML_BF16, true, 1e-6f },
    { 4, 4, 64, ML_F32, false, 1e-6f },
    { 40, 1, 1030, ML_F32, false, 1e-5f },
    { 3, 4, 18, ML_F32, false, 1e-5f, 4 },
    { 5, 6, 16, ML_BF16, true, 1e-5f, 2 },
    { 6, 3, 18, ML_F32, false, 1e-6f, NO_WEIGHT },
    { 2, 1, 9000, ML_F32, false, 1e-6f },
    { 2, 1, 16384, ML_F32, false, 1e-6f, NO_WEIGHT },
    { 61, 4, 18, ML_F32, false, 1e-5f, 2, .len = { 1, 40, 3, 17 } },
    { 9, 2, 520, ML_BF16, false, 1e-6f },
    { 70, 1, 2560, ML_BF16, false, 1e-6f },
    { 35, 1, 5120, ML_BF16, true, 1e-6f },
    { 3, 1, 7000, ML_BF16, false, 1e-6f },
};

static void build(ck_case *c, int i) {
    const struct variant *v = &variants[i];

    int32_t n_weight = v->n_weight ? v->n_weight : 1;

    ck_name(c, "%s-n%d-g%d-w%d%s%s", ml_dtype_name(v->dtype), v->n, v->groups, v->width,
            v->plus_one ? "-plus1" : "",
            v->n_weight == NO_WEIGHT ? "-bare"
            : v->len[0]              ? "-seqs"
            : v->n_weight            ? "-own"
                                     : "");
    c->attr.norm.width = v->width;
    c->attr.norm.eps = v->eps;
    c->attr.norm.plus_one = v->plus_one;
    c->rows.n_token = v->n;
    if (v->len[0])
        ck_page_rows(c, v->len, 4);
    c->in[0] = ck_mat(v->n, (int64_t)v->groups * v->width);
    ck_fill(c, &c->in[0], 3.0f);
    c->out[0] = ck_mat(v->n, (int64_t)v->groups * v->width);
    if (v->n_weight == NO_WEIGHT)
        return;
    c->w[0] = ck_vec((int64_t)n_weight * v->width);
    c->w[0].dtype = v->dtype;
    ck_fill(c, &c->w[0], 1.0f);
}

static void forward(const ck_case *c, ck_ref *r) {
    int64_t width = c->attr.norm.width, n = ml_tensor_count(&c->in[0]) / width;

    for (int64_t g = 0; g < n; g++) {
        const double *x = r->in[0] + g * width;
        const double *w = r->w[0] ? r->w[0] + g % (c->w[0].shape[0] / width) * width : NULL;
        double sum = 0.0, scale;
        for (int64_t i = 0; i < width; i++)
            sum += x[i] * x[i];
        scale = 1.0 / sqrt(sum / (double)width + (double)c->attr.norm.eps);
        for (int64_t i = 0; i < width; i++)
            r->out[0][g * width + i] =
                x[i] * scale * ((w ? w[i] : 1.0) + (c->attr.norm.plus_one ? 1.0 : 0.0));
    }
}

/* The scale of group g as the op computes it: lanes of sixteen, then a tree. */
static float scale_of(const double *x, int64_t width, float eps) {
    float lane[16] = { 0 };

    for (int64_t i = 0; i < width; i++)
        lane[i % 16] = fmaf((float)x[i], (float)x[i], lane[i % 16]);
    for (int w = 8; w > 0; w /= 2)
        for (int i = 0; i < w; i++)
            lane[i] += lane[i + w];
    return 1.0f / sqrtf(lane[0] / (float)width + eps);
}

/* What groups begin .. end - 1 add to element k of the gradient. */
static float sum_of_seq(const ck_case *c, const double *x, const double *dy, int64_t k,
                        int64_t begin, int64_t end) {
    int64_t width = c->attr.norm.width, n_weight = c->w[0].shape[0] / width;
    double sum = 0;

    for (int64_t g = begin; g < end; g++) {
        float h = (float)x[g * width + k % width] *
                  scale_of(x + g * width, width, c->attr.norm.eps);
        if (g % n_weight == k / width)
            sum += dy[g * width + k % width] * (double)h;
    }
    return (float)sum;
}

/* The gradient of the weight is a sum in f64 for each sequence, rounded and added. */
static void check_sums(ck_env *e, const ck_case *c) {
    int64_t width = c->attr.norm.width, groups = c->in[0].shape[1] / width;
    const double *x = ck_values(c->arena, &c->in[0]),
                 *dy = ck_values(c->arena, &c->dout[0]);
    const double *got, *dw = ck_values(c->arena, &c->dw[0]);
    ck_mode mode = { .backward = true, .add = true, .in_place = CK_ALL, .only = CK_ALL };
    ck_result r;

    mode.backend = e->n_backend - 1;
    ck_run(e, c, mode, &r);
    got = ck_values(c->arena, &r.dw[0]);
    for (int64_t k = 0; k < c->w[0].shape[0]; k++) {
        float want = (float)dw[k];
        for (int32_t i = 0; i < c->rows.n_seq; i++)
            want += sum_of_seq(c, x, dy, k, c->rows.seq_start[i] * groups,
                               c->rows.seq_start[i + 1] * groups);
        if (got[k] != (double)want)
            ck_fail(e, "dw[%lld] is %.9g, the sums of the sequences give %.9g",
                    (long long)k, got[k], (double)want);
    }
}

static void also(ck_env *e, const ck_case *c) {
    if (e->backend[0].dev->host && c->rows.n_seq)
        check_sums(e, c);
}

const ck_suite ck_rmsnorm = {
    .op = ML_OP_RMSNORM,
    .n_case = sizeof variants / sizeof *variants,
    .build = build,
    .forward = forward,
    .ref_out = 1,
    .grad_out = 1,
    .row_out = 1,
    .also = also,
};

/* ---- layernorm ---- */

static const struct layer_variant {
    int32_t n, width;
    ml_dtype dtype;
} layer_variants[] = {
    { 0, 8, ML_F32 },  { 1, 5, ML_F32 },   { 3, 15, ML_F32 },
    { 3, 16, ML_F32 }, { 5, 17, ML_BF16 }, { 40, 130, ML_F32 },
};

static void build_layer(ck_case *c, int i) {
    const struct layer_variant *v = &layer_variants[i];

    ck_name(c, "%s-n%d-w%d", ml_dtype_name(v->dtype), v->n, v->width);
    c->attr.norm.width = v->width;
    c->attr.norm.eps = 1e-3f;
    c->rows.n_token = v->n;
    c->in[0] = ck_mat(v->n, v->width);
    ck_fill(c, &c->in[0], 3.0f);
    for (int k = 0; k < 2; k++) {
        c->w[k] = ck_vec(v->width);
        c->w[k].dtype = v->dtype;
        ck_fill(c, &c->w[k], 1.0f);
    }
    c->out[0] = ck_mat(v->n, v->width);
}

static void layer_forward(const ck_case *c, ck_ref *r) {
    int64_t width = c->attr.norm.width;

    for (int64_t t = 0; t < c->rows.n_token; t++) {
        const double *x = r->in[0] + t * width;
        double mean = 0.0, var = 0.0;
        for (int64_t i = 0; i < width; i++)
            mean += x[i] / (double)width;
        for (int64_t i = 0; i < width; i++)
            var += (x[i] - mean) * (x[i] - mean) / (double)width;
        for (int64_t i = 0; i < width; i++)
            r->out[0][t * width + i] =
                (x[i] - mean) / sqrt(var + (double)c->attr.norm.eps) * r->w[0][i] +
                r->w[1][i];
    }
}

const ck_suite ck_layernorm = {
    .op = ML_OP_LAYERNORM,
    .n_case = sizeof layer_variants / sizeof *layer_variants,
    .build = build_layer,
    .forward = layer_forward,
    .ref_out = 1,
    .grad_out = 1,
    .row_out = 1,
};
