#include "gen/remote.h"

#include <stdlib.h>
#include <string.h>

#include "gen/remote_priv.h"
#include "engine/request.h"

static ml_remote *of(ml_gen *g) {
    return (ml_remote *)g;
}

/* --- calls, on the loop's thread -------------------------------------------------- */

static void free_call(ml_remote_call *c) {
    ml_timer_stop(c->timer);
    ml_text_release(&c->body);
    ml_remote_query_release(&c->query);
    ml_arena_release(&c->arena);
    free(c);
}

/* Whether a request is being retried. */
static bool any_failed(const ml_remote *r) {
    for (const ml_remote_call *c = r->first; c && r->failing_since > 0; c = c->next)
        if (c->n_failed > 0)
            return true;
    return false;
}

static void end_call(ml_remote_call *c, ml_gen_update *u) {
    ml_remote *r = c->remote;

    u->ticket = c->ticket;
    *(c->prev ? &c->prev->next : &r->first) = c->next;
    if (c->next)
        c->next->prev = c->prev;
    pthread_mutex_lock(&r->lock);
    r->stats.n_running--;
    r->stats.n_finished += u->finish != ML_FINISH_ABORT;
    r->stats.n_aborted += u->finish == ML_FINISH_ABORT;
    r->stats.n_prompt_token += c->params.n_prompt;
    r->stats.n_cached_token += u->n_cached;
    r->stats.n_answer_token += u->answer.n;
    if (u->version && !r->weights.steps.n)
        r->stats.version = u->version;
    pthread_mutex_unlock(&r->lock);
    c->fn(c->ud, u);
    free_call(c);
    if (!any_failed(r))
        r->failing_since = 0;
    if (r->step_end)
        r->step_end(r->step_end_ud);
}

static void abort_call(ml_remote_call *c, const char *why) {
    ml_gen_update u = { .finish = ML_FINISH_ABORT, .message = ml_str_of(why) };
    end_call(c, &u);
}

static void attempt(void *ud);

static void try_again(ml_remote_call *c, const char *why) {
    int32_t most = c->remote->opts.n_attempt;
    ml_err gone = { 0 };

    ml_remote_failing(c->remote, why);
    if (ml_remote_check_given_up(c->remote, &gone) != ML_OK) {
        abort_call(c, gone.msg);
        return;
    }
    if (c->aborted || (++c->n_failed >= most && most > 0)) {
        abort_call(c, why);
        return;
    }
    c->timer = ml_timer_start(c->remote->loop, c->remote->opts.retry_s, false, attempt, c);
}

/* After a weight update, no server can have newer weights than it was told to load. */
static ml_status check_newest(const ml_gen_update *u, uint64_t newest, const char *url,
                              ml_err *err) {
    uint64_t version = u->version;

    for (int32_t i = 0; i < u->answer.n; i++)
        version = u->answer.version[i] > version ? u->answer.version[i] : version;
    if (version <= newest)
        return ML_OK;
    return ml_fail(err, ML_EFORMAT,
                   "%s replied with weights of version %llu; the newest version is %llu",
                   url, (unsigned long long)version, (unsigned long long)newest);
}

/* Versions of real SGLang servers are not comparable with ours. */
static ml_status check_version(const ml_remote_call *c, const ml_gen_update *u,
                               const char *url, ml_err *err) {
    ml_remote *r = c->remote;
    uint64_t newest;
    bool loaded;

    pthread_mutex_lock(&r->lock);
    loaded = r->weights.steps.n > 0;
    newest = r->weights.newest;
    pthread_mutex_unlock(&r->lock);
    if (r->opts.sglang)
        return ML_OK;
    if (u->version < c->version)
        return ml_fail(err, ML_EPEER, "%s has weights of version %llu, not %llu", url,
                       (unsigned long long)u->version, (unsigned long long)c->version);
    return loaded ? check_newest(u, newest, url, err) : ML_OK;
}

static ml_status read_answer(ml_remote_call *c, ml_gen_update *u, ml_arena *a,
                             ml_err *err) {
    const char *url = c->remote->server[c->server].url;
    ml_str reply = { c->query.reply.ptr, c->query.reply.len };
    ml_status st;

    if (c->broken)
        return ml_fail(err, c->why.code == ML_EFORMAT ? ML_EFORMAT : ML_EPEER, "%s",
                       c->why.msg);
    if (c->query.status != 200)
        return ml_fail(err, ML_EPEER, "%s returned status %d: %.300s", url, c->query.status,
                       reply.ptr ? reply.ptr : "");
    st = ml_remote_read(u, a, &c->params, &c->remote->opts, reply, url, err);
    return st == ML_OK ? check_version(c, u, url, err) : st;
}

