#include "run/adapter_api.h"

#include <stdlib.h>
#include <string.h>

#include "net/http_server.h"
#include "net/loop.h"
#include "serve/access.h"

#define HOST "127.0.0.1"
#define ROOT "/adapter_runs"
#define MAX_HEADER ((size_t)1 << 16)
#define MAX_BODY ((size_t)1 << 20)
#define MAX_UNSENT ((size_t)1 << 26)
#define IDLE_S 300.0
enum { MAX_CONNECTIONS = 256 };

struct ml_adapter_api {
    ml_adapter_api_opts opts;
    ml_access access;
    ml_loop *loop;
    ml_http_server *http;
    pthread_t thread;
    bool running;
};

/* --- replies -------------------------------------------------------------------------- */

static void reply(ml_http_call *c, int status, ml_text *body) {
    ml_http_reply(c, status, "application/json", (ml_str){ body->ptr, body->len });
    ml_text_release(body);
}

static void refuse(ml_http_call *c, int status, const char *why) {
    ml_text t = { 0 };
    ml_json_out o = { .to = &t };

    ml_json_begin(&o, '{');
    ml_json_put_word(&o, "detail", why);
    ml_json_end(&o, '}');
    reply(c, status, &t);
}

/* As FastAPI reports a body that does not have the expected form. */
static void refuse_body(ml_http_call *c, const char *of, const char *member,
                        const char *why) {
    ml_text t = { 0 };
    ml_json_out o = { .to = &t };

    ml_json_begin(&o, '{');
    ml_json_key(&o, "detail");
    ml_json_begin(&o, '[');
    ml_json_begin(&o, '{');
    ml_json_key(&o, "loc");
    ml_json_begin(&o, '[');
    ml_json_word(&o, "body");
    if (of)
        ml_json_word(&o, of);
    if (member)
        ml_json_word(&o, member);
    ml_json_end(&o, ']');
    ml_json_put_word(&o, "msg", why);
    ml_json_put_word(&o, "type", "value_error");
    ml_json_end(&o, '}');
    ml_json_end(&o, ']');
    ml_json_end(&o, '}');
    reply(c, 422, &t);
}

static void refuse_unknown(ml_http_call *c, ml_str name) {
    ml_text t = { 0 };

    ml_text_printf(&t, "Adapter '%.*s' not registered", (int)name.len, name.ptr);
    refuse(c, 404, t.ptr);
    ml_text_release(&t);
}

/* --- requests --------------------------------------------------------------------------- */

static void list(ml_adapter_api *s, ml_http_call *c) {
    ml_text t = { 0 };
    ml_json_out o = { .to = &t };

    ml_json_begin(&o, '{');
    ml_json_key(&o, "adapters");
    ml_json_begin(&o, '[');
    pthread_mutex_lock(s->opts.lock);
    for (const ml_adapter_record *x = s->opts.registry->first; x; x = x->next)
        ml_adapter_write(&o, s->opts.registry, x);
    pthread_mutex_unlock(s->opts.lock);
    ml_json_end(&o, ']');
    ml_json_end(&o, '}');
    reply(c, 200, &t);
}

/* Names have characters that queries do not escape. */
static void put_states(ml_adapter_api *s, ml_json_out *o, ml_str query) {
    static const char key[] = "names=";
    const char *p = query.ptr, *end = query.ptr + query.len;

    while (p < end) {
        const char *stop = memchr(p, '&', (size_t)(end - p));
        size_t n = (size_t)((stop ? stop : end) - p);
        if (n >= sizeof key - 1 && memcmp(p, key, sizeof key - 1) == 0) {
            ml_str name = { p + sizeof key - 1, n - (sizeof key - 1) };
            const ml_adapter_record *x = ml_adapter_find(s->opts.registry, name);
            ml_text word = { 0 };
            ml_text_add(&word, name.ptr, name.len);
            ml_json_put_word(o, word.ptr, x ? ml_adapter_state_word(x->state) : NULL);
            ml_text_release(&word);
        }
        p += n + 1;
    }
}

