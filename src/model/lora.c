#include "model/lora_priv.h"

#include <stdio.h>
#include <string.h>

#include "base/bug.h"
#include "model/expert_rounds.h"

static size_t align64(size_t n) {
    return (n + 63) & ~(size_t)63;
}

/* --- binding -------------------------------------------------------------------- */

ml_tensor ml_lora_stack(const ml_weights *w, int32_t param) {
    ml_tensor t = w->t[param];

    if (t.n_dim == 3)
        return t;
    t.n_dim = 3;
    t.shape[2] = t.shape[1];
    t.shape[1] = t.shape[0];
    t.shape[0] = 1;
    return t;
}

static int32_t users_of(const ml_lora *l, int32_t param) {
    int32_t n = 0;
    for (int32_t i = 0; i < l->n_site; i++)
        n += (l->link[i].a == param) + (l->link[i].b == param);
    return n;
}

/* Whether a site's gradient of a parameter is kept apart from those of its other users:
 * other sites, or the groups of this one. */
static bool is_apart(const ml_lora *l, int32_t site, int32_t param) {
    return l->spec.param[param].n_stack < l->layer[site].n_group || users_of(l, param) > 1;
}

/* Experts, heads, or 1, that this rank has. */
static int64_t groups_of(const ml_lora *l, int32_t site) {
    int32_t n = l->layer[site].n_group;

    if (l->ep <= 1 || !l->layer[site].experts)
        return n;
    return ml_expert_first(n, l->ep, l->at_ep + 1) - ml_expert_first(n, l->ep, l->at_ep);
}

/* Whether this rank has the matrices of a site. */
static bool is_here(const ml_lora *l, int32_t site) {
    const ml_lora_link *k = &l->link[site];

    return k->a != ML_NONE && ml_weights_range(&l->weights, k->a).n > 0 &&
           ml_weights_range(&l->weights, k->b).n > 0;
}

static ml_tensor apart_tensor(const ml_lora *l, int32_t site, int32_t param) {
    const ml_param *p = &l->spec.param[param];
    return (ml_tensor){ .dtype = ML_F32,
                        .layout = l->be->linear,
                        .n_dim = 3,
                        .shape = { groups_of(l, site), p->shape[0], p->shape[1] } };
}

/* The gradient of a site's parameter; advances *at over the memory of those kept apart. */
static ml_tensor grad_of(const ml_lora *l, int32_t site, int32_t param, size_t *at) {
    ml_tensor t;

    if (!is_apart(l, site, param))
        return l->grads.n ? ml_lora_stack(&l->grads, param) : (ml_tensor){ 0 };
    t = apart_tensor(l, site, param);
    if (l->apart.ptr)
        t.data = (char *)l->apart.ptr + *at;
    *at += align64(ml_tensor_bytes(&t));
    return t;
}

/* Fills `site`; returns the bytes of gradients kept apart. */
static size_t bind_tensors(ml_lora *l) {
    size_t at = 0;

    for (int32_t i = 0; i < l->n_site; i++) {
        const ml_lora_link *k = &l->link[i];
        ml_lora_site *s = &l->site[i];
        *s = (ml_lora_site){ .scale = k->scale };
        if (!is_here(l, i))
            continue;
        s->a = ml_lora_stack(&l->weights, k->a);
        s->b = ml_lora_stack(&l->weights, k->b);
        s->da = grad_of(l, i, k->a, &at);
        s->db = grad_of(l, i, k->b, &at);
    }
    return at;
}

void ml_lora_bind(ml_lora *l) {
    bind_tensors(l);
}

/* --- rounding ------------------------------------------------------------------- */

static bool can_round(const ml_lora *l) {
    enum { STEP = 8 };

    if (!l->be->bf16_adapters || l->head != ML_NONE)
        return false;
    for (int32_t i = 0; i < l->n_site; i++)
        if (l->site[i].a.data &&
            (l->site[i].a.shape[2] % STEP || l->site[i].b.shape[1] % STEP))
            return false;
    return true;
}

/* Rounds the values of a parameter to another set's dtype. */
static void round_param(const ml_weights *to, const ml_lora *l, int32_t param) {
    const ml_param *p = &l->spec.param[param];
    ml_arena scratch;
    float *all;

    ml_arena_init(&scratch, "an adapter in bf16");
    all = ML_NEW(&scratch, float, p->shape[0] * p->shape[1]);
    for (int32_t e = 0; e < p->n_stack; e++) {
        ml_weights_unpack(&l->weights, param, e, 0, p->shape[0], ML_F32, all);
        ml_weights_pack(to, param, e, 0, p->shape[0], all);
    }
    ml_arena_release(&scratch);
}

