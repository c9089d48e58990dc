/* DeepSeek-V3 (and R1), Kimi-K2, GLM-4.7-Flash (glm4_moe_lite): MLA, and experts with
 * sigmoid scores and a selection bias.  DeepSeek-V3.2 and GLM-5 (glm_moe_dsa): the same
 * with sparse attention (DSA) to keys that an indexer selects. */
#include "model/specs/families.h"

typedef struct deepseek {
    ml_mla mla;
    ml_indexer indexer;
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

/* Defaults of rms_norm_eps and first_k_dense_replace, and of the experts' keys. */
typedef struct defaults {
    double eps;
    int32_t n_dense;
    ml_moe_defaults moe;
    bool indexed;     /* an indexer selects the keys, ... */
    bool interleaved; /* ... whose rotary pairs are (0,1) (2,3).. */
    bool shares;      /* ... in some layers, and the others reuse its selection */
} defaults;

static void read_indexer(ml_builder *b, deepseek *s, const defaults *def, int32_t n_layer) {
    ml_indexer_read(b, &s->indexer, &s->mla);
    s->indexer.interleaved = def->interleaved;
    if (def->shares)
        s->indexer.shared = ml_indexer_shared_read(b, n_layer);
    s->mla.indexer = &s->indexer;
}

static void build(ml_builder *b, const defaults *def) {
    ml_decoder d;
    deepseek s = { 0 };

    ml_decoder_read(
        b, &d,
        &(ml_decoder_defaults){
            .head_dim = 2, .eps = def->eps, .act_key = "hidden_act", .act = "silu" });
    ml_mla_read(b, &s.mla);
    if (def->indexed)
        read_indexer(b, &s, def, d.n_layer);
    s.sparse = ml_sparse_layers_read(b, d.n_layer, def->n_dense);
    s.ffn = ml_moe_read_deepseek(b, &d, &s.moe, &def->moe);
    ml_decoder_model(b, &d, layer, &s, (ml_model_opts){ .mtp = &ml_mtp_nextn });
}

static void build_deepseek_v3(ml_builder *b) {
    build(b, &(defaults){ 1e-6, 3, { 8, 4, 2.5 } });
}

static void build_glm4_moe_lite(ml_builder *b) {
    build(b, &(defaults){ 1e-5, 1, { 1, 1, 1.8 } });
}

static void build_deepseek_v32(ml_builder *b) {
    build(b, &(defaults){ 1e-6, 3, { 8, 4, 2.5 }, .indexed = true });
}

static void build_glm_moe_dsa(ml_builder *b) {
    build(
        b,
        &(defaults){
            1e-5, 3, { 1, 1, 2.5 }, .indexed = true, .interleaved = true, .shares = true });
}

/* Keys of the pre-training balance loss, and widths that follow from others. */
static const char *const ignored[] = { "aux_loss_alpha",
                                       "ep_size",
                                       "head_dim",
                                       "qk_head_dim",
                                       "moe_layer_freq",
                                       "seq_aux",
                                       "pretraining_tp",
                                       "output_router_logits",
                                       "layer_types", /* all layers have one type */
                                       "mlp_bias",
                                       "num_key_value_heads",
                                       "indexer_rope_interleave",
                                       NULL };

const ml_family ml_family_deepseek_v3 = { "deepseek_v3", "DeepseekV3ForCausalLM",
                                          build_deepseek_v3, ignored };
const ml_family ml_family_kimi_k2 = { "kimi_k2", "DeepseekV3ForCausalLM", build_deepseek_v3,
                                      ignored };
const ml_family ml_family_glm4_moe_lite = { "glm4_moe_lite", "Glm4MoeLiteForCausalLM",
                                            build_glm4_moe_lite, ignored };
const ml_family ml_family_deepseek_v32 = { "deepseek_v32", "DeepseekV32ForCausalLM",
                                           build_deepseek_v32, ignored };
const ml_family ml_family_glm_moe_dsa = { "glm_moe_dsa", "GlmMoeDsaForCausalLM",
                                          build_glm_moe_dsa, ignored };
