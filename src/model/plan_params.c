/* plan_params.c - weights that ranks divide.
 *
 * The nodes of a plan are cut into units: a layer, what stands before the first one (the
 * embedding), what stands after the last one (norm and LM head).  A unit's weights are
 * gathered into one buffer before its first op runs, in forward and again in backward.
 * Gradients of the whole weights of a unit are a second buffer, zeroed before its backward;
 * afterwards the ranks' are summed (ML_REDUCE_TREE), and each rank adds its part of the sum
 * to its gradients; frozen weights have none.  Weights of experts have ranks of their own that divide them. */
#include "base/bug.h"
#include "model/plan_priv.h"
#include "model/ranks.h"

/* Groups of ranks that divide weights: dense ones, those of experts. */
enum { DENSE, EXPERTS, KINDS = ML_GATHERS };
static const ml_mesh_group groups[KINDS] = { ML_GROUP_GATHER, ML_GROUP_EXPERT_GATHER };

typedef struct unit_param {
    int32_t param, node, k; /* weight k of the first node that has it */
    size_t weight, grad;    /* offsets in the buffers */
    int kind;
    int32_t row; /* among those of its kind: of the spans */
} unit_param;

typedef struct unit {
    int32_t first, end, layer; /* nodes */
    unit_param *param;
    int32_t n, n_of[KINDS];
    size_t weight_bytes, grad_bytes;
    ml_rank_spans weights[KINDS], grads[KINDS]; /* of all ranks, in the buffers */
} unit;

struct ml_plan_params {
    unit *unit;
    int32_t n_unit;
    int32_t *of_node;
    int32_t now; /* the unit in the buffer, or ML_NONE */
    size_t weight_bytes, grad_bytes, stage_bytes[KINDS];
    ml_buf weights, grads; /* weights: or those that plans have in turns */
    ml_ranks ranks[KINDS];
};

static size_t align64(size_t n) {
    return (n + 63) & ~(size_t)63;
}

/* --- units ------------------------------------------------------------------ */

/* What the ranks gather of a parameter. */
static ml_tensor whole_of(const ml_plan *p, int32_t param, ml_dtype dtype) {
    return ml_weights_part(&p->spec->param[param], dtype, p->be->linear,
                           ml_shard_gathered(p->opts.map, param, p->opts.rank));
}

static ml_tensor whole_weight(const ml_plan *p, int32_t param) {
    return whole_of(p, param, p->opts.stored[param]);
}

static ml_tensor whole_grad(const ml_plan *p, int32_t param) {
    return whole_of(p, param, ML_F32);
}

static int32_t group_size(const ml_plan *p, int kind) {
    const ml_mesh_sizes *m = &p->opts.map->mesh;
    return kind == DENSE ? m->gather : m->etp;
}

/* Nodes between two layers belong to the one before, those after the last layer to none. */
static void find_units(ml_plan *p, ml_plan_params *x) {
    const ml_spec *s = p->spec;
    int32_t last = s->n_node;

    while (last > 0 && s->node[last - 1].layer == ML_NONE)
        last--;
    x->unit = ML_NEW(&p->arena, unit, s->n_node);
    x->of_node = ML_NEW(&p->arena, int32_t, s->n_node);
    for (int32_t i = 0; i < s->n_node; i++) {
        int32_t layer = s->node[i].layer;
        unit *u = x->n_unit ? &x->unit[x->n_unit - 1] : NULL;
        bool inside = layer == ML_NONE ? i != last : u && layer == u->layer;
        if (!u || !inside || p->call[i].unit != p->call[i - 1].unit) {
            u = &x->unit[x->n_unit++];
            *u = (unit){ .first = i, .layer = layer };
        }
        u->end = i + 1;
        x->of_node[i] = x->n_unit - 1;
    }
}

static bool has_param(const unit *u, int32_t param) {
    for (int32_t i = 0; i < u->n; i++)
        if (u->param[i].param == param)
            return true;
    return false;
}

