/* attn_chosen.c - ATTN_CHOSEN: sparse attention of each row to the keys selected for it.
 *
 * All query heads share one key, whose prefix is the value.  The work grows with the
 * number of selected keys, not with the length of the sequence.  Backward processes the
 * rows of a sequence in blocks: it computes the weights and their gradients row by row;
 * then every key accumulates the contributions of the rows that selected it, in row
 * order. */
#include "backend/cpu/cpu_priv.h"
#include "base/bug.h"

#include <string.h>

enum { BLOCK = 16 }; /* rows whose weights backward holds at once */

typedef struct chosen_call {
    const ml_cpu_stream *s;
    const ml_op_args *a;
    int64_t n_head, d, e, top_k; /* sizes of keys and values */
    int64_t each;                /* floats of a row's weights: n_head * top_k, padded */
    float scale;
    /* backward: the block */
    int64_t first, n; /* rows */
    int32_t seq;
    int64_t key_row; /* row of its first key */
} chosen_call;

static int64_t most_keys(const ml_op_args *a) {
    return (a->in[2].shape[1] + ML_LANES - 1) / ML_LANES * ML_LANES;
}

/* Forward: scores and weights of a row for each thread.  Backward: weights, their
 * gradients and scores of each row of a block. */
size_t ml_cpu_attn_chosen_scratch(const ml_cpu_stream *s, const ml_op_args *a,
                                  bool backward) {
    int64_t each = a->attr->attn.n_head * most_keys(a);
    int64_t n = backward ? 3 * BLOCK : 2 * (int64_t)ml_pool_size(s->pool);
    return (size_t)(n * each) * sizeof(float);
}

static chosen_call begin_call(const ml_stream *s, const ml_op_args *a) {
    return (chosen_call){ .s = ml_cpu(s),
                          .a = a,
                          .n_head = a->attr->attn.n_head,
                          .d = a->attr->attn.head_dim,
                          .e = a->attr->attn.value_dim,
                          .top_k = most_keys(a),
                          .each = a->attr->attn.n_head * most_keys(a),
                          .scale = a->attr->attn.scale };
}

static const int32_t *chosen_of(const chosen_call *c, int64_t row, int64_t *n) {
    int64_t most = c->a->in[2].shape[1];
    const int32_t *pos = (const int32_t *)c->a->in[2].data + row * most;

    for (*n = 0; *n < most && pos[*n] >= 0;)
        ++*n;
    return pos;
}

static const float *key_at(const chosen_call *c, const int32_t *page, int32_t pos) {
    int64_t slot = (int64_t)page[pos / ML_PAGE] * ML_PAGE + pos % ML_PAGE;
    return (const float *)c->a->out[1].data + slot * c->d;
}

static const int32_t *pages_of(const chosen_call *c, int64_t row) {
    const ml_rows *r = c->a->rows;
    return r->page + r->page_start[ml_cpu_seq_of(r, row)];
}

/* p [n_head][top_k]: softmax weights of a row's keys.  s is scratch of the same size. */
static void weigh(const chosen_call *c, int64_t row, const int32_t *pos, int64_t n,
                  float *s, float *p) {
    const ml_row_kern *k = c->s->kern->row;
    const int32_t *page = pages_of(c, row);
    const float *q = (const float *)c->a->in[0].data + row * c->n_head * c->d;

    for (int64_t i = 0; i < n; i++) {
        const float *key = key_at(c, page, pos[i]);
        for (int64_t h = 0; h < c->n_head; h++)
            s[h * c->top_k + i] = k->dot(q + h * c->d, key, c->d) * c->scale;
    }
    for (int64_t h = 0; h < c->n_head; h++)
        k->softmax(p + h * c->top_k, s + h * c->top_k, n);
}

static void forward_rows(void *ud, int64_t begin, int64_t end, int worker) {
    const chosen_call *c = ud;
    float *s = (float *)c->a->scratch + 2 * worker * c->each, *p = s + c->each;

    for (int64_t row = begin; row < end; row++) {
        int64_t n;
        const int32_t *pos = chosen_of(c, row, &n), *page = pages_of(c, row);
        float *o = (float *)c->a->out[0].data + row * c->n_head * c->e;

        weigh(c, row, pos, n, s, p);
        for (int64_t i = 0; i < n; i++) {
            const float *value = key_at(c, page, pos[i]);
            for (int64_t h = 0; h < c->n_head; h++)
                c->s->kern->row->axpy(o + h * c->e, p[h * c->top_k + i], value, c->e,
                                      i > 0);
        }
    }
}

void ml_cpu_attn_chosen_forward(ml_stream *s, const ml_op_args *a) {
    chosen_call c = begin_call(s, a);

    ml_cpu_write_keys(s, a, &a->in[1], &a->out[1]);
    ml_pool_run(c.s->pool, a->rows->n_token, 1, forward_rows, &c);
}

