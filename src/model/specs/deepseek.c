/* DeepSeek-V3 (and R1), Kimi-K2, GLM-4.7-Flash (glm4_moe_lite): latent attention, and experts
 * chosen by sigmoids with a bias. */
#include "model/specs/families.h"

typedef struct deepseek {
    ml_mla mla;
    ml_moe_opts moe;
    ml_ffn ffn;
    const bool *sparse;
} deepseek;

static int32_t layer(ml_builder *b, const ml_decoder *d, int32_t x, int32_t i,
                     const void *ud) {
    const deepseek *s = ud;
    return ml_decoder_layer(
        b, d, x,
        (ml_layer_opts){ .mla = &s->mla, .ffn = s->sparse[i] ? s->ffn : (ml_ffn){ 0 } });
}

/* eps: default of rms_norm_eps; n_dense: of first_k_dense_replace. */
static void build(ml_builder *b, double eps, int32_t n_dense, const ml_moe_defaults *moe) {
    ml_decoder d;
    deepseek s;

    ml_decoder_read(
        b, &d,
        &(ml_decoder_defaults){
            .head_dim = 2, .eps = eps, .act_key = "hidden_act", .act = "silu" });
    ml_mla_read(b, &s.mla);
    s.sparse = ml_sparse_layers_read(b, d.n_layer, n_dense);
    s.ffn = ml_moe_read_deepseek(b, &d, &s.moe, moe);
    ml_decoder_model(b, &d, layer, &s, (ml_model_opts){ 0 });
}

static void build_deepseek_v3(ml_builder *b) {
    build(b, 1e-6, 3, &(ml_moe_defaults){ 8, 4, 2.5 });
}

static void build_glm4_moe_lite(ml_builder *b) {
    build(b, 1e-5, 1, &(ml_moe_defaults){ 1, 1, 1.8 });
}

/* The balance loss of pre-training, and widths that follow from others. */
static const char *const ignored[] = { "aux_loss_alpha",
                                       "ep_size",
                                       "head_dim",
                                       "qk_head_dim",
                                       "moe_layer_freq",
                                       "seq_aux",
                                       "pretraining_tp",
                                       "output_router_logits",
                                       NULL };

const ml_family ml_family_deepseek_v3 = { "deepseek_v3", "DeepseekV3ForCausalLM",
                                          build_deepseek_v3, ignored };
const ml_family ml_family_kimi_k2 = { "kimi_k2", "DeepseekV3ForCausalLM", build_deepseek_v3,
                                      ignored };
const ml_family ml_family_glm4_moe_lite = { "glm4_moe_lite", "Glm4MoeLiteForCausalLM",
                                            build_glm4_moe_lite, ignored };
