#include "base/philox.h"
#include "tests/checkop/checkop.h"

/* Weights hold the matrices of all adapters: A [adapters * groups, rank, K] and B
 * [adapters * groups, N, rank]. */
static const struct variant {
    int32_t m, n, k, rank, adapters;
    int32_t heads;
    bool transposed;
    float dropout;
} variants[] = {
    { 0, 5, 3, 2, 1, 1 },
    { 1, 1, 1, 1, 1, 1 },
    { 1, 150, 33, 8, 2, 1 },
    { 7, 17, 15, 4, 3, 1 },
    { 40, 48, 70, 16, 2, 1 },
    { 300, 20, 19, 5, 1, 1 },
    { 520, 33, 18, 20, 3, 1 },
    { 9, 8, 6, 3, 2, 4 },
    { 5, 12, 7, 2, 2, 3, true },
    { 140, 20, 16, 4, 1, 5 },
    { 140, 17, 20, 18, 2, 2, true },
    { 9, 17, 15, 4, 2, 1, false, 0.25f },
    { 300, 20, 19, 5, 2, 3, false, 0.5f },
    { 5, 300, 700, 3, 2, 1 },
    /* Widths of tensor cores; rows beyond the limits at which kernels divide their work. */
    { 130, 48, 72, 16, 2, 1 },
    { 520, 136, 264, 20, 3, 1 },
    { 1030, 8, 16, 2, 2, 1 },
    { 70, 40, 48, 40, 2, 1 },
    { 5, 304, 704, 3, 2, 1 },
    { 9, 8, 16, 3, 2, 4 },
    { 140, 16, 24, 18, 2, 2, true },
    { 70, 24, 16, 5, 2, 2, false, 0.5f },
};

static float scale_of(int32_t adapter) {
    return 0.75f + 0.5f * (float)adapter;
}

static int64_t groups_of(const ck_case *c) {
    return c->in[2].data ? c->attr.moe.n_expert : c->attr.lora.n_head;
}

static void add_weights(ck_case *c, int64_t n, int64_t n_out, int64_t n_in, int32_t rank) {
    c->w[0] = ck_cube(n, rank, n_in);
    c->w[1] = ck_cube(n, n_out, rank);
    for (int i = 0; i < 2; i++) {
        c->w[i].layout = ML_PANELS;
        ck_fill(c, &c->w[i], 1.0f);
    }
}

/* Some rows have no adapter; neighbours often have the same one. */
static void choose_adapters(ck_case *c, int32_t n_token, int32_t adapters) {
    int32_t *of = ck_ints(c, n_token, adapters + 1);

    for (int32_t i = 0; i < n_token; i++) {
        of[i]--;
        if (i && ck_below(c, 3))
            of[i] = of[i - 1];
    }
    c->rows.n_token = n_token;
    c->rows.adapter = of;
}

static void choose_keys(ck_case *c, int32_t n_token, float dropout) {
    uint64_t *key = ML_NEW(c->arena, uint64_t, n_token + 1);

    for (int32_t i = 0; i < n_token; i++)
        key[i] = (uint64_t)i * 7919 + 11;
    c->attr.lora.dropout = dropout;
    c->rows.dropout_key = dropout > 0 ? key : NULL;
}

/* The inputs of head h of a token for one expert, after dropout; in the arena. */
static const double *dropped(const ck_case *c, int64_t token, int64_t group, int64_t h,
                             int64_t n, const double *x) {
    const float p = c->attr.lora.dropout;
    double *y;

    if (!c->rows.dropout_key)
        return x;
    y = ML_NEW(c->arena, double, n);
    for (int64_t j = 0; j < n; j++) {
        uint64_t col = (uint64_t)(h * n + j);
        ml_philox four =
            ml_philox_at(c->rows.dropout_key[token],
                         (uint64_t)c->attr.lora.site | (uint64_t)group << 32, col / 4);
        bool gone = four.word[col % 4] < (uint32_t)((double)p * 0x1p32);
        y[j] = gone ? 0.0 : x[j] / (1.0 - (double)p);
    }
    return y;
}

