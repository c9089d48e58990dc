#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/clock.h"
#include "base/oom.h"
#include "tinker/tinker_priv.h"

#define MAX_HEADER ((size_t)64 << 10)
#define IDLE_S 300.0
#define MAX_UNSENT ((size_t)1 << 30)
#define ROOT "/api/v1/"

/* --- replies ---------------------------------------------------------------------- */

void ml_tinker_reply(ml_http_call *c, int status, ml_text *body) {
    ml_http_reply(c, status, "application/json", (ml_str){ body->ptr, body->len });
    ml_text_release(body);
}

void ml_tinker_refuse(ml_http_call *c, int status, const char *why) {
    ml_text body = { 0 };
    ml_json_out o = { .to = &body };

    ml_json_begin(&o, '{');
    ml_json_put_word(&o, "detail", why);
    ml_json_end(&o, '}');
    ml_tinker_reply(c, status, &body);
}

void ml_tinker_reply_future(ml_http_call *c, const ml_future *f, const char *model_id) {
    ml_text body = { 0 };
    ml_json_out o = { .to = &body };

    ml_json_begin(&o, '{');
    ml_json_put_word(&o, "request_id", f->id);
    if (model_id)
        ml_json_put_word(&o, "model_id", model_id);
    ml_json_end(&o, '}');
    ml_tinker_reply(c, 200, &body);
}

ml_str ml_tinker_text(const ml_json *body, const char *key) {
    const ml_json *v = ml_json_get(body, key);
    return v && v->type == ML_JSON_STRING ? v->text : (ml_str){ "", 0 };
}

int64_t ml_tinker_number(const ml_json *body, const char *key, int64_t absent) {
    int64_t n = absent;
    return ml_json_i64(ml_json_get(body, key), &n) ? n : absent;
}

bool ml_tinker_true(const ml_json *body, const char *key, bool absent) {
    const ml_json *v = ml_json_get(body, key);
    return v && (v->type == ML_JSON_TRUE || v->type == ML_JSON_FALSE)
               ? v->type == ML_JSON_TRUE
               : absent;
}

/* --- work of the thread that trains ------------------------------------------------- */

ml_tinker_work *ml_tinker_work_new(ml_tinker *t, void (*run)(ml_tinker_work *w),
                                   void (*done)(ml_tinker_work *w)) {
    ml_tinker_work *w = ml_memory_grow(NULL, sizeof *w, "a request");

    memset(w, 0, sizeof *w);
    w->t = t;
    w->run = run;
    w->done = done;
    w->later = t->works;
    if (w->later)
        w->later->earlier = w;
    t->works = w;
    ml_arena_init(&w->arena, "a request");
    return w;
}

static void release_work(ml_tinker_work *w) {
    ml_text_release(&w->raw);
    ml_text_release(&w->reply);
    ml_arena_release(&w->arena);
    free(w);
}

void ml_tinker_work_free(ml_tinker_work *w) {
    if (w->later)
        w->later->earlier = w->earlier;
    if (w->earlier)
        w->earlier->later = w->later;
    else
        w->t->works = w->later;
    release_work(w);
}

static void end_work(void *ud) {
    ml_tinker_work *w = ud;
    ml_tinker *t = w->t;

    t->n_work--;
    w->done(w);
    if (t->draining && !t->n_work)
        ml_loop_stop(t->loop);
}

static void run_work(void *ud, int64_t thread, ml_job *job) {
    ml_tinker_work *w = (ml_tinker_work *)job;

    (void)ud;
    (void)thread;
    if (w->needs_slot && !w->model->slot)
        w->st = ml_fail(&w->err, ML_EUSAGE, "the training client %s was not created",
                        w->model->id);
    else
        w->run(w);
    ml_loop_post(w->t->loop, end_work, w);
}

void ml_tinker_work_post(ml_tinker_work *w) {
    w->t->n_work++;
    ml_job_queue_post(w->t->queue, &w->job);
}

void ml_tinker_work_answer(ml_tinker_work *w) {
    if (w->st == ML_OK)
        ml_future_finish(w->t, w->future, &w->reply, w->proto);
    else
        ml_future_fail(w->t, w->future, w->err.msg,
                       w->st == ML_EUSAGE || w->st == ML_EFORMAT || w->st == ML_EUNSUP);
    ml_tinker_work_free(w);
}

/* --- sessions ----------------------------------------------------------------------- */

ml_session_client *ml_tinker_session(ml_tinker *t, ml_str id) {
    ml_session_client *s = t->sessions;

    while (s && !ml_str_is(id, s->id))
        s = s->next;
    if (s)
        s->seen_s = ml_clock_s();
    return s;
}

