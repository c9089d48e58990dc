#include "serve/router.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "serve/router_priv.h"

#define MAX_CONNECTIONS 65536
#define MAX_HEADER ((size_t)1 << 16)
#define MAX_UNSENT ((size_t)1 << 28) /* bytes of a reply that its client has not read */
#define IDLE_S 120.0                 /* a client's connection without a request */
#define DRAIN_POLL_S 0.05
#define DRAIN_POLLS 60 /* how often to wait for clients to read the last replies */
#define REPLACED_POLLS (DRAIN_POLLS + (int)(ML_HANDOVER_GRACE_S / DRAIN_POLL_S))

static void handle(void *ud, ml_http_call *c) {
    ml_router *r = ud;

    ml_access_add_headers(&r->access, c);
    if (!ml_router_admin(r, c) && !ml_fan_start(r, c))
        ml_relay_start(r, c);
}

static ml_status add_workers(ml_router *r, ml_err *err) {
    ml_status st = ML_OK;
    ml_worker *w;

    for (int i = 0; i < r->opts.n_worker && st == ML_OK; i++) {
        st =
            ml_worker_add(&w, r, ml_str_of(r->opts.worker_url[i]), r->opts.worker_key, err);
        if (st == ML_OK)
            w->named = true;
    }
    return st;
}

static void drain(ml_router *r, double grace_s, int max_polls);

/* The next router accepts connections now. */
static void on_taken(void *ud) {
    drain(ud, ML_HANDOVER_GRACE_S, REPLACED_POLLS);
}

ml_status ml_router_open(ml_router **out, ml_loop *l, const ml_router_opts *opts,
                         ml_err *err) {
    ml_http_limits limits = { .max_header = MAX_HEADER,
                              .max_body = opts->max_body,
                              .max_connections = MAX_CONNECTIONS,
                              .idle_s = IDLE_S,
                              .max_unsent = MAX_UNSENT,
                              .head_s = ML_HTTP_HEAD_S,
                              .body_s = ML_HTTP_BODY_S,
                              .min_rate = ML_HTTP_MIN_RATE };
    ml_listen at = { opts->host, opts->port, opts->handover };
    ml_router *r = calloc(1, sizeof *r);
    ml_status st;

    if (!r)
        return ml_fail(err, ML_ENOMEM, "out of memory for a router");
    r->opts = *opts;
    r->loop = l;
    r->budget.max = (size_t)sysconf(_SC_PHYS_PAGES) / 4 * (size_t)sysconf(_SC_PAGESIZE);
    limits.budget = &r->budget;
    r->client = ml_http_client_new(l);
    r->policy = ml_route_policy_new(opts->route);
    st = ml_access_init(&r->access, opts->host, &opts->access, err);
    if (st == ML_OK)
        st = add_workers(r, err);
    if (st == ML_OK)
        st = ml_handover_open(&r->server, &r->handover, l, &at, limits, handle, on_taken, r,
                              err);
    if (st == ML_OK)
        ml_access_attach(&r->access, r->server);
    if (st != ML_OK) {
        ml_router_close(r);
        return st;
    }
    if (opts->health_interval_s > 0) {
        r->health = ml_timer_start(l, opts->health_interval_s, true, ml_workers_probe, r);
        ml_workers_probe(r);
    }
    *out = r;
    return ML_OK;
}

int ml_router_port(const ml_router *r) {
    return ml_http_server_port(r->server);
}

static void stop_when_done(void *ud) {
    ml_router *r = ud;

    if (r->n_active > 0)
        return;
    if (ml_http_server_connections(r->server) == 0 ||
        ++r->n_drain_poll > r->max_drain_polls)
        ml_loop_stop(r->loop);
}

static void drain(ml_router *r, double grace_s, int max_polls) {
    if (r->drain)
        return;
    r->max_drain_polls = max_polls;
    ml_http_server_stop_accepting(r->server, grace_s);
    r->drain = ml_timer_start(r->loop, DRAIN_POLL_S, true, stop_when_done, r);
}

void ml_router_drain(ml_router *r) {
    drain(r, 0, DRAIN_POLLS);
}

void ml_router_close(ml_router *r) {
    if (!r)
        return;
    ml_timer_stop(r->health);
    ml_timer_stop(r->drain);
    ml_relays_free(r);
    ml_fan_free_all(r);
    ml_workers_free(r);
    ml_handover_close(r->handover);
    ml_http_server_close(r->server);
    ml_access_release(&r->access);
    ml_http_client_free(r->client);
    ml_route_policy_free(r->policy);
    free(r);
}
