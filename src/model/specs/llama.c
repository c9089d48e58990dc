/* Llama and Mistral: the plain decoder; Mistral may have one window for all layers. */
#include "model/specs/families.h"

static int32_t trunk(ml_builder *b, const ml_decoder *d, const ml_rope *rope,
                     const int32_t *window) {
    int32_t x = ml_build_embed(b, "model.embed_tokens.weight", 1);
    for (int32_t i = 0; i < d->n_layer; i++) {
        ml_build_begin_layer(b, i);
        x = ml_decoder_layer(b, d, x, rope, window ? window[i] : 0);
        ml_build_end_layer(b);
    }
    return ml_decoder_norm(b, d, x, "model.norm");
}

static void build_llama(ml_builder *b) {
    ml_decoder d;
    const ml_rope *rope;

    ml_decoder_read(
        b, &d,
        &(ml_decoder_defaults){ .eps = 1e-6, .act_key = "hidden_act", .act = "silu" });
    d.qkv_bias = d.o_bias = ml_hf_config_bool(b->config, "attention_bias", false);
    d.mlp_bias = ml_hf_config_bool(b->config, "mlp_bias", false);
    rope = ml_rope_read(b, d.head_dim,
                        (ml_rope_opts){ .theta = 10000, .partial = 1, .scaled = true });
    ml_build_head(b, trunk(b, &d, rope, NULL), "lm_head", b->spec->tied, 0);
}

static void build_mistral(ml_builder *b) {
    ml_decoder d;
    const ml_rope *rope;
    const int32_t *window;

    ml_decoder_read(b, &d,
                    &(ml_decoder_defaults){
                        .n_kv = 8, .eps = 1e-6, .act_key = "hidden_act", .act = "silu" });
    rope = ml_rope_read(b, d.head_dim,
                        (ml_rope_opts){ .theta = 10000, .partial = 1, .scaled = true });
    /* Absent means 4096 upstream, null means none. */
    window = ml_windows_read(b, d.n_layer, ml_window_or_none(b, 4096), ml_every_layer, 0);
    ml_build_head(b, trunk(b, &d, rope, window), "lm_head", b->spec->tied, 0);
}

static const char *const ignored[] = { "pretraining_tp", NULL };

const ml_family ml_family_llama = { "llama", "LlamaForCausalLM", build_llama, ignored };
const ml_family ml_family_mistral = { "mistral", "MistralForCausalLM", build_mistral,
                                      ignored };
