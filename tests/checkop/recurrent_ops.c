/* recurrent_ops.c - the ops with state of a sequence, and of the layers that have it: CONV,
 * DECAY, LINEAR_RNN, COMPRESS. */
#include "tests/checkop/checkop.h"

#include <math.h>
#include <string.h>

enum { MAX_SEQ = 4, SLOTS = 6, MAX_KEY = 150, MAX_VALUE = 130 };

/* Sequences of these lengths, from position 0 on, with shuffled state slots. */
static void build_rows(ck_case *c, const int32_t *len) {
    static const int32_t slot[MAX_SEQ] = { 4, 0, 5, 2 };
    int32_t *start = ML_NEW(c->arena, int32_t, MAX_SEQ + 1), *pos, n = 0;

    for (; n < MAX_SEQ && len[n]; n++)
        start[n + 1] = start[n] + len[n];
    pos = ML_NEW(c->arena, int32_t, start[n] + 1);
    for (int32_t i = 0; i < n; i++)
        for (int32_t t = 0; t < len[i]; t++)
            pos[start[i] + t] = t;
    c->rows = (ml_rows){
        .n_token = start[n], .n_seq = n, .pos = pos, .seq_start = start, .slot = slot
    };
}

/* Slots that hold NaN: at position 0 their contents must not matter. */
static void fill_slots(ck_case *c, ml_tensor *t) {
    t->data = ml_arena_take(c->arena, ml_tensor_bytes(t) + 1, 1);
    memset(t->data, 0xff, ml_tensor_bytes(t));
}

/* --- split in two ---------------------------------------------------------------- */

static void cut_rows(const ck_case *c, ml_tensor *t, const int32_t *from, const int32_t *to,
                     bool data) {
    size_t row = t->n_dim ? ml_tensor_bytes(t) / (size_t)(c->rows.n_token) : 0, at = 0;
    char *out;

    if (!t->n_dim)
        return;
    t->shape[0] = 0;
    out = ml_arena_take(c->arena, row * (size_t)c->rows.n_token + 1, 1);
    for (int32_t i = 0; i < c->rows.n_seq; i++) {
        size_t bytes = row * (size_t)(to[i] - from[i]);
        if (data)
            memcpy(out + at, (const char *)t->data + row * (size_t)from[i], bytes);
        at += bytes;
        t->shape[0] += to[i] - from[i];
    }
    t->data = data ? out : NULL;
}

/* The part of a case with rows from[i] .. to[i] - 1 of each sequence; its slots hold
 * `kept`. */
static ck_case part_of(const ck_case *c, const int32_t *from, const int32_t *to,
                       const ml_tensor *kept) {
    ck_case p = *c;
    int32_t *start = ML_NEW(c->arena, int32_t, MAX_SEQ + 1), *pos, *slot, n = 0;

    ck_name(&p, "%.60s (cut)", c->name);
    pos = ML_NEW(c->arena, int32_t, c->rows.n_token + 1);
    slot = ML_NEW(c->arena, int32_t, MAX_SEQ);
    for (int32_t i = 0; i < c->rows.n_seq; i++) {
        if (to[i] == from[i])
            continue;
        slot[n] = c->rows.slot[i];
        start[n + 1] = start[n];
        for (int32_t t = from[i]; t < to[i]; t++)
            pos[start[n + 1]++] = c->rows.pos[t];
        n++;
    }
    p.rows = (ml_rows){
        .n_token = start[n], .n_seq = n, .pos = pos, .seq_start = start, .slot = slot
    };
    for (int i = 0; i < ML_OP_IN; i++)
        cut_rows(c, &p.in[i], from, to, true);
    cut_rows(c, &p.out[0], from, to, false);
    p.out[1] = *kept;
    return p;
}

