/* Qwen2 (biases in q, k, v), MiMo (Qwen2 with a multi-token prediction layer), Qwen3 (QK-norm
 * per head), Qwen3-MoE (experts instead of MLPs). */
#include <string.h>

#include "model/specs/families.h"

static const ml_decoder_defaults qwen2_defaults = { .eps = 1e-6,
                                                    .act_key = "hidden_act",
                                                    .act = "silu" };
static const ml_decoder_defaults qwen3_defaults = {
    .head_dim = 128, .eps = 1e-6, .act_key = "hidden_act", .act = "silu"
};

static const ml_rope *read_rope(ml_builder *b, const ml_decoder *d) {
    return ml_rope_read(b, d->head_dim,
                        (ml_rope_opts){ .theta = 10000, .partial = 1, .scaled = true });
}

typedef struct qwen {
    const ml_rope *rope;
    const int32_t *window;
    const bool *sparse; /* [n_layer], or NULL: no experts */
    ml_moe_opts moe;
} qwen;

static int32_t layer(ml_builder *b, const ml_decoder *d, int32_t x, int32_t i,
                     const void *ud) {
    const qwen *q = ud;
    return ml_decoder_layer(
        b, d, x,
        (ml_layer_opts){ .rope = q->rope,
                         .window = q->window[i],
                         .ffn = { .moe = q->sparse && q->sparse[i] ? &q->moe : NULL } });
}

static void build_dense(ml_builder *b, const ml_decoder *d, const ml_mtp_names *mtp) {
    qwen q = { .rope = read_rope(b, d), .window = ml_windows_read_qwen(b, d->n_layer) };
    ml_decoder_model(b, d, layer, &q, (ml_model_opts){ .mtp = mtp });
}

static void build_qwen2(ml_builder *b) {
    ml_decoder d;
    ml_decoder_read(b, &d, &qwen2_defaults);
    d.qkv_bias = true;
    build_dense(b, &d, NULL);
}

static const char *const carried_mimo[] = { "model.mtp_layers.", NULL };
static const ml_mtp_names mtp_mimo = { .layers = "model.mtp_layers",
                                       .inside = true,
                                       .embed_norm = "token_layernorm",
                                       .hidden_norm = "hidden_layernorm",
                                       .project = "input_proj",
                                       .norm = "final_layernorm",
                                       .hidden_first = true };

static void build_mimo(ml_builder *b) {
    bool has_mtp;
    ml_decoder d;

    ml_decoder_read(b, &d, &qwen2_defaults);
    d.qkv_bias = ml_hf_config_bool(b->config, "attention_bias", true);
    has_mtp = b->spec->n_nextn > 0;
    b->spec->n_nextn = 0; /* their names are not those of further layers */
    b->spec->carried = carried_mimo;
    build_dense(b, &d, has_mtp ? &mtp_mimo : NULL);
}

static void build_qwen3(ml_builder *b) {
    ml_decoder d;
    ml_decoder_read(b, &d, &qwen3_defaults);
    d.qk_norm = ML_QK_NORM_HEAD;
    d.qkv_bias = d.o_bias = ml_hf_config_bool(b->config, "attention_bias", false);
    build_dense(b, &d, NULL);
}

static const int32_t *read_moe_windows(ml_builder *b, int32_t n_layer) {
    bool use = ml_hf_config_bool(b->config, "use_sliding_window", false);
    int32_t window = ml_window_or_none(b, 4096);
    return ml_windows_read(b, n_layer, use ? window : 0, ml_every_layer, NULL);
}

static void build_qwen3_moe(ml_builder *b) {
    ml_decoder d;
    qwen q;

    ml_decoder_read(b, &d,
                    &(ml_decoder_defaults){
                        .n_kv = 4, .eps = 1e-6, .act_key = "hidden_act", .act = "silu" });
    d.qk_norm = ML_QK_NORM_HEAD;
    d.qkv_bias = d.o_bias = ml_hf_config_bool(b->config, "attention_bias", false);
    q.moe = ml_moe_read_qwen(b, &d, &(ml_qwen_moe_defaults){ .top_k = 8 });
    q.sparse = ml_sparse_layers_read_qwen(b, d.n_layer);
    q.rope = read_rope(b, &d);
    q.window = read_moe_windows(b, d.n_layer);
    ml_decoder_model(b, &d, layer, &q, (ml_model_opts){ 0 });
}

static const char *const ignored[] = { NULL };
/* The balance loss belongs to pre-training; RL recipes leave it at zero. */
static const char *const ignored_moe[] = { "output_router_logits", "router_aux_loss_coef",
                                           "max_window_layers", NULL };

const ml_family ml_family_qwen2 = { "qwen2", "Qwen2ForCausalLM", build_qwen2, ignored };
const ml_family ml_family_mimo = { "mimo", "MiMoForCausalLM", build_mimo, ignored };
const ml_family ml_family_qwen3 = { "qwen3", "Qwen3ForCausalLM", build_qwen3, ignored };
const ml_family ml_family_qwen3_moe = { "qwen3_moe", "Qwen3MoeForCausalLM", build_qwen3_moe,
                                        ignored_moe };
