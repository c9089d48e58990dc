/* iteration.h - one iteration of the loop: a rollout with its train steps.
 *
 * thread: the loop's. */
#ifndef ML_RL_LOOP_ITERATION_H
#define ML_RL_LOOP_ITERATION_H

#include "rl/learn/learner.h"
#include "rl/rollout/rollout.h"
#include "rl/record/run_log.h"

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

/* The iteration so far and its stages, as spans of ML_TRACK_LOOP. */
enum { ML_ITERATION_SPANS = ML_N_STAGE + 1 };
int32_t ml_iteration_spans(const ml_iteration *r, double end_s,
                           ml_time_span out[ML_ITERATION_SPANS]);

void ml_stage_begin(ml_iteration *r, ml_stage stage);
void ml_stage_end(ml_iteration *r, ml_stage stage);

/* How many samples of a rollout are trained on, by Miles' rule: train steps have a fixed
 * number of samples, and the remainder of a rollout is dropped before anything is computed.
 * If several samples belong to one conversation, the packing counts conversations, and
 * nothing is dropped here. */
typedef struct ml_truncate_opts {
    int64_t global_batch_size;
    int32_t n_rank;
    bool one_step;   /* a rollout is one step, the largest that ranks can share evenly */
    bool all;        /* nothing is dropped */
    bool has_pieces; /* some samples belong to one conversation */
} ml_truncate_opts;

/* Returns how many of n samples, from the first on, are trained; 0: they do not fill a
 * step. */
int64_t ml_truncate(const ml_truncate_opts *o, int64_t n);

/* Truncates the rollout batch.  ML_EUSAGE: it does not fill a step. */
ml_status ml_iteration_truncate(ml_iteration *r, const ml_schedule_opts *o, bool all,
                                ml_err *err);

static inline double ml_rate(int64_t n, double s) {
    return s > 0 ? (double)n / s : 0.0;
}
/* Seconds of generation, which may have run in the background. */
double ml_iteration_seconds(const ml_iteration *r);
/* Trained tokens, of actor and critic. */
int64_t ml_iteration_tokens(const ml_iteration *r);

/* An observer, see observer.h: writes metrics, samples and events to an ml_run_log. */
ml_status ml_iteration_log(void *run_log, const ml_loop_event *e, ml_err *err);

#endif
