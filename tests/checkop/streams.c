#include "tests/checkop/checkop.h"

#include <math.h>

/* ---- tanh, cutoff ---- */

static const struct row_variant {
    int32_t n, width;
    float z; /* of cutoff */
} row_variants[] = { { 0, 4, 0.5f },  { 1, 1, 0.0f },    { 3, 4, -0.5f },
                     { 3, 15, 1.0f }, { 5, 17, -1.25f }, { 40, 130, 1.645f } };

static void build_row(ck_case *c, int i) {
    const struct row_variant *v = &row_variants[i];

    ck_name(c, "n%d-w%d", v->n, v->width);
    c->attr.cutoff = v->z;
    c->rows.n_token = v->n;
    c->in[0] = c->out[0] = ck_mat(v->n, v->width);
    ck_fill(c, &c->in[0], 3.0f);
}

static void tanh_forward(const ck_case *c, ck_ref *r) {
    for (int64_t i = 0; i < ml_tensor_count(&c->out[0]); i++)
        r->out[0][i] = tanh(r->in[0][i]);
}

const ck_suite ck_tanh = {
    .op = ML_OP_TANH,
    .n_case = sizeof row_variants / sizeof *row_variants,
    .build = build_row,
    .forward = tanh_forward,
    .ref_out = 1,
    .grad_out = 1,
    .row_out = 1,
};

static void cutoff_forward(const ck_case *c, ck_ref *r) {
    int64_t width = c->in[0].shape[1];

    for (int64_t t = 0; t < c->rows.n_token; t++) {
        const double *x = r->in[0] + t * width;
        double mean = 0.0, var = 0.0, at;
        for (int64_t i = 0; i < width; i++)
            mean += x[i] / (double)width;
        for (int64_t i = 0; i < width; i++)
            var += (x[i] - mean) * (x[i] - mean) / (double)width;
        at = mean + (double)c->attr.cutoff * sqrt(var);
        for (int64_t i = 0; i < width; i++)
            r->out[0][t * width + i] = x[i] > at ? x[i] - at : 0.0;
    }
}

/* A row of one number is its own mean: the derivative does not exist there. */
const ck_suite ck_cutoff = {
    .op = ML_OP_CUTOFF,
    .n_case = sizeof row_variants / sizeof *row_variants,
    .build = build_row,
    .forward = cutoff_forward,
    .ref_out = 1,
    .grad_out = 1,
    .row_out = 1,
};

/* ---- match-rms ---- */

static const struct match_variant {
    int32_t n, width;
    float amp, eps;
} match_variants[] = { { 0, 4, 1.0f, 1e-5f },
                       { 1, 2, 1.0f, 1e-5f },
                       { 3, 15, 0.01f, 1e-3f }, /* below the bound */
                       { 5, 17, 2.0f, 1e-5f },
                       { 40, 130, 2.0f, 1e-5f } };

static void build_match(ck_case *c, int i) {
    const struct match_variant *v = &match_variants[i];

    ck_name(c, "n%d-h%d%s", v->n, v->width, v->amp < 0.1f ? "-small" : "");
    c->attr.match_eps = v->eps;
    c->rows.n_token = v->n;
    c->in[0] = c->in[1] = c->out[0] = ck_mat(v->n, v->width);
    ck_fill(c, &c->in[0], v->amp);
    ck_fill(c, &c->in[1], 2.0f);
}

