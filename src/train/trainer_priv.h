/* trainer_priv.h - the trainer's plans, shared by its steps and scoring. */
#ifndef ML_TRAIN_TRAINER_PRIV_H
#define ML_TRAIN_TRAINER_PRIV_H

#include "model/spec_context.h"
#include "train/grad_shards.h"
#include "train/trainer.h"

/* A plan and the micro-batch it runs, both grown to the largest one seen. */
typedef struct ml_runner {
    ml_plan *plan;
    ml_micro micro;
    int32_t expert_rows, expert_room; /* of a round (see ml_run): now, of the plan */
    int32_t first, end;               /* nodes of a pipeline stage; end 0: all */
    int32_t n_set;                    /* micro-batches whose activations the plan keeps */
    ml_plan_memory
        *memory; /* of the plans of a stage, for training and scoring, in turns */
    struct ml_runner *next; /* this rank's next stage, of an interleaved pipeline */
} ml_runner;

struct ml_trainer {
    const ml_spec *spec;
    const ml_spec *run_spec; /* of plans: spec, or context_spec */
    const int32_t *stage;    /* [nodes of run_spec] pipeline stages; NULL: one */
    ml_spec context_spec;    /* context parallel (spec_context.h); zeros: none */
    ml_context_opts context;
    ml_ranks context_ranks;
    ml_weights *weights;
    ml_backend *be;
    ml_trainer_opts opts;
    ml_lr lr;
    ml_optimizer optimizer;
    ml_shard_map map; /* of several ranks */
    ml_dtype *stored; /* [n_param] dtypes of the weights */
    ml_grads grads;
    ml_grad_shards shards;
    ml_runner train, score;
    ml_ranks pipe; /* the ranks of this one's pipeline; one if there is none */
    int64_t n_sample;
    ml_work_count *work_count; /* counts micro-batches; NULL: not counted */
    bool released;
    ml_arena arena;      /* for the tensor table of grads */
    ml_arena long_arena; /* for what release keeps */
};

/* Whether ranks run together, micro-batch by micro-batch; and how many micro-batches they
 * all run, if this one has n that need so much: those after its own have no samples.
 * Collective. */
bool ml_trainer_is_joint(const ml_trainer *t);
ml_status ml_trainer_rounds(ml_trainer *t, ml_runner *r, int32_t n, ml_batch_caps need,
                            int32_t *out, ml_err *err);
/* A micro-batch without samples; backward: its second half. */
void ml_trainer_join(ml_trainer *t, ml_runner *r, const ml_weights *w, int32_t set,
                     bool backward);
/* Builds a larger plan if the batches need one. */
ml_status ml_trainer_grow(ml_trainer *t, ml_runner *r, bool backward, ml_batch_caps need,
                          ml_err *err);
ml_batch_caps ml_trainer_need(const ml_trainer *t, const ml_train_sample *s,
                              const ml_bins *bins);
/* The forward pass of a bin; its results are in the runner's micro-batch. */
ml_status ml_trainer_forward(ml_trainer *t, ml_runner *r, const ml_weights *w,
                             const ml_train_sample *s, const ml_bin *bin, bool everywhere,
                             ml_err *err);
/* The steps of a forward: fills the runner's micro-batch; reads and spreads the results of
 * the last run. */
ml_run ml_trainer_load(ml_trainer *t, ml_runner *r, const ml_weights *w,
                       const ml_train_sample *s, const ml_bin *bin, bool everywhere);
ml_status ml_trainer_read(ml_trainer *t, ml_runner *r, ml_err *err);
/* Records the routing of the last run.  add: see ml_routing_replay_record. */
ml_status ml_trainer_record(ml_trainer *t, ml_runner *r, const ml_run *run,
                            const ml_train_sample *s, const ml_bin *bin, bool add,
                            ml_err *err);
/* Whether this rank of the job reports the results of its data place; others have the same
 * ones, or none. */
bool ml_trainer_reports(const ml_trainer *t, int32_t rank);

/* trainer_pipeline.c: micro-batches that pass through the ranks of a pipeline. */
typedef struct ml_pipe_work {
    const ml_weights *weights;
    const ml_train_sample *sample;
    const ml_bins *micro; /* the same on all ranks of the pipeline */
    int32_t n_round;      /* micro-batches that all pipelines run: those after this one's
                             have no samples */
    const ml_step *step;  /* NULL: forward passes alone, with all response tokens */
    /* In the last stage, with the results of a forward pass.  live: whether there are
     * derivatives; otherwise no rank runs the backward pass. */
    ml_status (*scored)(void *ud, ml_runner *r, const ml_bin *bin, bool *live, ml_err *err);
    void *ud;
} ml_pipe_work;

bool ml_trainer_is_pipeline(const ml_trainer *t);
ml_status ml_trainer_open_pipeline(ml_trainer *t, ml_err *err);
void ml_trainer_close_pipeline(ml_trainer *t);
ml_status ml_trainer_run_pipeline(ml_trainer *t, ml_runner *r, const ml_pipe_work *w,
                                  ml_err *err);
/* The last stage's gradient of a tied table goes to the first stage, which owns it, and its
 * weights go the other way. */
ml_status ml_trainer_send_tied(ml_trainer *t, const ml_weights *w, bool to_last,
                               ml_err *err);

int64_t *ml_trainer_lengths(ml_arena *a, const ml_train_sample *s, int32_t n);

#endif
