/* build_moe.c - spec rows of a mixture of experts. */
#include <stdio.h>
#include <string.h>

#include "model/build.h"

typedef struct moe {
    const ml_moe_opts *o;
    int64_t hidden;
    int32_t weight, expert, group; /* outputs of MOE_ROUTE */
} moe;

static ml_node *moe_node(ml_builder *b, const moe *m, ml_op_id op) {
    ml_node *n = ml_build_node(b, op);
    n->attr.moe.n_expert = m->o->n_expert;
    n->attr.moe.top_k = m->o->top_k;
    return n;
}

/* A projection of all experts, stored as one tensor of a checkpoint: outputs first, first
 * + step, .. of n_out in total. */
typedef struct stacked {
    const char *name;
    int64_t n_out, n_in, first, step;
    bool transposed; /* [expert, in, out] */
} stacked;

static ml_part *weight_part(ml_builder *b, const moe *m, const stacked *k) {
    ml_part *p = ML_NEW(&b->spec->arena, ml_part, 1);
    int64_t row = k->transposed ? 1 : k->n_in, col = k->transposed ? k->n_out : 1;

    *p = (ml_part){ .name = ml_build_name(b, m->o->experts, k->name),
                    .n_dim = 3,
                    .shape = { m->o->n_expert, k->transposed ? k->n_in : k->n_out,
                               k->transposed ? k->n_out : k->n_in },
                    .at = k->first * row,
                    .member = k->n_out * k->n_in,
                    .row = k->step * row,
                    .col = col };
    return p;
}

static ml_part *bias_part(ml_builder *b, const moe *m, const stacked *k) {
    ml_part *p = ML_NEW(&b->spec->arena, ml_part, 1);
    char name[64];

    snprintf(name, sizeof name, "%s_bias", k->name);
    *p = (ml_part){ .name = ml_build_name(b, m->o->experts, name),
                    .n_dim = 2,
                    .shape = { m->o->n_expert, k->n_out },
                    .at = k->first,
                    .member = k->n_out,
                    .col = k->step };
    return p;
}

static ml_param stack_of(ml_builder *b, const moe *m, const char *proj, const char *what,
                         int64_t n_out) {
    return (ml_param){ .name = ml_build_name(b, m->o->experts, "."),
                       .name_after = ml_arena_printf(&b->spec->arena, ".%s.%s", proj, what),
                       .n_stack = m->o->n_expert,
                       .n_dim = 1,
                       .shape = { n_out, 1 },
                       .layout = ML_ROWS,
                       .shard = ML_SHARD_EXPERT };
}

static int32_t expert_linear(ml_builder *b, const moe *m, int32_t x, const char *proj,
                             int64_t n_out, stacked k) {
    ml_node *n = moe_node(b, m, ML_OP_MOE_LINEAR);
    int32_t out = ml_build_rows(b, m->o->top_k, n_out);
    ml_param w = stack_of(b, m, proj, "weight", n_out);

    k.n_in = ml_build_width(b, x);
    k.transposed = m->o->oss_experts || m->o->transposed;
    w.n_dim = 2;
    w.shape[1] = k.n_in;
    w.layout = ML_PANELS;
    w.part = weight_part(b, m, &k);
    n->in[0] = x;
    n->in[1] = m->group;
    n->out[0] = out;
    n->w[0] = ml_build_param(b, w);
    if (m->o->oss_experts) {
        ml_param bias = stack_of(b, m, proj, "bias", n_out);
        bias.part = bias_part(b, m, &k);
        n->w[1] = ml_build_param(b, bias);
    }
    return out;
}

/* The experts of each token id. */
static int32_t expert_table(ml_builder *b, const ml_moe_opts *o) {
    int32_t out = ml_build_table(b, o->table, b->spec->n_vocab, o->top_k, 1);
    ml_param *p = &b->spec->param[b->spec->n_param - 1];

    p->frozen = p->keep_f32 = true;
    p->below = o->n_expert;
    b->spec->value[out].exact = true;
    return out;
}

