#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "net/sse.h"
#include "serve/serve_priv.h"

/* Philox's sample keys of requests without a seed lie apart from those of choices. */
#define UNSEEDED ((uint64_t)1 << 63)

static void link_job(ml_job *j) {
    ml_server *s = j->server;

    j->next = s->jobs;
    if (s->jobs)
        s->jobs->prev = j;
    s->jobs = j;
    s->n_job++;
}

static void unlink_job(ml_job *j) {
    ml_server *s = j->server;

    if (j->next)
        j->next->prev = j->prev;
    if (j->prev)
        j->prev->next = j->next;
    else
        s->jobs = j->next;
    s->n_job--;
}

void ml_job_free(ml_job *j) {
    ml_server *s = j->server;
    ml_arena arena = j->arena;

    for (int32_t i = 0; i < j->n_choice; i++)
        ml_choice_release(&j->choice[i]);
    ml_text_release(&j->out);
    unlink_job(j);
    ml_arena_release(&arena);
    ml_server_job_gone(s);
}

static void abort_all(ml_job *j) {
    ml_gen *g = j->server->opts.gen;

    for (int32_t i = 0; i < j->n_choice && !j->server->closing; i++)
        if (j->choice[i].open)
            g->abort(g, j->choice[i].ticket);
}

/* The generator is told; its last calls free the job. */
static void on_gone(void *ud) {
    ml_job *j = ud;

    j->call = NULL;
    abort_all(j);
    if (j->n_open == 0 && !j->busy)
        ml_job_free(j);
}

void ml_job_choices(ml_job *j, int32_t n) {
    j->choice = ML_NEW(&j->arena, ml_choice, n);
    j->n_choice = n;
    for (int32_t i = 0; i < n; i++) {
        ml_choice *c = &j->choice[i];
        char id[40];

        c->job = j;
        c->index = i;
        c->logprob_start = -1;
        if (j->rid.len && n == 1) {
            c->rid = j->rid;
        } else if (j->rid.len) {
            c->rid = ml_str_of(
                ml_arena_printf(&j->arena, "%.*s_%d", (int)j->rid.len, j->rid.ptr, (int)i));
        } else {
            ml_server_new_id(j->server, "", id, sizeof id);
            c->rid = ml_str_of(ml_arena_printf(&j->arena, "%s", id));
        }
    }
}

ml_status ml_job_encode(ml_job *j, ml_str text, bool add_special, const int32_t **id,
                        int32_t *n, ml_err *err) {
    ml_encode_opts opts = { .add_special = add_special };
    ml_tokens t = { 0 };
    ml_status st;

    if (!j->server->encoder)
        return ml_fail(err, ML_EUSAGE,
                       "this server has no tokenizer (--skip-tokenizer-init): send "
                       "token ids");
    st = ml_encode(j->server->encoder, &t, text, opts, err);
    if (!st && t.n > INT32_MAX / 2)
        st = ml_fail(err, ML_EUSAGE, "the prompt has too many tokens");
    if (!st) {
        int32_t *copy = ML_NEW(&j->arena, int32_t, t.n + 1);
        if (t.n)
            memcpy(copy, t.id, (size_t)t.n * sizeof *copy);
        *id = copy;
        *n = (int32_t)t.n;
    }
    ml_tokens_release(&t);
    return st;
}

/* --- to the generator ------------------------------------------------------- */

static ml_status check_prompt(const ml_choice *c, ml_err *err) {
    const ml_server *s = c->job->server;

    if (c->n_prompt == 0)
        return ml_fail(err, ML_EUSAGE, "the prompt has no tokens; expected at least one");
    if (c->n_prompt + (c->params->max_new ? 1 : 0) > s->opts.context)
        return ml_fail(err, ML_EUSAGE,
                       "the prompt has %d tokens, and the context is %d: shorten it, or "
                       "start the server with a larger --context-length",
                       (int)c->n_prompt, (int)s->opts.context);
    if (c->logprob_start > c->n_prompt)
        return ml_fail(err, ML_EUSAGE,
                       "\"logprob_start_len\" is %d, and the prompt has %d tokens",
                       (int)c->logprob_start, (int)c->n_prompt);
    if (c->params->n_stop && !s->opts.tokenizer)
        return ml_fail(err, ML_EUSAGE,
                       "stop strings need a tokenizer, and this server has none: use "
                       "stop_token_ids");
    return ML_OK;
}

/* As SGLang, the first token told of has no log-probability; the scores begin after it. */
static int32_t score_from(const ml_choice *c) {
    bool any = c->logprob_start >= 0 && c->logprob_start + 1 < c->n_prompt;
    return any ? c->logprob_start + 1 : -1;
}

