#include "model/plan_priv.h"

#include <string.h>

#include "base/bug.h"

/* --- shapes ----------------------------------------------------------------- */

ml_tensor ml_plan_value(const ml_plan *p, int32_t value, const ml_rows *r, int32_t n_page) {
    const ml_value *v = &p->spec->value[value];
    ml_tensor t = { .dtype = ml_value_dtype(v, p->be->act),
                    .n_dim = 2,
                    .shape = { 0, v->width } };
    int64_t n_token = v->sent ? p->experts.n_row : r->n_token;

    switch (v->axis) {
    case ML_PER_TOKEN: t.shape[0] = v->mul * n_token; break;
    case ML_PER_LOSS: t.shape[0] = (int64_t)v->mul * r->n_loss; break;
    case ML_PER_PAGE: t.shape[0] = n_page; break;
    case ML_PER_SLOT: t.shape[0] = r->n_seq; break;
    case ML_PER_SHARE: t.shape[0] = r->context->n_share; break;
    case ML_PER_CONTEXT:
        t.shape[0] = (int64_t)r->context->n_rank * r->context->n_share;
        break;
    case ML_GROUP:
        t.n_dim = 1;
        t.shape[0] = v->width + v->mul * n_token;
        break;
    }
    return t;
}

ml_tensor ml_plan_grad_value(const ml_plan *p, int32_t value, const ml_rows *r) {
    ml_tensor t = ml_plan_value(p, value, r, p->opts.caps.n_page);

    if (p->spec->value[value].exact_grad)
        t.dtype = ML_F32;
    return t;
}

ml_rows ml_plan_full_rows(const ml_plan *p) {
    return (ml_rows){ .n_token = p->opts.caps.n_token,
                      .n_seq = p->opts.caps.n_seq,
                      .n_loss = p->opts.caps.n_loss,
                      .n_page = (p->spec->n_context ? 2 : 1) * p->opts.caps.n_page +
                                p->opts.caps.n_again, /* pieces list pages again */
                      .temperature = 1,
                      .context = p->spec->n_context ? &p->context : NULL };
}

static size_t value_bytes(const ml_plan *p, int32_t value) {
    ml_rows full = ml_plan_full_rows(p);
    ml_tensor t = ml_plan_value(p, value, &full, p->opts.caps.n_page);
    return (ml_tensor_bytes(&t) + 63) & ~(size_t)63;
}

static size_t grad_bytes(const ml_plan *p, int32_t value) {
    ml_rows full = ml_plan_full_rows(p);
    ml_tensor t = ml_plan_grad_value(p, value, &full);
    return (ml_tensor_bytes(&t) + 63) & ~(size_t)63;
}

/* --- recomputation ---------------------------------------------------------- */

/* The linear layer whose output a value is, with or without adapters. */
static int32_t linear_of(const ml_plan *p, int32_t value) {
    const ml_node *n = &p->spec->node[p->producer[value]];
    return p->producer[n->op == ML_OP_LORA ? n->in[1] : value];
}

/* Whether this node is part of one of the modules.  Gated activations belong to the
 * module that feeds them. */
static bool in_modules(const ml_plan *p, int32_t node, unsigned modules) {
    const ml_spec *s = p->spec;
    const ml_node *n = &s->node[node];

    switch (n->op) {
    case ML_OP_ATTN:
    case ML_OP_ATTN_CHOSEN:
    case ML_OP_GATHER_ROWS: return modules & ML_MODULE_CORE_ATTN;
    case ML_OP_ORDER_ROWS: /* of gathered keys */
        return modules & ML_MODULE_CORE_ATTN &&
               s->node[p->producer[n->in[0]]].op == ML_OP_GATHER_ROWS;
    case ML_OP_RMSNORM: return modules & ML_MODULE_LAYERNORM;
    case ML_OP_LINEAR:
        return modules & ML_MODULE_MLP &&
               (strstr(s->param[n->w[0]].name, ".mlp.") ||
                strstr(s->param[n->w[0]].name, ".ffn.") ||
                strstr(s->param[n->w[0]].name, ".feed_forward."));
    case ML_OP_LORA: return in_modules(p, p->producer[n->in[1]], modules);
    case ML_OP_GLU:
        if (s->node[linear_of(p, n->in[0])].op == ML_OP_MOE_LINEAR)
            return modules & (ML_MODULE_MOE | ML_MODULE_MOE_ACT);
        return modules & ML_MODULE_MLP;
    case ML_OP_MOE_ROUTE:
    case ML_OP_MOE_SCALE:
    case ML_OP_MOE_GATHER:
    case ML_OP_MOE_WEIGH:
    case ML_OP_MOE_LINEAR:
    case ML_OP_SEND_ROWS:
    case ML_OP_RETURN_ROWS:
    case ML_OP_MOE_COMBINE: return modules & ML_MODULE_MOE;
    default: return false;
    }
}

