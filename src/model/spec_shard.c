#include "model/spec_shard.h"

#include <string.h>

#include "base/bug.h"
#include "model/build.h"
#include "model/spec_cut.h"
#include "model/spec_dp.h"

/* Where a value of the old spec is in the new one; ML_NONE: not there (yet). */
typedef struct held {
    int32_t whole, local;
    const ml_cut *cut; /* of local */
    bool dp;           /* both have the rows of a DP group */
    int32_t all;       /* dp: whole, and the rows of all groups */
} held;

typedef struct shard {
    ml_builder b;
    ml_arena *a;
    int32_t n_all, all_rank, n_dp;
    /* Of the node at hand: whether it has the rows of a DP group; the ranks that it is cut
     * over, all or those of the group. */
    bool dp;
    int32_t n_rank, rank;
    const ml_value *value; /* of the old spec */
    const bool
        *divided; /* [old values] it is computed by a node with the rows of a group */
    const ml_cut **want; /* [old values] the cut that its reader would like, or NULL */
    const ml_cut **made; /* [old values] the cut in which heads come out, or NULL */
    held *of;            /* [old values] */
} shard;

static int64_t width_of(const shard *x, int32_t v) {
    return x->value[v].width;
}

/* A product's columns that no reader wants in groups: whole panels of 16. */
static const ml_cut *columns(const shard *x, int64_t width) {
    return ml_cut_row(x->a, width, ml_deal_even(x->a, x->n_rank, width, ML_LANES));
}

/* --- what readers want ------------------------------------------------------------- */

static void want(shard *x, int32_t v, const ml_cut *c) {
    if (v != ML_NONE && c && !x->want[v] && x->divided[v] == x->dp)
        x->want[v] = c;
}

/* Whether each rank's columns are whole groups of `width` columns. */
static bool in_groups(const ml_cut *c, int64_t width) {
    for (int i = 0; c && i < c->n; i++)
        if (ml_cut_unit(c, i) % width != 0)
            return false;
    return c != NULL;
}

/* The deal of a cut of one part whose groups are made of some of n equal groups. */
static const ml_deal *deal_of(const ml_cut *c, int64_t width, int32_t n) {
    if (!c || c->n != 1 || c->part[0].width != width || n % c->part[0].deal->n_group != 0)
        return NULL;
    return c->part[0].deal;
}

/* The cut of another row with the same groups. */
static const ml_cut *row_of(const shard *x, int64_t width, const ml_deal *d) {
    return d ? ml_cut_row(x->a, width, d) : NULL;
}

typedef struct attn_cuts {
    const ml_cut *q, *k, *v, *o;
    ml_head_deal deal;
} attn_cuts;

static attn_cuts cuts_of_attn(const shard *x, const ml_node *n) {
    attn_cuts c = { .deal = ml_deal_heads(x->a, x->n_rank, n->attr.attn.n_head,
                                          n->attr.attn.n_kv) };

    c.q = ml_cut_row(x->a, width_of(x, n->in[0]), c.deal.head);
    c.k = ml_cut_row(x->a, width_of(x, n->in[1]), c.deal.key);
    c.o = ml_cut_row(x->a, width_of(x, n->out[0]), c.deal.head);
    if (n->op == ML_OP_ATTN)
        c.v = ml_cut_row(x->a, width_of(x, n->in[2]), c.deal.key);
    return c;
}

typedef struct rnn_cuts {
    const ml_cut *qkv, *decay, *o;
    ml_head_deal deal;
} rnn_cuts;

static rnn_cuts cuts_of_rnn(const shard *x, const ml_node *n) {
    int64_t h = n->attr.linear_rnn.n_head, value = h * n->attr.linear_rnn.value_dim;
    int64_t key = (int64_t)n->attr.linear_rnn.n_key * n->attr.linear_rnn.key_dim;
    rnn_cuts c = { .deal = ml_deal_heads(x->a, x->n_rank, n->attr.linear_rnn.n_head,
                                         n->attr.linear_rnn.n_key) };
    ml_cut qkv = { 0 }, decay = { 0 };

    ml_cut_add(&qkv, n->attr.linear_rnn.q_at, key, c.deal.key);
    ml_cut_add(&qkv, n->attr.linear_rnn.k_at, key, c.deal.key);
    ml_cut_add(&qkv, n->attr.linear_rnn.v_at, value, c.deal.head);
    ml_cut_add(&decay, 0, h, c.deal.head);
    ml_cut_add(&decay, h, h, c.deal.head);
    c.qkv = ml_cut_copy(x->a, &qkv);
    c.decay = ml_cut_copy(x->a, &decay);
    c.o = ml_cut_row(x->a, value, c.deal.head);
    return c;
}

