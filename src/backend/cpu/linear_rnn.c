/* linear_rnn.c - LINEAR_RNN: the gated delta rule (Gated DeltaNet) and Mamba-2, token by
 * token.
 *
 * The recurrence (linear_rnn_kern.h) is S = keep S + k (take (v - keep S' k))', o = S' q;
 * Mamba-2 has no delta term.  The state after each token is defined to the bit, so that a
 * sequence may be split anywhere: decode, chunked prefill and training compute the same
 * states.  Forward divides (sequence, head, block of columns) among threads.  Backward
 * saves no states in forward: it repeats the recurrence once, saving the state every
 * CHUNK tokens, and then, from the last chunk to the first, recomputes the states of a
 * chunk and differentiates it. */
#include "backend/cpu/cpu_priv.h"

#include <math.h>
#include <string.h>

enum { CHUNK = 64 };

typedef struct linear_rnn {
    const ml_op_args *a;
    const ml_cpu_kern *kern;
    int64_t n_key, n_head, dk, dv, n_block, padded; /* dv rounded up to 16 */
    bool delta;
} linear_rnn;

static linear_rnn linear_rnn_of(const ml_cpu_stream *s, const ml_op_args *a) {
    int64_t dv = a->attr->linear_rnn.value_dim;
    return (linear_rnn){ .a = a,
                         .kern = s->kern,
                         .n_key = a->attr->linear_rnn.n_key,
                         .n_head = a->attr->linear_rnn.n_head,
                         .dk = a->attr->linear_rnn.key_dim,
                         .dv = dv,
                         .n_block = (dv + ML_LINEAR_RNN_COLS - 1) / ML_LINEAR_RNN_COLS,
                         .padded = (dv + 15) / 16 * 16,
                         .delta = a->attr->linear_rnn.delta };
}

/* Number of columns of a block. */
static int64_t cols_of(const linear_rnn *c, int64_t block) {
    int64_t left = c->dv - block * ML_LINEAR_RNN_COLS;
    return left < ML_LINEAR_RNN_COLS ? left : ML_LINEAR_RNN_COLS;
}

/* --- rows ------------------------------------------------------------------- */

/* Column offset of a head's part in an input row. */
static int64_t q_at(const linear_rnn *c, int64_t key) {
    return c->a->attr->linear_rnn.q_at + key * c->dk;
}

static int64_t k_at(const linear_rnn *c, int64_t key) {
    return c->a->attr->linear_rnn.k_at + key * c->dk;
}

static int64_t v_at(const linear_rnn *c, int64_t head, int64_t block) {
    return c->a->attr->linear_rnn.v_at + head * c->dv + block * ML_LINEAR_RNN_COLS;
}

static const float *input_row(const linear_rnn *c, int64_t t) {
    return (const float *)c->a->in[0].data + t * c->a->in[0].shape[1];
}

static float inverse_length(const linear_rnn *c, const float *x) {
    return 1.0f / sqrtf(c->kern->row->dot(x, x, c->dk) + c->a->attr->linear_rnn.norm_eps);
}

static float q_scale(const linear_rnn *c) {
    return 1.0f / sqrtf((float)c->dk);
}

static const float *normed(const linear_rnn *c, float *out, const float *x, float scale) {
    float r = inverse_length(c, x);
    for (int64_t i = 0; i < c->dk; i++)
        out[i] = x[i] * r * scale;
    return out;
}

/* Row t for a block of a head.  For the delta rule q and k are L2-normalized into qk [2,
 * dk]. */
static ml_linear_rnn_row row_at(const linear_rnn *c, int64_t t, int64_t head, int64_t block,
                                float *qk) {
    int64_t key = head / (c->n_head / c->n_key);
    const float *x = input_row(c, t);
    const float *rate = (const float *)c->a->in[1].data + t * 2 * c->n_head + head;
    ml_linear_rnn_row r = { .q = x + q_at(c, key),
                            .k = x + k_at(c, key),
                            .v = x + v_at(c, head, block),
                            .keep = rate[0],
                            .take = rate[c->n_head] };
    if (c->delta) {
        r.q = normed(c, qk, r.q, q_scale(c));
        r.k = normed(c, qk + c->dk, r.k, 1.0f);
    }
    return r;
}

/* A value for each head, of the weights or their gradient; NULL: none. */
static float *skips(const linear_rnn *c, const ml_tensor *t) {
    return t->data ? (float *)t->data + c->a->attr->linear_rnn.first_head : NULL;
}

