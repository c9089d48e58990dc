/* ranks.h - what the ranks that train together exchange.
 *
 * Memory is described as a table of spans, a row of which has one span for each rank: its
 * shard of a parameter, its share of the scores.  All ranks pass tables of the same sizes.
 * Every function is collective; with one rank it does nothing.  After a failure all later
 * calls fail (comm.h).
 *
 * thread: the communicator's owner. */
#ifndef ML_MODEL_RANKS_H
#define ML_MODEL_RANKS_H

#include "backend/backend.h"
#include "base/arena.h"
#include "comm/comm.h"
#include "model/weights.h"

typedef struct ml_rank_span {
    void *data;
    size_t bytes;
} ml_rank_span;

typedef struct ml_rank_spans {
    ml_rank_span *span; /* [n][ranks]; those without bytes are empty */
    int32_t n;
    bool host; /* host memory; false: the backend's */
} ml_rank_spans;

typedef struct ml_ranks {
    ml_comm *comm;
    ml_backend *be;
    ml_buf stage; /* for rows whose spans are not contiguous and of equal size */
} ml_ranks;

void ml_ranks_open(ml_ranks *out, ml_comm *comm, ml_backend *be); /* comm NULL: one rank */
void ml_ranks_close(ml_ranks *r); /* zero-initialized is allowed */

/* Bytes of the stage, at most: exchanges allocate it if it is smaller than they need. */
size_t ml_ranks_stage_bytes(int32_t n_rank);

ml_rank_spans ml_ranks_spans(const ml_ranks *r, ml_arena *a, int32_t n, bool host);

/* The span of each rank becomes the sum of all ranks' values for it, f32, in the order of
 * ML_REDUCE_TREE; spans of other ranks are then undefined. */
ml_status ml_ranks_reduce(ml_ranks *r, const ml_rank_spans *s, ml_err *err);
/* Every rank gets the bytes of every span from the rank that it belongs to. */
ml_status ml_ranks_gather(ml_ranks *r, const ml_rank_spans *s, ml_err *err);

/* Every rank gets a whole set of weights or gradients, of which each has a part. */
ml_status ml_ranks_gather_set(ml_ranks *r, const ml_shard_map *map, const ml_weights *whole,
                              const ml_weights *part, ml_err *err);

/* out [ranks][bytes]: the `in` of all ranks; host memory.  With one rank it is copied. */
ml_status ml_ranks_collect(ml_ranks *r, void *out, const void *in, size_t bytes,
                           ml_err *err);
/* Host memory of which each byte is set on one rank at most and 0 on the others: all ranks
 * get all bytes. */
ml_status ml_ranks_merge(ml_ranks *r, void *data, size_t bytes, ml_err *err);
/* Returns the status unless another rank failed; see comm.h. */
ml_status ml_ranks_agree(ml_ranks *r, ml_status mine, ml_err *err);

#endif
