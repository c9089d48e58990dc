#include "model/plan_priv.h"

#include <stdlib.h>

#include "base/bug.h"
#include "base/clock.h"

/* --- calls ------------------------------------------------------------------ */

/* What the sets share stands before them. */
static void *in_set(const ml_plan *p, int32_t store, int32_t set) {
    const ml_plan_store *s = &p->store[store];
    size_t begin = s->shared ? 0 : p->shared_bytes + (size_t)set * p->set_bytes;

    const ml_buf *act = p->opts.memory ? &p->opts.memory->act : &p->act;

    return p->act.ptr ? (unsigned char *)act->ptr + begin + s->offset : NULL;
}

void *ml_plan_at(const ml_plan *p, int32_t store) {
    return in_set(p, store, p->set);
}

static ml_tensor bound(const ml_plan *p, int32_t value, int32_t store, const ml_rows *r,
                       int32_t n_page) {
    ml_tensor t = ml_plan_value(p, value, r, n_page);
    t.data = store == ML_NONE ? NULL : ml_plan_at(p, store);
    return t;
}

static ml_tensor bound_grad(const ml_plan *p, int32_t value, const ml_rows *r) {
    ml_tensor t = ml_plan_grad_value(p, value, r);
    int32_t store = p->grad_store[value];

    t.data = store == ML_NONE ? NULL : ml_plan_at(p, store);
    return t;
}

/* dp: the rows of this rank's DP group; where sizes are planned, a batch has no groups. */
static ml_tensor bound_rows(const ml_plan *p, int32_t value, int32_t store,
                            const ml_rows *r, int32_t n_page, bool dp) {
    ml_tensor t = bound(p, value, store, r, n_page);
    const ml_value *v = &p->spec->value[value];
    size_t row = ml_tensor_bytes(&t) / (size_t)(t.shape[0] ? t.shape[0] : 1);

    if (!dp || !r->dp || v->axis != ML_PER_TOKEN)
        return t;
    t.shape[0] = (int64_t)v->mul * r->dp->rows.n_token;
    if (t.data)
        t.data = (unsigned char *)t.data +
                 row * (size_t)v->mul * (size_t)r->dp->start[r->dp->group];
    return t;
}

/* The memory of a value: forward's copy or, for a call after forward, the copy that the
 * node's recompute unit uses. */
static int32_t store_of(const ml_plan *p, int32_t node, int32_t value, bool forward) {
    if (p->experts.redo && p->experts.store[value] != ML_NONE)
        return p->experts.store[value];
    return p->value_store[forward ? ML_FIRST_COPY : ml_plan_copy(p, node, value)][value];
}

/* The kind of selection a node makes, and the index of the output that has it;
 * ML_N_ROUTING: none. */
static ml_routing_kind route_of(const ml_node *n, int *out) {
    *out = n->op == ML_OP_MOE_ROUTE ? 1 : 0;
    return n->op == ML_OP_MOE_ROUTE ? ML_ROUTING_EXPERTS
           : n->op == ML_OP_INDEX   ? ML_ROUTING_KEYS
                                    : ML_N_ROUTING;
}

/* Offset of a node's selections in the arrays over all layers. */
static int64_t route_at(const ml_plan *p, const ml_node *n, ml_routing_kind route,
                        const ml_rows *rows) {
    return (int64_t)n->route_layer * rows->n_token * p->spec->route[route].top_k;
}

/* A run without weights only computes sizes. */
static void bind_given(const ml_plan *p, const ml_node *n, const ml_run *r, ml_op_args *a) {
    int out;
    ml_routing_kind route = route_of(n, &out);

    if (route == ML_N_ROUTING || !p->opts.given[route] || (r->weights && !r->given[route]))
        return;
    a->given = ml_plan_value(p, n->out[out], r->rows, 0);
    if (r->given[route])
        a->given.data =
            (void *)(uintptr_t)(r->given[route] + route_at(p, n, route, r->rows));
}

/* Copies the given selection to the output to which the node writes its selection. */
static void upload_given(const ml_plan *p, const ml_node *n, ml_op_args *a) {
    int out;

    if (!a->given.data || p->be->dev->host || route_of(n, &out) == ML_N_ROUTING)
        return;
    p->be->dev->copy_in(p->be->stream, a->out[out].data, a->given.data,
                        ml_tensor_bytes(&a->given));
    a->given.data = a->out[out].data;
}

static void bind_values(const ml_plan *p, int32_t node, bool forward, const ml_run *r,
                        ml_op_args *a) {
    const ml_node *n = &p->spec->node[node];
    int32_t n_page = r->kv ? r->kv->n_page : p->opts.caps.n_page;

    for (int k = 0; k < ML_OP_IN; k++)
        if (n->in[k] != ML_NONE)
            a->in[k] = bound_rows(p, n->in[k], store_of(p, node, n->in[k], forward),
                                  r->rows, n_page, n->dp || p->spec->value[n->in[k]].dp);
    for (int k = 0; k < ML_OP_OUT; k++)
        if (n->out[k] != ML_NONE)
            a->out[k] = bound_rows(p, n->out[k], store_of(p, node, n->out[k], forward),
                                   r->rows, n_page, n->dp);
    for (int k = 0; k < ML_OP_W; k++)
        if (n->w[k] != ML_NONE && r->weights &&
            !ml_plan_params_weight(p, node, k, &a->w[k])) {
            a->w[k] = r->weights->t[n->w[k]];
            ml_plan_experts_view(p, node, &a->w[k]);
        }
    a->attr = &n->attr;
    a->lora = r->weights ? r->weights->lora : NULL;
    a->rows =
        p->spec->value[n->out[0]].axis == ML_PER_CONTEXT ? ml_key_rows(r->rows) : r->rows;
    if (n->dp && r->rows->dp)
        a->rows = &r->rows->dp->rows;
    a->loss_rows = p->opts.loss_rows;
    a->grad_format = p->opts.grad_format;
    a->scratch = p->scratch.ptr;
    bind_given(p, n, r, a);
}

