/* OLMo 2: post-norms after attention and MLP instead of pre-norms, and norms over all of
 * q, k. */
#include "model/specs/families.h"

static const ml_norm_names norms = { .after_attn = "post_attention_layernorm",
                                     .after_ffn = "post_feedforward_layernorm" };

static int32_t layer(ml_builder *b, const ml_decoder *d, int32_t x, int32_t i,
                     const void *rope) {
    (void)i;
    return ml_decoder_layer(b, d, x, (ml_layer_opts){ .rope = rope, .norms = &norms });
}

static void build_olmo2(ml_builder *b) {
    ml_decoder d;

    ml_decoder_read(
        b, &d,
        &(ml_decoder_defaults){ .eps = 1e-5, .act_key = "hidden_act", .act = "silu" });
    d.qk_norm = ML_QK_NORM_WHOLE;
    d.qkv_bias = d.o_bias = ml_hf_config_bool(b->config, "attention_bias", false);
    ml_decoder_model(
        b, &d, layer,
        ml_rope_read(b, d.head_dim,
                     (ml_rope_opts){ .theta = 10000, .partial = 1, .scaled = true }),
        (ml_model_opts){ 0 });
}

static const char *const ignored[] = { NULL };

const ml_family ml_family_olmo2 = { "olmo2", "Olmo2ForCausalLM", build_olmo2, ignored };
