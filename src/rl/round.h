/* round.h - a round of the loop while it happens, and what is told of it.
 *
 * thread: the loop's. */
#ifndef ML_RL_ROUND_H
#define ML_RL_ROUND_H

#include "base/work_count.h"
#include "rl/rollout.h"

typedef enum ml_stage {
    ML_STAGE_ROLLOUT, /* makes samples, or waits for them */
    ML_STAGE_LEARN,
    ML_STAGE_SAVE,
    ML_STAGE_REST, /* waits until nothing is made behind the loop's back */
    ML_STAGE_PUBLISH,
    ML_STAGE_EVAL,
    ML_N_STAGE
} ml_stage;

typedef struct ml_round {
    ml_arena arena; /* the round's samples and figures */
    int64_t rollout;
    ml_rollout_batch harvest;
    ml_learn_result lesson;
    double began_s;
    struct {
        double begin_s, end_s; /* by the clock; zeros: it did not happen */
    } stage[ML_N_STAGE];
} ml_round;

void ml_round_begin(ml_round *r, int64_t rollout);
/* Writes down the times and lets the round go. */
void ml_round_end(ml_round *r, ml_run_log *log);

void ml_stage_begin(ml_round *r, ml_stage stage);
void ml_stage_end(ml_round *r, ml_stage stage);

/* How far the loop is: written by it and by who works for it, read by who shows it, on any
 * thread. */
typedef struct ml_phase {
    _Atomic int stage;       /* ml_stage; ML_N_STAGE: none yet */
    _Atomic int64_t rollout; /* the round at hand */
    _Atomic int64_t ends;    /* the round after which a run that is asked to stop ends */
    _Atomic int64_t saved;   /* the newest snapshot that this process wrote; -1: none */
    ml_work_count answers, micro; /* of the round: answers, micro-batches */
} ml_phase;

/* Who watches. */
typedef struct ml_watcher {
    void (*say)(const char *line);
    /* `done` of `total` rounds are over; NULL: nobody wants to know. */
    void (*progress)(int64_t done, int64_t total);
    ml_phase *phase; /* NULL: nobody shows it */
    bool compact;    /* lines are short, for a terminal */
} ml_watcher;

/* Rows of the log, and a line per optimizer step, the first numbered `step`. */
void ml_round_report(const ml_round *r, ml_run_log *log, int64_t step,
                     const ml_watcher *to);
void ml_round_report_eval(const ml_metrics *figures, ml_run_log *log, int64_t rollout,
                          const ml_watcher *to);

#endif
