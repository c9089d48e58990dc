/* run_ranks.h - the ranks of a job that is one run: where they are, and what they are asked for.
 *
 * Every rank runs the same loop.  Rank 0 owns prompts, rewards, the run directory and the
 * console; it takes the decisions that look at the world and sends them to the others.  A
 * failure of one rank ends all of them (comm.h), and rank 0 prints its message.
 *
 * The first ranks train.  Engines have the same ranks, or with --rollout-num-gpus the ranks
 * after them; an engine is a run of consecutive ranks, and rank 0 sends requests to the
 * first rank of each.
 *
 * thread: the command's. */
#ifndef ML_RUN_RUN_RANKS_H
#define ML_RUN_RUN_RANKS_H

#include "comm/mesh.h"
#include "comm/share.h"
#include "model/stage.h"

struct ml_run_opts;

enum { ML_HOST_NAME = 256 };

/* Zeros are one rank. */
typedef struct ml_run_ranks {
    ml_comm *world;  /* of the loop, without a time limit; NULL: one rank */
    ml_comm *train;  /* of training, with a time limit; NULL: one rank, or this one does
                        not train */
    ml_mesh mesh;    /* of `train`; zeros: one rank */
    ml_comm *actors; /* the ranks of `train`, without a time limit; it may be the world */
    ml_comm *engine; /* the ranks of this rank's engine; NULL: it has one rank, or none */
    int32_t n_actor; /* ranks that train, if others generate; 0: all train */
    int32_t engine_size; /* 0: 1 */
    int32_t engine_dp;   /* DP groups of attention in an engine; 0: 1 */
    ml_mesh_sizes sizes; /* of the mesh, on all ranks; zeros: one rank */
    double publish_s;    /* a wait for weights that takes longer fails; 0: none */
    char host[ML_HOST_NAME];
    int32_t local_rank, local_size; /* among the ranks of this host */
    int32_t n_host;
    int32_t n_core;   /* cores that this rank has for itself; 0: it shares them */
    int32_t n_device; /* ranks that share this rank's GPU, if there is one; 0: 1 */
} ml_run_ranks;

/* The sizes in launch scripts; 0: not given. */
typedef struct ml_place_opts {
    int64_t nodes, gpus_per_node; /* of the actor */
    int64_t most_per_node;
    double timeout_min; /* of a wait for another rank in training; 0: none */
    double stall_min;   /* of any wait for a rank that is in no collective; 0: none */
    /* Heartbeats, 0: not given.  Every so many seconds; a rank is lost after so many that are
     * later than the timeout; time added to the first. */
    double beat_s, beat_timeout_s, beat_first_s;
    int64_t beat_failures;
    /* How the ranks divide the model. */
    int64_t tp, cp, pp; /* sizes: tensor, context, pipeline parallel */
    int64_t ep, etp;    /* expert parallel, expert tensor parallel */
    int64_t replicas;   /* sets of weights with FSDP */
    int backend;        /* ml_train_backend */
    bool whole;         /* the optimizer updates whole parameters: see ml_run_ranks_place */
    int64_t rollout;    /* ranks of all engines, if they are apart */
    int64_t engine_size; /* ranks of an engine */
    int64_t engine_dp;   /* groups of these, if dp_attention: see ml_run_ranks_place */
    bool dp_attention;
    bool apart; /* engines have ranks of their own: see ml_run_ranks_place */
    bool plans; /* one process plans a rank of the job that the sizes name */
    /* Layers of the pipeline's ends, 0: their share.  Interleaved: layers of a stage, or
     * stages of a rank; 0: not given.  What counts as a layer, when they are dealt out. */
    int64_t first_layers, last_layers;
    int64_t chunk_layers, chunks;
    bool count_embedding, count_loss;
} ml_place_opts;

typedef enum ml_train_backend { ML_TRAIN_MEGATRON, ML_TRAIN_FSDP } ml_train_backend;

static inline bool ml_run_ranks_first(const ml_run_ranks *r) {
    return ml_comm_is_first(r->world);
}

