#include "tests/checkop/checkop.h"

#include <math.h>
#include <string.h>

/* ---- add ---- */

static const struct add_variant {
    int32_t n, width;
} add_variants[] = { { 0, 4 }, { 1, 1 }, { 3, 15 }, { 3, 16 }, { 5, 17 }, { 40, 1030 } };

static void build_add(ck_case *c, int i) {
    const struct add_variant *v = &add_variants[i];

    ck_name(c, "n%d-h%d", v->n, v->width);
    c->rows.n_token = v->n;
    c->in[0] = c->in[1] = c->out[0] = ck_mat(v->n, v->width);
    ck_fill(c, &c->in[0], 2.0f);
    ck_fill(c, &c->in[1], 2.0f);
}

static void add_forward(const ck_case *c, ck_ref *r) {
    for (int64_t i = 0; i < ml_tensor_count(&c->out[0]); i++)
        r->out[0][i] = r->in[0][i] + r->in[1][i];
}

const ck_suite ck_add = {
    .op = ML_OP_ADD,
    .n_case = sizeof add_variants / sizeof *add_variants,
    .build = build_add,
    .forward = add_forward,
    .ref_out = 1,
    .grad_out = 1,
    .row_out = 1,
};

/* ---- glu ---- */

static const struct glu_variant {
    int32_t n, k, width; /* k rows per token, as after a router */
    ml_act act;
    bool fused;
    float amp, limit;
} glu_variants[] = {
    { 0, 1, 4, ML_ACT_SILU, false, 1.0f },
    { 1, 1, 1, ML_ACT_SILU, false, 1.0f },
    { 3, 1, 15, ML_ACT_SILU, true, 2.0f },
    { 3, 1, 33, ML_ACT_SILU, false, 12.0f },
    { 1, 1, 1, ML_ACT_GELU_TANH, true, 1.0f },
    { 8, 4, 17, ML_ACT_GELU_TANH, false, 2.0f },
    { 2, 1, 31, ML_ACT_GELU_TANH, true, 5.0f },
    { 40, 1, 1030, ML_ACT_SILU, true, 3.0f },
    { 40, 1, 520, ML_ACT_GELU_TANH, false, 3.0f },
    { 3, 1, 33, ML_ACT_SIGMOID, false, 6.0f },
    { 2, 1, 16, ML_ACT_SIGMOID, true, 2.0f },
    { 3, 1, 35, ML_ACT_RELU, false, 2.0f },
    { 4, 2, 35, ML_ACT_CLAMPED, false, 12.0f },
    { 3, 1, 16, ML_ACT_CLAMPED, true, 10.0f },
    { 4, 2, 35, ML_ACT_SILU, false, 3.0f, 1.503f }, /* not bf16: no input is at the kink */
    { 3, 1, 16, ML_ACT_SILU, true, 20.0f, 10.0f },
};

static void build_glu(ck_case *c, int i) {
    const struct glu_variant *v = &glu_variants[i];

    static const char *const names[] = { "silu", "gelu", "sigmoid", "relu", "clamped" };

    ck_name(c, "%s-%sn%d-k%d-i%d", names[v->act], v->fused ? "fused-" : "", v->n, v->k,
            v->width);
    if (v->limit > 0)
        strcat(c->name, "-limit");
    c->attr.glu.limit = v->limit;
    c->attr.glu.act = v->act;
    c->attr.glu.fused = v->fused;
    c->rows.n_token = v->n / v->k;
    c->in[0] = ck_mat(v->n, v->fused ? 2 * v->width : v->width);
    ck_fill(c, &c->in[0], v->amp);
    if (!v->fused) {
        c->in[1] = ck_mat(v->n, v->width);
        ck_fill(c, &c->in[1], v->act == ML_ACT_CLAMPED ? v->amp : 2.0f);
    }
    c->out[0] = ck_mat(v->n, v->width);
}

static double activation(ml_act act, double g) {
    if (act == ML_ACT_SILU)
        return g / (1.0 + exp(-g));
    if (act == ML_ACT_SIGMOID)
        return 1.0 / (1.0 + exp(-g));
    if (act == ML_ACT_RELU)
        return g > 0.0 ? g : 0.0;
    return 0.5 * g * (1.0 + tanh(sqrt(2.0 / acos(-1.0)) * (g + 0.044715 * g * g * g)));
}

static double clamped(double g, double u) {
    g = fmin(g, 7.0);
    u = fmax(-7.0, fmin(u, 7.0));
    return g / (1.0 + exp(-1.702 * g)) * (u + 1.0);
}

static double limited(double g, double u, double limit) {
    return activation(ML_ACT_SILU, fmin(g, limit)) * fmax(-limit, fmin(u, limit));
}