ml_model_client *ml_tinker_model(ml_tinker *t, ml_str id) {
    ml_model_client *m = t->models;

    while (m && !ml_str_is(id, m->id))
        m = m->next;
    if (m)
        m->session->seen_s = ml_clock_s();
    return m;
}

ml_sampler *ml_tinker_sampler(ml_tinker *t, ml_str id) {
    ml_sampler *s = t->samplers;

    while (s && !ml_str_is(id, s->id))
        s = s->next;
    if (s)
        s->session->seen_s = ml_clock_s();
    return s;
}

static void free_samplers(ml_tinker *t, const ml_session_client *of) {
    for (ml_sampler **at = &t->samplers; *at;) {
        ml_sampler *s = *at;
        if (of && s->session != of) {
            at = &s->next;
            continue;
        }
        *at = s->next;
        free(s->id);
        free(s->path);
        free(s->dir);
        free(s);
    }
}

void ml_tinker_end_session(ml_tinker *t, ml_session_client *s) {
    ml_session_client **at = &t->sessions;

    for (ml_model_client *m = t->models, *next; m; m = next) {
        next = m->next;
        if (m->session == s)
            ml_tinker_close_model(t, m);
    }
    free_samplers(t, s);
    while (*at != s)
        at = &(*at)->next;
    *at = s->next;
    free(s->id);
    free(s);
}

static void end_silent(void *ud) {
    ml_tinker *t = ud;
    double now = ml_clock_s();

    for (ml_session_client *s = t->sessions, *next; s; s = next) {
        next = s->next;
        if (now - s->seen_s > t->opts.session_s)
            ml_tinker_end_session(t, s);
    }
}

static void create_session(ml_tinker *t, ml_http_call *c) {
    ml_session_client *s = ml_memory_grow(NULL, sizeof *s, "a session");
    ml_text body = { 0 };
    ml_json_out o = { .to = &body };
    uint64_t id[2] = { 0 };

    while (getrandom(id, sizeof id, 0) != (ssize_t)sizeof id)
        continue;
    *s = (ml_session_client){ .next = t->sessions,
                              .id = ml_memory_grow(NULL, 40, "a session"),
                              .seen_s = ml_clock_s() };
    snprintf(s->id, 40, "%016llx%016llx", (unsigned long long)id[0],
             (unsigned long long)id[1]);
    t->sessions = s;
    ml_json_begin(&o, '{');
    ml_json_put_word(&o, "type", "create_session");
    ml_json_put_word(&o, "session_id", s->id);
    ml_json_end(&o, '}');
    ml_tinker_reply(c, 200, &body);
}

static void reply_words(ml_http_call *c, const char *key, const char *word) {
    ml_text body = { 0 };
    ml_json_out o = { .to = &body };

    ml_json_begin(&o, '{');
    ml_json_put_word(&o, key, word);
    ml_json_end(&o, '}');
    ml_tinker_reply(c, 200, &body);
}

static void heartbeat(ml_tinker *t, ml_http_call *c, const ml_json *body) {
    if (ml_tinker_session(t, ml_tinker_text(body, "session_id")))
        reply_words(c, "type", "session_heartbeat");
    else
        ml_tinker_refuse(c, 410, "The session has ended.");
}

/* sessions/ID, sessions/ID/finish */
static void serve_session(ml_tinker *t, ml_http_call *c, ml_str rest) {
    const char *slash = memchr(rest.ptr, '/', rest.len);
    ml_str id = { rest.ptr, slash ? (size_t)(slash - rest.ptr) : rest.len };
    ml_session_client *s = ml_tinker_session(t, id);
    ml_text body = { 0 };
    ml_json_out o = { .to = &body };

    if (!s) {
        ml_tinker_refuse(c, 404, "The session is not known, or has ended.");
        return;
    }
    ml_json_begin(&o, '{');
    ml_json_key(&o, "training_run_ids");
    ml_json_begin(&o, '[');
    for (const ml_model_client *m = t->models; m; m = m->next)
        if (m->session == s)
            ml_json_word(&o, m->id);
    ml_json_end(&o, ']');
    ml_json_key(&o, "sampler_ids");
    ml_json_begin(&o, '[');
    for (const ml_sampler *m = t->samplers; m; m = m->next)
        if (m->session == s)
            ml_json_word(&o, m->id);
    ml_json_end(&o, ']');
    ml_json_end(&o, '}');
    if (slash)
        ml_tinker_end_session(t, s);
    ml_tinker_reply(c, 200, &body);
}

