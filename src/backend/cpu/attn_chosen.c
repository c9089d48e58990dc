/* attn_chosen.c - ATTN_CHOSEN: sparse attention of each row to the keys selected for it.
 *
 * All query heads share one key, whose prefix is the value.  The work grows with the
 * number of selected keys, not with the length of the sequence.  With compressed keys, a
 * row attends to its window first, then to the selected compressed keys.  A sink is one
 * more score of a head, without a key.  Backward processes the rows of a sequence in
 * blocks: it computes the weights and their gradients row by row; then every key
 * accumulates the contributions of the rows that selected it, in row order. */
#include "backend/cpu/cpu_priv.h"
#include "base/bug.h"

#include <string.h>

enum { BLOCK = 16 }; /* rows whose weights backward holds at once */

typedef struct chosen_call {
    const ml_cpu_stream *s;
    const ml_op_args *a;
    int64_t n_head, d, e, most; /* sizes of keys and values; most scores of a head */
    int64_t each;               /* floats of a row's weights: n_head * most */
    float scale;
    const float *sink; /* [n_head] or NULL */
    /* backward: the block */
    int64_t first, n; /* rows */
    int32_t seq;
    int64_t key_row; /* row of its first key */
} chosen_call;

/* Compressed keys that are selected for a row at most. */
static int64_t most_chosen(const ml_op_args *a) {
    int64_t n_row = a->out[2].shape[0] * ML_PAGE;
    return a->in[2].n_dim ? a->in[2].shape[1] : n_row / a->attr->attn.ratio;
}

/* The most scores of a head, with the sink. */
static int64_t most_scores(const ml_op_args *a) {
    int64_t n = most_chosen(a) + (a->w[0].n_dim ? 1 : 0);

    n += a->attr->attn.ratio ? a->attr->attn.window : 0;
    return (n + ML_LANES - 1) / ML_LANES * ML_LANES;
}

/* Forward: scores and weights of a row for each thread.  Backward: weights, their
 * gradients and scores of each row of a block. */
size_t ml_cpu_attn_chosen_scratch(const ml_cpu_stream *s, const ml_op_args *a,
                                  bool backward) {
    int64_t each = a->attr->attn.n_head * most_scores(a);
    int64_t n = backward ? 3 * BLOCK : 2 * (int64_t)ml_pool_size(s->pool);
    return (size_t)(n * each) * sizeof(float);
}

static chosen_call begin_call(const ml_stream *s, const ml_op_args *a) {
    int64_t most = most_scores(a);

    return (chosen_call){ .s = ml_cpu(s),
                          .a = a,
                          .n_head = a->attr->attn.n_head,
                          .d = a->attr->attn.head_dim,
                          .e = a->attr->attn.value_dim,
                          .most = most,
                          .each = a->attr->attn.n_head * most,
                          .scale = a->attr->attn.scale,
                          .sink = a->w[0].data };
}

/* The keys of a row: n_window keys of rows from `first` on, then selected ones. */
typedef struct row_keys {
    const int32_t *page;
    const int32_t *chosen; /* NULL: 0, 1, .. */
    int32_t first, n_window;
    int64_t n; /* all */
} row_keys;

static row_keys keys_of(const chosen_call *c, int64_t row) {
    const ml_rows *r = c->a->rows;
    int32_t pos = r->pos[row], window = c->a->attr->attn.window;
    row_keys k = { .page = r->page + r->page_start[ml_cpu_seq_of(r, row)] };
    int64_t most = c->a->in[2].n_dim ? c->a->in[2].shape[1] : 0, n = 0;

    if (c->a->attr->attn.ratio) {
        k.first = pos >= window ? pos - window + 1 : 0;
        k.n_window = pos - k.first + 1;
    }
    if (most) {
        k.chosen = (const int32_t *)c->a->in[2].data + row * most;
        while (n < most && k.chosen[n] >= 0)
            n++;
    } else {
        n = (pos + 1) / c->a->attr->attn.ratio;
    }
    k.n = k.n_window + n;
    return k;
}

/* The number of selected key m >= n_window. */
static int32_t chosen_at(const row_keys *k, int64_t m) {
    int64_t i = m - k->n_window;
    return k->chosen ? k->chosen[i] : (int32_t)i;
}

static const float *key_at(const chosen_call *c, const row_keys *k, int64_t m) {
    int32_t ratio = c->a->attr->attn.ratio;
    bool compressed = ratio && m >= k->n_window;
    int32_t key = m < k->n_window ? k->first + (int32_t)m : chosen_at(k, m);

    return (const float *)c->a->out[compressed ? 2 : 1].data +
           ml_page_slot(k->page, key, compressed ? ratio : 1) * c->d;
}

/* p [n_head][most]: softmax weights of a row's keys.  s is scratch of the same size. */
static void weigh(const chosen_call *c, int64_t row, const row_keys *keys, float *s,
                  float *p) {
    const ml_row_kern *k = c->s->kern->row;
    const float *q = (const float *)c->a->in[0].data + row * c->n_head * c->d;

    for (int64_t i = 0; i < keys->n; i++) {
        const float *key = key_at(c, keys, i);
        for (int64_t h = 0; h < c->n_head; h++)
            s[h * c->most + i] = k->dot(q + h * c->d, key, c->d) * c->scale;
    }
    for (int64_t h = 0; h < c->n_head; h++) {
        if (c->sink)
            s[h * c->most + keys->n] = c->sink[h];
        k->softmax(p + h * c->most, s + h * c->most, keys->n + (c->sink ? 1 : 0));
    }
}