const ml_tensor *ml_plan_grad(const ml_plan *p, int32_t node, int k, const ml_run *r) {
    const ml_node *n = &p->spec->node[node];
    bool tied =
        n->op == ML_OP_EMBED && n->w[0] == p->whole->node[p->whole->n_node - 1].w[0];

    if (n->again && r->again_grads)
        return &r->again_grads[n->w[k]];
    return tied && r->embed_grad ? r->embed_grad : &r->grads->t[n->w[k]];
}

bool ml_plan_grad_unwritten(const ml_plan *p, int32_t node, int k, const ml_run *r) {
    int32_t w = p->spec->node[node].w[k];

    return w != ML_NONE && r->grads && r->unwritten && r->unwritten[w] &&
           ml_plan_grad(p, node, k, r) == &r->grads->t[w];
}

/* Whether an op writes the gradient of weight k: all of the parameter's, since what it does not
 * write would stay undefined. */
static bool writes_grad(const ml_plan *p, int32_t node, int k, const ml_run *r,
                        const ml_tensor *dw) {
    const ml_node *n = &p->spec->node[node];

    return p->be->ops->writes_dw[n->op] >> k & 1 && ml_plan_grad_unwritten(p, node, k, r) &&
           dw->shape[0] == r->grads->t[n->w[k]].shape[0];
}

/* Before the backward of a node: gradients without values that it does not write are zeroed.
 * Those of gathered weights get theirs when the ranks' have been summed. */
static void zero_unwritten(ml_plan *p, int32_t node, const ml_run *r, const ml_op_args *a) {
    for (int k = 0; k < ML_OP_W; k++) {
        int32_t w = p->spec->node[node].w[k];
        ml_tensor gathered;
        if (!ml_plan_grad_unwritten(p, node, k, r) || a->dw_write[k] ||
            ml_plan_params_grad(p, node, k, &gathered))
            continue;
        if (r->grads->t[w].data)
            p->be->optim->zero(p->be->stream, r->grads->t[w].data,
                               ml_tensor_bytes(&r->grads->t[w]));
        r->unwritten[w] = false;
    }
}

/* After it: those that it wrote have values. */
static void mark_written(const ml_plan *p, int32_t node, const ml_run *r,
                         const ml_op_args *a) {
    for (int k = 0; k < ML_OP_W; k++)
        if (a->dw_write[k])
            r->unwritten[p->spec->node[node].w[k]] = false;
}

static void bind_backward(const ml_plan *p, int32_t node, const ml_run *r, ml_op_args *a) {
    const ml_node *n = &p->spec->node[node];
    const ml_plan_call *c = &p->call[node];

    bind_values(p, node, false, r, a);
    a->dout[0] = bound_grad(p, n->out[0], r->rows);
    if (n->op == ML_OP_LMHEAD)
        a->dout[1] = bound(p, n->out[1], p->dentropy_store, r->rows, p->opts.caps.n_page);
    for (int k = 0; k < ML_OP_IN; k++)
        if (c->has_din[k]) {
            a->din[k] = bound_grad(p, n->in[k], r->rows);
            a->din_add[k] = c->din_add[k];
        }
    if (r->head_grad && n->w[0] == p->whole->node[p->whole->n_node - 1].w[0])
        a->dw[0] = *r->head_grad;
    for (int k = 0; k < ML_OP_W; k++)
        if (n->w[k] != ML_NONE && r->grads && !ml_plan_params_grad(p, node, k, &a->dw[k])) {
            a->dw[k] = *ml_plan_grad(p, node, k, r);
            ml_plan_experts_view(p, node, &a->dw[k]);
            a->dw_write[k] = writes_grad(p, node, k, r, &a->dw[k]);
        }
}

/* A weight's shape without its data, for sizing.  Devices dequantize in memory; the CPU's kernels
 * do not. */
static void shape_weights(const ml_plan *p, int32_t node, ml_op_args *a) {
    const ml_node *n = &p->spec->node[node];

    for (int k = 0; k < ML_OP_W; k++)
        if (n->w[k] != ML_NONE) {
            const ml_param *of = &p->spec->param[n->w[k]];
            bool codes = of->codes != ML_F32 && !p->be->dev->host;
            a->w[k] = ml_weights_tensor(of, codes ? of->codes : ML_BF16, p->be->linear);
            ml_plan_experts_view(p, node, &a->w[k]);
        }
}

