/* run_store.h - a run as an SQLite database: DIR/run.db.
 *
 *     samples  rollout, place in it, sample, grp, prompt, response, label, reward, status,
 *              n_response; tokens (int32), mask (bytes), logprobs (f32), versions (int64);
 *              row of the data set, advantages (f32; one number: that of every token)
 *     answers  the same for evaluations, without the last two, and the data set's name
 *     metrics  rollout, step (NULL: the rollout's), name, value
 *     timings  rollout, name, value
 *     events   rollout, time (seconds since 1970), what
 *     spans    rollout, lane (a thread of the loop), name of the phase, begin and end in
 *              seconds since 1970
 *
 * `miles inspect`, `miles dashboard` (run_view.h) and any SQL client can read it, also while the run writes.
 *
 * thread: one owner. */
#ifndef ML_RL_RECORD_RUN_STORE_H
#define ML_RL_RECORD_RUN_STORE_H

#include "rl/sample.h"

typedef struct ml_run_store ml_run_store;

/* Drops the rows of rollouts from `rollout` on, and the evaluation after the rollout
 * before it, because that evaluation is repeated. */
ml_status ml_run_store_open(ml_run_store **out, const char *path, int64_t rollout,
                            ml_err *err);
void ml_run_store_close(ml_run_store *s); /* NULL is allowed */

/* begin and end enclose a transaction. */
ml_status ml_run_store_begin(ml_run_store *s, ml_err *err);
ml_status ml_run_store_end(ml_run_store *s, ml_err *err);

/* The advantages of a sample's tokens. */
typedef struct ml_sample_advantages {
    const float *at; /* [n]; NULL: not known */
    int32_t n;       /* 1: every token has this one */
} ml_sample_advantages;
/* advantage: [n], or NULL. */
ml_status ml_run_store_add_samples(ml_run_store *s, int64_t rollout,
                                   const ml_sample *const *sample, int64_t n,
                                   const ml_sample_advantages *advantage, ml_err *err);
/* The answers to the prompts of a data set, in an evaluation after a rollout. */
typedef struct ml_eval_answers {
    const char *set;
    const ml_sample *const *sample; /* [n] */
    int64_t n;
    struct ml_eval_answers *next; /* of the same evaluation */
} ml_eval_answers;
ml_status ml_run_store_add_answers(ml_run_store *s, int64_t rollout,
                                   const ml_eval_answers *first, ml_err *err);
/* step -1: the rollout's.  A value that is not finite is stored as NULL. */
ml_status ml_run_store_add_metric(ml_run_store *s, int64_t rollout, int64_t step,
                                  const char *name, double value, ml_err *err);
ml_status ml_run_store_add_timing(ml_run_store *s, int64_t rollout, const char *name,
                                  double value, ml_err *err);
ml_status ml_run_store_add_event(ml_run_store *s, int64_t rollout, const char *what,
                                 ml_err *err);
ml_status ml_run_store_add_span(ml_run_store *s, int64_t rollout, const char *lane,
                                const char *name, double begin, double end, ml_err *err);

/* ---- reading ---- */

/* The evaluation before the first rollout has the number -1. */
#define ML_ALL_ROLLOUTS INT64_MIN

typedef struct ml_sample_query {
    bool evals;             /* answers of evaluations instead of samples of rollouts */
    const char *set;        /* only answers to this data set; NULL: all */
    int64_t rollout;        /* for evaluations, the rollout before; ML_ALL_ROLLOUTS: all */
    double least, most;     /* bounds of the reward; NaN: no bound */
    bool truncated;         /* only truncated samples */
    int64_t n_skip, n_most; /* offset and limit of the results; n_most 0: all */
} ml_sample_query;

/* set: the data set of an evaluation; NULL: a sample of a rollout.  Returning false ends
 * the search. */
typedef bool ml_sample_each(void *ud, int64_t rollout, const char *set, const ml_sample *s);

/* Calls `each` for the samples in the order of their rollouts; its arguments are valid
 * during the call. */
ml_status ml_run_store_find(const char *path, const ml_sample_query *q,
                            ml_sample_each *each, void *ud, ml_err *err);

#endif
