/* miles bench serve: speed of a running server, through /generate.
 *
 * Answers are streamed, so that every token has a time; several tokens in one event share
 * theirs. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/philox.h"
#include "cli/commands/bench_report.h"
#include "cli/cli.h"
#include "cli/keys.h"
#include "net/http_client.h"
#include "net/sse.h"

enum {
    ANY_VOCAB = 1000,     /* ids below this exist in every model */
    FOR_ARRIVAL = 1 << 30 /* the sample part of a Philox counter */
};

typedef struct serve_job serve_job;

/* A request in flight. */
typedef struct serve_call {
    serve_job *job;
    int32_t i; /* number in the load; warm-up requests count down from -1 */
    int status;
    int32_t n_in, n_out; /* as reported by the server */
    ml_sse sse;
    ml_text body; /* body of a non-streaming response: the error */
} serve_call;

struct serve_job {
    const ml_config *config;
    ml_arena arena;
    ml_loop *loop;
    ml_http_client *client;
    char url[600];
    const char *headers;
    ml_bench_load load;
    ml_bench_run run;
    int32_t next, in_flight; /* first request not yet sent; requests not yet finished */
    double next_s;           /* when the next one may be sent */
    int64_t n_warm;          /* warm-up requests that have finished */
    ml_timer *timer;
    ml_err *err;
    ml_status status; /* error that ends the whole run */
};

/* --- an answer -------------------------------------------------------------- */

static int32_t count_in(const ml_json *meta, const char *key) {
    int64_t n = 0;
    ml_json_i64(ml_json_get(meta, key), &n);
    return (int32_t)n;
}

static void on_event(void *ud, ml_str data) {
    serve_call *c = ud;
    const ml_json *root, *meta;
    ml_arena a;
    ml_err err;

    if (ml_str_is(data, "[DONE]"))
        return;
    ml_arena_init(&a, "an event");
    if (ml_json_parse(&root, &a, data, "event", &err) == ML_OK) {
        meta = ml_json_get(root, "meta_info");
        if (meta) {
            int32_t n = count_in(meta, "completion_tokens");
            if (c->i >= 0)
                ml_bench_token(&c->job->run, c->i, n - c->n_out, ml_clock_s());
            c->n_out = n;
            c->n_in = count_in(meta, "prompt_tokens");
        }
    }
    ml_arena_release(&a);
}

static void on_head(void *ud, int status, ml_str headers) {
    (void)headers;
    ((serve_call *)ud)->status = status;
}

static void on_data(void *ud, ml_str piece) {
    serve_call *c = ud;
    if (c->status == 200)
        ml_sse_push(&c->sse, piece, on_event, c);
    else
        ml_text_add(&c->body, piece.ptr, piece.len);
}

static void send_more(void *ud);

static void fail_run(serve_job *j, const char *what) {
    j->status = ml_fail(j->err, ML_EPEER, "%s", what);
    ml_loop_stop(j->loop);
}

static void call_free(serve_call *c) {
    ml_sse_release(&c->sse);
    ml_text_release(&c->body);
    free(c);
}

/* Explains why a response is invalid; false if it is valid. */
static bool went_wrong(const serve_call *c, const ml_err *err, ml_err *why) {
    const char *url = c->job->url;

    if (err)
        *why = *err;
    else if (c->status != 200)
        ml_fail(why, ML_EPEER, "%s returned status %d: %.300s", url, c->status,
                c->body.len ? c->body.ptr : "");
    else if (c->n_out == 0)
        ml_fail(why, ML_EPEER, "%s ended the stream without a token", url);
    else
        return false;
    return true;
}

static void on_done(void *ud, const ml_err *err) {
    serve_call *c = ud;
    serve_job *j = c->job;
    double now = ml_clock_s();
    ml_err why;
    bool wrong = went_wrong(c, err, &why);

    j->in_flight--;
    if (c->i < 0) {
        j->n_warm++;
        if (wrong)
            fail_run(j, why.msg);
    } else if (wrong) {
        ml_bench_failed(&j->run, c->i, ml_str_of(why.msg), now);
    } else {
        ml_bench_ended(&j->run, c->i, c->n_in, now);
    }
    call_free(c);
    send_more(j);
}

/* --- requests --------------------------------------------------------------- */

static void write_request(ml_text *t, const ml_bench_item *it, int64_t seed) {
    if (it->id) {
        ml_text_printf(t, "{\"input_ids\": [");
        for (int32_t k = 0; k < it->n; k++)
            ml_text_printf(t, "%s%d", k ? ", " : "", it->id[k]);
        ml_text_printf(t, "]");
    } else {
        ml_text_printf(t, "{\"text\": ");
        ml_json_quote(t, it->text);
    }
    ml_text_printf(t,
                   ", \"sampling_params\": {\"max_new_tokens\": %d, \"ignore_eos\": true, "
                   "\"temperature\": 1.0, \"sampling_seed\": %lld}, \"stream\": true}",
                   it->n_out, (long long)seed);
}

