/* trainer_priv.h - the trainer's plans, shared by its steps and scoring. */
#ifndef ML_TRAIN_TRAINER_PRIV_H
#define ML_TRAIN_TRAINER_PRIV_H

#include "train/trainer.h"

/* A plan and the micro-batch it runs, both grown to the largest one seen. */
typedef struct ml_runner {
    ml_plan *plan;
    ml_micro micro;
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

/* Builds a larger plan if the batches need one. */
ml_status ml_trainer_grow(ml_trainer *t, ml_runner *r, bool backward, ml_batch_caps need,
                          ml_err *err);
ml_batch_caps ml_trainer_need(const ml_train_sample *s, const ml_bins *bins);
/* The forward pass of a bin; its results are in the runner's micro-batch. */
ml_status ml_trainer_forward(ml_trainer *t, ml_runner *r, const ml_weights *w,
                             const ml_train_sample *s, const ml_bin *bin, bool everywhere,
                             ml_err *err);
/* Whether this rank of the job reports the results of its data place; others have the same
 * ones, or none. */
bool ml_trainer_reports(const ml_trainer *t, int32_t rank);
int64_t *ml_trainer_lengths(ml_arena *a, const ml_train_sample *s, int32_t n);

#endif