/* --- forward ---------------------------------------------------------------- */

/* Scratch of a thread: q and k of a row, and a state when the caller keeps none. */
static int64_t forward_floats(const linear_rnn *c) {
    return 2 * c->dk + c->dk * ML_LINEAR_RNN_COLS;
}

static void forward_block(const linear_rnn *c, int32_t seq, int64_t head, int64_t block,
                          float *scratch) {
    const ml_op_args *a = c->a;
    const ml_rows *r = a->rows;
    int64_t n = cols_of(c, block), first = r->seq_start[seq];
    float *state = scratch + 2 * c->dk;
    const float *skip = skips(c, &a->w[0]);

    if (a->out[1].data)
        state = (float *)a->out[1].data +
                (r->slot[seq] * c->n_head + head) * c->dk * c->padded +
                block * c->dk * ML_LINEAR_RNN_COLS;
    if (r->pos[first] == 0)
        memset(state, 0, (size_t)(c->dk * ((n + 15) / 16 * 16)) * sizeof *state);
    for (int64_t t = first; t < r->seq_start[seq + 1]; t++) {
        float *o = (float *)a->out[0].data + (t * c->n_head + head) * c->dv +
                   block * ML_LINEAR_RNN_COLS;
        ml_linear_rnn_row x = row_at(c, t, head, block, scratch);
        c->kern->linear_rnn->step(o, NULL, state, &x, c->dk, n, c->delta);
        if (skip)
            c->kern->row->axpy(o, skip[head], x.v, n, true);
    }
}

static void forward_units(void *ud, int64_t begin, int64_t end, int worker) {
    const linear_rnn *c = ud;
    float *scratch = (float *)c->a->scratch + worker * forward_floats(c);

    for (int64_t i = begin; i < end; i++)
        forward_block(c, (int32_t)(i / c->n_block / c->n_head), i / c->n_block % c->n_head,
                      i % c->n_block, scratch);
}

void ml_cpu_linear_rnn_forward(ml_stream *s, const ml_op_args *a) {
    linear_rnn c = linear_rnn_of(ml_cpu(s), a);
    int64_t n_seq = a->rows->n_seq;
    int64_t rows = n_seq ? a->rows->n_token / n_seq : 0;
    ml_pool_run(ml_cpu(s)->pool, n_seq * c.n_head * c.n_block,
                ml_cpu_grain(rows * c.dk * ML_LINEAR_RNN_COLS), forward_units, &c);
}

/* --- backward --------------------------------------------------------------- */

/* Scratch of a thread, for a sequence of up to n_token rows. */
typedef struct work {
    float *mark;   /* [chunks][dk][COLS] state at the start of each chunk */
    float *state;  /* [CHUNK][dk][COLS] before each token of a chunk */
    float *seen;   /* [CHUNK][COLS] */
    float *run;    /* [dk][COLS] the running state */
    float *dstate; /* [dk][COLS] */
    float *qk;     /* [CHUNK][2][dk] */
    float *dv;     /* [COLS] */
    float *dqk;    /* [n_token][2][dk] summed over the heads of a key */
    float *drate;  /* [n_token][2] of a head */
} work;

static float *take(float *base, int64_t *at, int64_t n) {
    float *p = base ? base + *at : NULL;
    *at += (n + 15) / 16 * 16;
    return p;
}

/* Assigns memory starting at `base`, unless it is NULL; returns the size in floats. */
static int64_t lay_out(work *w, float *base, const linear_rnn *c, int64_t n_token) {
    int64_t block = c->dk * ML_LINEAR_RNN_COLS, n = 0;
    w->mark = take(base, &n, (n_token + CHUNK - 1) / CHUNK * block);
    w->state = take(base, &n, CHUNK * block);
    w->seen = take(base, &n, CHUNK * ML_LINEAR_RNN_COLS);
    w->run = take(base, &n, block);
    w->dstate = take(base, &n, block);
    w->qk = take(base, &n, CHUNK * 2 * c->dk);
    w->dv = take(base, &n, ML_LINEAR_RNN_COLS);
    w->dqk = take(base, &n, n_token * 2 * c->dk);
    w->drate = take(base, &n, n_token * 2);
    return n;
}

