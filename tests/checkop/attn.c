/* attn.c - attention: several sequences in scattered KV pages, whose unused slots hold
 * NaN. */
#include "tests/checkop/checkop.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tensor/codes.h"

enum { MAX_SEQ = 4, SPARE = 3, UNMAPPED = 1 << 24 };

static const struct variant {
    int32_t len[MAX_SEQ];
    int32_t n_head, n_kv, d, window;
    float scale, softcap, amp; /* amp: amplitude of q and k */
    int32_t e;                 /* head size of values; 0: that of keys */
    bool in_key;               /* values are the first e elements of keys */
    bool sink;
    bool bf16; /* pages hold bf16 */
    int32_t chunk;
    ml_dtype codes; /* ML_KV_*: pages hold these */
    bool gpu_only;
    bool far; /* some queries have numbers that f16 does not hold beside the others */
} variants[] = {
    { { 0 }, 2, 1, 16, 0, 0.25f, 0.0f, 1.0f },
    { { 1, 15, 16, 17 }, 2, 2, 16, 0, 0.25f, 0.0f, 2.0f },
    { { 63, 64, 65 }, 4, 2, 20, 0, 0.3f, 0.0f, 2.0f },
    { { 130, 7 }, 4, 1, 64, 0, 0.125f, 0.0f, 1.0f },
    { { 33, 130 }, 3, 3, 24, 0, 0.7f, 5.0f, 2.0f },
    { { 200 }, 2, 1, 80, 64, 0.1f, 0.0f, 1.0f },
    { { 5, 200, 3 }, 4, 2, 16, 8, 0.25f, 0.0f, 3.0f },
    { { 70, 130 }, 4, 2, 32, 65, 0.2f, 50.0f, 10.0f },
    { { 530 }, 1, 1, 8, 0, 0.4f, 0.0f, 2.0f },
    { { 40 }, 90, 1, 8, 20, 0.4f, 0.0f, 2.0f },
    { { 70, 9 }, 4, 2, 24, 0, 0.2f, 0.0f, 2.0f, .e = 40 },
    { { 130, 3 }, 6, 1, 40, 0, 0.2f, 0.0f, 2.0f, .e = 32, .in_key = true },
    { { 20, 90 }, 5, 1, 28, 0, 0.2f, 0.0f, 2.0f, .e = 20, .in_key = true },
    { { 1, 90, 17 }, 4, 2, 16, 8, 0.25f, 0.0f, 2.0f, .sink = true },
    { { 70 }, 3, 1, 32, 0, 0.2f, 0.0f, 1.0f, .sink = true },
    { { 140, 20 }, 2, 1, 128, 0, 0.09f, 0.0f, 1.5f },
    { { 133 }, 4, 1, 128, 40, 0.09f, 0.0f, 1.5f },
    { { 150 }, 1, 1, 64, 0, 0.125f, 0.0f, 2.0f },
    { { 1, 131 }, 2, 1, 64, 0, 0.125f, 20.0f, 3.0f },
    { { 20, 70 }, 8, 1, 64, 0, 0.125f, 0.0f, 2.0f },
    { { 1, 15, 16, 17 }, 2, 2, 16, 0, 0.25f, 0.0f, 2.0f, .bf16 = true },
    { { 130, 7 }, 9, 3, 64, 0, 0.125f, 0.0f, 1.0f, .bf16 = true },
    { { 63, 64, 65 }, 4, 2, 21, 0, 0.3f, 0.0f, 2.0f, .bf16 = true },
    { { 5, 200, 3 }, 4, 2, 16, 8, 0.25f, 0.0f, 3.0f, .bf16 = true },
    { { 70, 130 }, 4, 2, 20, 65, 0.2f, 50.0f, 10.0f, .bf16 = true },
    { { 40 }, 90, 1, 8, 21, 0.4f, 0.0f, 2.0f, .bf16 = true },
    { { 70, 9 }, 4, 2, 24, 0, 0.2f, 0.0f, 2.0f, .e = 40, .bf16 = true },
    { { 130, 3 }, 6, 1, 40, 0, 0.2f, 0.0f, 2.0f, .e = 31, .in_key = true, .bf16 = true },
    { { 1, 90, 17 }, 4, 2, 16, 8, 0.25f, 0.0f, 2.0f, .sink = true, .bf16 = true },
    { { 5, 200, 16 }, 4, 2, 20, 0, 0.25f, 0.0f, 2.0f, .chunk = 32 },
    { { 150, 81 }, 2, 1, 16, 0, 0.25f, 0.0f, 2.0f, .chunk = 80, .bf16 = true },
    { { 3, 70 }, 2, 1, 136, 20, 0.08f, 20.0f, 1.5f, .e = 72, .sink = true },
    { { 66 }, 1, 1, 264, 0, 0.06f, 0.0f, 1.5f },
    { { 66 }, 2, 1, 136, 0, 0.08f, 0.0f, 1.5f, .e = 128, .in_key = true },
    { { 8, 2 }, 35, 1, 136, 0, 0.08f, 0.0f, 1.5f, .e = 128, .in_key = true },
    { { 70 }, 2, 1, 64, 0, 0.125f, 0.0f, 1.5f, .chunk = 48 },
    { { 70 }, 2, 1, 64, 20, 0.125f, 0.0f, 1.5f, .sink = true },
    { { 1, 15, 16, 17 }, 2, 2, 16, 0, 0.25f, 0.0f, 2.0f, .codes = ML_KV_E4M3 },
    { { 130, 7 }, 9, 3, 64, 0, 0.125f, 0.0f, 1.0f, .codes = ML_KV_E4M3 },
    { { 130, 3 },
      6,
      1,
      40,
      0,
      0.2f,
      0.0f,
      2.0f,
      .e = 31,
      .in_key = true,
      .codes = ML_KV_E4M3 },
    { { 1, 90, 17 }, 4, 2, 16, 8, 0.25f, 0.0f, 2.0f, .sink = true, .codes = ML_KV_E4M3 },
    { { 63, 64, 65 }, 4, 2, 21, 0, 0.3f, 0.0f, 2.0f, .codes = ML_KV_E5M2 },
    { { 150, 81 }, 2, 1, 16, 0, 0.25f, 0.0f, 2.0f, .chunk = 80, .codes = ML_KV_E5M2 },
    { { 70, 130 }, 4, 2, 20, 65, 0.2f, 50.0f, 10.0f, .codes = ML_KV_INT8 },
    { { 70, 9 }, 4, 2, 24, 0, 0.2f, 0.0f, 2.0f, .e = 40, .codes = ML_KV_INT8 },
    { { 140, 20 }, 8, 2, 128, 0, 0.09f, 0.0f, 1.5f, .codes = ML_KV_E4M3, .gpu_only = true },
    { { 133, 9 }, 10, 1, 112, 40, 0.09f, 0.0f, 1.5f, .codes = ML_KV_E5M2 },
    { { 130, 70 },
      20,
      2,
      64,
      0,
      0.125f,
      20.0f,
      3.0f,
      .codes = ML_KV_INT8,
      .gpu_only = true },
    { { 140, 2 }, 4, 2, 8, 0, 0.4f, 0.0f, 2.0f, .codes = ML_KV_E4M3 },
    { { 70 }, 3, 1, 88, 0, 0.1f, 0.0f, 1.5f, .codes = ML_KV_INT8 },
    { { 3, 70 }, 2, 1, 136, 20, 0.08f, 20.0f, 1.5f, .e = 72, .codes = ML_KV_E5M2 },
    { { 66, 3 }, 4, 2, 264, 0, 0.06f, 0.0f, 1.5f, .codes = ML_KV_E4M3 },
    { { 70, 5 },
      35,
      1,
      144,
      0,
      0.08f,
      0.0f,
      1.5f,
      .e = 128,
      .in_key = true,
      .codes = ML_KV_E4M3,
      .gpu_only = true },
    { { 66 },
      2,
      1,
      136,
      0,
      0.08f,
      0.0f,
      1.5f,
      .e = 128,
      .in_key = true,
      .codes = ML_KV_INT8 },
    { { 140, 20 },
      8,
      2,
      128,
      0,
      0.09f,
      0.0f,
      1.5f,
      .codes = ML_KV_E4M3,
      .gpu_only = true,
      .far = true },
    { { 330, 200 }, 4, 2, 128, 0, 0.09f, 0.0f, 1.5f, .gpu_only = true },
    { { 520 }, 1, 1, 128, 150, 0.09f, 0.0f, 1.5f, .gpu_only = true },
    { { 200 }, 8, 1, 128, 0, 0.09f, 20.0f, 1.5f, .gpu_only = true },
    { { 170, 150 },
      8,
      2,
      128,
      0,
      0.09f,
      0.0f,
      1.5f,
      .chunk = 100,
      .codes = ML_KV_E4M3,
      .gpu_only = true },
};