/* --- information --------------------------------------------------------------------- */

static void capabilities(ml_tinker *t, ml_http_call *c) {
    ml_text body = { 0 };
    ml_json_out o = { .to = &body };

    ml_json_begin(&o, '{');
    ml_json_key(&o, "supported_models");
    ml_json_begin(&o, '[');
    ml_json_begin(&o, '{');
    ml_json_put_word(&o, "model_name", t->opts.model);
    ml_json_put_int(&o, "max_context_length", t->opts.context);
    ml_json_put_bool(&o, "trainable", true);
    ml_json_put_bool(&o, "sampleable", true);
    ml_json_end(&o, '}');
    ml_json_end(&o, ']');
    ml_json_end(&o, '}');
    ml_tinker_reply(c, 200, &body);
}

/* What the SDK does by default, but for its HTTP/2 transport. */
static void client_config(ml_http_call *c) {
    ml_http_reply(c, 200, "application/json",
                  ml_str_of("{\"pjwt_auth_enabled\":false,\"parallel_fwdbwd_chunks\":true,"
                            "\"proto_compress_fwdbwd\":false,"
                            "\"use_pyqwest_transport\":false,"
                            "\"create_model_via_load_weights\":true,"
                            "\"sample_use_retrieve_futures\":false,"
                            "\"custom_loss_server_side\":false,"
                            "\"sample_join_sampling_session\":false}"));
}

static void weights_info(ml_tinker *t, ml_http_call *c, const ml_json *body) {
    ml_text out = { 0 };
    ml_err err = { 0 };

    if (ml_store_info(&out, t, ml_tinker_text(body, "tinker_path"), &err) == ML_OK)
        ml_tinker_reply(c, 200, &out);
    else
        ml_tinker_refuse(c, 404, err.msg);
    ml_text_release(&out);
}

/* --- routes -------------------------------------------------------------------------- */

static bool begins(ml_str s, const char *with, ml_str *rest) {
    size_t n = strlen(with);

    if (s.len < n || memcmp(s.ptr, with, n) != 0)
        return false;
    *rest = (ml_str){ s.ptr + n, s.len - n };
    return true;
}

static bool serve_get(ml_tinker *t, ml_http_call *c, ml_str path) {
    ml_str rest;

    if (ml_str_is(path, "healthz"))
        reply_words(c, "status", "ok");
    else if (ml_str_is(path, "get_server_capabilities"))
        capabilities(t, c);
    else if (begins(path, "samplers/", &rest))
        ml_tinker_get_sampler(t, c, rest);
    else if (begins(path, "sessions/", &rest))
        serve_session(t, c, rest);
    else
        return ml_store_serve(t, c, path);
    return true;
}

typedef struct route {
    const char *path;
    void (*fn)(ml_tinker *t, ml_http_call *c, const ml_json *body);
} route;

static const route routes[] = {
    { "session_heartbeat", heartbeat },
    { "create_model", ml_tinker_create_model },
    { "get_info", ml_tinker_get_info },
    { "optim_step", ml_tinker_model_request },
    { "save_weights", ml_tinker_model_request },
    { "save_weights_for_sampler", ml_tinker_model_request },
    { "save_weights_external", ml_tinker_model_request },
    { "load_weights", ml_tinker_load_weights },
    { "unload_model", ml_tinker_model_request },
    { "create_sampling_session", ml_tinker_create_sampler },
    { "asample", ml_tinker_sample },
    { "cancel_future", ml_tinker_cancel },
    { "weights_info", weights_info },
    { 0 },
};

static void serve_json(ml_tinker *t, ml_http_call *c, const route *r) {
    const ml_json *body;
    ml_err err = { 0 };
    ml_arena a;

    ml_arena_init(&a, "a request");
    if (ml_json_parse(&body, &a, ml_http_body(c), "request", &err) == ML_OK)
        r->fn(t, c, body);
    else
        ml_tinker_refuse(c, 422, err.msg);
    ml_arena_release(&a);
}

static bool serve_post(ml_tinker *t, ml_http_call *c, ml_str path) {
    const route *r = routes;
    ml_str rest;

    if (ml_str_is(path, "retrieve_future"))
        ml_tinker_retrieve(t, c);
    else if (ml_str_is(path, "forward_backward"))
        ml_tinker_forward_backward(t, c);
    else if (ml_str_is(path, "create_session"))
        create_session(t, c);
    else if (ml_str_is(path, "telemetry"))
        reply_words(c, "status", "accepted"); /* nothing is kept */
    else if (ml_str_is(path, "client/config"))
        client_config(c);
    else if (ml_str_is(path, "client/dynamic_config"))
        ml_http_reply(c, 200, "application/json",
                      ml_str_of("{\"sample_cancel_enabled\":true}"));
    else if (begins(path, "sessions/", &rest))
        serve_session(t, c, rest);
    else {
        while (r->path && !ml_str_is(path, r->path))
            r++;
        if (!r->path)
            return false;
        serve_json(t, c, r);
    }
    return true;
}

