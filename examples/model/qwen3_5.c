/* Qwen3.5 (text): three of four layers are gated delta nets, the fourth is attention with
 * an output gate; norms with weights 1 + w. */
#include <string.h>

#include "family.h"

typedef struct hybrid {
    int64_t every; /* layers without layer_types: the last of so many has attention */
    int32_t taps;  /* of the convolution */
    miles_linear_rnn net;
} hybrid;

static void read_net(miles_graph *g, hybrid *x) {
    miles_linear_rnn *n = &x->net;

    *n = (miles_linear_rnn){ .size = sizeof *n };
    n->n_key = (int32_t)g->integer(g, "linear_num_key_heads", 16, 1, 4096);
    n->n_head = (int32_t)g->integer(g, "linear_num_value_heads", 32, 1, 4096);
    n->key_dim = (int32_t)g->integer(g, "linear_key_head_dim", 128, 1, 4096);
    n->value_dim = (int32_t)g->integer(g, "linear_value_head_dim", 128, 1, 4096);
    x->taps = (int32_t)g->integer(g, "linear_conv_kernel_dim", 4, 2, 8);
    x->every = g->integer(g, "full_attention_interval", 4, 1, INT32_MAX);
    if (!g->boolean(g, "attn_output_gate", true))
        g->fail(g, "\"attn_output_gate\" must be true");
}

static bool is_linear(miles_graph *g, const hybrid *x, int32_t layer) {
    return g->has(g, "layer_types")
               ? !strcmp(g->list_string(g, "layer_types", layer), "linear_attention")
               : (layer + 1) % x->every != 0;
}

static int32_t project(miles_graph *g, int32_t x, const char *name, int64_t n_out) {
    return decoder_linear(g, x, name, n_out, MILES_SHARD_COL, false);
}

static int32_t delta_net(miles_graph *g, const decoder *d, const hybrid *h, int32_t x) {
    const miles_linear_rnn *n = &h->net;
    int64_t key = (int64_t)n->n_key * n->key_dim, value = (int64_t)n->n_head * n->value_dim;
    int32_t qkv = project(g, x, "linear_attn.in_proj_qkv", 2 * key + value);
    int32_t z = project(g, x, "linear_attn.in_proj_z", value);
    int32_t gate = project(g, x, "linear_attn.in_proj_b", n->n_head);
    int32_t a = project(g, x, "linear_attn.in_proj_a", n->n_head), decay, o;

    qkv = g->conv(g, qkv, "linear_attn.conv1d", h->taps, false);
    decay = g->decay(g, a, gate,
                     &(miles_decay){ .size = sizeof(miles_decay),
                                     .log_speed = "linear_attn.A_log",
                                     .bias = "linear_attn.dt_bias" });
    o = g->linear_rnn(g, qkv, decay, n);
    o = g->norm(g, o,
                &(miles_norm){ .size = sizeof(miles_norm),
                               .name = "linear_attn.norm",
                               .eps = d->eps,
                               .width = n->value_dim });
    o = g->glu(g, z, o, MILES_ACT_SILU);
    return decoder_linear(g, o, "linear_attn.out_proj", d->n_hidden, MILES_SHARD_ROW,
                          false);
}

static int32_t mixer(miles_graph *g, const decoder *d, int32_t x, int32_t layer,
                     const void *family) {
    return is_linear(g, family, layer) ? delta_net(g, d, family, x)
                                       : decoder_attn(g, d, x, 0);
}

static int32_t ffn(miles_graph *g, const decoder *d, int32_t x, int32_t layer,
                   const void *family) {
    (void)layer, (void)family;
    return decoder_mlp(g, d, x);
}

static void build(miles_graph *g) {
    static const char *const carried[] = { "mtp.", NULL };
    static const decoder_layers layers = { mixer, ffn };
    decoder d;
    hybrid x;

    decoder_read(g, &d,
                 &(decoder_defaults){
                     .n_kv = 4, .head_dim = 256, .n_inner = 12288, .rotated = 0.25 },
                 carried);
    d.plus_one = d.gate = true;
    read_net(g, &x);
    decoder_model(g, &d, &layers, &x);
}

/* Multi-token prediction layers are not run; recurrent state is always f32. */
static const char *const ignored[] = { "mamba_ssm_dtype", "mlp_only_layers",
                                       "mtp_num_hidden_layers",
                                       "mtp_use_dedicated_embeddings", NULL };

const miles_family family_qwen3_5 = { sizeof(miles_family), "qwen3_5", "qwen3_5_text",
                                      "Qwen3_5ForCausalLM", build,     ignored };
