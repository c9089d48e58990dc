/* gpt-oss: attention sinks, a sliding window in every other layer, biased experts that
 * are stored transposed, a clamped gate.  Published weights are MXFP4; this reads bf16. */
#include "model/specs/families.h"

typedef struct oss {
    const ml_rope *rope;
    const int32_t *window;
    ml_moe_opts moe;
} oss;

static int32_t layer(ml_builder *b, const ml_decoder *d, int32_t x, int32_t i,
                     const void *ud) {
    const oss *o = ud;
    return ml_decoder_layer(b, d, x,
                            (ml_layer_opts){ .rope = o->rope,
                                             .window = o->window[i],
                                             .ffn = { .moe = &o->moe } });
}

static bool even(int32_t i, const void *arg) {
    (void)arg;
    return i % 2 == 0;
}

/* The constants of the gate are compiled into its kernel. */
static void expect_number(ml_builder *b, const char *key, double value) {
    double found = ml_hf_config_num(b->config, key, value, -1e30, 1e30);
    if (found < value || found > value)
        ml_hf_config_fail(b->config, ML_EUNSUP, "%s: \"%s\" is %g; supported is %g",
                          b->config->path, key, found, value);
}

static ml_moe_opts read_moe(ml_builder *b, const ml_decoder *d) {
    ml_hf_config *c = b->config;
    ml_moe_opts o = { .router = "mlp.router",
                      .experts = "mlp.experts",
                      .router_bias = true,
                      .oss_experts = true,
                      .renorm = true,
                      .n_inner = d->n_inner,
                      .act = ML_ACT_CLAMPED };

    o.n_expert = (int32_t)ml_hf_config_int(c, "num_local_experts", 128, 1, 65536);
    o.top_k = (int32_t)ml_hf_config_int(c, "num_experts_per_tok", 4, 1, o.n_expert);
    expect_number(b, "swiglu_limit", 7.0);
    expect_number(b, "swiglu_alpha", 1.702);
    return o;
}

static void build_gpt_oss(ml_builder *b) {
    ml_hf_config *c = b->config;
    ml_decoder d;
    oss o;

    ml_decoder_read(b, &d,
                    &(ml_decoder_defaults){ .n_kv = 8,
                                            .head_dim = 64,
                                            .eps = 1e-5,
                                            .act_key = "hidden_act",
                                            .act = "silu" });
    d.qkv_bias = d.o_bias = ml_hf_config_bool(c, "attention_bias", true);
    d.sink = "self_attn.sinks";
    o.moe = read_moe(b, &d);
    if (!ml_hf_config_get(c, "rope_parameters") && !ml_hf_config_get(c, "rope_scaling"))
        ml_hf_config_fail(c, ML_EFORMAT,
                          "%s: neither \"rope_parameters\" nor \"rope_scaling\" is set; "
                          "gpt-oss needs its yarn parameters",
                          c->path);
    o.rope = ml_rope_read(b, d.head_dim,
                          (ml_rope_opts){ .theta = 150000, .partial = 1, .scaled = true });
    o.window = ml_windows_read(b, d.n_layer, ml_window_or_none(b, 128), even, NULL);
    ml_decoder_model(b, &d, layer, &o, (ml_model_opts){ 0 });
}

/* Other names of the same numbers, and the balance loss of pre-training. */
static const char *const ignored[] = { "experts_per_token", "initial_context_length",
                                       "output_router_logits", "router_aux_loss_coef",
                                       NULL };

const ml_family ml_family_gpt_oss = { "gpt_oss", "GptOssForCausalLM", build_gpt_oss,
                                      ignored };
