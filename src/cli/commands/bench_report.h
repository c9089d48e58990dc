/* bench_report.h - measurements of a benchmark, and its report. */
#ifndef ML_CLI_COMMANDS_BENCH_REPORT_H
#define ML_CLI_COMMANDS_BENCH_REPORT_H

#include "cli/commands/bench_load.h"

/* A request in flight. */
typedef struct ml_bench_trace {
    double sent_s, last_s; /* time of sending; time of its latest token */
    int32_t n_token;
    bool ended, failed;
} ml_bench_trace;

/* Times in seconds. */
typedef struct ml_bench_times {
    double *s; /* [n] */
    int64_t n, cap;
} ml_bench_times;

typedef struct ml_bench_run {
    const ml_bench_load *load;
    ml_bench_trace *trace;            /* [load->n] */
    ml_bench_times first, gap, whole; /* time to first token; between tokens; whole
                                         request */
    double begin_s, end_s;
    int64_t n_in, n_out;
    int32_t n_ended, n_failed;
    char message[400]; /* of the first failure */
} ml_bench_run;

/* Measurements that only the engine has. */
typedef struct ml_bench_engine {
    double prefill_s, decode_s; /* steps with prompt rows; steps without */
    int64_t n_prefill,
        n_decode; /* prompt rows computed in the former; tokens of the latter */
    int64_t n_page, n_page_peak, n_cached, n_prompt, n_preempt, n_step, n_overlapped;
    double scheduler_share, sampler_share; /* of the time in steps */
    double load_s;                         /* from the command's start until it was ready */
    size_t planned_bytes, peak_bytes;      /* of the memory that the engine computes in */
    const char *backend, *level;
    int n_thread;
} ml_bench_engine;

void ml_bench_run_init(ml_bench_run *r, ml_arena *a, const ml_bench_load *l);
void ml_bench_sent(ml_bench_run *r, int32_t i, double now);
/* n tokens of request i have arrived. */
void ml_bench_token(ml_bench_run *r, int32_t i, int32_t n, double now);
void ml_bench_ended(ml_bench_run *r, int32_t i, int32_t n_in, double now);
void ml_bench_failed(ml_bench_run *r, int32_t i, ml_str why, double now);

/* The report; sorts the times.  engine may be NULL. */
void ml_bench_text(ml_text *out, ml_bench_run *r, const ml_bench_engine *engine);
void ml_bench_json(ml_text *out, ml_bench_run *r, const ml_bench_engine *engine);

/* Writes the JSON to path, unless that is NULL; fails if a request failed. */
ml_status ml_bench_conclude(ml_bench_run *r, const ml_bench_engine *engine,
                            const char *path, ml_err *err);

#endif
