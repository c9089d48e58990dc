/* index.c - key selection, and sparse attention: several sequences in scattered KV pages,
 * whose unused slots hold NaN. */
#include "tests/checkop/checkop.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MAX_SEQ = 3, SPARE = 2 };

static const struct variant {
    int32_t len[MAX_SEQ];
    int32_t n_head, d, e, top_k;
    bool given;
    int32_t ratio, window; /* compressed keys, besides a window */
    bool sink;
} variants[] = {
    { { 0 }, 2, 16, 8, 4 },
    { { 1, 15, 17 }, 2, 16, 16, 4 },
    { { 40, 7 }, 3, 20, 12, 8 },
    { { 70, 33, 2 }, 4, 36, 32, 16 },
    { { 90 }, 1, 8, 5, 64 },
    { { 9, 30 }, 5, 10, 10, 40 },
    { { 50, 5 }, 2, 18, 16, 1 },
    { { 45, 12 }, 3, 12, 8, 6, .given = true },
    { { 70, 3, 33 }, 3, 18, 16, 5, .ratio = 4, .window = 8 },
    { { 90, 20 }, 2, 12, 12, 2, .ratio = 32, .window = 20, .sink = true },
    { { 41, 16 }, 2, 20, 20, 9, .ratio = 3, .window = 1, .sink = true },
    { { 66, 5 }, 2, 136, 128, 16 },
    { { 18, 3 }, 34, 136, 136, 5, .ratio = 4, .window = 8, .sink = true },
    { { 68 }, 1, 576, 512, 66 },
    { { 262 }, 2, 16, 16, 24 },
    { { 20 }, 17, 16, 16, 4 },
};
enum { N_VARIANT = sizeof variants / sizeof *variants };

static int32_t ratio_of(const struct variant *v) {
    return v->ratio ? v->ratio : 1;
}

static const struct variant *begin(ck_case *c, int i) {
    const struct variant *v = &variants[i];

    ck_name(c, "len%d.%d.%d-h%d-d%d.%d-k%d%s", v->len[0], v->len[1], v->len[2], v->n_head,
            v->d, v->e, v->top_k, v->given ? "-given" : "");
    if (v->ratio)
        snprintf(c->name + strlen(c->name), sizeof c->name - strlen(c->name), "-r%d-w%d%s",
                 v->ratio, v->window, v->sink ? "-sink" : "");
    ck_page_rows(c, v->len, MAX_SEQ);
    return v;
}

static ml_tensor nan_pages(ck_case *c, int32_t n_page, int32_t ratio, int64_t d) {
    ml_tensor t = ck_cube(n_page, ml_page_keys(ratio), d);
    t.data = ml_arena_take(c->arena, ml_tensor_bytes(&t) + 1, 1);
    memset(t.data, 0xff, ml_tensor_bytes(&t));
    return t;
}

static ml_tensor i32_rows(ck_case *c, int64_t n, int64_t k) {
    ml_tensor t = ck_mat(n, k);
    t.dtype = ML_I32;
    t.data = ML_NEW(c->arena, int32_t, n * k + 1);
    return t;
}

/* Some keys up to each row's own: every other one, or all if there are few. */
static void random_keys(ck_case *c, ml_tensor *t, int32_t ratio, bool backwards) {
    int64_t k = t->shape[1];
    for (int64_t row = 0; row < t->shape[0]; row++) {
        int32_t *to = (int32_t *)t->data + row * k, n = 0;
        int32_t pos = (c->rows.pos[row] + 1) / ratio - 1;
        int32_t step = pos >= 2 * k ? 2 : 1;
        for (int32_t p = pos > 0 ? pos % step : 0; p <= pos && n < k; p += step)
            to[n++] = p;
        for (int32_t i = 0; backwards && i < n / 2; i++) {
            int32_t x = to[i];
            to[i] = to[n - 1 - i];
            to[n - 1 - i] = x;
        }
        while (n < k)
            to[n++] = -1;
        if (backwards && row % 4 == 3)
            to[0] = -1; /* the op selects */
    }
}

/* ---- index ---- */

