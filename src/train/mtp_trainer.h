/* mtp_trainer.h - trains the multi-token prediction module (model/mtp.h) beside its trunk, or
 * an EAGLE-3 head (model/eagle3.h).
 *
 * The loss of a step is the mean cross entropy of the rows that count (mtp_runner.h), over
 * all samples of the step, with and without an advantage.  It reads the hidden states of the
 * trunk's own forward pass; trunk, embedding and LM head get no gradient of it.  The module
 * has its own gradients, gradient norm and optimizer state, so that the trunk's are the same
 * with and without it.
 *
 * Ranks have the whole module each and divide the samples, and the optimizer's state.  Where
 * they divide the trunk's weights, they gather embedding and LM head once for each step
 * (mtp_trunk.h).  In a pipeline, the last stage runs and updates the module.
 *
 * thread: the trainer's. */
#ifndef ML_TRAIN_MTP_TRAINER_H
#define ML_TRAIN_MTP_TRAINER_H

#include "train/grad_shards.h"
#include "train/mtp_context.h"
#include "train/mtp_trunk.h"
#include "train/optimizer.h"

typedef struct ml_mtp_trainer {
    ml_spec spec;
    ml_weights weights;   /* its own; embedding and LM head are the trunk's */
    double factor;        /* of its loss */
    ml_checkpoint *head;  /* of an EAGLE-3 head; NULL: a module in the trunk's checkpoint */
    ml_draft_vocab vocab; /* of a head */
    ml_mtp_trunk trunk;
    ml_mtp_context context; /* of ranks that divide sequences; zeros: none do */
    ml_mtp_runner runner;
    ml_grad_shards shards;
    int32_t n_waiting; /* sets of `shards` */
    ml_optimizer optimizer;
    ml_mesh mesh; /* the trunk's, without ranks that divide weights */
    ml_backend *be;
    ml_arena arena, grad_arena;
    bool released;
} ml_mtp_trainer;

/* Opens the spec of the module of the model in dir, which needs no memory yet.  ML_EUNSUP: the
 * model has none, or the backend cannot train it. */
ml_status ml_mtp_trainer_open(ml_mtp_trainer *out, const char *dir, ml_backend *be,
                              double factor, ml_err *err);
/* The same of the EAGLE-3 head in dir, for a trunk; factor 1. */
ml_status ml_mtp_trainer_open_head(ml_mtp_trainer *out, const char *dir,
                                   const ml_spec *trunk, ml_backend *be, ml_err *err);
/* Loads the module's weights, for a trunk that outlives it, and takes the memory of
 * gradients and optimizer.  opts: the trunk's. */
ml_status ml_mtp_trainer_start(ml_mtp_trainer *m, const ml_checkpoint *c,
                               ml_weight_dtype dtype, const ml_spec *trunk,
                               const ml_weights *of, const ml_optimizer_opts *opts,
                               ml_err *err);
void ml_mtp_trainer_close(ml_mtp_trainer *m); /* zero-initialized is allowed */

/* What the trunk's trainer divides: a rank adds up the gradients of several shards
 * (grad_shards.h), with so many waiting sets, and has pieces of sequences. */
ml_status ml_mtp_trainer_divide(ml_mtp_trainer *m, int32_t n_waiting,
                                const ml_context_opts *context, ml_err *err);

/* Bytes of weights, gradients, optimizer state and activations, for micro-batches of these
 * caps.  c: the trunk's checkpoint; bf16: the set holds bf16 weights; n_waiting: see
 * ml_mtp_trainer_divide. */
ml_status ml_mtp_trainer_bytes(size_t *out, const ml_mtp_trainer *m, const ml_checkpoint *c,
                               ml_weight_dtype dtype, bool bf16,
                               const ml_optimizer_opts *opts, int32_t n_waiting,
                               ml_batch_caps caps, ml_err *err);

/* As those of a trainer. */
ml_status ml_mtp_trainer_release(ml_mtp_trainer *m, ml_err *err);
ml_status ml_mtp_trainer_take(ml_mtp_trainer *m, ml_err *err);

/* A step: begin, which is collective, the micro-batches of this rank, each after the trunk's
 * forward pass, end_shard after those of each shard, then end.  term [samples]: receives the
 * sums of cross entropies, by sample number. */
ml_status ml_mtp_trainer_begin(ml_mtp_trainer *m, ml_err *err);
ml_status ml_mtp_trainer_add(ml_mtp_trainer *m, ml_trunk_rows trunk,
                             const ml_train_sample *s, const ml_bin *bin, double *term,
                             ml_err *err);
ml_status ml_mtp_trainer_end_shard(ml_mtp_trainer *m, int32_t k, bool last, ml_err *err);
/* Updates the weights; n_row: rows that counted, on all ranks.  Collective. */
ml_status ml_mtp_trainer_end(ml_mtp_trainer *m, int64_t n_row, double lr,
                             double weight_decay, ml_update *out, ml_err *err);

#endif
