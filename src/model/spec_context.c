#include "model/spec_context.h"

#include "base/bug.h"
#include "model/build.h"

typedef struct context {
    ml_builder b;
    const ml_spec *from;
    int32_t n_rank, rank;
    int32_t *gathered; /* [values of `from`] the rows of whole sequences, or ML_NONE */
    int32_t *heads;    /* [values of `from`] whole sequences of some heads, or ML_NONE */
} context;

/* Columns of a value, as blocks for the ranks. */
typedef struct columns {
    ml_col_run *run;
    int64_t *width;
    int32_t n_run, n_block;
} columns;

/* --- exchanges -------------------------------------------------------------------- */

static int32_t new_value(context *x, int32_t like, ml_axis axis, int64_t width) {
    ml_value v = x->b.spec->value[like];

    ML_BUG_IF(v.mul != 1 || v.dtype != ML_F32);
    v.axis = axis;
    v.width = width;
    return ml_build_value(&x->b, v);
}

static ml_node *between(context *x, ml_op_id op, int32_t in, int32_t out, const columns *c,
                        bool back) {
    ml_node *n = ml_build_node(&x->b, op);

    n->in[0] = in;
    n->out[0] = out;
    n->attr.split.back = back;
    if (c) {
        n->attr.split.run = c->run;
        n->attr.split.width = c->width;
        n->attr.split.n_run = c->n_run;
        n->attr.split.n_block = c->n_block;
    }
    return n;
}

/* Rows of whole sequences, in order, from the ranks' rows. */
static int32_t ordered(context *x, int32_t rows) {
    int32_t out = new_value(x, rows, ML_PER_CONTEXT, x->b.spec->value[rows].width);

    between(x, ML_OP_ORDER_ROWS, rows, out, NULL, false);
    return out;
}

/* All columns of all rows. */
static int32_t gather(context *x, int32_t v) {
    int64_t width = x->from->value[v].width;
    columns all = { ML_NEW(&x->b.spec->arena, ml_col_run, 1),
                    ML_NEW(&x->b.spec->arena, int64_t, 1), 1, 1 };
    int32_t share, rows;

    if (x->gathered[v] != ML_NONE)
        return x->gathered[v];
    all.run[0] = (ml_col_run){ .n = width };
    all.width[0] = width;
    share = new_value(x, v, ML_PER_SHARE, width);
    between(x, ML_OP_SPLIT_COLS, v, share, &all, false);
    rows = new_value(x, v, ML_PER_CONTEXT, width);
    between(x, ML_OP_GATHER_ROWS, share, rows, NULL, false);
    x->gathered[v] = ordered(x, rows);
    x->b.spec->value[share].exact_grad = true;
    x->b.spec->value[rows].exact_grad = true;
    x->b.spec->value[x->gathered[v]].exact_grad = true;
    return x->gathered[v];
}

/* This rank's columns of all rows. */
static int32_t swap_in(context *x, int32_t v, const columns *c) {
    int32_t blocks = new_value(x, v, ML_PER_SHARE, x->from->value[v].width);
    int32_t rows = new_value(x, v, ML_PER_CONTEXT, c->width[x->rank]);

    between(x, ML_OP_SPLIT_COLS, v, blocks, c, false);
    between(x, ML_OP_SWAP_ROWS, blocks, rows, c, false);
    return ordered(x, rows);
}

/* The inverse: all columns of this rank's rows, which become the value `to`. */
static void swap_out(context *x, int32_t rows, int32_t to, const columns *c) {
    int32_t shares = new_value(x, rows, ML_PER_CONTEXT, x->b.spec->value[rows].width);
    int32_t blocks = new_value(x, rows, ML_PER_SHARE, x->from->value[to].width);

    between(x, ML_OP_ORDER_ROWS, rows, shares, NULL, true);
    between(x, ML_OP_SWAP_ROWS, shares, blocks, c, true);
    between(x, ML_OP_SPLIT_COLS, blocks, to, c, true);
}

/* --- recurrent layers --------------------------------------------------------------- */

/* The key heads of a rank. */
static int32_t first_key(const context *x, const ml_node *rnn, int32_t rank) {
    return (int32_t)((int64_t)rnn->attr.linear_rnn.n_key * rank / x->n_rank);
}