static void build_index(ck_case *c, int i) {
    const struct variant *v = begin(c, i);
    int64_t n = c->rows.n_token;

    c->attr.index.n_head = v->n_head;
    c->attr.index.head_dim = v->d;
    c->attr.index.top_k = v->top_k;
    c->attr.index.ratio = v->ratio;
    c->attr.index.scale = 0.25f;
    c->attr.index.weight_scale = 0.5f;
    c->in[0] = ck_mat(n, (int64_t)v->n_head * v->d);
    c->in[1] = ck_mat(n, v->d);
    c->in[2] = ck_mat(n, v->n_head);
    for (int k = 0; k < 3; k++)
        ck_fill(c, &c->in[k], 1.0f);
    c->out[0] = i32_rows(c, n, v->top_k); /* has contents: -1 is not poison here */
    c->out[1] = nan_pages(c, ck_scatter_pages(c, SPARE), ratio_of(v), v->d);
    if (v->given) {
        c->given = i32_rows(c, n, v->top_k);
        random_keys(c, &c->given, 1, true);
    }
}

static double worth(const ck_case *c, const ck_ref *r, int64_t row, int64_t key) {
    int64_t n_head = c->attr.index.n_head, d = c->attr.index.head_dim;
    double sum = 0.0;

    for (int64_t h = 0; h < n_head; h++) {
        double dot = 0.0;
        for (int64_t i = 0; i < d; i++)
            dot += r->in[0][(row * n_head + h) * d + i] * r->in[1][key * d + i];
        sum += r->in[2][row * n_head + h] * (double)c->attr.index.weight_scale *
               fmax(dot * (double)c->attr.index.scale, 0.0);
    }
    return sum;
}

/* A key is selected when fewer than top_k precede it. */
static bool is_chosen(const ck_case *c, const double *w, int64_t n, int64_t key) {
    int64_t before = 0;
    for (int64_t i = 0; i < n; i++)
        before += w[i] > w[key] || (w[i] == w[key] && i < key);
    return before < c->attr.index.top_k;
}

static bool is_given(const ck_case *c, int64_t row, int64_t key) {
    int64_t k = c->attr.index.top_k;
    const int32_t *given = (const int32_t *)c->given.data + row * k;
    for (int64_t i = 0; i < k; i++)
        if (given[i] == key)
            return true;
    return false;
}

static void index_forward(const ck_case *c, ck_ref *r) {
    int64_t k = c->attr.index.top_k;
    double *w = ML_NEW(c->arena, double, c->rows.n_token + 1);

    for (int64_t row = 0; row < c->rows.n_token; row++) {
        int64_t ratio = c->attr.index.ratio ? c->attr.index.ratio : 1, at = 0;
        int64_t n = (c->rows.pos[row] + 1) / ratio, first = row - c->rows.pos[row];
        bool given = c->given.data && ((const int32_t *)c->given.data)[row * k] >= 0;
        for (int64_t key = 0; key < n; key++)
            w[key] = worth(c, r, row, first + (key + 1) * ratio - 1);
        for (int64_t key = 0; key < n; key++)
            if (given ? is_given(c, row, key) : is_chosen(c, w, n, key))
                r->out[0][row * k + at++] = (double)key;
        while (at < k)
            r->out[0][row * k + at++] = -1.0;
    }
}

/* Keys with equal scores: the first ones are selected. */
static void check_ties(ck_env *e, const ck_case *c) {
    ck_mode m = { .in_place = CK_ALL, .only = CK_ALL, .backend = e->n_backend - 1 };
    ck_case tied = *c;
    ck_result r;
    int64_t k = c->attr.index.top_k;

    ck_name(&tied, "%.60s (all keys equal)", c->name);
    ck_fill(&tied, &tied.in[1], 0.0f);
    ck_run(e, &tied, m, &r);
    for (int64_t i = 0; i < c->rows.n_token * k; i++) {
        int32_t ratio = c->attr.index.ratio ? c->attr.index.ratio : 1;
        int32_t n = (c->rows.pos[i / k] + 1) / ratio,
                want = i % k < n ? (int32_t)(i % k) : -1;
        if (((const int32_t *)r.out[0].data)[i] != want) {
            ck_fail(e, "choice %lld of equal keys is %d", (long long)i,
                    ((const int32_t *)r.out[0].data)[i]);
            break;
        }
    }
}

/* Pieces of a sequence have no compressed keys (spec_context.h). */
static void index_also(ck_env *e, const ck_case *c) {
    if (c->given.data)
        return;
    check_ties(e, c);
    if (!c->attr.index.ratio)
        ck_check_pieces(e, c, (ck_pieces_of){ .key_in = 2, .row_out = 1 });
}

const ck_suite ck_index = {
    .op = ML_OP_INDEX,
    .n_case = N_VARIANT,
    .build = build_index,
    .forward = index_forward,
    .ref_out = 1,
    .also = index_also,
};

/* ---- attn-chosen ---- */

