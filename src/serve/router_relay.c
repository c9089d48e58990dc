/* A relay is one request that the router forwards: it connects the client's call with the
 * job at a worker. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "net/http_reader.h"
#include "net/sse.h"
#include "serve/route_prompt.h"
#include "serve/router_priv.h"

#define MAX_TRIED 16

struct ml_relay {
    ml_router *router;
    ml_relay *prev, *next;
    ml_http_call *call;
    ml_worker *worker; /* NULL between two attempts */
    ml_http_job *job;
    ml_timer *deadline;
    uint64_t tried[MAX_TRIED]; /* ids of workers */
    int n_tried;
    /* The reply: its head was forwarded; it is an event stream; it has a Content-Length. */
    bool begun, events, counted;
};

static void try_next(ml_relay *y, const char *last_failure);

/* --- freeing ---------------------------------------------------------------- */

static void leave_worker(ml_relay *y) {
    if (y->worker)
        ml_worker_drop(y->worker);
    y->worker = NULL;
}

/* The call has been answered, or its client has disconnected. */
static void free_relay(ml_relay *y) {
    ml_router *r = y->router;

    if (y->job)
        ml_http_cancel(y->job);
    leave_worker(y);
    ml_timer_stop(y->deadline);
    if (y->prev)
        y->prev->next = y->next;
    else
        r->relays = y->next;
    if (y->next)
        y->next->prev = y->prev;
    r->n_active--;
    free(y);
}

static void client_gone(void *ud) {
    free_relay(ud);
}

void ml_relays_free(ml_router *r) {
    for (ml_relay *y = r->relays, *next; y; y = next) {
        next = y->next;
        ml_http_abort(y->call);
        free_relay(y);
    }
}

/* --- the end of a reply ----------------------------------------------------- */

/* Replies with an error; no byte of a reply was forwarded yet. */
static void refuse(ml_relay *y, int status, const char *message) {
    ml_router_refuse(y->call, status, message);
    free_relay(y);
}

/* Ends a reply that was partly forwarded.  An event stream gets an error event; for any
 * other reply the connection is reset, so that the client sees the error. */
static void break_off(ml_relay *y, int status, const char *message) {
    ml_text body = { 0 }, event = { 0 };

    y->router->n_broken++;
    if (y->events && !y->counted) {
        ml_router_error(&body, status, message);
        ml_sse_write(&event, (ml_str){ body.ptr, body.len });
        ml_http_write(y->call, (ml_str){ event.ptr, event.len });
        ml_http_end(y->call);
    } else
        ml_http_abort(y->call);
    ml_text_release(&body);
    ml_text_release(&event);
    free_relay(y);
}

static void too_late(void *ud) {
    ml_relay *y = ud;
    char message[100];

    snprintf(message, sizeof message,
             "the worker took more than %g s (--request-timeout-secs)",
             y->router->opts.request_timeout_s);
    if (y->begun)
        break_off(y, 504, message);
    else
        refuse(y, 504, message);
}

/* --- the worker's reply ----------------------------------------------------- */

/* Hop-by-hop headers: they concern the connection, not the message. */
static bool is_hop(ml_str name) {
    static const char *const names[] = {
        "connection",          "keep-alive", "proxy-connection", "proxy-authenticate",
        "proxy-authorization", "te",         "trailer",          "upgrade",
        "transfer-encoding",   NULL,
    };
    for (int i = 0; names[i]; i++)
        if (ml_http_name_is(name, names[i]))
            return true;
    return false;
}

/* CORS headers: the router decides which pages may read the reply, not the worker. */
static bool is_of_page(ml_str name) {
    static const char start[] = "access-control-";

    return name.len > sizeof start - 1 &&
           strncasecmp(name.ptr, start, sizeof start - 1) == 0;
}

/* Forwards a line "Name: value\n"; splits it at the colon in place. */
static void hand_on_header(ml_relay *y, char *line) {
    char *colon = strchr(line, ':');
    ml_str name = { line, (size_t)(colon - line) };

    if (is_hop(name) || is_of_page(name))
        return;
    *colon = 0;
    if (strcasecmp(line, "content-type") == 0)
        y->events = strncasecmp(colon + 2, "text/event-stream", 17) == 0;
    y->counted = y->counted || strcasecmp(line, "content-length") == 0;
    ml_http_add_header(y->call, line, colon + 2);
}

static bool another_may_do_better(int status) {
    return status == 502 || status == 503 || status == 504;
}

static bool may_retry(const ml_relay *y) {
    const ml_router *r = y->router;
    bool left = false;

    for (const ml_worker *w = r->first; w; w = w->next) {
        bool tried = false;
        for (int i = 0; i < y->n_tried; i++)
            tried = tried || y->tried[i] == w->id;
        left = left || (w->alive && !tried);
    }
    return left && y->n_tried <= r->opts.max_retries && y->n_tried < MAX_TRIED;
}

static void worker_head(void *ud, int status, ml_str headers) {
    ml_relay *y = ud;
    ml_text lines = { 0 };

    if (another_may_do_better(status) && may_retry(y)) {
        char message[64];
        ml_http_cancel(y->job);
        y->job = NULL;
        snprintf(message, sizeof message, "the worker returned status %d", status);
        try_next(y, message);
        return;
    }
    if (status < 500)
        ml_worker_well(y->worker);
    ml_text_add(&lines, headers.ptr, headers.len);
    for (char *line = lines.ptr, *lf; (lf = strchr(line, '\n')); line = lf + 1) {
        *lf = 0;
        hand_on_header(y, line);
    }
    ml_text_release(&lines);
    y->begun = true;
    ml_http_begin(y->call, status, NULL);
}

