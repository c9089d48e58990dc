#include "cli/commands/bench_report.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/file.h"

/* --- recording -------------------------------------------------------------- */

static void times_init(ml_bench_times *t, ml_arena *a, int64_t cap) {
    *t = (ml_bench_times){ .s = ML_NEW(a, double, cap + 1), .cap = cap };
}

/* A server may send more tokens than requested: those are not timed. */
static void times_add(ml_bench_times *t, double s) {
    if (t->n < t->cap)
        t->s[t->n++] = s;
}

void ml_bench_run_init(ml_bench_run *r, ml_arena *a, const ml_bench_load *l) {
    *r = (ml_bench_run){ .load = l, .trace = ML_NEW(a, ml_bench_trace, l->n) };
    times_init(&r->first, a, l->n);
    times_init(&r->gap, a, l->n_out);
    times_init(&r->whole, a, l->n);
}

void ml_bench_sent(ml_bench_run *r, int32_t i, double now) {
    r->trace[i].sent_s = now;
}

/* Tokens that arrive together share the time since the previous one. */
void ml_bench_token(ml_bench_run *r, int32_t i, int32_t n, double now) {
    ml_bench_trace *t = &r->trace[i];

    if (n <= 0)
        return;
    if (t->n_token == 0)
        times_add(&r->first, now - t->sent_s);
    for (int32_t k = 0; k < n && t->n_token > 0; k++)
        times_add(&r->gap, (now - t->last_s) / n);
    t->last_s = now;
    t->n_token += n;
    r->n_out += n;
}

void ml_bench_ended(ml_bench_run *r, int32_t i, int32_t n_in, double now) {
    times_add(&r->whole, now - r->trace[i].sent_s);
    r->trace[i].ended = true;
    r->n_in += n_in;
    r->n_ended++;
    r->end_s = now;
}

void ml_bench_failed(ml_bench_run *r, int32_t i, ml_str why, double now) {
    if (r->n_failed++ == 0)
        snprintf(r->message, sizeof r->message, "%.*s", (int)why.len, why.ptr);
    r->trace[i].failed = true;
    r->end_s = now;
}

/* --- the report ------------------------------------------------------------- */

