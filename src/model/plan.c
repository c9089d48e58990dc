#include "model/plan.h"

#include <stdlib.h>
#include <string.h>

#include "base/bug.h"
#include "base/clock.h"

/* Time runs over calls: forward of node i at i, its backward at 2 * n_node - 1 - i. */
typedef struct storage {
    size_t bytes, offset;
    int32_t first, last; /* calls during which it must be whole */
} storage;

typedef struct call {
    bool backward_runs; /* some gradient reaches this node */
    bool din_add[ML_OP_IN];
    bool has_din[ML_OP_IN];
} call;

struct ml_plan {
    const ml_spec *spec;
    ml_backend *be;
    ml_plan_opts opts;
    storage *store;
    int32_t n_store;
    int32_t *value_store, *grad_store; /* [n_value] index into store, or ML_NONE */
    int32_t dentropy_store;
    call *call;   /* [n_node] */
    int32_t head; /* the LMHEAD node */
    ml_plan_stats stats;
    size_t act_bytes, scratch_bytes;
    ml_buf act, scratch;
    ml_arena arena;
};

static int32_t end_of_time(const ml_plan *p) {
    return 2 * p->spec->n_node;
}

static int32_t backward_time(const ml_plan *p, int32_t node) {
    return 2 * p->spec->n_node - 1 - node;
}

/* --- shapes ----------------------------------------------------------------- */

static ml_tensor value_tensor(const ml_spec *s, int32_t value, const ml_rows *r,
                              int32_t n_page) {
    const ml_value *v = &s->value[value];
    ml_tensor t = { .dtype = v->dtype, .n_dim = 2, .shape = { 0, v->width } };
    switch (v->axis) {
    case ML_PER_TOKEN: t.shape[0] = (int64_t)v->mul * r->n_token; break;
    case ML_PER_LOSS: t.shape[0] = r->n_loss; break;
    case ML_PER_PAGE: t.shape[0] = n_page; break;
    case ML_GROUP:
        t.n_dim = 1;
        t.shape[0] = v->width + (int64_t)v->mul * r->n_token;
        break;
    }
    return t;
}

/* A batch of the plan's capacity, to size things by. */
static ml_rows full_rows(const ml_plan *p) {
    return (ml_rows){ .n_token = p->opts.caps.n_token,
                      .n_seq = p->opts.caps.n_seq,
                      .n_loss = p->opts.caps.n_loss,
                      .temperature = 1 };
}

static size_t value_bytes(const ml_plan *p, int32_t value) {
    ml_rows full = full_rows(p);
    ml_tensor t = value_tensor(p->spec, value, &full, p->opts.caps.n_page);
    return (ml_tensor_bytes(&t) + 63) & ~(size_t)63;
}

/* --- lifetimes -------------------------------------------------------------- */

static int32_t new_store(ml_plan *p, size_t bytes, int32_t first) {
    p->store[p->n_store] = (storage){ .bytes = bytes, .first = first, .last = first };
    return p->n_store++;
}

static void live_until(ml_plan *p, int32_t store, int32_t time) {
    if (p->store[store].last < time)
        p->store[store].last = time;
}

static bool wanted(const ml_plan *p, const ml_node *n, int out) {
    if (n->op == ML_OP_LMHEAD && out == 3)
        return p->opts.logits;
    if (n->op == ML_OP_ATTN && out >= 2)
        return !p->opts.kv_shared;
    return n->out[out] != ML_NONE;
}

/* The last call that reads each value. */
static void find_last_reads(const ml_plan *p, int32_t *last) {
    const ml_spec *s = p->spec;
    for (int32_t i = 0; i < s->n_node; i++) {
        const ml_node *n = &s->node[i];
        const ml_op_info *info = &ml_op_infos[n->op];
        int32_t back = backward_time(p, i);
        for (int k = 0; k < ML_OP_IN; k++)
            if (n->in[k] != ML_NONE) {
                int32_t t = p->opts.backward && (info->save_in >> k & 1) ? back : i;
                last[n->in[k]] = t > last[n->in[k]] ? t : last[n->in[k]];
            }
        for (int k = 0; k < ML_OP_OUT; k++)
            if (n->out[k] != ML_NONE) {
                int32_t v = n->out[k];
                last[v] = p->opts.backward && (info->save_out >> k & 1) ? back : i;
                if (n->op == ML_OP_LMHEAD)
                    last[v] = end_of_time(p); /* read by ml_plan_read */
            }
    }
}