static void set_keys(ml_server *s, const ml_choice *c, ml_draw_opts *d) {
    const ml_sampling_params *p = c->params;

    d->seed = p->has_seed ? p->seed : s->opts.seed;
    if (p->has_sample)
        d->sample = p->sample + c->sample;
    else
        d->sample = p->has_seed ? c->sample : UNSEEDED + s->n_unseeded++;
}

static ml_status submit(ml_choice *c, ml_err *err) {
    ml_server *s = c->job->server;
    ml_gen_request r = { .prompt = c->prompt,
                         .n_prompt = c->n_prompt,
                         .score_from = score_from(c),
                         .n_top = c->n_top,
                         .also = c->also,
                         .n_also = c->n_also,
                         .routed_from = c->routed_from };
    int32_t room = s->opts.context - c->n_prompt;
    ml_status st = check_prompt(c, err);

    if (st)
        return st;
    ml_sampling_params_apply(c->params, &r);
    if (r.max_new < 0 || r.max_new > room)
        r.max_new = room;
    if (r.min_new > r.max_new)
        r.min_new = r.max_new;
    set_keys(s, c, &r.draw);
    memcpy(r.routed, c->routed, sizeof r.routed);
    ml_mailbox_init(&c->box, s->office, c->n_top, c->n_also, ml_choice_news, c);
    if (s->opts.tokenizer)
        c->detok = ml_detok_new(s->opts.tokenizer, c->params->skip_special);
    c->stops = (ml_stops){ .stop = c->params->stop, .n = (int)c->params->n_stop };
    st = s->opts.gen->submit(s->opts.gen, &r, ml_mailbox_put, &c->box, &c->ticket, err);
    if (st)
        return st;
    c->open = true;
    c->job->n_open++;
    return ML_OK;
}

static ml_status submit_all(ml_job *j, ml_err *err) {
    ml_status st = ML_OK;

    for (int32_t i = 0; i < j->n_choice && st == ML_OK; i++)
        st = submit(&j->choice[i], err);
    if (st != ML_OK)
        abort_all(j);
    return st;
}

/* --- its life --------------------------------------------------------------- */

static ml_job *new_job(ml_server *s, ml_http_call *c, const ml_api *api) {
    ml_arena arena;
    ml_job *j;

    ml_arena_init(&arena, "a request");
    j = ML_NEW(&arena, ml_job, 1);
    *j = (ml_job){ .arena = arena,
                   .server = s,
                   .call = c,
                   .api = api,
                   .start_s = ml_clock_s(),
                   .created = (int64_t)time(NULL) };
    link_job(j);
    ml_http_on_gone(c, on_gone, j);
    return j;
}

/* Answers with an error instead. */
static void refuse(ml_job *j, const ml_err *err) {
    ml_http_call *c = j->call;

    j->call = NULL;
    if (j->other_model)
        ml_reply_no_model(c, err->msg);
    else
        ml_reply_err(c, err);
    if (j->n_open == 0)
        ml_job_free(j);
}

void ml_job_serve(ml_server *s, ml_http_call *c, const ml_api *api) {
    ml_job *j = new_job(s, c, api);
    ml_err err = { 0 };
    ml_status st = ml_read_body(&j->body, c, &j->arena, false, &err);

    if (st == ML_OK)
        st = api->read(j, &err);
    if (st == ML_OK)
        st = submit_all(j, &err);
    if (st == ML_OK)
        return;
    err.code = st;
    refuse(j, &err);
}

/* --- replies ---------------------------------------------------------------- */

static void write_event(ml_job *j, ml_str payload) {
    ml_text event = { 0 };

    if (!j->begun)
        ml_http_begin(j->call, 200, "text/event-stream");
    j->begun = true;
    ml_sse_write(&event, payload);
    ml_http_write(j->call, (ml_str){ event.ptr, event.len });
    ml_text_release(&event);
}

void ml_job_send(ml_job *j, const ml_text *json) {
    if (j->call)
        write_event(j, (ml_str){ json->ptr, json->len });
}

static void end_stream(ml_job *j) {
    ml_http_call *c;

    if (j->api->last)
        j->api->last(j);
    if (j->call)
        write_event(j, ml_str_of("[DONE]"));
    c = j->call;
    j->call = NULL;
    if (c)
        ml_http_end(c);
}

static void reply_whole(ml_job *j) {
    ml_http_call *c = j->call;
    ml_json_out o = { .to = &j->out };

    j->out.len = 0;
    j->api->whole(j, &o);
    j->call = NULL;
    ml_reply_json(c, 200, &j->out);
}

/* Writing may tell us that the client is gone, hence `busy`: the job is freed here alone. */
void ml_job_news(ml_job *j, ml_choice *c) {
    j->busy = true;
    if (j->call && j->stream)
        j->api->piece(j, c);
    if (j->call && j->n_open == 0) {
        if (j->stream)
            end_stream(j);
        else
            reply_whole(j);
    }
    j->busy = false;
    if (!j->call && j->n_open == 0)
        ml_job_free(j);
}
