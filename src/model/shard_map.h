/* shard_map.h - which part of each parameter a rank of a mesh has, and which it owns.
 *
 * Parts are contiguous ranges of a tensor in the packed layout of tensor.h, so that they
 * are moved as bytes.  Of each parameter a rank has in memory
 *
 *     resident  its part of the weights: nothing, if the parameter belongs to another
 *               pipeline stage; with expert parallelism, the members that are its experts;
 *               a part of these, if ranks divide the weights (mesh.h: gather, etp), which
 *               are gathered before use; otherwise all of it
 *     owned     the part of the optimizer's state and of the summed gradients: the ranks
 *               with the same resident part divide it.  Within `resident`.  The owned
 *               parts of all ranks are the parameter, each element once
 *
 * Both are pure functions of the spec, the layout of linear weights, the sizes of the mesh
 * and the stage of each node.  Cuts are at whole panels of 16 rows and whole blocks of the
 * gradient norm (ML_NORM_BLOCK elements), so that neither straddles two ranks; blocks are
 * counted from the first expert of an expert parallel rank.  Units that do not divide
 * evenly go to the ranks that own the least so far.  With ml_mesh_sizes.whole a unit is a
 * whole parameter.
 *
 * A parameter that several stages use (a tied embedding) is resident in all of them, and
 * owned in the first.
 *
 * Adapters (ml_spec.adapter) are small: the ranks of a stage do not divide their matrices,
 * except those of experts, of which an expert parallel rank has its own.
 *
 * thread: any; no state. */
#ifndef ML_MODEL_SHARD_MAP_H
#define ML_MODEL_SHARD_MAP_H

#include "backend/optim.h"
#include "comm/mesh.h"
#include "model/spec.h"

/* Elements of a packed tensor, padding included. */
typedef struct ml_shard_range {
    int64_t begin, n;
} ml_shard_range;

typedef struct ml_shard_map {
    ml_mesh_sizes mesh;
    ml_layout linear;
    int32_t n_param, n_rank; /* n_rank: of the mesh */
    int32_t n_place;         /* ranks of a stage */
    /* [n_param][n_place], ascending: what the rank at each place owns */
    const ml_shard_range *range;
    const bool *has;     /* [n_param][stages]: whether the stage uses the parameter */
    const bool *divided; /* [n_param]: over the ranks of experts (mesh.h: ep, etp) */
    bool adapter;        /* of one: nothing is gathered */
} ml_shard_map;

/* linear: the layout of linear weights; stage: [n_node] the pipeline stage of each node, of
 * an adapter [n_param] of each parameter; NULL: all are in stage 0.  Allocated in the
 * arena. */
void ml_shard_map_init(ml_shard_map *out, ml_arena *a, const ml_spec *s, ml_layout linear,
                       const ml_mesh_sizes *mesh, const int32_t *stage);
/* The map of one rank, which has and owns everything. */
void ml_shard_map_one(ml_shard_map *out, ml_arena *a, const ml_spec *s, ml_layout linear);

/* The place of a rank in a parameter's ranges. */
int32_t ml_shard_place(const ml_shard_map *m, int32_t param, int32_t rank);
ml_shard_range ml_shard_owned(const ml_shard_map *m, int32_t param, int32_t rank);
ml_shard_range ml_shard_resident(const ml_shard_map *m, int32_t param, int32_t rank);
/* [n_param] of a rank, in the arena. */
const ml_shard_range *ml_shard_residents(const ml_shard_map *m, ml_arena *a, int32_t rank);

/* The groups over which gradients of parameters are summed and their state is divided: of
 * those that are divided over the ranks of experts, and of all others; that of one. */
ml_mesh_group ml_shard_sum_group(const ml_shard_map *m, bool divided);
ml_mesh_group ml_shard_group(const ml_shard_map *m, int32_t param);
/* Whether ranks divide a parameter and gather it before use, the group of these ranks, and
 * what they have together: all of it, or the experts of an expert parallel rank. */
bool ml_shard_is_gathered(const ml_shard_map *m, int32_t param);
ml_mesh_group ml_shard_gather_group(const ml_shard_map *m, int32_t param);
ml_shard_range ml_shard_gathered(const ml_shard_map *m, int32_t param, int32_t rank);

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
