/* trainer_priv.h - the trainer's plans, shared by its steps and scoring. */
#ifndef ML_TRAIN_TRAINER_PRIV_H
#define ML_TRAIN_TRAINER_PRIV_H

#include "train/trainer.h"

/* A plan and the micro-batch it runs, both grown to the largest one seen. */
typedef struct ml_runner {
    ml_plan *plan;
    ml_micro micro;
    int32_t expert_rows, expert_room; /* of a round: of the step, of the plan */
} ml_runner;

struct ml_trainer {
    const ml_spec *spec;
    ml_weights *weights;
    ml_backend *be;
    ml_trainer_opts opts;
    ml_lr lr;
    ml_optimizer optimizer;
    ml_weights grads;
    ml_buf embed_buf; /* gradient of a tied table as an embedding, see plan.h */
    ml_tensor embed_grad;
    ml_runner train, score;
    int64_t n_sample;
    ml_work_count *work_count; /* counts micro-batches; NULL: not counted */
    bool released;
    ml_arena arena; /* for the tensor table of grads */
};

/* What a rank's plan must have room for, and how many micro-batches it runs.  Ranks that
 * meet in the ops of a plan run equally many: one that has fewer samples runs empty ones. */
typedef struct ml_meeting {
    ml_batch_caps need;
    int32_t n_micro;
    int32_t expert_rows; /* see ml_run; 0: experts are on one rank */
} ml_meeting;

bool ml_trainer_meets(const ml_trainer *t);
/* Collective, if ranks meet. */
ml_status ml_trainer_meet(ml_trainer *t, const ml_train_sample *s, const ml_bins *bins,
                          ml_meeting *out, ml_err *err);
/* Micro-batch k of a rank: empty beyond its own. */
ml_bin ml_trainer_bin(const ml_bins *bins, int32_t k);

/* Builds a larger plan if the batches need one. */
ml_status ml_trainer_grow(ml_trainer *t, ml_runner *r, bool backward, const ml_meeting *m,
                          ml_err *err);
/* The forward pass of a bin; its results are in the runner's micro-batch. */
ml_status ml_trainer_forward(ml_trainer *t, ml_runner *r, const ml_weights *w,
                             const ml_train_sample *s, const ml_bin *bin, bool everywhere,
                             ml_err *err);
/* Whether this rank of the job reports the results of its data place; others have the same
 * ones, or none. */
bool ml_trainer_reports(const ml_trainer *t, int32_t rank);
int64_t *ml_trainer_lengths(ml_arena *a, const ml_train_sample *s, int32_t n);

#endif