static void forward_rows(void *ud, int64_t begin, int64_t end, int worker) {
    const chosen_call *c = ud;
    float *s = (float *)c->a->scratch + 2 * worker * c->each, *p = s + c->each;

    for (int64_t row = begin; row < end; row++) {
        row_keys keys = keys_of(c, row);
        float *o = (float *)c->a->out[0].data + row * c->n_head * c->e;

        weigh(c, row, &keys, s, p);
        for (int64_t i = 0; i < keys.n; i++) {
            const float *value = key_at(c, &keys, i);
            for (int64_t h = 0; h < c->n_head; h++)
                c->s->kern->row->axpy(o + h * c->e, p[h * c->most + i], value, c->e, i > 0);
        }
    }
}

void ml_cpu_attn_chosen_forward(ml_stream *s, const ml_op_args *a) {
    chosen_call c = begin_call(s, a);

    ml_cpu_write_keys(s, a, (ml_cpu_keys){ &a->out[1], 0, c.d, 1 });
    if (a->attr->attn.ratio)
        ml_cpu_write_keys(s, a, (ml_cpu_keys){ &a->out[2], c.d, c.d, a->attr->attn.ratio });
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

/* Turns the gradients of a head's weights p into those of its scores. */
static void score_slopes(const chosen_call *c, const float *p, float *dp, int64_t n) {
    float mean = c->s->kern->row->dot(p, dp, n);

    for (int64_t m = 0; m < n; m++)
        dp[m] = p[m] * (dp[m] - mean) * c->scale;
    if (c->sink)
        dp[n] = -(p[n] * mean);
}

static void block_rows(void *ud, int64_t begin, int64_t end, int worker) {
    const chosen_call *c = ud;
    const ml_row_kern *k = c->s->kern->row;

    (void)worker;
    for (int64_t i = begin; i < end; i++) {
        int64_t row = c->first + i;
        row_keys keys = keys_of(c, row);
        const float *dout = (const float *)c->a->dout[0].data + row * c->n_head * c->e;
        float *dq = c->a->din[0].data, *p = weights_of(c, i), *ds = slopes_of(c, i);

        weigh(c, row, &keys, ds + c->each, p);
        for (int64_t m = 0; m < keys.n; m++)
            for (int64_t h = 0; h < c->n_head; h++)
                ds[h * c->most + m] = k->dot(dout + h * c->e, key_at(c, &keys, m), c->e);
        for (int64_t h = 0; h < c->n_head; h++)
            score_slopes(c, p + h * c->most, ds + h * c->most, keys.n);
        for (int64_t m = 0; dq && m < keys.n; m++)
            for (int64_t h = 0; h < c->n_head; h++)
                k->axpy(dq + (row * c->n_head + h) * c->d, ds[h * c->most + m],
                        key_at(c, &keys, m), c->d, m > 0 || c->a->din_add[0]);
    }
}

/* The row of a sequence that key m belongs to. */
static int64_t row_of_key(const chosen_call *c, const row_keys *k, int64_t m) {
    int64_t ratio = c->a->attr->attn.ratio ? c->a->attr->attn.ratio : 1;
    return m < k->n_window ? k->first + m : (chosen_at(k, m) + 1) * ratio - 1;
}

/* The first m of [lo, hi) whose key belongs to row `least` or a later one. */
static int64_t find_from(const chosen_call *c, const row_keys *k, int64_t lo, int64_t hi,
                         int64_t least) {
    while (lo < hi) {
        int64_t mid = lo + (hi - lo) / 2;
        if (row_of_key(c, k, mid) < least)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

/* Adds the contribution of row i of the block to the gradient of its m-th key. */
static void collect(const chosen_call *c, int64_t i, int64_t m, float *dk) {
    const ml_row_kern *k = c->s->kern->row;
    int64_t row = c->first + i;
    const float *q = (const float *)c->a->in[0].data + row * c->n_head * c->d;
    const float *dout = (const float *)c->a->dout[0].data + row * c->n_head * c->e;

    for (int64_t h = 0; h < c->n_head; h++) {
        k->axpy(dk, slopes_of(c, i)[h * c->most + m], q + h * c->d, c->d, true);
        k->axpy(dk, weights_of(c, i)[h * c->most + m], dout + h * c->e, c->e, true);
    }
}

/* Task over the KV pages of the block's sequence. */
static void block_keys(void *ud, int64_t begin, int64_t end, int worker) {
    const chosen_call *c = ud;
    int64_t step = c->a->in[1].shape[1], at = c->a->attr->attn.ratio ? c->d : 0;

    (void)worker;
    for (int64_t i = 0; i < c->n; i++) {
        row_keys keys = keys_of(c, c->first + i);
        for (int part = 0; part < 2; part++) { /* the window, the selected keys */
            int64_t to = part ? keys.n : keys.n_window, row;
            int64_t m = find_from(c, &keys, part ? keys.n_window : 0, to, begin * ML_PAGE);
            for (; m < to && (row = row_of_key(c, &keys, m)) < end * ML_PAGE; m++)
                collect(c, i, m,
                        (float *)c->a->din[1].data + (c->key_row + row) * step +
                            (part ? at : 0));
        }
    }
}

/* Sums over ascending rows. */
static void add_sinks(const chosen_call *c) {
    float *dsink = c->a->dw[0].data;

    for (int64_t i = 0; i < c->n; i++) {
        int64_t n = keys_of(c, c->first + i).n;
        for (int64_t h = 0; h < c->n_head; h++)
            dsink[h] += slopes_of(c, i)[h * c->most + n];
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
        if (c->a->dw[0].data)
            add_sinks(c);
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
