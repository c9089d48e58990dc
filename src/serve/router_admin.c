/* The router's own endpoints: workers, health, metrics. */
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "base/json_out.h"
#include "base/secret.h"
#include "serve/router_priv.h"

void ml_router_error(ml_text *out, int status, const char *message) {
    ml_json_out o = { .to = out };

    ml_json_begin(&o, '{');
    ml_json_key(&o, "error");
    ml_json_begin(&o, '{');
    ml_json_key(&o, "message");
    ml_json_word(&o, message);
    ml_json_key(&o, "type");
    ml_json_word(&o, status < 500 ? "invalid_request_error" : "upstream_error");
    ml_json_key(&o, "code");
    ml_json_int(&o, status);
    ml_json_end(&o, '}');
    ml_json_end(&o, '}');
}

static void reply(ml_http_call *c, int status, ml_text *json) {
    ml_http_reply(c, status, "application/json", (ml_str){ json->ptr, json->len });
    ml_text_release(json);
}

void ml_router_refuse(ml_http_call *c, int status, const char *message) {
    ml_text t = { 0 };

    ml_router_error(&t, status, message);
    reply(c, status, &t);
}

/* --- lists ------------------------------------------------------------------ */

static void list_urls(ml_router *r, ml_http_call *c) {
    ml_text t = { 0 };
    ml_json_out o = { .to = &t };

    ml_json_begin(&o, '{');
    ml_json_key(&o, "urls");
    ml_json_begin(&o, '[');
    for (const ml_worker *w = r->first; w; w = w->next)
        ml_json_word(&o, w->url);
    ml_json_end(&o, ']');
    ml_json_put_bool(&o, "fans_out", true); /* router_fan.c */
    ml_json_end(&o, '}');
    reply(c, 200, &t);
}

static void describe(ml_json_out *o, const ml_worker *w) {
    char id[32];

    snprintf(id, sizeof id, "%llu", (unsigned long long)w->id);
    ml_json_begin(o, '{');
    ml_json_key(o, "id");
    ml_json_word(o, id);
    ml_json_key(o, "url");
    ml_json_word(o, w->url);
    ml_json_key(o, "worker_type");
    ml_json_word(o, "regular");
    ml_json_key(o, "is_healthy");
    ml_json_bool(o, w->alive);
    ml_json_key(o, "load");
    ml_json_int(o, w->load);
    ml_json_key(o, "requests");
    ml_json_int(o, w->n_routed);
    ml_json_key(o, "failures");
    ml_json_int(o, w->n_failed);
    ml_json_end(o, '}');
}

static void list_workers(ml_router *r, ml_http_call *c) {
    ml_text t = { 0 };
    ml_json_out o = { .to = &t };

    ml_json_begin(&o, '{');
    ml_json_key(&o, "workers");
    ml_json_begin(&o, '[');
    for (const ml_worker *w = r->first; w; w = w->next)
        describe(&o, w);
    ml_json_end(&o, ']');
    ml_json_key(&o, "total");
    ml_json_int(&o, r->n_worker);
    ml_json_end(&o, '}');
    reply(c, 200, &t);
}

/* The reply format of Miles' router: the workers with their requests in flight. */
static void reply_loads(ml_router *r, ml_http_call *c, int status) {
    ml_text t = { 0 };
    ml_json_out o = { .to = &t };

    ml_json_begin(&o, '{');
    ml_json_key(&o, "status");
    ml_json_word(&o, "success");
    ml_json_key(&o, "worker_urls");
    ml_json_begin(&o, '{');
    for (const ml_worker *w = r->first; w; w = w->next) {
        ml_json_key(&o, w->url);
        ml_json_int(&o, w->load);
    }
    ml_json_end(&o, '}');
    ml_json_end(&o, '}');
    reply(c, status, &t);
}

/* --- adding and removing ---------------------------------------------------- */