/* The common deal of a slice's output, whose parts are those of the slice. */
static const ml_deal *slice_deal(const shard *x, const ml_node *n, const ml_cut *out) {
    int64_t at = 0;

    if (!out || out->n != n->attr.slice.n_part)
        return NULL;
    for (int i = 0; i < out->n; at += out->part[i++].width)
        if (out->part[i].at != at ||
            out->part[i].width != n->attr.slice.part[i].width * n->attr.slice.n_group ||
            n->attr.slice.n_group % out->part[i].deal->n_group != 0 ||
            out->part[i].deal->n_group != out->part[0].deal->n_group ||
            memcmp(out->part[i].deal->first, out->part[0].deal->first,
                   (size_t)x->n_rank * sizeof(int32_t)) != 0)
            return NULL;
    return out->part[0].deal;
}

/* A slice of one range of columns: its input is cut in the parts that its slices want. */
static void want_range(shard *x, const ml_node *n) {
    const ml_cut *out = x->want[n->out[0]], *old = x->want[n->in[0]];
    ml_cut c = old ? *old : (ml_cut){ 0 };

    if (x->divided[n->in[0]] != x->dp)
        return;
    for (int i = 0; out && i < out->n; i++)
        if (!ml_cut_add(&c, n->attr.slice.part[0].at + out->part[i].at, out->part[i].width,
                        out->part[i].deal))
            return;
    if (out)
        x->want[n->in[0]] = ml_cut_copy(x->a, &c);
}

static void want_groups(shard *x, const ml_node *n) {
    const ml_cut *out = x->want[n->out[0]];
    int64_t width = width_of(x, n->out[0]);

    switch (n->op) {
    case ML_OP_RMSNORM:
        want(x, n->in[0], in_groups(out, n->attr.norm.width) ? out : NULL);
        return;
    case ML_OP_ROPE:
        want(x, n->in[0], in_groups(out, n->attr.rope.head_dim) ? out : NULL);
        return;
    case ML_OP_SLICE:
        if (n->attr.slice.n_group == 1 && n->attr.slice.n_part == 1)
            want_range(x, n);
        else
            want(x, n->in[0], row_of(x, width_of(x, n->in[0]), slice_deal(x, n, out)));
        return;
    case ML_OP_DECAY:
        if (out && out->n == 2)
            for (int k = 0; k < 2 && n->in[k] != ML_NONE; k++)
                want(x, n->in[k], row_of(x, width / 2, out->part[0].deal));
        return;
    default: /* CONCAT, HEAD_LINEAR */
        for (int k = 0; k < 2 && n->in[k] != ML_NONE; k++)
            want(x, n->in[k],
                 row_of(x, width_of(x, n->in[k]), deal_of(out, width, n->attr.n_head)));
    }
}

/* The heads that an op gives, as they reach a gate. */
static void make_output(shard *x, const ml_node *n) {
    if (n->op == ML_OP_LINEAR_RNN)
        x->made[n->out[0]] = cuts_of_rnn(x, n).o;
    else if (ml_op_infos[n->op].cut == ML_CUT_HEADS)
        x->made[n->out[0]] = cuts_of_attn(x, n).o;
    else if (n->op == ML_OP_RMSNORM && in_groups(x->made[n->in[0]], n->attr.norm.width))
        x->made[n->out[0]] = x->made[n->in[0]];
}

static const ml_cut *cut_of_gate(const shard *x, const ml_node *n) {
    for (int k = 0; k < 2; k++)
        if (n->in[k] != ML_NONE && x->made[n->in[k]])
            return x->made[n->in[k]];
    return NULL;
}

