/* job_priv.h - what job_stage.c finds out about a pipeline stage, for job_cost.c. */
#ifndef ML_RUN_JOB_PRIV_H
#define ML_RUN_JOB_PRIV_H

#include "run/job_cost.h"

/* A layer, or what stands before or after all layers. */
typedef struct ml_job_unit {
    double forward_s, backward_s; /* without the products of experts */
    double *expert_s;             /* [2][n_ep] of these, by expert parallel size; or NULL */
    double dense, expert;         /* elements of its parameters */
    double keys, keys_back;       /* bytes that context parallel ranks gather */
    double heads, heads_back;     /* and swap */
    double rows, rows_back;       /* bytes of rows that travel to experts, and back */
} ml_job_unit;

/* What one plan of a stage says.  Stages with the same kinds of layers share it. */
typedef struct ml_job_stage {
    uint64_t kind;      /* its key: layers, and whether embedding and head belong to it; */
    int64_t rows, full; /* rows that are planned for, and of a full micro-batch; */
    bool recompute;
    int32_t first, end; /* the nodes of the first such stage */
    ml_job_unit *unit;  /* [n_unit] */
    int32_t n_unit;
    double flops;                                  /* of a micro-batch's forward */
    double act, scratch, score_act, score_scratch; /* bytes */
    double shared, set;   /* of several sets of activations: what they share, of each */
    double border;        /* bytes sent to the next stage */
    double dense, expert; /* elements of its parameters */
} ml_job_stage;

enum { ML_JOB_SIZES = 64 };

struct ml_job_planner {
    const ml_job_request *req;
    ml_job_stage **stage;
    int32_t n_stage, cap;
    int32_t n_expert;         /* of a layer; 0: none */
    double expert;            /* elements of all experts */
    int32_t ep[ML_JOB_SIZES]; /* the divisors of n_expert */
    int32_t n_ep;
    uint64_t *layer_kind;           /* [n_layer] */
    double grad_bytes, state_bytes; /* of one rank */
    /* The stage of each node, of the pipeline that was asked for last. */
    int32_t *node_stage, n_pp, n_chunk;
    ml_arena arena;
};

/* The number of an expert parallel size among the divisors of the experts. */
int32_t ml_job_ep_index(const ml_job_planner *p, int32_t ep);
/* Fills layer_kind. */
void ml_job_find_kinds(ml_job_planner *p);

/* Seconds of a unit's pass, compute alone. */
static inline double ml_job_unit_seconds(const ml_job_planner *p, const ml_job_unit *u,
                                         bool back, int32_t ep_index) {
    return (back ? u->backward_s : u->forward_s) +
           (u->expert_s ? u->expert_s[back * p->n_ep + ep_index] : 0);
}

/* Samples of a full micro-batch, which cp ranks share. */
int64_t ml_job_micro_samples(const ml_job_request *req, int32_t cp);

/* The stage of nodes first .. end-1 with cp context parallel ranks; plans it if there was
 * none of its kind. */
ml_status ml_job_stage_find(ml_job_planner *p, int32_t first, int32_t end, int32_t cp,
                            bool recompute, ml_job_stage **out, ml_err *err);

#endif
