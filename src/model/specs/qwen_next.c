/* Qwen3-Next and Qwen3.5 (text): three of four layers are gated delta nets, the fourth is
 * attention with an output gate; 1+w norms; experts with a gated shared expert, or a
 * plain MLP.  Qwen3-Next stores the delta net's inputs in two projections, interleaved by
 * key head, Qwen3.5 in four. */
#include <string.h>

#include "model/specs/families.h"

typedef struct next {
    const ml_rope *rope;
    const bool *linear; /* [n_layer] whether it is a gated delta net */
    const bool *sparse; /* [n_layer], or NULL: no experts */
    ml_moe_opts moe;
    int64_t n_shared;
    ml_linear_rnn_opts net;
    int32_t taps;
    bool interleaved;
} next;

/* --- config ----------------------------------------------------------------- */

static void linear_from_types(ml_builder *b, bool *linear, int32_t n_layer,
                              const ml_json *types) {
    ml_hf_config *c = b->config;
    const ml_json *t = types->child;

    if (types->type != ML_JSON_ARRAY || types->n != n_layer) {
        ml_hf_config_fail(c, ML_EFORMAT,
                          "%s:%u: \"layer_types\" must be an array of %d strings", c->path,
                          types->line, n_layer);
        return;
    }
    for (int32_t i = 0; i < n_layer; i++, t = t->next) {
        linear[i] = t->type == ML_JSON_STRING && ml_str_is(t->text, "linear_attention");
        if (!linear[i] &&
            !(t->type == ML_JSON_STRING && ml_str_is(t->text, "full_attention")))
            ml_hf_config_fail(c, ML_EUNSUP,
                              "%s:%u: \"layer_types\" of layer %d must be "
                              "\"linear_attention\" or \"full_attention\"",
                              c->path, t->line, i);
    }
}

static const bool *read_linear_layers(ml_builder *b, int32_t n_layer) {
    const ml_json *types = ml_hf_config_get(b->config, "layer_types");
    int64_t every = ml_hf_config_int(b->config, "full_attention_interval", 4, 1, INT32_MAX);
    bool *linear = ML_NEW(&b->spec->arena, bool, n_layer);

    for (int32_t i = 0; i < n_layer; i++)
        linear[i] = (i + 1) % every != 0;
    if (types)
        linear_from_types(b, linear, n_layer, types);
    return linear;
}

static void read_net(ml_builder *b, const ml_decoder *d, next *x) {
    ml_hf_config *c = b->config;
    ml_linear_rnn_opts *o = &x->net;

    o->n_key = (int32_t)ml_hf_config_int(c, "linear_num_key_heads", 16, 1, 4096);
    o->n_head = (int32_t)ml_hf_config_int(c, "linear_num_value_heads", 32, 1, 4096);
    o->key_dim = (int32_t)ml_hf_config_int(c, "linear_key_head_dim", 128, 1, 4096);
    o->value_dim = (int32_t)ml_hf_config_int(c, "linear_value_head_dim", 128, 1, 4096);
    x->taps = (int32_t)ml_hf_config_int(c, "linear_conv_kernel_dim", 4, 2, 8);
    if (o->n_head % o->n_key != 0) {
        ml_hf_config_fail(c, ML_EFORMAT,
                          "%s: linear_num_value_heads (%d) is not a multiple of "
                          "linear_num_key_heads (%d)",
                          c->path, o->n_head, o->n_key);
        o->n_key = o->n_head;
    }
    if (d->act != ML_ACT_SILU)
        ml_hf_config_fail(c, ML_EUNSUP,
                          "%s: \"hidden_act\" is not silu, the only activation supported "
                          "with gated delta nets",
                          c->path);
}

static void read_common(ml_builder *b, ml_decoder *d, next *x,
                        const ml_decoder_defaults *def) {
    ml_decoder_read(b, d, def);
    d->qk_norm = ML_QK_NORM_HEAD;
    d->norm_plus_one = d->attn_gate = true;
    d->qkv_bias = d->o_bias = ml_hf_config_bool(b->config, "attention_bias", false);
    *x = (next){ .rope = ml_rope_read(
                     b, d->head_dim,
                     (ml_rope_opts){ .theta = 10000, .partial = 0.25, .scaled = true }),
                 .linear = read_linear_layers(b, d->n_layer) };
    read_net(b, d, x);
    b->spec->carried = ml_carried_mtp;
    if (!ml_hf_config_bool(b->config, "attn_output_gate", true))
        ml_hf_config_fail(b->config, ML_EUNSUP,
                          "%s: \"attn_output_gate\" is false; the family needs the gate",
                          b->config->path);
}

