/* critic.h - the second model of PPO: what an answer so far is expected to earn.
 *
 * The actor's architecture with a value per token in place of the LM head, weights, trainer
 * and learning rate of its own.  It starts from a checkpoint of the language model, whose
 * head is replaced by small random numbers, always the same ones, or from one of a critic.
 *
 * thread: the trainer's. */
#ifndef ML_RL_CRITIC_H
#define ML_RL_CRITIC_H

#include "train/trainer.h"

typedef struct ml_critic {
    ml_spec spec;
    ml_checkpoint *from; /* what it starts from; names and dtypes of what is saved */
    ml_weights weights;
    ml_trainer *trainer; /* NULL: not started */
} ml_critic;

/* Reads and checks the checkpoint; takes no memory for the model yet. */
ml_status ml_critic_open(ml_critic *out, const char *dir, uint64_t seed,
                         ml_weight_dtype dtype, ml_err *err);
void ml_critic_close(ml_critic *c); /* after a failed open, too; zeros are fine */

/* Weights from the snapshot, or, when it is NULL, from the checkpoint. */
ml_status ml_critic_start(ml_critic *c, const char *snapshot, ml_weight_dtype dtype,
                          ml_backend *be, const ml_trainer_opts *opts, ml_arena *a,
                          ml_err *err);

#endif
