/* moe.c - MoE routing, dispatch (gather), weights of expert inputs and combine.
 *
 * The expert of rank r of a token is pair token*k + r; the pairs sorted by expert, then
 * token, are the slots (see `group` in ops.h). */
#include "backend/cpu/cpu_priv.h"

#include <math.h>
#include <string.h>

#include "backend/cpu/math.h"

/* ---- route ---- */

/* Scratch: three rows of experts per thread: scores, selection scores (in backward their
 * gradients), and scores of groups. */
static int64_t lane_width(const ml_op_args *a) {
    return ((int64_t)a->attr->moe.n_expert + ML_LANES - 1) / ML_LANES * ML_LANES;
}

size_t ml_cpu_moe_route_scratch(const ml_cpu_stream *s, const ml_op_args *a,
                                bool backward) {
    int64_t rows = 3 * (int64_t)ml_pool_size(s->pool);
    (void)backward;
    return (size_t)(rows * lane_width(a)) * sizeof(float);
}

static float *lane_rows(const ml_op_args *a, int worker) {
    return (float *)a->scratch + 3 * worker * lane_width(a);
}

/* NaN counts as less than any number, so that k different experts are always selected. */
static float rank_of(float x) {
    return x == x ? x : -INFINITY;
}

/* The next index after `last` in the order of descending value, then ascending index. */
static int32_t next_best(const float *p, int32_t n, int32_t last) {
    int32_t best = -1;
    float limit = last < 0 ? 0.0f : rank_of(p[last]), best_p = 0.0f;

    for (int32_t e = 0; e < n; e++) {
        float q = rank_of(p[e]);
        bool open = last < 0 || q < limit || (q == limit && e > last);
        if (open && (best < 0 || q > best_p)) {
            best = e;
            best_p = q;
        }
    }
    return best;
}

/* The score of a group of experts: the sum of its two best. */
static float group_worth(const float *choice, int32_t size) {
    int32_t first = next_best(choice, size, -1);
    return choice[first] + choice[next_best(choice, size, first)];
}

/* Moves experts outside the best groups below all others.  worth [n_group] is scratch. */
static void keep_groups(float *choice, float *worth, const ml_op_attr *attr) {
    int32_t n_group = attr->moe.n_group, size = attr->moe.n_expert / n_group, last = -1;

    for (int32_t g = 0; g < n_group; g++)
        worth[g] = group_worth(choice + g * size, size);
    for (int32_t i = 0; i < n_group; i++) {
        last = next_best(worth, n_group, last);
        for (int32_t e = last * size; i >= attr->moe.top_group && e < (last + 1) * size;
             e++)
            choice[e] = -INFINITY;
    }
}

static void expert_scores(const ml_cpu_job *j, float *p, int64_t row) {
    int64_t n = j->a->attr->moe.n_expert;
    const float *x = (const float *)j->a->in[0].data + row * n;

    if (j->a->attr->moe.sigmoid)
        j->s->kern->row->sigmoid(p, x, n);
    else if (j->a->attr->moe.sqrt_softplus)
        for (int64_t e = 0; e < n; e++)
            p[e] = (float)sqrt(ml_softplus(x[e]));
    else
        j->s->kern->row->softmax(p, x, n);
}

/* The divisor of the selected scores. */
static float chosen_sum(const float *p, const int32_t *expert, const ml_op_attr *attr) {
    float sum = 0.0f;
    if (!attr->moe.renorm)
        return 1.0f;
    for (int32_t r = 0; r < attr->moe.top_k; r++)
        sum += p[expert[r]];
    return attr->moe.sigmoid || attr->moe.sqrt_softplus ? sum + 1e-20f : sum;
}

static void choose(const ml_cpu_job *j, int32_t *expert, const float *p, float *choice,
                   float *worth) {
    const ml_op_attr *attr = j->a->attr;
    const float *bias = j->a->w[0].data;
    int32_t n = attr->moe.n_expert;

    for (int32_t e = 0; e < n; e++)
        choice[e] = bias ? p[e] + bias[e] : p[e];
    if (attr->moe.n_group > 1)
        keep_groups(choice, worth, attr);
    for (int32_t r = 0; r < attr->moe.top_k; r++)
        expert[r] = next_best(choice, n, r ? expert[r - 1] : -1);
}

