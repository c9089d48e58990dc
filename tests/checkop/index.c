/* index.c - key selection, and sparse attention: several sequences in scattered KV pages,
 * whose unused slots hold NaN. */
#include "tests/checkop/checkop.h"

#include <math.h>
#include <string.h>

enum { MAX_SEQ = 3, SPARE = 2 };

static const struct variant {
    int32_t len[MAX_SEQ];
    int32_t n_head, d, e, top_k;
    bool given;
} variants[] = {
    { { 0 }, 2, 16, 8, 4 },      { { 1, 15, 17 }, 2, 16, 16, 4 },
    { { 40, 7 }, 3, 20, 12, 8 }, { { 70, 33, 2 }, 4, 36, 32, 16 },
    { { 90 }, 1, 8, 5, 64 },     { { 9, 30 }, 5, 10, 10, 40 },
    { { 50, 5 }, 2, 18, 16, 1 }, { { 45, 12 }, 3, 12, 8, 6, .given = true },
};
enum { N_VARIANT = sizeof variants / sizeof *variants };

static const struct variant *begin(ck_case *c, int i) {
    const struct variant *v = &variants[i];

    ck_name(c, "len%d.%d.%d-h%d-d%d.%d-k%d%s", v->len[0], v->len[1], v->len[2], v->n_head,
            v->d, v->e, v->top_k, v->given ? "-given" : "");
    ck_page_rows(c, v->len, MAX_SEQ);
    return v;
}

static ml_tensor nan_pages(ck_case *c, int64_t d) {
    ml_tensor t = ck_cube(ck_scatter_pages(c, SPARE), ML_PAGE, d);
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
static void random_keys(ck_case *c, ml_tensor *t, bool backwards) {
    int64_t k = t->shape[1];
    for (int64_t row = 0; row < t->shape[0]; row++) {
        int32_t *to = (int32_t *)t->data + row * k, pos = c->rows.pos[row], n = 0;
        int32_t step = pos >= 2 * k ? 2 : 1;
        for (int32_t p = pos % step; p <= pos && n < k; p += step)
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
    c->attr.index.scale = 0.25f;
    c->attr.index.weight_scale = 0.5f;
    c->in[0] = ck_mat(n, (int64_t)v->n_head * v->d);
    c->in[1] = ck_mat(n, v->d);
    c->in[2] = ck_mat(n, v->n_head);
    for (int k = 0; k < 3; k++)
        ck_fill(c, &c->in[k], 1.0f);
    c->out[0] = i32_rows(c, n, v->top_k); /* has contents: -1 is not poison here */
    c->out[1] = nan_pages(c, v->d);
    if (v->given) {
        c->given = i32_rows(c, n, v->top_k);
        random_keys(c, &c->given, true);
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
        int64_t n = c->rows.pos[row] + 1, first = row - n + 1, at = 0;
        bool given = c->given.data && ((const int32_t *)c->given.data)[row * k] >= 0;
        for (int64_t key = 0; key < n; key++)
            w[key] = worth(c, r, row, first + key);
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

    if (c->given.data)
        return;
    ck_name(&tied, "%.60s (all keys equal)", c->name);
    ck_fill(&tied, &tied.in[1], 0.0f);
    ck_run(e, &tied, m, &r);
    for (int64_t i = 0; i < c->rows.n_token * k; i++) {
        int32_t want = i % k <= c->rows.pos[i / k] ? (int32_t)(i % k) : -1;
        if (((const int32_t *)r.out[0].data)[i] != want) {
            ck_fail(e, "choice %lld of equal keys is %d", (long long)i,
                    ((const int32_t *)r.out[0].data)[i]);
            break;
        }
    }
}

const ck_suite ck_index = {
    .op = ML_OP_INDEX,
    .n_case = N_VARIANT,
    .build = build_index,
    .forward = index_forward,
    .ref_out = 1,
    .also = check_ties,
};

/* ---- attn-chosen ---- */

static void build_attn(ck_case *c, int i) {
    const struct variant *v = begin(c, i);
    int64_t n = c->rows.n_token;

    c->attr.attn.n_head = v->n_head;
    c->attr.attn.n_kv = 1;
    c->attr.attn.head_dim = v->d;
    c->attr.attn.value_dim = v->e;
    c->attr.attn.scale = 0.3f;
    c->in[0] = ck_mat(n, (int64_t)v->n_head * v->d);
    c->in[1] = ck_mat(n, v->d);
    ck_fill(c, &c->in[0], 2.0f);
    ck_fill(c, &c->in[1], 2.0f);
    c->in[2] = i32_rows(c, n, v->top_k);
    random_keys(c, &c->in[2], false);
    c->out[0] = ck_mat(n, (int64_t)v->n_head * v->e);
    c->out[1] = nan_pages(c, v->d);
}

static void attn_head(const ck_case *c, ck_ref *r, int64_t row, int64_t h) {
    int64_t k = c->in[2].shape[1], d = c->attr.attn.head_dim, e = c->attr.attn.value_dim;
    int64_t n_head = c->attr.attn.n_head, first = row - c->rows.pos[row];
    const int32_t *pos = (const int32_t *)c->in[2].data + row * k;
    const double *q = r->in[0] + (row * n_head + h) * d;
    double *o = r->out[0] + (row * n_head + h) * e, sum = 0.0, max = -HUGE_VAL;

    for (int pass = 0; pass < 2; pass++) {
        for (int64_t i = 0; pass && i < e; i++)
            o[i] = 0.0;
        for (int64_t m = 0; m < k && pos[m] >= 0; m++) {
            const double *key = r->in[1] + (first + pos[m]) * d;
            double s = 0.0, p;
            for (int64_t i = 0; i < d; i++)
                s += q[i] * key[i];
            s *= (double)c->attr.attn.scale;
            max = fmax(max, s);
            p = exp(s - max);
            sum += pass ? p : 0.0;
            for (int64_t i = 0; pass && i < e; i++)
                o[i] += p * key[i];
        }
    }
    for (int64_t i = 0; i < e; i++)
        o[i] /= sum;
}

static void attn_forward(const ck_case *c, ck_ref *r) {
    for (int64_t row = 0; row < c->rows.n_token; row++)
        for (int64_t h = 0; h < c->attr.attn.n_head; h++)
            attn_head(c, r, row, h);
}

const ck_suite ck_attn_chosen = {
    .op = ML_OP_ATTN_CHOSEN,
    .n_case = N_VARIANT - 1, /* the last one differs only in what INDEX is given */
    .build = build_attn,
    .forward = attn_forward,
    .ref_out = 1,
    .grad_out = 1,
};