/* The server reports overload or an internal error; other failures may be its death. */
static bool is_busy(const ml_remote_call *c) {
    return !c->broken && (c->query.status == 429 || c->query.status >= 500);
}

/* The server refused the request as invalid; a retry would not help. */
static bool is_wrong(const ml_remote_call *c) {
    return !c->broken && c->query.status == 400;
}

/* Updates the state of the server by its answer or failure. */
static void update_server(ml_remote_call *c, ml_status st, const char *why) {
    ml_remote *r = c->remote;

    if (st == ML_OK) {
        r->failing_since = 0;
        r->server[c->server].n_bad = 0;
        return;
    }
    if (!is_wrong(c) && !is_busy(c))
        ml_remote_mark_lost(r, c->server, why);
    if (st == ML_EFORMAT)
        ml_remote_bad_reply(r, c->server, why);
    else if (!c->broken && c->query.status == 200)
        ml_remote_stale_reply(c, why);
}

static void look_at(ml_remote_call *c) {
    ml_gen_update u = { 0 };
    ml_err err = { 0 };
    ml_arena a;
    ml_status st;

    ml_arena_init(&a, "reply");
    st = read_answer(c, &u, &a, &err);
    update_server(c, st, err.msg);
    c->server = -1;
    if (st == ML_OK)
        end_call(c, &u);
    else if (is_wrong(c))
        abort_call(c, err.msg);
    else
        try_again(c, err.msg);
    ml_arena_release(&a);
}

static void on_done(void *ud, const ml_err *failed) {
    ml_remote_call *c = ud;

    c->remote->server[c->server].n_call--;
    c->broken = failed != NULL;
    if (failed)
        c->why = *failed;
    c->answered = true;
    if (c->remote->paused && !c->aborted)
        return;
    c->answered = false;
    look_at(c);
}

static void attempt(void *ud) {
    ml_remote_call *c = ud;
    ml_remote *r = c->remote;

    ml_timer_stop(c->timer);
    c->timer = NULL;
    c->server = ml_remote_choose(r, c);
    if (c->server < 0) {
        try_again(c, "all servers are down or have other weights");
        return;
    }
    r->server[c->server].n_call++;
    r->server[c->server].n_sent++;
    ml_remote_query_start(r, &c->query,
                          &(ml_http_request){ .method = "POST",
                                              .body = { c->body.ptr, c->body.len },
                                              .max_body = c->max_reply },
                          r->server[c->server].url, "/generate");
}

static void begin(void *ud) {
    ml_remote_call *c = ud;
    c->next = c->remote->first;
    if (c->next)
        c->next->prev = c;
    c->remote->first = c;
    attempt(c);
}

/* --- from other threads ------------------------------------------------------------ */

/* What reading the reply will need of the request. */
static void keep(ml_remote_call *c, const ml_gen_request *r) {
    ml_str *stop = ML_NEW(&c->arena, ml_str, r->n_stop + 1);

    c->params = *r;
    for (int32_t i = 0; i < r->n_stop; i++)
        stop[i] = (ml_str){ ml_arena_str(&c->arena, r->stop[i].ptr, r->stop[i].len),
                            r->stop[i].len };
    c->params.stop = stop;
    c->params.prompt = c->params.stop_id = c->params.also = NULL;
    if (r->score_from >= 0) {
        int32_t *prompt = ML_NEW(&c->arena, int32_t, r->n_prompt);
        c->params.prompt = memcpy(prompt, r->prompt, (size_t)r->n_prompt * sizeof *prompt);
    }
    if (r->also_each && r->n_also && r->score_from >= 0) {
        size_t n = (size_t)(r->n_prompt - r->score_from) * (size_t)r->n_also;
        int32_t *also = ML_NEW(&c->arena, int32_t, n + 1);
        c->params.also = memcpy(also, r->also, n * sizeof *also);
    }
    c->max_reply = ml_remote_reply_bytes(r, &c->remote->opts);
    c->params.draw.bias = NULL;
    c->params.grammar = (ml_grammar_source){ 0 };
}

static ml_status submit(ml_gen *g, const ml_gen_request *req, ml_gen_fn *fn, void *ud,
                        uint64_t *ticket, ml_err *err) {
    ml_remote *r = of(g);
    ml_remote_call *c;

    if (req->n_prompt < 1)
        return ml_fail(err, ML_EUSAGE, "the prompt is empty; expected at least one token");
    if (r->opts.spec && ml_request_check_ids("prompt", req->prompt, req->n_prompt,
                                             r->opts.spec->n_vocab, err) != ML_OK)
        return ML_EUSAGE;
    if (ml_remote_check_given_up(r, err) != ML_OK)
        return ML_EPEER;
    c = calloc(1, sizeof *c);
    if (!c)
        return ml_fail(err, ML_ENOMEM, "out of memory for a request");
    c->remote = r;
    c->fn = fn;
    c->ud = ud;
    c->server = -1;
    c->query = (ml_remote_query){ .generates = true, .done = on_done, .ud = c };
    ml_arena_init(&c->arena, "request");
    pthread_mutex_lock(&r->lock);
    *ticket = c->ticket = ++r->n_ticket;
    c->version = r->weights.steps.n ? r->stats.version : 0;
    r->stats.n_running++;
    pthread_mutex_unlock(&r->lock);
    keep(c, req);
    ml_remote_write(&c->body, &r->opts, req, c->ticket);
    ml_loop_post(r->loop, begin, c);
    return ML_OK;
}