ml_status ml_lora_round(ml_lora *l, ml_err *err) {
    ml_weights half;
    ml_status st;

    if (!can_round(l))
        return ML_OK;
    st = ml_weights_new(&half, &l->spec, NULL, ML_WEIGHT_BF16, l->be, &l->arena, err);
    if (st != ML_OK)
        return st;
    for (int32_t i = 0; i < l->spec.n_param; i++)
        round_param(&half, l, i);
    half.version = l->weights.version;
    ml_weights_close(&l->weights);
    l->weights = half;
    ml_lora_bind(l);
    return ML_OK;
}

/* --- gradients ------------------------------------------------------------------ */

size_t ml_lora_grad_bytes(const ml_lora *l) {
    size_t bytes = ml_weights_part_bytes(&l->spec, NULL, ML_WEIGHT_F32, l->weights.range);

    for (int32_t i = 0; i < l->n_site; i++)
        for (int k = 0; k < 2 && is_here(l, i); k++) {
            int32_t param = k ? l->link[i].b : l->link[i].a;
            ml_tensor t = apart_tensor(l, i, param);
            if (is_apart(l, i, param))
                bytes += align64(ml_tensor_bytes(&t));
        }
    return bytes;
}

ml_status ml_lora_take_grads(ml_lora *l, ml_err *err) {
    size_t bytes = bind_tensors(l);
    ml_status st =
        ml_weights_zeros_part(&l->grads, &l->spec, l->weights.range, l->be, &l->arena, err);

    if (st == ML_OK && bytes)
        st = l->be->dev->alloc(l->be->dev, &l->apart, bytes, ML_MEM_GRAD, err);
    bind_tensors(l);
    return st;
}

void ml_lora_free_grads(ml_lora *l) {
    ml_weights_close(&l->grads);
    if (l->apart.dev)
        l->apart.dev->free(&l->apart);
    if (l->weights.n)
        ml_lora_bind(l);
}

void ml_lora_zero_grads(ml_lora *l) {
    l->be->optim->zero(l->be->stream, l->grads.buf.ptr, l->grads.buf.bytes);
    if (l->apart.ptr)
        l->be->optim->zero(l->be->stream, l->apart.ptr, l->apart.bytes);
}

/* Adds a site's gradient, group by group. */
static void join(ml_lora *l, int32_t site, int32_t param, const ml_tensor *from) {
    ml_tensor to = ml_lora_stack(&l->grads, param), one = *from;
    size_t bytes;

    if (!is_apart(l, site, param))
        return;
    one.shape[0] = 1;
    bytes = ml_tensor_bytes(&one);
    for (int64_t g = 0; g < from->shape[0]; g++)
        l->be->optim->add(
            l->be->stream,
            (float *)((char *)to.data + (to.shape[0] > 1 ? (size_t)g * bytes : 0)),
            (const float *)((const char *)from->data + (size_t)g * bytes),
            (int64_t)(bytes / sizeof(float)));
}

void ml_lora_join_grads(ml_lora *l) {
    for (int32_t i = 0; l->apart.ptr && i < l->n_site; i++) {
        if (!is_here(l, i))
            continue;
        join(l, i, l->link[i].a, &l->site[i].da);
        join(l, i, l->link[i].b, &l->site[i].db);
    }
}

/* --- merging -------------------------------------------------------------------- */

/* Group g of a parameter, [rows, cols], in the arena. */
static const float *values_of(const ml_lora *l, int32_t param, int32_t g, ml_arena *a) {
    const ml_param *p = &l->spec.param[param];
    float *v = ML_NEW(a, float, p->shape[0] * p->shape[1]);

    ml_weights_unpack(&l->weights, param, p->n_stack > 1 ? g : 0, 0, p->shape[0], ML_F32,
                      v);
    return v;
}

/* Row i of the weights of group g plus scale B A, in f64, rounded once. */
static void merge_row(const ml_lora *l, int32_t site, const float *a, const float *b,
                      int64_t i, float *row) {
    const ml_lora_layer *y = &l->layer[site];
    int64_t rank = l->spec.param[l->link[site].a].shape[0];
    int64_t cols = y->transposed ? y->n_out : y->n_in;

    for (int64_t j = 0; j < cols; j++) {
        int64_t out = y->transposed ? j : i, in = y->transposed ? i : j;
        double sum = 0;
        for (int64_t k = 0; k < rank; k++)
            sum += (double)b[out * rank + k] * (double)a[k * y->n_in + in];
        row[j] = (float)((double)row[j] + (double)l->link[site].scale * sum);
    }
}

