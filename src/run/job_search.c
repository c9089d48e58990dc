#include <stdlib.h>

#include "base/oom.h"
#include "run/job_priv.h"

enum { MOST_CHUNKS = 4, MOST_GATHER = 64 };

typedef struct search {
    ml_job_planner *p;
    ml_job_cost *cost;
    int32_t n, cap, n_tried;
} search;

static int32_t n_rank_of(const ml_job_request *req) {
    return req->n_node * req->gpus_per_node;
}

/* The least memory of a rank, without activations: layouts that exceed it need no plan. */
static bool can_fit(const search *s, const ml_job_layout *l) {
    const ml_job_request *req = s->p->req;
    const ml_mesh_opts *m = &l->mesh;
    double all = (double)ml_spec_param_count(req->spec) / m->pp,
           expert = s->p->expert / m->pp;
    double gather = m->tp, dense = all - expert;
    double parts = (double)m->ep * (m->etp ? m->etp : 1);
    int32_t stage_ranks = n_rank_of(req) / m->pp;
    double resident = dense / gather + expert / (parts > 1 ? parts : gather);
    double bytes =
        resident * (4 + (req->bf16 ? 2 : 4) * req->n_set) + 12 * all / stage_ranks;

    /* Stages are not equal: the largest has the average at least. */
    return bytes * 0.9 + req->speeds->base_bytes < req->speeds->memory_bytes;
}

static ml_status try_layout(search *s, const ml_job_layout *l, ml_err *err) {
    ml_job_cost cost;
    ml_status st;

    s->n_tried++;
    if (!can_fit(s, l))
        return ML_OK;
    st = ml_job_cost_of(&cost, s->p, l, err);
    if (st == ML_EUSAGE || st == ML_EUNSUP) /* sizes that do not divide this model */
        return ML_OK;
    if (st != ML_OK || !cost.fits)
        return st;
    if (s->n == s->cap) {
        s->cap = s->cap ? 2 * s->cap : 64;
        s->cost = ml_memory_grow(s->cost, (size_t)s->cap * sizeof *s->cost, "layouts");
    }
    s->cost[s->n++] = cost;
    return ML_OK;
}

/* Recomputation is tried where the options have none. */
static ml_status try_recompute(search *s, ml_job_layout l, ml_err *err) {
    bool none = s->p->req->opts.recompute.granularity == ML_RECOMPUTE_NONE;
    ml_status st = try_layout(s, &l, err);

    if (st != ML_OK || !none)
        return st;
    l.recompute = true;
    return try_layout(s, &l, err);
}

/* Experts are divided over ranks that are neighbours, of one node or of whole nodes. */
static ml_status try_experts(search *s, ml_job_layout l, ml_err *err) {
    int32_t n_place = n_rank_of(s->p->req) / l.mesh.pp;
    ml_status st = ML_OK;

    for (int32_t i = 0; i < s->p->n_ep && st == ML_OK; i++) {
        l.mesh.ep = s->p->ep[i];
        if (n_place % l.mesh.ep == 0)
            st = try_recompute(s, l, err);
    }
    return st;
}

static ml_status try_places(search *s, ml_job_layout l, ml_err *err) {
    int32_t n_place = n_rank_of(s->p->req) / l.mesh.pp;
    int64_t pieces = s->p->req->sample_tokens / 1024; /* shorter ones do not pay */
    ml_mesh_opts *m = &l.mesh;
    ml_status st = ML_OK;

    for (m->cp = 1; m->cp == 1 || m->cp <= pieces; m->cp *= 2)
        for (m->tp = 1; m->tp <= MOST_GATHER && st == ML_OK; m->tp++)
            if (n_place % (m->cp * m->tp) == 0)
                st = try_experts(s, l, err);
    return st;
}

static ml_status try_all(search *s, ml_err *err) {
    int32_t world = n_rank_of(s->p->req), n_layer = s->p->req->spec->n_layer;
    ml_job_layout l = { 0 };
    ml_status st = ML_OK;

    for (l.mesh.pp = 1; l.mesh.pp <= n_layer && l.mesh.pp <= world; l.mesh.pp++)
        for (l.n_chunk = 1; l.n_chunk <= MOST_CHUNKS && st == ML_OK; l.n_chunk *= 2)
            if (world % l.mesh.pp == 0 && l.mesh.pp * l.n_chunk <= n_layer &&
                (l.n_chunk == 1 || l.mesh.pp > 1))
                st = try_places(s, l, err);
    return st;
}

/* The fastest first; of equal ones, that with fewer parts. */
static int by_time(const void *a, const void *b) {
    const ml_job_cost *x = a, *y = b;
    const ml_mesh_opts *m = &x->layout.mesh, *o = &y->layout.mesh;
    int32_t parts = m->pp * m->cp * m->tp + m->ep - (o->pp * o->cp * o->tp + o->ep);

    if (x->step_s != y->step_s)
        return x->step_s < y->step_s ? -1 : 1;
    return parts;
}

ml_status ml_job_search(ml_job_cost **out, int32_t *n, int32_t *n_tried, ml_arena *a,
                        ml_job_planner *p, int32_t most, ml_err *err) {
    search s = { .p = p };
    ml_status st = try_all(&s, err);

    if (s.n)
        qsort(s.cost, (size_t)s.n, sizeof *s.cost, by_time);
    *n = s.n < most ? s.n : most;
    *n_tried = s.n_tried;
    *out = ML_NEW(a, ml_job_cost, *n + 1);
    for (int32_t i = 0; i < *n; i++)
        (*out)[i] = s.cost[i];
    free(s.cost);
    return st;
}