/* Both halves of a fused gate and up projection are cut alike. */
static void want_halves(shard *x, const ml_node *n) {
    int64_t width = width_of(x, n->out[0]);
    const ml_deal *d = ml_deal_even(x->a, x->n_rank, width, ML_LANES);
    ml_cut c = { 0 };

    ml_cut_add(&c, 0, width, d);
    ml_cut_add(&c, width, width, d);
    want(x, n->in[0], ml_cut_copy(x->a, &c));
}

static void want_inputs(shard *x, const ml_node *n) {
    const ml_op_info *info = &ml_op_infos[n->op];
    const ml_cut *out = x->want[n->out[0]];

    if (n->op == ML_OP_LINEAR_RNN) {
        rnn_cuts c = cuts_of_rnn(x, n);
        want(x, n->in[0], c.qkv);
        want(x, n->in[1], c.decay);
    } else if (info->cut == ML_CUT_HEADS) {
        attn_cuts c = cuts_of_attn(x, n);
        want(x, n->in[0], c.q);
        want(x, n->in[1], c.k);
        want(x, n->op == ML_OP_ATTN ? n->in[2] : ML_NONE, c.v);
    } else if (n->op == ML_OP_GLU && n->attr.glu.fused) {
        want_halves(x, n);
    } else if (n->op == ML_OP_LORA) {
        want(x, n->in[1], out);
    } else if (info->cut == ML_CUT_COLUMNS && n->op != ML_OP_ADD) {
        if (n->op == ML_OP_GLU && !out)
            out = cut_of_gate(x, n);
        for (int k = 0; k < ML_OP_IN; k++)
            want(x, info->cut_in >> k & 1 ? n->in[k] : ML_NONE, out);
    } else if (info->cut == ML_CUT_GROUPS) {
        want_groups(x, n);
    }
}

/* --- values ---------------------------------------------------------------------- */

static int32_t new_value(shard *x, int32_t old, int32_t mul, int64_t width, bool dp) {
    ml_value v = x->value[old];

    v.mul *= mul;
    v.width = width;
    v.dp = dp && v.axis == ML_PER_TOKEN;
    return ml_build_value(&x->b, v);
}

static ml_node *between(shard *x, ml_op_id op, int32_t in, int32_t out, bool dp) {
    ml_node *n = ml_build_node(&x->b, op);

    n->in[0] = in;
    n->out[0] = out;
    n->dp = dp;
    return n;
}

static int32_t ranks_of(const shard *x, bool dp) {
    return dp ? x->n_all / x->n_dp : x->n_all;
}

/* The whole columns of a value that is cut over n_rank ranks. */
static void gather_columns(shard *x, int32_t v, int32_t n_rank) {
    held *h = &x->of[v];
    int32_t parts = new_value(x, v, n_rank, ml_cut_offset(h->cut, h->cut->n), h->dp);
    ml_node *n = between(x, ML_OP_GATHER_COLS, h->local, parts, h->dp);

    n->attr.dp = h->dp;
    h->whole = new_value(x, v, 1, width_of(x, v), h->dp);
    n = between(x, ML_OP_MERGE_COLS, parts, h->whole, h->dp);
    n->attr.merge.n_rank = n_rank;
    n->attr.merge.run = ml_cut_runs(x->a, h->cut, n_rank, &n->attr.merge.n_run);
}

/* The whole columns of a value, gathered where they are cut, in the rows of the node at
 * hand. */
static int32_t whole(shard *x, int32_t v) {
    held *h = &x->of[v];

    if (h->whole == ML_NONE) {
        ML_BUG_IF(h->local == ML_NONE);
        gather_columns(x, v, ranks_of(x, h->dp));
    }
    if (!h->dp || x->dp)
        return h->whole;
    if (h->all == ML_NONE) {
        h->all = new_value(x, v, 1, width_of(x, v), false);
        between(x, ML_OP_GATHER_ROWS, h->whole, h->all, false)->attr.dp = true;
    }
    return h->all;
}

