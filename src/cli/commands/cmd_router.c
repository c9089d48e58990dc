/* miles router: one address for many servers. */
#include <stdio.h>

#include "cli/cli.h"
#include "cli/commands/drain.h"
#include "cli/keys.h"
#include "net/handover.h"
#include "serve/router.h"

typedef struct router_job {
    const ml_config *config;
    ml_loop *loop;
    ml_router *router;
    ml_drain drain;
    ml_server_keys keys;
} router_job;

static ml_router_opts options(const ml_config *c) {
    ml_router_opts o = c->router;

    o.worker_url = c->worker_urls.word;
    o.n_worker = c->worker_urls.n;
    o.health_interval_s = c->no_health ? 0 : o.health_interval_s;
    o.max_retries = c->no_retries ? 0 : o.max_retries;
    o.max_concurrent = o.max_concurrent < 0 ? 0 : o.max_concurrent;
    return o;
}

static void drain(void *ud) {
    router_job *j = ud;
    ml_router_drain(j->router);
}

static ml_status run(router_job *j, ml_err *err) {
    ml_router_opts o = options(j->config);
    static const bool may[ML_N_LIMIT] = {
        [ML_LIMIT_REQUESTS] = true, [ML_LIMIT_CONCURRENT] = true
    };
    ml_status st = ml_access_of(&o.access, &j->keys, j->config, may, err);

    if (!st && o.handover)
        st = ml_handover_check(o.handover, err);
    o.worker_key = ml_secret_text(&j->keys.worker);
    if (!st)
        st = ml_loop_new(&j->loop, err);
    if (!st)
        st = ml_router_open(&j->router, j->loop, &o, err);
    if (!st)
        st = ml_drain_on_signals(&j->drain, j->loop, drain, j, err);
    if (!st)
        st = ml_server_keys_on_hangup(&j->keys, j->loop, err);
    if (st)
        return st;
    printf("routing to %d workers at %s://%s:%d\n", o.n_worker, ml_server_scheme(&j->keys),
           o.host, ml_router_port(j->router));
    fflush(stdout);
    ml_loop_run(j->loop);
    return ML_OK;
}

ml_status ml_cmd_router(const ml_config *c, ml_err *err) {
    router_job j = { .config = c };
    ml_status st = run(&j, err);

    ml_router_close(j.router);
    if (j.loop)
        ml_loop_free(j.loop);
    ml_server_keys_release(&j.keys);
    return st;
}
