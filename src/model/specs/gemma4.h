/* gemma4.h - what Gemma 3n and Gemma 4 have in common: sliding-window and full layers, of
 * which the last share the keys and values of earlier ones, and per-layer inputs. */
#ifndef ML_MODEL_SPECS_GEMMA4_H
#define ML_MODEL_SPECS_GEMMA4_H

#include "model/specs/decoder.h"

enum { ML_GEMMA_SLIDING, ML_GEMMA_FULL, ML_GEMMA_TYPES };

/* Properties common to the layers of one type. */
typedef struct ml_gemma_kind {
    ml_decoder d; /* with the head sizes of the type */
    const ml_rope *rope;
    int32_t window;
    bool k_is_v; /* values are the keys before their norm and rotation */
} ml_gemma_kind;

/* Keys and values of the last layer of a type that computes them. */
typedef struct ml_gemma_kept {
    int32_t k, v;
    ml_shared_kv pages;
} ml_gemma_kept;

typedef struct ml_gemma4 {
    ml_gemma_kind kind[ML_GEMMA_TYPES];
    const int32_t *type;  /* [n_layer] */
    int32_t first_shared; /* layers from here on reuse keys and values of earlier ones */
    bool wide_shared;     /* those layers have an MLP twice as wide */
    int64_t n_input;      /* width of a layer's own input (per-layer embedding); 0: none */
    int64_t n_input_vocab;
    ml_moe_opts moe;     /* n_expert 0: none */
    ml_gemma_kept *kept; /* [ML_GEMMA_TYPES] while layers are built */
    int32_t *input;      /* the per-layer inputs of all layers, concatenated */
} ml_gemma4;

/* Attention of layer i on x (already normed), output projection included. */
int32_t ml_gemma_attn(ml_builder *b, const ml_gemma4 *g, int32_t x, int32_t i);

/* Per-layer inputs of all layers, from the embedding x; ud: an ml_gemma4. */
void ml_gemma_all_inputs(ml_builder *b, const ml_decoder *d, int32_t x, const void *ud);
/* The input of layer i, gated by the hidden state x and projected to its width. */
int32_t ml_gemma_own_input(ml_builder *b, const ml_decoder *d, const ml_gemma4 *g,
                           int32_t x, int32_t i);

/* num_kv_shared_layers. */
void ml_gemma_read_shared(ml_builder *b, ml_gemma4 *g, int32_t n_layer, int32_t def);
/* hidden_size_per_layer_input, vocab_size_per_layer_input. */
void ml_gemma_read_inputs(ml_builder *b, ml_gemma4 *g);

#endif
