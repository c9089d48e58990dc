/* critic.h - the critic of PPO: estimates the expected reward at each token of an answer.
 *
 * The critic has the actor's architecture with a value head in place of the LM head, and
 * its own weights, trainer and learning rate.  It starts from a checkpoint of a critic or
 * of the language model, whose head is replaced by small random numbers from the seed.
 *
 * thread: the trainer's. */
#ifndef ML_RL_LEARN_CRITIC_H
#define ML_RL_LEARN_CRITIC_H

#include "train/trainer.h"

typedef struct ml_critic {
    ml_spec spec;
    ml_checkpoint *from;  /* initial weights; also gives names and dtypes for saving */
    const int32_t *stage; /* the pipeline stage of each node; NULL: one */
    ml_weights weights;
    ml_trainer *trainer; /* NULL: not started */
} ml_critic;

/* Reads and checks the checkpoint; does not allocate the model yet.  `spec`: the actor's. */
ml_status ml_critic_open(ml_critic *out, const char *dir, ml_spec_opts spec, uint64_t seed,
                         ml_weight_dtype dtype, ml_err *err);
void ml_critic_close(ml_critic *c); /* also after a failed open; zeros are allowed */

/* Loads the weights from the snapshot or, if it is NULL, from the checkpoint. */
ml_status ml_critic_start(ml_critic *c, const char *snapshot, ml_weight_dtype dtype,
                          ml_backend *be, const ml_trainer_opts *opts, ml_arena *a,
                          ml_err *err);

#endif
