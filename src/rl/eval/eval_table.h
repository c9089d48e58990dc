/* eval_table.h - prints the metrics of an evaluation as a table.
 *
 * thread: any. */
#ifndef ML_RL_EVAL_EVAL_TABLE_H
#define ML_RL_EVAL_EVAL_TABLE_H

#include "rl/record/metrics.h"

/* Prints a row per data set, then each remaining metric by name.  `say` is called once per
 * line. */
void ml_eval_table(const ml_metrics *f, void (*say)(const char *line));

#endif