static void glu_forward(const ck_case *c, ck_ref *r) {
    int64_t width = c->out[0].shape[1];
    bool fused = c->attr.glu.fused;

    for (int64_t t = 0; t < c->out[0].shape[0]; t++) {
        const double *g = r->in[0] + t * width * (fused ? 2 : 1);
        const double *u = fused ? g + width : r->in[1] + t * width;
        for (int64_t i = 0; i < width; i++)
            r->out[0][t * width + i] = c->attr.glu.limit > 0
                                           ? limited(g[i], u[i], (double)c->attr.glu.limit)
                                       : c->attr.glu.act == ML_ACT_CLAMPED
                                           ? clamped(g[i], u[i])
                                           : activation(c->attr.glu.act, g[i]) * u[i];
    }
}

const ck_suite ck_glu = {
    .op = ML_OP_GLU,
    .n_case = sizeof glu_variants / sizeof *glu_variants,
    .build = build_glu,
    .forward = glu_forward,
    .ref_out = 1,
    .grad_out = 1,
    .row_out = 1,
};

/* ---- slice ---- */

static const struct pick_variant {
    int32_t n, n_group, group, n_part, at[ML_SLICE_PARTS], width[ML_SLICE_PARTS];
} pick_variants[] = {
    { 0, 1, 8, 1, { 0 }, { 8 } },       { 3, 1, 20, 1, { 3 }, { 9 } },
    { 5, 4, 32, 1, { 16 }, { 16 } },    { 7, 3, 50, 3, { 0, 10, 20 }, { 10, 10, 17 } },
    { 2, 2, 6, 2, { 4, 0 }, { 2, 3 } },
};

static void build_pick(ck_case *c, int i) {
    const struct pick_variant *v = &pick_variants[i];
    int64_t width = 0;

    ck_name(c, "n%d-g%d.%d-p%d", v->n, v->n_group, v->group, v->n_part);
    c->attr.slice.n_group = v->n_group;
    c->attr.slice.group = v->group;
    c->attr.slice.n_part = v->n_part;
    for (int k = 0; k < v->n_part; k++) {
        c->attr.slice.part[k].at = v->at[k];
        c->attr.slice.part[k].width = v->width[k];
        width += (int64_t)v->n_group * v->width[k];
    }
    c->rows.n_token = v->n;
    c->in[0] = ck_mat(v->n, (int64_t)v->n_group * v->group);
    ck_fill(c, &c->in[0], 2.0f);
    c->out[0] = ck_mat(v->n, width);
}

static void pick_forward(const ck_case *c, ck_ref *r) {
    int64_t to = 0;
    for (int64_t t = 0; t < c->rows.n_token; t++)
        for (int32_t p = 0; p < c->attr.slice.n_part; p++)
            for (int64_t g = 0; g < c->attr.slice.n_group; g++)
                for (int64_t i = 0; i < c->attr.slice.part[p].width; i++)
                    r->out[0][to++] =
                        r->in[0][(t * c->attr.slice.n_group + g) * c->attr.slice.group +
                                 c->attr.slice.part[p].at + i];
}

const ck_suite ck_pick = {
    .op = ML_OP_SLICE,
    .n_case = sizeof pick_variants / sizeof *pick_variants,
    .build = build_pick,
    .forward = pick_forward,
    .ref_out = 1,
    .grad_out = 1,
    .row_out = 1,
};

/* ---- merge-cols ---- */

/* Two ranks with a column in common; three with two parts each; a rank without columns of
 * its own; one run of a wide row. */
static const ml_col_run merge_runs[][6] = {
    { { 0, 0, 0, 5 }, { 1, 1, 5, 4 } },
    { { 0, 0, 0, 2 },
      { 1, 0, 2, 2 },
      { 2, 1, 4, 1 },
      { 0, 2, 5, 3 },
      { 1, 3, 8, 2 },
      { 2, 2, 10, 3 } },
    { { 0, 0, 0, 16 }, { 1, 0, 16, 16 }, { 2, 11, 32, 5 } },
    { { 0, 0, 0, 700 }, { 1, 0, 700, 700 } },
};
static const struct merge_variant {
    int32_t n, n_rank, cut, n_run;
} merge_variants[] = {
    { 0, 2, 5, 2 }, { 3, 2, 5, 2 }, { 7, 3, 5, 6 }, { 5, 4, 16, 3 }, { 33, 2, 700, 2 },
};
static const int merge_runs_of[] = { 0, 0, 1, 2, 3 };