/* Loading checks the tables; other numbers must not leave the tensors. */
static int32_t expert_of(float number, int32_t n) {
    return number >= 0.0f && number < (float)n ? (int32_t)number : 0;
}

/* Takes the experts of a token that are given, or those of a table of tokens; false: the
 * router selects. */
static bool take_experts(const ml_op_args *a, int64_t t, int32_t *expert) {
    int32_t k = a->attr->moe.top_k;
    const int32_t *given = a->given.data;
    const float *table = a->in[1].data;

    if (given && given[t * k] >= 0) {
        memcpy(expert, given + t * k, (size_t)k * sizeof *expert);
        return true;
    }
    for (int32_t r = 0; table && r < k; r++)
        expert[r] = expert_of(table[t * k + r], a->attr->moe.n_expert);
    return table != NULL;
}

static void route_rows(void *ud, int64_t begin, int64_t end, int worker) {
    const ml_cpu_job *j = ud;
    const ml_op_args *a = j->a;
    int32_t k = a->attr->moe.top_k;
    float *p = lane_rows(a, worker), *choice = p + lane_width(a);

    for (int64_t t = begin; t < end; t++) {
        float *weight = (float *)a->out[0].data + t * k, sum;
        int32_t *expert = (int32_t *)a->out[1].data + t * k;

        expert_scores(j, p, t);
        if (!take_experts(a, t, expert))
            choose(j, expert, p, choice, p + 2 * lane_width(a));
        sum = chosen_sum(p, expert, a->attr);
        for (int32_t r = 0; r < k; r++)
            weight[r] = p[expert[r]] / sum * a->attr->moe.scale;
    }
}

/* A counting sort, stable within an expert. */
static void group_pairs(const ml_op_args *a) {
    int64_t n_pair = (int64_t)a->rows->n_token * a->attr->moe.top_k;
    int32_t n = a->attr->moe.n_expert;
    const int32_t *expert = a->out[1].data;
    int32_t *start = a->out[2].data, *pair_of = start + n + 1, *slot_of = pair_of + n_pair;

    memset(start, 0, (size_t)(n + 1) * sizeof *start);
    for (int64_t i = 0; i < n_pair; i++)
        start[expert[i] + 1]++;
    for (int32_t e = 0; e < n; e++)
        start[e + 1] += start[e];
    /* start[e] advances through e's slots and ends at the start of e + 1: shifted back
     * below. */
    for (int64_t i = 0; i < n_pair; i++) {
        int32_t slot = start[expert[i]]++;
        pair_of[slot] = (int32_t)i;
        slot_of[i] = slot;
    }
    memmove(start + 1, start, (size_t)n * sizeof *start);
    start[0] = 0;
}

void ml_cpu_moe_route_forward(ml_stream *s, const ml_op_args *a) {
    int64_t cost = (int64_t)a->attr->moe.n_expert * (a->attr->moe.top_k + 4);
    ml_cpu_split(s, a, a->rows->n_token, cost, route_rows);
    group_pairs(a);
}

/* dp[e] of the selected experts; returns the sum of dp[e] p[e], in rank order. */
static float score_gradients(float *dp, const float *p, const int32_t *expert,
                             const float *dweight, const ml_op_attr *attr) {
    float mean = 0.0f, sum = chosen_sum(p, expert, attr), dot = 0.0f;
    int32_t k = attr->moe.top_k;

    for (int32_t r = 0; attr->moe.renorm && r < k; r++)
        mean += dweight[r] * attr->moe.scale * (p[expert[r]] / sum);
    for (int32_t r = 0; r < k; r++) {
        float d = (dweight[r] * attr->moe.scale - mean) / sum;
        dp[expert[r]] = d;
        dot += d * p[expert[r]];
    }
    return dot;
}

/* The gradient of logit x, whose score is p; dot: the sum of dp p over all experts. */
static float logit_gradient(const ml_op_attr *attr, float x, float p, float dp, float dot) {
    if (attr->moe.sigmoid)
        return dp * (p * (1.0f - p));
    if (attr->moe.sqrt_softplus)
        return p > 0.0f ? (float)((double)dp * ml_sigmoid((double)x) / (2.0 * (double)p))
                        : 0.0f;
    return p * (dp - dot);
}

