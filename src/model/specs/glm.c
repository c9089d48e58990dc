/* GLM-4: sandwich norms, fused gate and up projection, half of each head rotated in
 * interleaved pairs.  GLM-4.5 (glm4_moe): pre-norms, DeepSeek's experts, half of each
 * head rotated in halves. */
#include "model/specs/families.h"

static const ml_norm_names norms = { "input_layernorm", "post_self_attn_layernorm",
                                     "post_attention_layernorm", "post_mlp_layernorm" };

static int32_t layer(ml_builder *b, const ml_decoder *d, int32_t x, int32_t i,
                     const void *rope) {
    (void)i;
    return ml_decoder_layer(b, d, x, (ml_layer_opts){ .rope = rope, .norms = &norms });
}

static const ml_rope *read_rope(ml_builder *b, const ml_decoder *d) {
    return ml_rope_read(b, d->head_dim,
                        (ml_rope_opts){ .theta = 10000, .partial = 0.5, .scaled = true });
}

static void build_glm4(ml_builder *b) {
    ml_decoder d;

    ml_decoder_read(b, &d,
                    &(ml_decoder_defaults){ .n_kv = 2,
                                            .head_dim = 128,
                                            .eps = 1.5625e-07,
                                            .act_key = "hidden_act",
                                            .act = "silu" });
    d.qkv_bias = ml_hf_config_bool(b->config, "attention_bias", true);
    d.rope_interleaved = d.fused_mlp = true;
    ml_decoder_model(b, &d, layer, read_rope(b, &d), (ml_model_opts){ 0 });
}

typedef struct glm4_moe {
    const ml_rope *rope;
    const bool *sparse;
    ml_moe_opts moe;
    ml_ffn ffn;
} glm4_moe;

static int32_t moe_layer(ml_builder *b, const ml_decoder *d, int32_t x, int32_t i,
                         const void *ud) {
    const glm4_moe *g = ud;
    return ml_decoder_layer(
        b, d, x,
        (ml_layer_opts){ .rope = g->rope, .ffn = g->sparse[i] ? g->ffn : (ml_ffn){ 0 } });
}

static void build_glm4_moe(ml_builder *b) {
    ml_decoder d;
    glm4_moe g;

    ml_decoder_read(b, &d,
                    &(ml_decoder_defaults){
                        .n_kv = 8, .eps = 1e-5, .act_key = "hidden_act", .act = "silu" });
    d.qkv_bias = ml_hf_config_bool(b->config, "attention_bias", false);
    d.qk_norm = ml_hf_config_bool(b->config, "use_qk_norm", false) ? ML_QK_NORM_HEAD
                                                                   : ML_QK_NORM_NONE;
    g.rope = read_rope(b, &d);
    g.sparse = ml_sparse_layers_read(b, d.n_layer, 1);
    g.ffn = ml_moe_read_deepseek(b, &d, &g.moe, &(ml_moe_defaults){ 1, 1, 1.0 });
    ml_decoder_model(b, &d, moe_layer, &g, (ml_model_opts){ .mtp = &ml_mtp_nextn });
}

static const char *const ignored[] = { NULL };
static const char *const ignored_moe[] = { "output_router_logits", NULL };

const ml_family ml_family_glm4 = { "glm4", "Glm4ForCausalLM", build_glm4, ignored };
const ml_family ml_family_glm4_moe = { "glm4_moe", "Glm4MoeForCausalLM", build_glm4_moe,
                                       ignored_moe };
