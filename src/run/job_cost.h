/* job_cost.h - predicts memory and time of a train step on many GPUs, for one way of
 * dividing the work (a layout).
 *
 * Nothing is run: a plan of each pipeline stage, on a backend of sizes, has the memory and
 * the calls of a micro-batch; their times come from the speeds of the GPU (speeds.h).
 * Collectives take latency + bytes / rate of the links that their group spans; those of
 * gathered weights run beside compute, one layer ahead.  The pipeline's schedule is walked
 * with these times.  docs/SCALE.md says which numbers were measured.
 *
 * thread: one owner. */
#ifndef ML_RUN_JOB_COST_H
#define ML_RUN_JOB_COST_H

#include "comm/mesh.h"
#include "model/stage.h"
#include "run/speeds.h"
#include "train/trainer.h"

/* How a job is divided. */
typedef struct ml_job_layout {
    ml_mesh_opts mesh;
    int32_t n_chunk; /* parts of a stage (interleaved pipeline); 0: 1 */
    bool recompute;  /* all layers are recomputed, beyond what the options say */
} ml_job_layout;

typedef struct ml_job_request {
    const ml_spec *spec;
    ml_backend *be; /* of sizes (backend/sizes.h) */
    const ml_speeds *speeds;
    int32_t n_node, gpus_per_node;
    ml_trainer_opts opts;  /* packing, recomputation, optimizer */
    int64_t sample_tokens; /* of a sample, on the average */
    size_t weight_bytes;   /* of one weight set */
    bool bf16;             /* the set holds bf16 weights */
    int32_t n_set;         /* weight sets of the trainer: actor, reference, teacher */
    bool scores;           /* samples are also scored (forward only) */
    ml_stage_opts stages;  /* how layers are dealt out; numbers of stages are filled in */
    int32_t engine_ranks;  /* of an engine; 0: as few as its weights need */
    size_t engine_bytes;   /* an engine's memory beside weights and KV cache */
    double mem_fraction;   /* of the memory left, for the KV cache */
    bool in_turns;         /* generation and training use their memory alternately */
} ml_job_request;

typedef enum ml_job_memory_row {
    ML_JOB_BASE,
    ML_JOB_COMM,
    ML_JOB_WEIGHTS,
    ML_JOB_GRADIENTS,
    ML_JOB_STATE,
    ML_JOB_GATHERED,
    ML_JOB_EXCHANGE,
    ML_JOB_ACTIVATIONS,
    ML_JOB_SCRATCH,
    ML_JOB_SCORE_ACTIVATIONS,
    ML_JOB_SCORE_SCRATCH,
    ML_JOB_MEMORY_ROWS
} ml_job_memory_row;

extern const char *const ml_job_memory_names[ML_JOB_MEMORY_ROWS];

typedef struct ml_job_memory {
    double row[ML_JOB_MEMORY_ROWS];
    double total;
} ml_job_memory;

/* What a rank communicates in a step. */
typedef enum ml_job_traffic {
    ML_TRAFFIC_GATHER, /* weights, gathered before use, and their gradients */
    ML_TRAFFIC_KEYS,   /* context parallel */
    ML_TRAFFIC_EXPERTS,
    ML_TRAFFIC_STAGES,
    ML_TRAFFIC_STEP, /* gradients and weights, once a step */
    ML_TRAFFICS
} ml_job_traffic;

extern const char *const ml_job_traffic_names[ML_TRAFFICS];

typedef struct ml_job_cost {
    ml_job_layout layout;
    ml_mesh_sizes mesh;
    int64_t n_micro, micro_tokens; /* of a data rank in a step; tokens of a rank in one */
    double step_tokens;            /* of all ranks */
    ml_job_memory memory;          /* of the rank that needs most */
    int32_t worst_stage;
    bool fits;
    /* Generation on the same GPUs: ranks of an engine, its copy of weights (0: it reads the
     * trainer's), and what is left for its KV cache on the worst rank (0: it does not fit
     * beside training). */
    int32_t engine_ranks;
    double engine_bytes, kv_bytes, kv_tokens;
    /* Seconds of a step, which add up to step_s; of the rank that has most to compute. */
    double compute_s, exposed_s, bubble_s, reduce_s, optimizer_s, host_s, step_s;
    double comm_s;                        /* all of it, hidden or not */
    double bytes[ML_TRAFFICS][ML_LINKS];  /* that a rank receives in a step */
    double tokens_per_s, flops_per_s_gpu; /* model FLOPs of one GPU */
} ml_job_cost;

typedef struct ml_job_planner ml_job_planner;

/* The request must outlive it.  Plans are kept, for other layouts with the same stages. */
ml_status ml_job_planner_open(ml_job_planner **out, const ml_job_request *req, ml_err *err);
void ml_job_planner_close(ml_job_planner *p);

/* ML_EUSAGE: the layout does not divide the ranks, layers or experts; the message names
 * the flag and a size that does. */
ml_status ml_job_cost_of(ml_job_cost *out, ml_job_planner *p, const ml_job_layout *layout,
                         ml_err *err);

/* The layouts of the request's ranks, the fastest that fits first; in the arena.  At most
 * `most` of them are returned. */
ml_status ml_job_search(ml_job_cost **out, int32_t *n, int32_t *n_tried, ml_arena *a,
                        ml_job_planner *p, int32_t most, ml_err *err);

/* A collective over a group of ranks that are `stride` apart. */
typedef struct ml_job_group {
    double size, in_node; /* its ranks, and how many of them are on one node */
} ml_job_group;

ml_job_group ml_job_group_of(int32_t stride, int32_t size, int32_t gpus_per_node);
/* Each rank ends with `bytes`, of which it had 1/size (all-gather), or the other way
 * (reduce-scatter).  Adds what a rank receives over each link to `moved`. */
double ml_job_gather_seconds(const ml_speeds *s, ml_job_group g, double bytes,
                             double moved[ML_LINKS]);
/* Each rank sends `bytes`, in equal parts to all ranks of the group, itself included. */
double ml_job_swap_seconds(const ml_speeds *s, ml_job_group g, double bytes,
                           double moved[ML_LINKS]);

/* A step of a pipeline: the passes of the schedule (train/pipeline.h) with their times. */
typedef struct ml_job_pipeline {
    int32_t n_stage, n_chunk, n_micro;
    const double *forward, *backward; /* [n_chunk * n_stage] of a stage of the model */
    double send_s;                    /* from a stage to the next */
} ml_job_pipeline;

double ml_job_pipeline_seconds(const ml_job_pipeline *o);

#endif