static void fill_nan(ck_case *c, ml_tensor *t) {
    t->data = ml_arena_take(c->arena, ml_tensor_bytes(t) + 1, 1);
    memset(t->data, 0xff, ml_tensor_bytes(t));
}

/* Sets the values to the prefixes of the keys of one head. */
static void copy_values(ck_case *c, int32_t d, int32_t size) {
    for (int64_t t = 0; t < c->rows.n_token; t++)
        memcpy((float *)c->in[2].data + t * size, (const float *)c->in[1].data + t * d,
               (size_t)size * sizeof(float));
}

static void name_case(ck_case *c, const struct variant *v, int32_t size) {
    ck_name(c, "len%d.%d.%d.%d-h%d.%d-d%d-w%d-cap%g%s", v->len[0], v->len[1], v->len[2],
            v->len[3], v->n_head, v->n_kv, v->d, v->window, (double)v->softcap,
            v->bf16 ? "-bf16" : "");
    if (v->chunk)
        snprintf(c->name + strlen(c->name), sizeof c->name - strlen(c->name), "-chunk%d",
                 v->chunk);
    if (v->e || v->sink)
        ck_name(c, "len%d.%d.%d-h%d.%d-d%d.%d-w%d%s%s%s", v->len[0], v->len[1], v->len[2],
                v->n_head, v->n_kv, v->d, size, v->window, v->in_key ? "-in-key" : "",
                v->sink ? "-sink" : "", v->bf16 ? "-bf16" : "");
    if (v->codes)
        snprintf(c->name + strlen(c->name), sizeof c->name - strlen(c->name), "-%s%s",
                 ml_dtype_name(v->codes), v->far ? "-far" : "");
}

