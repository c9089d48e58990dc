/* Nemotron-H: layers with one mixer each, x + mixer(norm(x)): Mamba-2, attention without
 * rotary embedding, an MLP with squared ReLU, or DeepSeek's experts made of such MLPs. */
#include <string.h>

#include "model/specs/families.h"

typedef enum block { MAMBA, ATTENTION, MLP, MOE } block;

typedef struct nemotron {
    const block *block; /* [n_layer] */
    ml_linear_rnn_opts net;
    int32_t taps;
    float min_step;
    bool conv_bias, bias; /* in the convolution; in the mixer's projections */
    ml_moe_opts moe;
    int64_t n_shared, n_latent; /* n_latent 0: experts read the hidden state */
} nemotron;

/* --- layer types ------------------------------------------------------------ */

static const struct {
    const char *name, *old_name;
    block block;
    char letter;
} kinds[] = { { "linear_attention", "mamba", MAMBA, 'M' },
              { "full_attention", "attention", ATTENTION, '*' },
              { "mlp", "mlp", MLP, '-' },
              { "moe", "moe", MOE, 'E' } };
enum { N_KIND = sizeof kinds / sizeof *kinds };

static int kind_named(const ml_json *t) {
    for (int k = 0; k < N_KIND; k++)
        if (t->type == ML_JSON_STRING &&
            (ml_str_is(t->text, kinds[k].name) || ml_str_is(t->text, kinds[k].old_name)))
            return k;
    return -1;
}

static int kind_of_letter(char letter) {
    for (int k = 0; k < N_KIND; k++)
        if (kinds[k].letter == letter)
            return k;
    return -1;
}

/* hybrid_override_pattern: a letter for each layer. */
static const block *read_pattern(ml_builder *b, int32_t *n_layer) {
    ml_hf_config *c = b->config;
    const char *pattern = ml_hf_config_str(c, "hybrid_override_pattern", "");
    block *out = ML_NEW(&b->spec->arena, block, strlen(pattern) + 1);

    *n_layer = (int32_t)strlen(pattern);
    for (int32_t i = 0; i < *n_layer; i++) {
        int k = kind_of_letter(pattern[i]);
        if (k < 0)
            ml_hf_config_fail(c, ML_EUNSUP,
                              "%s: \"hybrid_override_pattern\" has '%c' for layer %d; "
                              "supported are M, *, - and E",
                              c->path, pattern[i], i);
        else
            out[i] = kinds[k].block;
    }
    return out;
}

/* layers_block_type: a word for each layer. */
static const block *read_types(ml_builder *b, const ml_json *types, int32_t *n_layer) {
    ml_hf_config *c = b->config;
    block *out = ML_NEW(&b->spec->arena, block, types->n + 1);
    int32_t n = 0;

    for (const ml_json *t = types->child; t; t = t->next, n++) {
        int k = kind_named(t);
        if (k < 0)
            ml_hf_config_fail(c, ML_EUNSUP,
                              "%s:%u: \"layers_block_type\" of layer %d must be "
                              "linear_attention, full_attention, mlp or moe",
                              c->path, t->line, n);
        else
            out[n] = kinds[k].block;
    }
    *n_layer = n;
    return out;
}

static const block *read_blocks(ml_builder *b, int32_t *n_layer) {
    const ml_json *types = ml_hf_config_get(b->config, "layers_block_type");
    const block *out = types && types->type == ML_JSON_ARRAY ? read_types(b, types, n_layer)
                                                             : read_pattern(b, n_layer);
    int32_t n_attention = 0;

    for (int32_t i = 0; i < *n_layer; i++)
        n_attention += out[i] == ATTENTION;
    if (!n_attention)
        ml_hf_config_fail(b->config, ML_EUNSUP,
                          "%s: neither \"layers_block_type\" nor "
                          "\"hybrid_override_pattern\" has a layer of attention",
                          b->config->path);
    if (!*n_layer) /* keeps the following rows consistent */
        *n_layer = 1;
    return out;
}

/* --- config ----------------------------------------------------------------- */

static void expect(ml_builder *b, const char *key, const char *value) {
    const char *found = ml_hf_config_str(b->config, key, value);
    if (strcmp(found, value) != 0)
        ml_hf_config_fail(b->config, ML_EUNSUP, "%s: \"%s\" is \"%s\"; supported is %s",
                          b->config->path, key, found, value);
}