/* The input whose memory out[0] may take over: it dies here and has the same size. */
static int32_t reusable_input(const ml_plan *p, int32_t node, const int32_t *last) {
    const ml_node *n = &p->spec->node[node];
    for (int k = 0; k < ML_OP_IN; k++) {
        int32_t v = n->in[k];
        if (v != ML_NONE && (ml_op_infos[n->op].in_place >> k & 1) && last[v] == node &&
            value_bytes(p, v) == value_bytes(p, n->out[0]))
            return v;
    }
    return ML_NONE;
}

static void plan_forward_stores(ml_plan *p, const int32_t *last) {
    const ml_spec *s = p->spec;
    for (int32_t i = 0; i < s->n_node; i++) {
        const ml_node *n = &s->node[i];
        int32_t reused = reusable_input(p, i, last);
        for (int k = 0; k < ML_OP_OUT; k++) {
            int32_t v = n->out[k];
            if (!wanted(p, n, k))
                continue;
            p->value_store[v] = k == 0 && reused != ML_NONE
                                    ? p->value_store[reused]
                                    : new_store(p, value_bytes(p, v), i);
            live_until(p, p->value_store[v], last[v]);
        }
    }
}

/* y = a + b passes its gradient on unchanged, so both inputs may share dy's memory, if this is
 * the first gradient either gets and nobody adds to a's before b's has been read.  Backward
 * runs from the last node to the first: a's other readers must stand before b's producer. */
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

static void plan_backward_node(ml_plan *p, int32_t node, const bool *needs_grad) {
    const ml_node *n = &p->spec->node[node];
    call *c = &p->call[node];
    int32_t time = backward_time(p, node), dout = p->grad_store[n->out[0]];

    if (dout == ML_NONE)
        return;
    live_until(p, dout, time);
    if (n->op == ML_OP_ADD && add_can_alias(p, node)) {
        p->grad_store[n->in[0]] = p->grad_store[n->in[1]] = dout;
        return;
    }
    c->backward_runs = n->op != ML_OP_ROPE_TABLE;
    for (int k = 0; k < ML_OP_IN; k++) {
        int32_t v = n->in[k];
        if (v == ML_NONE || !(ml_op_infos[n->op].grad_in >> k & 1) || !needs_grad[v])
            continue;
        c->has_din[k] = true;
        c->din_add[k] = p->grad_store[v] != ML_NONE;
        if (!c->din_add[k])
            p->grad_store[v] = new_store(p, value_bytes(p, v), time);
        live_until(p, p->grad_store[v], time);
    }
}

static void plan_backward_stores(ml_plan *p) {
    const ml_spec *s = p->spec;
    const ml_node *head = &s->node[p->head];
    bool *needs_grad = ML_NEW(&p->arena, bool, s->n_value);

    for (int32_t i = 0; i < s->n_node; i++) {
        const ml_node *n = &s->node[i];
        bool any = n->w[0] != ML_NONE;
        for (int k = 0; k < ML_OP_IN; k++)
            if (n->in[k] != ML_NONE && (ml_op_infos[n->op].grad_in >> k & 1))
                any = any || needs_grad[n->in[k]];
        needs_grad[n->out[0]] = any;
    }
    p->grad_store[head->out[0]] = new_store(p, value_bytes(p, head->out[0]), p->head);
    p->dentropy_store = new_store(p, value_bytes(p, head->out[1]), p->head);
    live_until(p, p->dentropy_store, backward_time(p, p->head));
    for (int32_t i = s->n_node - 1; i >= 0; i--)
        plan_backward_node(p, i, needs_grad);
}

/* --- placement -------------------------------------------------------------- */

