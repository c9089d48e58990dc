/* run_store.h - a run as a database: DIR/run.db, for SQLite.
 *
 *     samples  rollout, place in it, sample, grp, prompt, response, label, reward, status,
 *              n_response; tokens (int32), mask (bytes), logprobs (f32), versions (int64)
 *     answers  the same of evaluations, and the name of the data set
 *     metrics  rollout, step (NULL: of the round), name, value
 *     timings  rollout, name, value
 *     events   rollout, time (seconds since 1970), what
 *
 * miles inspect reads it, and so does everything that speaks SQL.  It may be read while the
 * run writes.
 *
 * thread: one owner. */
#ifndef ML_RL_RUN_STORE_H
#define ML_RL_RUN_STORE_H

#include "rl/sample.h"

typedef struct ml_run_store ml_run_store;

/* Rows of rounds from `rollout` on are dropped, and evaluations of the round before it, which
 * is evaluated again. */
ml_status ml_run_store_open(ml_run_store **out, const char *path, int64_t rollout,
                            ml_err *err);
void ml_run_store_close(ml_run_store *s); /* NULL is fine */

/* What is added between begin and end is there as a whole or not at all. */
ml_status ml_run_store_begin(ml_run_store *s, ml_err *err);
ml_status ml_run_store_end(ml_run_store *s, ml_err *err);

ml_status ml_run_store_add_samples(ml_run_store *s, int64_t rollout,
                                   const ml_sample *const *sample, int64_t n, ml_err *err);
/* The answers to the prompts of a data set, in an evaluation after a round. */
typedef struct ml_eval_answers {
    const char *set;
    const ml_sample *const *sample; /* [n] */
    int64_t n;
    struct ml_eval_answers *next; /* of the same evaluation */
} ml_eval_answers;
ml_status ml_run_store_add_answers(ml_run_store *s, int64_t rollout,
                                   const ml_eval_answers *first, ml_err *err);
/* step -1: of the round.  What is not finite is NULL. */
ml_status ml_run_store_add_metric(ml_run_store *s, int64_t rollout, int64_t step,
                                  const char *name, double value, ml_err *err);
ml_status ml_run_store_add_timing(ml_run_store *s, int64_t rollout, const char *name,
                                  double value, ml_err *err);
ml_status ml_run_store_add_event(ml_run_store *s, int64_t rollout, const char *what,
                                 ml_err *err);

/* ---- reading ---- */

/* The evaluation before the first round has the number -1. */
#define ML_ALL_ROLLOUTS INT64_MIN

typedef struct ml_sample_query {
    bool evals;             /* answers of evaluations in place of samples of rounds */
    const char *set;        /* only those to this data set; NULL: all */
    int64_t rollout;        /* of evaluations, the round before; ML_ALL_ROLLOUTS: all */
    double least, most;     /* of rewards; NaN: no bound */
    bool truncated;         /* only those that were cut off */
    int64_t n_skip, n_most; /* of what is found; n_most 0: all */
} ml_sample_query;

/* set: the data set of an evaluation; NULL: a sample of a round.  False ends the search. */
typedef bool ml_sample_each(void *ud, int64_t rollout, const char *set, const ml_sample *s);

/* The samples in the order of their rounds; what `each` gets is valid during the call. */
ml_status ml_run_store_find(const char *path, const ml_sample_query *q,
                            ml_sample_each *each, void *ud, ml_err *err);

#endif
