#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "net/sse.h"
#include "serve/serve_priv.h"

/* Separates the Philox sample keys of requests without a seed from those of choices. */
#define UNSEEDED ((uint64_t)1 << 63)

#define LARGE_REPLY 20000 /* numbers */
#define PIECE_REST 20     /* interval of large events, in multiples of the time one takes */

static const char no_memory[] = "out of memory for this request; try again later";

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

/* Frees the memory that was needed to parse the request. */
static void release_body(ml_job *j) {
    ml_budget_give(&j->server->budget, j->raw.len);
    ml_text_release(&j->raw);
    ml_arena_release(&j->scratch);
    ml_tokens_release(&j->tokens);
}

void ml_job_free(ml_job *j) {
    ml_server *s = j->server;
    ml_arena arena = j->arena;

    for (int32_t i = 0; i < j->n_choice; i++)
        ml_choice_release(&j->choice[i]);
    release_body(j);
    ml_adapters_release(s->adapters, &j->lora);
    ml_budget_give(&s->budget, j->reserved);
    ml_text_release(&j->out);
    ml_text_release(&j->event);
    unlink_job(j);
    ml_session_turn_release(&j->turn);
    if (j->session)
        ml_session_leave(j->session);
    ml_arena_release(&arena);
    ml_server_job_gone(s);
}

static void abort_all(ml_job *j) {
    ml_gen *g = j->server->opts.gen;

    for (int32_t i = 0; i < j->n_choice && !j->server->closing; i++)
        if (j->choice[i].open)
            g->abort(g, j->choice[i].ticket);
}

/* The client has disconnected: aborts the generation; the last callbacks free the job. */
static void on_gone(void *ud) {
    ml_job *j = ud;

    j->call = NULL;
    if (j->away) /* handled when the text thread returns the job */
        return;
    abort_all(j);
    if (j->n_open == 0 && !j->busy)
        ml_job_free(j);
}

ml_status ml_job_set_rid(ml_job *j, ml_str rid, ml_err *err) {
    if (rid.len > ML_MAX_RID)
        return ml_fail(err, ML_EUSAGE, "\"rid\" has %zu bytes; expected at most %d",
                       rid.len, ML_MAX_RID);
    j->rid = ml_str_keep(&j->arena, rid);
    return ML_OK;
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
    ml_tokens *t = &j->tokens;
    int32_t *copy;
    ml_status st;

    if (!j->encoder)
        return ml_fail(err, ML_EUSAGE,
                       "this server has no tokenizer (--skip-tokenizer-init): send "
                       "token ids");
    st = ml_encode(j->encoder, t, text, opts, err);
    if (!st && t->n > INT32_MAX / 2)
        st = ml_fail(err, ML_EUSAGE, "the prompt has too many tokens");
    if (st)
        return st;
    copy = ML_NEW(&j->arena, int32_t, t->n + 1);
    if (t->n)
        memcpy(copy, t->id, (size_t)t->n * sizeof *copy);
    *id = copy;
    *n = (int32_t)t->n;
    return ML_OK;
}

/* --- what a request uses ----------------------------------------------------- */

static ml_api_key *charged_key(const ml_http_call *c) {
    const ml_request_record *r = ml_http_tag(c);

    return r ? r->key : NULL;
}

/* The key is charged also when the client has disconnected. */
void ml_job_use(ml_job *j, int64_t n_prompt, int64_t n_answer) {
    if (j->key)
        ml_api_key_charge(j->key, ml_clock_s(), n_prompt, n_answer);
    if (j->call)
        ml_request_record_use(ml_http_tag(j->call), n_prompt, n_answer);
}

/* The id that the client sees. */
static void record_id(ml_job *j) {
    ml_request_record *r = j->call ? ml_http_tag(j->call) : NULL;

    if (r && j->n_choice)
        ml_str_copy(r->id, sizeof r->id, j->id[0] ? ml_str_of(j->id) : j->choice[0].rid);
}

/* --- to the generator ------------------------------------------------------- */

