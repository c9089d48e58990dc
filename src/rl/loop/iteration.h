/* iteration.h - one iteration of the loop (a rollout with its train steps), and how it is
 * reported.
 *
 * thread: the loop's. */
#ifndef ML_RL_LOOP_ITERATION_H
#define ML_RL_LOOP_ITERATION_H

#include "base/work_count.h"
#include "rl/rollout/rollout.h"

typedef enum ml_stage {
    ML_STAGE_ROLLOUT, /* generates samples, or waits for them */
    ML_STAGE_LEARN,
    ML_STAGE_SAVE,
    ML_STAGE_REST, /* waits until no rollout is generated in the background */
    ML_STAGE_PUBLISH,
    ML_STAGE_EVAL,
    ML_N_STAGE
} ml_stage;

typedef struct ml_iteration {
    ml_arena arena; /* samples and metrics of the iteration */
    int64_t rollout;
    ml_rollout_batch batch;
    ml_learn_result result;
    double began_s;
    struct {
        double begin_s, end_s; /* wall-clock time; zeros: the stage did not run */
    } stage[ML_N_STAGE];
} ml_iteration;

void ml_iteration_begin(ml_iteration *r, int64_t rollout);
/* Logs the times and releases the iteration's memory. */
void ml_iteration_end(ml_iteration *r, ml_run_log *log);

void ml_stage_begin(ml_iteration *r, ml_stage stage);
void ml_stage_end(ml_iteration *r, ml_stage stage);

/* Progress of the loop.  The loop and its workers write it; the status display reads it
 * from any thread. */
typedef struct ml_phase {
    _Atomic int stage;       /* ml_stage; ML_N_STAGE: none yet */
    _Atomic int64_t rollout; /* the current rollout */
    _Atomic int64_t ends;    /* the last rollout, if a stop is requested now */
    _Atomic int64_t saved;   /* the newest snapshot that this process wrote; -1: none */
    ml_work_count answers, micro; /* of the current rollout: answers, micro-batches */
} ml_phase;

/* Receives log lines and progress. */
typedef struct ml_watcher {
    void (*say)(const char *line);
    /* `done` of `total` rollouts are finished; NULL: not wanted. */
    void (*progress)(int64_t done, int64_t total);
    ml_phase *phase; /* NULL: no status display */
    bool compact;    /* lines are short, for a terminal */
} ml_watcher;

/* Logs the metrics and emits a line per optimizer step; the first has the number `step`. */
void ml_iteration_report(const ml_iteration *r, ml_run_log *log, int64_t step,
                         const ml_watcher *to);
void ml_iteration_report_eval(const ml_metrics *metrics, ml_run_log *log, int64_t rollout,
                              const ml_watcher *to);

#endif