static void need_scratch(ml_plan *p, size_t bytes) {
    if (bytes > p->scratch_bytes)
        p->scratch_bytes = bytes;
}

enum {
    MOST_LINEARS = 3, /* q, k and v */
    N_HEADS = 4,      /* RoPE of q and k, and the norms before it */
    MOST_JOINT = N_HEADS + MOST_LINEARS
};

/* Does backward run the node k places below this one in its turn, after this one? */
static bool runs_after(const ml_plan *p, int32_t node, int32_t k, ml_op_id op) {
    return p->spec->node[node - k].op == op && p->call[node - k].backward_runs &&
           p->call[node - k].experts == ML_NONE &&
           p->call[node - k].unit == p->call[node].unit;
}

/* How many LINEARs with the input of this node backward runs one after the other, from this one down to node
 * `first`; 0: they run one by one. */
static int32_t n_linears(const ml_plan *p, int32_t node, int32_t first) {
    const ml_node *n = &p->spec->node[node];
    int32_t k = 0;

    if (!p->be->ops->together_back || p->opts.frozen || p->params || p->dump)
        return 0;
    while (k < MOST_LINEARS && node - k >= first && runs_after(p, node, k, ML_OP_LINEAR) &&
           n[-k].in[0] == n->in[0])
        k++;
    return k > 1 ? k : 0;
}

/* The same of a GLU and the two LINEARs whose outputs it reads. */
static int32_t n_gate(const ml_plan *p, int32_t node, int32_t first) {
    const ml_node *n = &p->spec->node[node];

    if (n->op != ML_OP_GLU || node == first || n_linears(p, node - 1, first) != 2 ||
        !runs_after(p, node, 0, ML_OP_GLU) || !runs_after(p, node, 1, ML_OP_LINEAR))
        return 0;
    return n->in[0] == n[-2].out[0] && n->in[1] == n[-1].out[0] ? 3 : 0;
}

/* The same of RoPE of k and q, and of the norms of k and q. */
static int32_t n_heads(const ml_plan *p, int32_t node, int32_t first) {
    static const ml_op_id op[N_HEADS] = { ML_OP_ROPE, ML_OP_ROPE, ML_OP_RMSNORM,
                                          ML_OP_RMSNORM };
    const ml_node *n = &p->spec->node[node];

    if (p->params || p->dump || node - (N_HEADS - 1) < first)
        return 0;
    for (int32_t k = 0; k < N_HEADS; k++)
        if (!runs_after(p, node, k, op[k]))
            return 0;
    return n[0].in[0] == n[-2].out[0] && n[-1].in[0] == n[-3].out[0] ? N_HEADS : 0;
}

/* These and the LINEARs of v, of k and of q. */
static int32_t n_qkv(const ml_plan *p, int32_t node, int32_t first) {
    const int32_t v = node - N_HEADS;
    const ml_node *n = &p->spec->node[node];

    if (!n_heads(p, node, first) || v < first ||
        !runs_after(p, node, N_HEADS, ML_OP_LINEAR) ||
        n_linears(p, v, first) != MOST_LINEARS)
        return 0;
    return n[-2].in[0] == n[-5].out[0] && n[-3].in[0] == n[-6].out[0] ? MOST_JOINT : 0;
}

/* How many LINEARs, from this one down, a backend may run as one piece of work: as FP8 products any with one input;
 * in bf16 only those after a call that can write their gradients side by side, since a copy takes as long as it
 * saves. */
static int32_t n_joined(const ml_plan *p, int32_t node) {
    const int32_t n_node = p->spec->n_node;
    bool gated = node + 1 < n_node && n_gate(p, node + 1, 0);
    bool qkv = node + N_HEADS < n_node && n_qkv(p, node + N_HEADS, 0);

    return p->opts.grad_format || gated || qkv ? n_linears(p, node, 0) : 0;
}

/* Together they need what one with all their outputs does. */
static void join_outputs(const ml_plan *p, int32_t node, ml_op_args *a) {
    for (int32_t k = 1; k < n_joined(p, node); k++)
        a->w[0].shape[0] += p->spec->param[p->spec->node[node - k].w[0]].shape[0];
}

static ml_status size_scratch(ml_plan *p, ml_err *err) {
    const ml_ops *ops = p->be->ops;
    ml_rows full = ml_plan_full_rows(p), sent = full;
    ml_status st = ML_OK;

    sent.n_token = p->experts.room;

    for (int32_t i = 0; i < p->spec->n_node; i++)
        for (int back = 0; back <= (int)p->opts.backward; back++) {
            ml_op_args a = { 0 };
            const ml_node *n = &p->spec->node[i];
            ml_run run = { .rows = p->call[i].experts == ML_NONE ? &full : &sent };
            if (n->op == ML_OP_SEND_ROWS || n->op == ML_OP_RETURN_ROWS)
                need_scratch(p, ml_plan_experts_scratch(p, i));
            if (ml_op_infos[n->op].comm)
                continue;
            bind_backward(p, i, &run, &a);
            shape_weights(p, i, &a);
            if (ops->prepare)
                st = ops->prepare(p->be->stream, n->op, &a, back != 0, err);
            if (st != ML_OK)
                return st;
            if (back)
                join_outputs(p, i, &a);
            need_scratch(p, ops->scratch(p->be->stream, n->op, &a, back != 0));
        }
    return ML_OK;
}

