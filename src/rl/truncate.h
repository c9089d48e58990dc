/* trim.h - how many samples of a round are trained on.
 *
 * Miles' rule: optimizer steps have a fixed number of samples, and what does not fill one at
 * the end of a round is left out, before anything is computed.  Where several samples belong
 * to one conversation the packing counts conversations, and nothing is left out here.
 *
 * thread: any. */
#ifndef ML_RL_TRUNCATE_H
#define ML_RL_TRUNCATE_H

#include <stdbool.h>
#include <stdint.h>

typedef struct ml_truncate_opts {
    int64_t global_batch_size;
    int32_t n_rank;
    bool one_step;   /* a round is one step, as large as the ranks can share evenly */
    bool all;        /* nothing is left out */
    bool has_pieces; /* some samples belong to one conversation */
} ml_truncate_opts;

/* Of n samples so many from the first on; 0: they do not fill a step. */
int64_t ml_truncate(const ml_truncate_opts *o, int64_t n);

#endif
