#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "net/http_url.h"
#include "serve/router_priv.h"

static ml_worker *new_worker(ml_router *r, const char *url, const char *key) {
    ml_worker *w = calloc(1, sizeof *w), **at = &r->first;

    if (w) {
        w->url = strdup(url);
        w->key = key ? strdup(key) : NULL;
    }
    if (!w || !w->url || (key && !w->key)) {
        fprintf(stderr, "miles: out of memory for a worker of the router\n");
        exit(1);
    }
    w->router = r;
    w->id = ++r->last_id;
    w->alive = true; /* until it fails */
    while (*at)
        at = &(*at)->next;
    *at = w;
    r->n_worker++;
    return w;
}

static void free_worker(ml_worker *w) {
    free(w->url);
    free(w->key);
    free(w);
}

ml_worker *ml_worker_find(ml_router *r, ml_str name) {
    while (name.len && name.ptr[name.len - 1] == '/')
        name.len--;
    for (ml_worker *w = r->first; w; w = w->next) {
        char id[32];
        snprintf(id, sizeof id, "%llu", (unsigned long long)w->id);
        if (ml_str_is(name, w->url) || ml_str_is(name, id))
            return w;
    }
    return NULL;
}

ml_status ml_worker_url(ml_text *out, ml_str url, ml_err *err) {
    ml_http_url parts;
    ml_status st;

    if (memchr(url.ptr, 0, url.len))
        return ml_fail(err, ML_EFORMAT, "the worker's URL contains a NUL byte");
    while (url.len && url.ptr[url.len - 1] == '/')
        url.len--;
    ml_text_add(out, url.ptr, url.len);
    st = ml_http_url_split(&parts, out->ptr, err);
    if (st == ML_OK && *parts.target)
        st = ml_fail(err, ML_EFORMAT, "worker '%s': expected http://host:port", out->ptr);
    return st;
}

ml_status ml_worker_add(ml_worker **out, ml_router *r, ml_str url, const char *key,
                        ml_err *err) {
    ml_text text = { 0 };
    ml_status st = ml_worker_url(&text, url, err);

    if (st == ML_OK && text.ptr) {
        *out = ml_worker_find(r, ml_str_of(text.ptr));
        if (!*out)
            *out = new_worker(r, text.ptr, key);
    }
    ml_text_release(&text);
    return st;
}

void ml_router_put(ml_router *r, const char *url, const char *key) {
    ml_worker *w;

    (void)ml_worker_add(&w, r, ml_str_of(url), key, NULL);
}

void ml_router_take(ml_router *r, const char *url) {
    ml_worker *w = ml_worker_find(r, ml_str_of(url));

    if (w)
        ml_worker_remove(w);
}

void ml_worker_remove(ml_worker *w) {
    ml_worker **at = &w->router->first;

    while (*at != w)
        at = &(*at)->next;
    *at = w->next;
    w->router->n_worker--;
    w->removed = true;
    if (w->probe)
        ml_http_cancel(w->probe);
    w->probe = NULL;
    if (w->load == 0)
        free_worker(w);
}

int ml_workers_alive(const ml_router *r) {
    int n = 0;

    for (const ml_worker *w = r->first; w; w = w->next)
        n += w->alive;
    return n;
}

void ml_worker_take(ml_worker *w) {
    w->load++;
    w->n_routed++;
}

void ml_worker_drop(ml_worker *w) {
    w->load--;
    if (w->removed && w->load == 0)
        free_worker(w);
}

/* --- health ----------------------------------------------------------------- */

void ml_worker_well(ml_worker *w) {
    w->n_failure = 0;
    w->n_success++;
    if (!w->alive && w->n_success >= w->router->opts.success_threshold) {
        w->alive = true;
        ml_log(ML_LOG_WARN, "worker %s is healthy again", w->url);
    }
}

void ml_worker_ill(ml_worker *w) {
    w->n_success = 0;
    w->n_failure++;
    w->n_failed++;
    if (w->alive && w->n_failure >= w->router->opts.failure_threshold) {
        w->alive = false;
        ml_log(ML_LOG_WARN,
               "worker %s failed %d times in a row: removed until it is healthy", w->url,
               w->n_failure);
    }
}

static void probe_head(void *ud, int status, ml_str headers) {
    (void)headers;
    ((ml_worker *)ud)->probe_status = status;
}

static void probe_done(void *ud, const ml_err *err) {
    ml_worker *w = ud;

    w->probe = NULL;
    if (!err && w->probe_status >= 200 && w->probe_status < 300)
        ml_worker_well(w);
    else
        ml_worker_ill(w);
}

static void probe(ml_worker *w) {
    const ml_router_opts *o = &w->router->opts;
    ml_text url = { 0 }, headers = { 0 };
    ml_http_request q = { .method = "GET",
                          .connect_s = o->health_timeout_s,
                          .total_s = o->health_timeout_s };
    ml_http_fns fns = { probe_head, NULL, probe_done, w };

    ml_text_printf(&url, "%s%s", w->url, o->health_path);
    if (w->key)
        ml_text_printf(&headers, "Authorization: Bearer %s\n", w->key);
    q.url = url.ptr;
    q.headers = headers.ptr;
    w->probe_status = 0;
    if (ml_http_start(&w->probe, w->router->client, &q, fns, NULL) != ML_OK) {
        w->probe = NULL;
        ml_worker_ill(w);
    }
    ml_text_release(&url);
    ml_text_release(&headers);
}

void ml_workers_probe(void *ud) {
    ml_router *r = ud;

    for (ml_worker *w = r->first; w; w = w->next)
        if (!w->probe)
            probe(w);
}

void ml_workers_free(ml_router *r) {
    for (ml_worker *w = r->first, *next; w; w = next) {
        next = w->next;
        ml_worker_remove(w);
    }
}
