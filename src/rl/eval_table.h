/* eval_table.h - the figures of an evaluation as a table for people to read.
 *
 * thread: any. */
#ifndef ML_RL_EVAL_TABLE_H
#define ML_RL_EVAL_TABLE_H

#include "rl/metrics.h"

/* A row per set, then what else was measured, name by name; `say` gets line by line. */
void ml_eval_table(const ml_metrics *f, void (*say)(const char *line));

#endif
