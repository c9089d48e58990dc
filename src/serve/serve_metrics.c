/* GET /metrics: Prometheus text format, with the metric names of SGLang's dashboards. */
#include <stdio.h>

#include "base/clock.h"
#include "serve/serve_priv.h"

#define MAX_BUCKET 20

typedef struct histogram {
    const double *bound; /* upper bounds, ascending */
    int n;
    int64_t count[MAX_BUCKET + 1]; /* the last: above all bounds */
    double sum;
} histogram;

/* What ended an answer, by vLLM's words. */
enum { REASON_STOP, REASON_LENGTH, REASON_ABORT, N_REASON };

struct ml_server_metrics {
    histogram first_token, between, whole, queued, prompt, answer;
    int64_t n_request, n_aborted, n_prompt, n_answer, n_cached;
    int64_t n_finish[N_REASON];
    double at; /* clock of the last throughput measurement */
    int64_t n_answer_then;
    double throughput;
};

static const double seconds[] = { 0.01, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1,   2,
                                  4,    6,     8,    10,  20,  40,  60,  80,  100, 200 };
static const double between[] = { 0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02,
                                  0.025, 0.03,  0.035, 0.04,  0.06, 0.08,  0.1,
                                  0.2,   0.4,   0.6,   0.8,   1,    2 };

/* Tokens of a prompt or an answer. */
static const double counts[] = { 1,    2,     5,     10,    20,    50,    100,
                                 200,  300,   500,   700,   1000,  2000,  4000,
                                 7000, 10000, 20000, 30000, 50000, 100000 };

static histogram histogram_of(const double *bound, int n) {
    return (histogram){ .bound = bound, .n = n };
}

ml_server_metrics *ml_server_metrics_new(ml_arena *a) {
    ml_server_metrics *m = ML_NEW(a, ml_server_metrics, 1);

    m->first_token = m->whole = m->queued = histogram_of(seconds, MAX_BUCKET);
    m->between = histogram_of(between, MAX_BUCKET);
    m->prompt = m->answer = histogram_of(counts, MAX_BUCKET);
    m->at = ml_clock_s();
    return m;
}

static void observe(histogram *h, double v, int64_t times) {
    int i = 0;

    while (i < h->n && v > h->bound[i])
        i++;
    h->count[i] += times;
    h->sum += v * (double)times;
}

void ml_server_metrics_first_token(ml_server_metrics *m, const ml_choice *c) {
    observe(&m->first_token, c->first_s - c->job->start_s, 1);
}

void ml_server_metrics_tokens(ml_server_metrics *m, double seconds_since, int32_t n) {
    observe(&m->between, seconds_since / n, n);
}

void ml_server_metrics_end(ml_server_metrics *m, const ml_choice *c) {
    m->n_request++;
    m->n_aborted += c->finish == ML_FINISH_ABORT;
    m->n_prompt += c->n_prompt;
    m->n_answer += c->answer.n;
    m->n_cached += c->n_cached;
    m->n_finish[c->finish == ML_FINISH_ABORT    ? REASON_ABORT
                : c->finish == ML_FINISH_LENGTH ? REASON_LENGTH
                                                : REASON_STOP]++;
    observe(&m->prompt, c->n_prompt, 1);
    observe(&m->answer, c->answer.n, 1);
    observe(&m->whole, c->end_s - c->job->start_s, 1);
    observe(&m->queued, c->queued_s, 1);
}

/* --- writing ---------------------------------------------------------------- */

static void value(const ml_metrics_form *p, const char *name, const char *type,
                  const char *help, double v) {
    ml_metrics_head(p, name, type, help);
    ml_metrics_value(p, name, "", v);
}

static void write_histogram(const ml_metrics_form *p, const char *name, const char *help,
                            const histogram *h) {
    char part[80], le[40];
    int64_t n = 0;

    ml_metrics_head(p, name, "histogram", help);
    snprintf(part, sizeof part, "%s_bucket", name);
    for (int i = 0; i <= h->n; i++) {
        n += h->count[i];
        if (i < h->n)
            snprintf(le, sizeof le, "le=\"%g\"", h->bound[i]);
        ml_metrics_value(p, part, i < h->n ? le : "le=\"+Inf\"", (double)n);
    }
    snprintf(part, sizeof part, "%s_sum", name);
    ml_metrics_value(p, part, "", h->sum);
    snprintf(part, sizeof part, "%s_count", name);
    ml_metrics_value(p, part, "", (double)n);
}

