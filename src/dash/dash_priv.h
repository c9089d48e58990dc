/* dash_priv.h - what the files of the dashboard share. */
#ifndef ML_DASH_DASH_PRIV_H
#define ML_DASH_DASH_PRIV_H

#include "base/json_out.h"
#include "dash/dash.h"
#include "dash/series.h"
#include "rl/record/run_store_view.h"
#include "text/tokenizer/tokenizer.h"

/* One run. */
typedef struct ml_dash_run {
    const char *dir;
    char *name; /* unique among the runs */
    ml_series_set series;
    ml_run_view *view; /* NULL: there is no run.db, or not yet; see ml_dash_view */
    ino_t view_inode;  /* of the file that is open */
    ml_tokenizer *tokenizer;
    bool asked_tokenizer; /* it was looked for */
} ml_dash_run;

struct ml_dash {
    ml_dash_opts opts;
    ml_access access;
    ml_http_server *server;
    ml_dash_run *run; /* [n_run] */
    int n_run;
    ml_arena arena;
};

/* A request for JSON and its reply. */
typedef struct ml_dash_request {
    ml_dash *dash;
    ml_dash_run *run; /* of the query's "run": its name; the first one, if there is none */
    ml_str query;     /* not decoded */
    ml_str body;
    int64_t rollout, sample; /* from the path, where it has them */
    ml_arena *arena;         /* of the request */
    ml_text text;            /* the reply */
    ml_json_out out;
    int status;       /* of the reply to a failure; 0: by the ml_status */
    const char *type; /* of the reply; NULL: JSON */
} ml_dash_request;

/* On failure the request has the reply's status; otherwise ML_EUSAGE is 400, others 503. */
typedef ml_status ml_dash_answer(ml_dash_request *r, ml_err *err);

ml_dash_answer ml_dash_runs, ml_dash_meta, ml_dash_metrics, ml_dash_advisory,
    ml_dash_events; /* dash_metrics.c */
ml_dash_answer ml_dash_summary, ml_dash_groups, ml_dash_samples, ml_dash_messages,
    ml_dash_tokens, ml_dash_trajectories; /* dash_samples.c */
ml_dash_answer ml_dash_topology, ml_dash_phases, ml_dash_bubbles, ml_dash_outliers,
    ml_dash_fleet, ml_dash_heatmap, ml_dash_gpu, ml_dash_gpu_processes,
    ml_dash_engine_series;                           /* dash_timeline.c */
ml_dash_answer ml_dash_control, ml_dash_control_log; /* dash_control.c */

/* Fails with this status: 404 for what does not exist. */
__attribute__((format(printf, 4, 5))) ml_status
ml_dash_refuse(ml_dash_request *r, int status, ml_err *err, const char *fmt, ...);

/* The store of the run, opened when it is first needed; 404 if there is none. */
ml_status ml_dash_view(ml_dash_request *r, ml_err *err);

/* --- parameters of the query ------------------------------------------------------------ */

/* The decoded value, in the request's arena; NULL: absent. */
const char *ml_dash_param(const ml_dash_request *r, const char *name);
/* ML_EUSAGE if the value is not a number within the bounds. */
ml_status ml_dash_param_int(const ml_dash_request *r, const char *name, int64_t low,
                            int64_t high, int64_t *inout, ml_err *err);
ml_status ml_dash_param_number(const ml_dash_request *r, const char *name, double *inout,
                               ml_err *err);
/* "1" or "true". */
bool ml_dash_param_bool(const ml_dash_request *r, const char *name);

/* Appends a string whose invalid UTF-8 is replaced by U+FFFD. */
void ml_dash_put_text(ml_json_out *o, const char *key, ml_str s);
/* A number, or null if it is not finite. */
void ml_dash_put_number(ml_json_out *o, const char *key, double x);

#endif
