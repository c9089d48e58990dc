#include "model/spec_lora.h"

#include <string.h>

#include "base/bug.h"
#include "model/source.h"

/* Not the coefficients of hyper-connections, which are exact: PEFT adapts modules, and their matrix
 * is a parameter of its own.  LINEAR between MOE_GATHER and MOE_COMBINE has several rows for a
 * token; no family has one. */
static bool is_site(const ml_spec *s, const ml_node *n) {
    if (n->op != ML_OP_LINEAR && n->op != ML_OP_MOE_LINEAR && n->op != ML_OP_HEAD_LINEAR)
        return false;
    ML_BUG_IF(n->op != ML_OP_MOE_LINEAR && s->value[n->in[0]].mul != 1);
    return !s->value[n->out[0]].exact && !ml_param_is_value_head(&s->param[n->w[0]]);
}

/* Of the whole model, if the spec is that of a rank (spec_shard.h). */
static ml_lora_layer layer_of(const ml_spec *s, const ml_node *n) {
    const ml_param *p = &s->param[n->w[0]];
    ml_lora_layer l = { .param = n->w[0],
                        .input = n->in[0],
                        .n_group = p->cut ? p->cut->n_stack : p->n_stack,
                        .n_in = p->shape[1],
                        .n_out = p->cut ? p->cut->n_row : p->shape[0],
                        .experts = n->op == ML_OP_MOE_LINEAR,
                        .heads = n->op == ML_OP_HEAD_LINEAR };

    l.transposed = l.heads && p->part && p->part->col != 1;
    if (l.transposed) {
        l.n_in = l.n_out;
        l.n_out = p->shape[1];
    }
    return l;
}

/* What reads the output of a linear layer; what has computed its input. */
static bool is_gate(const ml_spec *s, const ml_lora_layer *l, int32_t out) {
    for (int32_t i = 0; i < s->n_node; i++)
        if (s->node[i].in[0] == out && s->node[i].op == ML_OP_MOE_ROUTE)
            return true;
    return l->n_out == 1;
}

static bool is_inner(const ml_spec *s, const ml_lora_layer *l) {
    for (int32_t i = 0; i < s->n_node; i++)
        if (s->node[i].out[0] == l->input && s->node[i].op == ML_OP_GLU)
            return true;
    return false;
}

const ml_lora_layer *ml_spec_lora_layers(const ml_spec *s, ml_arena *a, int32_t *n) {
    ml_lora_layer *list = ML_NEW(a, ml_lora_layer, s->n_node);

    *n = 0;
    for (int32_t i = 0; i < s->n_node; i++)
        if (is_site(s, &s->node[i])) {
            ml_lora_layer *l = &list[(*n)++];
            *l = layer_of(s, &s->node[i]);
            l->gate = is_gate(s, l, s->node[i].out[0]);
            l->inner = is_inner(s, l);
        }
    return list;
}

typedef struct insertion {
    ml_spec *s;
    ml_node *node; /* the new ones */
    int32_t n_node, max_rank;
    int32_t *now;     /* [values] what later ops read instead of a value */
    ml_node *waiting; /* LORA ops of linear layers that read the same value */
    int32_t n_waiting;
} insertion;

static ml_node lora_of(insertion *x, const ml_node *linear, int32_t site) {
    ml_spec *s = x->s;
    ml_lora_layer l = layer_of(s, linear);
    ml_node n = { .op = ML_OP_LORA, .layer = linear->layer, .dp = linear->dp };
    int32_t out = s->n_value++;

    s->value[out] = s->value[linear->out[0]];
    for (int k = 0; k < ML_OP_IN; k++)
        n.in[k] = ML_NONE;
    for (int k = 0; k < ML_OP_OUT; k++)
        n.out[k] = ML_NONE;
    for (int k = 0; k < ML_OP_W; k++)
        n.w[k] = ML_NONE;
    n.in[0] = linear->in[0];
    n.in[1] = linear->out[0];
    n.in[2] = l.experts ? linear->in[1] : ML_NONE;
    n.out[0] = out;
    n.attr.moe.n_expert = linear->attr.moe.n_expert;
    n.attr.moe.top_k = linear->attr.moe.top_k;
    n.attr.lora.site = site;
    n.attr.lora.max_rank = x->max_rank;
    n.attr.lora.n_head = l.heads ? l.n_group : 1;
    n.attr.lora.transposed = l.transposed;
    x->now[linear->out[0]] = out;
    return n;
}

static void flush(insertion *x) {
    for (int32_t i = 0; i < x->n_waiting; i++)
        x->node[x->n_node++] = x->waiting[i];
    x->n_waiting = 0;
}

/* Linear layers of the same input stay together, because backends fuse them. */
static bool may_wait(const insertion *x, const ml_node *next) {
    return x->n_waiting && next->op == ML_OP_LINEAR && next->in[0] == x->waiting[0].in[0];
}

static void insert_all(insertion *x, const bool *wanted) {
    const ml_spec *s = x->s;
    int32_t site = 0;

    for (int32_t i = 0; i < s->n_node; i++) {
        ml_node n = s->node[i];
        for (int k = 0; k < ML_OP_IN; k++)
            if (n.in[k] != ML_NONE)
                n.in[k] = x->now[n.in[k]];
        if (!may_wait(x, &n))
            flush(x);
        x->node[x->n_node++] = n;
        if (!is_site(s, &n))
            continue;
        if (!wanted || wanted[site])
            x->waiting[x->n_waiting++] = lora_of(x, &n, site);
        site++;
    }
    flush(x);
}

void ml_spec_lora_insert(ml_spec *s, const bool *wanted, int32_t max_rank) {
    int32_t n_value = s->n_value;
    insertion x = { .s = s, .max_rank = max_rank };
    ml_value *value = ML_NEW(&s->arena, ml_value, n_value + s->n_node);

    ML_BUG_IF(s->n_rank || s->n_context);
    memcpy(value, s->value, (size_t)n_value * sizeof *value);
    s->value = value;
    x.node = ML_NEW(&s->arena, ml_node, 2 * s->n_node);
    x.waiting = ML_NEW(&s->arena, ml_node, s->n_node);
    x.now = ML_NEW(&s->arena, int32_t, n_value + s->n_node);
    for (int32_t i = 0; i < n_value + s->n_node; i++)
        x.now[i] = i;
    insert_all(&x, wanted);
    s->node = x.node;
    s->n_node = x.n_node;
}

bool ml_spec_lora_dropout(ml_spec *s, float p) {
    for (int32_t i = 0; i < s->n_node; i++) {
        if (s->node[i].op != ML_OP_LORA)
            continue;
        if (s->node[i].attr.lora.transposed)
            return false;
        s->node[i].attr.lora.dropout = p;
    }
    return true;
}
