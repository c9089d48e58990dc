/* mesh.h - which rank does what: the directions of parallelism and their groups.
 *
 * A mesh is a pure function of (number of ranks, sizes).  Ranks are numbered as Megatron
 * numbers them (order tp-cp-ep-dp-pp),
 *
 *     rank = tp + T (cp + C (dp + D pp))
 *
 * where D follows: the ranks that T C P leaves.  A stage is the T C D ranks with one pp.  The
 * ranks of a stage have other numbers for the experts of its layers,
 *
 *     rank of the stage = etp + E (ep + N edp)
 *
 * N expert parallel ranks have different experts, E ranks divide the weights of the same
 * experts and gather them before use, and what is left has the same part of them.
 *
 * The T D ranks with the same cp and pp have different samples: a rank's place among them
 * is its data place, tp + T dp.  Runs of `gather` data places divide the weights and gather
 * them before use: T of them (tensor parallel), or all with FSDP. */
#ifndef ML_COMM_MESH_H
#define ML_COMM_MESH_H

#include "comm/comm.h"

typedef enum ml_mesh_dim {
    ML_MESH_TP, /* --tensor-model-parallel-size */
    ML_MESH_CP, /* --context-parallel-size */
    ML_MESH_DP, /* data parallel */
    ML_MESH_PP, /* --pipeline-model-parallel-size */
    ML_MESH_DIMS
} ml_mesh_dim;

/* What the flags say; 0 counts as 1. */
typedef struct ml_mesh_opts {
    int32_t tp, cp, pp, ep, etp;
    bool fsdp;         /* all data places divide the weights, or those of a replica: */
    int32_t replicate; /* sets of weights among the data places, with fsdp only */
    bool whole;        /* a rank owns whole parameters: for updates of whole matrices */
} ml_mesh_opts;

typedef struct ml_mesh_sizes {
    int32_t size[ML_MESH_DIMS], ep;
    int32_t etp;    /* ranks that divide the weights of the same experts */
    int32_t gather; /* ranks that divide other weights; a multiple of tp */
    bool whole;     /* the state of a parameter has one owner; no weights are divided */
} ml_mesh_sizes;

/* Groups of ranks, which differ in the directions that are named, and in no other. */
typedef enum ml_mesh_group {
    ML_GROUP_TP,
    ML_GROUP_CP,
    ML_GROUP_PP,
    ML_GROUP_DATA,        /* dp x tp: their ranks have different samples */
    ML_GROUP_REDUCE,      /* dp x tp x cp: a stage; gradients are summed over it */
    ML_GROUP_EXPERT,      /* the ranks that share the experts of a layer */
    ML_GROUP_EXPERT_DATA, /* the ranks of a stage with the same part of the same experts */
    ML_GROUP_EXPERT_GATHER, /* the ranks that divide the weights of the same experts */
    ML_GROUP_EXPERT_SAME, /* the ranks of a stage with the same experts, or a part of them */
    ML_GROUP_GATHER,      /* the ranks that divide the weights */
    ML_GROUP_REPLICA,     /* the ranks of a stage with the same part of the weights */
    ML_MESH_GROUPS
} ml_mesh_group;

/* ML_EUSAGE: the sizes do not divide the ranks; the message names the flag. */
ml_status ml_mesh_size(ml_mesh_sizes *out, int32_t world, ml_mesh_opts o, ml_err *err);
int32_t ml_mesh_world(const ml_mesh_sizes *m); /* number of ranks */

/* Place of a rank in each direction, and back. */
void ml_mesh_at(int32_t at[ML_MESH_DIMS], const ml_mesh_sizes *m, int32_t rank);
int32_t ml_mesh_rank(const ml_mesh_sizes *m, const int32_t at[ML_MESH_DIMS]);
/* Place of a rank among those that share the experts of a layer. */
int32_t ml_mesh_at_ep(const ml_mesh_sizes *m, int32_t rank);
/* Place of a rank among those with different samples. */
int32_t ml_mesh_at_data(const ml_mesh_sizes *m, int32_t rank);
int32_t ml_mesh_data_size(const ml_mesh_sizes *m);
/* The rank that reports the results of a data place: in the last stage, the first of cp. */
int32_t ml_mesh_reporter(const ml_mesh_sizes *m, int32_t data_place);
/* The ranks of a rank's group, ascending; out: [ml_mesh_world] is enough.  Returns how many. */
int32_t ml_mesh_members(int32_t *out, const ml_mesh_sizes *m, int32_t rank,
                        ml_mesh_group g);

/* A rank's mesh with its communicators; each orders its ranks ascending.
 * thread: the communicators have one owner each. */
typedef struct ml_mesh {
    ml_mesh_sizes sizes;
    int32_t rank, at[ML_MESH_DIMS], at_ep;
    ml_comm *world;                 /* host memory; not owned */
    ml_comm *group[ML_MESH_GROUPS]; /* owned; tensors of the device */
} ml_mesh;

/* device: the communicator of the same ranks for tensors of a device; NULL: world. */
ml_status ml_mesh_open(ml_mesh *m, ml_comm *world, ml_comm *device, ml_mesh_opts o,
                       ml_err *err);
void ml_mesh_close(ml_mesh *m); /* a zeroed mesh is allowed */

/* Tensors of the stream's device travel between GPUs directly where they can
 * (device/device_comm.h).  world must be a communicator of that kind.  Collective. */
ml_status ml_mesh_attach(const ml_mesh *m, ml_stream *s, ml_err *err);
void ml_mesh_detach(const ml_mesh *m);

#endif
