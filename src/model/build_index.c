/* build_index.c - spec rows of sparse attention: INDEX and ATTN_CHOSEN. */
#include "base/bug.h"
#include "model/build.h"

static int32_t key_pages(ml_builder *b, int32_t k) {
    return ml_build_value(
        b, (ml_value){ ML_PER_PAGE, 1, ml_build_width(b, k) * ML_PAGE, ML_F32 });
}

int32_t ml_build_index(ml_builder *b, int32_t q, int32_t k, int32_t weight,
                       ml_index_opts o) {
    ml_node *n = ml_build_node(b, ML_OP_INDEX);
    int32_t out = ml_build_value(b, (ml_value){ ML_PER_TOKEN, 1, o.top_k, ML_I32 });

    ML_BUG_IF(ml_build_width(b, q) != o.n_head * ml_build_width(b, k));
    n->in[0] = q;
    n->in[1] = k;
    n->in[2] = weight;
    n->out[0] = out;
    n->out[1] = key_pages(b, k);
    n->attr.index.n_head = o.n_head;
    n->attr.index.head_dim = (int32_t)ml_build_width(b, k);
    n->attr.index.top_k = o.top_k;
    n->attr.index.scale = o.scale;
    n->attr.index.weight_scale = o.weight_scale;
    n->route_layer = b->spec->route[ML_ROUTING_KEYS].n_layer++;
    b->spec->route[ML_ROUTING_KEYS].top_k = o.top_k;
    return out;
}

int32_t ml_build_attn_chosen(ml_builder *b, int32_t q, int32_t k, int32_t chosen,
                             ml_attn_opts o) {
    ml_node *n = ml_build_node(b, ML_OP_ATTN_CHOSEN);
    int32_t n_head = (int32_t)(ml_build_width(b, q) / o.head_dim);
    int32_t out = ml_build_rows(b, 1, (int64_t)n_head * o.value_dim);

    ML_BUG_IF(ml_build_width(b, k) != o.head_dim);
    n->in[0] = q;
    n->in[1] = k;
    n->in[2] = chosen;
    n->out[0] = out;
    n->out[1] = key_pages(b, k);
    n->attr.attn.n_head = n_head;
    n->attr.attn.n_kv = 1;
    n->attr.attn.head_dim = o.head_dim;
    n->attr.attn.value_dim = o.value_dim;
    n->attr.attn.scale = o.scale;
    return out;
}

static int32_t frozen_vector(ml_builder *b, const char *name, const char *suffix,
                             int64_t n) {
    return ml_build_param(b, (ml_param){ .name = ml_build_name(b, name, suffix),
                                         .n_stack = 1,
                                         .n_dim = 1,
                                         .shape = { n, 1 },
                                         .layout = ML_ROWS,
                                         .frozen = true });
}

int32_t ml_build_layernorm(ml_builder *b, int32_t x, const char *name, float eps) {
    ml_node *n = ml_build_node(b, ML_OP_LAYERNORM);
    int64_t width = ml_build_width(b, x);
    int32_t out = ml_build_rows(b, 1, width);

    n->in[0] = x;
    n->out[0] = out;
    n->w[0] = frozen_vector(b, name, ".weight", width);
    n->w[1] = frozen_vector(b, name, ".bias", width);
    n->attr.norm.eps = eps;
    n->attr.norm.width = (int32_t)width;
    return out;
}