static void build_merge(ck_case *c, int i) {
    const struct merge_variant *v = &merge_variants[i];
    const ml_col_run *run = merge_runs[merge_runs_of[i]];
    int64_t width = 0;

    ck_name(c, "n%d-r%d-c%d-k%d", v->n, v->n_rank, v->cut, v->n_run);
    for (int k = 0; k < v->n_run; k++)
        width += run[k].n;
    c->attr.merge.run = run;
    c->attr.merge.n_run = v->n_run;
    c->attr.merge.n_rank = v->n_rank;
    c->rows.n_token = v->n;
    c->in[0] = ck_mat((int64_t)v->n_rank * v->n, v->cut);
    ck_fill(c, &c->in[0], 2.0f);
    c->out[0] = ck_mat(v->n, width);
}

static void merge_forward(const ck_case *c, ck_ref *r) {
    for (int64_t t = 0; t < c->rows.n_token; t++)
        for (int32_t k = 0; k < c->attr.merge.n_run; k++) {
            const ml_col_run *run = &c->attr.merge.run[k];
            for (int64_t i = 0; i < run->n; i++)
                r->out[0][t * c->out[0].shape[1] + run->to + i] =
                    r->in[0][(run->rank * c->rows.n_token + t) * c->in[0].shape[1] +
                             run->from + i];
        }
}

const ck_suite ck_merge = {
    .op = ML_OP_MERGE_COLS,
    .n_case = sizeof merge_variants / sizeof *merge_variants,
    .build = build_merge,
    .forward = merge_forward,
    .ref_out = 1,
};

/* ---- split-cols ---- */

/* One block; two of two parts each; three, one of which is empty. */
static const ml_col_run split_runs[][4] = {
    { { 0, 0, 0, 7 } },
    { { 0, 0, 0, 3 }, { 0, 9, 3, 2 }, { 1, 3, 0, 6 }, { 1, 11, 6, 1 } },
    { { 0, 0, 0, 16 }, { 1, 16, 0, 0 }, { 2, 16, 0, 24 } },
};
static const int64_t split_width[][3] = { { 7 }, { 5, 7 }, { 16, 0, 24 } };
static const struct split_variant {
    int32_t n, m, kind, n_run, n_block;
    bool back;
    bool f32; /* cotangents: what ranks have added up */
} split_variants[] = {
    { 0, 0, 0, 1, 1, false },  { 0, 3, 1, 4, 2, false }, { 5, 5, 0, 1, 1, false },
    { 5, 9, 1, 4, 2, false },  { 5, 9, 1, 4, 2, true },  { 33, 40, 2, 3, 3, false },
    { 33, 40, 2, 3, 3, true }, { 0, 3, 1, 4, 2, true },  { 9, 12, 0, 1, 1, .f32 = true },
};

static void build_split(ck_case *c, int i) {
    const struct split_variant *v = &split_variants[i];
    int64_t width = 0;

    ck_name(c, "n%d-m%d-b%d-k%d%s", v->n, v->m, v->n_block, v->n_run,
            v->back  ? "-back"
            : v->f32 ? "-f32"
                     : "");
    c->exact_grad = v->f32;
    for (int k = 0; k < v->n_block; k++)
        width += split_width[v->kind][k];
    c->attr.split.run = split_runs[v->kind];
    c->attr.split.width = split_width[v->kind];
    c->attr.split.n_run = v->n_run;
    c->attr.split.n_block = v->n_block;
    c->attr.split.back = v->back;
    c->rows.n_token = v->n;
    c->in[0] = ck_mat(v->back ? v->m : v->n, width);
    ck_fill(c, &c->in[0], 2.0f);
    c->out[0] = ck_mat(v->back ? v->n : v->m, width);
}

static void split_forward(const ck_case *c, ck_ref *r) {
    int64_t width = c->in[0].shape[1], n = c->rows.n_token;
    int64_t m = (c->attr.split.back ? c->in : c->out)[0].shape[0];

    for (int64_t i = 0; i < m * width && !c->attr.split.back; i++)
        r->out[0][i] = 0.0;
    for (int32_t k = 0; k < c->attr.split.n_run; k++) {
        const ml_col_run *run = &c->attr.split.run[k];
        int64_t at = 0;
        for (int32_t b = 0; b < run->rank; b++)
            at += m * c->attr.split.width[b];
        for (int64_t t = 0; t < n; t++)
            for (int64_t i = 0; i < run->n; i++) {
                int64_t row = t * width + run->from + i;
                int64_t block = at + t * c->attr.split.width[run->rank] + run->to + i;
                if (c->attr.split.back)
                    r->out[0][row] = r->in[0][block];
                else
                    r->out[0][block] = r->in[0][row];
            }
    }
}

const ck_suite ck_split = {
    .op = ML_OP_SPLIT_COLS,
    .n_case = sizeof split_variants / sizeof *split_variants,
    .build = build_split,
    .forward = split_forward,
    .ref_out = 1,
    .grad_out = 1,
};

/* ---- order-rows ---- */