static void worker_data(void *ud, ml_str piece) {
    ml_http_write(((ml_relay *)ud)->call, piece);
}

static void worker_done(void *ud, const ml_err *err) {
    ml_relay *y = ud;

    y->job = NULL;
    if (!err) {
        ml_http_end(y->call);
        free_relay(y);
        return;
    }
    ml_worker_ill(y->worker);
    if (y->begun)
        break_off(y, 502, err->msg);
    else if (may_retry(y))
        try_next(y, err->msg);
    else
        refuse(y, 502, err->msg);
}

/* --- the request ------------------------------------------------------------ */

static bool is_key(ml_str name) {
    return ml_http_name_is(name, "authorization") || ml_http_name_is(name, "x-api-key");
}

/* A client's key is forwarded only if the router requires none, and only to a worker of the
 * command line for which the router has no key. */
static bool keys_pass(const ml_router *r, const ml_worker *w) {
    const ml_access_opts *o = &r->opts.access;

    return !o->api_key && !o->admin_key && w->named && !w->key;
}

/* Copies the client's headers, except those that concern its connection, those that the
 * HTTP client writes itself, and browser fields and keys that the worker must not get. */
static void copy_headers(const ml_router *r, const ml_http_call *c, const ml_worker *w,
                         ml_text *out) {
    ml_str name, value;

    for (int i = 0; ml_http_header_at(c, i, &name, &value); i++) {
        if (is_hop(name) || ml_http_name_is(name, "host") ||
            ml_http_name_is(name, "content-length") || ml_http_name_is(name, "expect") ||
            ml_access_is_browser_field(name) || (is_key(name) && !keys_pass(r, w)))
            continue;
        ml_text_printf(out, "%.*s: %.*s\n", (int)name.len, name.ptr, (int)value.len,
                       value.ptr);
    }
    if (w->key)
        ml_text_printf(out, "Authorization: Bearer %s\n", w->key);
}

ml_status ml_router_hand_on(ml_http_job **out, ml_router *r, ml_http_call *c,
                            const ml_worker *w, size_t max_body, ml_http_fns fns,
                            ml_err *err) {
    ml_text url = { 0 }, headers = { 0 }, method = { 0 };
    ml_str target = ml_http_target(c), verb = ml_http_method(c);
    ml_http_request q = { .body = ml_http_body(c),
                          .connect_s = r->opts.connect_timeout_s,
                          .max_body = max_body };
    ml_status st;

    ml_text_printf(&url, "%s%.*s", w->url, (int)target.len, target.ptr);
    ml_text_add(&method, verb.ptr, verb.len);
    copy_headers(r, c, w, &headers);
    q.url = url.ptr;
    q.method = method.ptr;
    q.headers = headers.ptr;
    st = ml_http_start(out, r->client, &q, fns, err);
    ml_text_release(&url);
    ml_text_release(&headers);
    ml_text_release(&method);
    return st;
}

static ml_status send_to(ml_relay *y, ml_worker *w, ml_err *err) {
    ml_http_fns fns = { worker_head, worker_data, worker_done, y };
    ml_status st = ml_router_hand_on(&y->job, y->router, y->call, w, 0, fns, err);

    if (st != ML_OK) {
        y->job = NULL;
        return st;
    }
    y->worker = w;
    ml_worker_take(w);
    return ML_OK;
}

/* The policy selects among the workers that are alive and were not tried yet. */
static ml_worker *choose(ml_relay *y) {
    ml_router *r = y->router;
    ml_route_worker *list = calloc((size_t)r->n_worker + 1, sizeof *list);
    ml_str key = ml_http_header(y->call, "x-smg-routing-key");
    ml_worker *w = r->first;
    int n = 0, i;

    if (!list)
        return NULL;
    for (; w; w = w->next, n++) {
        list[n] =
            (ml_route_worker){ w->id, ml_str_of(w->url), w->alive, w->load, w->n_routed };
        for (int k = 0; k < y->n_tried; k++)
            list[n].usable = list[n].usable && y->tried[k] != w->id;
    }
    i = ml_route_pick(r->policy, list, n, ml_route_prompt(ml_http_body(y->call)), key);
    free(list);
    w = i < 0 ? NULL : r->first;
    while (i-- > 0)
        w = w->next;
    return w;
}

static void try_next(ml_relay *y, const char *last_failure) {
    ml_worker *w;
    ml_err err;

    leave_worker(y);
    if (y->n_tried)
        y->router->n_retry++;
    w = choose(y);
    if (!w) {
        refuse(y, 503, last_failure);
        return;
    }
    y->tried[y->n_tried++] = w->id;
    if (send_to(y, w, &err) != ML_OK)
        refuse(y, 400, err.msg);
}

void ml_relay_start(ml_router *r, ml_http_call *c) {
    ml_relay *y;

    if (r->opts.max_concurrent && r->n_active >= r->opts.max_concurrent) {
        r->n_refused++;
        ml_router_refuse(
            c, 429,
            "too many concurrent requests (--max-concurrent-requests); try again later");
        return;
    }
    y = calloc(1, sizeof *y);
    if (!y) {
        ml_router_refuse(c, 503, "the router is out of memory");
        return;
    }
    *y = (ml_relay){ .router = r, .next = r->relays, .call = c };
    if (r->relays)
        r->relays->prev = y;
    r->relays = y;
    r->n_active++;
    r->n_request++;
    ml_http_on_gone(c, client_gone, y);
    if (r->opts.request_timeout_s > 0)
        y->deadline =
            ml_timer_start(r->loop, r->opts.request_timeout_s, false, too_late, y);
    try_next(y, "no healthy worker: add one with POST /add_worker?url=http://host:port");
}