static void build(ck_case *c, int i) {
    const struct variant *v = &variants[i];

    ck_name(c, "m%d-n%d-k%d-r%d-a%d-h%d%s", v->m, v->n, v->k, v->rank, v->adapters,
            v->heads,
            v->transposed    ? "-transposed"
            : v->dropout > 0 ? "-dropout"
                             : "");
    c->attr.lora.max_rank = v->rank;
    c->attr.lora.n_head = v->heads;
    c->attr.lora.transposed = v->transposed;
    choose_adapters(c, v->m, v->adapters);
    choose_keys(c, v->m, v->dropout);
    c->in[0] = ck_mat(v->m, (int64_t)v->heads * v->k);
    ck_fill(c, &c->in[0], 1.0f);
    c->in[1] = ck_mat(v->m, (int64_t)v->heads * v->n);
    ck_fill(c, &c->in[1], 1.0f);
    add_weights(c, (int64_t)v->adapters * v->heads, v->transposed ? v->k : v->n,
                v->transposed ? v->n : v->k, v->rank);
    c->out[0] = ck_mat(v->m, (int64_t)v->heads * v->n);
}

/* A stack of an adapter's groups; NULL data stays NULL. */
static ml_tensor stack_at(const ml_tensor *t, int64_t adapter, int64_t groups) {
    ml_tensor s = *t;

    s.shape[0] = groups;
    if (s.data)
        s.data = (char *)s.data + (size_t)adapter * ml_tensor_bytes(&s);
    return s;
}

static void bind(const ck_case *c, ml_op_args *a) {
    int64_t groups = groups_of(c), n = c->w[0].shape[0] / groups;
    ml_lora_site *site = ML_NEW(c->arena, ml_lora_site, n);
    const ml_lora_site **of = ML_NEW(c->arena, const ml_lora_site *, n);
    ml_lora_table *table = ML_NEW(c->arena, ml_lora_table, 1);

    for (int64_t i = 0; i < n; i++) {
        site[i] = (ml_lora_site){ .a = stack_at(&a->w[0], i, groups),
                                  .b = stack_at(&a->w[1], i, groups),
                                  .da = stack_at(&a->dw[0], i, groups),
                                  .db = stack_at(&a->dw[1], i, groups),
                                  .scale = scale_of((int32_t)i) };
        of[i] = &site[i];
    }
    *table = (ml_lora_table){ .adapter = of, .n_adapter = (int32_t)n };
    a->lora = table;
}

/* z[n_out] += scale B (A x), or, transposed, scale A^T (B^T x). */
static void add_adapter(const ck_case *c, const ck_ref *r, int64_t member, int32_t adapter,
                        const double *x, double *z) {
    const int64_t rank = c->w[0].shape[1], n_in = c->w[0].shape[2],
                  n_out = c->w[1].shape[1];
    const double *a = r->w[0] + member * rank * n_in, *b = r->w[1] + member * n_out * rank;
    bool swapped = c->attr.lora.transposed;

    for (int64_t k = 0; k < rank; k++) {
        double low = 0.0;
        for (int64_t j = 0; j < (swapped ? n_out : n_in); j++)
            low += x[j] * (swapped ? b[j * rank + k] : a[k * n_in + j]);
        for (int64_t j = 0; j < (swapped ? n_in : n_out); j++)
            z[j] += (double)scale_of(adapter) * low *
                    (swapped ? a[k * n_in + j] : b[j * rank + k]);
    }
}

static void copy_outputs(const ck_case *c, ck_ref *r) {
    for (int64_t i = 0; i < ml_tensor_count(&c->out[0]); i++)
        r->out[0][i] = r->in[1][i];
}

static void forward(const ck_case *c, ck_ref *r) {
    const int64_t h = c->attr.lora.n_head;
    const int64_t n = c->out[0].shape[1] / h, k = c->in[0].shape[1] / h;

    copy_outputs(c, r);
    for (int64_t t = 0; t < c->rows.n_token; t++)
        for (int64_t i = 0; i < h && c->rows.adapter[t] >= 0; i++)
            add_adapter(c, r, c->rows.adapter[t] * h + i, c->rows.adapter[t],
                        dropped(c, t, 0, i, k, r->in[0] + (t * h + i) * k),
                        r->out[0] + (t * h + i) * n);
}