size_t ml_cpu_linear_rnn_scratch(const ml_cpu_stream *s, const ml_op_args *a,
                                 bool backward) {
    linear_rnn c = linear_rnn_of(s, a);
    work w;
    int64_t each = backward ? lay_out(&w, NULL, &c, a->rows->n_token) : forward_floats(&c);
    return (size_t)(each * ml_pool_size(s->pool)) * sizeof(float);
}

/* A block of columns of a head in a sequence that starts at row `first`. */
typedef struct piece {
    int64_t head, block, first, n_row;
} piece;

static size_t state_bytes(const linear_rnn *c, const piece *p) {
    return (size_t)(c->dk * ((cols_of(c, p->block) + 15) / 16 * 16)) * sizeof(float);
}

/* Computes the state at the start of every chunk. */
static void walk(const linear_rnn *c, const work *w, const piece *p) {
    size_t bytes = state_bytes(c, p);

    memset(w->run, 0, bytes);
    for (int64_t t = 0; t < p->n_row; t++) {
        ml_linear_rnn_row x;
        if (t % CHUNK == 0)
            memcpy(w->mark + t / CHUNK * c->dk * ML_LINEAR_RNN_COLS, w->run, bytes);
        x = row_at(c, p->first + t, p->head, p->block, w->qk);
        c->kern->linear_rnn->step(NULL, NULL, w->run, &x, c->dk, cols_of(c, p->block),
                                  c->delta);
    }
}

/* Writes dv of a token to its tensor, with the gradient of the skip connection. */
static void put_dv(const linear_rnn *c, const work *w, const piece *p, int64_t t,
                   const float *dout) {
    const ml_op_args *a = c->a;
    int64_t n = cols_of(c, p->block);
    float *to =
        (float *)a->din[0].data + t * a->in[0].shape[1] + v_at(c, p->head, p->block);

    if (a->w[0].data)
        c->kern->row->axpy(w->dv, skips(c, &a->w[0])[p->head], dout, n, true);
    if (a->din_add[0])
        c->kern->row->add(to, to, w->dv, n);
    else
        memcpy(to, w->dv, (size_t)n * sizeof *to);
}

static void undo_chunk(const linear_rnn *c, const work *w, const piece *p, int64_t chunk) {
    const ml_op_args *a = c->a;
    int64_t from = chunk * CHUNK, left = p->n_row - from, n = cols_of(c, p->block);
    int64_t n_row = left < CHUNK ? left : CHUNK, block = c->dk * ML_LINEAR_RNN_COLS;
    ml_linear_rnn_row x[CHUNK];

    memcpy(w->run, w->mark + chunk * block, state_bytes(c, p));
    for (int64_t i = 0; i < n_row; i++) {
        x[i] = row_at(c, p->first + from + i, p->head, p->block, w->qk + i * 2 * c->dk);
        memcpy(w->state + i * block, w->run, state_bytes(c, p));
        c->kern->linear_rnn->step(NULL, w->seen + i * ML_LINEAR_RNN_COLS, w->run, &x[i],
                                  c->dk, n, c->delta);
    }
    for (int64_t i = n_row - 1; i >= 0; i--) {
        int64_t t = p->first + from + i;
        float *dqk = w->dqk + (from + i) * 2 * c->dk, *drate = w->drate + (from + i) * 2;
        const float *dout = (const float *)a->dout[0].data +
                            (t * c->n_head + p->head) * c->dv +
                            p->block * ML_LINEAR_RNN_COLS;
        ml_linear_rnn_grad g = { dqk, dqk + c->dk, w->dv, &drate[0], &drate[1] };
        c->kern->linear_rnn->back(&g, w->dstate, w->state + i * block,
                                  w->seen + i * ML_LINEAR_RNN_COLS, dout, &x[i], c->dk, n,
                                  c->delta);
        if (a->din[0].data)
            put_dv(c, w, p, t, dout);
    }
}

static void put_decay(const linear_rnn *c, const work *w, const piece *p) {
    const ml_op_args *a = c->a;
    for (int64_t t = 0; a->din[1].data && t < p->n_row; t++)
        for (int i = 0; i < 2; i++) {
            float *d = (float *)a->din[1].data + (p->first + t) * 2 * c->n_head +
                       i * c->n_head + p->head;
            float v = w->drate[t * 2 + i];
            *d = a->din_add[1] ? *d + v : v;
        }
}

