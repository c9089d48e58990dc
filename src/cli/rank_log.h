/* rank_log.h - the log of a rank of several: DIR/logs/rank_N.log in the run directory.
 *
 * Lines are kept in memory until the directory is known; a job that fails before writes
 * none, and rank 0 prints the failure.  Rank 0 has the terminal, too.
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

/* A display that writes there: a line per stage of the loop.  terminal: that of rank 0, which
 * gets everything as well and must outlive it; NULL: of another rank. */
ml_display ml_rank_log_display(const ml_display *terminal);

#endif
