/* run_log.h - what a run writes down.
 *
 *     DIR/metrics.jsonl  a row per round, optimizer step and evaluation; the same bytes
 *                        whenever the run is done again
 *     DIR/timing.jsonl   seconds and rates
 *     DIR/determinism.jsonl  hashes of every step, when asked for
 *     DIR/run.db         both, with all samples and what happened: run_store.h
 *     DIR/tensorboard/   both, for TensorBoard
 *     DIR/trace_N.json   the phases of rounds from N on and the ops in them, for trace
 *                        viewers, when asked for
 *
 * Every row begins with the number of its round.  A run that goes on from a snapshot
 * discards what came after it; so rows of a round are settled before it is saved.  The two
 * jsonl files are written at once; the rest waits for the end of the round and is then
 * written in the background.
 *
 * thread: one owner. */
#ifndef ML_RL_RUN_LOG_H
#define ML_RL_RUN_LOG_H

#include <stdint.h>
#include <stdio.h>

#include "base/background.h"
#include "base/timeline.h"
#include "io/event_file.h"
#include "io/trace_file.h"
#include "rl/metrics.h"
#include "rl/run_store.h"

typedef struct ml_log_batch ml_log_batch;

typedef struct ml_run_log {
    FILE *metrics, *timing; /* NULL: nothing is written */
    FILE *hashes;           /* NULL: nobody wants them */
    ml_event_file events;
    ml_run_store *store; /* NULL: none is wanted */
    ml_trace_file trace;
    ml_log_batch *now, *writing; /* of this round; in the background */
    ml_background writer;
    unsigned spans;                    /* kinds that a trace shows; 0: there is none */
    ml_timeline *ops;                  /* for the trace; NULL: nobody tells of them */
    double flop_per_token, peak_flops; /* of training; 0: not known */
    ml_status st; /* what went wrong in the background, until somebody checks */
    ml_err err;
} ml_run_log;

/* Kinds of spans, for who does not want them all. */
typedef enum ml_span_kind {
    ML_SPAN_OTHER = 1,
    ML_SPAN_LOG_PROBS = 2,
    ML_SPAN_TRAIN = 4,
    ML_SPAN_ALL = 7,
} ml_span_kind;

typedef struct ml_run_log_opts {
    const char *dir;
    /* Another directory for TensorBoard, or the names of one in tensorboard_log; NULL, both:
     * DIR/tensorboard. */
    const char *tensorboard, *project, *experiment;
    bool no_store, profile, determinism;
    unsigned spans; /* bits of ml_span_kind that a profile shows; 0: all */
    ml_timeline
        *ops; /* where models tell of their ops, taken for the profile; may be NULL */
    double flop_per_token, peak_flops; /* to tell speeds; 0: not known */
} ml_run_log_opts;

/* Appends the path of the TensorBoard file. */
void ml_run_log_event_path(ml_text *out, const ml_run_log_opts *opts);

/* Rows of rounds from `rollout` on are dropped, and evaluations of the round before it,
 * which is evaluated again.  0: everything is. */
ml_status ml_run_log_open(ml_run_log *l, const ml_run_log_opts *opts, int64_t rollout,
                          ml_err *err);
void ml_run_log_close(ml_run_log *l); /* zeros are fine */

/* A row of metrics.jsonl.  step: of an optimizer step; -1: of the round. */
void ml_run_log_metrics(ml_run_log *l, int64_t rollout, int64_t step,
                        const ml_metrics *figures);
void ml_run_log_timing(ml_run_log *l, int64_t rollout, const ml_metrics *figures);
/* A row that begins with `head`, an object without its end. */
void ml_run_log_hashes(ml_run_log *l, const char *head, uint64_t samples,
                       uint64_t gradients, uint64_t weights);
/* They must live until the batch was posted or settled. */
void ml_run_log_samples(ml_run_log *l, int64_t rollout, const ml_sample *const *sample,
                        int64_t n);
/* The answers of an evaluation, which lie in the arena: it is taken along where there is a
 * store, and then left empty. */
void ml_run_log_answers(ml_run_log *l, int64_t rollout, const ml_eval_answers *first,
                        ml_arena *a);
void ml_run_log_span(ml_run_log *l, int64_t rollout, ml_span_kind kind, const char *name,
                     double begin_s, double end_s);
void ml_run_log_event(ml_run_log *l, int64_t rollout, const char *what);

/* The round is over: writing goes on in the background, and takes the arena along. */
void ml_run_log_post(ml_run_log *l, ml_arena *round);
/* Waits until everything that was told is in the files. */
ml_status ml_run_log_settle(ml_run_log *l, ml_err *err);
/* Fails when something could not be written. */
ml_status ml_run_log_check(ml_run_log *l, ml_err *err);

#endif
