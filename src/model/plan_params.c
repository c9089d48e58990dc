/* plan_params.c - weights that ranks divide.
 *
 * The nodes of a plan are cut into units: a layer, what stands before the first one (the
 * embedding), what stands after the last one (norm and LM head).  A unit's weights are
 * gathered into one buffer before its first op runs, in forward and again in backward.
 * Gradients of the whole weights of a unit are a second buffer, zeroed before its backward;
 * afterwards the ranks' are summed (ML_REDUCE_TREE), and each rank adds its part of the sum
 * to its gradients. */
#include "base/bug.h"
#include "model/plan_priv.h"
#include "model/ranks.h"

typedef struct unit_param {
    int32_t param, node, k; /* weight k of the first node that has it */
    size_t weight, grad;    /* offsets in the buffers */
} unit_param;

typedef struct unit {
    int32_t first, end, layer; /* nodes */
    unit_param *param;
    int32_t n;
    size_t weight_bytes, grad_bytes;
    ml_rank_spans weights, grads; /* of all ranks, in the buffers */
} unit;

struct ml_plan_params {
    unit *unit;
    int32_t n_unit;
    int32_t *of_node;
    int32_t now; /* the unit in the buffer, or ML_NONE */
    size_t weight_bytes, grad_bytes, stage_bytes;
    ml_buf weights, grads;
    ml_ranks ranks;
};

static size_t align64(size_t n) {
    return (n + 63) & ~(size_t)63;
}

/* --- units ------------------------------------------------------------------ */

static ml_tensor whole_weight(const ml_plan *p, int32_t param) {
    return ml_weights_tensor(&p->spec->param[param], p->opts.stored[param], p->be->linear);
}

static ml_tensor whole_grad(const ml_plan *p, int32_t param) {
    return ml_weights_tensor(&p->spec->param[param], ML_F32, p->be->linear);
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
            if (w == ML_NONE || !ml_shard_is_gathered(p->opts.map, w) || has_param(u, w))
                continue;
            u->param[u->n++] = (unit_param){ w, i, k, u->weight_bytes, u->grad_bytes };
            t = whole_weight(p, w);
            g = whole_grad(p, w);
            u->weight_bytes += align64(ml_tensor_bytes(&t));
            u->grad_bytes += align64(ml_tensor_bytes(&g));
        }
}

/* The ranges of the group's ranks in a unit's buffer; data is NULL while planning. */
static ml_rank_spans spans_of(const ml_plan *p, const unit *u, bool grads, void *data,
                              ml_arena *a) {
    const ml_shard_map *m = p->opts.map;
    int32_t n = m->mesh.gather, *member = ML_NEW(a, int32_t, m->n_rank);
    ml_rank_spans s = { ML_NEW(a, ml_rank_span, (int64_t)u->n * n + 1), u->n, false };

    ml_mesh_members(member, &m->mesh, p->opts.rank, ML_GROUP_GATHER);
    for (int32_t i = 0; i < u->n; i++)
        for (int32_t k = 0; k < n; k++) {
            const unit_param *x = &u->param[i];
            ml_shard_range r = ml_shard_resident(m, x->param, member[k]);
            size_t size = grads ? sizeof(float) : ml_dtype_bytes(p->opts.stored[x->param]);
            s.span[(int64_t)i * n + k] =
                (ml_rank_span){ (char *)data + (grads ? x->grad : x->weight) +
                                    (size_t)r.begin * size,
                                (size_t)r.n * size };
        }
    return s;
}

/* What a rank's part of a stage holds at most: rows of unequal spans need one. */
static size_t stage_bytes(const ml_plan *p, const unit *u, bool grads, ml_arena *a) {
    int32_t n = p->opts.map->mesh.gather;
    ml_rank_spans s = spans_of(p, u, grads, NULL, a);
    size_t most = 0;

    for (int32_t k = 0; k < n; k++) {
        size_t bytes = 0;
        for (int32_t i = 0; i < u->n; i++)
            bytes += s.span[(int64_t)i * n + k].bytes;
        most = bytes > most ? bytes : most;
    }
    most *= (size_t)n;
    return most < ml_ranks_stage_bytes(n) ? most : ml_ranks_stage_bytes(n);
}

static void keep_most(size_t *most, size_t bytes) {
    *most = bytes > *most ? bytes : *most;
}