/* --- open and close --------------------------------------------------------- */

static ml_status check_ops(const ml_plan *p, ml_err *err) {
    for (int32_t i = 0; i < p->spec->n_node; i++) {
        ml_op_id op = p->spec->node[i].op;
        if (ml_op_infos[op].comm && (!p->opts.backward || ml_op_infos[op].grad_in))
            continue;
        if (!p->be->ops->forward[op] || (p->opts.backward && !p->be->ops->backward[op]))
            return ml_fail(err, ML_EUNSUP, "backend %s has no %s of op %s", p->be->name,
                           p->be->ops->forward[op] ? "backward" : "forward",
                           ml_op_infos[op].name);
    }
    return ML_OK;
}

/* The nodes that the plan runs. */
static void choose_nodes(ml_plan *p) {
    ml_plan_opts *o = &p->opts;

    o->n_set = o->n_set ? o->n_set : 1;
    p->spec = p->whole;
    if (o->end) {
        ml_stage_init(&p->range, &p->arena, p->whole, o->first, o->end);
        p->spec = &p->range.spec;
        ML_BUG_IF(p->range.n_in > ML_PORTS || p->range.n_out > ML_PORTS);
    }
    ml_plan_experts_place(p);
    p->head = o->end && !p->range.last ? ML_NONE : p->spec->n_node - 1;
}

ml_status ml_plan_new(ml_plan **out, const ml_spec *s, ml_backend *be, ml_plan_opts opts,
                      ml_err *err) {
    ml_plan *p = calloc(1, sizeof *p);
    const ml_comm *tp = opts.group[ML_GROUP_TP];
    ml_status st;

    if (!p)
        return ml_fail(err, ML_ENOMEM, "out of memory for a plan");
    ML_BUG_IF(opts.backward && opts.kv_shared); /* gradients need all keys in the batch */
    p->whole = s;
    p->be = be;
    p->opts = opts;
    ml_arena_init(&p->arena, "plan");
    choose_nodes(p);
    st = check_ops(p, err);
    if (st != ML_OK) {
        ml_plan_free(p);
        return st;
    }
    p->context = (ml_context_rows){ .whole = { .n_token = s->n_context * opts.caps.n_share,
                                               .n_seq = opts.caps.n_seq },
                                    .n_rank = s->n_context,
                                    .n_share = opts.caps.n_share };
    p->block_size = ML_NEW(&p->arena, int64_t, 2 * s->n_context + 1);
    if (be->ops->together)
        p->bound = ML_NEW(&p->arena, ml_op_call, p->spec->n_node);
    ML_BUG_IF(opts.only_logits && (!opts.logits || opts.backward));
    ML_BUG_IF(s->n_rank && (!opts.logits || (tp && tp->size != s->n_rank)));
    ML_BUG_IF(!s->n_rank &&
              s->node[s->n_node - 1].op != (s->critic ? ML_OP_LINEAR : ML_OP_LMHEAD));
    ml_plan_lay_out(p);
    ml_plan_params_plan(p);
    st = size_scratch(p, err);
    if (st == ML_OK)
        *out = p;
    else
        ml_plan_free(p);
    return st;
}

static void free_buf(ml_buf *b) {
    if (b->dev)
        b->dev->free(b);
}

void ml_plan_memory_free(ml_plan_memory *m) {
    free_buf(&m->act);
    free_buf(&m->scratch);
    free_buf(&m->weights);
    for (int k = 0; k < ML_GATHERS; k++)
        free_buf(&m->stage[k]);
}

void ml_plan_free(ml_plan *p) {
    if (!p)
        return;
    ml_plan_forget(p);
    if (!p->opts.memory) {
        free_buf(&p->act);
        free_buf(&p->scratch);
    }
    if (p->rows.dev)
        p->rows.dev->free(&p->rows);
    ml_plan_params_free(p);
    ml_arena_release(&p->arena);
    free(p);
}

static size_t act_bytes(const ml_plan *p) {
    return p->shared_bytes + (size_t)p->opts.n_set * p->set_bytes;
}

size_t ml_plan_act_bytes(const ml_plan *p) {
    return act_bytes(p) + ml_plan_rows_bytes(p);
}

size_t ml_plan_set_bytes(const ml_plan *p) {
    return p->set_bytes;
}

size_t ml_plan_scratch_bytes(const ml_plan *p) {
    return p->scratch_bytes;
}

ml_status ml_plan_need(ml_plan *p, ml_buf *b, size_t bytes, ml_mem_kind kind, ml_err *err) {
    ml_device *dev = p->be->dev;

    if (b->dev && b->bytes >= bytes)
        return ML_OK;
    free_buf(b);
    return dev->alloc(dev, b, bytes, kind, err);
}

/* Another plan may have grown it since. */
static void use_memory(ml_plan *p) {
    if (!p->opts.memory)
        return;
    p->act = p->opts.memory->act;
    p->scratch = p->opts.memory->scratch;
    ml_plan_params_use(p);
}