static int by_size(const void *a, const void *b, void *stores) {
    const storage *s = stores, *x = &s[*(const int32_t *)a], *y = &s[*(const int32_t *)b];
    if (x->bytes != y->bytes)
        return x->bytes < y->bytes ? 1 : -1;
    return *(const int32_t *)a - *(const int32_t *)b;
}

static int by_offset(const void *a, const void *b, void *stores) {
    const storage *s = stores, *x = &s[*(const int32_t *)a], *y = &s[*(const int32_t *)b];
    if (x->offset != y->offset)
        return x->offset > y->offset ? 1 : -1;
    return *(const int32_t *)a - *(const int32_t *)b;
}

/* Largest first, each at the lowest gap that no storage alive at the same time covers. */
static void place_stores(ml_plan *p) {
    int32_t *order = ML_NEW(&p->arena, int32_t, p->n_store);
    int32_t *near = ML_NEW(&p->arena, int32_t, p->n_store);

    for (int32_t i = 0; i < p->n_store; i++)
        order[i] = i;
    qsort_r(order, (size_t)p->n_store, sizeof *order, by_size, p->store);
    for (int32_t i = 0; i < p->n_store; i++) {
        storage *s = &p->store[order[i]];
        int32_t n = 0;
        for (int32_t j = 0; j < i; j++) {
            const storage *o = &p->store[order[j]];
            if (o->first <= s->last && s->first <= o->last)
                near[n++] = order[j];
        }
        qsort_r(near, (size_t)n, sizeof *near, by_offset, p->store);
        for (int32_t j = 0; j < n; j++) {
            const storage *o = &p->store[near[j]];
            if (s->offset + s->bytes <= o->offset)
                break;
            if (o->offset + o->bytes > s->offset)
                s->offset = o->offset + o->bytes;
        }
        if (s->offset + s->bytes > p->act_bytes)
            p->act_bytes = s->offset + s->bytes;
    }
}

/* --- calls ------------------------------------------------------------------ */

static void *at(const ml_plan *p, int32_t store) {
    return p->act.ptr ? (unsigned char *)p->act.ptr + p->store[store].offset : NULL;
}

static ml_tensor bound(const ml_plan *p, int32_t value, int32_t store, const ml_rows *r,
                       int32_t n_page) {
    ml_tensor t = value_tensor(p->spec, value, r, n_page);
    t.data = store == ML_NONE ? NULL : at(p, store);
    return t;
}

static void bind_forward(const ml_plan *p, const ml_node *n, const ml_run *r,
                         ml_op_args *a) {
    int32_t n_page = r->kv ? r->kv->n_page : p->opts.caps.n_page;

    for (int k = 0; k < ML_OP_IN; k++)
        if (n->in[k] != ML_NONE)
            a->in[k] = bound(p, n->in[k], p->value_store[n->in[k]], r->rows, n_page);
    for (int k = 0; k < ML_OP_OUT; k++)
        if (n->out[k] != ML_NONE)
            a->out[k] = bound(p, n->out[k], p->value_store[n->out[k]], r->rows, n_page);
    for (int k = 0; k < ML_OP_W; k++)
        if (n->w[k] != ML_NONE && r->weights)
            a->w[k] = r->weights->t[n->w[k]];
    a->attr = &n->attr;
    a->rows = r->rows;
    a->scratch = p->scratch.ptr;
}

static void bind_backward(const ml_plan *p, int32_t node, const ml_run *r, ml_op_args *a) {
    const ml_node *n = &p->spec->node[node];
    const call *c = &p->call[node];

    bind_forward(p, n, r, a);
    a->dout[0] =
        bound(p, n->out[0], p->grad_store[n->out[0]], r->rows, p->opts.caps.n_page);
    if (node == p->head)
        a->dout[1] = bound(p, n->out[1], p->dentropy_store, r->rows, p->opts.caps.n_page);
    for (int k = 0; k < ML_OP_IN; k++)
        if (c->has_din[k]) {
            a->din[k] =
                bound(p, n->in[k], p->grad_store[n->in[k]], r->rows, p->opts.caps.n_page);
            a->din_add[k] = c->din_add[k];
        }
    for (int k = 0; k < ML_OP_W; k++)
        if (n->w[k] != ML_NONE && r->grads)
            a->dw[k] = r->grads->t[n->w[k]];
}