static void find_params(ml_plan *p, unit *u) {
    u->param = ML_NEW(&p->arena, unit_param, ML_OP_W * (u->end - u->first));
    for (int32_t i = u->first; i < u->end; i++)
        for (int k = 0; k < ML_OP_W; k++) {
            int32_t w = p->spec->node[i].w[k];
            ml_tensor t, g;
            int kind;
            if (w == ML_NONE || !ml_shard_is_gathered(p->opts.map, w) || has_param(u, w))
                continue;
            kind = ml_shard_gather_group(p->opts.map, w) == groups[DENSE] ? DENSE : EXPERTS;
            u->param[u->n++] = (unit_param){
                w, i, k, u->weight_bytes, u->grad_bytes, kind, u->n_of[kind]++
            };
            t = whole_weight(p, w);
            g = whole_grad(p, w);
            u->weight_bytes += align64(ml_tensor_bytes(&t));
            u->grad_bytes += align64(ml_tensor_bytes(&g));
        }
}

/* The ranges of a group's ranks in a unit's buffer; data is NULL while planning. */
static ml_rank_spans spans_of(const ml_plan *p, const unit *u, int kind, bool grads,
                              void *data, ml_arena *a) {
    const ml_shard_map *m = p->opts.map;
    int32_t n = group_size(p, kind), *member = ML_NEW(a, int32_t, m->n_rank);
    ml_rank_spans s = { ML_NEW(a, ml_rank_span, (int64_t)u->n_of[kind] * n + 1),
                        u->n_of[kind], false };

    ml_mesh_members(member, &m->mesh, p->opts.rank, groups[kind]);
    for (int32_t i = 0; i < u->n; i++)
        for (int32_t k = 0; u->param[i].kind == kind && k < n; k++) {
            const unit_param *x = &u->param[i];
            ml_shard_range r = ml_shard_resident(m, x->param, member[k]);
            int64_t first = ml_shard_gathered(m, x->param, p->opts.rank).begin;
            size_t size = grads ? sizeof(float) : ml_dtype_bytes(p->opts.stored[x->param]);
            s.span[(int64_t)x->row * n + k] =
                (ml_rank_span){ (char *)data + (grads ? x->grad : x->weight) +
                                    (size_t)(r.begin - first) * size,
                                (size_t)r.n * size };
        }
    return s;
}

/* What a rank's part of a stage holds at most: rows of unequal spans need one. */
static size_t stage_bytes(const ml_plan *p, const unit *u, int kind, bool grads,
                          ml_arena *a) {
    int32_t n = group_size(p, kind);
    ml_rank_spans s = spans_of(p, u, kind, grads, NULL, a);
    size_t most = 0;

    for (int32_t k = 0; k < n; k++) {
        size_t bytes = 0;
        for (int32_t i = 0; i < s.n; i++)
            bytes += s.span[(int64_t)i * n + k].bytes;
        most = bytes > most ? bytes : most;
    }
    most *= (size_t)n;
    return most < ml_ranks_stage_bytes(n) ? most : ml_ranks_stage_bytes(n);
}

/* Whether backward computes gradients of the weights. */
static bool has_grads(const ml_plan *p) {
    return p->opts.backward && !p->opts.frozen;
}

static void keep_most(size_t *most, size_t bytes) {
    *most = bytes > *most ? bytes : *most;
}

void ml_plan_params_plan(ml_plan *p) {
    ml_plan_params *x;
    ml_arena a;

    if (!p->opts.map || (group_size(p, DENSE) == 1 && group_size(p, EXPERTS) == 1))
        return;
    x = p->params = ML_NEW(&p->arena, ml_plan_params, 1);
    x->now = ML_NONE;
    find_units(p, x);
    ml_arena_init(&a, "gathered weights");
    for (int32_t i = 0; i < x->n_unit; i++) {
        unit *u = &x->unit[i];
        find_params(p, u);
        keep_most(&x->weight_bytes, u->weight_bytes);
        if (has_grads(p))
            keep_most(&x->grad_bytes, u->grad_bytes);
        for (int k = 0; k < KINDS; k++)
            for (int grads = 0; grads < (has_grads(p) ? 2 : 1); grads++)
                keep_most(&x->stage_bytes[k], stage_bytes(p, u, k, grads, &a));
    }
    ml_arena_release(&a);
}