static ml_status check_prompt(const ml_choice *c, ml_err *err) {
    const ml_server *s = c->job->server;

    if (c->n_prompt == 0)
        return ml_fail(err, ML_EUSAGE, "the prompt is empty; expected at least one token");
    if (c->n_prompt + (c->params->max_new ? 1 : 0) > s->opts.context)
        return ml_fail(err, ML_EUSAGE,
                       "the prompt has %d tokens, but the context length is %d: shorten "
                       "it, or start the server with a larger --context-length",
                       (int)c->n_prompt, (int)s->opts.context);
    if (c->logprob_start > c->n_prompt)
        return ml_fail(err, ML_EUSAGE,
                       "\"logprob_start_len\" is %d, but the prompt has %d tokens",
                       (int)c->logprob_start, (int)c->n_prompt);
    if (c->params->n_stop && !s->opts.tokenizer)
        return ml_fail(err, ML_EUSAGE,
                       "stop strings need a tokenizer, which this server does not have: "
                       "use stop_token_ids");
    return ML_OK;
}

/* As in SGLang, the first reported token has no log-probability; scores begin after it. */
static int32_t score_from(const ml_choice *c) {
    bool any = c->logprob_start >= 0 && c->logprob_start < c->n_prompt - 1;
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

static int32_t most_new(const ml_choice *c) {
    int32_t left = c->job->server->opts.context - c->n_prompt;
    int32_t max = c->params->max_new;

    return max < 0 || max > left ? left : max;
}

static ml_status submit(ml_choice *c, ml_err *err) {
    ml_server *s = c->job->server;
    ml_gen_request r = { .prompt = c->prompt,
                         .n_prompt = c->n_prompt,
                         .score_from = score_from(c),
                         .n_top = c->n_top,
                         .also = c->also,
                         .n_also = c->n_also,
                         .also_each = c->also_each,
                         .routed_from = c->routed_from,
                         .support = c->support,
                         .adapter = c->lora ? 1 + c->lora->slot : 0,
                         .adapter_id = c->lora ? c->lora->id : 0 };
    ml_status st;

    ml_sampling_params_apply(c->params, &r);
    r.max_new = most_new(c);
    if (r.min_new > r.max_new)
        r.min_new = r.max_new;
    set_keys(s, c, &r.draw);
    memcpy(r.routed, c->routed, sizeof r.routed);
    ml_output_queue_init(&c->queue, s->dispatcher, c->n_top, c->n_also, ml_choice_output,
                         c);
    if (s->opts.tokenizer)
        c->detok = ml_detok_new(s->opts.tokenizer, c->params->skip_special);
    c->stops = (ml_stops){ .stop = c->params->stop, .n = (int)c->params->n_stop };
    st = s->opts.gen->submit(s->opts.gen, &r, ml_output_queue_put, &c->queue, &c->ticket,
                             err);
    if (st)
        return st;
    c->open = true;
    c->job->n_open++;
    ml_job_use(c->job, c->n_prompt, 0);
    return ML_OK;
}

/* An estimate of the bytes that the generator allocates for a choice on submission, and of
 * the copies of the prompt's scores up to the reply. */
static double bytes_of(const ml_choice *c) {
    const ml_sampling_params *p = c->params;
    double scored = score_from(c) < 0 ? 0 : c->n_prompt - score_from(c);
    double bytes = 1024 + 4.0 * (c->n_prompt + most_new(c)) + 4.0 * p->n_stop_id +
                   sizeof(ml_bias) * (double)p->n_bias;

    for (int32_t i = 0; i < p->n_stop; i++)
        bytes += (double)p->stop[i].len;
    if (c->support)
        bytes += (double)ml_support_record_max(c->job->server->opts.n_vocab);
    return bytes + 3 * scored * (16 + 8.0 * c->n_top + 4.0 * c->n_also);
}

/* Reserves the bytes of the job's choices from the budget. */
static ml_status reserve(ml_job *j, ml_err *err) {
    ml_budget *b = &j->server->budget;
    double bytes = 0;

    for (int32_t i = 0; i < j->n_choice; i++)
        bytes += bytes_of(&j->choice[i]);
    if (b->max && bytes > (double)b->max)
        return ml_fail(err, ML_EUSAGE,
                       "the request's %d samples need %.0f MiB, but the limit for all "
                       "requests is %.0f MiB (--max-inflight-bytes): request fewer "
                       "samples, log-probs or stop tokens",
                       (int)j->n_choice, bytes / 0x1p20, (double)b->max / 0x1p20);
    if (!ml_budget_take(b, (size_t)bytes))
        return ml_fail(
            err, ML_ENOMEM,
            "too many bytes of requests in flight (--max-inflight-bytes); try again later");
    j->reserved = (size_t)bytes;
    return ML_OK;
}

static ml_status submit_all(ml_job *j, ml_err *err) {
    ml_status st = ML_OK;

    for (int32_t i = 0; i < j->n_choice && st == ML_OK; i++)
        st = check_prompt(&j->choice[i], err);
    if (st == ML_OK)
        st = reserve(j, err);
    for (int32_t i = 0; i < j->n_choice && st == ML_OK; i++)
        st = submit(&j->choice[i], err);
    if (st != ML_OK)
        abort_all(j);
    return st;
}

/* --- adapters ----------------------------------------------------------------- */

static bool is_listed(const ml_adapter_wait *w, const ml_adapter *e) {
    for (int32_t i = 0; i < w->n_need; i++)
        if (w->need[i] == e)
            return true;
    return false;
}

/* Lists the adapters of the job's choices. */
static ml_status list_adapters(ml_job *j, ml_err *err) {
    const ml_server *s = j->server;

    j->lora.need = ML_NEW(&j->arena, ml_adapter *, j->n_choice);
    for (int32_t i = 0; i < j->n_choice; i++) {
        ml_str name = j->choice[i].adapter;
        ml_adapter *e = ml_adapters_find(s->adapters, name);
        if (s->opts.lora.trained && ml_str_is(name, s->opts.lora.trained))
            continue;
        if (name.len && !s->opts.lora.set)
            return ml_fail(err, ML_EUSAGE,
                           "\"lora_path\": start the server with --enable-lora");
        if (name.len && !e)
            return ml_fail(err, ML_EUSAGE,
                           "unknown model or adapter \"%.*s\": this server has \"%s\" and "
                           "the adapters that /v1/models lists",
                           (int)(name.len < 200 ? name.len : 200), name.ptr,
                           s->opts.model_name);
        j->choice[i].lora = e;
        if (e && !is_listed(&j->lora, e))
            j->lora.need[j->lora.n_need++] = e;
    }
    return ML_OK;
}

/* --- create and parse ------------------------------------------------------- */

/* Bodies up to this size are parsed on the event loop: cheaper than waking a thread. */
#define SMALL_BODY ((size_t)16 << 10)

typedef struct new_request {
    ml_server *server;
    ml_http_call *call;
    const ml_api *api;
    ml_arena arena;
    ml_job *job;
} new_request;

static void new_job(void *ud) {
    new_request *n = ud;
    ml_job *j;

    ml_arena_init(&n->arena, "a request");
    n->arena.budget = &n->server->budget;
    j = ML_NEW(&n->arena, ml_job, 1);
    *j = (ml_job){ .arena = n->arena,
                   .server = n->server,
                   .call = n->call,
                   .api = n->api,
                   .start_s = ml_clock_s(),
                   .created = (int64_t)time(NULL) };
    ml_arena_init(&j->scratch, "the body of a request");
    j->scratch.budget = &n->server->budget;
    n->job = j;
}

/* Replies with an error.  Frees the job now, or after the generator's last callback. */
static void refuse(ml_job *j, const ml_err *err) {
    ml_http_call *c = j->call;

    j->call = NULL;
    if (j->other_model)
        ml_reply_no_model(c, err->msg);
    else if (j->conflict)
        ml_reply_error(c, 409, err->msg);
    else
        ml_reply_err(c, err);
    if (j->n_open == 0)
        ml_job_free(j);
}

/* Compiles the grammars of a request, so that submitting it on the event loop finds them in
 * the cache. */
static ml_status compile_grammars(const ml_job *j, ml_err *err) {
    const ml_sampling_params *last = NULL;
    ml_status st = ML_OK;

    for (int32_t i = 0; i < j->n_choice && j->server->opts.grammars && !st; i++) {
        const ml_sampling_params *p = j->choice[i].params;
        ml_grammar *g;
        if (p == last || !p->grammar.kind)
            continue;
        last = p;
        st = ml_grammar_get(&g, j->server->opts.grammars, p->grammar, err);
        if (!st)
            ml_grammar_release(g);
    }
    return st;
}

static void read_body(void *ud) {
    ml_job *j = ud;
    ml_str body = { j->raw.ptr ? j->raw.ptr : "", j->raw.len };

    if (j->api->background && !body.len)
        body = ml_str_of("{}");
    j->st = ml_json_parse(&j->body, &j->scratch, body, "request body", &j->err);
    if (j->st == ML_OK)
        j->st = j->api->read(j, &j->err);
    if (j->st == ML_OK)
        j->st = compile_grammars(j, &j->err);
}

static void submit_read(void *ud) {
    ml_job *j = ud;
    j->st = submit_all(j, &j->err);
}

static void list_read(void *ud) {
    ml_job *j = ud;
    j->st = list_adapters(j, &j->err);
}

static void run_read(void *ud) {
    ml_job *j = ud;

    if (!ml_memory_try(read_body, j))
        j->st = ml_fail(&j->err, ML_ENOMEM, "%s", no_memory);
}

/* The adapters are held, or there was an error. */
static void submit_or_refuse(ml_job *j) {
    if (j->st == ML_OK && !ml_memory_try(submit_read, j)) {
        abort_all(j);
        j->st = ml_fail(&j->err, ML_ENOMEM, "%s", no_memory);
    }
    if (j->st == ML_OK && j->aborted)
        abort_all(j);
    if (j->st == ML_OK)
        return;
    j->err.code = j->st;
    refuse(j, &j->err);
}

static void adapters_ready(void *ud, const ml_err *err) {
    ml_job *j = ud;

    if (err) {
        j->err = *err;
        j->st = err->code;
        j->other_model = false;
    }
    submit_or_refuse(j);
}

/* On the event loop, after the request was parsed on either thread. */
static void was_read(void *ud) {
    ml_job *j = ud;

    if (j->reading)
        j->server->n_reading--;
    j->away = j->reading = false;
    if (!j->keep_body || j->st)
        release_body(j);
    if (!j->call) {
        ml_job_free(j); /* the client disconnected meanwhile */
        return;
    }
    record_id(j);
    if (j->n_embedded)
        ml_job_use(j, j->n_embedded, 0);
    if (j->st == ML_OK && j->n_choice == 0) {
        ml_job_output(j, NULL); /* the reply is already written */
        return;
    }
    if (j->st == ML_OK && !ml_memory_try(list_read, j))
        j->st = ml_fail(&j->err, ML_ENOMEM, "%s", no_memory);
    j->lora.ready = adapters_ready;
    j->lora.ud = j;
    if (j->st == ML_OK && !ml_adapters_hold(j->server->adapters, &j->lora))
        return;
    submit_or_refuse(j);
}

/* Whether the request seems to have a grammar, which takes longer to compile than a small
 * body takes to parse. */
static bool may_have_grammar(const ml_text *body) {
    static const char *const names[] = {
        "\"json_schema\"",     "\"regex\"",       "\"ebnf\"",   "\"structural_tag\"",
        "\"response_format\"", "\"tool_choice\"", "\"strict\"", "\"parallel_tool_calls\""
    };

    for (size_t i = 0; i < sizeof names / sizeof *names && body->len; i++)
        if (memmem(body->ptr, body->len, names[i], strlen(names[i])))
            return true;
    return false;
}

void ml_job_serve(ml_server *s, ml_http_call *c, const ml_api *api) {
    ml_job_serve_in(s, c, api, NULL);
}

void ml_job_serve_in(ml_server *s, ml_http_call *c, const ml_api *api,
                     ml_session *session) {
    new_request n = { .server = s, .call = c, .api = api };
    ml_job *j;

    if (!ml_memory_try(new_job, &n)) {
        ml_arena_release(&n.arena);
        ml_reply_error(c, 503, no_memory);
        return;
    }
    j = n.job;
    link_job(j);
    j->session = session;
    j->key = charged_key(c);
    if (session)
        ml_session_use(session);
    ml_http_on_gone(c, on_gone, j);
    ml_http_take_body(c, &j->raw);
    j->work = (ml_text_work){ run_read, was_read, j, NULL };
    if (j->raw.len > SMALL_BODY || api->background || may_have_grammar(&j->raw)) {
        j->away = j->reading = true;
        s->n_reading++;
        j->encoder = s->text_encoder;
        ml_text_thread_add(s->text, &j->work);
        return;
    }
    j->encoder = s->encoder;
    run_read(j);
    was_read(j);
}

/* --- replies ---------------------------------------------------------------- */

static void write_event(ml_job *j, const char *name, ml_str payload) {
    ml_text *event = &j->event;

    if (!j->begun)
        ml_http_begin(j->call, 200, "text/event-stream");
    j->begun = true;
    event->len = 0;
    if (name)
        ml_text_printf(event, "event: %s\n", name);
    ml_sse_write(event, payload);
    ml_http_write(j->call, (ml_str){ event->ptr, event->len });
}

void ml_job_send(ml_job *j, const ml_text *json) {
    ml_job_send_event(j, NULL, json);
}

void ml_job_send_event(ml_job *j, const char *name, const ml_text *json) {
    if (j->call)
        write_event(j, name, (ml_str){ json->ptr, json->len });
}

static void end_stream(ml_job *j) {
    ml_http_call *c;

    if (j->api->last)
        j->api->last(j);
    if (j->call && !j->api->named_events)
        write_event(j, NULL, ml_str_of("[DONE]"));
    c = j->call;
    j->call = NULL;
    if (c)
        ml_http_end(c);
}

static void write_whole(void *ud) {
    ml_job *j = ud;
    ml_json_out o = { .to = &j->out };

    if (!j->n_choice) /* parsing has already written the reply */
        return;
    j->out.len = 0;
    j->api->whole(j, &o);
}

static void send_whole(void *ud) {
    ml_job *j = ud;

    ml_http_reply(j->call, 200, "application/json", (ml_str){ j->out.ptr, j->out.len });
    j->call = NULL;
}

/* Count of numbers in the reply; writing more than LARGE_REPLY would block the loop. */
static int64_t numbers_of(const ml_choice *c, int32_t n) {
    int64_t sum = 0;

    for (int32_t i = 0; i < n; i++)
        sum += ((int64_t)c[i].scored.n + c[i].answer.n) * (2 + c[i].n_top + c[i].n_also);
    return sum;
}

static void run_write(void *ud) {
    ml_job *j = ud;
    j->st = ml_memory_try(write_whole, j) ? ML_OK : ML_ENOMEM;
}

static void was_written(void *ud) {
    ml_job *j = ud;

    j->away = false;
    if (j->call && (j->st || !ml_memory_try(send_whole, j)))
        ml_job_fail(j);
    ml_job_free(j);
}

static void reply_whole(ml_job *j) {
    if (numbers_of(j->choice, j->n_choice) < LARGE_REPLY) {
        write_whole(j);
        send_whole(j);
        return;
    }
    j->away = true;
    j->work = (ml_text_work){ run_write, was_written, j, NULL };
    ml_text_thread_add(j->server->text, &j->work);
}

static void send_error(void *ud) {
    ml_reply_error(ud, 503, no_memory);
}

void ml_job_fail(ml_job *j) {
    ml_http_call *c = j->call;

    j->call = NULL;
    abort_all(j);
    if (c && (j->begun || !ml_memory_try(send_error, c)))
        ml_http_abort(c);
}

typedef struct output_event {
    ml_job *job;
    ml_choice *choice;
} output_event;

/* An event of a stream has the output since the previous one; in some APIs it repeats all
 * output so far.  Large events are coalesced, to limit the loop's time on them. */
static void write_piece(ml_job *j, ml_choice *c) {
    double begin;

    if (numbers_of(c, 1) < LARGE_REPLY) {
        j->api->piece(j, c);
        return;
    }
    begin = ml_clock_s();
    if (c->finish == ML_FINISH_NOT && begin < c->next_piece_s)
        return;
    j->api->piece(j, c);
    c->next_piece_s = begin + (ml_clock_s() - begin) * PIECE_REST;
}

static void write_output(void *ud) {
    ml_job *j = ((output_event *)ud)->job;

    if (j->call && j->stream)
        write_piece(j, ((output_event *)ud)->choice);
    if (j->call && j->n_open == 0) {
        if (j->session && j->n_choice)
            ml_session_record(j);
        if (j->stream)
            end_stream(j);
        else
            reply_whole(j);
    }
}

/* Writing may call on_gone; `busy` keeps that from freeing the job, which is freed here. */
void ml_job_output(ml_job *j, ml_choice *c) {
    j->busy = true;
    if (!ml_memory_try(write_output, &(output_event){ j, c }))
        ml_job_fail(j);
    j->busy = false;
    if (!j->call && j->n_open == 0 && !j->away)
        ml_job_free(j);
}