/* The cut of a value's columns for the node at hand; NULL: it is whole, or cut for others. */
static const ml_cut *cut_of(const shard *x, int32_t v) {
    return x->of[v].dp == x->dp ? x->of[v].cut : NULL;
}

/* This rank's columns of a value; c NULL: all. */
static int32_t local(shard *x, int32_t v, const ml_cut *c) {
    held *h = &x->of[v];
    int32_t from, out;
    ml_node *n;

    if (!c)
        return whole(x, v);
    if (h->local != ML_NONE && h->dp == x->dp && ml_cut_same(h->cut, c, x->n_rank))
        return h->local;
    ML_BUG_IF(c->n > ML_SLICE_PARTS);
    from = whole(x, v);
    out = new_value(x, v, 1, ml_cut_offset(c, c->n), x->dp);
    n = between(x, ML_OP_SLICE, from, out, x->dp);
    n->attr.slice.group = width_of(x, v);
    n->attr.slice.n_group = 1;
    n->attr.slice.n_part = c->n;
    for (int i = 0; i < c->n; i++) {
        n->attr.slice.part[i].at = ml_cut_first(c, i, x->rank);
        n->attr.slice.part[i].width = ml_cut_part_width(c, i);
    }
    return out;
}

/* Declares output k of a new node. */
static void give(shard *x, const ml_node *old, ml_node *n, int k, const ml_cut *c) {
    int32_t v = old->out[k];
    held *h = &x->of[v];

    if (h->whole == ML_NONE && h->local == ML_NONE) { /* shared KV pages exist already */
        int32_t id = new_value(x, v, 1, c ? ml_cut_offset(c, c->n) : width_of(x, v), x->dp);
        *h = (held){ c ? ML_NONE : id, c ? id : ML_NONE, c, x->dp, ML_NONE };
    }
    n->out[k] = c ? h->local : h->whole;
}

/* KV pages and state of a rank's heads: `count` of n equal parts. */
static void give_kept(shard *x, const ml_node *old, ml_node *n, int k, int64_t count,
                      int64_t of) {
    held *h = &x->of[old->out[k]];

    if (h->whole == ML_NONE)
        h->whole =
            new_value(x, old->out[k], 1, width_of(x, old->out[k]) / of * count, x->dp);
    n->out[k] = h->whole;
}

static ml_node *copy_node(shard *x, const ml_node *old, const int32_t *in) {
    ml_node *n = ml_build_node(&x->b, old->op);

    *n = *old;
    n->dp = x->dp;
    memcpy(n->in, in, sizeof n->in);
    return n;
}

/* --- parameters --------------------------------------------------------------------- */

static ml_param *param_of(shard *x, int32_t i) {
    return &x->b.spec->param[i];
}

static void cut_rows(shard *x, int32_t i, const ml_cut *c) {
    ml_param *p = i == ML_NONE ? NULL : param_of(x, i);
    ml_param_cut *rows;

    if (!p || !c)
        return;
    ML_BUG_IF(p->cut || !ml_cut_covers(c, p->shape[0]));
    rows = ML_NEW(x->a, ml_param_cut, 1);
    *rows = (ml_param_cut){ .n_row = p->shape[0], .n_stack = p->n_stack, .n_run = c->n };
    for (int k = 0; k < c->n; k++) {
        rows->run[k].at = ml_cut_first(c, k, x->rank);
        rows->run[k].n = ml_cut_part_width(c, k);
    }
    p->cut = rows;
    p->shape[0] = ml_cut_offset(c, c->n);
}

/* Members are heads. */
static void cut_members(shard *x, int32_t i, const ml_deal *d) {
    ml_param *p = param_of(x, i);
    ml_param_cut *cut = ML_NEW(x->a, ml_param_cut, 1);
    int32_t each = p->n_stack / d->n_group;

    *cut = (ml_param_cut){ .n_row = p->shape[0],
                           .n_stack = p->n_stack,
                           .first = each * d->first[x->rank],
                           .n_run = 1,
                           .run = { { 0, p->shape[0] } } };
    p->cut = cut;
    p->n_stack = each * d->count;
}

/* --- nodes ------------------------------------------------------------------------ */