ml_status ml_plan_alloc(ml_plan *p, ml_err *err) {
    ml_plan_memory *m = p->opts.memory;
    ml_device *dev = p->be->dev;
    ml_status st = ml_plan_need(p, m ? &m->act : &p->act, act_bytes(p), ML_MEM_ACT, err);

    if (st == ML_OK && p->scratch_bytes)
        st = ml_plan_need(p, m ? &m->scratch : &p->scratch, p->scratch_bytes,
                          ML_MEM_SCRATCH, err);
    if (st == ML_OK && !dev->host) {
        p->stage = ml_arena_take(&p->arena, ml_plan_rows_bytes(p), 1);
        st = dev->alloc(dev, &p->rows, ml_plan_rows_bytes(p), ML_MEM_ACT, err);
    }
    if (st == ML_OK)
        st = ml_plan_params_alloc(p, err);
    use_memory(p);
    return st;
}

static void check_fits(const ml_plan *p, const ml_run *r) {
    const ml_batch_caps *c = &p->opts.caps;
    ML_BUG_IF(r->rows->n_token > c->n_token || r->rows->n_seq > c->n_seq);
    ML_BUG_IF(r->set < 0 || r->set >= p->opts.n_set);
    ML_BUG_IF(r->rows->n_loss > c->n_loss || p->opts.kv_shared != (r->kv != NULL));
    ML_BUG_IF((p->spec->n_context > 0) != (r->rows->context != NULL));
    ML_BUG_IF(r->rows->context && r->rows->context->n_share > c->n_share);
    ML_BUG_IF((p->spec->attn_dp > 1 && p->spec->n_rank) != (r->rows->dp != NULL));
    for (int i = 0; i < ML_N_ROUTING; i++)
        ML_BUG_IF(r->given[i] && !p->opts.given[i]);
}

/* Binds the run's KV pages and state slots. */
static void bind_kv(const ml_plan *p, const ml_node *n, const ml_kv *kv, ml_op_args *a) {
    for (int k = 0; k < ML_OP_OUT; k++)
        if (n->out[k] != ML_NONE && ml_axis_is_kept(p->spec->value[n->out[k]].axis))
            a->out[k].data = (unsigned char *)kv->buf.ptr + kv->at[n->out[k]];
}

/* Copies a node's selections to the run's routing record. */
static void report_chosen(ml_plan *p, const ml_node *n, const ml_run *r,
                          const ml_op_args *a) {
    int out;
    ml_routing_kind route = route_of(n, &out);
    const ml_dp_rows *dp = n->dp ? r->rows->dp : NULL;
    ml_tensor all;
    int32_t *to;

    if (route == ML_N_ROUTING || !r->chosen[route])
        return;
    all = ml_plan_value(p, n->out[out], r->rows, 0);
    all.data = to = r->chosen[route] + route_at(p, n, route, r->rows);
    if (dp)
        to += (int64_t)dp->start[dp->group] * all.shape[1];
    if (a->out[out].shape[0])
        p->be->dev->copy_out(p->be->stream, to, a->out[out].data,
                             ml_tensor_bytes(&a->out[out]));
    if (dp)
        ml_plan_gather_groups(p, NULL, &all, dp);
}

static void bind_forward(const ml_plan *p, int32_t node, bool first, const ml_run *r,
                         ml_op_args *a) {
    *a = (ml_op_args){ 0 };
    bind_values(p, node, first, r, a);
    if (r->kv)
        bind_kv(p, &p->spec->node[node], r->kv, a);
}

static void run_op(ml_plan *p, ml_op_id op, const ml_op_args *a) {
    if (ml_op_infos[op].comm)
        ml_plan_comm_run(p, op, a);
    else
        p->be->ops->forward[op](p->be->stream, a);
}

static int32_t number_of(const ml_plan *p, int32_t node) {
    int32_t mine = p->experts.n_rank > 1 ? p->experts.number[node] : node;

    return p->opts.end ? p->range.number[mine] : mine;
}

/* Rows of other ranks are not dumped. */
static bool dumped(const ml_plan *p, int32_t node) {
    return p->dump && p->call[node].experts == ML_NONE;
}

/* A rank without rows of its own takes part in what the others exchange. */
static bool is_empty(const ml_run *r) {
    const ml_context_rows *context = r->rows->context;
    return r->rows->n_token == 0 && (!context || context->n_share == 0);
}

/* Whether a node has rows of other context-parallel ranks. */
static bool has_context(const ml_plan *p, int32_t node) {
    const ml_node *n = &p->spec->node[node];
    bool any = false;

    for (int k = 0; k < ML_OP_IN; k++)
        any |= n->in[k] != ML_NONE && (p->spec->value[n->in[k]].axis == ML_PER_SHARE ||
                                       p->spec->value[n->in[k]].axis == ML_PER_CONTEXT);
    return any;
}

/* One that has no piece of the samples of its group computes for the pieces of the others. */
static bool is_left_out(const ml_plan *p, int32_t node, const ml_run *r) {
    if (r->rows->n_token || ml_op_infos[p->spec->node[node].op].comm)
        return false;
    if (is_empty(r))
        return true;
    return p->call[node].experts == ML_NONE && !has_context(p, node) &&
           p->spec->node[node].op != ML_OP_SPLIT_COLS;
}

/* A rank whose DP group has no rows. */
static bool is_idle(const ml_plan *p, int32_t node, const ml_run *r) {
    return p->spec->node[node].dp && r->rows->dp && r->rows->dp->rows.n_token == 0;
}