/* Whether an earlier layer has the same weights. */
static bool is_repeated(const ml_lora *l, int32_t site) {
    for (int32_t i = 0; i < site; i++)
        if (l->layer[i].param == l->layer[site].param)
            return true;
    return false;
}

void ml_lora_merge(const ml_lora *l, const ml_spec *base, ml_weights *w) {
    for (int32_t s = 0; s < l->n_site; s++)
        for (int32_t g = 0;
             l->link[s].a != ML_NONE && !is_repeated(l, s) && g < l->layer[s].n_group;
             g++) {
            const ml_param *p = &base->param[l->layer[s].param];
            const float *a, *b;
            ml_arena arena;
            float *row;

            ml_arena_init(&arena, "merging an adapter");
            a = values_of(l, l->link[s].a, g, &arena);
            b = values_of(l, l->link[s].b, g, &arena);
            row = ML_NEW(&arena, float, p->shape[1]);
            for (int64_t i = 0; i < p->shape[0]; i++) {
                ml_weights_unpack(w, l->layer[s].param, g, i, 1, ML_F32, row);
                merge_row(l, s, a, b, i, row);
                ml_weights_pack(w, l->layer[s].param, g, i, 1, row);
            }
            ml_arena_release(&arena);
        }
    ml_lora_merge_head(l, w);
}

/* --- others --------------------------------------------------------------------- */

static bool is_alike(const ml_param *x, const ml_param *y) {
    return x->n_stack == y->n_stack && x->shape[0] == y->shape[0] &&
           x->shape[1] == y->shape[1];
}

ml_status ml_lora_restore(ml_lora *l, const ml_spec *base, const char *dir, ml_err *err) {
    ml_lora saved;
    ml_status st = ml_lora_load(&saved, base, dir, l->be, err);
    bool same;

    if (st != ML_OK)
        return st;
    same = saved.n_site == l->n_site && saved.spec.n_param == l->spec.n_param;
    for (int32_t i = 0; same && i < l->spec.n_param; i++)
        same = is_alike(&saved.spec.param[i], &l->spec.param[i]);
    for (int32_t i = 0; same && i < l->n_site; i++)
        same = saved.link[i].a == l->link[i].a && saved.link[i].b == l->link[i].b &&
               saved.link[i].scale == l->link[i].scale;
    if (same) {
        ml_lora_take_part(l, &saved.weights);
        l->weights.version = saved.weights.version;
        st = l->be->dev->sync(l->be->stream, err);
    }
    if (!same)
        st = ml_fail(err, ML_EUSAGE,
                     "%s has other layers, ranks or scales than this run: use the --lora-* "
                     "and --target-modules flags of the saved run",
                     dir);
    ml_lora_close(&saved);
    return st;
}

ml_status ml_lora_check(const ml_lora *l, const ml_lora_limits *limits, const char *dir,
                        ml_err *err) {
    for (int32_t i = 0; i < l->n_site; i++) {
        const ml_param *a = l->link[i].a == ML_NONE ? NULL : &l->spec.param[l->link[i].a];
        char name[600];

        if (a && limits->wanted && !limits->wanted[i])
            return ml_fail(err, ML_EUSAGE,
                           "%s: tensor %s adapts a layer that --lora-target-modules does "
                           "not name; start the server with its name in the list",
                           dir, ml_lora_tensor_name(a, 0, name, sizeof name));
        if (a && a->shape[0] > limits->max_rank)
            return ml_fail(
                err, ML_EUSAGE,
                "%s: tensor %s has rank %lld, more than the maximum of %d; start "
                "the server with --max-lora-rank %lld",
                dir, ml_lora_tensor_name(a, 0, name, sizeof name), (long long)a->shape[0],
                limits->max_rank, (long long)a->shape[0]);
    }
    return ML_OK;
}

void ml_lora_mark(const ml_lora *l, bool *wanted) {
    for (int32_t i = 0; i < l->n_site; i++)
        wanted[i] = wanted[i] || l->link[i].a != ML_NONE;
}

void ml_lora_close(ml_lora *l) {
    if (l->be)
        ml_lora_free_grads(l);
    ml_weights_close(&l->weights);
    ml_peft_config_close(&l->config);
    ml_spec_close(&l->spec);
    ml_arena_release(&l->arena);
    *l = (ml_lora){ 0 };
}