static void write_engine(const ml_metrics_form *p, const ml_server_metrics *m,
                         const ml_gen_stats *st) {
    double page_tokens = st->page_tokens, pages = (double)st->n_page;
    double used = pages - (double)st->n_page_free - (double)st->n_page_cached;
    double prompts = (double)st->n_prompt_token;

    value(p, "num_running_reqs", "gauge", "Requests in the batch.", (double)st->n_running);
    value(p, "num_queue_reqs", "gauge", "Requests in the queue.", (double)st->n_waiting);
    value(p, "num_used_tokens", "gauge", "Tokens of KV pages in use.", used * page_tokens);
    value(p, "kv_evictable_tokens", "gauge",
          "Tokens of cached KV pages that no request uses.",
          (double)st->n_page_cached * page_tokens);
    value(p, "max_total_num_tokens", "gauge", "Tokens of all KV pages.",
          pages * page_tokens);
    value(p, "token_usage", "gauge", "Fraction of the KV pages in use.",
          pages > 0 ? used / pages : 0);
    value(p, "cache_hit_rate", "gauge",
          "Fraction of prompt tokens found in the prefix cache.",
          prompts > 0 ? (double)st->n_cached_token / prompts : 0);
    if (st->n_verify) {
        value(p, "spec_accept_length", "gauge",
              "Tokens of a request in a step, on average, with speculative decoding.",
              1 + (double)st->n_accepted / (double)st->n_verify);
        value(p, "spec_accept_rate", "gauge", "Fraction of draft tokens that were right.",
              st->n_draft ? (double)st->n_accepted / (double)st->n_draft : 0);
    }
    value(p, "gen_throughput", "gauge",
          "Generated tokens per second since the last scrape.", m->throughput);
    value(p, "num_retracted_requests_total", "counter", "Preempted requests.",
          (double)st->n_preempt);
    value(p, "engine_steps_total", "counter", "Steps of the engine.", (double)st->n_step);
    value(p, "engine_steps_ahead_total", "counter",
          "Steps scheduled before the draws of the previous step were known.",
          (double)st->n_overlapped);
    value(p, "forward_execution_seconds_total", "counter",
          "Seconds in the model's forward passes.", st->model_s);
}

static void write_reasons(const ml_metrics_form *p, const ml_server_metrics *m) {
    static const char *const label[N_REASON] = { "finished_reason=\"stop\"",
                                                 "finished_reason=\"length\"",
                                                 "finished_reason=\"abort\"" };

    ml_metrics_head(p, "request_success_total", "counter", "Answers by what ended them.");
    for (int i = 0; i < N_REASON; i++)
        ml_metrics_value(p, "request_success_total", label[i], (double)m->n_finish[i]);
}

static void write_requests(const ml_metrics_form *p, const ml_server_metrics *m) {
    value(p, "num_requests_total", "counter", "Finished requests.", (double)m->n_request);
    value(p, "num_aborted_requests_total", "counter", "Aborted requests.",
          (double)m->n_aborted);
    value(p, "prompt_tokens_total", "counter", "Prompt tokens.", (double)m->n_prompt);
    value(p, "generation_tokens_total", "counter", "Generated tokens.",
          (double)m->n_answer);
    value(p, "cached_tokens_total", "counter", "Prompt tokens found in the prefix cache.",
          (double)m->n_cached);
    write_histogram(p, "time_to_first_token_seconds", "Time to first token.",
                    &m->first_token);
    write_histogram(p, "inter_token_latency_seconds", "Inter-token latency.", &m->between);
    write_histogram(p, "e2e_request_latency_seconds", "End-to-end request latency.",
                    &m->whole);
    write_histogram(p, "queue_time_seconds", "Time in the queue.", &m->queued);
    write_histogram(p, "prompt_tokens_histogram", "Tokens of a prompt.", &m->prompt);
    write_histogram(p, "generation_tokens_histogram", "Tokens of an answer.", &m->answer);
    write_reasons(p, m);
}

static void look(ml_server_metrics *m, const ml_gen_stats *st) {
    double now = ml_clock_s();

    if (now - m->at < 0.1)
        return;
    m->throughput = (double)(st->n_answer_token - m->n_answer_then) / (now - m->at);
    m->n_answer_then = st->n_answer_token;
    m->at = now;
}

/* JSON quoting equals Prometheus' label quoting for the characters of model names. */
static void set_label(ml_text *label, const char *name) {
    ml_json_out o = { .to = label };

    ml_text_printf(label, "model_name=");
    ml_json_word(&o, name);
}

static void write_sessions(const ml_metrics_form *p, ml_server *s) {
    static const char *const names[] = { "session_special_token_count_total",
                                         "session_special_token_type_total",
                                         "session_non_assistant_text_total",
                                         "session_assistant_text_total" };

    value(p, "num_sessions", "gauge", "Sessions.",
          (double)ml_session_table_count(s->sessions));
    for (int i = 0; i < ML_MISMATCH_TYPES; i++)
        value(p, names[i], "counter",
              "Differences of recorded tokens from the rendered conversation.",
              (double)atomic_load(&s->n_mismatch[i]));
}

void ml_serve_metrics(ml_server *s, ml_http_call *c) {
    ml_text out = { 0 }, label = { 0 };
    ml_metrics_form p = { &out, "sglang:", "" };
    ml_gen_stats st = { 0 };

    s->opts.gen->stats(s->opts.gen, &st);
    look(s->metrics, &st);
    set_label(&label, s->opts.model_name);
    p.label = label.ptr;
    write_engine(&p, s->metrics, &st);
    write_requests(&p, s->metrics);
    if (s->sessions)
        write_sessions(&p, s);
    ml_access_metrics(&s->access, s->http, &p);
    ml_http_reply(c, 200, "text/plain; version=0.0.4; charset=utf-8",
                  (ml_str){ out.ptr, out.len });
    ml_text_release(&out);
    ml_text_release(&label);
}
