#include "tests/checkop/checkop.h"

#include <math.h>
#include <string.h>

static const struct variant {
    int32_t n, experts, k, width;
    bool renorm;
    bool sigmoid; /* with a selection bias */
    int32_t groups, top_groups;
    float scale;
    bool given; /* experts of most tokens are given */
    bool softplus;
    bool table; /* experts are those of a table */
} variants[] = {
    { 0, 4, 2, 8, false },
    { 1, 1, 1, 1, false },
    { 1, 2, 2, 15, true },
    { 5, 15, 3, 16, true },
    { 7, 17, 1, 17, false },
    { 9, 33, 8, 31, true },
    { 6, 128, 8, 20, true },
    { 3, 60, 4, 64, false },
    { 70, 64, 6, 300, true },
    { 5, 17, 3, 16, true, true, 1, 1, 2.5f },
    { 8, 32, 4, 24, true, true, 4, 2, 1.0f },
    { 6, 12, 2, 8, false, true, 6, 1, 0.5f },
    { 9, 64, 8, 31, true, false, 8, 4, 1.5f },
    { 7, 16, 3, 8, true, .given = true },
    { 6, 12, 2, 8, true, true, 3, 1, 2.5f, .given = true },
    { 7, 17, 3, 8, true, .softplus = true },
    { 6, 12, 2, 8, false, .softplus = true, .table = true },
    { 7, 16, 3, 8, true, .given = true, .softplus = true, .table = true },
    { 4, 512, 10, 8, true, true, 8, 4, 2.5f },
};
enum {
    N_ROUTE = sizeof variants / sizeof *variants,
    N_VARIANT = N_ROUTE - 4 /* the last ones differ in MOE_ROUTE only */
};

static const struct variant *begin(ck_case *c, int i) {
    const struct variant *v = &variants[i];

    ck_name(c, "n%d-e%d-k%d-h%d%s", v->n, v->experts, v->k, v->width,
            v->renorm ? "-renorm" : "");
    if (v->groups)
        ck_name(c, "n%d-e%d-k%d-h%d%s%s-g%d-%d", v->n, v->experts, v->k, v->width,
                v->renorm ? "-renorm" : "", v->sigmoid ? "-sigmoid" : "", v->groups,
                v->top_groups);
    if (v->given)
        strcat(c->name, "-given");
    if (v->softplus)
        strcat(c->name, "-softplus");
    if (v->table)
        strcat(c->name, "-table");
    c->attr.moe.sqrt_softplus = v->softplus;
    c->attr.moe.sigmoid = v->sigmoid;
    c->attr.moe.n_group = v->groups;
    c->attr.moe.top_group = v->top_groups;
    c->attr.moe.scale = v->groups ? v->scale : 1.0f;
    c->attr.moe.n_expert = v->experts;
    c->attr.moe.top_k = v->k;
    c->attr.moe.renorm = v->renorm;
    c->rows.n_token = v->n;
    return v;
}

static ml_tensor group_shape(const struct variant *v) {
    ml_tensor t = ck_vec(v->experts + 1 + 2 * (int64_t)v->n * v->k);
    t.dtype = ML_I32;
    return t;
}

/* Fills `group` by its definition: for each expert, the pairs that selected it. */
static void group_pairs(double *group, const double *expert, int64_t n_pair, int32_t n) {
    double *pair_of = group + n + 1, *slot_of = pair_of + n_pair;
    int64_t slot = 0;

    for (int32_t e = 0; e < n; e++) {
        group[e] = (double)slot;
        for (int64_t i = 0; i < n_pair; i++)
            if (expert[i] == e) {
                pair_of[slot] = (double)i;
                slot_of[i] = (double)slot++;
            }
    }
    group[n] = (double)slot;
}

/* A group of random selections: k different experts per token. */
static ml_tensor random_group(ck_case *c, const struct variant *v) {
    int64_t n_pair = (int64_t)v->n * v->k;
    double *expert = ML_NEW(c->arena, double, n_pair + 1);
    ml_tensor t = group_shape(v);
    double *group = ML_NEW(c->arena, double, t.shape[0]);

    for (int64_t i = 0; i < v->n; i++) {
        int32_t first = ck_below(c, v->experts), apart = v->experts > 3 * v->k ? 3 : 1;
        for (int32_t r = 0; r < v->k; r++)
            expert[i * v->k + r] = (first + apart * r) % v->experts;
    }
    group_pairs(group, expert, n_pair, v->experts);
    t.data = ML_NEW(c->arena, int32_t, t.shape[0]);
    for (int64_t i = 0; i < t.shape[0]; i++)
        ((int32_t *)t.data)[i] = (int32_t)group[i];
    return t;
}

