/* job_report.h - the plan of a job from the options of a run, and its text.
 *
 * thread: one owner. */
#ifndef ML_RUN_JOB_REPORT_H
#define ML_RUN_JOB_REPORT_H

#include "run/job_cost.h"
#include "run/opts.h"

typedef struct ml_job_plan {
    ml_spec spec;
    ml_speeds speeds;
    ml_backend be;
    ml_job_request req;
    ml_job_layout layout; /* that the flags ask for */
    const char *model;    /* the directory's name */
    ml_job_planner *planner;
} ml_job_plan;

/* Reads config.json of the checkpoint only.  kind: of the GPU (speeds.h); sample_tokens 0:
 * the longest prompt and answer that the options allow.  The options must outlive it. */
ml_status ml_job_plan_open(ml_job_plan *out, const ml_run_opts *o, const char *kind,
                           int64_t sample_tokens, ml_err *err);
void ml_job_plan_close(ml_job_plan *p); /* zero-initialized is allowed */

/* One layout in full, and a table of several. */
void ml_job_text(ml_text *out, const ml_job_plan *p, const ml_job_cost *c);
void ml_job_table(ml_text *out, const ml_job_plan *p, const ml_job_cost *c, int32_t n);
/* The same as JSON: an object, or an object with an array of layouts. */
void ml_job_json(ml_text *out, const ml_job_plan *p, const ml_job_cost *c, int32_t n,
                 int32_t n_tried);

/* Warns of ops that the CUDA backend does not have: their times are guesses. */
void ml_job_warn(ml_text *out, const ml_job_plan *p);

#endif