static void route_rows_back(void *ud, int64_t begin, int64_t end, int worker) {
    const ml_cpu_job *j = ud;
    const ml_op_args *a = j->a;
    int32_t n = a->attr->moe.n_expert, k = a->attr->moe.top_k;
    float *p = lane_rows(a, worker), *dp = p + lane_width(a);

    for (int64_t t = begin; t < end; t++) {
        const float *x = (const float *)a->in[0].data + t * n;
        float *dx = (float *)a->din[0].data + t * n, dot;

        expert_scores(j, p, t);
        memset(dp, 0, (size_t)n * sizeof *dp);
        dot = score_gradients(dp, p, (const int32_t *)a->out[1].data + t * k,
                              (const float *)a->dout[0].data + t * k, a->attr);
        for (int32_t e = 0; e < n; e++) {
            float d = logit_gradient(a->attr, x[e], p[e], dp[e], dot);
            dx[e] = a->din_add[0] ? dx[e] + d : d;
        }
    }
}

void ml_cpu_moe_route_backward(ml_stream *s, const ml_op_args *a) {
    if (a->din[0].data)
        ml_cpu_split(s, a, a->rows->n_token, 4 * (int64_t)a->attr->moe.n_expert,
                     route_rows_back);
}

/* ---- gather and combine ---- */

static const int32_t *pairs_by_slot(const ml_op_args *a, const ml_tensor *group) {
    return (const int32_t *)group->data + a->attr->moe.n_expert + 1;
}

static const int32_t *slots_by_pair(const ml_op_args *a, const ml_tensor *group) {
    return pairs_by_slot(a, group) + (int64_t)a->rows->n_token * a->attr->moe.top_k;
}

static void gather_slots(void *ud, int64_t begin, int64_t end, int worker) {
    const ml_cpu_job *j = ud;
    const ml_op_args *a = j->a;
    const int32_t *pair = pairs_by_slot(a, &a->in[1]);
    int64_t width = a->out[0].shape[1];

    (void)worker;
    for (int64_t slot = begin; slot < end; slot++) {
        int64_t t = pair[slot] / a->attr->moe.top_k;
        memcpy((float *)a->out[0].data + slot * width,
               (const float *)a->in[0].data + t * width, (size_t)width * sizeof(float));
    }
}

void ml_cpu_moe_gather_forward(ml_stream *s, const ml_op_args *a) {
    int64_t n_pair = (int64_t)a->rows->n_token * a->attr->moe.top_k;
    ml_cpu_split(s, a, n_pair, a->out[0].shape[1], gather_slots);
}

/* The sum over ranks of token t's rows, times their weights (1 without weights). */
static void sum_ranks(const ml_cpu_job *j, float *x, const float *y, const int32_t *slot,
                      const float *weight, int64_t width, bool add) {
    for (int32_t r = 0; r < j->a->attr->moe.top_k; r++)
        j->s->kern->row->axpy(x, weight ? weight[r] : 1.0f, y + slot[r] * width, width,
                              add || r > 0);
}

static void gather_rows_back(void *ud, int64_t begin, int64_t end, int worker) {
    const ml_cpu_job *j = ud;
    const ml_op_args *a = j->a;
    const int32_t *slot = slots_by_pair(a, &a->in[1]);
    int64_t width = a->dout[0].shape[1];

    (void)worker;
    for (int64_t t = begin; t < end; t++)
        sum_ranks(j, (float *)a->din[0].data + t * width, a->dout[0].data,
                  slot + t * a->attr->moe.top_k, NULL, width, a->din_add[0]);
}

void ml_cpu_moe_gather_backward(ml_stream *s, const ml_op_args *a) {
    if (a->din[0].data)
        ml_cpu_split(s, a, a->rows->n_token, a->dout[0].shape[1] * a->attr->moe.top_k,
                     gather_rows_back);
}