/* Rows computed in a second call, from the saved state, have the bits of a single call. */
static void check_cuts(ck_env *e, const ck_case *c) {
    static const int32_t tenths[] = { 0, 1, 5, 9 };
    ck_mode m = { .in_place = CK_ALL, .only = CK_ALL, .special = true };
    const int32_t *start = c->rows.seq_start;
    ck_result whole;
    int32_t cut[MAX_SEQ];

    if (!c->rows.n_seq || !c->out[1].n_dim)
        return;
    ck_run(e, c, m, &whole);
    for (size_t k = 0; k < sizeof tenths / sizeof *tenths; k++) {
        ck_result a, b;
        ck_case first, second;
        for (int32_t i = 0; i < c->rows.n_seq; i++)
            cut[i] = start[i] + (start[i + 1] - start[i]) * tenths[k] / 10;
        first = part_of(c, start, cut, &c->out[1]);
        ck_run(e, &first, m, &a);
        second = part_of(c, cut, start + 1, &a.out[1]);
        m.backend = (m.backend + 1) % e->n_backend;
        ck_run(e, &second, m, &b);
        ck_same(e, "state differs when cut", &whole.out[1], &b.out[1]);
        for (int32_t i = 0, at = 0; i < c->rows.n_seq; at += start[i + 1] - cut[i], i++) {
            ml_tensor want = whole.out[0], got = b.out[0];
            size_t row = ml_tensor_bytes(&want) / (size_t)c->rows.n_token;
            want.shape[0] = got.shape[0] = start[i + 1] - cut[i];
            want.data = (char *)want.data + row * (size_t)cut[i];
            got.data = (char *)got.data + row * (size_t)at;
            ck_same(e, "rows differ when cut", &want, &got);
        }
    }
}

/* --- conv ------------------------------------------------------------------------ */

static const struct conv_variant {
    int32_t len[MAX_SEQ], width, taps;
    ml_dtype dtype;
    bool bias, kept;
} conv_variants[] = {
    { { 0 }, 16, 4, ML_F32, false, true },
    { { 1, 2, 3, 70 }, 16, 4, ML_F32, false, true },
    { { 5, 40 }, 37, 4, ML_BF16, true, true },
    { { 3 }, 17, 2, ML_F32, true, false },
    { { 20, 1 }, 96, 8, ML_F32, true, true },
    { { 9 }, 5, 1, ML_F32, false, false },
};

static void build_conv(ck_case *c, int i) {
    const struct conv_variant *v = &conv_variants[i];

    ck_name(c, "len%d.%d.%d.%d-c%d-t%d%s%s%s", v->len[0], v->len[1], v->len[2], v->len[3],
            v->width, v->taps, v->dtype == ML_BF16 ? "-bf16" : "", v->bias ? "-bias" : "",
            v->kept ? "-kept" : "");
    build_rows(c, v->len);
    c->in[0] = c->out[0] = ck_mat(c->rows.n_token, v->width);
    ck_fill(c, &c->in[0], 2.0f);
    c->w[0] = ck_mat(v->width, v->taps);
    c->w[0].dtype = v->dtype;
    ck_fill(c, &c->w[0], 1.0f);
    if (v->bias) {
        c->w[1] = ck_vec(v->width);
        ck_fill(c, &c->w[1], 1.0f);
    }
    if (v->kept) {
        c->out[1] = ck_cube(SLOTS, v->taps - 1, v->width);
        fill_slots(c, &c->out[1]);
    }
}

static void conv_forward(const ck_case *c, ck_ref *r) {
    int64_t width = c->in[0].shape[1], taps = c->w[0].shape[1];

    for (int32_t i = 0; i < c->rows.n_seq; i++)
        for (int64_t t = c->rows.seq_start[i]; t < c->rows.seq_start[i + 1]; t++)
            for (int64_t k = 0; k < width; k++) {
                double sum = r->w[1] ? r->w[1][k] : 0.0;
                for (int64_t j = 0; j < taps; j++) {
                    int64_t from = t - taps + 1 + j;
                    if (from >= c->rows.seq_start[i])
                        sum += r->w[0][k * taps + j] * r->in[0][from * width + k];
                }
                r->out[0][t * width + k] = sum / (1.0 + exp(-sum));
            }
}

const ck_suite ck_conv = {
    .op = ML_OP_CONV,
    .n_case = sizeof conv_variants / sizeof *conv_variants,
    .build = build_conv,
    .forward = conv_forward,
    .ref_out = 1,
    .grad_out = 1,
    .also = check_cuts,
};

