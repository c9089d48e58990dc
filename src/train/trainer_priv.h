/* trainer_priv.h - the trainer's plans, shared by its steps and scoring. */
#ifndef ML_TRAIN_TRAINER_PRIV_H
#define ML_TRAIN_TRAINER_PRIV_H

#include "train/trainer.h"

/* A plan and the micro-batch it runs, both grown to the largest one seen. */
typedef struct ml_runner {
    ml_plan *plan;
    ml_micro micro;
    int32_t expert_rows, expert_room; /* of a round (see ml_run): now, of the plan */
} ml_runner;

struct ml_trainer {
    const ml_spec *spec;
    ml_weights *weights;
    ml_backend *be;
    ml_trainer_opts opts;
    ml_lr lr;
    ml_optimizer optimizer;
    ml_shard_map map; /* of several ranks */
    ml_dtype *stored; /* [n_param] dtypes of the weights */
    ml_weights grads;
    ml_buf embed_buf; /* gradient of a tied table as an embedding, see plan.h */
    ml_tensor embed_grad;
    ml_runner train, score;
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
void ml_trainer_join(ml_trainer *t, ml_runner *r, const ml_weights *w, bool backward);
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
