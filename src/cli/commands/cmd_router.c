/* miles router: one address for many servers. */
#include <stdio.h>

#include "cli/cli.h"
#include "cli/commands/drain.h"
#include "cli/keys.h"
#include "serve/router.h"

typedef struct router_job {
    const ml_config *config;
    ml_loop *loop;
    ml_router *router;
    ml_drain drain;
    ml_server_keys keys;
} router_job;

static ml_router_opts options(const ml_config *c) {
    return (ml_router_opts){
        .host = c->router.host,
        .port = (int)c->router.port,
        .worker_url = c->router.worker_urls.word,
        .n_worker = c->router.worker_urls.n,
        .route = { .kind = (ml_route_kind)c->router.policy,
                   .cache_threshold = c->router.cache_threshold,
                   .balance_abs = c->router.balance_abs,
                   .balance_rel = c->router.balance_rel,
                   .tree_bytes = (size_t)c->router.tree_bytes },
        .health_interval_s = c->router.no_health ? 0 : c->router.health_interval_s,
        .health_timeout_s = c->router.health_timeout_s,
        .health_path = c->router.health_path,
        .failure_threshold = (int)c->router.failure_threshold,
        .success_threshold = (int)c->router.success_threshold,
        .max_retries = c->router.no_retries ? 0 : (int)c->router.max_retries,
        .request_timeout_s = c->router.request_timeout_s,
        .connect_timeout_s = c->router.connect_timeout_s,
        .max_concurrent = c->router.max_concurrent < 0 ? 0 : c->router.max_concurrent,
        .max_body = (size_t)c->router.max_body,
    };
}

static void drain(void *ud) {
    router_job *j = ud;
    ml_router_drain(j->router);
}

static ml_status run(router_job *j, ml_err *err) {
    ml_router_opts o = options(j->config);
    ml_status st = ml_access_of(&o.access, &j->keys, j->config, err);

    o.worker_key = ml_key_text(&j->keys.worker);
    if (!st)
        st = ml_loop_new(&j->loop, err);
    if (!st)
        st = ml_router_open(&j->router, j->loop, &o, err);
    if (!st)
        st = ml_drain_on_signals(&j->drain, j->loop, drain, j, err);
    if (st)
        return st;
    printf("routing to %d workers at http://%s:%d\n", o.n_worker, o.host,
           ml_router_port(j->router));
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
    return st;
}
