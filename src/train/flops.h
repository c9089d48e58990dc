/* flops.h - what a forward pass over a sequence costs, by Miles' formula.
 *
 * Used to balance micro-batches (--balance-by-flops) and for nothing else: routers, embeddings
 * and masks of attention are not looked at.
 *
 * thread: any. */
#ifndef ML_TRAIN_FLOPS_H
#define ML_TRAIN_FLOPS_H

#include "model/spec.h"

typedef struct ml_flops_shape {
    int64_t hidden, vocab, n_layer;
    int64_t n_head, n_group, head_dim; /* queries, keys and values, width of both */
    /* Latent attention: ranks of queries and of keys and values, width of a key without and
     * with its rotary part, and of a value; 0: none. */
    int64_t q_rank, kv_rank, qk_dim, qk_rope_dim, v_dim;
    int64_t ffn; /* inner widths that a token goes through, of all layers together */
} ml_flops_shape;

ml_flops_shape ml_flops_shape_of(const ml_spec *s);
double ml_flops_forward(const ml_flops_shape *f, int64_t n_token);

#endif