/* --- decay ----------------------------------------------------------------------- */

static const struct rates_variant {
    int32_t n, n_head;
    bool gated;
    float amp, min_step;
} rates_variants[] = {
    { 0, 4, true, 1.0f },   { 1, 1, false, 1.0f },  { 7, 5, true, 2.0f },
    { 30, 8, false, 6.0f }, { 30, 3, true, 20.0f }, { 40, 4, false, 6.0f, 0.5f },
};

static void build_rates(ck_case *c, int i) {
    const struct rates_variant *v = &rates_variants[i];

    ck_name(c, "n%d-h%d-amp%g%s%s", v->n, v->n_head, (double)v->amp,
            v->gated ? "-gated" : "", v->min_step > 0.0f ? "-min" : "");
    c->attr.min_step = v->min_step;
    c->rows.n_token = v->n;
    c->in[0] = ck_mat(v->n, v->n_head);
    ck_fill(c, &c->in[0], v->amp);
    if (v->gated) {
        c->in[1] = ck_mat(v->n, v->n_head);
        ck_fill(c, &c->in[1], v->amp);
    }
    for (int k = 0; k < 2; k++) {
        c->w[k] = ck_vec(v->n_head);
        ck_fill(c, &c->w[k], 1.0f);
    }
    c->out[0] = ck_cube(v->n, 2, v->n_head);
}

static void rates_forward(const ck_case *c, ck_ref *r) {
    int64_t n_head = c->in[0].shape[1];

    for (int64_t t = 0; t < c->rows.n_token; t++)
        for (int64_t h = 0; h < n_head; h++) {
            double step = log1p(exp(r->in[0][t * n_head + h] + r->w[1][h]));
            double *out = r->out[0] + t * 2 * n_head + h;
            step = fmax(step, (double)c->attr.min_step);
            out[0] = exp(-exp(r->w[0][h]) * step);
            out[n_head] = r->in[1] ? 1.0 / (1.0 + exp(-r->in[1][t * n_head + h])) : step;
        }
}

const ck_suite ck_rates = {
    .op = ML_OP_DECAY,
    .n_case = sizeof rates_variants / sizeof *rates_variants,
    .build = build_rates,
    .forward = rates_forward,
    .ref_out = 1,
    .grad_out = 1,
    .row_out = 1,
};

/* --- linear-rnn ------------------------------------------------------------------ */

static const struct recur_variant {
    int32_t len[MAX_SEQ];
    int32_t n_key, n_head, dk, dv;
    bool delta, skip, kept, strong; /* strong: decays of 1e-4 */
} recur_variants[] = {
    { { 0 }, 1, 1, 8, 16, true, false, true },
    { { 1, 2, 17, 5 }, 1, 1, 16, 16, true, false, true },
    { { 70, 3 }, 2, 4, 16, 16, true, false, true },
    { { 130 }, 1, 2, 7, 20, true, false, true },
    { { 12, 66 }, 1, 1, 32, 130, true, false, true },
    { { 9 }, 3, 3, 24, 48, true, false, false },
    { { 65, 1 }, 2, 8, 16, 16, false, true, true },
    { { 20, 3, 4 }, 1, 3, 5, 80, false, true, true },
    { { 129 }, 2, 2, 16, 33, false, false, false },
    { { 18, 5 }, 1, 2, 128, 66, true, false, true },
    { { 21 }, 2, 2, 128, 64, false, true, true },
    { { 10, 3 }, 1, 1, 150, 20, true, false, true },
    { { 40, 5 }, 1, 2, 16, 20, true, false, true, true },
    { { 40 }, 1, 2, 16, 20, false, false, false, true },
    { { 260, 300 }, 1, 1, 12, 16, true, false, true },
    { { 131, 3, 64, 65 }, 1, 2, 128, 40, true, false, true },
    { { 3, 190 }, 1, 2, 16, 20, true, false, true, true },
    { { 140 }, 1, 1, 150, 24, true, false, true },
    { { 70, 129 }, 1, 2, 130, 20, false, true, true },
};