static void states(ml_adapter_api *s, ml_http_call *c) {
    ml_text t = { 0 };
    ml_json_out o = { .to = &t };

    ml_json_begin(&o, '{');
    ml_json_key(&o, "states");
    ml_json_begin(&o, '{');
    pthread_mutex_lock(s->opts.lock);
    put_states(s, &o, ml_http_query(c));
    pthread_mutex_unlock(s->opts.lock);
    ml_json_end(&o, '}');
    ml_json_end(&o, '}');
    reply(c, 200, &t);
}

static void show(ml_adapter_api *s, ml_http_call *c, ml_str name) {
    ml_text t = { 0 };
    ml_json_out o = { .to = &t };
    const ml_adapter_record *x;

    pthread_mutex_lock(s->opts.lock);
    x = ml_adapter_find(s->opts.registry, name);
    if (x)
        ml_adapter_write(&o, s->opts.registry, x);
    pthread_mutex_unlock(s->opts.lock);
    if (x)
        reply(c, 200, &t);
    else
        refuse_unknown(c, name);
}

static void delete (ml_adapter_api *s, ml_http_call *c, ml_str name) {
    ml_text word = { 0 }, t = { 0 };
    ml_json_out o = { .to = &t };
    bool known;

    pthread_mutex_lock(s->opts.lock);
    known = ml_adapter_find(s->opts.registry, name) != NULL;
    pthread_mutex_unlock(s->opts.lock);
    if (!known) {
        refuse_unknown(c, name);
        return;
    }
    ml_text_add(&word, name.ptr, name.len);
    s->opts.retire(s->opts.ud, word.ptr);
    ml_json_begin(&o, '{');
    ml_json_put_word(&o, "status", "ok");
    ml_json_put_word(&o, "name", word.ptr);
    ml_json_end(&o, '}');
    ml_text_release(&word);
    reply(c, 200, &t);
}

static bool given(const ml_json *v) {
    return v && v->type != ML_JSON_NULL;
}

/* False: the call was answered. */
static bool read_config(ml_http_call *c, const ml_json *body, ml_adapter_config *out,
                        ml_arena *a) {
    const ml_json *config = ml_json_get(body, "config"),
                  *path = ml_json_get(body, "yaml_path");
    const char *member = NULL;
    ml_err err = { 0 };

    if (given(config) == given(path)) {
        refuse(c, 400, "Exactly one of 'config' or 'yaml_path' must be set");
        return false;
    }
    if (given(config)) {
        if (ml_adapter_config_read(out, config, a, &member, &err) == ML_OK)
            return true;
        refuse_body(c, "config", member, err.msg);
        return false;
    }
    if (path->type != ML_JSON_STRING) {
        refuse_body(c, "yaml_path", NULL, "\"yaml_path\" is not a string");
        return false;
    }
    if (ml_adapter_config_read_file(out, ml_arena_str(a, path->text.ptr, path->text.len), a,
                                    &err) == ML_OK)
        return true;
    refuse(c, 400, err.msg);
    return false;
}

static void register_one(ml_adapter_api *s, ml_http_call *c, const ml_json *body,
                         ml_arena *a) {
    const ml_json *name = ml_json_get(body, "name");
    ml_text t = { 0 };
    ml_json_out o = { .to = &t };
    ml_adapter_config config;
    int32_t slot = 0;
    ml_err err = { 0 };
    ml_status st;

    if (!name || name->type != ML_JSON_STRING) {
        refuse_body(c, "name", NULL, "\"name\" is required: a string");
        return;
    }
    if (!read_config(c, body, &config, a))
        return;
    st = s->opts.add(s->opts.ud, ml_arena_str(a, name->text.ptr, name->text.len), &config,
                     a, &slot, &err);
    if (st != ML_OK) {
        refuse(c, st == ML_ENOMEM ? 409 : 400, err.msg);
        return;
    }
    ml_json_begin(&o, '{');
    ml_json_put_str(&o, "name", name->text);
    ml_json_put_int(&o, "slot", slot);
    ml_json_end(&o, '}');
    reply(c, 200, &t);
}