static inline int32_t ml_run_ranks_size(const ml_run_ranks *r) {
    return ml_comm_size(r->world);
}

/* Stages of a rank of the pipeline, from either of the two flags. */
ml_status ml_run_ranks_chunks(int32_t *out, const ml_place_opts *p, const ml_spec *s,
                              ml_err *err);

/* The pipeline stage of each node, [n_node] in the arena; NULL: there is one stage. */
ml_status ml_run_ranks_stages(const int32_t **out, ml_arena *a, const ml_place_opts *p,
                              const ml_spec *s, ml_err *err);

/* Ranks that have different samples. */
int32_t ml_run_ranks_data_size(const ml_run_ranks *r);

/* Whether this rank trains; whether it is a rank of an engine, and the first of it. */
static inline bool ml_run_ranks_trains(const ml_run_ranks *r) {
    return !r->n_actor || r->world->rank < r->n_actor;
}
static inline bool ml_run_ranks_generates(const ml_run_ranks *r) {
    return !r->n_actor || r->world->rank >= r->n_actor;
}
static inline bool ml_run_ranks_leads(const ml_run_ranks *r) {
    return ml_run_ranks_generates(r) && ml_comm_is_first(r->engine);
}

/* Ranks that train; engines. */
static inline int32_t ml_run_ranks_n_actor(const ml_run_ranks *r) {
    return r->n_actor ? r->n_actor : ml_run_ranks_size(r);
}
static inline int32_t ml_run_ranks_n_engine(const ml_run_ranks *r) {
    int32_t n = ml_run_ranks_size(r) - r->n_actor;
    return r->engine_size > 1 && n > 1 ? n / r->engine_size : n;
}

static inline int32_t ml_run_ranks_engine_size(const ml_run_ranks *r) {
    return r->engine_size > 1 ? r->engine_size : 1;
}

/* Whether ranks that train have a part of the weights. */
static inline bool ml_run_ranks_divides(const ml_run_ranks *r) {
    const ml_mesh_sizes *m = &r->sizes;
    return m->gather > 1 || m->size[ML_MESH_PP] > 1 || m->ep * m->etp > 1;
}

/* Whether the rows of the engines are not those of the trainer in their place: engines are
 * apart, or have several ranks, or a trainer has a part. */
static inline bool ml_run_ranks_moves(const ml_run_ranks *r) {
    return r->n_actor || r->engine_size > 1 || ml_run_ranks_divides(r);
}

/* Decides whether engines have ranks of their own, and how many. */
void ml_run_ranks_place(struct ml_run_opts *o);

/* Finds out which ranks share a host, and gives each a GPU of it (CUDA_VISIBLE_DEVICES),
 * unless the launcher has done so; opens the groups of ranks, as far as the sizes fit:
 * ml_run_ranks_check reports those that do not.  world NULL: one rank. */
ml_status ml_run_ranks_open(ml_run_ranks *out, ml_comm *world, const ml_place_opts *p,
                            ml_err *err);
/* The hosts and GPUs alone, without groups; not closed. */
ml_status ml_run_ranks_hosts(ml_run_ranks *out, ml_comm *world, ml_err *err);
void ml_run_ranks_close(ml_run_ranks *r); /* not the world; zeros are allowed */

/* The sizes that the flags ask for. */
ml_mesh_opts ml_run_ranks_sizes(const ml_place_opts *place);

/* ML_EUSAGE: the flags name another number of ranks, or options that need one rank. */
ml_status ml_run_ranks_check(const ml_run_ranks *r, const struct ml_run_opts *o,
                             ml_err *err);

/* A rank's part of the bytes of its host, or of its GPU. */
size_t ml_run_ranks_bytes(const ml_run_ranks *r, size_t all, bool host);
/* A rank's part of --threads, which are the host's, unless it is bound to cores of its own;
 * at least 1. */
int ml_run_ranks_threads(const ml_run_ranks *r, int n_thread);

#endif