typedef struct abort_note {
    ml_remote *remote;
    uint64_t ticket;
    ml_remote_query query;
} abort_note;

static void free_note(void *ud, const ml_err *err) {
    abort_note *n = ud;

    (void)err;
    ml_remote_query_release(&n->query);
    free(n);
}

/* Sends the abort to the server, which then answers the request with the tokens so far.  A
 * request between attempts ends here. */
static void abort_on_loop(void *ud) {
    abort_note *n = ud;
    ml_remote *r = n->remote;
    ml_remote_call *c = r->first;
    ml_text body = { 0 };

    while (c && c->ticket != n->ticket)
        c = c->next;
    if (!c || c->server < 0) {
        if (c)
            abort_call(c, "aborted");
        free(n);
        return;
    }
    ml_text_printf(&body, "{\"rid\":\"miles-%llu\"}", (unsigned long long)c->ticket);
    c->aborted = true; /* no retry: any result ends it */
    n->query = (ml_remote_query){ .done = free_note, .ud = n };
    ml_remote_query_start(r, &n->query,
                          &(ml_http_request){ .method = "POST",
                                              .body = { body.ptr, body.len },
                                              .max_body = ML_REMOTE_CONTROL_BYTES },
                          r->server[c->server].url, "/abort_request");
    ml_text_release(&body);
}

static void abort_one(ml_gen *g, uint64_t ticket) {
    abort_note *n = malloc(sizeof *n);
    if (!n)
        return; /* the request continues to its normal end */
    *n = (abort_note){ .remote = of(g), .ticket = ticket };
    ml_loop_post(of(g)->loop, abort_on_loop, n);
}

static void abort_waiting(void *ud) {
    ml_remote *r = ud;
    for (ml_remote_call *c = r->first, *next; c; c = next) {
        next = c->next;
        c->aborted = true;
        if (c->server < 0)
            abort_call(c, "aborted");
    }
}

void ml_remote_drop_waiting(void *remote) {
    ml_remote *r = remote;
    ml_err why = { 0 };

    (void)ml_remote_check_given_up(r, &why);
    for (ml_remote_call *c = r->first, *next; c; c = next) {
        next = c->next;
        if (c->server < 0)
            abort_call(c, why.msg);
    }
}

static void abort_all(ml_gen *g) {
    ml_loop_post(of(g)->loop, abort_waiting, of(g));
    (void)ml_remote_post_all(of(g), "/abort_request", "{\"abort_all\":true}");
}

static void hold(void *ud) {
    ml_remote *r = ud;
    r->paused = true;
}

static void call_step_end(void *ud) {
    ml_remote *r = ud;

    r->notified = r->paused;
    if (r->step_end && !r->paused)
        r->step_end(r->step_end_ud);
}

static void notify(ml_gen *g) {
    ml_loop_post(of(g)->loop, call_step_end, of(g));
}

/* Processes the answers, and the notification, that arrived while paused. */
static void let_go(void *ud) {
    ml_remote *r = ud;

    r->paused = false;
    if (r->notified)
        call_step_end(r);
    for (ml_remote_call *c = r->first, *next; c; c = next) {
        next = c->next;
        if (c->answered) {
            c->answered = false;
            look_at(c);
        }
    }
}

static void set_paused(ml_gen *g, bool paused) {
    ml_remote *r = of(g);
    pthread_mutex_lock(&r->lock);
    r->stats.paused = paused;
    pthread_mutex_unlock(&r->lock);
}

static void pause_all(ml_gen *g) {
    (void)ml_remote_post_all(of(g), "/pause_generation", "{\"mode\":\"retract\"}");
    ml_remote_run_on_loop(of(g), hold, of(g));
    set_paused(g, true);
}

static void resume_all(ml_gen *g) {
    set_paused(g, false);
    ml_remote_run_on_loop(of(g), let_go, of(g));
    (void)ml_remote_post_all(of(g), "/continue_generation", "{}");
}

static bool flush(ml_gen *g) {
    return ml_remote_post_all(of(g), "/flush_cache", "{}") == ML_OK;
}

