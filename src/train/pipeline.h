/* pipeline.h - the schedule of a pipeline: in which order each rank runs the forward and
 * backward passes of its stages, and what the ranks exchange before each.
 *
 * The order of a rank's passes is Megatron's: 1F1B (Narayanan et al. 2021), or the
 * interleaved schedule if ranks have several stages (chunks).  Forward and backward passes
 * of a chunk both go through the micro-batches in order, so that gradients are added as one
 * rank adds them.
 *
 * Passes of all ranks are laid out in ticks: in a tick a rank runs the next pass of its
 * list, if its inputs exist, or none.  What a pass needs from another rank is exchanged at
 * the beginning of its tick.  Ranks exchange in the order of ticks, so they cannot
 * deadlock, whatever the lists are.
 *
 * thread: any; no state. */
#ifndef ML_TRAIN_PIPELINE_H
#define ML_TRAIN_PIPELINE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"

typedef struct ml_pipeline_opts {
    int32_t n_stage; /* ranks of the pipeline */
    int32_t n_chunk; /* stages of each; more than 1: interleaved.  0: 1 */
    int32_t n_micro;
    bool backward; /* false: forward passes alone */
} ml_pipeline_opts;

/* A forward or backward pass of one micro-batch through one chunk of a rank. */
typedef struct ml_pass {
    int32_t micro, chunk;
    bool backward;
} ml_pass;

/* A rank's passes in order; allocated in the arena.  Returns their number. */
int32_t ml_pipeline_passes(ml_pass **out, ml_arena *a, const ml_pipeline_opts *o,
                           int32_t rank);

/* The inputs of a pass, which travel from the rank that computed them to the one that runs
 * the pass. */
typedef struct ml_pipeline_move {
    ml_pass of; /* the chunk is this rank's: the one that sends, or the one that receives */
    int32_t peer;
    bool send;
} ml_pipeline_move;

enum { ML_PIPELINE_MOVES = 3 }; /* most of a rank in a tick: it receives 1 and sends 2 */

typedef struct ml_pipeline_tick {
    ml_pipeline_move move[ML_PIPELINE_MOVES];
    int32_t n_move;
    bool runs; /* a pass */
    ml_pass pass;
} ml_pipeline_tick;

/* What a rank does, tick by tick; allocated in the arena. */
typedef struct ml_pipeline {
    ml_pipeline_tick *tick;
    int32_t n_tick; /* the same on all ranks */
    int32_t *n_set; /* [n_chunk] micro-batches in flight, at most: the activations of
                       micro-batch i are in set i % n_set */
} ml_pipeline;

void ml_pipeline_schedule(ml_pipeline *out, ml_arena *a, const ml_pipeline_opts *o,
                          int32_t rank);

#endif