/* Layers are counted from the first one of the stage. */
static int32_t layer_here(const ml_plan *p, int32_t layer) {
    return p->opts.end ? layer - p->range.first_layer : layer;
}

/* On the host the time of a step goes into its products.  Norms and activation functions take
 * a hundredth of it, and their results a third of the memory. */
static bool is_cheap(const ml_plan *p, int32_t node) {
    const ml_node *n = &p->spec->node[node];

    return p->be->dev->host &&
           (n->op == ML_OP_RMSNORM ||
            (n->op == ML_OP_GLU &&
             p->spec->node[linear_of(p, n->in[0])].op != ML_OP_MOE_LINEAR));
}

static bool computed_again(const ml_plan *p, int32_t node) {
    const ml_recompute *r = &p->opts.recompute;
    int32_t layer = p->spec->node[node].layer;

    if (!p->opts.backward || layer == ML_NONE)
        return false;
    if (is_cheap(p, node))
        return true;
    if (r->granularity == ML_RECOMPUTE_SELECTIVE)
        return in_modules(p, node, r->modules);
    return r->granularity == ML_RECOMPUTE_FULL &&
           (!r->block || layer_here(p, layer) < r->n_layer);
}

/* Layers of the same recompute unit have the same number; nodes before, after and between
 * layers have none. */
static int32_t group_of(const ml_plan *p, int32_t node) {
    const ml_recompute *r = &p->opts.recompute;
    int32_t layer = p->spec->node[node].layer;
    bool chunks = r->granularity == ML_RECOMPUTE_FULL && !r->block && r->n_layer > 1;

    return layer == ML_NONE || !chunks ? layer : layer_here(p, layer) / r->n_layer;
}

static int32_t next_group(const ml_plan *p, int32_t node) {
    while (node < p->spec->n_node && group_of(p, node) == ML_NONE)
        node++;
    return node < p->spec->n_node ? group_of(p, node) : ML_NONE;
}

/* Time is measured in calls: all forwards, then from the last unit to the first its
 * recomputation and its backward. */
static void find_units(ml_plan *p) {
    int32_t group = ML_NONE, time = p->spec->n_node;

    p->unit = ML_NEW(&p->arena, ml_plan_unit, p->spec->n_node);
    for (int32_t i = 0; i < p->spec->n_node; i++) {
        /* A table computed in the middle of a layer belongs to that layer's unit. */
        int32_t own =
            group_of(p, i) == ML_NONE && next_group(p, i) == group ? group : group_of(p, i);
        if (p->n_unit == 0 || own != group)
            p->unit[p->n_unit++].first = i;
        group = own;
        p->unit[p->n_unit - 1].end = i + 1;
        p->call[i].unit = p->n_unit - 1;
        p->call[i].again = computed_again(p, i);
    }
    for (int32_t u = p->n_unit - 1; u >= 0; u--) {
        p->unit[u].time = time;
        time += 2 * (p->unit[u].end - p->unit[u].first);
    }
}

static int32_t end_of_time(const ml_plan *p) {
    return 3 * p->spec->n_node;
}

static int32_t again_time(const ml_plan *p, int32_t node) {
    const ml_plan_unit *u = &p->unit[p->call[node].unit];
    return u->time + node - u->first;
}

static int32_t backward_time(const ml_plan *p, int32_t node) {
    const ml_plan_unit *u = &p->unit[p->call[node].unit];
    return u->time + u->end - u->first + u->end - 1 - node;
}

int ml_plan_copy(const ml_plan *p, int32_t node, int32_t value) {
    const ml_plan_call *made;

    if (p->producer[value] == ML_NONE) /* it came in */
        return ML_FIRST_COPY;
    made = &p->call[p->producer[value]];
    return made->again && made->unit == p->call[node].unit ? ML_SECOND_COPY : ML_FIRST_COPY;
}

