/* lora_ranks.c - an adapter over ranks: the part that a rank of a mesh trains, and the rows
 * that a rank of an engine needs. */
#include <string.h>

#include "base/bug.h"
#include "model/lora_priv.h"

/* --- training ------------------------------------------------------------------- */

void ml_lora_map(ml_shard_map *out, ml_arena *a, const ml_lora *l,
                 const ml_mesh_sizes *mesh) {
    ml_shard_map_init(out, a, &l->spec, l->be->linear, mesh, l->stage);
}

static ml_status set_stage(const ml_lora *l, int32_t *stage, int32_t param, int32_t to,
                           ml_err *err) {
    char name[600];

    if (stage[param] != ML_NONE && stage[param] != to)
        return ml_fail(
            err, ML_EUNSUP,
            "--pipeline-model-parallel-size: layers of pipeline stages %d and %d "
            "share the matrix %s of the adapter",
            stage[param], to,
            ml_lora_tensor_name(&l->spec.param[param], 0, name, sizeof name));
    stage[param] = to;
    return ML_OK;
}

/* The stage of each parameter is that of the LORA ops that use it. */
static ml_status find_stages(ml_lora *l, const ml_spec *base, const int32_t *of_node,
                             ml_err *err) {
    int32_t *stage = ML_NEW(&l->arena, int32_t, l->spec.n_param);
    ml_status st = ML_OK;

    for (int32_t i = 0; i < l->spec.n_param; i++)
        stage[i] = ML_NONE;
    for (int32_t i = 0; i < base->n_node && st == ML_OK; i++) {
        const ml_lora_link *k = &l->link[base->node[i].attr.lora.site];
        if (base->node[i].op != ML_OP_LORA || k->a == ML_NONE)
            continue;
        st = set_stage(l, stage, k->a, of_node[i], err);
        if (st == ML_OK)
            st = set_stage(l, stage, k->b, of_node[i], err);
    }
    l->stage = stage;
    return st;
}

void ml_lora_take_part(ml_lora *l, const ml_weights *whole) {
    for (int32_t i = 0; i < l->spec.n_param; i++) {
        ml_shard_range r = ml_weights_range(&l->weights, i);
        ml_tensor to = ml_weights_view(&l->weights, i, r), from;
        if (r.n == 0)
            continue;
        from = ml_weights_view(whole, i, r);
        l->be->dev->copy(l->be->stream, to.data, from.data, ml_tensor_bytes(&from));
    }
}

/* Replaces the whole matrices by a part of them. */
static ml_status keep_part(ml_lora *l, const ml_shard_range *range, ml_err *err) {
    ml_weights whole = l->weights;
    ml_status st =
        ml_weights_zeros_part(&l->weights, &l->spec, range, l->be, &l->arena, err);

    if (st == ML_OK) {
        ml_lora_take_part(l, &whole);
        st = l->be->dev->sync(l->be->stream, err);
    }
    l->weights.version = whole.version;
    ml_weights_close(&whole);
    ml_lora_bind(l);
    return st;
}

ml_status ml_lora_divide(ml_lora *l, const ml_spec *base, const ml_mesh_sizes *mesh,
                         int32_t rank, const int32_t *stage, ml_err *err) {
    ml_status st = stage ? find_stages(l, base, stage, err) : ML_OK;
    ml_shard_map map;

    if (st == ML_OK && l->head != ML_NONE &&
        mesh->gather * mesh->size[ML_MESH_PP] * mesh->ep * mesh->etp > 1)
        return ml_fail(
            err, ML_EUNSUP,
            "--lora-rank: the head of a reward model, which is trained beside the "
            "adapter, needs ranks with all weights: use data and context "
            "parallel ranks");
    if (st == ML_OK && rank == ML_NONE)
        return keep_part(l, ML_NEW(&l->arena, ml_shard_range, l->spec.n_param + 1), err);
    if (st != ML_OK || (mesh->ep == 1 && mesh->size[ML_MESH_PP] == 1))
        return st;
    l->ep = mesh->ep;
    l->at_ep = ml_mesh_at_ep(mesh, rank);
    ml_lora_map(&map, &l->arena, l, mesh);
    return keep_part(l, ml_shard_residents(&map, &l->arena, rank), err);
}

