/* master_weights.h - checks that bf16 weights are their f32 master weights, rounded.
 *
 * thread: the trainer's, between steps. */
#ifndef ML_TRAIN_MASTER_WEIGHTS_H
#define ML_TRAIN_MASTER_WEIGHTS_H

#include "train/optimizer.h"

/* ML_EFORMAT names the first weight that differs.  f32 weights are their own masters. */
ml_status ml_master_weights_check(const ml_optimizer *o, ml_err *err);

#endif