/* --- lifetimes -------------------------------------------------------------- */

static int32_t new_store(ml_plan *p, size_t bytes, int32_t first) {
    p->store[p->n_store] = (ml_plan_store){ .bytes = bytes, .first = first, .last = first };
    return p->n_store++;
}

static void live_until(ml_plan *p, int32_t store, int32_t time) {
    if (p->store[store].last < time)
        p->store[store].last = time;
}

static bool wanted(const ml_plan *p, const ml_node *n, int out) {
    if (n->op == ML_OP_LMHEAD)
        return out == 3 ? p->opts.logits : !p->opts.only_logits;
    if (n->out[out] == ML_NONE)
        return false;
    switch (p->spec->value[n->out[out]].axis) {
    case ML_PER_PAGE: return !p->opts.kv_shared;
    case ML_PER_SLOT: return false; /* with whole sequences no state is kept */
    default: return true;
    }
}

static const ml_plan_experts *experts_of(const ml_plan *p, int32_t node) {
    return &p->experts.layer[p->call[node].experts];
}

/* The last call that reads (or writes) each copy of each value; ML_NONE: none does. */
typedef struct reads {
    int32_t *last[ML_COPIES];
} reads;

static void read_at(reads *r, int copy, int32_t value, int32_t time) {
    if (r->last[copy][value] < time)
        r->last[copy][value] = time;
}

static void reads_of_forward(const ml_plan *p, int32_t node, reads *r) {
    const ml_node *n = &p->spec->node[node];

    for (int k = 0; k < ML_OP_IN; k++)
        if (n->in[k] != ML_NONE)
            read_at(r, ML_FIRST_COPY, n->in[k], node);
    for (int k = 0; k < ML_OP_OUT; k++)
        if (n->out[k] != ML_NONE) /* ml_plan_read reads the head's outputs */
            read_at(r, ML_FIRST_COPY, n->out[k], node == p->head ? end_of_time(p) : node);
    if (n->op == ML_OP_SEND_ROWS)
        read_at(r, ML_FIRST_COPY, n->in[0], experts_of(p, node)->back);
    if (node == p->head && p->opts.hidden)
        read_at(r, ML_FIRST_COPY, n->in[0], end_of_time(p));
    for (int32_t i = 0; i < p->opts.n_keep; i++)
        if (n->out[0] == p->opts.keep[i])
            read_at(r, ML_FIRST_COPY, n->out[0], end_of_time(p));
}

static void reads_of_backward(const ml_plan *p, int32_t node, reads *r) {
    const ml_node *n = &p->spec->node[node];
    const ml_op_info *info = &ml_op_infos[n->op];
    int32_t time = backward_time(p, node);

    for (int k = 0; k < ML_OP_IN; k++)
        if (n->in[k] != ML_NONE && (info->save_in >> k & 1))
            read_at(r, ml_plan_copy(p, node, n->in[k]), n->in[k], time);
    for (int k = 0; k < ML_OP_OUT; k++)
        if (n->out[k] != ML_NONE && (info->save_out >> k & 1))
            read_at(r, ml_plan_copy(p, node, n->out[k]), n->out[k], time);
}

/* A node is recomputed only if a later call needs its outputs. */
static void reads_of_rerun(ml_plan *p, int32_t node, reads *r) {
    const ml_node *n = &p->spec->node[node];
    ml_plan_call *c = &p->call[node];
    int32_t time = again_time(p, node);

    for (int k = 0; c->again && k < ML_OP_OUT; k++)
        if (n->out[k] != ML_NONE && ml_plan_copy(p, node, n->out[k]) == ML_SECOND_COPY &&
            r->last[ML_SECOND_COPY][n->out[k]] != ML_NONE)
            c->rerun = true;
    if (!c->rerun)
        return;
    for (int k = 0; k < ML_OP_IN; k++)
        if (n->in[k] != ML_NONE)
            read_at(r, ml_plan_copy(p, node, n->in[k]), n->in[k], time);
    for (int k = 0; k < ML_OP_OUT; k++)
        if (n->out[k] != ML_NONE) /* KV pages of another layer keep their place */
            read_at(r, ml_plan_copy(p, node, n->out[k]), n->out[k], time);
    if (n->op == ML_OP_SEND_ROWS)
        read_at(r, ml_plan_copy(p, node, n->in[0]), n->in[0],
                again_time(p, experts_of(p, node)->back));
}