/* The variant with the largest ratio attends to all compressed keys. */
static void build_attn(ck_case *c, int i) {
    const struct variant *v = begin(c, i);
    int64_t n = c->rows.n_token;
    int32_t n_page;

    c->attr.attn.n_head = v->n_head;
    c->attr.attn.n_kv = 1;
    c->attr.attn.head_dim = v->d;
    c->attr.attn.value_dim = v->e;
    c->attr.attn.window = v->window;
    c->attr.attn.ratio = v->ratio;
    c->attr.attn.scale = 0.3f;
    c->in[0] = ck_mat(n, (int64_t)v->n_head * v->d);
    c->in[1] = ck_mat(n, v->ratio ? 2 * v->d : v->d);
    ck_fill(c, &c->in[0], 2.0f);
    ck_fill(c, &c->in[1], 2.0f);
    if (v->ratio < ML_PAGE) {
        c->in[2] = i32_rows(c, n, v->top_k);
        random_keys(c, &c->in[2], ratio_of(v), false);
    }
    if (v->sink) {
        c->w[0] = ck_vec(v->n_head);
        ck_fill(c, &c->w[0], 1.0f);
    }
    c->out[0] = ck_mat(n, (int64_t)v->n_head * v->e);
    n_page = ck_scatter_pages(c, SPARE);
    c->out[1] = nan_pages(c, n_page, 1, v->d);
    if (v->ratio)
        c->out[2] = nan_pages(c, n_page, v->ratio, v->d);
}

/* Columns of in[1] where the keys of a row begin; NULL ends them. */
static const double **keys_of_row(const ck_case *c, const ck_ref *r, int64_t row) {
    int64_t d = c->attr.attn.head_dim, step = c->in[1].shape[1], at = 0;
    int32_t pos = c->rows.pos[row], ratio = c->attr.attn.ratio;
    int64_t k = c->in[2].n_dim ? c->in[2].shape[1] : 0;
    const double *first = r->in[1] + (row - pos) * step;
    const int32_t *chosen = (const int32_t *)c->in[2].data + row * k;
    const double **key = ML_NEW(c->arena, const double *, 2 * pos + k + 3);

    for (int32_t i = 0; ratio && i <= pos; i++)
        if (i > pos - c->attr.attn.window)
            key[at++] = first + i * step;
    for (int32_t g = 0; !k && g < (pos + 1) / ratio; g++)
        key[at++] = first + ((g + 1) * ratio - 1) * step + d;
    for (int64_t m = 0; m < k && chosen[m] >= 0; m++)
        key[at++] = ratio ? first + ((chosen[m] + 1) * ratio - 1) * step + d
                          : first + chosen[m] * step;
    return key;
}

static void attn_head(const ck_case *c, ck_ref *r, const double *const *key, int64_t row,
                      int64_t h) {
    int64_t d = c->attr.attn.head_dim, e = c->attr.attn.value_dim;
    int64_t n_head = c->attr.attn.n_head;
    const double *q = r->in[0] + (row * n_head + h) * d;
    double *o = r->out[0] + (row * n_head + h) * e, sum = 0.0;
    double max = c->w[0].data ? r->w[0][h] : -HUGE_VAL;

    for (int pass = 0; pass < 2; pass++) {
        for (int64_t i = 0; pass && i < e; i++)
            o[i] = 0.0;
        if (pass && c->w[0].data)
            sum = exp(r->w[0][h] - max);
        for (int64_t m = 0; key[m]; m++) {
            double s = 0.0, p;
            for (int64_t i = 0; i < d; i++)
                s += q[i] * key[m][i];
            s *= (double)c->attr.attn.scale;
            max = fmax(max, s);
            p = exp(s - max);
            sum += pass ? p : 0.0;
            for (int64_t i = 0; pass && i < e; i++)
                o[i] += p * key[m][i];
        }
    }
    for (int64_t i = 0; i < e; i++)
        o[i] /= sum;
}

static void attn_forward(const ck_case *c, ck_ref *r) {
    for (int64_t row = 0; row < c->rows.n_token; row++) {
        const double **key = keys_of_row(c, r, row);
        for (int64_t h = 0; h < c->attr.attn.n_head; h++)
            attn_head(c, r, key, row, h);
    }
}

static void attn_also(ck_env *e, const ck_case *c) {
    if (!c->attr.attn.ratio)
        ck_check_pieces(e, c, (ck_pieces_of){ .key_in = 2, .row_out = 1 });
}

const ck_suite ck_attn_chosen = {
    .op = ML_OP_ATTN_CHOSEN,
    .n_case = N_VARIANT,
    .build = build_attn,
    .forward = attn_forward,
    .ref_out = 1,
    .grad_out = 1,
    .also = attn_also,
};
