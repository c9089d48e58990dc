#include "tests/checkop/checkop.h"

#include <math.h>

/* ---- rope-table ---- */

static const struct table_variant {
    int32_t n, dim, top; /* positions below top */
    float scale, temper, temper_step;
    int32_t stride;
} table_variants[] = {
    { 0, 8, 10, 1.0f },
    { 1, 2, 1, 1.0f },
    { 9, 34, 5000, 1.0f },
    { 50, 128, 1 << 24, 1.3465735f },
    { 30, 6, 90, 1.0f, 0.3f, 16.0f },
    { 30, 6, 70, 1.0f, .stride = 4 },
};

/* Frequencies as in a model, f32 numbers: base^(-2i/dim) by repeated products. */
static ml_rope *make_rope(ck_case *c, int32_t dim, float scale) {
    ml_rope *rope = ML_NEW(c->arena, ml_rope, 1);
    float *freq = ML_NEW(c->arena, float, dim / 2), f = 1.0f;

    for (int32_t i = 0; i < dim / 2; i++, f *= 0.83f)
        freq[i] = f;
    *rope = (ml_rope){ .dim = dim, .freq = freq, .scale = scale };
    return rope;
}

static void build_table(ck_case *c, int i) {
    const struct table_variant *v = &table_variants[i];
    ml_rope *rope;

    ck_name(c, "n%d-dim%d-pos%d%s", v->n, v->dim, v->top, v->stride ? "-stride" : "");
    rope = make_rope(c, v->dim, v->scale);
    rope->temper = v->temper;
    rope->temper_step = v->temper_step;
    rope->stride = v->stride;
    c->attr.rope.rope = rope;
    c->rows.n_token = v->n;
    c->rows.pos = ck_ints(c, v->n, v->top);
    c->out[0] = ck_cube(v->n, 2, v->dim / 2);
}

static void table_forward(const ck_case *c, ck_ref *r) {
    const ml_rope *rope = c->attr.rope.rope;
    int64_t half = rope->dim / 2;

    for (int64_t t = 0; t < c->rows.n_token; t++) {
        int32_t pos = c->rows.pos[t];
        double scale = (double)rope->scale;
        if (rope->temper_step > 0.0f)
            scale *= 1 + (double)rope->temper *
                             log1p(floor((c->rows.pos[t] + 1) / (double)rope->temper_step));
        if (rope->stride)
            pos = pos / rope->stride * rope->stride;
        for (int64_t i = 0; i < half; i++) {
            float angle = (float)pos * rope->freq[i];
            r->out[0][2 * t * half + i] = cos((double)angle) * scale;
            r->out[0][(2 * t + 1) * half + i] = sin((double)angle) * scale;
        }
    }
}

const ck_suite ck_rope_table = {
    .op = ML_OP_ROPE_TABLE,
    .n_case = sizeof table_variants / sizeof *table_variants,
    .build = build_table,
    .forward = table_forward,
    .ref_out = 1,
    .row_out = 1,
};

/* ---- rope ---- */

static const struct variant {
    int32_t n, heads, head_dim, dim;
    bool interleaved;
    int32_t at;
    bool inverse;
} variants[] = {
    { 0, 1, 4, 4, false },    { 1, 1, 2, 2, false },      { 1, 1, 2, 2, true },
    { 5, 3, 30, 30, false },  { 5, 3, 30, 30, true },     { 4, 2, 80, 34, false },
    { 4, 2, 80, 34, true },   { 3, 2, 64, 64, false },    { 40, 8, 128, 128, false },
    { 40, 8, 128, 96, true }, { 5, 3, 30, 10, true, 20 }, { 4, 2, 33, 12, false, 5, true },
};

static void build(ck_case *c, int i) {
    const struct variant *v = &variants[i];

    ck_name(c, "%s-n%d-heads%d-d%d-rot%d%s%s", v->interleaved ? "pairs" : "halves", v->n,
            v->heads, v->head_dim, v->dim, v->at ? "-at" : "",
            v->inverse ? "-inverse" : "");
    c->attr.rope.at = v->at;
    c->attr.rope.inverse = v->inverse;
    c->attr.rope.head_dim = v->head_dim;
    c->attr.rope.dim = v->dim;
    c->attr.rope.interleaved = v->interleaved;
    c->rows.n_token = v->n;
    c->in[0] = ck_mat(v->n, (int64_t)v->heads * v->head_dim);
    c->in[1] = ck_cube(v->n, 2, v->dim / 2);
    ck_fill(c, &c->in[0], 2.0f);
    ck_fill(c, &c->in[1], 1.0f);
    c->out[0] = ck_mat(v->n, (int64_t)v->heads * v->head_dim);
}

static void rotate_head(double *y, const double *x, const double *cs, int64_t half,
                        int64_t step, int64_t apart, double turn) {
    for (int64_t i = 0; i < half; i++) {
        int64_t a = i * step, b = a + apart;
        y[a] = x[a] * cs[i] - x[b] * cs[half + i] * turn;
        y[b] = x[b] * cs[i] + x[a] * cs[half + i] * turn;
    }
}

static void forward(const ck_case *c, ck_ref *r) {
    int64_t d = c->attr.rope.head_dim, dim = c->attr.rope.dim, width = c->in[0].shape[1];
    bool pairs = c->attr.rope.interleaved;

    for (int64_t i = 0; i < c->rows.n_token * width; i += d) {
        int64_t at = i + c->attr.rope.at;
        for (int64_t k = 0; k < d; k++)
            r->out[0][i + k] = r->in[0][i + k];
        rotate_head(r->out[0] + at, r->in[0] + at, r->in[1] + i / width * dim, dim / 2,
                    pairs ? 2 : 1, pairs ? 1 : dim / 2, c->attr.rope.inverse ? -1 : 1);
    }
}

const ck_suite ck_rope = {
    .op = ML_OP_ROPE,
    .n_case = sizeof variants / sizeof *variants,
    .build = build,
    .forward = forward,
    .ref_out = 1,
    .grad_out = 1,
    .row_out = 1,
};