/* What a round that backward computes again leaves out: values that are not needed, and
 * the rows to send, if they are kept. */
static bool is_redone(const ml_plan *p, const ml_plan_experts *x, int32_t node,
                      const reads *r) {
    const ml_node *n = &p->spec->node[node];

    for (int k = 0; k < ML_OP_OUT; k++) {
        int32_t v = n->out[k], time = node < x->send ? x->send : x->back;
        if (v == ML_NONE)
            continue;
        if (r->last[ml_plan_copy(p, node, v)][v] >= backward_time(p, time))
            return node >= x->send;
        if (p->experts.store[v] != ML_NONE)
            return true;
    }
    return false;
}

/* Memory for rounds that backward computes again.  Values that are saved for backward have
 * it; others get it for the time of these rounds, and inputs from outside are kept. */
static void reads_of_redo(ml_plan *p, const ml_plan_experts *x, reads *r) {
    int32_t first = backward_time(p, x->back), last = backward_time(p, x->send);

    for (int32_t i = x->back - 1; i >= x->home; i--) {
        const ml_node *n = &p->spec->node[i];
        p->call[i].redo = is_redone(p, x, i, r);
        for (int k = 0; p->call[i].redo && k < ML_OP_IN; k++) {
            int32_t v = n->in[k], copy, until = i == x->send ? last : first;
            if (v == ML_NONE)
                continue;
            copy = ml_plan_copy(p, i, v);
            if (p->producer[v] < x->home) {
                read_at(r, copy, v, first);
            } else if (r->last[copy][v] < until && p->experts.store[v] == ML_NONE) {
                p->experts.store[v] = new_store(p, value_bytes(p, v), first);
                live_until(p, p->experts.store[v], last);
            }
        }
    }
}

/* What is sent on lives until the backward begins.  Without one, the next run's values may
 * come in while those of this one are sent. */
static void reads_of_ports(const ml_plan *p, reads *r) {
    const ml_model_stage *g = &p->range;
    int32_t time = p->opts.backward ? p->spec->n_node : end_of_time(p);

    for (int32_t i = 0; i < g->n_out; i++)
        read_at(r, ML_FIRST_COPY, g->out[i].value, time);
    for (int32_t i = 0; i < g->n_in; i++)
        read_at(r, ML_FIRST_COPY, g->in[i].value, p->opts.backward ? 0 : time);
}

static void find_last_reads(ml_plan *p, reads *r) {
    const ml_spec *s = p->spec;

    for (int32_t i = 0; i < s->n_node; i++)
        reads_of_forward(p, i, r);
    reads_of_ports(p, r);
    if (!p->opts.backward)
        return;
    for (int32_t i = 0; i < s->n_node; i++)
        reads_of_backward(p, i, r);
    for (int32_t i = 0; i < p->experts.n; i++)
        reads_of_redo(p, &p->experts.layer[i], r);
    for (int32_t i = s->n_node - 1; i >= 0; i--)
        reads_of_rerun(p, i, r);
}

/* The input whose memory out[0] may take over: its lifetime ends here and its size
 * matches. */
static int32_t reusable_input(const ml_plan *p, int32_t node, int copy, int32_t time,
                              const reads *r) {
    const ml_node *n = &p->spec->node[node];
    /* The rows of a DP group are where they are among those of all groups. */
    unsigned in_place =
        n->op == ML_OP_GATHER_ROWS && n->attr.dp ? 1 : ml_op_infos[n->op].in_place;
    for (int k = 0; k < ML_OP_IN; k++) {
        int32_t v = n->in[k];
        if (v == ML_NONE || !(in_place >> k & 1))
            continue;
        if (copy == ML_SECOND_COPY && ml_plan_copy(p, node, v) != ML_SECOND_COPY)
            continue;
        if (r->last[copy][v] == time && value_bytes(p, v) == value_bytes(p, n->out[0]))
            return v;
    }
    return ML_NONE;
}