static int hex(char c) {
    if (c >= '0' && c <= '9')
        return c - '0';
    c = (char)(c | 0x20);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* The decoded value of url= in a query; empty if there is none. */
static void url_of_query(ml_str query, ml_text *out) {
    const char *p = query.ptr, *end = p + query.len;

    ml_text_add(out, "", 0);
    while (p < end && !(end - p >= 4 && memcmp(p, "url=", 4) == 0)) {
        p = memchr(p, '&', (size_t)(end - p));
        p = p ? p + 1 : end;
    }
    for (p += p < end ? 4 : 0; p < end && *p != '&'; p++) {
        char c = *p;
        if (c == '%' && end - p > 2 && hex(p[1]) >= 0 && hex(p[2]) >= 0) {
            c = (char)(hex(p[1]) * 16 + hex(p[2]));
            p += 2;
        }
        ml_text_add(out, &c, 1);
    }
}

/* Members "url" or "worker_url" of a JSON body. */
static void url_of_body(ml_str body, ml_text *out) {
    const ml_json *doc, *url;
    ml_arena a;

    ml_text_add(out, "", 0);
    ml_arena_init(&a, "router request");
    if (ml_json_parse(&doc, &a, body, "body", NULL) == ML_OK) {
        url = ml_json_get(doc, "url");
        if (!url)
            url = ml_json_get(doc, "worker_url");
        if (url && url->type == ML_JSON_STRING && !memchr(url->text.ptr, 0, url->text.len))
            ml_text_add(out, url->text.ptr, url->text.len);
    }
    ml_arena_release(&a);
}

static void url_of(ml_http_call *c, ml_text *out) {
    url_of_query(ml_http_query(c), out);
    if (!out->len)
        url_of_body(ml_http_body(c), out);
}

/* The API key that the router sends to the new worker; empty: none. */
static ml_status key_of_body(ml_secret *out, ml_str body, ml_err *err) {
    const ml_json *doc, *key;
    ml_status st = ML_OK;
    ml_arena a;

    *out = (ml_secret){ 0 };
    ml_arena_init(&a, "router request");
    if (body.len && ml_json_parse(&doc, &a, body, "body", NULL) == ML_OK) {
        key = ml_json_get(doc, "api_key");
        if (key && key->type == ML_JSON_STRING)
            st = ml_secret_take(out, key->text, "\"api_key\"", err);
        else if (key && key->type != ML_JSON_NULL)
            st = ml_fail(err, ML_EUSAGE, "\"api_key\": expected a string");
    }
    ml_arena_release(&a);
    return st;
}

/* Adds it, or tells the owner of the router. */
static ml_status admit(ml_router *r, ml_str url, const char *key, ml_err *err) {
    ml_text text = { 0 };
    ml_worker *w;
    ml_status st;

    if (!r->opts.added)
        return ml_worker_add(&w, r, url, key, err);
    st = ml_worker_url(&text, url, err);
    if (st == ML_OK)
        st = r->opts.added(r->opts.owner, text.ptr, key, err);
    ml_text_release(&text);
    return st;
}

static void add_worker(ml_router *r, ml_http_call *c, int status) {
    ml_text url = { 0 };
    ml_secret key;
    ml_err err;

    url_of(c, &url);
    if (!url.len)
        ml_router_refuse(c, 400,
                         "no worker given: use ?url=http://host:port, or {\"url\": "
                         "\"http://host:port\"} as the body");
    else if (key_of_body(&key, ml_http_body(c), &err) != ML_OK ||
             admit(r, (ml_str){ url.ptr, url.len }, key.text[0] ? key.text : NULL, &err) !=
                 ML_OK)
        ml_router_refuse(c, 400, err.msg);
    else
        reply_loads(r, c, status);
    ml_text_release(&url);
}

static void remove_worker(ml_router *r, ml_http_call *c, ml_str name, int status) {
    ml_worker *w = ml_worker_find(r, name);

    if (!w) {
        ml_router_refuse(c, 404, "unknown worker; GET /list_workers lists the workers");
        return;
    }
    if (r->opts.removed)
        r->opts.removed(r->opts.owner, w->url);
    ml_worker_remove(w);
    reply_loads(r, c, status);
}

static void remove_by_query(ml_router *r, ml_http_call *c) {
    ml_text url = { 0 };

    url_of(c, &url);
    remove_worker(r, c, (ml_str){ url.ptr, url.len }, 200);
    ml_text_release(&url);
}

/* --- health and metrics ----------------------------------------------------- */

static void health(ml_router *r, ml_http_call *c) {
    ml_text t = { 0 };
    ml_json_out o = { .to = &t };
    int alive = ml_workers_alive(r);

    ml_json_begin(&o, '{');
    ml_json_key(&o, "status");
    ml_json_word(&o, alive ? "ok" : "no healthy worker");
    ml_json_key(&o, "alive");
    ml_json_int(&o, alive);
    ml_json_key(&o, "total");
    ml_json_int(&o, r->n_worker);
    ml_json_end(&o, '}');
    reply(c, alive ? 200 : 503, &t);
}

static void metric(ml_text *t, const char *name, const char *kind, const char *help,
                   int64_t value) {
    ml_text_printf(t, "# HELP miles_router_%s %s\n# TYPE miles_router_%s %s\n", name, help,
                   name, kind);
    ml_text_printf(t, "miles_router_%s %lld\n", name, (long long)value);
}

static void worker_metric(ml_text *t, const ml_router *r, const char *name,
                          const char *kind, int64_t (*value)(const ml_worker *w)) {
    ml_text_printf(t, "# TYPE miles_router_worker_%s %s\n", name, kind);
    for (const ml_worker *w = r->first; w; w = w->next)
        ml_text_printf(t, "miles_router_worker_%s{worker=\"%s\"} %lld\n", name, w->url,
                       (long long)value(w));
}

static int64_t get_alive(const ml_worker *w) {
    return w->alive;
}
static int64_t get_load(const ml_worker *w) {
    return w->load;
}
static int64_t get_routed(const ml_worker *w) {
    return w->n_routed;
}
static int64_t get_failed(const ml_worker *w) {
    return w->n_failed;
}

static void metrics(ml_router *r, ml_http_call *c) {
    ml_text t = { 0 };

    metric(&t, "requests_total", "counter", "Requests forwarded.", r->n_request);
    metric(&t, "active_requests", "gauge", "Requests in flight.", r->n_active);
    metric(&t, "retries_total", "counter", "Requests retried on another worker.",
           r->n_retry);
    metric(&t, "refused_total", "counter", "Requests rejected by the limit.", r->n_refused);
    metric(&t, "broken_total", "counter", "Replies aborted in the middle.", r->n_broken);
    metric(&t, "prefix_hits_total", "counter",
           "Requests sent to the worker with their prompt prefix.",
           ml_route_hits(r->policy));
    metric(&t, "tree_bytes", "gauge", "Memory of the prefix tree.",
           (int64_t)ml_route_bytes(r->policy));
    worker_metric(&t, r, "healthy", "gauge", get_alive);
    worker_metric(&t, r, "load", "gauge", get_load);
    worker_metric(&t, r, "requests_total", "counter", get_routed);
    worker_metric(&t, r, "failures_total", "counter", get_failed);
    ml_access_metrics(&r->access, r->server, &(ml_metrics_form){ &t, "miles_router_", "" });
    ml_http_reply(c, 200, "text/plain; version=0.0.4", (ml_str){ t.ptr, t.len });
    ml_text_release(&t);
}

static void alive(ml_router *r, ml_http_call *c) {
    (void)r;
    ml_http_reply(c, 200, "text/plain", ml_str_of("OK"));
}

/* --- paths ------------------------------------------------------------------ */

static void post_add(ml_router *r, ml_http_call *c) {
    add_worker(r, c, 200);
}

static void post_workers(ml_router *r, ml_http_call *c) {
    add_worker(r, c, 202);
}

/* DELETE /workers/http%3A%2F%2Fhost%3Aport */
static bool delete_worker(ml_router *r, ml_http_call *c) {
    static const char start[] = "/workers/";
    ml_str path = ml_http_path(c);
    size_t n = sizeof start - 1;

    if (!ml_str_is(ml_http_method(c), "DELETE") || path.len <= n ||
        memcmp(path.ptr, start, n) != 0)
        return false;
    remove_worker(r, c, (ml_str){ path.ptr + n, path.len - n }, 202);
    return true;
}

bool ml_router_admin(ml_router *r, ml_http_call *c) {
    static const struct {
        const char *path, *method;
        void (*fn)(ml_router *r, ml_http_call *c);
    } table[] = {
        { "/add_worker", "POST", post_add },
        { "/remove_worker", "POST", remove_by_query },
        { "/list_workers", "GET", list_urls },
        { "/workers", "GET", list_workers },
        { "/workers", "POST", post_workers },
        { "/health", "GET", health },
        { "/readiness", "GET", health },
        { "/liveness", "GET", alive },
        { "/metrics", "GET", metrics },
    };
    ml_str path = ml_http_path(c), method = ml_http_method(c);
    bool known = false;

    if (ml_str_is(method, "HEAD"))
        method = ml_str_of("GET"); /* the server omits the body of the reply */
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        if (!ml_str_is(path, table[i].path))
            continue;
        known = true;
        if (ml_str_is(method, table[i].method)) {
            table[i].fn(r, c);
            return true;
        }
    }
    if (known)
        ml_router_refuse(c, 405, "method not allowed for this path");
    return known || delete_worker(r, c);
}
