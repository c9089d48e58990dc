#include "model/spec_dp.h"

typedef struct division {
    const ml_spec *s;
    bool *node, *value;   /* those with the rows of a group */
    int32_t *n_reader;    /* [values] nodes that read it */
    int32_t *n_dp_reader; /* of these, nodes with the rows of a group */
} division;

/* Ops that compute each row by itself, and may so have those of a group alone. */
static bool is_divisible(ml_op_id op) {
    switch (op) {
    case ML_OP_LINEAR:
    case ML_OP_RMSNORM:
    case ML_OP_ROPE_TABLE:
    case ML_OP_ROPE:
    case ML_OP_GLU:
    case ML_OP_SLICE:
    case ML_OP_DECAY:
    case ML_OP_ROW_GATE:
    case ML_OP_HEAD_LINEAR:
    case ML_OP_CONCAT:
    case ML_OP_SCALE:
    case ML_OP_LAYERNORM:
    case ML_OP_COL_SCALE:
    case ML_OP_LORA: /* with its linear layer, whose output nothing else reads */
    case ML_OP_TANH: return true;
    default: return false;
    }
}

static bool keeps_state(const ml_spec *s, const ml_node *n) {
    for (int k = 0; k < ML_OP_OUT; k++)
        if (n->out[k] != ML_NONE && ml_axis_is_kept(s->value[n->out[k]].axis))
            return true;
    return false;
}

static void count_readers(const ml_node *n, int32_t *count) {
    for (int k = 0; k < ML_OP_IN; k++)
        if (n->in[k] != ML_NONE)
            count[n->in[k]]++;
}

static bool has_dp_readers_only(const division *d, const ml_node *n) {
    int32_t all = 0, dp = 0;

    for (int k = 0; k < ML_OP_OUT; k++)
        if (n->out[k] != ML_NONE) {
            all += d->n_reader[n->out[k]];
            dp += d->n_dp_reader[n->out[k]];
        }
    return all && all == dp;
}

/* Whether the rows of a group are enough: an input has no others, or no others are read.
 * The sum of a residual and what attention adds to it has all rows. */
static bool is_divided(const division *d, const ml_node *n) {
    bool any = false, all = true;

    for (int k = 0; k < ML_OP_IN; k++)
        if (n->in[k] != ML_NONE) {
            any = any || d->value[n->in[k]];
            all = all && d->value[n->in[k]];
        }
    if (n->op == ML_OP_ADD)
        return any && all;
    return is_divisible(n->op) && (any || has_dp_readers_only(d, n));
}

static void divide(division *d, int32_t i) {
    const ml_node *n = &d->s->node[i];

    d->node[i] = true;
    count_readers(n, d->n_dp_reader);
    for (int k = 0; k < ML_OP_OUT; k++)
        if (n->out[k] != ML_NONE && d->s->value[n->out[k]].axis == ML_PER_TOKEN)
            d->value[n->out[k]] = true;
}

const bool *ml_spec_dp_nodes(const ml_spec *s, int32_t n_dp, ml_arena *a,
                             const bool **divided) {
    division d = { .s = s,
                   .node = ML_NEW(a, bool, s->n_node),
                   .value = ML_NEW(a, bool, s->n_value),
                   .n_reader = ML_NEW(a, int32_t, s->n_value),
                   .n_dp_reader = ML_NEW(a, int32_t, s->n_value) };
    bool more = n_dp > 1;

    for (int32_t i = 0; i < s->n_node; i++)
        count_readers(&s->node[i], d.n_reader);
    for (int32_t i = 0; more && i < s->n_node; i++)
        if (keeps_state(s, &s->node[i]))
            divide(&d, i);
    while (more) {
        more = false;
        for (int32_t i = s->n_node - 1; i >= 0; i--)
            if (!d.node[i] && is_divided(&d, &s->node[i])) {
                divide(&d, i);
                more = true;
            }
    }
    *divided = d.value;
    return d.node;
}