const ck_suite ck_lora = {
    .op = ML_OP_LORA,
    .n_case = sizeof variants / sizeof *variants,
    .build = build,
    .bind = bind,
    .forward = forward,
    .ref_out = 1,
    .grad_out = 1,
    .row_out = 1,
};

/* ---- experts ---- */

static const struct expert_variant {
    int32_t tokens, top_k, experts, n, k, rank, adapters;
    float dropout;
} expert_variants[] = {
    { 1, 1, 2, 4, 4, 2, 1 },          { 9, 2, 4, 17, 15, 3, 2 },
    { 60, 4, 16, 20, 33, 8, 3 },      { 150, 2, 3, 18, 6, 17, 2 },
    { 9, 2, 4, 17, 15, 3, 2, 0.25f }, { 60, 4, 16, 24, 32, 8, 3 },
    { 300, 2, 3, 16, 8, 40, 2 },
};

/* The table of MOE_ROUTE: starts of the experts' rows, and the pair of each row. */
static ml_tensor group_of(ck_case *c, const struct expert_variant *v) {
    int32_t n = v->tokens * v->top_k, at = 0;
    ml_tensor t = ck_vec(v->experts + 1 + 2 * n);
    int32_t *start = ML_NEW(c->arena, int32_t, t.shape[0]);
    int32_t *expert = ck_ints(c, n, v->experts), *pair = start + v->experts + 1;

    for (int32_t e = 0; e < v->experts; e++) {
        start[e] = at;
        for (int32_t i = 0; i < n; i++)
            if (expert[i] == e)
                pair[at++] = i;
    }
    start[v->experts] = at;
    t.dtype = ML_I32;
    t.data = start;
    return t;
}

static void build_experts(ck_case *c, int i) {
    const struct expert_variant *v = &expert_variants[i];
    int64_t rows = (int64_t)v->tokens * v->top_k;

    ck_name(c, "m%d-e%d-k%d-n%d-k%d-r%d-a%d%s", v->tokens, v->experts, v->top_k, v->n, v->k,
            v->rank, v->adapters, v->dropout > 0 ? "-dropout" : "");
    c->attr.lora.max_rank = v->rank;
    c->attr.lora.n_head = 1;
    c->attr.moe.n_expert = v->experts;
    c->attr.moe.top_k = v->top_k;
    choose_adapters(c, v->tokens, v->adapters);
    choose_keys(c, v->tokens, v->dropout);
    c->in[0] = ck_mat(rows, v->k);
    ck_fill(c, &c->in[0], 1.0f);
    c->in[1] = ck_mat(rows, v->n);
    ck_fill(c, &c->in[1], 1.0f);
    c->in[2] = group_of(c, v);
    add_weights(c, (int64_t)v->adapters * v->experts, v->n, v->k, v->rank);
    c->out[0] = ck_mat(rows, v->n);
}

static void forward_experts(const ck_case *c, ck_ref *r) {
    const int32_t n_expert = c->attr.moe.n_expert;
    const int32_t *start = c->in[2].data, *pair = start + n_expert + 1;
    const int64_t n = c->out[0].shape[1], k = c->in[0].shape[1];

    copy_outputs(c, r);
    for (int32_t e = 0; e < n_expert; e++)
        for (int64_t i = start[e]; i < start[e + 1]; i++) {
            int32_t token = pair[i] / c->attr.moe.top_k, adapter = c->rows.adapter[token];
            if (adapter >= 0)
                add_adapter(c, r, (int64_t)adapter * n_expert + e, adapter,
                            dropped(c, token, e, 0, k, r->in[0] + i * k),
                            r->out[0] + i * n);
        }
}

const ck_suite ck_lora_experts = {
    .op = ML_OP_LORA,
    .n_case = sizeof expert_variants / sizeof *expert_variants,
    .build = build_experts,
    .bind = bind,
    .forward = forward_experts,
    .ref_out = 1,
    .grad_out = 1,
};