/* A weight's shape without its data, for sizing. */
static void shape_weights(const ml_spec *s, const ml_node *n, ml_op_args *a) {
    for (int k = 0; k < ML_OP_W; k++) {
        const ml_param *q = n->w[k] == ML_NONE ? NULL : &s->param[n->w[k]];
        if (!q)
            continue;
        a->w[k] = (ml_tensor){ .dtype = ML_BF16,
                               .layout = q->layout,
                               .n_dim = q->n_dim,
                               .shape = { q->shape[0], q->shape[1] } };
        if (q->name_after)
            a->w[k] = (ml_tensor){ .dtype = ML_BF16,
                                   .layout = q->layout,
                                   .n_dim = 3,
                                   .shape = { q->n_stack, q->shape[0], q->shape[1] } };
    }
}

static void size_scratch(ml_plan *p) {
    ml_rows full = full_rows(p);
    ml_run run = { .rows = &full };

    for (int32_t i = 0; i < p->spec->n_node; i++)
        for (int back = 0; back <= (int)p->opts.backward; back++) {
            ml_op_args a = { 0 };
            const ml_node *n = &p->spec->node[i];
            size_t bytes;
            bind_backward(p, i, &run, &a);
            shape_weights(p->spec, n, &a);
            bytes = p->be->ops->scratch(p->be->stream, n->op, &a, back != 0);
            if (bytes > p->scratch_bytes)
                p->scratch_bytes = bytes;
        }
}

/* --- life ------------------------------------------------------------------- */

static ml_status check_ops(const ml_plan *p, ml_err *err) {
    for (int32_t i = 0; i < p->spec->n_node; i++) {
        ml_op_id op = p->spec->node[i].op;
        if (!p->be->ops->forward[op] || (p->opts.backward && !p->be->ops->backward[op]))
            return ml_fail(err, ML_EUNSUP, "backend %s has no %s of op %s", p->be->name,
                           p->be->ops->forward[op] ? "backward" : "forward",
                           ml_op_infos[op].name);
    }
    return ML_OK;
}

ml_status ml_plan_new(ml_plan **out, const ml_spec *s, ml_backend *be, ml_plan_opts opts,
                      ml_err *err) {
    ml_plan *p = calloc(1, sizeof *p);
    int32_t *last;
    ml_status st;

    if (!p)
        return ml_fail(err, ML_ENOMEM, "no memory for a plan");
    ML_BUG_IF(opts.backward && opts.kv_shared); /* gradients need all keys in the batch */
    p->spec = s;
    p->be = be;
    p->opts = opts;
    ml_arena_init(&p->arena, "plan");
    st = check_ops(p, err);
    if (st != ML_OK) {
        ml_plan_free(p);
        return st;
    }
    p->head = s->n_node - 1;
    ML_BUG_IF(s->node[p->head].op != ML_OP_LMHEAD);
    p->call = ML_NEW(&p->arena, call, s->n_node);
    p->store = ML_NEW(&p->arena, storage, 2 * (size_t)s->n_value + 1);
    p->value_store = ML_NEW(&p->arena, int32_t, s->n_value);
    p->grad_store = ML_NEW(&p->arena, int32_t, s->n_value);
    last = ML_NEW(&p->arena, int32_t, s->n_value);
    for (int32_t i = 0; i < s->n_value; i++)
        p->value_store[i] = p->grad_store[i] = ML_NONE;
    p->dentropy_store = ML_NONE;
    find_last_reads(p, last);
    plan_forward_stores(p, last);
    if (opts.backward)
        plan_backward_stores(p);
    place_stores(p);
    size_scratch(p);
    *out = p;
    return ML_OK;
}

void ml_plan_free(ml_plan *p) {
    if (!p)
        return;
    if (p->act.dev)
        p->act.dev->free(&p->act);
    if (p->scratch.dev)
        p->scratch.dev->free(&p->scratch);
    ml_arena_release(&p->arena);
    free(p);
}