static double mean_square(const double *x, int64_t n) {
    double sum = 0.0;
    for (int64_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    return sum / (double)n;
}

static void match_forward(const ck_case *c, ck_ref *r) {
    int64_t width = c->in[0].shape[1];

    for (int64_t t = 0; t < c->rows.n_token; t++) {
        const double *x = r->in[0] + t * width, *like = r->in[1] + t * width;
        double own = fmax(mean_square(x, width), (double)c->attr.match_eps);
        for (int64_t i = 0; i < width; i++)
            r->out[0][t * width + i] = x[i] * sqrt(mean_square(like, width) / own);
    }
}

const ck_suite ck_match_rms = {
    .op = ML_OP_MATCH_RMS,
    .n_case = sizeof match_variants / sizeof *match_variants,
    .build = build_match,
    .forward = match_forward,
    .ref_out = 1,
    .grad_out = 1,
    .row_out = 1,
};

/* ---- stream-mix ---- */

static const struct mix_variant {
    int32_t n, width, n_in, n_out;
    bool y, streams, extra, base;
} mix_variants[] = {
    { 0, 4, 2, 2, true, true, true, true },     { 1, 1, 1, 1, false, true, false, false },
    { 3, 15, 4, 4, false, true, false, true },  { 3, 16, 4, 4, true, false, true, true },
    { 5, 17, 4, 1, false, true, false, false }, { 5, 6, 4, 4, true, true, true, false },
    { 4, 9, 3, 2, true, false, false, true },   { 9, 130, 8, 8, true, true, true, true },
};

static void build_mix(ck_case *c, int i) {
    const struct mix_variant *v = &mix_variants[i];
    int32_t each = (v->streams ? v->n_in : 0) + (v->extra ? 1 : 0);
    ml_tensor base = ck_mat(v->n_out, v->n_in + 1);

    ck_name(c, "n%d-h%d-%dto%d%s%s%s", v->n, v->width, v->n_in, v->n_out, v->y ? "-y" : "",
            v->streams ? "-streams" : "", v->extra ? "-extra" : "");
    ck_fill(c, &base, v->base ? 1.0f : 0.0f);
    for (int32_t r = 0; r < v->n_out && !v->y; r++)
        ((float *)base.data)[r * (v->n_in + 1) + v->n_in] = 0.0f;
    if (v->base && v->n_out > 1)
        ((float *)base.data)[1] = 0.0f;
    c->attr.mix.n_in = v->n_in;
    c->attr.mix.n_out = v->n_out;
    c->attr.mix.streams = v->streams;
    c->attr.mix.extra = v->extra;
    c->attr.mix.base = base.data;
    c->rows.n_token = v->n;
    c->in[0] = ck_mat(v->n, (int64_t)v->n_in * v->width);
    ck_fill(c, &c->in[0], 2.0f);
    c->out[0] = ck_mat(v->n, (int64_t)v->n_out * v->width);
    if (v->y) {
        c->in[1] = ck_mat(v->n, v->width);
        ck_fill(c, &c->in[1], 2.0f);
    }
    if (each) {
        c->in[2] = ck_mat(v->n, (int64_t)v->n_out * each);
        ck_fill(c, &c->in[2], 1.0f);
    }
}

static void mix_forward(const ck_case *c, ck_ref *r) {
    int32_t n_in = c->attr.mix.n_in, n_out = c->attr.mix.n_out;
    int64_t width = c->in[0].shape[1] / n_in;
    int64_t each = c->in[2].n_dim ? c->in[2].shape[1] / n_out : 0;

    for (int64_t t = 0; t < c->rows.n_token; t++)
        for (int32_t o = 0; o < n_out; o++)
            for (int64_t i = 0; i < width; i++) {
                const double *own =
                    r->in[2] ? r->in[2] + t * each * n_out + o * each : NULL;
                double sum = 0.0;
                for (int32_t s = 0; s <= n_in; s++) {
                    double k = (double)c->attr.mix.base[o * (n_in + 1) + s], x = 0.0;
                    if (s < n_in ? c->attr.mix.streams : c->attr.mix.extra)
                        k += own[s < n_in ? s : each - 1];
                    if (s < n_in)
                        x = r->in[0][(t * n_in + s) * width + i];
                    else if (r->in[1])
                        x = r->in[1][t * width + i];
                    sum += k * x;
                }
                r->out[0][(t * n_out + o) * width + i] = sum;
            }
}

const ck_suite ck_stream_mix = {
    .op = ML_OP_STREAM_MIX,
    .n_case = sizeof mix_variants / sizeof *mix_variants,
    .build = build_mix,
    .forward = mix_forward,
    .ref_out = 1,
    .grad_out = 1,
    .row_out = 1,
};

/* ---- hyper-coef ---- */

static const struct hyper_variant {
    int32_t n, streams, iter;
    bool head;
} hyper_variants[] = { { 0, 4, 20, false }, { 3, 1, 1, false }, { 5, 2, 3, false },
                       { 6, 4, 20, false }, { 3, 8, 2, false }, { 7, 4, 1, true } };

static void build_hyper(ck_case *c, int i) {
    const struct hyper_variant *v = &hyper_variants[i];
    int32_t s = v->streams, n_in = v->head ? s : s * (s + 2);

    ck_name(c, "n%d-s%d-i%d%s", v->n, s, v->iter, v->head ? "-head" : "");
    c->attr.hyper.n_stream = s;
    c->attr.hyper.n_iter = v->iter;
    c->attr.hyper.eps = 1e-3f;
    c->attr.hyper.head = v->head;
    c->exact = true;
    c->rows.n_token = v->n;
    c->in[0] = ck_mat(v->n, n_in);
    ck_fill(c, &c->in[0], 2.0f);
    c->w[0] = ck_vec(v->head ? 1 : 3);
    ck_fill(c, &c->w[0], 1.0f);
    c->w[1] = ck_vec(n_in);
    ck_fill(c, &c->w[1], 1.0f);
    c->out[0] = ck_mat(v->n, v->head ? s : s + s * (s + 1));
}

static double logistic(double x) {
    return 1.0 / (1.0 + exp(-x));
}

/* m [s][s] with lines that sum to 1: columns, then n_iter - 1 times rows and columns. */
static void normalize(double *m, int32_t s, int32_t n_iter, double eps) {
    for (int32_t step = 0; step < 2 * n_iter - 1; step++)
        for (int32_t i = 0; i < s; i++) {
            int32_t first = step % 2 ? i * s : i, by = step % 2 ? 1 : s;
            double sum = eps;
            for (int32_t k = 0; k < s; k++)
                sum += m[first + k * by];
            for (int32_t k = 0; k < s; k++)
                m[first + k * by] /= sum;
        }
}

static void hyper_row(const ck_case *c, const double *l, double *out) {
    int32_t s = c->attr.hyper.n_stream;
    double m[ML_STREAMS * ML_STREAMS], eps = (double)c->attr.hyper.eps;

    for (int32_t i = 0; i < s; i++)
        out[i] = logistic(l[i]) + eps;
    if (c->attr.hyper.head)
        return;
    for (int32_t i = 0; i < s; i++) {
        double sum = 0;
        for (int32_t k = 0; k < s; k++)
            sum += exp(l[2 * s + i * s + k]);
        for (int32_t k = 0; k < s; k++)
            m[i * s + k] = exp(l[2 * s + i * s + k]) / sum + eps;
    }
    normalize(m, s, c->attr.hyper.n_iter, eps);
    for (int32_t r = 0; r < s; r++) {
        for (int32_t k = 0; k < s; k++)
            out[s + r * (s + 1) + k] = m[k * s + r];
        out[s + r * (s + 1) + s] = 2 * logistic(l[s + r]);
    }
}

static void hyper_forward(const ck_case *c, ck_ref *r) {
    int32_t s = c->attr.hyper.n_stream;
    int64_t n_in = c->in[0].shape[1];

    for (int64_t t = 0; t < c->rows.n_token; t++) {
        double l[ML_STREAMS * (ML_STREAMS + 2)];
        for (int64_t i = 0; i < n_in; i++)
            l[i] = r->in[0][t * n_in + i] * r->w[0][i < s       ? 0
                                                    : i < 2 * s ? 1
                                                                : 2] +
                   r->w[1][i];
        hyper_row(c, l, r->out[0] + t * c->out[0].shape[1]);
    }
}

const ck_suite ck_hyper_coef = {
    .op = ML_OP_HYPER_COEF,
    .n_case = sizeof hyper_variants / sizeof *hyper_variants,
    .build = build_hyper,
    .forward = hyper_forward,
    .ref_out = 1,
    .grad_out = 1,
    .row_out = 1,
};