/* The numbers that are read from pages of codes.  whole: the row begins with the format's
 * largest number times a power of two, so that these are numbers that encode to themselves. */
static void code_rows(ml_tensor *t, int64_t n, ml_dtype dtype, bool whole) {
    static const float most[] = { 448.0f, 57344.0f, 127.0f };
    uint8_t code[512];

    for (int64_t i = 0; i < ml_tensor_count(t); i += n) {
        float *x = (float *)t->data + i, scale;
        if (whole)
            x[0] = most[dtype - ML_KV_E4M3] * ldexpf(1.0f, dtype == ML_KV_E5M2 ? -12 : -5);
        scale = ml_kv_encode(dtype, x, n, code);
        for (int64_t k = 0; k < n; k++)
            x[k] = ml_kv_code_value(dtype, code[k]) * scale;
    }
}

/* Rows rounded to bf16 may no longer encode to themselves: their scale becomes a power of two. */
static void settle_rows(ml_tensor *t, int64_t n, ml_dtype dtype) {
    static const float most[] = { 448.0f, 57344.0f, 127.0f };

    for (int64_t i = 0; i < ml_tensor_count(t); i += n) {
        float *x = (float *)t->data + i, top = 0.0f;
        int up = -30;
        for (int64_t k = 0; k < n; k++)
            top = fmaxf(top, fabsf(x[k]));
        while (ldexpf(most[dtype - ML_KV_E4M3], up) < top)
            up++;
        x[0] = ldexpf(most[dtype - ML_KV_E4M3], up);
    }
    code_rows(t, n, dtype, false);
}

static void settle(ck_case *c) {
    const int32_t d = c->attr.attn.head_dim, size = c->attr.attn.value_dim;
    const ml_dtype dtype = c->out[2].dtype;

    if (!ml_dtype_is_kv_codes(dtype))
        return;
    settle_rows(&c->in[1], d, dtype);
    if (c->out[3].data)
        settle_rows(&c->in[2], size, dtype);
    else
        copy_values(c, d, size);
}

