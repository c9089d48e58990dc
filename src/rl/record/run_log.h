/* run_log.h - the log files of a run.
 *
 *     DIR/metrics.jsonl  a row per rollout, optimizer step and evaluation; repeating the
 *                        run gives the same bytes
 *     DIR/timing.jsonl   seconds and rates
 *     DIR/determinism.jsonl  hashes of every step, if requested
 *     DIR/run.db         both, with all samples and events: run_store.h
 *     DIR/tensorboard/   both, for TensorBoard
 *     DIR/trace_N.json   the phases of rollouts from N on and their ops, for trace viewers,
 *                        if requested
 *
 * Every row begins with its rollout's number.  A run that continues from a snapshot
 * discards the rows after that snapshot, so the rows of a rollout are flushed before the
 * rollout is saved.  The jsonl files are written immediately; a background thread writes
 * the rest after the rollout.
 *
 * thread: one owner. */
#ifndef ML_RL_RECORD_RUN_LOG_H
#define ML_RL_RECORD_RUN_LOG_H

#include <stdint.h>
#include <stdio.h>

#include "base/background.h"
#include "base/timeline.h"
#include "io/event_file.h"
#include "io/trace_file.h"
#include "miles/plugin.h"
#include "rl/record/metrics.h"
#include "rl/record/run_store.h"

typedef struct ml_log_batch ml_log_batch;

typedef struct ml_run_log {
    FILE *metrics, *timing; /* NULL: nothing is written */
    FILE *hashes;           /* NULL: not requested */
    ml_event_file events;
    ml_run_store *store; /* NULL: not requested */
    ml_trace_file trace;
    ml_log_batch *now, *writing; /* of this rollout; being written in the background */
    ml_background writer;
    unsigned spans;                    /* kinds shown in the trace; 0: no trace */
    ml_timeline *ops;                  /* for the trace; NULL: ops are not recorded */
    int32_t n_rank;                    /* rows of the trace */
    double flop_per_token, peak_flops; /* of training; 0: not known */
    ml_status st; /* error of the background writer, until the next check */
    ml_err err;
} ml_run_log;

/* Kinds of spans, so that a trace can select some; the store has all. */
typedef enum ml_span_kind {
    ML_SPAN_OTHER = 1,
    ML_SPAN_LOG_PROBS = 2,
    ML_SPAN_TRAIN = 4,
    ML_SPAN_ALL = 7,
} ml_span_kind;

typedef struct ml_run_log_opts {
    const char *dir;
    /* Another directory for TensorBoard, or the names of a subdirectory of
     * tensorboard_log.  NULL, both: DIR/tensorboard. */
    const char *tensorboard, *project, *experiment;
    bool no_store, profile, determinism;
    unsigned spans;   /* bits of ml_span_kind shown in a profile; 0: all */
    ml_timeline *ops; /* ops that models record, for the profile; may be NULL */
    int32_t n_rank;   /* of the job, each a row of the trace; 0: 1 */
    double flop_per_token, peak_flops; /* to report speeds; 0: not known */
} ml_run_log_opts;

/* Appends the path of the TensorBoard file. */
void ml_run_log_event_path(ml_text *out, const ml_run_log_opts *opts);

/* Drops the rows of rollouts from `rollout` on, and the evaluation after the rollout
 * before it, because that evaluation is repeated.  0: drops everything. */
ml_status ml_run_log_open(ml_run_log *l, const ml_run_log_opts *opts, int64_t rollout,
                          ml_err *err);
void ml_run_log_close(ml_run_log *l); /* zeros are allowed */

/* Writes a row of metrics.jsonl. step: the optimizer step; -1: the row is the rollout's. */
void ml_run_log_metrics(ml_run_log *l, int64_t rollout, int64_t step,
                        const ml_metrics *metrics);
void ml_run_log_timing(ml_run_log *l, int64_t rollout, const ml_metrics *metrics);
/* Writes a row that begins with `head`, a JSON object without the closing brace. */
void ml_run_log_hashes(ml_run_log *l, const char *head, uint64_t samples,
                       uint64_t gradients, uint64_t weights);
/* The samples must live until the batch is posted or settled. */
void ml_run_log_samples(ml_run_log *l, int64_t rollout, const ml_sample *const *sample,
                        int64_t n);
/* The advantages of the samples that are logged next, in the same order. */
void ml_run_log_advantages(ml_run_log *l, const miles_batch *batch);
/* The answers of an evaluation, allocated in the arena.  If there is a store, the log
 * takes the arena's contents and leaves it empty. */
void ml_run_log_answers(ml_run_log *l, int64_t rollout, const ml_eval_answers *first,
                        ml_arena *a);
void ml_run_log_span(ml_run_log *l, int64_t rollout, ml_span_kind kind, const char *name,
                     double begin_s, double end_s);
/* The ops of another rank, in the clock of this one and allocated in the arena, whose
 * contents the log takes. */
void ml_run_log_rank_ops(ml_run_log *l, int32_t rank, ml_timeline_taken ops, ml_arena *a);
void ml_run_log_event(ml_run_log *l, int64_t rollout, const char *what);

/* Ends the rollout: a background thread writes the rest and takes the contents of the
 * arena. */
void ml_run_log_post(ml_run_log *l, ml_arena *round);
/* Waits until everything logged is in the files. */
ml_status ml_run_log_settle(ml_run_log *l, ml_err *err);
/* Fails if a write failed. */
ml_status ml_run_log_check(ml_run_log *l, ml_err *err);

#endif