static void read_mamba(ml_builder *b, nemotron *x) {
    ml_hf_config *c = b->config;
    ml_linear_rnn_opts *o = &x->net;

    o->n_key = (int32_t)ml_hf_config_int(c, "n_groups", 8, 1, 4096);
    o->n_head = (int32_t)ml_hf_config_int(c, "mamba_num_heads", 128, 1, 4096);
    o->key_dim = (int32_t)ml_hf_config_int(c, "ssm_state_size", 128, 1, 4096);
    o->value_dim = (int32_t)ml_hf_config_int(c, "mamba_head_dim", 64, 1, 4096);
    o->skip = "mixer.D";
    x->taps = (int32_t)ml_hf_config_int(c, "conv_kernel", 4, 2, 8);
    x->conv_bias = ml_hf_config_bool(c, "use_conv_bias", true);
    x->bias = ml_hf_config_bool(c, "use_bias", false);
    if (o->n_head % o->n_key != 0) {
        ml_hf_config_fail(c, ML_EFORMAT,
                          "%s: mamba_num_heads (%d) is not a multiple of n_groups (%d)",
                          c->path, o->n_head, o->n_key);
        o->n_key = o->n_head;
    }
    expect(b, "mamba_hidden_act", "silu");
    expect(b, "mlp_hidden_act", "relu2");
    x->min_step = (float)ml_hf_config_num(c, "time_step_min", 0.001, 0, 1e6);
}

static void read_moe(ml_builder *b, const ml_decoder *d, nemotron *x) {
    ml_ffn ffn = ml_moe_read_deepseek(
        b, d, &x->moe, &(ml_moe_defaults){ .n_group = 1, .top_group = 1, .scale = 1 });

    x->moe.router = "mixer.gate";
    x->moe.experts = "mixer.experts";
    x->moe.bias = "mixer.gate.e_score_correction_bias";
    x->moe.ungated = true;
    x->moe.act = ML_ACT_RELU;
    x->n_shared = ml_hf_config_int(b->config, "moe_shared_expert_intermediate_size",
                                   ffn.n_shared, 1, 1 << 20);
    x->n_latent = ml_hf_config_int(b->config, "moe_latent_size", 0, 1, 1 << 20);
}

static bool any_moe(const nemotron *x, int32_t n_layer) {
    for (int32_t i = 0; i < n_layer; i++)
        if (x->block[i] == MOE)
            return true;
    return false;
}

/* --- mixers ----------------------------------------------------------------- */

static int32_t project(ml_builder *b, int32_t x, const char *name, int64_t n_out, bool bias,
                       ml_shard shard) {
    return ml_build_linear(
        b, x,
        (ml_linear_opts){ .name = name, .n_out = n_out, .bias = bias, .shard = shard });
}

static int32_t part(ml_builder *b, int32_t x, int64_t at, int64_t width) {
    return ml_build_slice(b, x, (ml_slice_opts){ .part = { { at, width } } });
}

static int32_t mamba(ml_builder *b, const ml_decoder *d, const nemotron *n, int32_t x) {
    const ml_linear_rnn_opts *o = &n->net;
    int64_t inner = (int64_t)o->n_head * o->value_dim;
    int64_t mixed = inner + 2 * (int64_t)o->n_key * o->key_dim;
    int32_t all =
        project(b, x, "mixer.in_proj", inner + mixed + o->n_head, n->bias, ML_SHARD_COL);
    int32_t gate = part(b, all, 0, inner);
    int32_t xbc =
        ml_build_conv(b, part(b, all, inner, mixed), "mixer.conv1d", n->taps, n->conv_bias);
    int32_t decay = ml_build_decay(b, part(b, all, inner + mixed, o->n_head), ML_NONE,
                                   (ml_decay_opts){ .log_speed = "mixer.A_log",
                                                    .bias = "mixer.dt_bias",
                                                    .min_step = n->min_step });
    int32_t y = ml_build_glu(b, gate, ml_build_linear_rnn(b, xbc, decay, *o), ML_ACT_SILU);

    y = ml_build_group_norm(b, y, "mixer.norm.weight", d->eps, (int32_t)(inner / o->n_key));
    return project(b, y, "mixer.out_proj", d->n_hidden, n->bias, ML_SHARD_ROW);
}

static int32_t attention(ml_builder *b, const ml_decoder *d, int32_t x) {
    int64_t key = (int64_t)d->n_kv * d->head_dim;
    int32_t q = project(b, x, "mixer.q_proj", (int64_t)d->n_head * d->head_dim, d->qkv_bias,
                        ML_SHARD_COL);
    int32_t k = project(b, x, "mixer.k_proj", key, d->qkv_bias, ML_SHARD_COL);
    int32_t v = project(b, x, "mixer.v_proj", key, d->qkv_bias, ML_SHARD_COL);
    int32_t o = ml_build_attn(b, q, k, v,
                              (ml_attn_opts){ .head_dim = d->head_dim, .scale = d->scale });

    return project(b, o, "mixer.o_proj", d->n_hidden, d->o_bias, ML_SHARD_ROW);
}

