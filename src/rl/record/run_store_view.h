/* run_store_view.h - reads the store of a run for lists: samples in short, groups, phases.
 *
 * The lists read indexes of the store, not the samples, so that a page of a list takes the
 * same time for a thousand samples as for a million.  A search for text reads the samples; it
 * ends after a given time and says where to go on.
 *
 * thread: one owner. */
#ifndef ML_RL_RECORD_RUN_STORE_VIEW_H
#define ML_RL_RECORD_RUN_STORE_VIEW_H

#include "rl/record/run_store.h"

typedef struct ml_run_view ml_run_view;

/* Opens run.db for reading. */
ml_status ml_run_view_open(ml_run_view **out, const char *path, ml_err *err);
void ml_run_view_close(ml_run_view *v); /* NULL is allowed */

/* ---- samples ---- */

/* A sample in short; strings are valid during the call that has it as an argument. */
typedef struct ml_view_row {
    int64_t rollout, place; /* the key of a sample; answers also have a set */
    int64_t sample, group;
    int64_t row; /* of the data set; -1: not known */
    double reward;
    bool has_reward;
    ml_str status, set; /* set: of an answer; empty: a sample */
    int64_t n_response;
    ml_str prompt, response; /* ml_view_query.texts: their ends and beginnings */
} ml_view_row;

typedef struct ml_view_query {
    bool evals;                         /* answers of evaluations instead of samples */
    const char *set;                    /* only answers to this data set; NULL: all */
    int64_t rollout;                    /* ML_ALL_ROLLOUTS: all */
    int64_t group, row;                 /* -1: all */
    double least, most;                 /* bounds of the reward; NaN: none */
    const char *status;                 /* NULL: all */
    const char *text;                   /* prompt or response contains it; NULL: any */
    bool texts;                         /* read excerpts of prompt and response */
    int64_t after_rollout, after_place; /* the row after which to begin; see ml_view_page */
    bool after;
    int64_t n_most;  /* rows; 0: all */
    double budget_s; /* stop after this time; 0: no limit */
} ml_view_query;

/* Where a list ended. */
typedef struct ml_view_page {
    bool more; /* there may be more rows after this one */
    int64_t rollout, place;
} ml_view_page;

typedef void ml_view_each(void *ud, const ml_view_row *row);

/* In the order of rollout and place. */
ml_status ml_run_view_rows(ml_run_view *v, const ml_view_query *q, ml_view_each *each,
                           void *ud, ml_view_page *page, ml_err *err);

/* The samples of a prompt. */
typedef struct ml_view_group {
    int64_t group, n, n_truncated, row;
    double mean, spread, least, most; /* of the rewards; spread: standard deviation */
    double n_response;                /* mean */
} ml_view_group;

typedef void ml_view_each_group(void *ud, const ml_view_group *g);
ml_status ml_run_view_groups(ml_run_view *v, bool evals, int64_t rollout,
                             ml_view_each_group *each, void *ud, ml_err *err);

/* One sample, whole.  The arguments of `each` are valid during the call. */
typedef void ml_view_whole(void *ud, const ml_view_row *row, const ml_sample *s,
                           const ml_sample_advantages *advantage);
/* By the number of the sample; set: of an answer, NULL: a sample of a rollout.
 * *found: there is one. */
ml_status ml_run_view_sample(ml_run_view *v, int64_t rollout, int64_t sample,
                             const char *set, ml_view_whole *each, void *ud, bool *found,
                             ml_err *err);

/* The first and last rollout with samples, the names of the data sets of evaluations; false:
 * there are none. */
bool ml_run_view_rollouts(ml_run_view *v, bool evals, int64_t *first, int64_t *last);
typedef void ml_view_each_name(void *ud, ml_str name);
ml_status ml_run_view_sets(ml_run_view *v, ml_view_each_name *each, void *ud, ml_err *err);

/* ---- phases and events ---- */

typedef struct ml_view_span {
    int64_t rollout;
    ml_str lane, name;
    double begin, end; /* seconds since 1970 */
} ml_view_span;

typedef void ml_view_each_span(void *ud, const ml_view_span *s);
/* The newest n_most that touch the time from `begin` to `end`, oldest first. */
ml_status ml_run_view_spans(ml_run_view *v, double begin, double end, int64_t n_most,
                            ml_view_each_span *each, void *ud, ml_err *err);
/* An event is a span without a length, whose lane is empty. */
ml_status ml_run_view_events(ml_run_view *v, int64_t n_most, ml_view_each_span *each,
                             void *ud, ml_err *err);

#endif