static void on_call(void *ud, ml_http_call *c) {
    ml_tinker *t = ud;
    ml_str path = ml_http_path(c), rest = { "", 0 }, method = ml_http_method(c);
    char why[300];
    bool known = false;

    ml_access_add_headers(&t->access, c);
    if (ml_str_is(path, "/health"))
        path = ml_str_of(ROOT "healthz");
    if (begins(path, ROOT, &rest))
        known = ml_str_is(method, "POST")     ? serve_post(t, c, rest)
                : ml_str_is(method, "GET")    ? serve_get(t, c, rest)
                : ml_str_is(method, "DELETE") ? ml_store_serve(t, c, rest)
                                              : false;
    if (known)
        return;
    snprintf(why, sizeof why, "This server has no endpoint %.*s %.*s.",
             (int)(method.len < 20 ? method.len : 20), method.ptr,
             (int)(path.len < 200 ? path.len : 200), path.ptr);
    ml_tinker_refuse(c, 404, why);
}

/* --- open and close ------------------------------------------------------------------- */

static ml_access_class class_of(ml_str method, ml_str path) {
    (void)method;
    return ml_str_is(path, "/health") || ml_str_is(path, ROOT "healthz")
               ? ML_ACCESS_OPEN
               : ML_ACCESS_GENERATE;
}

static ml_status listen_at(ml_tinker *t, ml_err *err) {
    const ml_tinker_opts *o = &t->opts;
    ml_http_limits limits = { .max_header = MAX_HEADER,
                              .max_body = o->max_body,
                              .max_connections = o->max_connections,
                              .idle_s = IDLE_S,
                              .max_unsent = MAX_UNSENT,
                              .head_s = ML_HTTP_HEAD_S,
                              .body_s = ML_HTTP_BODY_S,
                              .min_rate = ML_HTTP_MIN_RATE };
    ml_status st = ml_access_init(&t->access, o->host, &o->access, err);

    if (st == ML_OK)
        st = ml_http_server_open(&t->http, t->loop, o->host, o->port, limits, on_call, t,
                                 err);
    if (st != ML_OK)
        return st;
    ml_access_attach(&t->access, t->http);
    return ML_OK;
}

ml_status ml_tinker_open(ml_tinker **out, ml_loop *l, const ml_tinker_opts *o,
                         ml_err *err) {
    ml_tinker *t = calloc(1, sizeof *t);
    ml_status st;

    if (!t)
        return ml_fail(err, ML_ENOMEM, "out of memory for a server");
    t->opts = *o;
    t->opts.access.class_of = class_of;
    t->loop = l;
    st = ml_store_open(o->dir, err);
    if (st == ML_OK)
        st = ml_lora_slots_open(&t->slots, &o->slots, err);
    if (st == ML_OK)
        st = ml_job_queue_open(&t->queue, 1, run_work, t, err);
    if (st == ML_OK)
        st = listen_at(t, err);
    if (st == ML_OK) {
        t->clock = ml_timer_start(l, 10, true, end_silent, t);
        *out = t;
    } else {
        ml_tinker_close(t);
    }
    return st;
}

int ml_tinker_port(const ml_tinker *t) {
    return ml_http_server_port(t->http);
}

void ml_tinker_drain(ml_tinker *t) {
    t->draining = true;
    ml_http_server_stop_accepting(t->http, 0);
    if (!t->n_work)
        ml_loop_stop(t->loop);
}

void ml_tinker_close(ml_tinker *t) {
    if (!t)
        return;
    t->closing = true;
    ml_timer_stop(t->clock);
    if (t->http)
        ml_http_server_close(t->http);
    ml_access_release(&t->access);
    ml_job_queue_close(t->queue);
    for (ml_tinker_work *w = t->works, *next; w; w = next) {
        next = w->later;
        release_work(w);
    }
    ml_tinker_samples_close(t);
    while (t->models)
        ml_tinker_close_model(t, t->models);
    free_samplers(t, NULL);
    while (t->sessions)
        ml_tinker_end_session(t, t->sessions);
    ml_futures_close(t);
    ml_lora_slots_close(t->slots);
    free(t);
}
