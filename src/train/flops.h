/* flops.h - FLOPs of a forward pass over a sequence, by Miles' formula.
 *
 * Used only to balance micro-batches (--balance-by-flops): the formula ignores routers,
 * embeddings and attention masks.
 *
 * thread: any. */
#ifndef ML_TRAIN_FLOPS_H
#define ML_TRAIN_FLOPS_H

#include "model/spec.h"

typedef struct ml_flops_shape {
    int64_t hidden, vocab, n_layer;
    int64_t n_head, n_group, head_dim; /* query heads, KV heads, width of both */
    /* Latent attention (MLA): ranks of queries and of keys and values, width of a key
     * without and with its rotary part, and of a value; 0: none. */
    int64_t q_rank, kv_rank, qk_dim, qk_rope_dim, v_dim;
    int64_t ffn; /* inner MLP widths that a token passes through, summed over all layers */
} ml_flops_shape;

ml_flops_shape ml_flops_shape_of(const ml_spec *s);
double ml_flops_forward(const ml_flops_shape *f, int64_t n_token);

#endif
