#include "tests/checkop/checkop.h"

#include <math.h>

enum { NO_WEIGHT = -1 };

static const struct variant {
    int32_t n, groups, width;
    ml_dtype dtype;
    bool plus_one;
    float eps;
    int32_t n_weight; /* rows of the weight, 0: one for all groups; or NO_WEIGHT */
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
};

static void build(ck_case *c, int i) {
    const struct variant *v = &variants[i];

    int32_t n_weight = v->n_weight ? v->n_weight : 1;

    ck_name(c, "%s-n%d-g%d-w%d%s%s", ml_dtype_name(v->dtype), v->n, v->groups, v->width,
            v->plus_one ? "-plus1" : "",
            v->n_weight == NO_WEIGHT ? "-bare"
            : v->n_weight            ? "-own"
                                     : "");
    c->attr.norm.width = v->width;
    c->attr.norm.eps = v->eps;
    c->attr.norm.plus_one = v->plus_one;
    c->rows.n_token = v->n;
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

const ck_suite ck_rmsnorm = {
    .op = ML_OP_RMSNORM,
    .n_case = sizeof variants / sizeof *variants,
    .build = build,
    .forward = forward,
    .ref_out = 1,
    .grad_out = 1,
    .row_out = 1,
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