/* Turns the gradient g of a normalized q or k into that of x: with h = x r and gs = g
 * scale, dx = r (gs - h (gs . h)). */
static void norm_back(const linear_rnn *c, float *g, const float *x, float scale) {
    float r = inverse_length(c, x), dot;
    for (int64_t i = 0; i < c->dk; i++)
        g[i] = g[i] * scale;
    dot = c->kern->row->dot(g, x, c->dk) * r;
    for (int64_t i = 0; i < c->dk; i++)
        g[i] = r * (g[i] - x[i] * r * dot);
}

static void put_qk(const linear_rnn *c, const work *w, int64_t key, int64_t first,
                   int64_t n_row) {
    const ml_op_args *a = c->a;
    int64_t at[] = { q_at(c, key), k_at(c, key) };
    float scale[] = { q_scale(c), 1.0f };

    for (int64_t t = 0; a->din[0].data && t < n_row; t++)
        for (int i = 0; i < 2; i++) {
            float *g = w->dqk + (t * 2 + i) * c->dk;
            float *to = (float *)a->din[0].data + (first + t) * a->in[0].shape[1] + at[i];
            if (c->delta)
                norm_back(c, g, input_row(c, first + t) + at[i], scale[i]);
            if (a->din_add[0])
                c->kern->row->add(to, to, g, c->dk);
            else
                memcpy(to, g, (size_t)c->dk * sizeof *g);
        }
}

/* The heads of one key of one sequence: they share dq and dk, so one thread takes all of
 * them. */
static void backward_key(const linear_rnn *c, const work *w, int32_t seq, int64_t key) {
    const int32_t *start = c->a->rows->seq_start;
    int64_t each = c->n_head / c->n_key;
    piece p = { .first = start[seq], .n_row = start[seq + 1] - start[seq] };

    memset(w->dqk, 0, (size_t)(p.n_row * 2 * c->dk) * sizeof *w->dqk);
    for (p.head = key * each; p.head < (key + 1) * each; p.head++) {
        memset(w->drate, 0, (size_t)(p.n_row * 2) * sizeof *w->drate);
        for (p.block = 0; p.block < c->n_block; p.block++) {
            walk(c, w, &p);
            memset(w->dstate, 0, state_bytes(c, &p));
            for (int64_t i = (p.n_row - 1) / CHUNK; i >= 0; i--)
                undo_chunk(c, w, &p, i);
        }
        put_decay(c, w, &p);
    }
    put_qk(c, w, key, p.first, p.n_row);
}

static void backward_units(void *ud, int64_t begin, int64_t end, int worker) {
    const linear_rnn *c = ud;
    int64_t n_token = c->a->rows->n_token;
    work w;

    lay_out(&w, (float *)c->a->scratch + worker * lay_out(&w, NULL, c, n_token), c,
            n_token);
    for (int64_t i = begin; i < end; i++)
        backward_key(c, &w, (int32_t)(i / c->n_key), i % c->n_key);
}

/* The gradient of the skip weight of a head, in the rows of a sequence. */
static float skip_sum(const linear_rnn *c, int64_t h, int32_t seq) {
    const int32_t *start = c->a->rows->seq_start;
    double sum = 0;

    for (int64_t t = start[seq]; t < start[seq + 1]; t++)
        sum += (double)c->kern->row->dot((const float *)c->a->dout[0].data +
                                             (t * c->n_head + h) * c->dv,
                                         input_row(c, t) + v_at(c, h, 0), c->dv);
    return (float)sum;
}

static void skip_heads(void *ud, int64_t begin, int64_t end, int worker) {
    const linear_rnn *c = ud;
    (void)worker;
    for (int64_t h = begin; h < end; h++)
        for (int32_t i = 0; i < c->a->rows->n_seq; i++)
            skips(c, &c->a->dw[0])[h] += skip_sum(c, h, i);
}

void ml_cpu_linear_rnn_backward(ml_stream *s, const ml_op_args *a) {
    linear_rnn c = linear_rnn_of(ml_cpu(s), a);

    if (a->din[0].data || a->din[1].data)
        ml_pool_run(ml_cpu(s)->pool, a->rows->n_seq * c.n_key, 1, backward_units, &c);
    if (a->dw[0].data)
        ml_pool_run(ml_cpu(s)->pool, c.n_head, ml_cpu_grain(a->rows->n_token * c.dv),
                    skip_heads, &c);
}
