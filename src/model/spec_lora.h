/* spec_lora.h - the linear layers of a model that adapters may adapt, and the LORA ops that
 * add the adapters' outputs.
 *
 * A site is a linear layer: one weight matrix, one per expert, or one per head.  The LM head,
 * embeddings and the value head of a critic are none.  Sites are numbered in the order of the
 * spec, whether or not a LORA op follows them.
 *
 * thread: one, before the first plan of the spec is built. */
#ifndef ML_MODEL_SPEC_LORA_H
#define ML_MODEL_SPEC_LORA_H

#include "model/spec.h"

/* Its adapter is A [rank, n_in] and B [n_out, rank], of each group or shared by them. */
typedef struct ml_lora_layer {
    int32_t param;   /* the weights */
    int32_t input;   /* the value that it reads */
    int32_t n_group; /* experts, heads, or 1 */
    int64_t n_in, n_out;
    bool experts, heads;
    bool transposed; /* the weights of the spec are those of the checkpoint transposed */
    bool gate;       /* a router, or a factor for each row: no target of all-linear */
    bool inner;      /* it reads the output of an activation: down_proj */
} ml_lora_layer;

/* All sites, in the arena.  Those of a spec that is cut are the sites of the whole one. */
const ml_lora_layer *ml_spec_lora_layers(const ml_spec *s, ml_arena *a, int32_t *n);

/* Inserts a LORA op after each site that is wanted (NULL: after all), for adapters of at
 * most this rank. */
void ml_spec_lora_insert(ml_spec *s, const bool *wanted, int32_t max_rank);

/* Gives the LORA ops a probability of dropout; false: one of them is of an absorbed weight,
 * whose input is not that of the layer. */
bool ml_spec_lora_dropout(ml_spec *s, float p);

#endif
