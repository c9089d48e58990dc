/* Mixtral, and MiniMax-M2 with sigmoid scores, a selection bias, norms over all of q and
 * k, and half of each head rotated. */
#include <stdio.h>

#include "model/specs/families.h"

typedef struct sparse {
    const ml_rope *rope;
    int32_t window;
    ml_moe_opts moe;
} sparse;

static int32_t layer(ml_builder *b, const ml_decoder *d, int32_t x, int32_t i,
                     const void *ud) {
    const sparse *s = ud;
    (void)i;
    return ml_decoder_layer(
        b, d, x,
        (ml_layer_opts){ .rope = s->rope, .window = s->window, .ffn = { .moe = &s->moe } });
}

/* w1, w3 and w2 are gate, up and down. */
static ml_moe_opts read_moe(ml_builder *b, const ml_decoder *d, int32_t n_expert,
                            int32_t top_k) {
    ml_hf_config *c = b->config;
    ml_moe_opts o = { .router = "block_sparse_moe.gate",
                      .experts = "block_sparse_moe.experts",
                      .gate = "w1",
                      .up = "w3",
                      .down = "w2",
                      .renorm = true,
                      .n_inner = d->n_inner,
                      .act = d->act };

    o.n_expert = (int32_t)ml_hf_config_int(c, "num_local_experts", n_expert, 1, 65536);
    o.top_k = (int32_t)ml_hf_config_int(c, "num_experts_per_tok", top_k, 1, o.n_expert);
    return o;
}

static void build_mixtral(ml_builder *b) {
    ml_decoder d;
    sparse s = { 0 };

    ml_decoder_read(b, &d,
                    &(ml_decoder_defaults){
                        .n_kv = 8, .eps = 1e-5, .act_key = "hidden_act", .act = "silu" });
    s.moe = read_moe(b, &d, 8, 2);
    s.rope = ml_rope_read(b, d.head_dim,
                          (ml_rope_opts){ .theta = 1e6, .partial = 1, .scaled = true });
    s.window = ml_window_or_none(b, 0);
    ml_decoder_model(b, &d, layer, &s, (ml_model_opts){ 0 });
}

/* The number of rotated elements of a head.  Releases have rotary_dim next to other keys
 * of their own, such as qk_norm_type.  transformers before 5.22 does not know the key and
 * rotates whole heads; a config written by it alone therefore means whole heads. */
static int64_t read_rotary(ml_builder *b, int32_t head_dim) {
    ml_hf_config *c = b->config;
    int64_t rotary = ml_hf_config_int(c, "rotary_dim", head_dim, 2, head_dim);
    const char *version = ml_hf_config_str(c, "transformers_version", "");
    int major = 0, minor = 0;
    bool known = sscanf(version, "%d.%d", &major, &minor) == 2;

    if (known && major == 5 && minor < 22 && !ml_hf_config_get(c, "qk_norm_type"))
        return head_dim;
    return rotary;
}

static void build_minimax_m2(ml_builder *b) {
    ml_hf_config *c = b->config;
    ml_decoder d;
    sparse s = { 0 };

    ml_decoder_read(b, &d,
                    &(ml_decoder_defaults){ .n_kv = 8,
                                            .head_dim = 128,
                                            .eps = 1e-6,
                                            .act_key = "hidden_act",
                                            .act = "silu" });
    d.qk_norm = ML_QK_NORM_WHOLE;
    s.moe = read_moe(b, &d, 256, 8);
    s.moe.bias = "block_sparse_moe.e_score_correction_bias";
    s.moe.sigmoid = true;
    s.rope = ml_rope_read(
        b, d.head_dim,
        (ml_rope_opts){ .theta = 5e6,
                        .partial = (double)read_rotary(b, d.head_dim) / d.head_dim,
                        .scaled = true });
    if (!ml_hf_config_bool(c, "use_qk_norm", true))
        ml_hf_config_fail(c, ML_EUNSUP,
                          "%s: \"use_qk_norm\" is false; MiniMax-M2 needs norms of q and k",
                          c->path);
    ml_decoder_model(b, &d, layer, &s, (ml_model_opts){ 0 });
}

/* Balance losses and jitter belong to pre-training. */
static const char *const ignored[] = { "output_router_logits", "router_aux_loss_coef",
                                       "router_jitter_noise", NULL };
static const char *const ignored_minimax[] = { "output_router_logits",
                                               "router_aux_loss_coef",
                                               "router_jitter_noise",
                                               "attn_type_list",
                                               "layernorm_full_attention_beta",
                                               "mlp_hidden_size",
                                               "mtp_transformer_layers",
                                               "num_mtp_modules",
                                               "qk_norm_type",
                                               "scoring_func",
                                               "shared_intermediate_size",
                                               "use_mtp",
                                               "use_routing_bias",
                                               NULL };

const ml_family ml_family_mixtral = { "mixtral", "MixtralForCausalLM", build_mixtral,
                                      ignored };
const ml_family ml_family_minimax_m2 = { "minimax_m2", "MiniMaxM2ForCausalLM",
                                         build_minimax_m2, ignored_minimax };
