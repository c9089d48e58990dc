/* shard_map.h - which rows of each parameter a rank owns.
 *
 * Ranks that train together divide gradients and optimizer state: each owns a contiguous
 * range of every tensor, in the packed layout of tensor.h, so that shards are moved as
 * bytes.  A range is whole panels of 16 rows and whole blocks of the gradient norm
 * (ML_NORM_BLOCK elements), so that neither straddles two ranks.  Units that do not divide
 * evenly go to the ranks that own the least so far.
 *
 * thread: any; no state. */
#ifndef ML_MODEL_SHARD_MAP_H
#define ML_MODEL_SHARD_MAP_H

#include "backend/optim.h"
#include "model/spec.h"

/* Elements of a packed tensor, padding included. */
typedef struct ml_shard_range {
    int64_t begin, n;
} ml_shard_range;

typedef struct ml_shard_map {
    int32_t n_param, n_rank;
    const ml_shard_range *range; /* [n_param][n_rank], ascending over ranks */
} ml_shard_map;

/* linear: the layout of linear weights.  Nobody owns parameters that `skip` [n_param]
 * marks; NULL: none is marked.  Allocated in the arena. */
void ml_shard_map_init(ml_shard_map *out, ml_arena *a, const ml_spec *s, ml_layout linear,
                       int32_t n_rank, const bool *skip);

static inline ml_shard_range ml_shard_range_of(const ml_shard_map *m, int32_t param,
                                               int32_t rank) {
    return m->range[(int64_t)param * m->n_rank + rank];
}

/* All of a packed tensor. */
ml_shard_range ml_shard_range_whole(const ml_tensor *t);
/* A range of a tensor as a matrix: its rows, member after member, padding included; of a
 * plain vector, a column.  Without elements it has no data. */
ml_tensor ml_shard_view(const ml_tensor *whole, ml_shard_range r);

/* Consecutive rows of one member of a parameter, inside a range. */
typedef struct ml_strip {
    int32_t member;
    int64_t row, n; /* of a plain vector, elements */
    int64_t at;     /* the first row in the range's view */
} ml_strip;

/* Steps through the strips of a range; begin with zeros.  Padding is left out. */
bool ml_strip_next(ml_strip *s, const ml_param *p, ml_layout linear, ml_shard_range r);

#endif