static void fill_code_pages(ck_case *c, const struct variant *v, int32_t pool,
                            int64_t width) {
    const int32_t size = c->attr.attn.value_dim;

    c->out[2] = ck_cube(pool, v->n_kv, (v->d + ML_KV_SCALE_BYTES) * ML_PAGE);
    if (!v->in_key)
        c->out[3] = ck_cube(pool, v->n_kv, (width + ML_KV_SCALE_BYTES) * ML_PAGE);
    c->out[2].dtype = c->out[3].dtype = v->codes;
    code_rows(&c->in[1], v->d, v->codes, true);
    if (v->in_key)
        copy_values(c, v->d, size);
    else
        code_rows(&c->in[2], size, v->codes, true);
}

/* Values for bf16 pages are bf16 already: rounding has no difference quotient.
 * check_rounding() covers other numbers. */
static void fill_pages(ck_case *c, const struct variant *v, int32_t pool, int64_t width) {
    c->out[2] = ck_cube(pool, v->n_kv * v->d, ML_PAGE);
    if (!v->in_key)
        c->out[3] = ck_cube(pool, v->n_kv * ML_PAGE, width);
    if (v->codes)
        fill_code_pages(c, v, pool, width);
    if (v->bf16) {
        c->out[2].dtype = c->out[3].dtype = ML_BF16;
        ck_round_tensor(&c->in[1]);
        ck_round_tensor(&c->in[2]);
    }
    fill_nan(c, &c->out[2]);
    if (!v->in_key)
        fill_nan(c, &c->out[3]);
}

/* Every third token's. */
static void spread_queries(ck_case *c) {
    const int64_t width = c->in[0].shape[1];
    float *q = c->in[0].data;

    for (int64_t t = 0; t < c->rows.n_token; t += 3)
        q[t * width] = ldexpf(q[t * width], -40);
}

static void build(ck_case *c, int i) {
    const struct variant *v = &variants[i];
    int32_t size = v->e ? v->e : v->d, pool;
    int64_t width = (size + ML_LANES - 1) / ML_LANES * ML_LANES, n;

    name_case(c, v, size);
    c->gpu_only = v->gpu_only;
    c->attr.attn.n_head = v->n_head;
    c->attr.attn.n_kv = v->n_kv;
    c->attr.attn.head_dim = v->d;
    c->attr.attn.value_dim = size;
    c->attr.attn.window = v->window;
    c->attr.attn.chunk = v->chunk;
    c->attr.attn.scale = v->scale;
    c->attr.attn.softcap = v->softcap;
    ck_page_rows(c, v->len, MAX_SEQ);
    n = c->rows.n_token;
    pool = ck_scatter_pages(c, SPARE);
    c->in[0] = ck_mat(n, v->n_head * v->d);
    c->in[1] = ck_mat(n, v->n_kv * v->d);
    c->in[2] = ck_mat(n, v->n_kv * size);
    ck_fill(c, &c->in[0], v->amp);
    if (v->far)
        spread_queries(c);
    ck_fill(c, &c->in[1], v->amp);
    ck_fill(c, &c->in[2], 1.0f);
    if (v->in_key)
        copy_values(c, v->d, size);
    if (v->sink) {
        c->w[0] = ck_vec(v->n_head);
        ck_fill(c, &c->w[0], 2.0f);
    }
    c->out[0] = ck_mat(n, v->n_head * size);
    c->out[1] = ck_cube(n, v->n_head, 2);
    fill_pages(c, v, pool, width);
}

/* ---- reference ---- */

