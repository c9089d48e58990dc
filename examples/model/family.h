/* family.h - what the families of this plug-in share. */
#ifndef FAMILY_H
#define FAMILY_H

#include "miles/model.h"

typedef struct decoder {
    int64_t n_hidden, n_inner;
    int32_t n_layer, n_head, n_kv, head_dim;
    double eps;
    int32_t act;         /* miles_act */
    int32_t frequencies; /* of read_rope */
    bool plus_one;       /* norm weights are stored as w - 1 */
    bool bias;           /* in the attention projections */
    bool gate;           /* q_proj has an output gate next to each head */
} decoder;

/* Defaults of keys; 0: required. */
typedef struct decoder_defaults {
    int32_t n_kv, head_dim;
    int64_t n_inner;
    double rotated; /* part of a head; 0: all */
} decoder_defaults;

/* Reads the keys that all have, and sets the sizes of the graph. */
void decoder_read(miles_graph *g, decoder *d, const decoder_defaults *def,
                  const char *const *carried);

int32_t decoder_linear(miles_graph *g, int32_t x, const char *name, int64_t n_out,
                       miles_shard shard, bool bias);
int32_t decoder_norm(miles_graph *g, const decoder *d, int32_t x, const char *name);
/* Attention with QK-norm, output projection included. */
int32_t decoder_attn(miles_graph *g, const decoder *d, int32_t x, int32_t window);
/* down(act(gate(x)) * up(x)) */
int32_t decoder_mlp(miles_graph *g, const decoder *d, int32_t x);

/* Embedding, layers x + mixer(norm(x)), x + ffn(norm(x)), norm, head. */
typedef struct decoder_layers {
    int32_t (*mixer)(miles_graph *g, const decoder *d, int32_t x, int32_t layer,
                     const void *family);
    int32_t (*ffn)(miles_graph *g, const decoder *d, int32_t x, int32_t layer,
                   const void *family);
} decoder_layers;
void decoder_model(miles_graph *g, const decoder *d, const decoder_layers *layers,
                   const void *family);

extern const miles_family family_qwen3, family_qwen3_moe, family_qwen3_5;

#endif