static void plan_outputs(ml_plan *p, int32_t node, int copy, int32_t time, const reads *r) {
    const ml_node *n = &p->spec->node[node];
    int32_t reused = reusable_input(p, node, copy, time, r), *of = p->value_store[copy];

    if (n->op ==
        ML_OP_RETURN_ROWS) /* the first round returns rows, the last one sends some */
        time -= node - experts_of(p, node)->send;

    for (int k = 0; k < ML_OP_OUT; k++) {
        int32_t v = n->out[k];
        if (!wanted(p, n, k) || p->producer[v] != node)
            continue;
        of[v] = k == 0 && reused != ML_NONE ? of[reused]
                                            : new_store(p, value_bytes(p, v), time);
        live_until(p, of[v], r->last[copy][v]);
    }
}

static void plan_value_stores(ml_plan *p, const reads *r) {
    for (int32_t i = 0; i < p->range.n_in; i++) {
        int32_t v = p->range.in[i].value;
        p->value_store[ML_FIRST_COPY][v] = new_store(p, value_bytes(p, v), 0);
        live_until(p, p->value_store[ML_FIRST_COPY][v], r->last[ML_FIRST_COPY][v]);
    }
    for (int32_t i = 0; i < p->spec->n_node; i++)
        plan_outputs(p, i, ML_FIRST_COPY, i, r);
    for (int32_t i = 0; i < p->spec->n_node; i++)
        if (p->call[i].rerun)
            plan_outputs(p, i, ML_SECOND_COPY, again_time(p, i), r);
}

/* y = a + b passes its gradient on unchanged, so both inputs may share dy's memory, if
 * this is the first gradient of either and nothing is added to a's before b's has been
 * read.  Backward runs from the last node to the first: a's other readers must precede
 * b's producer. */
static bool add_can_alias(const ml_plan *p, int32_t node) {
    const ml_spec *s = p->spec;
    const ml_node *n = &s->node[node];
    int32_t a = n->in[0], b = n->in[1], made_b = ML_NONE;

    if (a == b || p->grad_store[a] != ML_NONE || p->grad_store[b] != ML_NONE)
        return false;
    for (int32_t i = 0; i < node; i++)
        if (s->node[i].out[0] == b)
            made_b = i;
    for (int32_t i = 0; i < s->n_node; i++)
        for (int k = 0; k < ML_OP_IN; k++) {
            if (i != node && s->node[i].in[k] == a && i >= made_b)
                return false;
            if (i != node && s->node[i].in[k] == b)
                return false;
        }
    return true;
}

static bool is_port(const ml_plan *p, int32_t value) {
    for (int32_t i = 0; i < p->range.n_in; i++)
        if (p->range.in[i].value == value)
            return true;
    for (int32_t i = 0; i < p->range.n_out; i++)
        if (p->range.out[i].value == value)
            return true;
    return false;
}

/* RoPE turns its gradient in place, if this is the first gradient of x and no other value
 * has y's memory. */
static bool rope_can_alias(const ml_plan *p, int32_t node) {
    int32_t x = p->spec->node[node].in[0], y = p->spec->node[node].out[0];

    if (p->grad_store[x] != ML_NONE || grad_bytes(p, x) != grad_bytes(p, y) ||
        is_port(p, x) || is_port(p, y))
        return false;
    for (int32_t v = 0; v < p->spec->n_value; v++)
        if (v != y && p->grad_store[v] == p->grad_store[y])
            return false;
    return true;
}

static void plan_backward_node(ml_plan *p, int32_t node, const bool *needs_grad) {
    const ml_node *n = &p->spec->node[node];
    ml_plan_call *c = &p->call[node];
    int32_t time = backward_time(p, node), dout = p->grad_store[n->out[0]];

    if (dout == ML_NONE)
        return;
    live_until(p, dout, time);
    if (n->op == ML_OP_RETURN_ROWS)
        live_until(p, dout, backward_time(p, experts_of(p, node)->send));
    if (n->op == ML_OP_SEND_ROWS)
        time = backward_time(p, experts_of(p, node)->back);
    if (n->op == ML_OP_ADD && add_can_alias(p, node)) {
        p->grad_store[n->in[0]] = p->grad_store[n->in[1]] = dout;
        return;
    }
    c->backward_runs = n->op != ML_OP_ROPE_TABLE;
    if (n->op == ML_OP_LORA && needs_grad[n->in[1]]) /* y has no other reader */
        p->grad_store[n->in[1]] = dout;
    for (int k = 0; k < ML_OP_IN; k++) {
        int32_t v = n->in[k];
        if (v == ML_NONE || !(ml_op_infos[n->op].grad_in >> k & 1) || !needs_grad[v])
            continue;
        if (n->op == ML_OP_LORA && k == 1)
            continue;
        c->has_din[k] = true;
        c->din_add[k] = p->grad_store[v] != ML_NONE;
        if (n->op == ML_OP_ROPE && rope_can_alias(p, node))
            p->grad_store[v] = dout;
        else if (!c->din_add[k])
            p->grad_store[v] = new_store(p, grad_bytes(p, v), time);
        live_until(p, p->grad_store[v], backward_time(p, node));
    }
}

