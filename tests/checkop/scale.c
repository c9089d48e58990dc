#include "tests/checkop/checkop.h"

/* ---- scale ---- */

static const struct variant {
    int32_t n, width;
    bool weight;
} variants[] = { { 0, 4, true },  { 1, 1, true },   { 3, 15, false },
                 { 3, 16, true }, { 5, 17, false }, { 40, 1030, true } };

static void build(ck_case *c, int i) {
    const struct variant *v = &variants[i];

    ck_name(c, "n%d-h%d%s", v->n, v->width, v->weight ? "-w" : "");
    c->attr.scale = v->weight ? 1.0f : 0.7071f;
    c->rows.n_token = v->n;
    c->in[0] = c->out[0] = ck_mat(v->n, v->width);
    ck_fill(c, &c->in[0], 2.0f);
    if (!v->weight)
        return;
    c->w[0] = ck_vec(1);
    ck_fill(c, &c->w[0], 2.0f);
}

static void forward(const ck_case *c, ck_ref *r) {
    double by = r->w[0] ? r->w[0][0] : (double)c->attr.scale;
    for (int64_t i = 0; i < ml_tensor_count(&c->out[0]); i++)
        r->out[0][i] = r->in[0][i] * by;
}

const ck_suite ck_scale = {
    .op = ML_OP_SCALE,
    .n_case = sizeof variants / sizeof *variants,
    .build = build,
    .forward = forward,
    .ref_out = 1,
    .grad_out = 1,
    .frozen = true,
    .row_out = 1,
};

/* ---- col-scale ---- */

static const struct column_variant {
    int32_t n, width;
    ml_dtype dtype;
} column_variants[] = { { 0, 4, ML_F32 },
                        { 1, 1, ML_F32 },
                        { 3, 15, ML_BF16 },
                        { 3, 16, ML_F32 },
                        { 40, 130, ML_F32 } };

static void build_columns(ck_case *c, int i) {
    const struct column_variant *v = &column_variants[i];

    ck_name(c, "%s-n%d-h%d", ml_dtype_name(v->dtype), v->n, v->width);
    c->rows.n_token = v->n;
    c->in[0] = c->out[0] = ck_mat(v->n, v->width);
    ck_fill(c, &c->in[0], 2.0f);
    c->w[0] = ck_vec(v->width);
    c->w[0].dtype = v->dtype;
    ck_fill(c, &c->w[0], 2.0f);
}

static void columns_forward(const ck_case *c, ck_ref *r) {
    for (int64_t i = 0; i < ml_tensor_count(&c->out[0]); i++)
        r->out[0][i] = r->in[0][i] * r->w[0][i % c->w[0].shape[0]];
}

const ck_suite ck_col_scale = {
    .op = ML_OP_COL_SCALE,
    .n_case = sizeof column_variants / sizeof *column_variants,
    .build = build_columns,
    .forward = columns_forward,
    .ref_out = 1,
    .grad_out = 1,
    .row_out = 1,
};

/* ---- moe-scale ---- */

static const struct moe_variant {
    int32_t n, experts, k;
} moe_variants[] = { { 0, 4, 2 }, { 1, 1, 1 }, { 5, 15, 3 }, { 9, 33, 8 }, { 70, 64, 6 } };

static void build_moe(ck_case *c, int i) {
    const struct moe_variant *v = &moe_variants[i];

    ck_name(c, "n%d-e%d-k%d", v->n, v->experts, v->k);
    c->rows.n_token = v->n;
    c->in[0] = c->out[0] = ck_mat(v->n, v->k);
    ck_fill(c, &c->in[0], 1.0f);
    c->in[1] = ck_mat(v->n, v->k);
    c->in[1].dtype = ML_I32;
    c->in[1].data = ck_ints(c, (int64_t)v->n * v->k, v->experts);
    c->w[0] = ck_vec(v->experts);
    ck_fill(c, &c->w[0], 2.0f);
}

static void moe_forward(const ck_case *c, ck_ref *r) {
    const int32_t *expert = c->in[1].data;
    for (int64_t i = 0; i < ml_tensor_count(&c->out[0]); i++)
        r->out[0][i] = r->in[0][i] * r->w[0][expert[i]];
}

const ck_suite ck_moe_scale = {
    .op = ML_OP_MOE_SCALE,
    .n_case = sizeof moe_variants / sizeof *moe_variants,
    .build = build_moe,
    .forward = moe_forward,
    .ref_out = 1,
    .grad_out = 1,
    .row_out = 1,
};