/* --- layers ----------------------------------------------------------------- */

static int32_t project(ml_builder *b, int32_t x, const char *name, int64_t n_out) {
    return ml_build_linear(
        b, x, (ml_linear_opts){ .name = name, .n_out = n_out, .shard = ML_SHARD_COL });
}

static int32_t slice(ml_builder *b, int32_t x, int32_t n_group, int64_t at, int64_t width) {
    return ml_build_slice(b, x,
                          (ml_slice_opts){ .n_group = n_group, .part = { { at, width } } });
}

/* Inputs of a delta net. */
typedef struct inputs {
    int32_t qkv, z, a, gate;
} inputs;

/* By key head: q, k, v and z of its value heads; gates and steps of its value heads. */
static inputs interleaved_inputs(ml_builder *b, const next *n, int32_t x) {
    const ml_linear_rnn_opts *o = &n->net;
    int64_t each = o->n_head / o->n_key, dk = o->key_dim, dv = each * o->value_dim;
    int32_t qkvz = project(b, x, "linear_attn.in_proj_qkvz", o->n_key * 2 * (dk + dv));
    int32_t ba = project(b, x, "linear_attn.in_proj_ba", 2 * (int64_t)o->n_head);
    ml_slice_opts qkv = { .n_group = o->n_key,
                          .part = { { 0, dk }, { dk, dk }, { 2 * dk, dv } } };

    return (inputs){ .qkv = ml_build_slice(b, qkvz, qkv),
                     .z = slice(b, qkvz, o->n_key, 2 * dk + dv, dv),
                     .gate = slice(b, ba, o->n_key, 0, each),
                     .a = slice(b, ba, o->n_key, each, each) };
}

static inputs plain_inputs(ml_builder *b, const next *n, int32_t x) {
    const ml_linear_rnn_opts *o = &n->net;
    int64_t key = (int64_t)o->n_key * o->key_dim, value = (int64_t)o->n_head * o->value_dim;
    int32_t qkv = project(b, x, "linear_attn.in_proj_qkv", 2 * key + value);
    int32_t z = project(b, x, "linear_attn.in_proj_z", value);
    int32_t gate = project(b, x, "linear_attn.in_proj_b", o->n_head);

    return (inputs){ qkv, z, project(b, x, "linear_attn.in_proj_a", o->n_head), gate };
}

static int32_t delta_net(ml_builder *b, const ml_decoder *d, const next *n, int32_t x) {
    inputs in = n->interleaved ? interleaved_inputs(b, n, x) : plain_inputs(b, n, x);
    int32_t qkv = ml_build_conv(b, in.qkv, "linear_attn.conv1d", n->taps, false);
    int32_t decay = ml_build_decay(
        b, in.a, in.gate,
        (ml_decay_opts){ .log_speed = "linear_attn.A_log", .bias = "linear_attn.dt_bias" });
    int32_t o = ml_build_linear_rnn(b, qkv, decay, n->net);

    o = ml_build_norm(b, o, "linear_attn.norm", d->eps, n->net.value_dim, false);
    o = ml_build_glu(b, in.z, o, ML_ACT_SILU);
    return ml_build_linear(b, o,
                           (ml_linear_opts){ .name = "linear_attn.out_proj",
                                             .n_out = d->n_hidden,
                                             .shard = ML_SHARD_ROW });
}

static int32_t layer(ml_builder *b, const ml_decoder *d, int32_t x, int32_t i,
                     const void *ud) {
    const next *n = ud;
    ml_ffn ffn = { 0 };
    int32_t h = ml_decoder_norm(b, d, x, "input_layernorm");

    if (n->sparse && n->sparse[i])
        ffn = (ml_ffn){ .moe = &n->moe,
                        .shared = "mlp.shared_expert",
                        .n_shared = n->n_shared,
                        .shared_gate = "mlp.shared_expert_gate" };
    h = n->linear[i] && !b->mtp ? delta_net(b, d, n, h)
                                : ml_decoder_attn(b, d, h, n->rope, 0);
    x = ml_build_add(b, x, h);
    h = ml_decoder_norm(b, d, x, "post_attention_layernorm");
    return ml_build_add(b, x, ml_decoder_ffn(b, d, h, &ffn));
}

