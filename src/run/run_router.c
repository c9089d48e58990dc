#include "run/run_router.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/oom.h"
#include "base/secret.h"
#include "net/loop.h"
#include "serve/route_prompt.h"

struct ml_run_router {
    ml_gen *gen;
    ml_loop *loop;
    ml_router *router;
    ml_secret key;
    pthread_t thread;
    bool running;
    bool fixed; /* weights do not reach engines that are added */
};

/* --- the run's own requests ------------------------------------------------------- */

static int32_t pick(void *policy, const ml_remote_choice *server, int32_t n, ml_str body) {
    ml_route_worker *w = ml_memory_grow(NULL, (size_t)n * sizeof *w, "a list of engines");
    int32_t i;

    for (i = 0; i < n; i++)
        w[i] = (ml_route_worker){ .id = (uint64_t)i + 1,
                                  .url = ml_str_of(server[i].url),
                                  .usable = server[i].usable,
                                  .load = server[i].n_call,
                                  .n_routed = server[i].n_sent };
    i = ml_route_pick(policy, w, n, ml_route_prompt(body), (ml_str){ "", 0 });
    free(w);
    return i;
}

static void close_policy(void *policy) {
    ml_route_policy_free(policy);
}

/* The least loaded engine is what the generator selects by itself. */
ml_remote_policy ml_run_router_policy(const ml_run_opts *c) {
    if (c->router.route.kind == ML_ROUTE_LEAST_LOADED || !c->router.route.tree_bytes)
        return (ml_remote_policy){ 0 };
    return (ml_remote_policy){ pick, close_policy, ml_route_policy_new(c->router.route) };
}

/* --- from the generator to the router ------------------------------------------- */

typedef struct notice {
    ml_run_router *to;
    char *url, *key;
    bool usable;
} notice;

static void take_notice(void *ud) {
    notice *n = ud;

    if (n->usable)
        ml_router_put(n->to->router, n->url, n->key);
    else
        ml_router_take(n->to->router, n->url);
    free(n->url);
    free(n->key);
    free(n);
}

static void on_server(void *ud, const char *url, const char *key, bool usable) {
    notice *n = ml_memory_grow(NULL, sizeof *n, "a notice");
    ml_text u = { 0 }, k = { 0 };

    ml_text_printf(&u, "%s", url);
    if (key)
        ml_text_printf(&k, "%s", key);
    *n = (notice){ ud, u.ptr, k.ptr, usable };
    ml_loop_post(n->to->loop, take_notice, n);
}

/* --- from the router to the generator ------------------------------------------- */

static ml_status on_added(void *owner, const char *url, const char *key, ml_err *err) {
    const ml_run_router *r = owner;

    if (r->fixed)
        return ml_fail(err, ML_EUNSUP,
                       "the engines of this run are ranks of its job and read its weights "
                       "in place, so that no other engine would get them: start the run "
                       "with --rollout-num-engines or --rollout-external to add engines");
    ml_remote_add(r->gen, url, key);
    return ML_OK;
}

static void on_removed(void *owner, const char *url) {
    ml_remote_remove(((ml_run_router *)owner)->gen, url);
}

/* --- open and close -------------------------------------------------------------- */

static void *serve(void *ud) {
    ml_loop_run(((ml_run_router *)ud)->loop);
    return NULL;
}

/* The file exists with its mode before the key is in it. */
static ml_status write_file(const ml_run_router *r, const char *host, const char *file,
                            ml_err *err) {
    ml_text t = { 0 }, url = { 0 };
    int fd = open(file, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    bool good;

    ml_text_printf(&url, "http://%s:%d", host, ml_router_port(r->router));
    ml_log(ML_LOG_INFO, "the run's router is at %s", url.ptr);
    ml_text_printf(&t, "{\"url\": ");
    ml_json_quote(&t, ml_str_of(url.ptr));
    ml_text_printf(&t, ", \"api_key\": ");
    ml_json_quote(&t, ml_str_of(r->key.text));
    ml_text_printf(&t, "}\n");
    good = fd >= 0 && fchmod(fd, 0600) == 0 && write(fd, t.ptr, t.len) == (ssize_t)t.len;
    if (fd >= 0)
        close(fd);
    ml_text_release(&t);
    ml_text_release(&url);
    return good ? ML_OK : ml_fail(err, ML_EIO, "%s: cannot be written", file);
}

static ml_status start(ml_run_router *r, const ml_run_opts *c, ml_err *err) {
    ml_router_opts o = c->router;
    ml_status st;

    o.port = o.port < 0 ? 0 : o.port;
    o.access = (ml_access_opts){ .api_key = r->key.text, .admin_key = r->key.text };
    o.health_interval_s = c->no_router_health ? 0 : o.health_interval_s;
    o.max_retries = c->no_router_retries ? 0 : o.max_retries;
    o.max_concurrent = o.max_concurrent < 0 ? 0 : o.max_concurrent;
    o.owner = r;
    o.added = on_added;
    o.removed = on_removed;
    st = ml_loop_new(&r->loop, err);
    if (st == ML_OK)
        st = ml_router_open(&r->router, r->loop, &o, err);
    if (st != ML_OK)
        return st;
    r->running = pthread_create(&r->thread, NULL, serve, r) == 0;
    return r->running ? ML_OK
                      : ml_fail(err, ML_ENOMEM, "cannot create a thread for the router");
}

ml_status ml_run_router_open(ml_run_router **out, ml_gen *gen, const ml_run_opts *c,
                             const char *key, const char *file, ml_err *err) {
    ml_run_router *r = calloc(1, sizeof *r);
    ml_status st;

    if (!r)
        return ml_fail(err, ML_ENOMEM, "out of memory for the router");
    r->gen = gen;
    r->fixed = !ml_run_elsewhere(c);
    st = key ? ml_secret_take(&r->key, ml_str_of(key), "the router's key", err)
             : ml_secret_random(&r->key, err);
    if (st == ML_OK)
        st = start(r, c, err);
    if (st == ML_OK && file)
        st = write_file(r, c->router.host, file, err);
    if (st != ML_OK) {
        ml_err_prefix(err, "--sglang-router-port");
        r->gen = NULL;
        ml_run_router_close(r);
        return st;
    }
    ml_remote_watch(gen, on_server, r);
    *out = r;
    return ML_OK;
}

void ml_run_router_add(ml_run_router *r, const char *url, const char *key) {
    on_server(r, url, key, true);
}

int ml_run_router_port(const ml_run_router *r) {
    return ml_router_port(r->router);
}

const char *ml_run_router_key(const ml_run_router *r) {
    return r->key.text;
}

void ml_run_router_close(ml_run_router *r) {
    if (!r)
        return;
    if (r->gen)
        ml_remote_watch(r->gen, NULL, NULL);
    if (r->running) {
        ml_loop_stop(r->loop);
        pthread_join(r->thread, NULL);
    }
    ml_router_close(r->router);
    if (r->loop)
        ml_loop_free(r->loop);
    free(r);
}