static void whole_inputs(shard *x, const ml_node *n, int32_t *in) {
    for (int k = 0; k < ML_OP_IN; k++)
        in[k] = n->in[k] == ML_NONE ? ML_NONE : whole(x, n->in[k]);
}

static ml_node *shard_none(shard *x, const ml_node *old) {
    int32_t in[ML_OP_IN];
    ml_node *n;

    whole_inputs(x, old, in);
    n = copy_node(x, old, in);
    for (int k = 0; k < ML_OP_OUT; k++)
        if (old->out[k] != ML_NONE)
            give(x, old, n, k, NULL);
    return n;
}

/* The head of a tied model has rows of its own; the embedding stays whole. */
static int32_t head_rows(shard *x, const ml_node *old) {
    ml_spec *s = x->b.spec;
    ml_param p = *param_of(x, old->w[0]);

    if (!s->tied)
        return old->w[0];
    param_of(x, old->w[0])->layout = ML_ROWS;
    return ml_build_param(&x->b, p);
}

static void shard_head(shard *x, const ml_node *old) {
    const ml_cut *c = columns(x, width_of(x, old->out[3]));
    int32_t in[ML_OP_IN], w = c ? head_rows(x, old) : old->w[0];
    ml_node *n;

    whole_inputs(x, old, in);
    n = copy_node(x, old, in);
    n->w[0] = w;
    for (int k = 0; k < 3; k++)
        give(x, old, n, k, NULL);
    give(x, old, n, 3, c);
    cut_rows(x, w, c);
    whole(x, old->out[3]);
}

static void shard_product(shard *x, const ml_node *old) {
    bool cut = param_of(x, old->w[0])->shard != ML_SHARD_NONE;
    const ml_cut *c = cut ? x->want[old->out[0]] : NULL;
    int64_t width = width_of(x, old->out[0]);
    int32_t in[ML_OP_IN];

    if (cut && (!c || !ml_cut_covers(c, width)))
        c = columns(x, width);
    whole_inputs(x, old, in);
    give(x, old, copy_node(x, old, in), 0, c);
    cut_rows(x, old->w[0], c);
    cut_rows(x, old->w[1], c);
}

/* The cut of a fused projection's halves becomes that of its activation. */
static const ml_cut *half_of(const shard *x, const ml_node *n, const ml_cut *c) {
    if (n->op != ML_OP_GLU || !n->attr.glu.fused)
        return c;
    return c && c->n == 2 ? row_of(x, width_of(x, n->out[0]), c->part[0].deal) : NULL;
}

/* The cut that all column inputs have in common; NULL: none. */
static const ml_cut *common_cut(const shard *x, const ml_node *n) {
    unsigned bits = ml_op_infos[n->op].cut_in;
    const ml_cut *c = NULL;

    for (int k = 0; k < ML_OP_IN; k++)
        if ((bits >> k & 1) && n->in[k] != ML_NONE) {
            const ml_cut *in = cut_of(x, n->in[k]);
            if (!in || (c && !ml_cut_same(c, in, x->n_rank)))
                return NULL;
            c = in;
        }
    return c;
}

static void shard_columns(shard *x, const ml_node *old) {
    const ml_cut *c = common_cut(x, old), *out = half_of(x, old, c);
    unsigned bits = ml_op_infos[old->op].cut_in;
    int32_t in[ML_OP_IN];
    ml_node *n;

    if (!out) {
        shard_none(x, old);
        return;
    }
    for (int k = 0; k < ML_OP_IN; k++)
        in[k] = old->in[k] == ML_NONE ? ML_NONE
                                      : local(x, old->in[k], bits >> k & 1 ? c : NULL);
    n = copy_node(x, old, in);
    give(x, old, n, 0, out);
    if (old->op == ML_OP_CONV) {
        give_kept(x, old, n, 1, ml_cut_offset(c, c->n), width_of(x, old->in[0]));
        cut_rows(x, old->w[0], c);
        cut_rows(x, old->w[1], c);
    }
}