static void build_recur(ck_case *c, int i) {
    const struct recur_variant *v = &recur_variants[i];
    int64_t key = (int64_t)v->n_key * v->dk, value = (int64_t)v->n_head * v->dv, n;
    float *rate;

    ck_name(c, "%s-len%d.%d.%d.%d-h%d.%d-d%d.%d%s%s", v->delta ? "delta" : "mamba",
            v->len[0], v->len[1], v->len[2], v->len[3], v->n_key, v->n_head, v->dk, v->dv,
            v->kept ? "-kept" : "", v->strong ? "-strong" : "");
    build_rows(c, v->len);
    n = c->rows.n_token;
    c->attr.linear_rnn.n_key = v->n_key;
    c->attr.linear_rnn.n_head = v->n_head;
    c->attr.linear_rnn.key_dim = v->dk;
    c->attr.linear_rnn.value_dim = v->dv;
    c->attr.linear_rnn.delta = v->delta;
    c->attr.linear_rnn.norm_eps = 1e-6f;
    c->attr.linear_rnn.q_at = v->delta ? 0 : value + key; /* q, k, v or v, k, q */
    c->attr.linear_rnn.k_at = v->delta ? key : value;
    c->attr.linear_rnn.v_at = v->delta ? 2 * key : 0;
    c->in[0] = ck_mat(n, 2 * key + value);
    ck_fill(c, &c->in[0], 1.0f);
    c->in[1] = ck_cube(n, 2, v->n_head);
    ck_fill(c, &c->in[1], 0.3f);
    rate = c->in[1].data;
    for (int64_t k = 0; k < ml_tensor_count(&c->in[1]); k++)
        if (k / v->n_head % 2)
            rate[k] += 0.5f;
        else /* keep: 0.39 to 0.99 */
            rate[k] = (rate[k] + 0.69f) * (v->strong ? 1e-4f : 1.0f);
    if (v->skip) {
        c->w[0] = ck_vec(v->n_head);
        ck_fill(c, &c->w[0], 1.0f);
    }
    c->out[0] = ck_mat(n, value);
    if (v->kept) {
        c->out[1] = ck_cube(SLOTS, (int64_t)v->n_head * v->dk, (v->dv + 15) / 16 * 16);
        fill_slots(c, &c->out[1]);
    }
}

