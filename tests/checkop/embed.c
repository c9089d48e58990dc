#include "tests/checkop/checkop.h"

static const struct variant {
    int32_t n, vocab, width;
    ml_dtype dtype;
    ml_layout layout;
    float scale;
    int32_t past; /* ids past the end of the table */
} variants[] = {
    { 0, 3, 5, ML_F32, ML_ROWS, 1.0f },       { 1, 1, 1, ML_F32, ML_ROWS, 1.0f },
    { 9, 5, 17, ML_F32, ML_ROWS, 1.0f },      { 9, 33, 31, ML_BF16, ML_ROWS, 5.65f },
    { 7, 17, 16, ML_F32, ML_PANELS, 1.0f },   { 7, 15, 15, ML_F32, ML_PANELS, 0.3f },
    { 20, 50, 33, ML_BF16, ML_PANELS, 8.0f }, { 40, 21, 1100, ML_BF16, ML_PANELS, 1.0f },
    { 12, 5, 17, ML_F32, ML_ROWS, 2.0f, 4 },
};

static void build(ck_case *c, int i) {
    const struct variant *v = &variants[i];

    ck_name(c, "%s-%s-n%d-v%d-h%d-x%g%s", ml_dtype_name(v->dtype),
            v->layout == ML_ROWS ? "rows" : "panels", v->n, v->vocab, v->width,
            (double)v->scale, v->past ? "-past" : "");
    c->attr.embed_scale = v->scale;
    c->rows.n_token = v->n;
    c->rows.id = ck_ints(c, v->n, v->vocab + v->past);
    c->w[0] = ck_mat(v->vocab, v->width);
    c->w[0].dtype = v->dtype;
    c->w[0].layout = v->layout;
    ck_fill(c, &c->w[0], 1.0f);
    c->out[0] = ck_mat(v->n, v->width);
}

static void forward(const ck_case *c, ck_ref *r) {
    int64_t width = c->w[0].shape[1];
    for (int64_t t = 0; t < c->rows.n_token; t++) {
        int64_t row = c->rows.id[t] < c->w[0].shape[0] ? c->rows.id[t] : 0;
        for (int64_t i = 0; i < width; i++)
            r->out[0][t * width + i] =
                r->w[0][row * width + i] * (double)c->attr.embed_scale;
    }
}

/* Device tokens are read from the sampler's output. */
static void also(ck_env *e, const ck_case *c) {
    ck_mode m = { .backend = e->n_backend - 1, .in_place = CK_ALL, .only = CK_ALL };
    int32_t n = c->rows.n_token;
    int32_t *id = ML_NEW(c->arena, int32_t, n + 1);
    int32_t *drawn = ML_NEW(c->arena, int32_t, n + 1);
    ck_case d = *c;
    ck_result want, got;

    for (int32_t t = 0; t < n; t++) {
        drawn[n - 1 - t] = c->rows.id[t];
        id[t] = t % 3 ? ML_DEVICE_TOKEN(n - 1 - t) : c->rows.id[t];
    }
    d.rows.id = id;
    d.rows.drawn = drawn;
    ck_run(e, c, m, &want);
    ck_run(e, &d, m, &got);
    e->now = c;
    ck_same_result(e, "differs with tokens that were drawn", &want, &got);
}

const ck_suite ck_embed = {
    .op = ML_OP_EMBED,
    .n_case = sizeof variants / sizeof *variants,
    .build = build,
    .forward = forward,
    .ref_out = 1,
    .grad_out = 1,
    .row_out = 1,
    .also = also,
};