static void shard_norm(shard *x, const ml_node *old) {
    const ml_cut *c = cut_of(x, old->in[0]);
    bool groups = old->op == ML_OP_ROPE ? in_groups(c, old->attr.rope.head_dim)
                                        : in_groups(c, old->attr.norm.width);
    int32_t in[ML_OP_IN] = { ML_NONE, ML_NONE, ML_NONE };

    if (!groups) {
        shard_none(x, old);
        return;
    }
    in[0] = local(x, old->in[0], c);
    if (old->in[1] != ML_NONE)
        in[1] = whole(x, old->in[1]);
    give(x, old, copy_node(x, old, in), 0, c);
    /* weights of a head are shared by all heads, unless there are as many as columns */
    if (old->w[0] != ML_NONE && param_of(x, old->w[0])->shape[0] == width_of(x, old->in[0]))
        cut_rows(x, old->w[0], c);
}

/* Slices a range of columns that is made of whole parts of the input's cut. */
static bool shard_range(shard *x, const ml_node *old, const ml_cut *c) {
    int64_t at = old->attr.slice.part[0].at, end = at + old->attr.slice.part[0].width;
    ml_cut out = { 0 };
    int first = 0;
    ml_node *n;

    while (first < c->n && c->part[first].at < at)
        first++;
    for (int i = first; i < c->n && c->part[i].at < end; i++)
        ml_cut_add(&out, c->part[i].at - at, c->part[i].width, c->part[i].deal);
    if (!ml_cut_covers(&out, end - at) || !ml_cut_copy(x->a, &out))
        return false;
    n = copy_node(x, old, (int32_t[]){ local(x, old->in[0], c), ML_NONE, ML_NONE });
    n->attr.slice.group = ml_cut_offset(c, c->n);
    n->attr.slice.part[0].at = ml_cut_offset(c, first);
    n->attr.slice.part[0].width = ml_cut_offset(&out, out.n);
    give(x, old, n, 0, ml_cut_copy(x->a, &out));
    return true;
}

static bool shard_slice(shard *x, const ml_node *old, const ml_cut *c) {
    int32_t n_group = old->attr.slice.n_group;
    const ml_deal *d = deal_of(c, width_of(x, old->in[0]), n_group);
    int64_t at = 0;
    ml_cut out = { 0 };
    ml_node *n;

    if (n_group == 1 && old->attr.slice.n_part == 1)
        return shard_range(x, old, c);
    if (!d)
        return false;
    for (int i = 0; i < old->attr.slice.n_part; i++) {
        ml_cut_add(&out, at, old->attr.slice.part[i].width * n_group, d);
        at += old->attr.slice.part[i].width * n_group;
    }
    n = copy_node(x, old, (int32_t[]){ local(x, old->in[0], c), ML_NONE, ML_NONE });
    n->attr.slice.n_group = n_group / d->n_group * d->count;
    give(x, old, n, 0, ml_cut_copy(x->a, &out));
    return true;
}

static bool shard_decay(shard *x, const ml_node *old, const ml_cut *c) {
    int64_t h = width_of(x, old->in[0]);
    int32_t in[ML_OP_IN] = { ML_NONE, ML_NONE, ML_NONE };
    ml_cut out = { 0 };

    if (c->n != 1)
        return false;
    for (int k = 0; k < 2; k++) {
        ml_cut_add(&out, k * h, h, c->part[0].deal);
        in[k] = old->in[k] == ML_NONE ? ML_NONE : local(x, old->in[k], c);
    }
    give(x, old, copy_node(x, old, in), 0, ml_cut_copy(x->a, &out));
    cut_rows(x, old->w[0], c);
    cut_rows(x, old->w[1], c);
    return true;
}

/* CONCAT, HEAD_LINEAR. */
static bool shard_heads(shard *x, const ml_node *old, const ml_cut *c) {
    const ml_deal *d = deal_of(c, width_of(x, old->in[0]), old->attr.n_head);
    int32_t in[ML_OP_IN] = { ML_NONE, ML_NONE, ML_NONE };
    ml_node *n;

    if (!d)
        return false;
    for (int k = 0; k < 2 && old->in[k] != ML_NONE; k++)
        in[k] = local(x, old->in[k], row_of(x, width_of(x, old->in[k]), d));
    n = copy_node(x, old, in);
    n->attr.n_head = old->attr.n_head / d->n_group * d->count;
    give(x, old, n, 0, row_of(x, width_of(x, old->out[0]), d));
    if (old->w[0] != ML_NONE)
        cut_members(x, old->w[0], d);
    return true;
}