/* Computes a node, for the first time or as recomputation. */
void ml_plan_run_node(ml_plan *p, int32_t node, bool forward, const ml_run *r) {
    const ml_node *n = &p->spec->node[node];
    ml_op_args a;
    double start = ml_clock_s();

    ml_plan_params_need(p, node, r);
    if (is_left_out(p, node, r))
        return;
    bind_forward(p, node, forward, r, &a);
    upload_given(p, n, &a);
    if (!is_idle(p, node, r))
        run_op(p, n->op, &a);
    if (forward)
        report_chosen(p, n, r, &a);
    for (int k = 0; dumped(p, node) && forward && k < ML_OP_OUT; k++)
        if (n->out[k] != ML_NONE && !ml_axis_is_kept(p->spec->value[n->out[k]].axis))
            ml_plan_dump_value(p->dump, p->whole, number_of(p, node), k, false, &a.out[k]);
    p->stats.forward_s[n->op] += ml_clock_s() - start;
    p->stats.rows[n->op] += a.out[0].shape[0];
}

/* The call to which the time of n fused calls is charged: attention, else a LINEAR. */
static int32_t foremost(const ml_op_call *c, int32_t n) {
    static const ml_op_id order[] = { ML_OP_ATTN, ML_OP_LINEAR };

    for (size_t k = 0; k < sizeof order / sizeof *order; k++)
        for (int32_t i = 0; i < n; i++)
            if (c[i].op == order[k])
                return i;
    return 0;
}

/* The first node from here to `end` that does not have the same rows. */
static int32_t same_rows(const ml_plan *p, int32_t node, int32_t end) {
    int32_t i = node + 1;

    while (i < end && i < p->spec->n_node && p->spec->node[i].dp == p->spec->node[node].dp)
        i++;
    return i;
}

/* All calls are bound first, so that the backend can fuse them. */
static void run_bound(ml_plan *p, int32_t first, int32_t end, const ml_run *r,
                      bool recorded) {
    const ml_ops *ops = p->be->ops;
    int32_t took, counts_as, same;
    bool idle;

    for (int32_t i = first; i < end; i++) {
        const ml_node *node = &p->spec->node[i];
        p->bound[i].op = node->op;
        bind_forward(p, i, true, r, &p->bound[i].args);
        for (int k = 0; k < ML_OP_OUT; k++)
            p->bound[i].reader[k] =
                node->out[k] == ML_NONE ? 0 : p->last_read[node->out[k]] - i;
    }
    for (int32_t i = first; i < end; i += took) {
        const ml_op_call *c = &p->bound[i];
        double start = ml_clock_s();
        upload_given(p, &p->spec->node[i], &p->bound[i].args);
        same = same_rows(p, i, ml_plan_params_need(p, i, r));
        idle = is_idle(p, i, r);
        took = idle ? 1 : ops->together(p->be->stream, c, (same < end ? same : end) - i);
        if (took == 0) {
            run_op(p, c->op, &c->args);
            took = 1;
        }
        counts_as = foremost(c, took);
        p->stats.forward_s[c[counts_as].op] += ml_clock_s() - start;
        for (int32_t k = 0; k < took; k++) {
            report_chosen(p, &p->spec->node[i + k], r, &c[k].args);
            p->stats.rows[c[k].op] += c[k].args.out[0].shape[0];
        }
        if (!recorded)
            ml_plan_spans_node(p, i + counts_as, ML_PASS_FORWARD);
    }
}

static void run_span(ml_plan *p, int32_t first, int32_t end, const ml_run *r,
                     bool recorded) {
    if (p->bound && !p->dump && r->rows->n_token) {
        run_bound(p, first, end, r, recorded);
        return;
    }
    for (int32_t i = first; i < end; i++) {
        ml_plan_run_node(p, i, true, r);
        if (!recorded)
            ml_plan_spans_node(p, i, ML_PASS_FORWARD);
    }
}

static void run_nodes(ml_plan *p, const ml_run *r, bool recorded) {
    int32_t first = 0;

    for (int32_t k = 0; k < p->experts.n; k++) {
        run_span(p, first, p->experts.layer[k].send, r, recorded);
        ml_plan_experts_forward(p, k, r);
        first = p->experts.layer[k].back + 1;
    }
    run_span(p, first, p->spec->n_node, r, recorded);
}

/* The second run of a kind is captured, later ones are replayed. */
static void run_or_replay(ml_plan *p, const ml_run *r) {
    const ml_replay *replay = p->be->replay;
    ml_plan_recording *rec = p->dump ? NULL : ml_plan_recording_of(p, r);

    if (rec && !rec->work && replay->begin(p->be->stream)) {
        run_nodes(p, r, true);
        rec->work = replay->end(p->be->stream);
    }
    if (rec && rec->work) {
        replay->run(p->be->stream, rec->work);
        ml_plan_spans_replay(p);
    } else {
        run_nodes(p, r, false);
    }
}

void ml_plan_dump_to(ml_plan *p, ml_plan_dump *d) {
    p->dump = d;
}

