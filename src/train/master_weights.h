/* masters.h - that bf16 weights are what their f32 masters round to.
 *
 * thread: the trainer's, between steps. */
#ifndef ML_TRAIN_MASTER_WEIGHTS_H
#define ML_TRAIN_MASTER_WEIGHTS_H

#include "train/optimizer.h"

/* ML_EFORMAT: the first weight that is not, by its name.  f32 weights are their own masters. */
ml_status ml_master_weights_check(const ml_optimizer *o, ml_err *err);

#endif