static void stats(ml_gen *g, ml_gen_stats *out) {
    ml_remote *r = of(g);
    pthread_mutex_lock(&r->lock);
    *out = r->stats;
    pthread_mutex_unlock(&r->lock);
}

typedef struct step_end_callback {
    ml_remote *remote;
    ml_step_end_fn *fn;
    void *ud;
} step_end_callback;

static void do_set_step_end(void *ud) {
    const step_end_callback *n = ud;

    n->remote->step_end = n->fn;
    n->remote->step_end_ud = n->ud;
}

/* After return, the previous callback is not running and will not be called. */
static void set_step_end(ml_gen *g, ml_step_end_fn *fn, void *ud) {
    step_end_callback n = { of(g), fn, ud };
    ml_remote_run_on_loop(of(g), do_set_step_end, &n);
}

/* --- opening and closing ------------------------------------------------------------ */

static void *carry(void *ud) {
    ml_remote *r = ud;
    ml_loop_run(r->loop);
    for (ml_remote_call *c = r->first, *next; c; c = next) {
        next = c->next;
        ml_remote_query_cancel(&c->query);
        abort_call(c, "the generator is closing");
    }
    ml_remote_cancel_reloads(r);
    ml_remote_probe_stop(r);
    return NULL;
}

static void free_remote(ml_remote *r) {
    if (r->client)
        ml_http_client_free(r->client);
    if (r->loop)
        ml_loop_free(r->loop);
    for (int32_t i = 0; i < r->opts.n_url; i++) {
        free(r->server[i].url);
        free(r->server[i].next_url);
    }
    if (r->opts.policy.close)
        r->opts.policy.close(r->opts.policy.ud);
    pthread_mutex_destroy(&r->lock);
    ml_arena_release(&r->arena);
    free(r);
}

static void stop(void *ud) {
    ml_loop_stop(ud);
}

static void close_gen(ml_gen *g) {
    ml_remote *r = of(g);
    ml_loop_post(r->loop, stop, r->loop); /* after everything posted before */
    pthread_join(r->thread, NULL);
    free_remote(r);
}

void ml_remote_server_init(ml_remote *r, ml_remote_server *s, const char *url,
                           const char *key) {
    size_t n = strlen(url);
    ml_text own = { 0 };

    while (n && url[n - 1] == '/')
        n--;
    ml_text_add(&own, url, n);
    s->remote = r;
    s->url = own.ptr;
    s->key = key ? ml_arena_str(&r->arena, key, strlen(key)) : NULL;
    s->headers = ml_arena_printf(&r->arena, ML_REMOTE_JSON "%s%s%s",
                                 key ? "Authorization: Bearer " : "", key ? key : "",
                                 key ? "\n" : "");
}

static void keep_opts(ml_remote *r, const ml_remote_opts *o) {
    r->opts = *o;
    r->opts.url = NULL;
    r->server = ML_NEW(&r->arena, ml_remote_server, ML_REMOTE_MOST_SERVERS);
    for (int32_t i = 0; i < o->n_url; i++)
        ml_remote_server_init(r, &r->server[i], o->url[i], o->api_key);
}

ml_status ml_remote_open(ml_gen **out, const ml_remote_opts *o, ml_err *err) {
    ml_remote *r;
    ml_status st;

    if (o->n_url < 1 || o->n_url > ML_REMOTE_MOST_SERVERS)
        return ml_fail(err, ML_EUSAGE, "expected 1 to %d server addresses, not %d",
                       (int)ML_REMOTE_MOST_SERVERS, (int)o->n_url);
    r = calloc(1, sizeof *r);
    if (!r)
        return ml_fail(err, ML_ENOMEM, "out of memory for a generator");
    r->gen = (ml_gen){ .name = "remote",
                       .submit = submit,
                       .abort = abort_one,
                       .abort_all = abort_all,
                       .pause = pause_all,
                       .resume = resume_all,
                       .flush = flush,
                       .load = ml_remote_load,
                       .stats = stats,
                       .close = close_gen,
                       .on_step_end = set_step_end,
                       .notify = notify };
    ml_arena_init(&r->arena, "remote servers");
    pthread_mutex_init(&r->lock, NULL);
    keep_opts(r, o);
    st = ml_loop_new(&r->loop, err);
    if (st != ML_OK) {
        free_remote(r);
        return st;
    }
    r->client = ml_http_client_new(r->loop);
    ml_remote_probe_start(r);
    if (pthread_create(&r->thread, NULL, carry, r) != 0) {
        ml_remote_probe_stop(r);
        free_remote(r);
        return ml_fail(err, ML_ENOMEM, "cannot create a thread for connections");
    }
    *out = &r->gen;
    return ML_OK;
}