static void post(ml_adapter_api *s, ml_http_call *c) {
    const ml_json *body;
    ml_err err = { 0 };
    ml_arena a;

    ml_arena_init(&a, "a request");
    if (ml_json_parse(&body, &a, ml_http_body(c), "request", &err) == ML_OK)
        register_one(s, c, body, &a);
    else
        refuse_body(c, NULL, NULL, err.msg);
    ml_arena_release(&a);
}

/* --- the server --------------------------------------------------------------------------- */

static void on_call(void *ud, ml_http_call *c) {
    ml_adapter_api *s = ud;
    ml_str path = ml_http_path(c), method = ml_http_method(c), name = { "", 0 };
    bool get = ml_str_is(method, "GET"), below;

    below = path.len > sizeof ROOT && memcmp(path.ptr, ROOT "/", sizeof ROOT) == 0;
    if (below)
        name = (ml_str){ path.ptr + sizeof ROOT, path.len - sizeof ROOT };
    ml_access_add_headers(&s->access, c);
    if (ml_str_is(path, "/health") && get)
        ml_http_reply(c, 200, "application/json", ml_str_of("{\"status\":\"healthy\"}"));
    else if (ml_str_is(path, ROOT) && get)
        list(s, c);
    else if (ml_str_is(path, ROOT) && ml_str_is(method, "POST"))
        post(s, c);
    else if (below && get && ml_str_is(name, "state"))
        states(s, c);
    else if (below && get)
        show(s, c, name);
    else if (below && ml_str_is(method, "DELETE"))
        delete (s, c, name);
    else if (below || ml_str_is(path, ROOT) || ml_str_is(path, "/health"))
        refuse(c, 405, "Method Not Allowed");
    else
        refuse(c, 404, "Not Found");
}

/* No key: the server listens on this machine alone. */
static ml_access_class class_of(ml_str method, ml_str path) {
    (void)method;
    (void)path;
    return ML_ACCESS_METRICS;
}

static void *serve(void *ud) {
    ml_loop_run(((ml_adapter_api *)ud)->loop);
    return NULL;
}

static ml_status open_server(ml_adapter_api *s, ml_err *err) {
    ml_access_opts access = { .class_of = class_of };
    ml_http_limits limits = { .max_header = MAX_HEADER,
                              .max_body = MAX_BODY,
                              .max_connections = MAX_CONNECTIONS,
                              .idle_s = IDLE_S,
                              .max_unsent = MAX_UNSENT,
                              .head_s = ML_HTTP_HEAD_S,
                              .body_s = ML_HTTP_BODY_S,
                              .min_rate = ML_HTTP_MIN_RATE };
    ml_status st = ml_access_init(&s->access, HOST, &access, err);

    if (st == ML_OK)
        st = ml_loop_new(&s->loop, err);
    if (st == ML_OK)
        st = ml_http_server_open(&s->http, s->loop, HOST, s->opts.port, limits, on_call, s,
                                 err);
    if (st != ML_OK)
        return st;
    ml_access_attach(&s->access, s->http);
    s->running = pthread_create(&s->thread, NULL, serve, s) == 0;
    return s->running ? ML_OK
                      : ml_fail(err, ML_ENOMEM, "cannot create a thread for the server");
}

ml_status ml_adapter_api_open(ml_adapter_api **out, const ml_adapter_api_opts *o,
                              ml_err *err) {
    ml_adapter_api *s = calloc(1, sizeof *s);
    ml_status st;

    if (!s)
        return ml_fail(err, ML_ENOMEM, "out of memory for the server of adapters");
    s->opts = *o;
    st = open_server(s, err);
    if (st != ML_OK) {
        ml_err_prefix(err, "--multi-lora-api-port");
        ml_adapter_api_close(s);
        return st;
    }
    *out = s;
    return ML_OK;
}

int ml_adapter_api_port(const ml_adapter_api *s) {
    return ml_http_server_port(s->http);
}

void ml_adapter_api_close(ml_adapter_api *s) {
    if (!s)
        return;
    if (s->running) {
        ml_loop_stop(s->loop);
        pthread_join(s->thread, NULL);
    }
    if (s->http)
        ml_http_server_close(s->http);
    ml_access_release(&s->access);
    if (s->loop)
        ml_loop_free(s->loop);
    free(s);
}