size_t ml_plan_gather_bytes(const ml_plan *p) {
    const ml_plan_params *x = p->params;
    return x ? x->weight_bytes + x->grad_bytes + x->stage_bytes[DENSE] +
                   x->stage_bytes[EXPERTS]
             : 0;
}

static void find_spans(ml_plan *p) {
    ml_plan_params *x = p->params;

    for (int32_t i = 0; i < x->n_unit; i++)
        for (int k = 0; k < KINDS; k++) {
            unit *u = &x->unit[i];
            u->weights[k] = spans_of(p, u, k, false, x->weights.ptr, &p->arena);
            if (x->grad_bytes)
                u->grads[k] = spans_of(p, u, k, true, x->grads.ptr, &p->arena);
        }
}

ml_status ml_plan_params_alloc(ml_plan *p, ml_err *err) {
    ml_plan_params *x = p->params;
    ml_plan_memory *m = p->opts.memory;
    ml_device *dev = p->be->dev;
    ml_status st;

    if (!x)
        return ML_OK;
    for (int k = 0; k < KINDS; k++) {
        ml_ranks_open(&x->ranks[k], p->opts.group[groups[k]], p->be);
        ML_BUG_IF(x->ranks[k].comm->size != group_size(p, k));
    }
    st =
        ml_plan_need(p, m ? &m->weights : &x->weights, x->weight_bytes, ML_MEM_WEIGHT, err);
    if (st == ML_OK && x->grad_bytes)
        st = dev->alloc(dev, &x->grads, x->grad_bytes, ML_MEM_GRAD, err);
    for (int k = 0; k < KINDS && st == ML_OK; k++)
        if (x->stage_bytes[k])
            st = ml_plan_need(p, m ? &m->stage[k] : &x->ranks[k].stage, x->stage_bytes[k],
                              ML_MEM_SCRATCH, err);
    if (st == ML_OK && !m)
        find_spans(p);
    return st;
}

void ml_plan_params_use(ml_plan *p) {
    ml_plan_params *x = p->params;
    const ml_plan_memory *m = p->opts.memory;

    if (!x)
        return;
    for (int k = 0; k < KINDS; k++)
        x->ranks[k].stage = m->stage[k];
    if (x->weights.ptr == m->weights.ptr)
        return;
    x->weights = m->weights;
    find_spans(p);
}

void ml_plan_params_free(ml_plan *p) {
    ml_plan_params *x = p->params;

    if (!x)
        return;
    for (int k = 0; k < KINDS && p->opts.memory; k++)
        x->ranks[k].stage = (ml_buf){ 0 };
    if (x->weights.dev && !p->opts.memory)
        x->weights.dev->free(&x->weights);
    if (x->grads.dev)
        x->grads.dev->free(&x->grads);
    for (int k = 0; k < KINDS; k++)
        ml_ranks_close(&x->ranks[k]);
}

/* --- runs ------------------------------------------------------------------- */

void ml_plan_params_forget(ml_plan *p) {
    if (p->params)
        p->params->now = ML_NONE;
}

/* This rank's span of a parameter of a unit. */
static ml_rank_span own_span(const ml_plan_params *x, const ml_rank_spans *s,
                             const unit_param *w) {
    const ml_comm *c = x->ranks[w->kind].comm;
    return s[w->kind].span[(int64_t)w->row * c->size + c->rank];
}