/* The slots of token t, rank by rank. */
static const int32_t *slots_of(const ck_case *c, const ml_tensor *group, int64_t t) {
    int64_t k = c->attr.moe.top_k;
    return (const int32_t *)group->data + c->attr.moe.n_expert + 1 + c->rows.n_token * k +
           t * k;
}

/* ---- moe-route ---- */

/* Finite differences change a logit by 1e-4, hence a score by at most 2.5e-5, and the sum of two
 * scores, which decides between groups, by 5e-5: not a selection. */
#define ROUTE_MARGIN 1.5e-4

/* Logits in random order, at least 1 / n apart. */
static void fill_logits(ck_case *c, float *x, int32_t n) {
    for (int32_t e = 0; e < n; e++) {
        int32_t other = ck_below(c, e + 1);
        x[e] = x[other];
        x[other] = (4.0f * (float)e + ck_uniform(c, 1.5f)) / (float)n - 2.0f;
    }
}

/* Gives tokens experts other than they would select, except every third, which selects. */
static void give_experts(ck_case *c, const struct variant *v) {
    int32_t *given = ck_ints(c, (int64_t)v->n * v->k, v->experts - v->k);

    for (int64_t i = 0; i < (int64_t)v->n * v->k; i++) {
        int64_t t = i / v->k;
        given[i] = t % 3 == 2 ? -1 : i % v->k ? given[i - 1] + 1 : given[i];
    }
    c->given = ck_mat(v->n, v->k);
    c->given.dtype = ML_I32;
    c->given.data = given;
}

static void scores(double *p, const double *x, const ml_op_attr *attr) {
    int32_t n = attr->moe.n_expert;
    bool sigmoid = attr->moe.sigmoid;
    double sum = 0.0;

    for (int32_t e = 0; e < n && attr->moe.sqrt_softplus; e++)
        p[e] = sqrt(log1p(exp(x[e])));
    if (attr->moe.sqrt_softplus)
        return;
    for (int32_t e = 0; e < n; e++)
        sum += p[e] = sigmoid ? 1.0 / (1.0 + exp(-x[e])) : exp(x[e]);
    for (int32_t e = 0; e < n && !sigmoid; e++)
        p[e] /= sum;
}

static int32_t best_of(const double *p, int32_t n) {
    int32_t best = 0;
    for (int32_t e = 1; e < n; e++)
        best = p[e] > p[best] ? e : best;
    return best;
}

static double best_two(const double *p, int32_t n) {
    int32_t first = best_of(p, n);
    double second = -HUGE_VAL;
    for (int32_t e = 0; e < n; e++)
        second = e != first && p[e] > second ? p[e] : second;
    return p[first] + second;
}

/* Selection scores: -inf outside the best groups.  Returns how much better the last of these is than
 * the next one. */
static double limit_groups(double *choice, const ml_op_attr *attr) {
    int32_t n_group = attr->moe.n_group, size = attr->moe.n_expert / n_group;
    double worth[64], last = HUGE_VAL;
    bool keep[64] = { 0 };

    for (int32_t g = 0; g < n_group; g++)
        worth[g] = best_two(choice + g * size, size);
    for (int32_t i = 0; i < attr->moe.top_group; i++) {
        int32_t g = best_of(worth, n_group);
        keep[g] = true;
        last = worth[g];
        worth[g] = -HUGE_VAL;
    }
    for (int32_t e = 0; e < n_group * size; e++)
        choice[e] = keep[e / size] ? choice[e] : -HUGE_VAL;
    return last - worth[best_of(worth, n_group)];
}

/* The smallest difference that decides which experts a token selects, and in which order. */
static double selection_margin(const ck_case *c, const float *x) {
    int32_t n = c->attr.moe.n_expert;
    double *p = ML_NEW(c->arena, double, n), *choice = ML_NEW(c->arena, double, n);
    double margin = HUGE_VAL, last = HUGE_VAL;

    for (int32_t e = 0; e < n; e++)
        choice[e] = (double)x[e];
    scores(p, choice, &c->attr);
    for (int32_t e = 0; e < n; e++)
        choice[e] = p[e] + (c->w[0].data ? (double)((const float *)c->w[0].data)[e] : 0.0);
    if (c->attr.moe.n_group > 1)
        margin = limit_groups(choice, &c->attr);
    for (int32_t r = 0; r <= c->attr.moe.top_k && r < n; r++) {
        int32_t best = best_of(choice, n);
        margin = fmin(margin, last - choice[best]);
        last = choice[best];
        choice[best] = -HUGE_VAL;
    }
    return margin;
}

