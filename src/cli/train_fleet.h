/* train_fleet.h - the engines that miles train starts as processes of its own.
 *
 * thread: the command's. */
#ifndef ML_CLI_TRAIN_FLEET_H
#define ML_CLI_TRAIN_FLEET_H

#include "cli/train_gen.h"

/* Starts t->n_engine times miles serve, sized as t->engine says, and opens t->gen over them;
 * they have no weights of the run yet. */
ml_status ml_train_fleet_open(ml_train_gen *t, const ml_config *c, ml_err *err);

/* The engines that evaluate and nothing else, and what evaluates with them while the loop goes
 * on: t->eval_queue. */
ml_status ml_train_eval_fleet_open(ml_train_gen *t, const ml_config *c, ml_err *err);
void ml_train_eval_fleet_close(ml_train_gen *t); /* none is fine */

#endif