static void copy_normed(double *out, const double *x, int64_t n, bool norm, double scale) {
    double sum = 1e-6;
    for (int64_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    for (int64_t i = 0; i < n; i++)
        out[i] = norm ? x[i] / sqrt(sum) * scale : x[i];
}

/* One token of one head. */
static void recur_token(const ck_case *c, ck_ref *r, double *state, int64_t t, int64_t h) {
    int64_t dk = c->attr.linear_rnn.key_dim, dv = c->attr.linear_rnn.value_dim;
    int64_t n_head = c->attr.linear_rnn.n_head,
            key = h / (n_head / c->attr.linear_rnn.n_key);
    const double *x = r->in[0] + t * c->in[0].shape[1];
    const double *v = x + c->attr.linear_rnn.v_at + h * dv;
    const double *rate = r->in[1] + t * 2 * n_head + h;
    bool delta = c->attr.linear_rnn.delta;
    double q[MAX_KEY], k[MAX_KEY];

    copy_normed(q, x + c->attr.linear_rnn.q_at + key * dk, dk, delta,
                1.0 / sqrt((double)dk));
    copy_normed(k, x + c->attr.linear_rnn.k_at + key * dk, dk, delta, 1.0);
    for (int64_t j = 0; j < dv; j++) {
        double seen = 0.0, u, o = r->w[0] ? r->w[0][h] * v[j] : 0.0;
        for (int64_t i = 0; i < dk; i++) {
            state[i * dv + j] *= rate[0];
            seen += k[i] * state[i * dv + j];
        }
        u = rate[n_head] * (v[j] - (delta ? seen : 0.0));
        for (int64_t i = 0; i < dk; i++) {
            state[i * dv + j] += k[i] * u;
            o += q[i] * state[i * dv + j];
        }
        r->out[0][(t * n_head + h) * dv + j] = o;
    }
}

static void recur_forward(const ck_case *c, ck_ref *r) {
    static double state[MAX_KEY * MAX_VALUE];

    for (int32_t i = 0; i < c->rows.n_seq; i++)
        for (int32_t h = 0; h < c->attr.linear_rnn.n_head; h++) {
            memset(state, 0, sizeof state);
            for (int32_t t = c->rows.seq_start[i]; t < c->rows.seq_start[i + 1]; t++)
                recur_token(c, r, state, t, h);
        }
}

const ck_suite ck_recur = {
    .op = ML_OP_LINEAR_RNN,
    .n_case = sizeof recur_variants / sizeof *recur_variants,
    .build = build_recur,
    .forward = recur_forward,
    .ref_out = 1,
    .grad_out = 1,
    .also = check_cuts,
};

/* --- compress -------------------------------------------------------------------- */

static const struct compress_variant {
    int32_t len[MAX_SEQ], ratio, d;
    bool overlap, kept;
    ml_dtype dtype;
} compress_variants[] = {
    { { 0 }, 4, 8, true, true, ML_F32 },
    { { 3, 4, 9, 30 }, 4, 17, true, true, ML_F32 },
    { { 40, 7 }, 16, 20, false, true, ML_F32 },
    { { 13 }, 1, 5, false, true, ML_F32 },
    { { 21, 2 }, 4, 33, true, false, ML_BF16 },
};

static void build_compress(ck_case *c, int i) {
    const struct compress_variant *v = &compress_variants[i];
    int64_t width = v->overlap ? 2 * v->d : v->d;

    ck_name(c, "len%d.%d.%d.%d-r%d-d%d%s%s%s", v->len[0], v->len[1], v->len[2], v->len[3],
            v->ratio, v->d, v->overlap ? "-overlap" : "", v->kept ? "-kept" : "",
            v->dtype == ML_BF16 ? "-bf16" : "");
    build_rows(c, v->len);
    c->attr.compress_ratio = v->ratio;
    for (int k = 0; k < 2; k++) {
        c->in[k] = ck_mat(c->rows.n_token, width);
        ck_fill(c, &c->in[k], 2.0f);
    }
    c->w[0] = ck_mat(v->ratio, width);
    c->w[0].dtype = v->dtype;
    ck_fill(c, &c->w[0], 1.0f);
    c->out[0] = ck_mat(c->rows.n_token, v->d);
    if (!v->kept)
        return;
    c->out[1] = ck_cube(SLOTS, v->ratio * (v->overlap ? 2 : 1), 2 * width);
    fill_slots(c, &c->out[1]);
}

/* Column k of the window that ends at `row` of a sequence that begins at `first`. */
static double pooled(const ck_case *c, const ck_ref *r, int64_t first, int64_t row,
                     int64_t k) {
    int64_t ratio = c->attr.compress_ratio, d = c->out[0].shape[1];
    int64_t width = c->in[0].shape[1], back = ratio * (width / d);
    double sum = 0.0, y = 0.0;

    for (int64_t i = 0; i < back; i++) {
        int64_t from = row - back + 1 + i, at = k + (i < back - ratio ? 0 : width - d);
        double e;
        if (from < first)
            continue;
        e = exp(r->in[1][from * width + at] + r->w[0][i % ratio * width + at]);
        sum += e;
        y += e * r->in[0][from * width + at];
    }
    return y / sum;
}

static void compress_forward(const ck_case *c, ck_ref *r) {
    int64_t d = c->out[0].shape[1];

    for (int64_t row = 0; row < c->rows.n_token; row++)
        for (int64_t k = 0; k < d; k++)
            r->out[0][row * d + k] = (c->rows.pos[row] + 1) % c->attr.compress_ratio
                                         ? 0.0
                                         : pooled(c, r, row - c->rows.pos[row], row, k);
}

const ck_suite ck_compress = {
    .op = ML_OP_COMPRESS,
    .n_case = sizeof compress_variants / sizeof *compress_variants,
    .build = build_compress,
    .forward = compress_forward,
    .ref_out = 1,
    .grad_out = 1,
    .also = check_cuts,
};
