#include "model/spec_experts.h"

#include <string.h>

#include "base/bug.h"
#include "model/expert_rounds.h"

enum { NODES = 4, VALUES = 6 }; /* that a layer with experts gets */

typedef struct rewrite {
    ml_spec *s;
    int32_t n_rank, rank;
    /* Between SEND_ROWS and RETURN_ROWS: */
    bool sent;
    int32_t home, here;  /* the rows as they were sent, and in the order of experts */
    int32_t group, back; /* tables of SEND_ROWS */
} rewrite;

static int32_t add_value(rewrite *w, ml_value v) {
    w->s->value[w->s->n_value] = v;
    return w->s->n_value++;
}

/* A node beside `like`, without inputs and outputs. */
static ml_node *add_node(rewrite *w, const ml_node *like, ml_op_id op) {
    ml_node *n = &w->s->node[w->s->n_node++];

    *n = (ml_node){ .op = op, .layer = like->layer, .attr = like->attr };
    for (int k = 0; k < ML_OP_IN; k++)
        n->in[k] = ML_NONE;
    for (int k = 0; k < ML_OP_OUT; k++)
        n->out[k] = ML_NONE;
    for (int k = 0; k < ML_OP_W; k++)
        n->w[k] = ML_NONE;
    return n;
}

static int32_t n_mine(const rewrite *w, int32_t n_expert) {
    return ml_expert_first(n_expert, w->n_rank, w->rank + 1) -
           ml_expert_first(n_expert, w->n_rank, w->rank);
}

/* Rows of other ranks are tokens with one expert each. */
static void take_experts(const rewrite *w, ml_node *n) {
    n->attr.moe.n_expert = n_mine(w, n->attr.moe.n_expert);
    n->attr.moe.top_k = 1;
}

static int32_t sent_rows(rewrite *w, int64_t width) {
    return add_value(w, (ml_value){ .axis = ML_PER_TOKEN,
                                    .mul = 1,
                                    .width = width,
                                    .dtype = ML_F32,
                                    .sent = true });
}

static int32_t sent_group(rewrite *w, int32_t n_expert) {
    return add_value(w, (ml_value){ .axis = ML_GROUP,
                                    .mul = 2,
                                    .width = n_mine(w, n_expert) + 1,
                                    .dtype = ML_I32,
                                    .sent = true });
}

/* rows in the order of a table */
static int32_t order(rewrite *w, const ml_node *like, int32_t rows, int32_t group) {
    ml_node *n = add_node(w, like, ML_OP_MOE_GATHER);

    take_experts(w, n);
    n->in[0] = rows;
    n->in[1] = group;
    n->out[0] = sent_rows(w, w->s->value[rows].width);
    return n->out[0];
}

/* Before the first MOE_LINEAR of a layer. */
static void send_rows(rewrite *w, const ml_node *linear) {
    ml_node *n = add_node(w, linear, ML_OP_SEND_ROWS);
    int32_t n_expert = linear->attr.moe.n_expert;

    w->sent = true;
    w->home = n->in[0] = linear->in[0];
    n->in[1] = linear->in[1];
    n->out[0] = sent_rows(w, w->s->value[w->home].width);
    n->out[1] = w->group = sent_group(w, n_expert);
    n->out[2] = w->back = sent_group(w, n_expert);
    w->here = order(w, linear, n->out[0], w->group);
}

/* Before MOE_COMBINE, whose attributes are those of the rows at home. */
static int32_t return_rows(rewrite *w, const ml_node *combine) {
    int32_t rows = order(w, combine, combine->in[0], w->back);
    ml_node *n = add_node(w, combine, ML_OP_RETURN_ROWS);

    w->sent = false;
    n->in[0] = rows;
    n->out[0] = add_value(w, (ml_value){ .axis = ML_PER_TOKEN,
                                         .mul = combine->attr.moe.top_k,
                                         .width = w->s->value[rows].width,
                                         .dtype = ML_F32 });
    return n->out[0];
}

/* A node whose rows are at the experts' ranks. */
static void move_node(rewrite *w, ml_node *n) {
    for (int k = 0; k < ML_OP_IN; k++)
        if (n->in[k] == w->home)
            n->in[k] = w->here;
    ML_BUG_IF(!w->s->value[n->in[0]].sent); /* other ops do not stand between */
    if (n->op == ML_OP_LORA)
        n->attr.lora.first_group =
            ml_expert_first(n->attr.moe.n_expert, w->n_rank, w->rank);
    if (n->op == ML_OP_MOE_LINEAR || n->op == ML_OP_LORA) {
        take_experts(w, n);
        n->in[n->op == ML_OP_LORA ? 2 : 1] = w->group;
    }
    for (int k = 0; k < ML_OP_OUT; k++)
        if (n->out[k] != ML_NONE) {
            w->s->value[n->out[k]].sent = true;
            w->s->value[n->out[k]].mul = 1;
        }
}

static void rewrite_node(rewrite *w, const ml_node *from) {
    int32_t returned = ML_NONE;
    ml_node *n;

    if (from->op == ML_OP_MOE_LINEAR && !w->sent)
        send_rows(w, from);
    if (from->op == ML_OP_MOE_COMBINE)
        returned = return_rows(w, from);
    n = &w->s->node[w->s->n_node++];
    *n = *from;
    if (returned != ML_NONE)
        n->in[0] = returned;
    if (w->sent)
        move_node(w, n);
}

const int32_t *ml_spec_experts(ml_spec *out, ml_arena *a, const ml_spec *s, int32_t n_rank,
                               int32_t rank) {
    rewrite w = { .s = out, .n_rank = n_rank, .rank = rank };
    int32_t n_layer = 0, *number;

    for (int32_t i = 0; i < s->n_node; i++)
        n_layer += s->node[i].op == ML_OP_MOE_COMBINE;
    *out = *s;
    out->node = ML_NEW(a, ml_node, s->n_node + NODES * n_layer);
    out->value = ML_NEW(a, ml_value, s->n_value + VALUES * n_layer);
    memcpy(out->value, s->value, (size_t)s->n_value * sizeof *s->value);
    number = ML_NEW(a, int32_t, s->n_node + NODES * n_layer);
    out->n_node = 0;
    for (int32_t i = 0, done = 0; i < s->n_node; i++) {
        rewrite_node(&w, &s->node[i]);
        for (; done < out->n_node; done++)
            number[done] = i;
    }
    return number;
}
