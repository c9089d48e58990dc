/* train_fleet.h - the engine processes that miles train starts.
 *
 * thread: the command's. */
#ifndef ML_CLI_TRAIN_FLEET_H
#define ML_CLI_TRAIN_FLEET_H

#include "cli/train_gen.h"

/* Starts t->n_engine processes of miles serve, with the sizes in t->engine, and opens
 * t->gen over them; they do not have the run's weights yet. */
ml_status ml_train_supervisor_open(ml_train_gen *t, const ml_config *c, ml_err *err);

/* Starts the engines used only for evaluations, and the queue that runs evaluations on
 * them while the loop continues: t->eval_queue. */
ml_status ml_train_eval_engines_open(ml_train_gen *t, const ml_config *c, ml_err *err);
void ml_train_eval_engines_close(ml_train_gen *t); /* allowed if none is open */

#endif