/* Forbids allocations during the run, unless it is dumped. */
static void begin_run(ml_plan *p, const ml_run *r) {
    check_fits(p, r);
    use_memory(p);
    p->set = r->set;
    if (p->dump)
        ml_plan_dump_begin(p->dump, r->rows, p->be);
    else
        ml_mem_seal();
    ml_plan_spans_begin(p);
}

static void end_run(ml_plan *p) {
    ml_plan_spans_end(p);
    if (p->dump)
        ml_plan_dump_end(p->dump);
    else
        ml_mem_unseal();
}

void ml_plan_forward(ml_plan *p, const ml_run *r) {
    ml_rows rows;
    ml_sent_rows sent;
    ml_run run = *r;

    begin_run(p, r);
    rows = is_empty(r) ? *r->rows : ml_plan_send_rows(p, r, &sent);
    run.rows = &rows;
    ml_plan_params_forget(p);
    run_or_replay(p, &run);
    end_run(p);
}

void ml_plan_back_node(ml_plan *p, int32_t node, const ml_run *r, bool dentropy) {
    ml_op_id op = p->spec->node[node].op;
    ml_op_args a = { 0 };
    double start = ml_clock_s();

    if (!p->call[node].backward_runs)
        return;
    ml_plan_params_need(p, node, r);
    if (is_left_out(p, node, r))
        return;
    bind_backward(p, node, r, &a);
    zero_unwritten(p, node, r, &a);
    if (node == p->head && !dentropy)
        a.dout[1] = (ml_tensor){ 0 };
    if (ml_op_infos[op].comm)
        ml_plan_comm_back(p, op, &a);
    else
        p->be->ops->backward[op](p->be->stream, &a);
    mark_written(p, node, r, &a);
    for (int k = 0; dumped(p, node) && k < ML_OP_IN; k++)
        ml_plan_dump_value(p->dump, p->whole, number_of(p, node), k, true, &a.din[k]);
    p->stats.backward_s[op] += ml_clock_s() - start;
    ml_plan_spans_node(p, node, ML_PASS_BACKWARD);
}

/* How many calls, from this one down, are offered to the backend. */
static int32_t n_offered(const ml_plan *p, int32_t node, int32_t first) {
    const int32_t gate = n_gate(p, node, first), heads = n_heads(p, node, first);

    if (gate)
        return gate;
    if (heads)
        return n_qkv(p, node, first) ? MOST_JOINT : heads;
    return p->opts.grad_format ? n_linears(p, node, first) : 0;
}

/* Returns how many nodes it ran, from this one down. */
static int32_t back_joint(ml_plan *p, int32_t node, int32_t first, const ml_run *r) {
    ml_op_call call[MOST_JOINT] = { 0 };
    const int32_t n = n_offered(p, node, first);
    int32_t took;
    double start = ml_clock_s();

    if (n == 0 || !p->be->ops->together_back || is_left_out(p, node, r))
        return 0;
    for (int32_t k = 0; k < n; k++) {
        call[k].op = p->spec->node[node - k].op;
        bind_backward(p, node - k, r, &call[k].args);
        zero_unwritten(p, node - k, r, &call[k].args);
    }
    took = p->be->ops->together_back(p->be->stream, call, n);
    if (took == 0 && n == MOST_JOINT)
        took = p->be->ops->together_back(p->be->stream, call, N_HEADS);
    if (took == 0)
        return 0;
    for (int32_t k = 0; k < took; k++)
        mark_written(p, node - k, r, &call[k].args);
    node -= foremost(call, took);
    p->stats.backward_s[p->spec->node[node].op] += ml_clock_s() - start;
    ml_plan_spans_node(p, node, ML_PASS_BACKWARD);
    return took;
}

static void back_unit(ml_plan *p, const ml_plan_unit *u, const ml_run *r, bool dentropy) {
    for (int32_t i = u->first; i < u->end; i++)
        if (p->call[i].rerun && p->call[i].experts != ML_NONE) {
            ml_plan_experts_again(p, i, r);
        } else if (p->call[i].rerun) {
            ml_plan_run_node(p, i, false, r);
            ml_plan_spans_node(p, i, ML_PASS_AGAIN);
        }
    for (int32_t i = u->end - 1; i >= u->first; i--) {
        int32_t layer = p->call[i].experts, took = back_joint(p, i, u->first, r);
        if (took) {
            i -= took - 1;
            continue;
        }
        ml_plan_params_back(p, i);
        if (layer == ML_NONE)
            ml_plan_back_node(p, i, r, dentropy);
        else if (i == p->experts.layer[layer].back)
            ml_plan_experts_backward(p, layer, r);
        ml_plan_params_backed(p, i, r);
    }
}

static void send_derivatives(ml_plan *p, const ml_run *r, const float *dlogprob,
                             const float *dentropy) {
    const ml_node *head = &p->spec->node[p->head];
    ml_tensor out = ml_plan_value(p, head->out[0], r->rows, 0);
    size_t bytes = ml_tensor_bytes(&out);
    ml_device *dev = p->be->dev;

    dev->copy_in(p->be->stream, ml_plan_at(p, p->grad_store[head->out[0]]), dlogprob,
                 bytes);
    if (dentropy)
        dev->copy_in(p->be->stream, ml_plan_at(p, p->dentropy_store), dentropy, bytes);
}

