/* Gemma 2 and Gemma 3 (text): 1+w sandwich norms, scaled embedding, GeGLU, tied head;
 * Gemma 2 caps attention and final logits, Gemma 3 norms q and k heads and has two
 * rotary bases. */
#include <math.h>

#include "model/specs/families.h"

static const ml_sandwich norms = { "input_layernorm", "post_attention_layernorm",
                                   "pre_feedforward_layernorm",
                                   "post_feedforward_layernorm", false };

static void read_gemma(ml_builder *b, ml_decoder *d) {
    ml_hf_config *c = b->config;

    ml_decoder_read(b, d,
                    &(ml_decoder_defaults){ .n_kv = 4,
                                            .head_dim = 256,
                                            .eps = 1e-6,
                                            .tied = true,
                                            .act_key = "hidden_activation",
                                            .act = "gelu_pytorch_tanh" });
    d->norm_plus_one = true;
    d->qkv_bias = d->o_bias = ml_hf_config_bool(c, "attention_bias", false);
    d->scale =
        (float)(1.0 / sqrt(ml_hf_config_num(c, "query_pre_attn_scalar", 256, 1e-6, 1e9)));
    if (ml_hf_config_bool(c, "use_bidirectional_attention", false))
        ml_hf_config_fail(c, ML_EUNSUP,
                          "%s: \"use_bidirectional_attention\" is true; only causal "
                          "attention is supported",
                          c->path);
}

static void build_trunk(ml_builder *b, const ml_decoder *d, const int32_t *window,
                        const ml_rope *full, const ml_rope *sliding, float logit_softcap) {
    int32_t x =
        ml_build_embed(b, "model.embed_tokens.weight", (float)sqrt((double)d->n_hidden));
    for (int32_t i = 0; i < d->n_layer; i++) {
        ml_build_begin_layer(b, i);
        x = ml_decoder_sandwich(b, d, x, window[i] ? sliding : full, window[i], &norms);
        ml_build_end_layer(b);
    }
    ml_build_head(b, ml_decoder_norm(b, d, x, "model.norm"), "lm_head", b->spec->tied,
                  logit_softcap);
}

/* Every arg-th layer is full, counted from 1. */
static bool off_pattern(int32_t layer, int64_t arg) {
    return (layer + 1) % arg != 0;
}

/* An explicit null turns a cap off; an absent key has the family's default. */
static float read_cap(ml_builder *b, const char *key, double def) {
    const ml_json *v = ml_json_get(b->config->root, key);
    if (v && v->type == ML_JSON_NULL)
        def = 0;
    return (float)ml_hf_config_num(b->config, key, def, 0, 1e6);
}

static void build_gemma2(ml_builder *b) {
    ml_decoder d;
    const ml_rope *rope;
    const int32_t *window;

    read_gemma(b, &d);
    d.attn_softcap = read_cap(b, "attn_logit_softcapping", 50);
    rope = ml_rope_read(b, d.head_dim,
                        (ml_rope_opts){ .theta = 10000, .partial = 1, .scaled = true });
    window = ml_windows_read(b, d.n_layer, ml_window_or_none(b, 4096), off_pattern, 2);
    build_trunk(b, &d, window, rope, rope, read_cap(b, "final_logit_softcapping", 30));
}

static void build_gemma3(ml_builder *b) {
    ml_decoder d;
    const ml_rope *full, *sliding;
    const int32_t *window;
    int64_t pattern;

    read_gemma(b, &d);
    d.qk_norm = true;
    d.attn_softcap = read_cap(b, "attn_logit_softcapping", 0);
    full = ml_rope_read(
        b, d.head_dim,
        (ml_rope_opts){
            .part = "full_attention", .theta = 1e6, .partial = 1, .scaled = true });
    sliding = ml_rope_read(b, d.head_dim,
                           (ml_rope_opts){ .part = "sliding_attention",
                                           .theta_key = "rope_local_base_freq",
                                           .theta = 1e4,
                                           .partial = 1 });
    pattern = ml_hf_config_int(b->config, "sliding_window_pattern", 6, 1, INT32_MAX);
    window =
        ml_windows_read(b, d.n_layer, ml_window_or_none(b, 4096), off_pattern, pattern);
    build_trunk(b, &d, window, full, sliding, read_cap(b, "final_logit_softcapping", 0));
}

/* Published configs carry the activation twice; hidden_activation is the one that counts. */
static const char *const ignored[] = { "hidden_act", "cache_implementation",
                                       "_sliding_window_pattern", NULL };

const ml_family ml_family_gemma2 = { "gemma2", "Gemma2ForCausalLM", build_gemma2, ignored };
const ml_family ml_family_gemma3 = { "gemma3_text", "Gemma3ForCausalLM", build_gemma3,
                                     ignored };
