/* rank_log.h - the output of ranks other than 0: DIR/logs/rank_N.log in the run directory.
 *
 * Rank 0 has the console.  Lines of other ranks are kept in memory until the directory is
 * known; a job that fails before writes none, and rank 0 prints the failure.
 *
 * thread: any. */
#ifndef ML_CLI_RANK_LOG_H
#define ML_CLI_RANK_LOG_H

#include "rl/loop/console.h"

/* Adds a line, with the time. */
void ml_rank_log_line(const char *line);

/* Appends to the file of this rank from now on; dir NULL: the run has no directory, and
 * lines are dropped. */
ml_status ml_rank_log_open(const char *dir, int32_t rank, ml_err *err);

/* A display that writes there: a line per stage of the loop. */
ml_display ml_rank_log_display(void);

#endif