/* Gradients that a backward begins with: of the head's results, or of what was sent. */
static void plan_first_gradients(ml_plan *p) {
    int32_t last = p->spec->n_node - 1;
    const ml_node *head = &p->spec->node[last];

    for (int32_t i = 0; i < p->range.n_out; i++) {
        int32_t v = p->range.out[i].value;
        if (p->range.out[i].grad)
            p->grad_store[v] = new_store(p, grad_bytes(p, v), last);
    }
    if (p->head == ML_NONE)
        return;
    p->grad_store[head->out[0]] = new_store(p, value_bytes(p, head->out[0]), p->head);
    if (head->op == ML_OP_LMHEAD) {
        p->dentropy_store = new_store(p, value_bytes(p, head->out[1]), p->head);
        live_until(p, p->dentropy_store, backward_time(p, p->head));
    }
}

/* Gradients that are sent back: the values of the set's next run come in meanwhile. */
static void keep_last_gradients(ml_plan *p) {
    for (int32_t i = 0; i < p->range.n_in; i++) {
        int32_t store = p->grad_store[p->range.in[i].value];
        if (!p->range.in[i].grad)
            continue;
        ML_BUG_IF(store == ML_NONE);
        p->store[store].first = 0;
        live_until(p, store, end_of_time(p));
    }
}

static void plan_backward_stores(ml_plan *p) {
    const ml_spec *s = p->spec;
    bool *needs_grad = ML_NEW(&p->arena, bool, s->n_value);

    for (int32_t i = 0; i < p->range.n_in; i++)
        needs_grad[p->range.in[i].value] = p->range.in[i].grad;
    for (int32_t i = 0; i < s->n_node; i++) {
        const ml_node *n = &s->node[i];
        bool any = p->opts.frozen ? n->op == ML_OP_LORA : ml_node_is_trained(s, n);
        for (int k = 0; k < ML_OP_IN; k++)
            if (n->in[k] != ML_NONE && (ml_op_infos[n->op].grad_in >> k & 1))
                any = any || needs_grad[n->in[k]];
        needs_grad[n->out[0]] = any;
    }
    plan_first_gradients(p);
    for (int32_t i = s->n_node - 1; i >= 0; i--)
        plan_backward_node(p, i, needs_grad);
    keep_last_gradients(p);
}

/* --- entry point ------------------------------------------------------------ */

static void find_producers(ml_plan *p) {
    for (int32_t i = 0; i < p->spec->n_node; i++)
        for (int k = 0; k < ML_OP_OUT; k++)
            if (p->spec->node[i].out[k] != ML_NONE &&
                p->producer[p->spec->node[i].out[k]] == ML_NONE)
                p->producer[p->spec->node[i].out[k]] = i;
}

static int32_t *no_indices(ml_plan *p) {
    int32_t *x = ML_NEW(&p->arena, int32_t, p->spec->n_value);
    for (int32_t i = 0; i < p->spec->n_value; i++)
        x[i] = ML_NONE;
    return x;
}

void ml_plan_lay_out(ml_plan *p) {
    reads r;

    p->call = ML_NEW(&p->arena, ml_plan_call, p->spec->n_node);
    p->store = ML_NEW(&p->arena, ml_plan_store, 4 * (size_t)p->spec->n_value + 1);
    p->experts.store = no_indices(p);
    p->grad_store = no_indices(p);
    p->producer = no_indices(p);
    for (int copy = 0; copy < ML_COPIES; copy++) {
        p->value_store[copy] = no_indices(p);
        r.last[copy] = no_indices(p);
    }
    p->dentropy_store = ML_NONE;
    ml_plan_experts_find(p);
    find_producers(p);
    find_units(p);
    find_last_reads(p, &r);
    p->last_read = r.last[ML_FIRST_COPY];
    plan_value_stores(p, &r);
    if (p->opts.backward)
        plan_backward_stores(p);
    ml_plan_place(p);
}
