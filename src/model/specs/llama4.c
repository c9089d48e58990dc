/* Llama 4 (text): layers that attend to a chunk of positions, and layers to all of them,
 * without a rotary embedding and with an attention temperature; norms of queries and keys
 * after their rotation; experts, whose inputs are weighted, and a shared expert. */
#include "model/specs/families.h"

typedef struct llama4 {
    const ml_rope *rope;
    const bool *rotates;  /* [n_layer] */
    const bool *sparse;   /* [n_layer] has experts */
    const int32_t *chunk; /* [n_layer], 0: full attention */
    const ml_rope *temper;
    bool qk_norm; /* in layers with a rotary embedding */
    ml_moe_opts moe;
} llama4;

static int32_t layer(ml_builder *b, const ml_decoder *d, int32_t x, int32_t i,
                     const void *ud) {
    const llama4 *l = ud;
    ml_decoder own = *d;
    ml_layer_opts o = { .rope = l->rotates[i] ? l->rope : NULL };

    own.chunk = l->chunk[i];
    own.temper = l->temper;
    own.qk_norm = l->qk_norm && o.rope ? ML_QK_NORM_ROTATED : ML_QK_NORM_NONE;
    o.ffn = (ml_ffn){ .mlp = "feed_forward" };
    if (l->sparse[i])
        o.ffn = (ml_ffn){ .moe = &l->moe,
                          .shared = "feed_forward.shared_expert",
                          .n_shared = l->moe.n_inner };
    return ml_decoder_layer(b, &own, x, o);
}

/* --- config keys -------------------------------------------------------------- */

static bool rotated(int32_t i, const void *rotates) {
    return ((const bool *)rotates)[i];
}

static const int32_t *read_chunks(ml_builder *b, int32_t n_layer, const bool *rotates) {
    ml_hf_config *c = b->config;
    const ml_json *v = ml_json_get(c->root, "attention_chunk_size");
    int64_t def = v && v->type == ML_JSON_NULL ? 0 : 8192;
    int64_t chunk = ml_hf_config_int(c, "attention_chunk_size", def, 1, INT32_MAX);

    if (chunk % ML_PAGE != 0)
        ml_hf_config_fail(c, ML_EUNSUP,
                          "%s: \"attention_chunk_size\" is %lld; supported are multiples "
                          "of %d",
                          c->path, (long long)chunk, ML_PAGE);
    return ml_chunks_read(b, n_layer, (int32_t)chunk, rotated, rotates);
}

/* Which layers have experts: moe_layers, or every interleave_moe_layer_step-th. */
static const bool *read_sparse(ml_builder *b, int32_t n_layer) {
    ml_hf_config *c = b->config;
    const ml_json *list = ml_hf_config_get(c, "moe_layers");
    int64_t step = ml_hf_config_int(c, "interleave_moe_layer_step", 1, 1, INT32_MAX), i;
    bool *sparse = ML_NEW(&b->spec->arena, bool, n_layer);

    for (int32_t l = 0; l < n_layer && !list; l++)
        sparse[l] = (l + 1) % step == 0;
    for (const ml_json *v = list ? list->child : NULL; v; v = v->next) {
        if (!ml_json_i64(v, &i) || i < 0 || i >= n_layer)
            ml_hf_config_fail(c, ML_EFORMAT,
                              "%s:%u: \"moe_layers\" must hold layer numbers below %d",
                              c->path, v->line, n_layer);
        else
            sparse[i] = true;
    }
    return sparse;
}

/* Releases have a number or a boolean. */
static bool read_switch(ml_builder *b, const char *key) {
    const ml_json *v = ml_hf_config_get(b->config, key);
    double number = 0;

    if (v && v->type != ML_JSON_TRUE && v->type != ML_JSON_FALSE &&
        !ml_json_f64(v, &number))
        ml_hf_config_fail(b->config, ML_EFORMAT, "%s:%u: \"%s\" must be true or false",
                          b->config->path, v->line, key);
    return !v || v->type == ML_JSON_TRUE || number > 0 || number < 0;
}

static const ml_rope *read_temperature(ml_builder *b, int32_t head_dim) {
    ml_hf_config *c = b->config;
    ml_rope *rope = ML_NEW(&b->spec->arena, ml_rope, 1);
    bool on = read_switch(b, "attn_temperature_tuning");

    *rope = (ml_rope){ .dim = head_dim,
                       .freq = ML_NEW(&b->spec->arena, float, head_dim / 2), /* all 0 */
                       .scale = 1,
                       .temper = (float)ml_hf_config_num(c, "attn_scale", 0.1, 0, 1e6),
                       .temper_step =
                           (float)ml_hf_config_num(c, "floor_scale", 8192, 1, 1e12) };
    return on ? rope : NULL;
}

static void read_moe(ml_builder *b, llama4 *l, const ml_decoder *d) {
    ml_hf_config *c = b->config;

    l->moe = (ml_moe_opts){ .router = "feed_forward.router",
                            .experts = "feed_forward.experts",
                            .transposed = true,
                            .weigh_inputs = true,
                            .sigmoid = true,
                            .n_inner = d->n_inner,
                            .act = d->act };
    l->moe.n_expert = (int32_t)ml_hf_config_int(c, "num_local_experts", 16, 1, 65536);
    l->moe.top_k =
        (int32_t)ml_hf_config_int(c, "num_experts_per_tok", 1, 1, l->moe.n_expert);
    l->sparse = read_sparse(b, d->n_layer);
}

static void build_llama4(ml_builder *b) {
    ml_hf_config *c = b->config;
    ml_decoder d;
    llama4 l = { 0 };

    ml_decoder_read(b, &d,
                    &(ml_decoder_defaults){ .n_kv = 8,
                                            .head_dim = 128,
                                            .eps = 1e-5,
                                            .act_key = "hidden_act",
                                            .act = "silu" });
    d.qkv_bias = d.o_bias = ml_hf_config_bool(c, "attention_bias", false);
    d.rope_interleaved = true;
    read_moe(b, &l, &d);
    d.n_inner = ml_hf_config_int(c, "intermediate_size_mlp", 16384, 1, 1 << 20);
    l.qk_norm = ml_hf_config_bool(c, "use_qk_norm", true);
    l.rope = ml_rope_read(b, d.head_dim,
                          (ml_rope_opts){ .theta = 500000, .partial = 1, .scaled = true });
    l.rotates = ml_rotating_layers_read(b, d.n_layer);
    l.chunk = read_chunks(b, d.n_layer, l.rotates);
    l.temper = read_temperature(b, d.head_dim);
    ml_decoder_model(b, &d, layer, &l, (ml_model_opts){ 0 });
}

/* Balance losses and jitter belong to pre-training. */
static const char *const ignored[] = { "output_router_logits", "router_aux_loss_coef",
                                       "router_jitter_noise",  "cache_implementation",
                                       "for_llm_compressor",   NULL };

const ml_family ml_family_llama4 = { "llama4_text", "Llama4ForCausalLM", build_llama4,
                                     ignored };