/* A layer with full attention. */
static const ml_mtp_names mtp = { .layers = "mtp.layers",
                                  .embed_norm = "mtp.pre_fc_norm_embedding",
                                  .hidden_norm = "mtp.pre_fc_norm_hidden",
                                  .project = "mtp.fc",
                                  .norm = "mtp.norm" };

/* --- families --------------------------------------------------------------- */

static void read_experts(ml_builder *b, const ml_decoder *d, next *x,
                         const ml_qwen_moe_defaults *def) {
    x->moe = ml_moe_read_qwen(b, d, def);
    x->n_shared =
        ml_hf_config_int(b->config, "shared_expert_intermediate_size", 512, 1, 1 << 20);
}

static void build_qwen3_next(ml_builder *b) {
    ml_decoder d;
    next x;

    read_common(b, &d, &x,
                &(ml_decoder_defaults){ .n_kv = 2,
                                        .head_dim = 256,
                                        .n_inner = 5632,
                                        .eps = 1e-6,
                                        .act_key = "hidden_act",
                                        .act = "silu" });
    read_experts(b, &d, &x,
                 &(ml_qwen_moe_defaults){
                     .n_expert = 512, .top_k = 10, .n_inner = 512, .renorm = true });
    x.sparse = ml_sparse_layers_read_qwen(b, d.n_layer);
    x.interleaved = true;
    ml_decoder_model(b, &d, layer, &x, (ml_model_opts){ .mtp = &mtp });
}

static void build_qwen3_5(ml_builder *b) {
    ml_decoder d;
    next x;

    read_common(b, &d, &x,
                &(ml_decoder_defaults){ .n_kv = 4,
                                        .head_dim = 256,
                                        .n_inner = 12288,
                                        .eps = 1e-6,
                                        .act_key = "hidden_act",
                                        .act = "silu" });
    ml_decoder_model(b, &d, layer, &x, (ml_model_opts){ .mtp = &mtp });
}

static void build_qwen3_5_moe(ml_builder *b) {
    ml_decoder d;
    next x;
    bool *sparse;

    read_common(b, &d, &x,
                &(ml_decoder_defaults){ .n_kv = 2,
                                        .head_dim = 256,
                                        .n_inner = 1, /* no layer has a plain MLP */
                                        .eps = 1e-6,
                                        .act_key = "hidden_act",
                                        .act = "silu" });
    read_experts(b, &d, &x,
                 &(ml_qwen_moe_defaults){
                     .n_expert = 256, .top_k = 8, .n_inner = 512, .renorm = true });
    x.sparse = sparse = ML_NEW(&b->spec->arena, bool, d.n_layer);
    memset(sparse, true, (size_t)d.n_layer * sizeof *sparse);
    ml_decoder_model(b, &d, layer, &x, (ml_model_opts){ .mtp = &mtp });
}

/* Multi-token prediction layers are not run; the state of recurrent layers is always f32. */
#define IGNORED                                                                            \
    "mamba_ssm_dtype", "mlp_only_layers", "mtp_num_hidden_layers",                         \
        "mtp_use_dedicated_embeddings"
static const char *const ignored[] = { IGNORED, NULL };
/* The balance loss belongs to pre-training; RL recipes leave it at zero. */
static const char *const ignored_moe[] = { IGNORED, "output_router_logits",
                                           "router_aux_loss_coef", NULL };

const ml_family ml_family_qwen3_next = { "qwen3_next", "Qwen3NextForCausalLM",
                                         build_qwen3_next, ignored_moe };
const ml_family ml_family_qwen3_5 = { "qwen3_5_text", "Qwen3_5ForCausalLM", build_qwen3_5,
                                      ignored };
const ml_family ml_family_qwen3_5_moe = { "qwen3_5_moe_text", "Qwen3_5MoeForCausalLM",
                                          build_qwen3_5_moe, ignored_moe };