typedef ml_status exchange_fn(ml_ranks *r, const ml_rank_spans *s, ml_err *err);

static void exchange(ml_plan *p, const unit *u, exchange_fn *fn, const ml_rank_spans *s,
                     const char *what) {
    for (int k = 0; k < KINDS; k++) {
        ml_ranks *ranks = &p->params->ranks[k];
        if (!u->n_of[k])
            continue;
        ml_comm_doing(ranks->comm, what, u->layer);
        if (p->failed.code == ML_OK)
            fn(ranks, &s[k], &p->failed);
    }
}

static void gather(ml_plan *p, const unit *u, const ml_weights *w) {
    for (int32_t i = 0; i < u->n; i++) {
        ml_rank_span own = own_span(p->params, u->weights, &u->param[i]);
        ML_BUG_IF(w->t[u->param[i].param].dtype != p->opts.stored[u->param[i].param]);
        if (own.bytes)
            p->be->dev->copy(p->be->stream, own.data, w->t[u->param[i].param].data,
                             own.bytes);
    }
    exchange(p, u, ml_ranks_gather, u->weights, "gathering weights");
}

int32_t ml_plan_params_need(ml_plan *p, int32_t node, const ml_run *r) {
    ml_plan_params *x = p->params;
    int32_t at;

    if (!x)
        return p->spec->n_node;
    at = x->of_node[node];
    if (x->now != at && x->unit[at].n)
        gather(p, &x->unit[at], r->weights);
    if (x->unit[at].n)
        x->now = at;
    return x->unit[at].end;
}

void ml_plan_params_back(ml_plan *p, int32_t node) {
    ml_plan_params *x = p->params;
    const unit *u = x ? &x->unit[x->of_node[node]] : NULL;

    if (u && u->n && node == u->end - 1 && has_grads(p))
        p->be->optim->zero(p->be->stream, x->grads.ptr, u->grad_bytes);
}

void ml_plan_params_backed(ml_plan *p, int32_t node, const ml_run *r) {
    ml_plan_params *x = p->params;
    const unit *u = x ? &x->unit[x->of_node[node]] : NULL;

    if (!u || !u->n || node != u->first || !has_grads(p))
        return;
    exchange(p, u, ml_ranks_reduce, u->grads, "summing gradients");
    for (int32_t i = 0; i < u->n; i++) {
        const unit_param *w = &u->param[i];
        ml_rank_span own = own_span(x, u->grads, w);
        void *sum = ml_plan_grad(p, w->node, w->k, r)->data;
        bool unwritten = ml_plan_grad_unwritten(p, w->node, w->k, r);
        if (own.bytes && unwritten)
            p->be->optim->zero(p->be->stream, sum, own.bytes);
        if (own.bytes)
            p->be->optim->add(p->be->stream, sum, own.data,
                              (int64_t)(own.bytes / sizeof(float)));
        if (unwritten)
            r->unwritten[p->spec->node[w->node].w[w->k]] = false;
    }
}

static const unit_param *find(const ml_plan *p, int32_t node, int k) {
    const ml_plan_params *x = p->params;
    const unit *u = x ? &x->unit[x->of_node[node]] : NULL;

    for (int32_t i = 0; u && i < u->n; i++)
        if (u->param[i].param == p->spec->node[node].w[k])
            return &u->param[i];
    return NULL;
}

bool ml_plan_params_weight(const ml_plan *p, int32_t node, int k, ml_tensor *out) {
    const unit_param *u = find(p, node, k);

    if (!u)
        return false;
    *out = whole_weight(p, u->param);
    out->data = (char *)p->params->weights.ptr + u->weight;
    return true;
}

bool ml_plan_params_grad(const ml_plan *p, int32_t node, int k, ml_tensor *out) {
    const unit_param *u = find(p, node, k);

    if (!u)
        return false;
    *out = whole_grad(p, u->param);
    out->data = (char *)p->params->grads.ptr + u->grad;
    return true;
}