/* An adapter adds to the columns that its linear layer has computed: they are cut alike, and
 * its matrices, too (lora.h). */
static void shard_lora(shard *x, const ml_node *old) {
    const ml_cut *c = cut_of(x, old->in[1]);
    bool heads = old->attr.lora.n_head > 1;
    int32_t in[ML_OP_IN];
    ml_node *n;

    if (!c) {
        shard_none(x, old);
        return;
    }
    in[0] = heads
                ? local(x, old->in[0], row_of(x, width_of(x, old->in[0]), c->part[0].deal))
                : whole(x, old->in[0]);
    in[1] = local(x, old->in[1], c);
    in[2] = old->in[2] == ML_NONE ? ML_NONE : whole(x, old->in[2]);
    n = copy_node(x, old, in);
    if (heads)
        n->attr.lora.n_head =
            old->attr.lora.n_head / c->part[0].deal->n_group * c->part[0].deal->count;
    give(x, old, n, 0, c);
}

static void shard_groups(shard *x, const ml_node *old) {
    const ml_cut *c = cut_of(x, old->in[0]);
    bool done;

    if (old->op == ML_OP_RMSNORM || old->op == ML_OP_ROPE) {
        shard_norm(x, old);
        return;
    }
    if (old->op == ML_OP_SLICE)
        done = c && shard_slice(x, old, c);
    else if (old->op == ML_OP_DECAY)
        done = c && shard_decay(x, old, c);
    else
        done = c && shard_heads(x, old, c);
    if (!done)
        shard_none(x, old);
}

static void shard_attn(shard *x, const ml_node *old) {
    attn_cuts c = cuts_of_attn(x, old);
    int32_t kv = c.deal.key->count, n_kv = old->attr.attn.n_kv, heads;
    int32_t in[ML_OP_IN] = { local(x, old->in[0], c.q), local(x, old->in[1], c.k),
                             old->op == ML_OP_ATTN   ? local(x, old->in[2], c.v)
                             : old->in[2] == ML_NONE ? ML_NONE
                                                     : whole(x, old->in[2]) };
    ml_node *n = copy_node(x, old, in);

    heads = old->attr.attn.n_head / c.deal.head->n_group * c.deal.head->count;
    n->attr.attn.n_head = heads;
    n->attr.attn.n_kv = kv;
    give(x, old, n, 0, c.o);
    if (old->op == ML_OP_ATTN) {
        give_kept(x, old, n, 1, heads, old->attr.attn.n_head);
        give_kept(x, old, n, 2, kv, n_kv);
        if (old->out[3] != ML_NONE)
            give_kept(x, old, n, 3, kv, n_kv);
    } else {
        give_kept(x, old, n, 1, 1, 1);
        if (old->out[2] != ML_NONE)
            give_kept(x, old, n, 2, 1, 1);
    }
    cut_rows(x, old->w[0], ml_cut_row(x->a, old->attr.attn.n_head, c.deal.head));
}

static void shard_rnn(shard *x, const ml_node *old) {
    rnn_cuts c = cuts_of_rnn(x, old);
    int32_t in[ML_OP_IN] = { local(x, old->in[0], c.qkv), local(x, old->in[1], c.decay),
                             ML_NONE };
    ml_node *n = copy_node(x, old, in);
    const ml_deal *head = c.deal.head;
    int32_t n_head = old->attr.linear_rnn.n_head;
    int64_t key, value;

    n->attr.linear_rnn.n_key = c.deal.key->count;
    n->attr.linear_rnn.n_head = n_head / head->n_group * head->count;
    key = (int64_t)c.deal.key->count * old->attr.linear_rnn.key_dim;
    value = (int64_t)n->attr.linear_rnn.n_head * old->attr.linear_rnn.value_dim;
    n->attr.linear_rnn.q_at = old->attr.linear_rnn.q_at ? value + key : 0;
    n->attr.linear_rnn.k_at = old->attr.linear_rnn.q_at ? value : key;
    n->attr.linear_rnn.v_at = old->attr.linear_rnn.q_at ? 0 : 2 * key;
    give(x, old, n, 0, c.o);
    give_kept(x, old, n, 1, n->attr.linear_rnn.n_head, n_head);
    cut_rows(x, old->w[0], ml_cut_row(x->a, n_head, head));
}