static void combine_rows(void *ud, int64_t begin, int64_t end, int worker) {
    const ml_cpu_job *j = ud;
    const ml_op_args *a = j->a;
    const int32_t *slot = slots_by_pair(a, &a->in[2]);
    const float *weight = a->in[1].data;
    int64_t width = a->out[0].shape[1], k = a->attr->moe.top_k;

    (void)worker;
    for (int64_t t = begin; t < end; t++)
        sum_ranks(j, (float *)a->out[0].data + t * width, a->in[0].data, slot + t * k,
                  weight ? weight + t * k : NULL, width, false);
}

void ml_cpu_moe_combine_forward(ml_stream *s, const ml_op_args *a) {
    ml_cpu_split(s, a, a->rows->n_token, a->out[0].shape[1] * a->attr->moe.top_k,
                 combine_rows);
}

static void combine_pairs_back(void *ud, int64_t begin, int64_t end, int worker) {
    const ml_cpu_job *j = ud;
    const ml_op_args *a = j->a;
    const ml_row_kern *k = j->s->kern->row;
    const int32_t *slot = slots_by_pair(a, &a->in[2]);
    const float *weight = a->in[1].data;
    int64_t width = a->dout[0].shape[1];

    (void)worker;
    for (int64_t i = begin; i < end; i++) {
        const float *dx = (const float *)a->dout[0].data + i / a->attr->moe.top_k * width;
        const float *y = (const float *)a->in[0].data + slot[i] * width;
        float *dy = a->din[0].data, *dweight = a->din[1].data;
        if (dweight) {
            float d = k->dot(dx, y, width);
            dweight[i] = a->din_add[1] ? dweight[i] + d : d;
        }
        if (dy)
            k->axpy(dy + slot[i] * width, weight ? weight[i] : 1.0f, dx, width,
                    a->din_add[0]);
    }
}

void ml_cpu_moe_combine_backward(ml_stream *s, const ml_op_args *a) {
    int64_t n_pair = (int64_t)a->rows->n_token * a->attr->moe.top_k;
    ml_cpu_split(s, a, n_pair, 2 * a->dout[0].shape[1], combine_pairs_back);
}

/* ---- weights of expert inputs ---- */

static void weigh_pairs(void *ud, int64_t begin, int64_t end, int worker) {
    const ml_cpu_job *j = ud;
    const ml_op_args *a = j->a;
    const int32_t *slot = slots_by_pair(a, &a->in[2]);
    const float *weight = a->in[1].data;
    int64_t width = a->out[0].shape[1];

    (void)worker;
    for (int64_t i = begin; i < end; i++)
        j->s->kern->row->axpy((float *)a->out[0].data + slot[i] * width, weight[i],
                              (const float *)a->in[0].data + slot[i] * width, width, false);
}

void ml_cpu_moe_weigh_forward(ml_stream *s, const ml_op_args *a) {
    int64_t n_pair = (int64_t)a->rows->n_token * a->attr->moe.top_k;
    ml_cpu_split(s, a, n_pair, a->out[0].shape[1], weigh_pairs);
}

static void weigh_pairs_back(void *ud, int64_t begin, int64_t end, int worker) {
    const ml_cpu_job *j = ud;
    const ml_op_args *a = j->a;
    const ml_row_kern *k = j->s->kern->row;
    const int32_t *slot = slots_by_pair(a, &a->in[2]);
    const float *weight = a->in[1].data;
    int64_t width = a->dout[0].shape[1];

    (void)worker;
    for (int64_t i = begin; i < end; i++) {
        const float *dy = (const float *)a->dout[0].data + slot[i] * width;
        const float *x = (const float *)a->in[0].data + slot[i] * width;
        float *dx = a->din[0].data, *dweight = a->din[1].data;
        if (dweight) {
            float d = k->dot(dy, x, width);
            dweight[i] = a->din_add[1] ? dweight[i] + d : d;
        }
        if (dx)
            k->axpy(dx + slot[i] * width, weight[i], dy, width, a->din_add[0]);
    }
}

void ml_cpu_moe_weigh_backward(ml_stream *s, const ml_op_args *a) {
    int64_t n_pair = (int64_t)a->rows->n_token * a->attr->moe.top_k;
    ml_cpu_split(s, a, n_pair, 2 * a->dout[0].shape[1], weigh_pairs_back);
}