/* Selects the experts of each token and their weights. */
static void route(ml_builder *b, moe *m, int32_t x) {
    const ml_moe_opts *o = m->o;
    int32_t logits = ml_build_linear(b, x,
                                     (ml_linear_opts){ .name = o->router,
                                                       .n_out = o->n_expert,
                                                       .bias = o->router_bias });
    int32_t table = o->table ? expert_table(b, o) : ML_NONE;
    ml_node *n = moe_node(b, m, ML_OP_MOE_ROUTE);

    m->weight = ml_build_exact(b, ML_PER_TOKEN, o->top_k);
    m->expert = ml_build_value(b, (ml_value){ ML_PER_TOKEN, 1, o->top_k, ML_I32 });
    m->group =
        ml_build_value(b, (ml_value){ ML_GROUP, 2 * o->top_k, o->n_expert + 1, ML_I32 });
    n->in[0] = logits;
    n->in[1] = table;
    n->out[0] = m->weight;
    n->out[1] = m->expert;
    n->out[2] = m->group;
    n->route_layer = b->layer;
    b->spec->route[ML_ROUTING_EXPERTS].n_layer = b->spec->n_layer;
    b->spec->route[ML_ROUTING_EXPERTS].top_k = o->top_k;
    n->attr.moe.n_group = o->n_group;
    n->attr.moe.top_group = o->top_group;
    n->attr.moe.sigmoid = o->sigmoid;
    n->attr.moe.sqrt_softplus = o->sqrt_softplus;
    n->attr.moe.renorm = o->renorm;
    n->attr.moe.scale = o->scale == 0.0f ? 1.0f : o->scale;
    if (o->bias)
        n->w[0] = ml_build_param(b, (ml_param){ .name = ml_build_name(b, o->bias, ""),
                                                .n_stack = 1,
                                                .n_dim = 1,
                                                .shape = { o->n_expert, 1 },
                                                .layout = ML_ROWS,
                                                .frozen = true,
                                                .keep_f32 = true });
}

/* Multiplies the routing weights by their experts' factors. */
static void scale_experts(ml_builder *b, moe *m) {
    ml_node *n = moe_node(b, m, ML_OP_MOE_SCALE);

    n->in[0] = m->weight;
    n->in[1] = m->expert;
    n->out[0] = m->weight = ml_build_exact(b, ML_PER_TOKEN, m->o->top_k);
    n->w[0] =
        ml_build_param(b, (ml_param){ .name = ml_build_name(b, m->o->expert_scale, ""),
                                      .n_stack = 1,
                                      .n_dim = 1,
                                      .shape = { m->o->n_expert, 1 },
                                      .layout = ML_ROWS });
}

static int32_t gather(ml_builder *b, const moe *m, int32_t x) {
    ml_node *n = moe_node(b, m, ML_OP_MOE_GATHER);
    int32_t rows = ml_build_rows(b, m->o->top_k, m->hidden);
    n->in[0] = x;
    n->in[1] = m->group;
    n->out[0] = rows;
    return rows;
}

/* Rows of experts' inputs times the weights of their experts. */
static int32_t weigh(ml_builder *b, const moe *m, int32_t rows) {
    ml_node *n = moe_node(b, m, ML_OP_MOE_WEIGH);
    int32_t out = ml_build_rows(b, m->o->top_k, m->hidden);
    n->in[0] = rows;
    n->in[1] = m->weight;
    n->in[2] = m->group;
    n->out[0] = out;
    return out;
}

static int32_t combine(ml_builder *b, const moe *m, int32_t rows) {
    ml_node *n = moe_node(b, m, ML_OP_MOE_COMBINE);
    int32_t out = ml_build_rows(b, 1, m->hidden);
    n->in[0] = rows;
    if (!m->o->weigh_inputs)
        n->in[1] = m->weight;
    n->in[2] = m->group;
    n->out[0] = out;
    return out;
}

/* gpt_oss interleaves gate and up, others store one after the other. */
static int32_t gated(ml_builder *b, const moe *m, int32_t rows) {
    const ml_moe_opts *o = m->o;
    stacked both = { ".gate_up_proj", .n_out = 2 * o->n_inner,
                     .step = o->oss_experts ? 2 : 1 };
    int32_t gate, up;

    gate = expert_linear(b, m, rows, o->gate ? o->gate : "gate_proj", o->n_inner, both);
    both.first = o->oss_experts ? 1 : o->n_inner;
    up = expert_linear(b, m, rows, o->up ? o->up : "up_proj", o->n_inner, both);
    return o->limit > 0.0f ? ml_build_swiglu(b, gate, up, o->limit)
                           : ml_build_glu(b, gate, up, o->act);
}

static int32_t ungated(ml_builder *b, const moe *m, int32_t rows) {
    const ml_moe_opts *o = m->o;
    stacked one = { ".up_proj", .n_out = o->n_inner, .step = 1 };
    int32_t up = expert_linear(b, m, rows, o->up ? o->up : "up_proj", o->n_inner, one);
    return ml_build_glu(b, up, up, o->act);
}

int32_t ml_build_moe(ml_builder *b, int32_t x, int32_t by, ml_moe_opts o) {
    moe m = { .o = &o, .hidden = ml_build_width(b, x) };
    stacked down = { ".down_proj", .n_out = m.hidden, .step = 1 };
    int32_t rows, act;

    route(b, &m, by);
    if (o.expert_scale)
        scale_experts(b, &m);
    rows = gather(b, &m, x);
    if (o.weigh_inputs)
        rows = weigh(b, &m, rows);
    act = o.ungated ? ungated(b, &m, rows) : gated(b, &m, rows);
    rows = expert_linear(b, &m, act, o.down ? o.down : "down_proj", m.hidden, down);
    return combine(b, &m, rows);
}
