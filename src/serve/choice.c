#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/log.h"
#include "serve/serve_priv.h"

void ml_choice_release(ml_choice *c) {
    if (c->job->api->release && c->ud)
        c->job->api->release(c);
    ml_output_queue_release(&c->queue);
    ml_logprob_buffer_release(&c->scored);
    ml_logprob_buffer_release(&c->answer);
    ml_stops_release(&c->stops);
    ml_text_release(&c->text);
    for (int i = 0; i < ML_N_SENT; i++)
        ml_text_release(&c->sent_json[i]);
    for (int i = 0; i < ML_N_ROUTING; i++)
        ml_text_release(&c->chosen[i]);
    if (c->detok)
        ml_detok_free(c->detok);
    c->detok = NULL;
}

/* --- tokens to text --------------------------------------------------------- */

static void add_text(ml_choice *c, const ml_text *piece) {
    if (c->cut || !piece->len)
        return;
    if (c->params->no_stop_trim || c->stops.n == 0)
        ml_text_add(&c->text, piece->ptr, piece->len);
    else
        c->cut =
            ml_stops_push(&c->stops, (ml_str){ piece->ptr, piece->len }, &c->text) >= 0;
}

/* The stop token is not part of the text, unless the request sets no_stop_trim. */
static void add_tokens(ml_choice *c, const ml_output *output) {
    ml_scored got = ml_logprob_buffer_view(&output->answer);
    bool trim = output->finish == ML_FINISH_TOKEN && !c->params->no_stop_trim;
    int32_t n = trim && got.n ? got.n - 1 : got.n;
    ml_text *piece = &c->job->out;

    if (!c->detok)
        return;
    piece->len = 0;
    for (int32_t i = 0; i < n; i++)
        ml_detok_push(c->detok, got.id[i], piece);
    if (output->finish != ML_FINISH_NOT)
        ml_detok_finish(c->detok, piece);
    add_text(c, piece);
    if (output->finish != ML_FINISH_NOT && !c->cut)
        ml_stops_finish(&c->stops, &c->text);
}

void ml_token_text(const ml_server *s, int32_t id, ml_json_out *o) {
    ml_text t = { 0 };

    if (s->opts.tokenizer)
        ml_decode(s->opts.tokenizer, &t, &id, 1, false);
    ml_json_str(o, (ml_str){ t.ptr, t.len });
    ml_text_release(&t);
}

/* --- output ----------------------------------------------------------------- */

/* Writes the id as a quoted JSON string, because clients choose it. */
static void log_end(const ml_choice *c) {
    ml_text rid = { 0 };
    char now[ML_CLOCK_TEXT];

    ml_clock_write(now);
    ml_json_quote(&rid, c->rid);
    ml_log(ML_LOG_INFO,
           "%s %s %s: %d prompt tokens (%d cached), %d response tokens, %s, %.3f s", now,
           c->job->api->path, rid.ptr, (int)c->n_prompt, (int)c->n_cached, (int)c->answer.n,
           ml_choice_finish_word(c), c->end_s - c->job->start_s);
    ml_text_release(&rid);
}

/* The times of a request are those of the first of its answers. */
static void record_first(const ml_choice *c) {
    ml_request_record *r = c->job->call ? ml_http_tag(c->job->call) : NULL;

    if (r && r->first_s == 0) {
        r->first_s = c->first_s - c->job->start_s;
        r->queue_s = c->queued_s;
    }
}

static void measure(ml_choice *c, const ml_output *output, double now) {
    ml_server_metrics *m = c->job->server->metrics;

    ml_job_use(c->job, 0, output->answer.n);
    if (output->answer.n && c->first_s == 0) {
        c->first_s = now;
        ml_server_metrics_first_token(m, c);
        record_first(c);
    } else if (output->answer.n) {
        ml_server_metrics_tokens(m, now - c->end_s, output->answer.n);
    }
    c->end_s = now;
    if (output->finish == ML_FINISH_NOT)
        return;
    ml_server_metrics_end(m, c);
    if (c->job->server->opts.log_requests)
        log_end(c);
}

typedef struct arrival {
    ml_choice *choice;
    const ml_output *output;
} arrival;

/* The part of ml_choice_output that allocates memory. */
static void collect(void *ud) {
    ml_choice *c = ((arrival *)ud)->choice;
    const ml_output *output = ((arrival *)ud)->output;
    ml_scored prompt = ml_logprob_buffer_view(&output->prompt),
              answer = ml_logprob_buffer_view(&output->answer);

    ml_logprob_buffer_add(&c->scored, &prompt, c->n_top, c->n_also);
    ml_logprob_buffer_add(&c->answer, &answer, c->n_top, c->n_also);
    add_tokens(c, output);
    for (int i = 0; i < ML_N_ROUTING; i++)
        ml_text_add(&c->chosen[i], output->routed[i].ptr ? output->routed[i].ptr : "",
                    output->routed[i].len);
}

void ml_choice_output(void *ud, const ml_output *output) {
    ml_choice *c = ud;
    bool whole = !output->lost && ml_memory_try(collect, &(arrival){ c, output });

    c->finish = output->finish;
    c->matched = output->matched;
    c->n_cached = output->n_cached;
    c->n_preempt = output->n_preempt;
    c->version = output->version;
    c->queued_s = output->queued_s;
    memcpy(c->message, output->message, sizeof c->message);
    if (output->finish != ML_FINISH_NOT) {
        c->open = false;
        c->job->n_open--;
    }
    measure(c, output, ml_clock_s());
    if (!whole)
        ml_job_fail(c->job);
    ml_job_output(c->job, c);
}

void ml_choice_write_sent(const ml_choice *c, int part, ml_json_out *o) {
    const ml_text *t = &c->sent_json[part];
    ml_text_add(o->to, t->len ? t->ptr : "", t->len);
}

/* --- how it ended ----------------------------------------------------------- */

const char *ml_choice_finish_word(const ml_choice *c) {
    switch (c->finish) {
    case ML_FINISH_NOT: return NULL;
    case ML_FINISH_TOKEN:
    case ML_FINISH_STRING: return "stop";
    case ML_FINISH_LENGTH: return "length";
    case ML_FINISH_ABORT: return "abort";
    }
    return NULL;
}

void ml_choice_matched(const ml_choice *c, ml_json_out *o) {
    if (c->finish == ML_FINISH_TOKEN)
        ml_json_int(o, c->matched);
    else if (c->finish == ML_FINISH_STRING && c->matched < c->params->n_stop)
        ml_json_str(o, c->params->stop[c->matched]);
    else
        ml_json_null(o);
}
