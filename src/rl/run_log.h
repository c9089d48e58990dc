/* run_log.h - what a run writes down: figures that are functions of the run, and times.
 *
 *     DIR/metrics.jsonl  a row per round, optimizer step and evaluation; the same bytes
 *                        whenever the run is done again
 *     DIR/timing.jsonl   seconds and rates
 *
 * Every row begins with the number of its round.  A run that goes on from a snapshot
 * discards what came after it.
 *
 * thread: one owner. */
#ifndef ML_RL_RUN_LOG_H
#define ML_RL_RUN_LOG_H

#include <stdint.h>
#include <stdio.h>

#include "base/err.h"
#include "rl/figures.h"

typedef struct ml_run_log {
    FILE *metrics, *timing; /* NULL: nothing is written */
} ml_run_log;

/* Rows of rounds from `rollout` on are dropped, and evaluations of the round before it,
 * which is evaluated again.  0: everything is. */
ml_status ml_run_log_open(ml_run_log *l, const char *dir, int64_t rollout, ml_err *err);
void ml_run_log_close(ml_run_log *l); /* zeros are fine */

/* {"rollout": R, then the figures}.  extra: more members, with a comma before, or "". */
void ml_run_log_row(FILE *f, int64_t rollout, const char *extra, const ml_figures *figures);

/* Fails when a row could not be written. */
ml_status ml_run_log_check(const ml_run_log *l, ml_err *err);

#endif