static int32_t heads_per_key(const ml_node *rnn) {
    return rnn->attr.linear_rnn.n_head / rnn->attr.linear_rnn.n_key;
}

/* A value that consists of parts, each `width` columns for every head (or key head). */
typedef struct part {
    int64_t at, width;
    bool by_key;
} part;

static columns columns_of(const context *x, const ml_node *rnn, const part *p, int32_t n) {
    ml_arena *a = &x->b.spec->arena;
    columns c = { ML_NEW(a, ml_col_run, n * x->n_rank), ML_NEW(a, int64_t, x->n_rank), 0,
                  x->n_rank };

    for (int32_t r = 0; r < x->n_rank; r++)
        for (int32_t i = 0; i < n; i++) {
            int64_t first = first_key(x, rnn, r), end = first_key(x, rnn, r + 1);
            int64_t unit = p[i].width * (p[i].by_key ? 1 : heads_per_key(rnn));
            c.run[c.n_run++] = (ml_col_run){ .rank = r,
                                             .from = p[i].at + first * unit,
                                             .to = c.width[r],
                                             .n = (end - first) * unit };
            c.width[r] += (end - first) * unit;
        }
    return c;
}

/* q, k and v, in the order of their columns. */
static columns columns_of_qkv(const context *x, const ml_node *rnn) {
    const ml_op_attr *a = &rnn->attr;
    const part q = { a->linear_rnn.q_at, a->linear_rnn.key_dim, true },
               k = { a->linear_rnn.k_at, a->linear_rnn.key_dim, true },
               v = { a->linear_rnn.v_at, a->linear_rnn.value_dim, false };
    const part qkv[] = { q, k, v }, vkq[] = { v, k, q };

    return columns_of(x, rnn, v.at > q.at ? qkv : vkq, 3);
}

/* The node that reads a value; NULL: there are none or several. */
static const ml_node *reader_of(const ml_spec *s, int32_t value) {
    const ml_node *found = NULL;

    for (int32_t i = 0; i < s->n_node; i++)
        for (int k = 0; k < ML_OP_IN; k++)
            if (s->node[i].in[k] == value) {
                if (found)
                    return NULL;
                found = &s->node[i];
            }
    return found;
}

static ml_status add_conv(context *x, const ml_node *old, ml_err *err) {
    const ml_node *rnn = reader_of(x->from, old->out[0]);
    int32_t in, out;
    columns c;
    ml_node *n;

    if (!rnn || rnn->op != ML_OP_LINEAR_RNN || rnn->in[0] != old->out[0])
        return ml_fail(err, ML_EUNSUP,
                       "--context-parallel-size: the convolution of layer %d of %s is not "
                       "that of a recurrent layer; use 1",
                       (int)old->layer, x->from->family);
    c = columns_of_qkv(x, rnn);
    in = swap_in(x, old->in[0], &c);
    out = new_value(x, old->out[0], ML_PER_CONTEXT, c.width[x->rank]);
    n = ml_build_node(&x->b, ML_OP_CONV);
    *n = *old;
    n->in[0] = in;
    n->out[0] = x->heads[old->out[0]] = out;
    n->out[1] = ML_NONE;
    for (int32_t i = 0; i < ML_CONV_RUNS; i++) {
        const ml_col_run *r = &c.run[x->rank * ML_CONV_RUNS + i];
        n->attr.conv.run[n->attr.conv.n_run].at = r->from;
        n->attr.conv.run[n->attr.conv.n_run++].n = r->n;
    }
    return ML_OK;
}