void ml_plan_backward(ml_plan *p, const ml_run *r, const float *dlogprob,
                      const float *dentropy) {
    ml_rows rows;
    ml_sent_rows sent;
    ml_run run = *r;

    ML_BUG_IF(!p->opts.backward || p->opts.frozen != !r->grads);
    begin_run(p, r);
    rows = is_empty(r) ? *r->rows : ml_plan_send_rows(p, r, &sent);
    run.rows = &rows;
    if (p->head != ML_NONE)
        send_derivatives(p, r, dlogprob, dentropy);
    for (int32_t u = p->n_unit - 1; u >= 0; u--)
        back_unit(p, &p->unit[u], &run, dentropy != NULL);
    end_run(p);
}

int32_t ml_plan_port(const ml_plan *p, ml_port_kind kind, const ml_rows *rows, int32_t set,
                     ml_tensor *t) {
    bool in = kind == ML_PORT_IN || kind == ML_PORT_DIN;
    bool grad = kind == ML_PORT_DIN || kind == ML_PORT_DOUT;
    const ml_port *port = in ? p->range.in : p->range.out;
    int32_t n = in ? p->range.n_in : p->range.n_out, n_tensor = 0;

    for (int32_t i = 0; i < n; i++) {
        int32_t v = port[i].value;
        int32_t store = grad ? p->grad_store[v] : p->value_store[ML_FIRST_COPY][v];
        if (grad && !port[i].grad)
            continue;
        t[n_tensor] = grad ? ml_plan_grad_value(p, v, rows) : ml_plan_value(p, v, rows, 0);
        t[n_tensor++].data = in_set(p, store, set);
    }
    return n_tensor;
}

bool ml_plan_has_head(const ml_plan *p) {
    return p->head != ML_NONE;
}

/* --- calls without a run ------------------------------------------------------- */

static void tell_call(const ml_plan *p, int32_t node, ml_plan_pass pass,
                      ml_plan_call_fn *fn, void *ud) {
    ml_rows full = ml_plan_full_rows(p);
    ml_run run = { .rows = &full };
    ml_op_args a = { 0 };

    if (pass == ML_PASS_BACKWARD)
        bind_backward(p, node, &run, &a);
    else
        bind_values(p, node, pass == ML_PASS_FORWARD, &run, &a);
    shape_weights(p, node, &a);
    fn(ud, &p->spec->node[node], pass, &a);
}

void ml_plan_each_call(const ml_plan *p, ml_plan_call_fn *fn, void *ud) {
    for (int32_t i = 0; i < p->spec->n_node; i++)
        tell_call(p, i, ML_PASS_FORWARD, fn, ud);
    for (int32_t u = p->n_unit - 1; p->opts.backward && u >= 0; u--) {
        for (int32_t i = p->unit[u].first; i < p->unit[u].end; i++)
            if (p->call[i].rerun)
                tell_call(p, i, ML_PASS_AGAIN, fn, ud);
        for (int32_t i = p->unit[u].end - 1; i >= p->unit[u].first; i--)
            if (p->call[i].backward_runs)
                tell_call(p, i, ML_PASS_BACKWARD, fn, ud);
    }
}

void ml_plan_read(ml_plan *p, const ml_rows *rows, float *logprob, float *entropy,
                  float *logits) {
    const ml_node *head = &p->spec->node[p->head];
    float *to[] = { logprob, entropy, NULL, logits };

    ML_BUG_IF(p->spec->n_rank); /* the log-probs of a part of the vocabulary */
    ML_BUG_IF(p->head == ML_NONE || p->opts.only_logits);
    for (int k = 0; k < ML_OP_OUT; k++) {
        ml_tensor t;
        if (!to[k])
            continue;
        t = ml_plan_value(p, head->out[k], rows, 0);
        p->be->dev->copy_out(p->be->stream, to[k],
                             ml_plan_at(p, p->value_store[ML_FIRST_COPY][head->out[k]]),
                             ml_tensor_bytes(&t));
    }
}

const float *ml_plan_logits(const ml_plan *p) {
    const ml_node *last = &p->spec->node[p->head];

    ML_BUG_IF(!p->opts.logits);
    return ml_plan_at(
        p, p->value_store[ML_FIRST_COPY][last->out[last->op == ML_OP_LMHEAD ? 3 : 0]]);
}

static ml_tensor kept_rows(const ml_plan *p, const ml_rows *rows, int32_t value) {
    ml_tensor t = ml_plan_value(p, value, rows, 0);

    t.data = ml_plan_at(p, p->value_store[ML_FIRST_COPY][value]);
    return t;
}

ml_tensor ml_plan_hidden(const ml_plan *p, const ml_rows *rows) {
    ML_BUG_IF(!p->opts.hidden);
    return kept_rows(p, rows, p->spec->node[p->head].in[0]);
}

ml_tensor ml_plan_kept(const ml_plan *p, const ml_rows *rows, int32_t value) {
    int32_t i = 0;

    while (i < p->opts.n_keep && p->opts.keep[i] != value)
        i++;
    ML_BUG_IF(i == p->opts.n_keep);
    return kept_rows(p, rows, value);
}

const ml_plan_stats *ml_plan_stats_of(const ml_plan *p) {
    return &p->stats;
}