/* down(relu(up(x))^2), with parameters prefix.up_proj and prefix.down_proj. */
static int32_t mlp(ml_builder *b, const ml_decoder *d, int32_t x, const char *prefix,
                   int64_t n_inner) {
    ml_arena *a = &b->spec->arena;
    int32_t up = project(b, x, ml_arena_printf(a, "%s.up_proj", prefix), n_inner,
                         d->mlp_bias, ML_SHARD_COL);
    return project(b, ml_build_glu(b, up, up, ML_ACT_RELU),
                   ml_arena_printf(a, "%s.down_proj", prefix), d->n_hidden, d->mlp_bias,
                   ML_SHARD_ROW);
}

/* The router reads the hidden state; the experts read it, or a projection of it to a
 * smaller width (latent experts). */
static int32_t moe(ml_builder *b, const ml_decoder *d, const nemotron *n, int32_t x) {
    int32_t y = x;

    if (n->n_latent)
        y = project(b, x, "mixer.fc1_latent_proj", n->n_latent, d->mlp_bias, ML_SHARD_NONE);
    y = ml_build_moe(b, y, x, n->moe);
    if (n->n_latent)
        y = project(b, y, "mixer.fc2_latent_proj", d->n_hidden, d->mlp_bias, ML_SHARD_NONE);
    return ml_build_add(b, y, mlp(b, d, x, "mixer.shared_experts", n->n_shared));
}

static int32_t mixer(ml_builder *b, const ml_decoder *d, const nemotron *n, int32_t x,
                     block kind) {
    switch (kind) {
    case MAMBA: return mamba(b, d, n, x);
    case ATTENTION: return attention(b, d, x);
    case MLP: return mlp(b, d, x, "mixer", d->n_inner);
    case MOE: return moe(b, d, n, x);
    }
    return x;
}

/* --- the model -------------------------------------------------------------- */

static void build_layers(ml_builder *b, const ml_decoder *d, const nemotron *n) {
    int32_t x = ml_build_embed(b, "backbone.embeddings.weight", 1);

    b->layers = "backbone.layers";
    for (int32_t i = 0; i < d->n_layer; i++) {
        int32_t h;
        ml_build_begin_layer(b, i);
        h = ml_decoder_norm(b, d, x, "norm");
        x = ml_build_add(b, x, mixer(b, d, n, h, n->block[i]));
        ml_build_end_layer(b);
    }
    ml_build_head(b, ml_decoder_norm(b, d, x, "backbone.norm_f"), "lm_head", b->spec->tied,
                  0);
}

static void build_nemotron_h(ml_builder *b) {
    ml_hf_config *c = b->config;
    ml_decoder d;
    nemotron x = { 0 };
    int32_t n_layer = 0;

    x.block = read_blocks(b, &n_layer);
    ml_decoder_read(b, &d,
                    &(ml_decoder_defaults){ .n_kv = 8,
                                            .head_dim = 128,
                                            .n_layer = n_layer,
                                            .n_inner = 21504,
                                            .eps_key = "layer_norm_epsilon",
                                            .eps = 1e-5,
                                            .act_key = "mamba_hidden_act",
                                            .act = "silu" });
    b->spec->n_layer = d.n_layer = n_layer;
    b->spec->n_nextn = 0; /* their names begin with mtp here */
    b->spec->carried = ml_carried_mtp;
    d.qkv_bias = d.o_bias = ml_hf_config_bool(c, "attention_bias", false);
    d.mlp_bias = ml_hf_config_bool(c, "mlp_bias", false);
    read_mamba(b, &x);
    if (any_moe(&x, n_layer))
        read_moe(b, &d, &x);
    build_layers(b, &d, &x);
}

/* Initialization of weights, options of other implementations; experts' keys where no
 * layer has experts. */
static const char *const ignored[] = { "chunk_size",
                                       "expand",
                                       "hidden_dropout",
                                       "mamba_proj_bias",
                                       "mamba_ssm_cache_dtype",
                                       "moe_intermediate_size",
                                       "moe_latent_size",
                                       "moe_shared_expert_intermediate_size",
                                       "moe_shared_expert_overlap",
                                       "mtp_layers_block_type",
                                       "mtp_hybrid_override_pattern",
                                       "hybrid_override_pattern",
                                       "n_group",
                                       "n_routed_experts",
                                       "n_shared_experts",
                                       "norm_topk_prob",
                                       "num_experts_per_tok",
                                       "num_logits_to_keep",
                                       "num_nextn_predict_layers",
                                       "output_router_logits",
                                       "rescale_prenorm_residual",
                                       "residual_in_fp32",
                                       "rope_theta",
                                       "partial_rotary_factor",
                                       "routed_scaling_factor",
                                       "sliding_window",
                                       "time_step_floor",
                                       "time_step_limit",
                                       "time_step_max",
                                       "topk_group",
                                       "use_mamba_kernels",
                                       NULL };

const ml_family ml_family_nemotron_h = { "nemotron_h", "NemotronHForCausalLM",
                                         build_nemotron_h, ignored };