static void add_linear_rnn(context *x, const ml_node *old) {
    int32_t n_head = old->attr.linear_rnn.n_head, n_key;
    int64_t value_dim = old->attr.linear_rnn.value_dim;
    const part rates[] = { { 0, 1, false }, { n_head, 1, false } };
    const part values[] = { { 0, value_dim, false } };
    columns qkv = columns_of_qkv(x, old), decay = columns_of(x, old, rates, 2);
    columns o = columns_of(x, old, values, 1);
    const ml_col_run *mine = &qkv.run[x->rank * 3];
    bool v_last = old->attr.linear_rnn.v_at > old->attr.linear_rnn.q_at;
    int32_t in = x->heads[old->in[0]], rate, out;
    ml_node *n;

    if (in == ML_NONE)
        in = swap_in(x, old->in[0], &qkv);
    rate = swap_in(x, old->in[1], &decay);
    out = new_value(x, old->out[0], ML_PER_CONTEXT, o.width[x->rank]);
    n_key = first_key(x, old, x->rank + 1) - first_key(x, old, x->rank);
    n = ml_build_node(&x->b, ML_OP_LINEAR_RNN);
    *n = *old;
    n->in[0] = in;
    n->in[1] = rate;
    n->out[0] = out;
    n->out[1] = ML_NONE;
    n->attr.linear_rnn.first_head = first_key(x, old, x->rank) * heads_per_key(old);
    n->attr.linear_rnn.n_key = n_key;
    n->attr.linear_rnn.n_head = n_key * heads_per_key(old);
    n->attr.linear_rnn.q_at = mine[v_last ? 0 : 2].to;
    n->attr.linear_rnn.k_at = mine[1].to;
    n->attr.linear_rnn.v_at = mine[v_last ? 2 : 0].to;
    swap_out(x, out, old->out[0], &o);
}

/* --- nodes ---------------------------------------------------------------------------- */

static void add_attention(context *x, const ml_node *old) {
    int32_t k = gather(x, old->in[1]), v = old->in[2];
    ml_node *n;

    if (old->op == ML_OP_ATTN && v != ML_NONE)
        v = gather(x, v);
    n = ml_build_node(&x->b, old->op);
    *n = *old;
    n->in[1] = k;
    n->in[2] = v;
}

static ml_status add_node(context *x, const ml_node *old, ml_err *err) {
    x->b.layer = old->layer;
    switch (old->op) {
    case ML_OP_ATTN:
    case ML_OP_INDEX:
    case ML_OP_ATTN_CHOSEN: add_attention(x, old); return ML_OK;
    case ML_OP_CONV: return add_conv(x, old, err);
    case ML_OP_LINEAR_RNN: add_linear_rnn(x, old); return ML_OK;
    case ML_OP_COMPRESS:
        return ml_fail(err, ML_EUNSUP,
                       "--context-parallel-size: layer %d of %s compresses windows of "
                       "keys, which pieces of a sequence do not have whole; use 1",
                       (int)old->layer, x->from->family);
    default: *ml_build_node(&x->b, old->op) = *old; return ML_OK;
    }
}

/* The node of s from which each node was made. */
static int32_t *origins(context *x, const int32_t *end) {
    int32_t *origin = ML_NEW(&x->b.spec->arena, int32_t, x->b.spec->n_node);

    for (int32_t i = 0, k = 0; i < x->b.spec->n_node; i++) {
        while (i >= end[k])
            k++;
        origin[i] = k;
    }
    return origin;
}

static int32_t *no_values(context *x) {
    int32_t *v = ML_NEW(&x->b.spec->arena, int32_t, x->from->n_value);

    for (int32_t i = 0; i < x->from->n_value; i++)
        v[i] = ML_NONE;
    return v;
}

ml_status ml_spec_context(ml_spec *out, const ml_spec *s, int32_t n_rank, int32_t rank,
                          int32_t **origin, ml_err *err) {
    context x = { .b = { .spec = out }, .from = s, .n_rank = n_rank, .rank = rank };
    ml_status st = ML_OK;
    int32_t *end;

    ML_BUG_IF(s->n_rank || s->n_context);
    *out = *s;
    out->n_context = n_rank;
    out->node = NULL;
    out->value = NULL;
    out->n_node = out->n_value = 0;
    ml_arena_init(&out->arena, "spec of a context-parallel rank");
    x.gathered = no_values(&x);
    x.heads = no_values(&x);
    for (int32_t i = 0; i < s->n_value; i++)
        ml_build_value(&x.b, s->value[i]);
    end = ML_NEW(&out->arena, int32_t, s->n_node);
    for (int32_t i = 0; i < s->n_node && st == ML_OK; i++) {
        st = add_node(&x, &s->node[i], err);
        end[i] = out->n_node;
    }
    if (st == ML_OK && origin)
        *origin = origins(&x, end);
    if (st != ML_OK)
        ml_spec_close(out);
    return st;
}
