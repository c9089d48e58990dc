/* experts.c - config keys of mixtures of experts, shared by several families. */
#include <string.h>

#include "model/specs/decoder.h"

static void sparse_from_types(ml_builder *b, bool *sparse, int32_t n_layer,
                              const ml_json *types) {
    ml_hf_config *c = b->config;
    const ml_json *t = types->child;

    if (types->type != ML_JSON_ARRAY || types->n != n_layer) {
        ml_hf_config_fail(c, ML_EFORMAT,
                          "%s:%u: \"mlp_layer_types\" must be an array of %d strings",
                          c->path, types->line, n_layer);
        return;
    }
    for (int32_t i = 0; i < n_layer; i++, t = t->next) {
        sparse[i] = t->type == ML_JSON_STRING && ml_str_is(t->text, "sparse");
        if (!sparse[i] && !(t->type == ML_JSON_STRING && ml_str_is(t->text, "dense")))
            ml_hf_config_fail(c, ML_EUNSUP,
                              "%s:%u: \"mlp_layer_types\" of layer %d must be \"dense\" or "
                              "\"sparse\"",
                              c->path, t->line, i);
    }
}

const bool *ml_sparse_layers_read(ml_builder *b, int32_t n_layer, int32_t n_dense) {
    const ml_json *types = ml_hf_config_get(b->config, "mlp_layer_types");
    bool *sparse = ML_NEW(&b->spec->arena, bool, n_layer);
    int64_t dense =
        ml_hf_config_int(b->config, "first_k_dense_replace", n_dense, 0, INT32_MAX);

    if (types)
        sparse_from_types(b, sparse, n_layer, types);
    else
        for (int32_t i = 0; i < n_layer; i++)
            sparse[i] = i >= dense;
    return sparse;
}

/* Layers listed in mlp_only_layers, or off the decoder_sparse_step grid, keep a plain
 * MLP. */
const bool *ml_sparse_layers_read_qwen(ml_builder *b, int32_t n_layer) {
    ml_hf_config *c = b->config;
    int64_t step = ml_hf_config_int(c, "decoder_sparse_step", 1, 1, INT32_MAX), i;
    const ml_json *only = ml_hf_config_get(c, "mlp_only_layers");
    bool *sparse = ML_NEW(&b->spec->arena, bool, n_layer);

    for (int32_t l = 0; l < n_layer; l++)
        sparse[l] = (l + 1) % step == 0;
    for (const ml_json *v = only ? only->child : NULL; v; v = v->next) {
        if (!ml_json_i64(v, &i) || i < 0 || i >= n_layer)
            ml_hf_config_fail(c, ML_EFORMAT,
                              "%s:%u: \"mlp_only_layers\" must hold layer numbers "
                              "below %d",
                              c->path, v->line, n_layer);
        else
            sparse[i] = false;
    }
    return sparse;
}

ml_moe_opts ml_moe_read_qwen(ml_builder *b, const ml_decoder *d,
                             const ml_qwen_moe_defaults *def) {
    ml_hf_config *c = b->config;
    /* Published configs use num_experts, newer ones num_local_experts. */
    int64_t n = ml_hf_config_int(c, "num_local_experts", 0, 1, 65536);
    ml_moe_opts o = { .router = "mlp.gate", .experts = "mlp.experts", .act = d->act };

    n = n ? n : def->n_expert ? def->n_expert : ML_HF_REQUIRED;
    n = ml_hf_config_int(c, "num_experts", n, 1, 65536);
    o.n_expert = (int32_t)n;
    o.top_k = (int32_t)ml_hf_config_int(c, "num_experts_per_tok", def->top_k, 1, n);
    o.n_inner = ml_hf_config_int(c, "moe_intermediate_size",
                                 def->n_inner ? def->n_inner : ML_HF_REQUIRED, 1, 1 << 20);
    o.renorm = ml_hf_config_bool(c, "norm_topk_prob", def->renorm);
    return o;
}

/* A key that, if present, must have the supported value. */
static void expect(ml_builder *b, const char *key, const char *value) {
    const char *found = ml_hf_config_str(b->config, key, value);
    if (strcmp(found, value) != 0)
        ml_hf_config_fail(b->config, ML_EUNSUP, "%s: \"%s\" is \"%s\"; supported is %s",
                          b->config->path, key, found, value);
}

static void read_groups(ml_builder *b, ml_moe_opts *o, const ml_moe_defaults *def) {
    ml_hf_config *c = b->config;
    int32_t size;

    o->n_group = (int32_t)ml_hf_config_int(c, "n_group", def->n_group, 1, o->n_expert);
    o->top_group =
        (int32_t)ml_hf_config_int(c, "topk_group", def->top_group, 1, o->n_group);
    size = o->n_expert / o->n_group;
    if (o->n_group > 1 && (o->n_expert % o->n_group != 0 || size < 2 ||
                           (int64_t)o->top_group * size < o->top_k))
        ml_hf_config_fail(c, ML_EFORMAT,
                          "%s: %d experts in %d groups, of which %d are used, cannot give "
                          "%d experts per token",
                          c->path, o->n_expert, o->n_group, o->top_group, o->top_k);
}

ml_ffn ml_moe_read_deepseek(ml_builder *b, const ml_decoder *d, ml_moe_opts *moe,
                            const ml_moe_defaults *def) {
    ml_hf_config *c = b->config;
    int64_t n = ml_hf_config_int(c, "n_routed_experts", ML_HF_REQUIRED, 1, 65536);
    int64_t shared = ml_hf_config_int(c, "n_shared_experts", 1, 0, 1024);

    *moe = (ml_moe_opts){ .router = "mlp.gate",
                          .experts = "mlp.experts",
                          .bias = "mlp.gate.e_score_correction_bias",
                          .sigmoid = true,
                          .act = d->act };
    moe->n_expert = (int32_t)n;
    moe->top_k = (int32_t)ml_hf_config_int(c, "num_experts_per_tok", ML_HF_REQUIRED, 1, n);
    moe->n_inner = ml_hf_config_int(c, "moe_intermediate_size", ML_HF_REQUIRED, 1, 1 << 20);
    moe->renorm = ml_hf_config_bool(c, "norm_topk_prob", true);
    moe->scale = (float)ml_hf_config_num(c, "routed_scaling_factor", def->scale, 1e-6, 1e6);
    read_groups(b, moe, def);
    expect(b, "scoring_func", "sigmoid");
    expect(b, "topk_method", "noaux_tc");
    return (ml_ffn){ .moe = moe,
                     .shared = shared ? "mlp.shared_experts" : NULL,
                     .n_shared = shared * moe->n_inner };
}