static const struct order_variant {
    int32_t n_rank, n_share, width;
    bool back;
} order_variants[] = {
    { 2, 0, 5, false }, { 2, 3, 5, false },  { 3, 4, 17, true },
    { 4, 1, 0, false }, { 8, 9, 64, false }, { 8, 9, 64, true },
};

static void build_order(ck_case *c, int i) {
    const struct order_variant *v = &order_variants[i];
    ml_context_rows *context = ML_NEW(c->arena, ml_context_rows, 1);
    int32_t n = v->n_rank * v->n_share, *order = ML_NEW(c->arena, int32_t, n + 1);

    ck_name(c, "r%d-m%d-c%d%s", v->n_rank, v->n_share, v->width, v->back ? "-back" : "");
    for (int32_t k = 0; k < n; k++) {
        int32_t other = ck_below(c, k + 1);
        order[k] = order[other];
        order[other] = k;
    }
    *context = (ml_context_rows){ .order = order, .n_rank = v->n_rank };
    context->n_share = v->n_share;
    c->rows.context = context;
    c->rows.n_token = n;
    c->attr.split.back = v->back;
    c->in[0] = c->out[0] = ck_mat(n, v->width);
    ck_fill(c, &c->in[0], 2.0f);
}

static void order_forward(const ck_case *c, ck_ref *r) {
    const int32_t *order = c->rows.context->order;
    int64_t width = c->in[0].shape[1];

    for (int64_t i = 0; i < c->in[0].shape[0]; i++)
        for (int64_t k = 0; k < width; k++)
            if (c->attr.split.back)
                r->out[0][order[i] * width + k] = r->in[0][i * width + k];
            else
                r->out[0][i * width + k] = r->in[0][order[i] * width + k];
}

const ck_suite ck_order = {
    .op = ML_OP_ORDER_ROWS,
    .n_case = sizeof order_variants / sizeof *order_variants,
    .build = build_order,
    .forward = order_forward,
    .ref_out = 1,
    .grad_out = 1,
};

/* ---- concat ---- */

static const struct join_variant {
    int32_t n, heads, a, b;
} join_variants[] = { { 0, 1, 4, 4 }, { 3, 1, 17, 8 }, { 5, 4, 32, 6 }, { 9, 128, 5, 3 } };

static void build_join(ck_case *c, int i) {
    const struct join_variant *v = &join_variants[i];

    ck_name(c, "n%d-h%d-a%d-b%d", v->n, v->heads, v->a, v->b);
    c->attr.n_head = v->heads;
    c->rows.n_token = v->n;
    c->in[0] = ck_mat(v->n, (int64_t)v->heads * v->a);
    c->in[1] = ck_mat(v->n, (int64_t)v->heads * v->b);
    ck_fill(c, &c->in[0], 2.0f);
    ck_fill(c, &c->in[1], 2.0f);
    c->out[0] = ck_mat(v->n, (int64_t)v->heads * (v->a + v->b));
}

static void join_forward(const ck_case *c, ck_ref *r) {
    int64_t h = c->attr.n_head, a = c->in[0].shape[1] / h, b = c->in[1].shape[1] / h;

    for (int64_t i = 0; i < c->rows.n_token * h; i++)
        for (int64_t k = 0; k < a + b; k++)
            r->out[0][i * (a + b) + k] =
                k < a ? r->in[0][i * a + k] : r->in[1][i * b + k - a];
}

const ck_suite ck_join = {
    .op = ML_OP_CONCAT,
    .n_case = sizeof join_variants / sizeof *join_variants,
    .build = build_join,
    .forward = join_forward,
    .ref_out = 1,
    .grad_out = 1,
    .row_out = 1,
};

/* ---- row gate ---- */

static void build_row_gate(ck_case *c, int i) {
    const struct add_variant *v = &add_variants[i];

    ck_name(c, "n%d-h%d", v->n, v->width);
    c->rows.n_token = v->n;
    c->in[0] = ck_mat(v->n, 1);
    c->in[1] = c->out[0] = ck_mat(v->n, v->width);
    ck_fill(c, &c->in[0], 4.0f);
    ck_fill(c, &c->in[1], 2.0f);
}

static void row_gate_forward(const ck_case *c, ck_ref *r) {
    int64_t width = c->out[0].shape[1];
    for (int64_t i = 0; i < ml_tensor_count(&c->out[0]); i++)
        r->out[0][i] = r->in[1][i] / (1.0 + exp(-r->in[0][i / width]));
}

const ck_suite ck_row_gate = {
    .op = ML_OP_ROW_GATE,
    .n_case = sizeof add_variants / sizeof *add_variants,
    .build = build_row_gate,
    .forward = row_gate_forward,
    .ref_out = 1,
    .grad_out = 1,
    .row_out = 1,
};
