/* GLM-4: sandwich norms, fused gate and up projection, half of each head rotated in pairs. */
#include "model/specs/families.h"

static const ml_sandwich norms = { "input_layernorm", "post_self_attn_layernorm",
                                   "post_attention_layernorm", "post_mlp_layernorm", true };

static void build_glm4(ml_builder *b) {
    ml_decoder d;
    const ml_rope *rope;
    int32_t x;

    ml_decoder_read(b, &d,
                    &(ml_decoder_defaults){ .n_kv = 2,
                                            .head_dim = 128,
                                            .eps = 1.5625e-07,
                                            .act_key = "hidden_act",
                                            .act = "silu" });
    d.qkv_bias = ml_hf_config_bool(b->config, "attention_bias", true);
    d.rope_interleaved = true;
    rope = ml_rope_read(b, d.head_dim,
                        (ml_rope_opts){ .theta = 10000, .partial = 0.5, .scaled = true });
    x = ml_build_embed(b, "model.embed_tokens.weight", 1);
    for (int32_t i = 0; i < d.n_layer; i++) {
        ml_build_begin_layer(b, i);
        x = ml_decoder_sandwich(b, &d, x, rope, 0, &norms);
        ml_build_end_layer(b);
    }
    ml_build_head(b, ml_decoder_norm(b, &d, x, "model.norm"), "lm_head", b->spec->tied, 0);
}

static const char *const ignored[] = { NULL };

const ml_family ml_family_glm4 = { "glm4", "Glm4ForCausalLM", build_glm4, ignored };