/* --- engines -------------------------------------------------------------------- */

/* The site that a B belongs to, or ML_NONE; several have the same weights. */
static int32_t site_of(const ml_lora *l, int32_t param) {
    for (int32_t i = 0; i < l->n_site; i++)
        if (l->link[i].a != ML_NONE && l->link[i].b == param)
            return i;
    return ML_NONE;
}

/* Of B, the rows of the outputs that the rank computes; of heads, their members. */
static void cut_param(ml_arena *a, ml_param *p, const ml_lora_layer *layer,
                      const ml_param *weights) {
    ml_param_cut *cut = ML_NEW(a, ml_param_cut, 1);

    *cut = *weights->cut;
    cut->n_row = p->shape[0];
    cut->n_stack = p->n_stack;
    if (layer->heads) {
        ML_BUG_IF(p->n_stack != layer->n_group);
        cut->run[0].n = p->shape[0];
        p->n_stack = weights->n_stack;
    } else {
        p->shape[0] = 0;
        for (int32_t k = 0; k < cut->n_run; k++)
            p->shape[0] += cut->run[k].n;
    }
    p->cut = cut;
}

ml_spec ml_lora_cut_spec(ml_arena *a, const ml_lora *l, const ml_spec *cut) {
    ml_spec s = l->spec;

    s.arena = (ml_arena){ 0 };
    s.param = ML_NEW(a, ml_param, s.n_param + 1);
    for (int32_t i = 0; i < s.n_param; i++) {
        int32_t site = site_of(l, i);
        const ml_param *weights =
            site == ML_NONE ? NULL : &cut->param[l->layer[site].param];
        s.param[i] = l->spec.param[i];
        if (weights && weights->cut)
            cut_param(a, &s.param[i], &l->layer[site], weights);
    }
    return s;
}

const ml_lora_site *ml_lora_sites(const ml_lora *l, const ml_weights *w, ml_arena *a) {
    ml_lora_site *site = ML_NEW(a, ml_lora_site, l->n_site);

    for (int32_t i = 0; i < l->n_site; i++) {
        const ml_lora_link *k = &l->link[i];
        site[i] = (ml_lora_site){ .scale = k->scale };
        if (k->a == ML_NONE || !w->t[k->a].data || !w->t[k->b].data)
            continue;
        site[i].a = ml_lora_stack(w, k->a);
        site[i].b = ml_lora_stack(w, k->b);
    }
    return site;
}

/* The rows of a cut parameter, from those of the whole one. */
static void take_rows(const ml_lora *l, const ml_weights *to, const ml_spec *cut,
                      int32_t param, float *row) {
    const ml_param *p = &cut->param[param];
    const ml_param_cut all = { .n_run = 1, .run = { { 0, p->shape[0] } } },
                       *rows = p->cut ? p->cut : &all;

    for (int32_t e = 0; e < p->n_stack; e++)
        for (int32_t k = 0, at = 0; k < rows->n_run; k++)
            for (int64_t i = 0; i < rows->run[k].n; i++, at++) {
                ml_weights_unpack(&l->weights, param, rows->first + e, rows->run[k].at + i,
                                  1, ML_F32, row);
                ml_weights_pack(to, param, e, at, 1, row);
            }
}

ml_status ml_lora_cut(ml_lora *l, const ml_spec *cut, ml_err *err) {
    ml_spec spec = ml_lora_cut_spec(&l->arena, l, cut);
    ml_weights mine;
    int64_t most = 1;
    ml_status st = ml_weights_zeros(&mine, &spec, l->be, &l->arena, err);
    float *row;

    if (st != ML_OK)
        return st;
    for (int32_t i = 0; i < spec.n_param; i++)
        most = spec.param[i].shape[1] > most ? spec.param[i].shape[1] : most;
    row = ML_NEW(&l->arena, float, most);
    for (int32_t i = 0; i < spec.n_param; i++)
        take_rows(l, &mine, &spec, i, row);
    ml_weights_close(&l->weights);
    l->weights = mine;
    l->spec.param = spec.param;
    ml_lora_bind(l);
    return ML_OK;
}