static void turn_to(shard *x, bool dp) {
    x->dp = dp;
    x->n_rank = ranks_of(x, dp);
    x->rank = x->all_rank % x->n_rank;
}

static void shard_node(shard *x, const ml_node *n) {
    x->b.layer = n->layer;
    if (n->op == ML_OP_LORA) {
        shard_lora(x, n);
        return;
    }
    switch (ml_op_infos[n->op].cut) {
    case ML_CUT_NONE: shard_none(x, n); return;
    case ML_CUT_COLUMNS: shard_columns(x, n); return;
    case ML_CUT_GROUPS: shard_groups(x, n); return;
    case ML_CUT_HEADS:
        if (n->op == ML_OP_LINEAR_RNN)
            shard_rnn(x, n);
        else
            shard_attn(x, n);
        return;
    case ML_CUT_OUTPUTS:
        if (n->op == ML_OP_LMHEAD)
            shard_head(x, n);
        else
            shard_product(x, n);
        return;
    }
}

ml_status ml_spec_shard(ml_spec *s, int32_t n_rank, int32_t rank, ml_err *err) {
    const ml_node *node = s->node;
    int32_t n_node = s->n_node, n_value = s->n_value;
    shard x = { .b = { .spec = s, .layer = ML_NONE, .cap_param = s->n_param },
                .a = &s->arena,
                .n_all = n_rank,
                .all_rank = rank,
                .n_dp = s->attn_dp ? s->attn_dp : 1,
                .value = s->value };
    const bool *dp;

    ML_BUG_IF(n_rank % x.n_dp != 0);
    ML_BUG_IF(n_rank < 1 || rank < 0 || rank >= n_rank || s->n_rank);
    if (s->critic)
        return ml_fail(err, ML_EUNSUP, "a critic cannot be cut for several ranks");
    if (n_rank == 1)
        return ML_OK;
    x.want = ML_NEW(x.a, const ml_cut *, n_value);
    x.made = ML_NEW(x.a, const ml_cut *, n_value);
    x.of = ML_NEW(x.a, held, n_value);
    for (int32_t v = 0; v < n_value; v++)
        x.of[v] = (held){ ML_NONE, ML_NONE, NULL, false, ML_NONE };
    dp = ml_spec_dp_nodes(s, x.n_dp, x.a, &x.divided);
    s->n_node = s->n_value = 0;
    for (int32_t i = 0; i < n_node; i++) {
        turn_to(&x, dp[i]);
        make_output(&x, &node[i]);
    }
    for (int32_t i = n_node - 1; i >= 0; i--) {
        turn_to(&x, dp[i]);
        want_inputs(&x, &node[i]);
    }
    for (int32_t i = 0; i < n_node; i++) {
        turn_to(&x, dp[i]);
        shard_node(&x, &node[i]);
    }
    s->n_rank = n_rank;
    ml_spec_index(s);
    return ML_OK;
}

ml_status ml_spec_shard_copy(ml_spec *out, const ml_spec *whole, int32_t n_rank,
                             int32_t rank, ml_err *err) {
    ml_status st;

    *out = *whole;
    ml_arena_init(&out->arena, "a rank's spec");
    out->param = ML_NEW(&out->arena, ml_param, whole->n_param);
    for (int32_t i = 0; i < whole->n_param; i++) {
        ml_param *p = &out->param[i];
        *p = whole->param[i];
        if (p->part)
            *(p->part = ML_NEW(&out->arena, ml_part, 1)) = *whole->param[i].part;
    }
    ml_spec_index(out);
    st = ml_spec_shard(out, n_rank, rank, err);
    if (st != ML_OK)
        ml_spec_close(out);
    return st;
}
