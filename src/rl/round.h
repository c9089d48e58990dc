/* round.h - a round of the loop while it happens, and what is told of it.
 *
 * thread: the loop's. */
#ifndef ML_RL_ROUND_H
#define ML_RL_ROUND_H

#include "rl/rollout.h"

typedef struct ml_round {
    ml_arena arena; /* the round's samples and figures */
    int64_t rollout;
    ml_harvest harvest;
    ml_lesson lesson;
    double began_s;                                  /* by the clock */
    double rollout_s, save_s, weight_sync_s, eval_s; /* seconds of its stages */
    double wait_s; /* for samples; rollout_s, unless they were made meanwhile */
} ml_round;

void ml_round_begin(ml_round *r, int64_t rollout);
/* Writes down the times and lets the round go. */
void ml_round_end(ml_round *r, ml_run_log *log);

/* Rows of metrics.jsonl, and a line per optimizer step, the first numbered `step`. */
void ml_round_report(const ml_round *r, ml_run_log *log, int64_t step,
                     void (*say)(const char *line));
void ml_round_report_eval(const ml_figures *figures, ml_run_log *log, int64_t rollout,
                          void (*say)(const char *line));

#endif
