/* The engines of the ranks of a run.  The first rank of each serves it on a port, guarded by
 * a random key of the run; rank 0 sends requests to all of them, its own included, so that
 * one path serves any number of engines. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/secret.h"
#include "gen/remote.h"
#include "net/loop.h"
#include "run/generator.h"
#include "serve/server.h"

#define RETRY_S 0.5
#define CONNECT_S 10.0
#define WARN_S 30.0 /* time without a response before a warning */
#define MAX_BODY ((size_t)1 << 30)
#define MAX_CONNECTIONS 65536

typedef struct ml_rank_engine {
    ml_secret key;
    const char *host[1]; /* under which it may be addressed */
    char version[24];    /* of the first weights */
    ml_loop *loop;
    ml_server *server;
    pthread_t thread;
    bool running;
} ml_rank_engine;

/* The address of an engine, as ranks tell it to rank 0. */
typedef struct url {
    char text[ML_HOST_NAME + 40];
} url;

static ml_status open_server(ml_rank_engine *e, const ml_generator *g, const ml_weights *w,
                             const ml_run_opts *c, ml_err *err) {
    const ml_run_ranks *ranks = &c->ranks;
    ml_server_opts o = { .host = ranks->n_host > 1 ? "0.0.0.0" : "127.0.0.1",
                         .access = { .api_key = e->key.text,
                                     .admin_key = e->key.text,
                                     .allowed_host = e->host,
                                     .n_host = 1 },
                         .gen = g->local,
                         .lora.trained = g->run->lora.n_site ? ML_TRAINED_ADAPTER : NULL,
                         .tokenizer = g->run->tokenizer,
                         .grammars = g->grammars,
                         .chat = g->run->chat_template,
                         .n_vocab = (int32_t)g->run->spec.n_vocab,
                         .context = g->engine.context,
                         .model_path = g->run->opts.hf_checkpoint,
                         .tokenizer_path = g->run->opts.hf_checkpoint,
                         .model_name = g->run->opts.hf_checkpoint,
                         .model_type = g->run->spec.family,
                         .load_format = "auto",
                         .weight_version = e->version,
                         .version = "",
                         .max_body = MAX_BODY,
                         .max_connections = MAX_CONNECTIONS };

    e->host[0] = ranks->host;
    snprintf(e->version, sizeof e->version, "%llu", (unsigned long long)w->version);
    return ml_server_open(&e->server, e->loop, &o, err);
}

static void *serve(void *ud) {
    ml_loop_run(((ml_rank_engine *)ud)->loop);
    return NULL;
}

static ml_status start_server(ml_rank_engine *e, const ml_generator *g, const ml_weights *w,
                              const ml_run_opts *c, ml_err *err) {
    ml_status st = ml_loop_new(&e->loop, err);

    if (st == ML_OK)
        st = open_server(e, g, w, c, err);
    if (st != ML_OK)
        return st;
    e->running = pthread_create(&e->thread, NULL, serve, e) == 0;
    return e->running ? ML_OK
                      : ml_fail(err, ML_ENOMEM,
                                "cannot create a thread for the engine's "
                                "server");
}

ml_status ml_rank_engine_serve(ml_generator *g, const ml_weights *w, const ml_run_opts *c,
                               ml_err *err) {
    ml_rank_engine *e = calloc(1, sizeof *e);
    ml_status st;

    g->served = e;
    if (!e)
        return ml_fail(err, ML_ENOMEM, "out of memory for the server of an engine");
    st = ml_secret_random(&e->key, err);
    return st == ML_OK ? start_server(e, g, w, c, err) : st;
}

int ml_rank_engine_port(const ml_rank_engine *e) {
    return ml_server_port(e->server);
}

const char *ml_rank_engine_key(const ml_rank_engine *e) {
    return e->key.text;
}

/* Rank 0 learns where the engines are. */
static ml_status connect_all(ml_generator *g, const ml_run_opts *c, ml_err *err) {
    const ml_run_ranks *ranks = &c->ranks;
    int32_t n = ml_run_ranks_size(ranks), n_url = 0;
    url mine = { "" }, *all = ML_NEW(&g->arena, url, n);
    const char **text = ML_NEW(&g->arena, const char *, n);
    ml_status st;

    if (g->served->server)
        snprintf(mine.text, sizeof mine.text, "http://%s:%d",
                 ranks->n_host > 1 ? ranks->host : "127.0.0.1",
                 ml_server_port(g->served->server));
    st = ml_comm_gather(ranks->world, all, &mine, sizeof mine, err);
    if (st != ML_OK || !ml_run_ranks_first(ranks))
        return st;
    for (int32_t i = 0; i < n; i++)
        if (all[i].text[0])
            text[n_url++] = all[i].text;
    st = ml_remote_open(&g->gen,
                        &(ml_remote_opts){ .url = text,
                                           .n_url = n_url,
                                           .api_key = g->served->key.text,
                                           .spec = &g->run->spec,
                                           .retry_s = RETRY_S,
                                           .connect_s = CONNECT_S,
                                           .request_s = c->mode.request_s,
                                           .check_s = c->supervisor.check_s,
                                           .check_timeout_s = c->supervisor.timeout_s,
                                           .warn_s = WARN_S,
                                           .policy = ml_run_router_policy(c) },
                        err);
    if (st == ML_OK && g->serves)
        st = ml_run_router_open(&g->router, g->gen, c, NULL, NULL, err);
    for (int32_t i = 0; i < n_url && g->router; i++)
        ml_run_router_add(g->router, text[i], g->served->key.text);
    return st;
}

ml_status ml_rank_engine_open(ml_generator *g, const ml_weights *w, const ml_run_opts *c,
                              ml_err *err) {
    ml_rank_engine *e = calloc(1, sizeof *e);
    ml_status st = ML_OK;

    g->served = e;
    if (!e)
        return ml_fail(err, ML_ENOMEM, "out of memory for the server of an engine");
    if (ml_run_ranks_first(&c->ranks))
        st = ml_secret_random(&e->key, err);
    if (st == ML_OK)
        st = ml_comm_share(c->ranks.world, &e->key, sizeof e->key, err);
    if (st == ML_OK && g->leads)
        st = start_server(e, g, w, c, err);
    return st == ML_OK ? connect_all(g, c, err) : st;
}

void ml_rank_engine_stop(ml_rank_engine *e) {
    if (!e || !e->running)
        return;
    ml_loop_stop(e->loop);
    pthread_join(e->thread, NULL);
    e->running = false;
}

void ml_rank_engine_close(ml_rank_engine *e) {
    if (!e)
        return;
    ml_server_close(e->server);
    if (e->loop)
        ml_loop_free(e->loop);
    free(e);
}
