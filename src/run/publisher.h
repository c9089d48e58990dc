/* publisher.h - engines in other processes for miles train: miles serve, or miles
 * router in front of several.
 *
 * Weights reach them through a directory that they see under the same path.
 *
 * thread: the command's. */
#ifndef ML_RUN_PUBLISHER_H
#define ML_RUN_PUBLISHER_H

#include "run/generator.h"

#define ML_TRAIN_RETRY_S 0.5
#define ML_TRAIN_CONNECT_S 10.0
#define ML_TRAIN_WARN_S 30.0 /* time without a response before a warning */

/* Creates the directory, t->weight_dir, and the writer of the weights. */
ml_status ml_train_remote_dir(ml_train_gen *t, const ml_config *c, ml_err *err);

/* Memory of this process needed for publishing. */
size_t ml_train_remote_bytes(const ml_train_gen *t);

/* Opens t->gen; all engines must be reachable. */
ml_status ml_train_remote_open(ml_train_gen *t, const ml_config *c, ml_err *err);

/* Returns when all engines have these weights and have confirmed that they are
 * bit-identical. */
ml_status ml_train_remote_publish(ml_train_gen *t, const ml_weights *w, ml_err *err);

#endif
