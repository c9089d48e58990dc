/* remote_query.c - one HTTP exchange with one server, and health checks of slow servers.
 *
 * A server that hangs keeps its connections open and sends nothing.  So servers with open
 * queries get health checks.  Their queries fail when a health check fails or times out,
 * when several in a row return status >= 500, or when a query exceeds its time limit.
 * Waiting is logged in a warning, again each time the wait has doubled. */
#include <stdlib.h>
#include <string.h>

#include "base/bug.h"
#include "base/clock.h"
#include "base/log.h"
#include "gen/remote_priv.h"

#define TICK_S 0.5

enum {
    MOST_ILL = 3,          /* consecutive unhealthy replies until a server is given up */
    HEALTH_BYTES = 1 << 16 /* of a reply */
};

/* --- peers ----------------------------------------------------------------------- */

static ml_remote_peer *find_peer(ml_remote *r, const char *url) {
    ml_remote_peer *p = r->peers;
    ml_text own = { 0 };

    while (p && strcmp(p->url, url) != 0)
        p = p->next;
    if (p)
        return p;
    p = calloc(1, sizeof *p);
    if (!p)
        return NULL;
    ml_text_printf(&own, "%s", url);
    *p = (ml_remote_peer){ .next = r->peers, .remote = r, .url = own.ptr };
    r->peers = p;
    return p;
}

/* A server's check generates a token; a router's would be answered by a single worker. */
static const char *health_path(const ml_remote_peer *p) {
    return p->is_router ? "/health" : "/health_generate";
}

/* The API key is for the configured servers, not for workers that a router lists. */
static const char *headers_for(const ml_remote *r, const char *url) {
    for (int32_t i = 0; i < r->opts.n_url; i++)
        if (strcmp(r->server[i].url, url) == 0)
            return r->server[i].headers;
    return ML_REMOTE_JSON;
}

/* Restarts the wait for an answer. */
static void be_patient(ml_remote_peer *p) {
    p->quiet_since = ml_clock_s();
    p->warn_after = p->remote->opts.warn_s;
}

/* --- queries --------------------------------------------------------------------- */

static void on_head(void *ud, int status, ml_str headers) {
    ml_remote_query *q = ud;
    (void)headers;
    q->status = status;
}

static void on_data(void *ud, ml_str piece) {
    ml_remote_query *q = ud;
    ml_text_add(&q->reply, piece.ptr, piece.len);
}

static void unlink_query(ml_remote_query *q) {
    q->job = NULL;
    q->peer->n_query--;
    *(q->prev ? &q->prev->next : &q->peer->first) = q->next;
    if (q->next)
        q->next->prev = q->prev;
    q->prev = q->next = NULL;
}

static void on_done(void *ud, const ml_err *err) {
    ml_remote_query *q = ud;

    unlink_query(q);
    if (!err)
        be_patient(q->peer);
    if (!err && q->status == 200 && strcmp(q->path, ML_REMOTE_WORKERS_PATH) == 0)
        q->peer->is_router = true;
    q->done(q->ud, err);
}

void ml_remote_query_start(ml_remote *r, ml_remote_query *q, const ml_http_request *what,
                           const char *server, const char *path) {
    ml_remote_peer *p = find_peer(r, server);
    ml_http_request request = *what;
    ml_text url = { 0 };
    ml_err err = { 0 };
    ml_status st;

    ML_BUG_IF(q->job);
    ml_text_printf(&url, "%s%s", server, path);
    request.url = url.ptr;
    request.headers = headers_for(r, server);
    request.connect_s = r->opts.connect_s;
    request.idle_s = r->opts.idle_s;
    request.total_s = r->opts.request_s;
    q->path = path;
    q->peer = p;
    q->status = 0;
    q->reply.len = 0;
    st = p ? ml_http_start(&q->job, r->client, &request,
                           (ml_http_fns){ on_head, on_data, on_done, q }, &err)
           : ml_fail(&err, ML_ENOMEM, "%s: out of memory for a request", url.ptr);
    ml_text_release(&url);
    if (st != ML_OK) {
        q->job = NULL;
        q->done(q->ud, &err);
        return;
    }
    if (p->n_query++ == 0) {
        be_patient(p);
        p->n_ill = 0;
        p->check_at = p->quiet_since + r->opts.check_s;
    }
    q->next = p->first;
    if (q->next)
        q->next->prev = q;
    p->first = q;
}

static void fail_query(ml_remote_query *q, const ml_err *why) {
    ml_http_cancel(q->job);
    unlink_query(q);
    q->done(q->ud, why);
}