size_t ml_plan_act_bytes(const ml_plan *p) {
    return p->act_bytes;
}

size_t ml_plan_scratch_bytes(const ml_plan *p) {
    return p->scratch_bytes;
}

ml_status ml_plan_alloc(ml_plan *p, ml_err *err) {
    ml_device *dev = p->be->dev;
    ml_status st = dev->alloc(dev, &p->act, p->act_bytes, ML_MEM_ACT, err);
    if (st == ML_OK && p->scratch_bytes)
        st = dev->alloc(dev, &p->scratch, p->scratch_bytes, ML_MEM_SCRATCH, err);
    return st;
}

static void check_fits(const ml_plan *p, const ml_run *r) {
    const ml_batch_caps *c = &p->opts.caps;
    ML_BUG_IF(r->rows->n_token > c->n_token || r->rows->n_seq > c->n_seq);
    ML_BUG_IF(r->rows->n_loss > c->n_loss || p->opts.kv_shared != (r->kv != NULL));
}

void ml_plan_forward(ml_plan *p, const ml_run *r) {
    const ml_spec *s = p->spec;
    int32_t attn = 0;
    double start;

    check_fits(p, r);
    ml_mem_seal();
    for (int32_t i = 0; i < s->n_node; i++) {
        const ml_node *n = &s->node[i];
        ml_op_args a = { 0 };
        bind_forward(p, n, r, &a);
        if (n->op == ML_OP_ATTN && r->kv) {
            a.out[2].data = (unsigned char *)r->kv->buf.ptr + r->kv->k_at[attn];
            a.out[3].data = (unsigned char *)r->kv->buf.ptr + r->kv->v_at[attn++];
        }
        start = ml_clock_s();
        p->be->ops->forward[n->op](p->be->stream, &a);
        p->stats.forward_s[n->op] += ml_clock_s() - start;
        p->stats.rows[n->op] += a.out[0].shape[0];
    }
    ml_mem_unseal();
}

void ml_plan_backward(ml_plan *p, const ml_run *r, const float *dlogprob,
                      const float *dentropy) {
    const ml_node *head = &p->spec->node[p->head];
    size_t bytes = (size_t)r->rows->n_loss * sizeof(float);
    ml_device *dev = p->be->dev;
    ml_op_id op;
    double start;

    check_fits(p, r);
    ML_BUG_IF(!p->opts.backward || !r->grads);
    ml_mem_seal();
    dev->copy_in(p->be->stream, at(p, p->grad_store[head->out[0]]), dlogprob, bytes);
    if (dentropy)
        dev->copy_in(p->be->stream, at(p, p->dentropy_store), dentropy, bytes);
    for (int32_t i = p->head; i >= 0; i--) {
        ml_op_args a = { 0 };
        if (!p->call[i].backward_runs)
            continue;
        bind_backward(p, i, r, &a);
        if (i == p->head && !dentropy)
            a.dout[1] = (ml_tensor){ 0 };
        op = p->spec->node[i].op;
        start = ml_clock_s();
        p->be->ops->backward[op](p->be->stream, &a);
        p->stats.backward_s[op] += ml_clock_s() - start;
    }
    ml_mem_unseal();
}

void ml_plan_read(ml_plan *p, const ml_rows *rows, float *logprob, float *entropy,
                  float *logits) {
    const ml_node *head = &p->spec->node[p->head];
    float *to[] = { logprob, entropy, NULL, logits };

    for (int k = 0; k < ML_OP_OUT; k++) {
        ml_tensor t = value_tensor(p->spec, head->out[k], rows, 0);
        if (to[k])
            p->be->dev->copy_out(p->be->stream, to[k], at(p, p->value_store[head->out[k]]),
                                 ml_tensor_bytes(&t));
    }
}

const float *ml_plan_logits(const ml_plan *p) {
    ML_BUG_IF(!p->opts.logits);
    return at(p, p->value_store[p->spec->node[p->head].out[3]]);
}

const ml_plan_stats *ml_plan_stats_of(const ml_plan *p) {
    return &p->stats;
}
