/* grad_shards.h - sums of gradients in an order that does not depend on the number of ranks:
 * those of shards, which are added up as a binary tree.
 *
 * thread: the backend's stream. */
#ifndef ML_TRAIN_GRAD_SHARDS_H
#define ML_TRAIN_GRAD_SHARDS_H

#include "train/grads.h"

typedef struct ml_grad_shards {
    ml_weights *waiting; /* [n] sums of 1, 2, 4 shards that wait for their other half */
    int32_t n;
} ml_grad_shards;

/* n sets like g's sums; their tables are in the arena. */
ml_status ml_grad_shards_open(ml_grad_shards *out, int32_t n, const ml_spec *s,
                              const ml_grads *g, ml_backend *be, ml_arena *a, ml_err *err);
void ml_grad_shards_close(ml_grad_shards *x); /* zero-initialized is allowed */

/* Adds shard k, whose gradients g has.  After the last one, g has the sum of all. */
ml_status ml_grad_shards_add(ml_grad_shards *x, ml_grads *g, int32_t k, bool last,
                             ml_err *err);

#endif
