#include <math.h>
#include <string.h>

#include "family.h"

enum { MAX_WIDTH = 1 << 20, MAX_VOCAB = 1 << 24, MAX_LAYER = 1024, MAX_HEAD = 4096 };

static int32_t read_act(miles_graph *g) {
    const char *act = g->string(g, "hidden_act", "silu");

    if (!strcmp(act, "gelu_pytorch_tanh"))
        return MILES_ACT_GELU_TANH;
    if (strcmp(act, "silu") != 0)
        g->fail(g, "\"hidden_act\" must be silu or gelu_pytorch_tanh");
    return MILES_ACT_SILU;
}

static void read_heads(miles_graph *g, decoder *d, const decoder_defaults *def) {
    int64_t each;

    d->n_head = (int32_t)g->integer(g, "num_attention_heads", MILES_REQUIRED, 1, MAX_HEAD);
    d->n_kv = (int32_t)g->integer(g, "num_key_value_heads",
                                  def->n_kv ? def->n_kv : d->n_head, 1, MAX_HEAD);
    each = d->n_hidden / d->n_head;
    d->head_dim = (int32_t)g->integer(g, "head_dim",
                                      def->head_dim ? def->head_dim
                                      : each        ? each
                                                    : 1,
                                      1, 1024);
    d->bias = g->boolean(g, "attention_bias", false);
}

void decoder_read(miles_graph *g, decoder *d, const decoder_defaults *def,
                  const char *const *carried) {
    miles_model_sizes sizes = { .size = sizeof sizes, .carried = carried };
    miles_rope rope = { .size = sizeof rope, .theta = 10000, .partial = def->rotated };

    *d = (decoder){ 0 };
    sizes.n_vocab = g->integer(g, "vocab_size", MILES_REQUIRED, 1, MAX_VOCAB);
    sizes.n_hidden = d->n_hidden =
        g->integer(g, "hidden_size", MILES_REQUIRED, 1, MAX_WIDTH);
    d->n_inner = g->integer(g, "intermediate_size",
                            def->n_inner ? def->n_inner : MILES_REQUIRED, 1, MAX_WIDTH);
    sizes.n_layer = d->n_layer =
        (int32_t)g->integer(g, "num_hidden_layers", MILES_REQUIRED, 1, MAX_LAYER);
    read_heads(g, d, def);
    d->eps = g->number(g, "rms_norm_eps", 1e-6, 0, 1);
    d->act = read_act(g);
    sizes.max_position = g->integer(g, "max_position_embeddings", 0, 0, INT64_MAX);
    sizes.tied = g->boolean(g, "tie_word_embeddings", false);
    g->sizes(g, &sizes);
    rope.head_dim = d->head_dim;
    d->frequencies = g->read_rope(g, &rope);
}

int32_t decoder_linear(miles_graph *g, int32_t x, const char *name, int64_t n_out,
                       miles_shard shard, bool bias) {
    return g->linear(g, x,
                     &(miles_linear){ .size = sizeof(miles_linear),
                                      .name = name,
                                      .n_out = n_out,
                                      .shard = shard,
                                      .bias = bias });
}

int32_t decoder_norm(miles_graph *g, const decoder *d, int32_t x, const char *name) {
    return g->norm(g, x,
                   &(miles_norm){ .size = sizeof(miles_norm),
                                  .name = name,
                                  .eps = d->eps,
                                  .plus_one = d->plus_one });
}

static int32_t norm_heads(miles_graph *g, const decoder *d, int32_t x, const char *name) {
    return g->norm(g, x,
                   &(miles_norm){ .size = sizeof(miles_norm),
                                  .name = name,
                                  .eps = d->eps,
                                  .width = d->head_dim,
                                  .plus_one = d->plus_one });
}

/* The first or second half of each double-width head. */
static int32_t half_heads(miles_graph *g, const decoder *d, int32_t x, int64_t at) {
    return g->slice(g, x,
                    &(miles_slice){ .size = sizeof(miles_slice),
                                    .n_group = d->n_head,
                                    .part = { { at, d->head_dim } } });
}

int32_t decoder_attn(miles_graph *g, const decoder *d, int32_t x, int32_t window) {
    int64_t n_q = (int64_t)d->n_head * d->head_dim, n_kv = (int64_t)d->n_kv * d->head_dim;
    int32_t q = decoder_linear(g, x, "self_attn.q_proj", n_q * (d->gate ? 2 : 1),
                               MILES_SHARD_COL, d->bias);
    int32_t k = decoder_linear(g, x, "self_attn.k_proj", n_kv, MILES_SHARD_COL, d->bias);
    int32_t v = decoder_linear(g, x, "self_attn.v_proj", n_kv, MILES_SHARD_COL, d->bias);
    int32_t gate = MILES_NO_VALUE, o;

    if (d->gate) {
        gate = half_heads(g, d, q, d->head_dim);
        q = half_heads(g, d, q, 0);
    }
    q = norm_heads(g, d, q, "self_attn.q_norm");
    k = norm_heads(g, d, k, "self_attn.k_norm");
    q = g->rope(g, q, d->frequencies, d->head_dim, false);
    k = g->rope(g, k, d->frequencies, d->head_dim, false);
    o = g->attn(g, q, k, v,
                &(miles_attn){ .size = sizeof(miles_attn),
                               .head_dim = d->head_dim,
                               .window = window,
                               .scale = 1.0 / sqrt((double)d->head_dim) });
    if (d->gate)
        o = g->glu(g, gate, o, MILES_ACT_SIGMOID);
    return decoder_linear(g, o, "self_attn.o_proj", d->n_hidden, MILES_SHARD_ROW, d->bias);
}

int32_t decoder_mlp(miles_graph *g, const decoder *d, int32_t x) {
    int32_t gate =
        decoder_linear(g, x, "mlp.gate_proj", d->n_inner, MILES_SHARD_COL, false);
    int32_t up = decoder_linear(g, x, "mlp.up_proj", d->n_inner, MILES_SHARD_COL, false);

    return decoder_linear(g, g->glu(g, gate, up, d->act), "mlp.down_proj", d->n_hidden,
                          MILES_SHARD_ROW, false);
}

void decoder_model(miles_graph *g, const decoder *d, const decoder_layers *layers,
                   const void *family) {
    int32_t x = g->embed(g, "model.embed_tokens.weight", 1), h;

    for (int32_t i = 0; i < d->n_layer; i++) {
        g->begin_layer(g, i);
        h = decoder_norm(g, d, x, "input_layernorm");
        x = g->add(g, x, layers->mixer(g, d, h, i, family));
        h = decoder_norm(g, d, x, "post_attention_layernorm");
        x = g->add(g, x, layers->ffn(g, d, h, i, family));
        g->end_layer(g);
    }
    g->head(g, decoder_norm(g, d, x, "model.norm"), "lm_head", 0);
}