void ml_plan_params_plan(ml_plan *p) {
    ml_plan_params *x;
    ml_arena a;

    if (!p->opts.map || p->opts.map->mesh.gather == 1)
        return;
    x = p->params = ML_NEW(&p->arena, ml_plan_params, 1);
    x->now = ML_NONE;
    find_units(p, x);
    ml_arena_init(&a, "gathered weights");
    for (int32_t i = 0; i < x->n_unit; i++) {
        unit *u = &x->unit[i];
        find_params(p, u);
        keep_most(&x->weight_bytes, u->weight_bytes);
        keep_most(&x->stage_bytes, stage_bytes(p, u, false, &a));
        if (p->opts.backward) {
            keep_most(&x->grad_bytes, u->grad_bytes);
            keep_most(&x->stage_bytes, stage_bytes(p, u, true, &a));
        }
    }
    ml_arena_release(&a);
}

size_t ml_plan_gather_bytes(const ml_plan *p) {
    const ml_plan_params *x = p->params;
    return x ? x->weight_bytes + x->grad_bytes + x->stage_bytes : 0;
}

ml_status ml_plan_params_alloc(ml_plan *p, ml_err *err) {
    ml_plan_params *x = p->params;
    ml_device *dev = p->be->dev;
    ml_status st;

    if (!x)
        return ML_OK;
    ml_ranks_open(&x->ranks, p->opts.group[ML_GROUP_GATHER], p->be);
    ML_BUG_IF(x->ranks.comm->size != p->opts.map->mesh.gather);
    st = dev->alloc(dev, &x->weights, x->weight_bytes, ML_MEM_WEIGHT, err);
    if (st == ML_OK && x->grad_bytes)
        st = dev->alloc(dev, &x->grads, x->grad_bytes, ML_MEM_GRAD, err);
    if (st == ML_OK)
        st = ml_ranks_reserve(&x->ranks, x->stage_bytes, err);
    for (int32_t i = 0; i < x->n_unit && st == ML_OK; i++) {
        unit *u = &x->unit[i];
        u->weights = spans_of(p, u, false, x->weights.ptr, &p->arena);
        if (x->grad_bytes)
            u->grads = spans_of(p, u, true, x->grads.ptr, &p->arena);
    }
    return st;
}

void ml_plan_params_free(ml_plan *p) {
    ml_plan_params *x = p->params;

    if (!x)
        return;
    if (x->weights.dev)
        x->weights.dev->free(&x->weights);
    if (x->grads.dev)
        x->grads.dev->free(&x->grads);
    ml_ranks_close(&x->ranks);
}

/* --- runs ------------------------------------------------------------------- */

void ml_plan_params_forget(ml_plan *p) {
    if (p->params)
        p->params->now = ML_NONE;
}

/* This rank's span of parameter i of a unit. */
static ml_rank_span own_span(const ml_plan_params *x, const ml_rank_spans *s, int32_t i) {
    const ml_comm *c = x->ranks.comm;
    return s->span[(int64_t)i * c->size + c->rank];
}

static void gather(ml_plan *p, const unit *u, const ml_weights *w) {
    ml_plan_params *x = p->params;

    for (int32_t i = 0; i < u->n; i++) {
        ml_rank_span own = own_span(x, &u->weights, i);
        ML_BUG_IF(w->t[u->param[i].param].dtype != p->opts.stored[u->param[i].param]);
        if (own.bytes)
            p->be->dev->copy(p->be->stream, own.data, w->t[u->param[i].param].data,
                             own.bytes);
    }
    ml_comm_doing(x->ranks.comm, "gathering weights", u->layer);
    if (p->failed.code == ML_OK)
        ml_ranks_gather(&x->ranks, &u->weights, &p->failed);
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

    if (u && u->n && node == u->end - 1)
        p->be->optim->zero(p->be->stream, x->grads.ptr, u->grad_bytes);
}

void ml_plan_params_backed(ml_plan *p, int32_t node, const ml_run *r) {
    ml_plan_params *x = p->params;
    const unit *u = x ? &x->unit[x->of_node[node]] : NULL;

    if (!u || !u->n || node != u->first)
        return;
    ml_comm_doing(x->ranks.comm, "summing gradients", u->layer);
    if (p->failed.code == ML_OK)
        ml_ranks_reduce(&x->ranks, &u->grads, &p->failed);
    for (int32_t i = 0; i < u->n; i++) {
        ml_rank_span own = own_span(x, &u->grads, i);
        const unit_param *w = &u->param[i];
        if (own.bytes)
            p->be->optim->add(p->be->stream, ml_plan_grad(p, w->node, w->k, r)->data,
                              own.data, (int64_t)(own.bytes / sizeof(float)));
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