static void build_route(ck_case *c, int i) {
    const struct variant *v = begin(c, i);

    c->in[0] = ck_mat(v->n, v->experts);
    ck_fill(c, &c->in[0], 0.0f);
    for (int64_t t = 0; t < v->n; t++)
        fill_logits(c, (float *)c->in[0].data + t * v->experts, v->experts);
    if (v->sigmoid) {
        c->w[0] = ck_vec(v->experts);
        ck_fill(c, &c->w[0], 0.0f);
        for (int32_t e = 0; e < v->experts; e++)
            ((float *)c->w[0].data)[e] = 0.5f * (float)ck_below(c, 3);
    }
    for (int64_t t = 0; t < v->n; t++) {
        float *x = (float *)c->in[0].data + t * v->experts;
        while (selection_margin(c, x) < ROUTE_MARGIN)
            fill_logits(c, x, v->experts);
    }
    if (v->given)
        give_experts(c, v);
    if (v->table) {
        c->in[1] = ck_mat(v->n, v->k);
        ck_fill(c, &c->in[1], 0.0f);
        for (int64_t k = 0; k < (int64_t)v->n * v->k; k++)
            ((float *)c->in[1].data)[k] = (float)((3 * k + k / v->k) % v->experts);
    }
    c->out[0] = ck_mat(v->n, v->k);
    c->out[1] = ck_mat(v->n, v->k);
    c->out[1].dtype = ML_I32;
    c->out[2] = group_shape(v);
}

static void route_token(double *weight, double *expert, const double *p, double *choice,
                        const int32_t *given, const ml_op_attr *attr) {
    double sum = 0.0;
    int32_t k = attr->moe.top_k;

    for (int32_t r = 0; r < k; r++) {
        int32_t best =
            given && given[0] >= 0 ? given[r] : best_of(choice, attr->moe.n_expert);
        expert[r] = best;
        weight[r] = p[best];
        sum += p[best];
        choice[best] = -HUGE_VAL;
    }
    for (int32_t r = 0; r < k; r++)
        weight[r] *= (double)attr->moe.scale / (attr->moe.renorm ? sum : 1.0);
}

static void route_forward(const ck_case *c, ck_ref *r) {
    int32_t n = c->attr.moe.n_expert, k = c->attr.moe.top_k;
    double *p = ML_NEW(c->arena, double, n), *choice = ML_NEW(c->arena, double, n);
    const int32_t *given = c->given.data;

    for (int64_t t = 0; t < c->rows.n_token; t++) {
        int32_t table[64];
        for (int32_t i = 0; c->in[1].data && i < k; i++)
            table[i] = (int32_t)r->in[1][t * k + i];
        scores(p, r->in[0] + t * n, &c->attr);
        for (int32_t e = 0; e < n; e++)
            choice[e] = p[e] + (c->w[0].data ? r->w[0][e] : 0.0);
        if (c->attr.moe.n_group > 1)
            limit_groups(choice, &c->attr);
        route_token(r->out[0] + t * k, r->out[1] + t * k, p, choice,
                    given && (!c->in[1].data || given[t * k] >= 0) ? given + t * k
                    : c->in[1].data                                ? table
                                                                   : NULL,
                    &c->attr);
    }
    group_pairs(r->out[2], r->out[1], (int64_t)c->rows.n_token * k, n);
}

/* Equal logits: the lowest ids are selected, in order; a NaN logit still yields k
 * different experts. */
static void check_ties(ck_env *e, const ck_case *c) {
    int32_t k = c->attr.moe.top_k;
    ck_mode m = { .in_place = CK_ALL, .only = CK_ALL, .backend = e->n_backend - 1 };

    if (c->given.data || c->in[1].data)
        return;
    for (int with_nan = 0; with_nan < 2; with_nan++) {
        ck_case tied = *c;
        ck_result r;
        m.special = with_nan;
        ck_name(&tied, "%.60s (all logits %s)", c->name, with_nan ? "NaN" : "equal");
        ck_fill(&tied, &tied.in[0], 0.0f);
        if (tied.w[0].data)
            ck_fill(&tied, &tied.w[0], 0.0f);
        if (with_nan)
            memset(tied.in[0].data, 0xff, ml_tensor_bytes(&tied.in[0]));
        ck_run(e, &tied, m, &r);
        for (int64_t i = 0; i < (int64_t)c->rows.n_token * k; i++)
            if (((const int32_t *)r.out[1].data)[i] != i % k) {
                ck_fail(e, "choice %lld of equal experts is %d", (long long)i,
                        ((const int32_t *)r.out[1].data)[i]);
                break;
            }
    }
}

