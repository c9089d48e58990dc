/* train_remote.h - engines of other processes for miles train: miles serve, or miles router in
 * front of some.
 *
 * Weights reach them through a directory that they see under the same name.
 *
 * thread: the command's. */
#ifndef ML_CLI_TRAIN_REMOTE_H
#define ML_CLI_TRAIN_REMOTE_H

#include "cli/train_gen.h"

#define ML_TRAIN_RETRY_S 0.5
#define ML_TRAIN_CONNECT_S 10.0
#define ML_TRAIN_WARN_S 30.0 /* without an answer, before that is said */

/* Makes the directory, as t->weight_dir, and what is written there. */
ml_status ml_train_remote_dir(ml_train_gen *t, const ml_config *c, ml_err *err);

/* Memory of this process that publishing takes. */
size_t ml_train_remote_bytes(const ml_train_gen *t);

/* Opens t->gen; all of them must be there. */
ml_status ml_train_remote_open(ml_train_gen *t, const ml_config *c, ml_err *err);

/* Returns when all of them have these weights, and have said that they are the same to the
 * bit. */
ml_status ml_train_remote_publish(ml_train_gen *t, const ml_weights *w, ml_err *err);

#endif
