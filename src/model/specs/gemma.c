/* Gemma 2 and Gemma 3 (text): sandwich norms with weights 1+w, scaled embedding, GeGLU,
 * tied head.  Gemma 2 softcaps attention and final logits; Gemma 3 has QK-norm per head
 * and two rotary bases. */
#include <math.h>

#include "model/specs/families.h"

static const ml_norm_names norms = { "input_layernorm", "post_attention_layernorm",
                                     "pre_feedforward_layernorm",
                                     "post_feedforward_layernorm" };

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

typedef struct gemma {
    const int32_t *window;
    const ml_rope *full, *sliding;
} gemma;

static int32_t layer(ml_builder *b, const ml_decoder *d, int32_t x, int32_t i,
                     const void *ud) {
    const gemma *g = ud;
    return ml_decoder_layer(b, d, x,
                            (ml_layer_opts){ .rope = g->window[i] ? g->sliding : g->full,
                                             .window = g->window[i],
                                             .norms = &norms });
}

static void build_gemma(ml_builder *b, const ml_decoder *d, const gemma *g,
                        float logit_softcap) {
    ml_decoder_model(b, d, layer, g,
                     (ml_model_opts){ .embed_scale = (float)sqrt((double)d->n_hidden),
                                      .logit_softcap = logit_softcap });
}

/* Every n-th layer has full attention, counted from 1. */
static bool off_pattern(int32_t layer, const void *n) {
    return (layer + 1) % *(const int64_t *)n != 0;
}

/* An explicit null disables a softcap; an absent key means the family's default. */
static float read_cap(ml_builder *b, const char *key, double def) {
    const ml_json *v = ml_json_get(b->config->root, key);
    if (v && v->type == ML_JSON_NULL)
        def = 0;
    return (float)ml_hf_config_num(b->config, key, def, 0, 1e6);
}

static void build_gemma2(ml_builder *b) {
    ml_decoder d;
    gemma g;

    read_gemma(b, &d);
    d.attn_softcap = read_cap(b, "attn_logit_softcapping", 50);
    g.full = g.sliding = ml_rope_read(
        b, d.head_dim, (ml_rope_opts){ .theta = 10000, .partial = 1, .scaled = true });
    g.window = ml_windows_read(b, d.n_layer, ml_window_or_none(b, 4096), off_pattern,
                               &(const int64_t){ 2 });
    build_gemma(b, &d, &g, read_cap(b, "final_logit_softcapping", 30));
}

static void build_gemma3(ml_builder *b) {
    ml_decoder d;
    gemma g;
    int64_t pattern;

    read_gemma(b, &d);
    d.qk_norm = ML_QK_NORM_HEAD;
    d.attn_softcap = read_cap(b, "attn_logit_softcapping", 0);
    g.full = ml_rope_read(
        b, d.head_dim,
        (ml_rope_opts){
            .part = "full_attention", .theta = 1e6, .partial = 1, .scaled = true });
    g.sliding = ml_rope_read(b, d.head_dim,
                             (ml_rope_opts){ .part = "sliding_attention",
                                             .theta_key = "rope_local_base_freq",
                                             .theta = 1e4,
                                             .partial = 1 });
    pattern = ml_hf_config_int(b->config, "sliding_window_pattern", 6, 1, INT32_MAX);
    g.window =
        ml_windows_read(b, d.n_layer, ml_window_or_none(b, 4096), off_pattern, &pattern);
    build_gemma(b, &d, &g, read_cap(b, "final_logit_softcapping", 0));
}

/* Published configs have the activation twice; hidden_activation is the one used. */
static const char *const ignored[] = { "hidden_act", "cache_implementation",
                                       "_sliding_window_pattern", NULL };

const ml_family ml_family_gemma2 = { "gemma2", "Gemma2ForCausalLM", build_gemma2, ignored };
const ml_family ml_family_gemma3 = { "gemma3_text", "Gemma3ForCausalLM", build_gemma3,
                                     ignored };