/* ---- backward ---- */

/* Softmax weights of row i of the block; below, the gradients of its scores. */
static float *weights_of(const chosen_call *c, int64_t i) {
    return (float *)c->a->scratch + 3 * i * c->each;
}

static float *slopes_of(const chosen_call *c, int64_t i) {
    return weights_of(c, i) + c->each;
}

static void block_rows(void *ud, int64_t begin, int64_t end, int worker) {
    const chosen_call *c = ud;
    const ml_row_kern *k = c->s->kern->row;

    (void)worker;
    for (int64_t i = begin; i < end; i++) {
        int64_t row = c->first + i, n;
        const int32_t *pos = chosen_of(c, row, &n), *page = pages_of(c, row);
        const float *dout = (const float *)c->a->dout[0].data + row * c->n_head * c->e;
        float *dq = c->a->din[0].data, *p = weights_of(c, i), *ds = slopes_of(c, i);

        weigh(c, row, pos, n, ds + c->each, p);
        for (int64_t m = 0; m < n; m++)
            for (int64_t h = 0; h < c->n_head; h++)
                ds[h * c->top_k + m] =
                    k->dot(dout + h * c->e, key_at(c, page, pos[m]), c->e);
        for (int64_t h = 0; h < c->n_head; h++) {
            float *dp = ds + h * c->top_k, mean = k->dot(p + h * c->top_k, dp, n);
            for (int64_t m = 0; m < n; m++)
                dp[m] = p[h * c->top_k + m] * (dp[m] - mean) * c->scale;
        }
        for (int64_t m = 0; dq && m < n; m++)
            for (int64_t h = 0; h < c->n_head; h++)
                k->axpy(dq + (row * c->n_head + h) * c->d, ds[h * c->top_k + m],
                        key_at(c, page, pos[m]), c->d, m > 0 || c->a->din_add[0]);
    }
}

/* The first i < n with pos[i] >= least. */
static int64_t find_from(const int32_t *pos, int64_t n, int64_t least) {
    int64_t lo = 0, hi = n;
    while (lo < hi) {
        int64_t mid = lo + (hi - lo) / 2;
        if (pos[mid] < least)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

/* Adds the contribution of row i of the block to the gradient of its m-th selected key. */
static void collect(const chosen_call *c, int64_t i, int64_t m, float *dk) {
    const ml_row_kern *k = c->s->kern->row;
    int64_t row = c->first + i;
    const float *q = (const float *)c->a->in[0].data + row * c->n_head * c->d;
    const float *dout = (const float *)c->a->dout[0].data + row * c->n_head * c->e;

    for (int64_t h = 0; h < c->n_head; h++) {
        k->axpy(dk, slopes_of(c, i)[h * c->top_k + m], q + h * c->d, c->d, true);
        k->axpy(dk, weights_of(c, i)[h * c->top_k + m], dout + h * c->e, c->e, true);
    }
}

/* Task over the KV pages of the block's sequence. */
static void block_keys(void *ud, int64_t begin, int64_t end, int worker) {
    const chosen_call *c = ud;
    (void)worker;
    for (int64_t i = 0; i < c->n; i++) {
        int64_t n;
        const int32_t *pos = chosen_of(c, c->first + i, &n);
        for (int64_t m = find_from(pos, n, begin * ML_PAGE);
             m < n && pos[m] < end * ML_PAGE; m++)
            collect(c, i, m, (float *)c->a->din[1].data + (c->key_row + pos[m]) * c->d);
    }
}

static void sequence_back(chosen_call *c) {
    const ml_rows *r = c->a->rows;
    int64_t end = r->seq_start[c->seq + 1];

    ML_BUG_IF(r->pos[r->seq_start[c->seq]] != 0 && !r->context);
    c->key_row = r->context ? r->context->whole.seq_start[r->context->seq[c->seq]]
                            : r->seq_start[c->seq];
    for (c->first = r->seq_start[c->seq]; c->first < end; c->first += BLOCK) {
        c->n = end - c->first < BLOCK ? end - c->first : BLOCK;
        ml_pool_run(c->s->pool, c->n, 1, block_rows, c);
        if (c->a->din[1].data)
            ml_pool_run(c->s->pool, r->pos[c->first + c->n - 1] / ML_PAGE + 1, 1,
                        block_keys, c);
    }
}

void ml_cpu_attn_chosen_backward(ml_stream *s, const ml_op_args *a) {
    chosen_call c = begin_call(s, a);

    if (a->din[1].data && !a->din_add[1])
        memset(a->din[1].data, 0, ml_tensor_bytes(&a->din[1]));
    for (c.seq = 0; c.seq < a->rows->n_seq; c.seq++)
        if (a->rows->seq_start[c.seq + 1] > a->rows->seq_start[c.seq])
            sequence_back(&c);
}
