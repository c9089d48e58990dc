/* truncate.h - how many samples of a rollout are trained on.
 *
 * Miles' rule: optimizer steps have a fixed number of samples, and the remainder at the
 * end of a rollout is dropped before anything is computed.  If several samples belong to
 * one conversation, the packing counts conversations, and nothing is dropped here.
 *
 * thread: any. */
#ifndef ML_RL_LEARN_TRUNCATE_H
#define ML_RL_LEARN_TRUNCATE_H

#include <stdbool.h>
#include <stdint.h>

typedef struct ml_truncate_opts {
    int64_t global_batch_size;
    int32_t n_rank;
    bool one_step;   /* a rollout is one step, the largest that ranks can share evenly */
    bool all;        /* nothing is dropped */
    bool has_pieces; /* some samples belong to one conversation */
} ml_truncate_opts;

/* Returns how many of n samples, from the first on, are trained; 0: they do not fill a
 * step. */
int64_t ml_truncate(const ml_truncate_opts *o, int64_t n);

#endif