const ck_suite ck_moe_route = {
    .op = ML_OP_MOE_ROUTE,
    .n_case = N_ROUTE,
    .build = build_route,
    .forward = route_forward,
    .ref_out = 1 | 2 | 4,
    .grad_out = 1,
    .row_out = 1 | 2,
    .also = check_ties,
};

/* ---- moe-gather ---- */

static void build_gather(ck_case *c, int i) {
    const struct variant *v = begin(c, i);

    c->in[0] = ck_mat(v->n, v->width);
    ck_fill(c, &c->in[0], 1.0f);
    c->in[1] = random_group(c, v);
    c->out[0] = ck_mat((int64_t)v->n * v->k, v->width);
}

static void gather_forward(const ck_case *c, ck_ref *r) {
    int64_t width = c->in[0].shape[1], k = c->attr.moe.top_k;

    for (int64_t i = 0; i < c->rows.n_token * k; i++)
        memcpy(r->out[0] + slots_of(c, &c->in[1], 0)[i] * width, r->in[0] + i / k * width,
               (size_t)width * sizeof(double));
}

const ck_suite ck_moe_gather = {
    .op = ML_OP_MOE_GATHER,
    .n_case = N_VARIANT,
    .build = build_gather,
    .forward = gather_forward,
    .ref_out = 1,
    .grad_out = 1,
};

/* ---- moe-combine ---- */

/* Rows of experts, their weights, or with `sum` none. */
static const struct variant *build_rows(ck_case *c, int i, bool sum) {
    const struct variant *v = begin(c, i);

    c->in[0] = ck_mat((int64_t)v->n * v->k, v->width);
    ck_fill(c, &c->in[0], 1.0f);
    if (sum)
        strcat(c->name, "-sum");
    else
        c->in[1] = ck_mat(v->n, v->k);
    if (!sum)
        ck_fill(c, &c->in[1], 1.0f);
    c->in[2] = random_group(c, v);
    return v;
}

/* Case 3 a second time without weights. */
static void build_combine(ck_case *c, int i) {
    const struct variant *v = build_rows(c, i < N_VARIANT ? i : 3, i >= N_VARIANT);
    c->out[0] = ck_mat(v->n, v->width);
}

static void combine_forward(const ck_case *c, ck_ref *r) {
    int64_t width = c->out[0].shape[1], k = c->attr.moe.top_k;

    for (int64_t t = 0; t < c->rows.n_token; t++) {
        const int32_t *slot = slots_of(c, &c->in[2], t);
        for (int64_t i = 0; i < width; i++) {
            double sum = 0.0;
            for (int64_t q = 0; q < k; q++)
                sum += (c->in[1].data ? r->in[1][t * k + q] : 1.0) *
                       r->in[0][slot[q] * width + i];
            r->out[0][t * width + i] = sum;
        }
    }
}

const ck_suite ck_moe_combine = {
    .op = ML_OP_MOE_COMBINE,
    .n_case = N_VARIANT + 1,
    .build = build_combine,
    .forward = combine_forward,
    .ref_out = 1,
    .grad_out = 1,
};

/* ---- moe-weigh ---- */

static void build_weigh(ck_case *c, int i) {
    build_rows(c, i, false);
    c->out[0] = ck_mat(c->in[0].shape[0], c->in[0].shape[1]);
}

static void weigh_forward(const ck_case *c, ck_ref *r) {
    int64_t width = c->out[0].shape[1], k = c->attr.moe.top_k;

    for (int64_t pair = 0; pair < c->rows.n_token * k; pair++) {
        int64_t slot = slots_of(c, &c->in[2], 0)[pair];
        for (int64_t i = 0; i < width; i++)
            r->out[0][slot * width + i] = r->in[1][pair] * r->in[0][slot * width + i];
    }
}

const ck_suite ck_moe_weigh = {
    .op = ML_OP_MOE_WEIGH,
    .n_case = N_VARIANT,
    .build = build_weigh,
    .forward = weigh_forward,
    .ref_out = 1,
    .grad_out = 1,
};