static double dot(const double *a, const double *b, int64_t n) {
    double sum = 0.0;
    for (int64_t i = 0; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}

static double score(const ck_case *c, const double *q, const double *k) {
    double s = (double)c->attr.attn.scale * dot(q, k, c->attr.attn.head_dim);
    double cap = (double)c->attr.attn.softcap;
    return cap != 0.0 ? cap * tanh(s / cap) : s;
}

/* Row t, head h; its sequence begins at row `first`. */
static void forward_head(const ck_case *c, ck_ref *r, int64_t first, int64_t t, int64_t h) {
    int64_t d = c->attr.attn.head_dim, n_head = c->attr.attn.n_head;
    int64_t size = c->attr.attn.value_dim, n_kv = c->attr.attn.n_kv,
            kv = h / (n_head / n_kv);
    const double *q = r->in[0] + (t * n_head + h) * d,
                 *sink = c->w[0].data ? r->w[0] : NULL;
    double *o = r->out[0] + (t * n_head + h) * size, m = sink ? sink[h] : -HUGE_VAL, l;

    if (c->attr.attn.window && t - first >= c->attr.attn.window)
        first = t - c->attr.attn.window + 1;
    if (c->attr.attn.chunk)
        first = t - (t - first) % c->attr.attn.chunk;
    for (int64_t j = first; j <= t; j++)
        m = fmax(m, score(c, q, r->in[1] + (j * n_kv + kv) * d));
    for (int64_t e = 0; e < size; e++)
        o[e] = 0.0;
    l = sink ? exp(sink[h] - m) : 0.0;
    for (int64_t j = first; j <= t; j++) {
        double p = exp(score(c, q, r->in[1] + (j * n_kv + kv) * d) - m);
        l += p;
        for (int64_t e = 0; e < size; e++)
            o[e] += p * r->in[2][(j * n_kv + kv) * size + e];
    }
    for (int64_t e = 0; e < size; e++)
        o[e] /= l;
    r->out[1][(t * n_head + h) * 2] = m;
    r->out[1][(t * n_head + h) * 2 + 1] = l;
}

static void forward(const ck_case *c, ck_ref *r) {
    for (int32_t i = 0; i < c->rows.n_seq; i++)
        for (int32_t t = c->rows.seq_start[i]; t < c->rows.seq_start[i + 1]; t++)
            for (int32_t h = 0; h < c->attr.attn.n_head; h++)
                forward_head(c, r, c->rows.seq_start[i], t, h);
}

/* ---- a row depends on its own sequence only, and not on how it is chunked ---- */

/* Rows first .. first + n - 1 of a tensor. */
static ml_tensor slice(const ml_tensor *t, int64_t first, int64_t n) {
    ml_tensor s = *t;
    s.shape[0] = n;
    if (t->data && t->shape[0])
        s.data = (char *)t->data + ml_tensor_bytes(t) / (size_t)t->shape[0] * (size_t)first;
    return s;
}

/* Rows at positions first .. first + n - 1 of sequence i, as a batch.  Pages that no row
 * attends to get an invalid id. */
static ck_case part_of(const ck_case *c, int32_t i, int32_t first, int32_t n) {
    int32_t row = c->rows.seq_start[i] + first, window = c->attr.attn.window;
    int32_t n_page = c->rows.page_start[i + 1] - c->rows.page_start[i];
    int32_t *start = ML_NEW(c->arena, int32_t, 4);
    int32_t *page = ML_NEW(c->arena, int32_t, n_page);
    int32_t oldest = window && first >= window ? first - window + 1 : 0;
    int32_t chunk = c->attr.attn.chunk;
    ck_case p = *c;

    if (chunk)
        oldest = first / chunk * chunk;
    for (int32_t k = 0; k < n_page; k++) {
        bool seen = k >= oldest / ML_PAGE && k <= (first + n - 1) / ML_PAGE;
        page[k] = seen ? c->rows.page[c->rows.page_start[i] + k] : UNMAPPED;
    }
    start[1] = n;
    start[3] = n_page;
    p.rows.n_token = n;
    p.rows.n_seq = 1;
    p.rows.pos = c->rows.pos + row;
    p.rows.seq_start = start;
    p.rows.page_start = start + 2;
    p.rows.page = page;
    for (int k = 0; k < ML_OP_IN; k++) {
        p.in[k] = slice(&c->in[k], row, n);
        p.din[k] = slice(&c->din[k], row, n);
    }
    for (int k = 0; k < 2; k++) {
        p.out[k] = slice(&c->out[k], row, n);
        p.dout[k] = slice(&c->dout[k], row, n);
    }
    return p;
}

static void check_rows(ck_env *e, const char *what, const ml_tensor *all, int64_t first,
                       const ml_tensor *part) {
    ml_tensor want = slice(all, first, part->shape[0]);
    ck_same(e, what, &want, part);
}

/* Chunked prefill, or token by token, with the KV pages passed from call to call. */
static void check_chunks(ck_env *e, const ck_case *c, const ck_result *all, int32_t chunk) {
    ck_mode m = { .backend = e->n_backend - 1, .in_place = CK_ALL, .only = CK_ALL };
    ck_case now = *c;

    ck_name(&now, "%.60s (chunks of %d)", c->name, chunk);
    for (int32_t i = 0; i < c->rows.n_seq; i++) {
        int32_t row = c->rows.seq_start[i], len = c->rows.seq_start[i + 1] - row;
        for (int32_t t = 0; t < len; t += chunk) {
            ck_case part = part_of(&now, i, t, len - t < chunk ? len - t : chunk);
            ck_result r;
            ck_run(e, &part, m, &r);
            check_rows(e, "differs from the whole: o", &all->out[0], row + t, &r.out[0]);
            check_rows(e, "differs from the whole: stat", &all->out[1], row + t, &r.out[1]);
            now.out[2].data = r.out[2].data;
            now.out[3].data = r.out[3].data;
        }
    }
    e->now = c;
    ck_same(e, "differ from the whole: key pages", &all->out[2], &now.out[2]);
    if (c->out[3].data)
        ck_same(e, "differ from the whole: value pages", &all->out[3], &now.out[3]);
}

/* Each sequence alone: the same forward and backward as in the batch. */
static void check_alone(ck_env *e, const ck_case *c, const ck_result *all) {
    ck_mode m = { .backend = e->n_backend - 1, .in_place = CK_ALL, .only = CK_ALL };

    m.backward = true;
    for (int32_t i = 0; i < c->rows.n_seq; i++) {
        int32_t row = c->rows.seq_start[i], len = c->rows.seq_start[i + 1] - row;
        ck_case part = part_of(c, i, 0, len);
        ck_result r;
        ck_name(&part, "%.60s (sequence %d alone)", c->name, i);
        ck_run(e, &part, m, &r);
        check_rows(e, "differs from the batch: o", &all->out[0], row, &r.out[0]);
        for (int k = 0; k < ML_OP_IN; k++)
            check_rows(e, "differs from the batch: din", &all->din[k], row, &r.din[k]);
    }
}

/* The rows of a, then those of b. */
static ml_tensor stack(const ck_case *c, const ml_tensor *a, const ml_tensor *b) {
    size_t first = ml_tensor_bytes(a), second = ml_tensor_bytes(b);
    ml_tensor t = *a;

    t.shape[0] += b->shape[0];
    if (!a->data)
        return t;
    t.data = ml_arena_take(c->arena, first + second + 1, 64);
    memcpy(t.data, a->data, first);
    memcpy((char *)t.data + first, b->data, second);
    return t;
}

static const int32_t *stack_ints(const ck_case *c, const int32_t *a, int32_t n_a,
                                 const int32_t *b, int32_t n_b) {
    int32_t *to = ML_NEW(c->arena, int32_t, n_a + n_b);

    memcpy(to, a, (size_t)n_a * sizeof *to);
    memcpy(to + n_a, b, (size_t)n_b * sizeof *to);
    return to;
}

/* Two batches of one sequence each as one. */
static ck_case stack_batches(const ck_case *a, const ck_case *b) {
    int32_t n_page = a->rows.page_start[1], more = b->rows.page_start[1];
    int32_t *start = ML_NEW(a->arena, int32_t, 6);
    ck_case c = *a;

    c.rows.n_token += b->rows.n_token;
    c.rows.n_seq = 2;
    c.rows.pos = stack_ints(a, a->rows.pos, a->rows.n_token, b->rows.pos, b->rows.n_token);
    c.rows.page = stack_ints(a, a->rows.page, n_page, b->rows.page, more);
    start[1] = a->rows.n_token;
    start[2] = c.rows.n_token;
    start[4] = n_page;
    start[5] = n_page + more;
    c.rows.seq_start = start;
    c.rows.page_start = start + 3;
    for (int k = 0; k < ML_OP_IN; k++)
        c.in[k] = stack(a, &a->in[k], &b->in[k]);
    for (int k = 0; k < 2; k++)
        c.out[k] = stack(a, &a->out[k], &b->out[k]);
    return c;
}

/* The last row of one sequence, as in decode, in a batch with the prefill of another one. */
static void check_mixed(ck_env *e, const ck_case *c, const ck_result *all) {
    ck_mode m = { .backend = e->n_backend - 1, .in_place = CK_ALL, .only = CK_ALL };
    const int32_t *start = c->rows.seq_start;
    ck_case single, many, both;
    ck_result r;
    ml_tensor o[2];

    if (c->rows.n_seq < 2 || start[1] < 2)
        return;
    single = part_of(c, 0, start[1] - 1, 1);
    many = part_of(c, 1, 0, start[2] - start[1]);
    both = stack_batches(&single, &many);
    ck_name(&both, "%.60s (decode and prefill)", c->name);
    both.out[2].data = all->out[2].data;
    both.out[3].data = all->out[3].data;
    ck_run(e, &both, m, &r);
    o[0] = slice(&r.out[0], 0, 1);
    o[1] = slice(&r.out[0], 1, start[2] - start[1]);
    check_rows(e, "differs from the whole: o of decode", &all->out[0], start[1] - 1, &o[0]);
    check_rows(e, "differs from the whole: o of prefill", &all->out[0], start[1], &o[1]);
}

/* The codes of row `row` of head h in `pages`, of keys or of values, are ml_kv_encode's. */
static void check_code_row(ck_env *e, const ck_case *c, const ml_tensor *pages, bool keys,
                           int64_t page, int64_t slot, int64_t h, const float *row) {
    const int64_t n = keys ? c->attr.attn.head_dim : c->attr.attn.value_dim;
    const int64_t width = pages->shape[2] / ML_PAGE - ML_KV_SCALE_BYTES;
    const uint8_t *at =
        (const uint8_t *)pages->data + (page * c->attr.attn.n_kv + h) * pages->shape[2];
    uint8_t code[512];
    float scale = ml_kv_encode(pages->dtype, row, n, code);

    for (int64_t k = 0; k < width; k++) {
        uint8_t got = keys ? at[k * ML_PAGE + slot] : at[slot * width + k];
        uint8_t want = k < n ? code[k] : 0;
        if (got != want) {
            ck_fail(e, "code %lld of a row is 0x%02x instead of 0x%02x", (long long)k, got,
                    want);
            return;
        }
    }
    if (memcmp(at + width * ML_PAGE + slot * ML_KV_SCALE_BYTES, &scale, sizeof scale) != 0)
        ck_fail(e, "the scale of a row is not %g", (double)scale);
}

static void check_code_pages(ck_env *e, const ck_case *c, const ck_result *r) {
    const int64_t n_kv = c->attr.attn.n_kv, d = c->attr.attn.head_dim;
    const int64_t size = c->attr.attn.value_dim;

    for (int32_t i = 0; i < c->rows.n_seq; i++)
        for (int32_t t = c->rows.seq_start[i]; t < c->rows.seq_start[i + 1]; t++)
            for (int64_t h = 0; h < n_kv; h++) {
                int32_t pos = c->rows.pos[t];
                int64_t page = c->rows.page[c->rows.page_start[i] + pos / ML_PAGE];
                check_code_row(e, c, &r->out[2], true, page, pos % ML_PAGE, h,
                               (const float *)c->in[1].data + (t * n_kv + h) * d);
                if (r->out[3].data)
                    check_code_row(e, c, &r->out[3], false, page, pos % ML_PAGE, h,
                                   (const float *)c->in[2].data + (t * n_kv + h) * size);
            }
}

/* Keys and values that the format does not have are rounded by ml_kv_encode; all other results,
 * gradients included, are those of pages in the type of activations with the rounded numbers. */
static void check_codes(ck_env *e, const ck_case *c) {
    const ml_dtype dtype = c->out[2].dtype;
    const int64_t d = c->attr.attn.head_dim, size = c->attr.attn.value_dim;
    const int64_t pool = c->out[2].shape[0], n_kv = c->attr.attn.n_kv;
    ck_case rough = *c, wide;
    ck_result a, b;

    ck_name(&rough, "%.60s (not rounded)", c->name);
    ck_fill(&rough, &rough.in[1], 2.0f);
    ck_fill(&rough, &rough.in[2], 2.0f);
    for (int i = 1; i < ML_OP_IN && e->backend[0].act == ML_BF16; i++)
        ck_round_tensor(&rough.in[i]);
    wide = rough;
    for (int i = 1; i < ML_OP_IN; i++) {
        wide.in[i].data = memcpy(ml_arena_take(c->arena, ml_tensor_bytes(&wide.in[i]), 1),
                                 rough.in[i].data, ml_tensor_bytes(&wide.in[i]));
        code_rows(&wide.in[i], i == 1 ? d : size, dtype, false);
    }
    wide.out[2] = ck_cube((int32_t)pool, n_kv * d, ML_PAGE);
    fill_nan(&wide, &wide.out[2]);
    if (c->out[3].data) {
        wide.out[3] = ck_cube((int32_t)pool, n_kv * ML_PAGE,
                              (size + ML_LANES - 1) / ML_LANES * ML_LANES);
        fill_nan(&wide, &wide.out[3]);
    }
    for (int level = 0; level < e->n_backend; level++) {
        ck_mode m = { .backend = level, .in_place = CK_ALL, .only = CK_ALL };
        m.backward = true;
        ck_run(e, &rough, m, &a);
        ck_run(e, &wide, m, &b);
        check_code_pages(e, &rough, &a);
        for (int i = 0; i < 2; i++)
            ck_same(e, "differs from what is rounded before: out", &b.out[i], &a.out[i]);
        for (int i = 0; i < ML_OP_IN; i++)
            ck_same(e, "differs from what is rounded before: din", &b.din[i], &a.din[i]);
    }
    e->now = c;
}

/* Offset of element k of a page's first value. */
static int64_t element_of_value(const ml_tensor *pages, int64_t k) {
    const ml_tensor panels = {
        .dtype = ML_BF16, .layout = ML_PANELS, .n_dim = 2, .shape = { k + 1, ML_PAGE }
    };
    return pages->dtype == ML_BF16 ? ck_offset(&panels, 0, k, 0) : k;
}

/* Padding past the head size is zero in every slot that was written. */
static void check_padding(ck_env *e, const ck_case *c, const ck_result *all) {
    const ml_tensor *pages = &all->out[3];
    int64_t width = pages->shape[2], d = c->attr.attn.value_dim;

    for (int64_t i = 0;
         i < c->rows.n_seq && pages->data && !ml_dtype_is_kv_codes(pages->dtype); i++) {
        int32_t page = c->rows.page[c->rows.page_start[i]]; /* its first slot is in use */
        int64_t first = page * pages->shape[1] * width;
        for (int64_t k = d; k < width; k++) {
            int64_t at = first + element_of_value(pages, k);
            double x = pages->dtype == ML_BF16
                           ? (double)ml_bf16_to_f32(((const uint16_t *)pages->data)[at])
                           : (double)((const float *)pages->data)[at];
            if (x != 0.0)
                ck_fail(e, "a value's padding is %g", x);
        }
    }
}

/* Keys and values that are not bf16 are rounded to nearest; all other results, gradients
 * included, are as if they had been bf16. */
static void check_rounding(ck_env *e, const ck_case *c) {
    ck_mode m = { .backend = e->n_backend - 1, .in_place = CK_ALL, .only = CK_ALL };
    ck_case rough = *c, round;
    ck_result a, b;

    m.backward = true;
    ck_name(&rough, "%.60s (not rounded)", c->name);
    ck_fill(&rough, &rough.in[1], 2.0f);
    ck_fill(&rough, &rough.in[2], 2.0f);
    round = rough;
    for (int i = 1; i < ML_OP_IN; i++) {
        round.in[i].data = memcpy(ml_arena_take(c->arena, ml_tensor_bytes(&round.in[i]), 1),
                                  rough.in[i].data, ml_tensor_bytes(&round.in[i]));
        ck_round_tensor(&round.in[i]);
    }
    ck_run(e, &rough, m, &a);
    ck_run(e, &round, m, &b);
    ck_same_result(e, "differs from what is rounded before", &b, &a);
    e->now = c;
}

static void also(ck_env *e, const ck_case *c) {
    static const int32_t chunks[] = { 1, 5, 16, 100 };
    ck_mode m = { .in_place = CK_ALL, .only = CK_ALL, .backward = true };
    ck_result all;

    ck_run(e, c, m, &all);
    for (int i = 0; i < 4; i++)
        check_chunks(e, c, &all, chunks[i]);
    check_alone(e, c, &all);
    check_mixed(e, c, &all);
    e->now = c;
    check_padding(e, c, &all);
    ck_check_pieces(e, c, (ck_pieces_of){ .key_in = 6, .row_out = 3 });
    e->now = c;
    if (c->out[2].dtype == ML_BF16)
        check_rounding(e, c);
    if (ml_dtype_is_kv_codes(c->out[2].dtype))
        check_codes(e, c);
}

const ck_suite ck_attn = {
    .op = ML_OP_ATTN,
    .n_case = sizeof variants / sizeof *variants,
    .build = build,
    .settle = settle,
    .forward = forward,
    .ref_out = 3,
    .grad_out = 1,
    .also = also,
};
