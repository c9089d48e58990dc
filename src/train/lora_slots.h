/* lora_slots.h - several adapters that are trained in turn on one frozen base.
 *
 * A slot has the matrices, gradients and optimizer state of one adapter.  The base and the
 * plans, with their activations, exist once.  A slot computes the bits that it would compute
 * alone, whatever the others do in between: nothing that a pass or a step reads depends on
 * them.
 *
 * Gradients of backward passes add up until the slot's next step.  Samples run in the order
 * given, so that neither the size of micro-batches nor the other slots change their bits.
 *
 * thread: one owner, on the backend's stream. */
#ifndef ML_TRAIN_LORA_SLOTS_H
#define ML_TRAIN_LORA_SLOTS_H

#include "train/trainer.h"

typedef struct ml_lora_slots ml_lora_slots;
typedef struct ml_lora_slot ml_lora_slot;

/* All of it must outlive the slots. */
typedef struct ml_lora_slots_opts {
    const ml_spec *spec;    /* with LORA ops (ml_spec_lora_insert) */
    ml_lora_limits limits;  /* of these ops */
    const ml_weights *base; /* its lora is ignored */
    const ml_checkpoint
        *from; /* the base's, for the names of layers in files; NULL: none */
    ml_backend *be;
    int64_t max_tokens; /* of a micro-batch; a longer sample has one of its own */
    ml_recompute recompute;
} ml_lora_slots_opts;

ml_status ml_lora_slots_open(ml_lora_slots **out, const ml_lora_slots_opts *o, ml_err *err);
void ml_lora_slots_close(ml_lora_slots *all); /* after its slots; NULL is allowed */

/* A new adapter. */
ml_status ml_lora_slot_open(ml_lora_slot **out, ml_lora_slots *all, const ml_lora_opts *o,
                            ml_err *err);
void ml_lora_slot_close(ml_lora_slot *s); /* NULL is allowed */

const ml_lora *ml_lora_slot_adapter(const ml_lora_slot *s);
int64_t ml_lora_slot_steps(const ml_lora_slot *s); /* taken so far */

/* Log-probs of the samples' tokens, logprob[i] of sample i. */
ml_status ml_lora_slot_score(ml_lora_slot *s, const ml_train_sample *sample, int32_t n,
                             float *const *logprob, ml_err *err);

/* Forward and backward: adds the gradients of the sum of the samples' loss terms.  A value
 * that is not finite is an error, and adds nothing. */
ml_status ml_lora_slot_backward(ml_lora_slot *s, const ml_train_sample *sample, int32_t n,
                                ml_loss_fn *loss, void *ud, ml_err *err);

/* AdamW. */
typedef struct ml_slot_step {
    double lr, beta1, beta2, eps, weight_decay;
    double clip_grad;  /* limit of the gradients' norm; 0: none */
    double grad_scale; /* multiplies the gradients first */
} ml_slot_step;

/* Updates the adapter with the gradients added since the last step, or 0. */
ml_status ml_lora_slot_step(ml_lora_slot *s, const ml_slot_step *o, ml_update *out,
                            ml_err *err);

/* The newest snapshot in dir (snapshot.h) becomes this state, gradients excluded; config is
 * a JSON object.  Older ones are removed. */
ml_status ml_lora_slot_save(ml_lora_slot *s, const char *dir, ml_str config, ml_err *err);
/* Loads the newest snapshot in dir, of an adapter with the same layers and ranks; without
 * `optim`, the adapter alone, with a new optimizer.  Gradients become 0. */
ml_status ml_lora_slot_load(ml_lora_slot *s, const char *dir, bool optim, ml_err *err);
/* The same from a directory with an adapter alone (lora.h). */
ml_status ml_lora_slot_load_adapter(ml_lora_slot *s, const char *dir, ml_err *err);

#endif