static void send_one(serve_job *j, const ml_bench_item *it, int32_t i) {
    serve_call *c = calloc(1, sizeof *c);
    ml_http_fns fns = { .head = on_head, .data = on_data, .done = on_done, .ud = c };
    ml_http_job *ignored;
    ml_text body = { 0 };
    ml_status st;

    if (!c) {
        fail_run(j, "out of memory for a request");
        return;
    }
    c->job = j;
    c->i = i;
    write_request(&body, it, j->config->bench.seed + i);
    st = ml_http_start(&ignored, j->client,
                       &(ml_http_request){ .method = "POST",
                                           .url = j->url,
                                           .headers = j->headers,
                                           .body = { body.ptr, body.len },
                                           .connect_s = 30 },
                       fns, j->err);
    ml_text_release(&body);
    if (st != ML_OK) {
        j->status = st;
        call_free(c);
        ml_loop_stop(j->loop);
        return;
    }
    j->in_flight++;
    if (i >= 0)
        ml_bench_sent(&j->run, i, ml_clock_s());
}

static void send_warmup(serve_job *j) {
    ml_bench_item it = { .n = 32, .n_out = 4 };
    it.id = ml_bench_warmup(&j->arena, j->config, ANY_VOCAB, it.n, j->n_warm);
    send_one(j, &it, -1);
}

/* The time to the next arrival: exponentially distributed, so that arrivals are a Poisson
 * process. */
static double arrival_gap(const serve_job *j) {
    double u =
        ml_philox_uniform((uint64_t)j->config->bench.seed, FOR_ARRIVAL, (uint64_t)j->next);
    return -log(1.0 - u) / j->config->bench.request_rate;
}

static bool may_send(const serve_job *j) {
    int64_t most = j->config->bench.max_concurrency;
    return j->next < j->load.n && (most == 0 || j->in_flight < most);
}

/* Sends the requests that are due, and schedules itself for the next. */
static void send_more(void *ud) {
    serve_job *j = ud;

    if (j->status != ML_OK)
        return;
    if (j->n_warm < j->config->bench.n_warmup) {
        if (j->in_flight == 0)
            send_warmup(j);
        return;
    }
    if (j->next == 0)
        j->run.begin_s = j->next_s = ml_clock_s();
    while (j->status == ML_OK && may_send(j) && j->next_s <= ml_clock_s()) {
        send_one(j, &j->load.item[j->next], j->next);
        j->next++;
        if (j->config->bench.request_rate > 0.0)
            j->next_s += arrival_gap(j);
    }
    if (j->next == j->load.n && j->in_flight == 0) {
        ml_loop_stop(j->loop);
    } else if (may_send(j)) {
        double wait = j->next_s - ml_clock_s();
        ml_timer_stop(j->timer);
        j->timer = ml_timer_start(j->loop, wait > 0.0 ? wait : 0.0, false, send_more, j);
    }
}

/* --- the command ------------------------------------------------------------ */

static ml_status set_headers(serve_job *j, ml_err *err) {
    const ml_config *c = j->config;
    ml_secret key;
    ml_status st =
        ml_key_find(&key, c->access.api_key, c->access.api_key_file, "--api-key", err);

    j->headers = ml_arena_printf(&j->arena, "Content-Type: application/json\n%s%s%s",
                                 key.text[0] ? "Authorization: Bearer " : "", key.text,
                                 key.text[0] ? "\n" : "");
    return st;
}

static void set_url(serve_job *j) {
    const ml_config *c = j->config;
    if (c->bench.base_url)
        snprintf(j->url, sizeof j->url, "%s/generate", c->bench.base_url);
    else
        snprintf(j->url, sizeof j->url, "http://%s:%d/generate", c->bench.host,
                 (int)c->bench.port);
}

static ml_status report(serve_job *j, ml_err *err) {
    ml_text text = { 0 };

    ml_bench_text(&text, &j->run, NULL);
    fputs(text.ptr, stdout);
    ml_text_release(&text);
    return ml_bench_conclude(&j->run, NULL, j->config->bench.output, err);
}

static ml_status run_job(serve_job *j, ml_err *err) {
    /* The server validates the ids of a file. */
    int64_t n_vocab = j->config->bench.dataset ? INT32_MAX : ANY_VOCAB;
    ml_status st = ml_bench_load_make(&j->load, &j->arena, j->config, n_vocab, NULL, err);

    if (st == ML_OK)
        st = set_headers(j, err);
    if (st == ML_OK)
        st = ml_loop_new(&j->loop, err);
    if (st != ML_OK)
        return st;
    j->client = ml_http_client_new(j->loop);
    j->err = err;
    set_url(j);
    ml_bench_run_init(&j->run, &j->arena, &j->load);
    ml_loop_post(j->loop, send_more, j);
    ml_loop_run(j->loop);
    return j->status == ML_OK ? report(j, err) : j->status;
}

ml_status ml_cmd_bench_serve(const ml_config *c, ml_err *err) {
    serve_job j = { .config = c };
    ml_status st;

    ml_arena_init(&j.arena, "bench");
    st = run_job(&j, err);
    ml_timer_stop(j.timer);
    if (j.client)
        ml_http_client_free(j.client);
    if (j.loop)
        ml_loop_free(j.loop);
    ml_arena_release(&j.arena);
    return st;
}