static int ascending(const void *a, const void *b) {
    const double *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

/* Percentile p, in [0, 1], of sorted times. */
static double percentile(const ml_bench_times *t, double p) {
    int64_t i = (int64_t)(p * (double)t->n);
    return t->n == 0 ? 0.0 : t->s[i < t->n ? i : t->n - 1];
}

static double mean(const ml_bench_times *t) {
    double sum = 0.0;
    for (int64_t i = 0; i < t->n; i++)
        sum += t->s[i];
    return t->n ? sum / (double)t->n : 0.0;
}

static double per(double n, double seconds) {
    return seconds > 0.0 ? n / seconds : 0.0;
}

/* A number of the report: its JSON key, and its label and unit for people. */
typedef struct row {
    const char *key, *label, *unit;
    double value;
    int digits;
} row;

enum { MAX_ROWS = 64 };
typedef struct rows {
    row at[MAX_ROWS];
    int n;
} rows;

static void add(rows *t, const char *key, const char *label, const char *unit, double value,
                int digits) {
    if (t->n < MAX_ROWS)
        t->at[t->n++] = (row){ key, label, unit, value, digits };
}

static void add_times(rows *t, ml_bench_times *s, const char *const key[4],
                      const char *const label[4]) {
    qsort(s->s, (size_t)s->n, sizeof *s->s, ascending);
    add(t, key[0], label[0], "ms", mean(s) * 1e3, 2);
    add(t, key[1], label[1], "ms", percentile(s, 0.5) * 1e3, 2);
    add(t, key[2], label[2], "ms", percentile(s, 0.9) * 1e3, 2);
    add(t, key[3], label[3], "ms", percentile(s, 0.99) * 1e3, 2);
}

static void add_engine(rows *t, const ml_bench_engine *e) {
    add(t, "load_s", "load time", "s", e->load_s, 3);
    add(t, "prefill_throughput", "prefill", "tokens/s",
        per((double)e->n_prefill, e->prefill_s), 1);
    add(t, "decode_throughput", "decode", "tokens/s", per((double)e->n_decode, e->decode_s),
        1);
    add(t, "kv_pages", "KV pages", "", (double)e->n_page, 0);
    add(t, "kv_pages_peak", "KV pages, peak", "", (double)e->n_page_peak, 0);
    add(t, "cached_tokens", "cached prompt tokens", "", (double)e->n_cached, 0);
    add(t, "steps", "steps", "", (double)e->n_step, 0);
    add(t, "steps_ahead", "overlapped steps", "", (double)e->n_overlapped, 0);
    add(t, "retractions", "preempted requests", "", (double)e->n_preempt, 0);
    add(t, "scheduler_share", "scheduler, fraction of a step", "", e->scheduler_share, 4);
    add(t, "sampler_share", "sampler, fraction of a step", "", e->sampler_share, 4);
    add(t, "planned_gib", "planned memory", "GiB", (double)e->planned_bytes / 0x1p30, 3);
    add(t, "peak_gib", "peak memory", "GiB", (double)e->peak_bytes / 0x1p30, 3);
    add(t, "threads", "threads", "", e->n_thread, 0);
}

static void make_rows(rows *t, ml_bench_run *r, const ml_bench_engine *e) {
    static const char *const first_key[4] = { "mean_ttft_ms", "p50_ttft_ms", "p90_ttft_ms",
                                              "p99_ttft_ms" };
    static const char *const first_label[4] = { "time to first token, mean",
                                                "time to first token, p50",
                                                "time to first token, p90",
                                                "time to first token, p99" };
    static const char *const gap_key[4] = { "mean_itl_ms", "p50_itl_ms", "p90_itl_ms",
                                            "p99_itl_ms" };
    static const char *const gap_label[4] = { "inter-token latency, mean",
                                              "inter-token latency, p50",
                                              "inter-token latency, p90",
                                              "inter-token latency, p99" };
    static const char *const whole_key[4] = { "mean_e2e_latency_ms", "p50_e2e_latency_ms",
                                              "p90_e2e_latency_ms", "p99_e2e_latency_ms" };
    static const char *const whole_label[4] = { "request latency, mean",
                                                "request latency, p50",
                                                "request latency, p90",
                                                "request latency, p99" };
    double s = r->end_s - r->begin_s;

    add(t, "completed", "completed requests", "", r->n_ended, 0);
    add(t, "failed", "failed requests", "", r->n_failed, 0);
    add(t, "duration", "duration", "s", s, 3);
    add(t, "total_input_tokens", "prompt tokens", "", (double)r->n_in, 0);
    add(t, "total_output_tokens", "response tokens", "", (double)r->n_out, 0);
    add(t, "request_throughput", "requests", "1/s", per(r->n_ended, s), 3);
    add(t, "input_throughput", "prompt", "tokens/s", per((double)r->n_in, s), 1);
    add(t, "output_throughput", "response", "tokens/s", per((double)r->n_out, s), 1);
    add(t, "total_throughput", "prompt and response", "tokens/s",
        per((double)(r->n_in + r->n_out), s), 1);
    add_times(t, &r->first, first_key, first_label);
    add_times(t, &r->gap, gap_key, gap_label);
    add_times(t, &r->whole, whole_key, whole_label);
    if (e)
        add_engine(t, e);
}

void ml_bench_text(ml_text *out, ml_bench_run *r, const ml_bench_engine *engine) {
    rows t = { .n = 0 };

    make_rows(&t, r, engine);
    if (engine)
        ml_text_printf(out, "backend %s %s\n", engine->backend, engine->level);
    for (int i = 0; i < t.n; i++)
        ml_text_printf(out, "%-42s %12.*f %s\n", t.at[i].label, t.at[i].digits,
                       t.at[i].value, t.at[i].unit);
    if (r->n_failed)
        ml_text_printf(out, "first failure: %s\n", r->message);
}

void ml_bench_json(ml_text *out, ml_bench_run *r, const ml_bench_engine *engine) {
    rows t = { .n = 0 };

    make_rows(&t, r, engine);
    ml_text_printf(out, "{\n");
    for (int i = 0; i < t.n; i++)
        ml_text_printf(out, "  \"%s\": %.*f%s\n", t.at[i].key,
                       t.at[i].digits ? t.at[i].digits + 3 : 0, t.at[i].value,
                       i + 1 < t.n ? "," : "");
    ml_text_printf(out, "}\n");
}

ml_status ml_bench_conclude(ml_bench_run *r, const ml_bench_engine *engine,
                            const char *path, ml_err *err) {
    ml_text json = { 0 };
    ml_status st = ML_OK;

    ml_bench_json(&json, r, engine);
    if (path)
        st = ml_file_replace(path, (ml_str){ json.ptr, json.len }, err);
    ml_text_release(&json);
    if (st == ML_OK && r->n_failed)
        st = ml_fail(err, ML_EPEER, "%d of %d requests failed; the first: %s", r->n_failed,
                     r->load->n, r->message);
    return st;
}
