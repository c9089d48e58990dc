/* build_index.c - spec rows of sparse attention: INDEX, ATTN_CHOSEN and COMPRESS. */
#include "base/bug.h"
#include "model/build.h"

static int32_t key_pages(ml_builder *b, int64_t width, int32_t ratio) {
    return ml_build_value(
        b, (ml_value){ ML_PER_PAGE, 1, width * ml_page_keys(ratio ? ratio : 1), ML_F32 });
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
    n->out[1] = key_pages(b, ml_build_width(b, k), o.ratio);
    n->attr.index.ratio = o.ratio;
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

    ML_BUG_IF(ml_build_width(b, k) != (o.ratio ? 2 : 1) * o.head_dim);
    ML_BUG_IF(!o.ratio && (chosen == ML_NONE || o.window || o.sink));
    n->in[0] = q;
    n->in[1] = k;
    n->in[2] = chosen;
    n->out[0] = out;
    n->out[1] = key_pages(b, o.head_dim, 1);
    if (o.ratio)
        n->out[2] = key_pages(b, o.head_dim, o.ratio);
    if (o.sink)
        n->w[0] = ml_build_param(b, (ml_param){ .name = ml_build_name(b, o.sink, ""),
                                                .n_stack = 1,
                                                .n_dim = 1,
                                                .shape = { n_head, 1 },
                                                .layout = ML_ROWS,
                                                .shard = ML_SHARD_COL });
    n->attr.attn.window = o.window;
    n->attr.attn.ratio = o.ratio;
    n->attr.attn.n_head = n_head;
    n->attr.attn.n_kv = 1;
    n->attr.attn.head_dim = o.head_dim;
    n->attr.attn.value_dim = o.value_dim;
    n->attr.attn.scale = o.scale;
    return out;
}

int32_t ml_build_compress(ml_builder *b, int32_t kv, int32_t gate, ml_compress_opts o) {
    int64_t width = ml_build_width(b, kv), n_kept = o.ratio * (width / o.n_out);
    ml_node *n = ml_build_node(b, ML_OP_COMPRESS);
    int32_t out = ml_build_rows(b, 1, o.n_out);

    ML_BUG_IF(ml_build_width(b, gate) != width);
    ML_BUG_IF(width != o.n_out && width != 2 * o.n_out);
    n->in[0] = kv;
    n->in[1] = gate;
    n->out[0] = out;
    n->out[1] = ml_build_exact(b, ML_PER_SLOT, n_kept * 2 * width);
    n->w[0] = ml_build_param(b, (ml_param){ .name = ml_build_name(b, o.bias, ""),
                                            .n_stack = 1,
                                            .n_dim = 2,
                                            .shape = { o.ratio, width },
                                            .layout = ML_ROWS,
                                            .keep_f32 = true });
    n->attr.compress_ratio = o.ratio;
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