void ml_remote_query_cancel(ml_remote_query *q) {
    if (!q->job)
        return;
    ml_http_cancel(q->job);
    unlink_query(q);
}

void ml_remote_query_release(ml_remote_query *q) {
    ml_remote_query_cancel(q);
    ml_text_release(&q->reply);
}

/* --- health ---------------------------------------------------------------------- */

/* Fails a peer's open queries; they are retried elsewhere, or here when it is back. */
static void give_up_peer(ml_remote_peer *p, const ml_err *why) {
    ml_remote *r = p->remote;

    for (int32_t i = 0; i < r->opts.n_url; i++)
        if (strcmp(r->server[i].url, p->url) == 0)
            ml_remote_mark_lost(r, i, why->msg);
    for (int32_t n = p->n_query; n > 0 && p->first; n--)
        fail_query(p->first, why);
}

static void probe_head(void *ud, int status, ml_str headers) {
    (void)headers;
    ((ml_remote_peer *)ud)->status = status;
}

static void probe_done(void *ud, const ml_err *err) {
    ml_remote_peer *p = ud;
    ml_err why = { 0 };

    p->probe = NULL;
    p->check_at = ml_clock_s() + p->remote->opts.check_s;
    if (!err && p->status < 500) {
        p->n_ill = 0;
        return;
    }
    if (err)
        why = *err;
    else if (++p->n_ill < MOST_ILL)
        return;
    else
        ml_fail(&why, ML_EPEER, "%s%s returned %d times status %d", p->url, health_path(p),
                p->n_ill, p->status);
    give_up_peer(p, &why);
}

static void probe(ml_remote_peer *p) {
    ml_remote *r = p->remote;
    ml_text url = { 0 };
    ml_err err = { 0 };

    p->status = 0;
    ml_text_printf(&url, "%s%s", p->url, health_path(p));
    if (ml_http_start(&p->probe, r->client,
                      &(ml_http_request){ .method = "GET",
                                          .url = url.ptr,
                                          .headers = headers_for(r, p->url),
                                          .connect_s = r->opts.check_timeout_s,
                                          .total_s = r->opts.check_timeout_s,
                                          .max_body = HEALTH_BYTES },
                      (ml_http_fns){ probe_head, NULL, probe_done, p }, &err) != ML_OK)
        probe_done(p, &err);
    ml_text_release(&url);
}

/* --- watching for late answers ----------------------------------------------------- */

/* A query whose answer is due, and their number; /generate is not due while paused. */
static const ml_remote_query *find_owed(const ml_remote_peer *p, bool paused, int32_t *n) {
    const ml_remote_query *owed = NULL;

    *n = 0;
    for (const ml_remote_query *q = p->first; q; q = q->next)
        if (!paused || !q->generates) {
            ++*n;
            owed = q;
        }
    return owed;
}

static void look_after(ml_remote_peer *p, bool paused, double now) {
    const ml_remote_opts *o = &p->remote->opts;
    int32_t n;
    const ml_remote_query *owed = find_owed(p, paused, &n);

    if (!owed)
        be_patient(p);
    if (o->warn_s > 0 && now - p->quiet_since >= p->warn_after) {
        ml_log(ML_LOG_WARN, "%s has not replied for %.0f s: %s, and %d more requests",
               p->url, now - p->quiet_since, owed->path, n - 1);
        p->warn_after *= 2;
    }
    if (o->check_s > 0 && !p->probe && now >= p->check_at)
        probe(p);
}

static void tick(void *ud) {
    ml_remote *r = ud;
    double now = ml_clock_s();
    bool paused;

    pthread_mutex_lock(&r->lock);
    paused = r->stats.paused;
    pthread_mutex_unlock(&r->lock);
    for (ml_remote_peer *p = r->peers; p; p = p->next)
        if (p->n_query)
            look_after(p, paused, now);
}

void ml_remote_probe_start(ml_remote *r) {
    double s = r->opts.check_s > 0 && r->opts.check_s < TICK_S ? r->opts.check_s : TICK_S;

    if (r->opts.warn_s > 0 && r->opts.warn_s < s)
        s = r->opts.warn_s;
    r->tick = ml_timer_start(r->loop, s, true, tick, r);
}

void ml_remote_probe_stop(ml_remote *r) {
    ml_err closing = { 0 };

    ml_fail(&closing, ML_EPEER, "the generator is closing");
    ml_timer_stop(r->tick);
    for (ml_remote_peer *p = r->peers, *next; p; p = next) {
        next = p->next;
        while (p->first)
            fail_query(p->first, &closing);
        if (p->probe)
            ml_http_cancel(p->probe);
        free(p->url);
        free(p);
    }
    r->peers = NULL;
}
