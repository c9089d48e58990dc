#include "run/session_server.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/secret.h"
#include "net/loop.h"
#include "plugin/python_matcher.h"
#include "serve/server.h"
#include "serve/session_tokens.h"

#define MAX_BODY ((size_t)1 << 28)
#define MAX_CONNECTIONS 65536

struct ml_session_server {
    ml_arena arena;
    ml_secret key;
    const char *host;
    const char *allowed[1];
    ml_loop *loop;
    ml_server *server;
    pthread_t thread;
    bool running;
};

const char *ml_session_server_host(const ml_session_server *s) {
    return strcmp(s->host, "0.0.0.0") == 0 ? "127.0.0.1" : s->host;
}

int ml_session_server_port(const ml_session_server *s) {
    return ml_server_port(s->server);
}

const char *ml_session_server_key(const ml_session_server *s) {
    return s->key.text;
}

/* The first of --session-server-port A [B]; 0: any. */
static int port_of(const ml_run_opts *c) {
    return c->sessions.ports.n ? (int)strtol(c->sessions.ports.word[0], NULL, 10) : 0;
}

static ml_status open_server(ml_session_server *s, const ml_generator *g,
                             const ml_run_opts *c, ml_err *err) {
    const ml_train_run *run = g->run;
    ml_server_opts o = { .host = s->host,
                         .port = port_of(c),
                         .access = { .api_key = s->key.text,
                                     .admin_key = s->key.text,
                                     .allowed_host = s->allowed,
                                     .n_host = 1 },
                         .gen = g->gen,
                         .tokenizer = run->tokenizer,
                         .grammars = g->grammars,
                         .chat = run->chat_template,
                         .tools = c->turns.tools,
                         .n_vocab = (int32_t)run->spec.n_vocab,
                         .context = g->engine.context,
                         .model_path = c->hf_checkpoint,
                         .tokenizer_path = c->hf_checkpoint,
                         .model_name = c->hf_checkpoint,
                         .model_type = run->spec.family,
                         .load_format = "auto",
                         .weight_version = "default",
                         .version = "",
                         .seed = (uint64_t)c->source.seed,
                         .max_body = MAX_BODY,
                         .max_connections = MAX_CONNECTIONS };
    ml_status st = ml_session_opts_make(&o.sessions, &s->arena, c->sessions.kind,
                                        c->sessions.matcher, ml_python_matcher_run,
                                        c->sessions.tito, c->data.template_kwargs, err);

    if (st == ML_OK && !run->chat_template)
        st = ml_fail(err, ML_EUSAGE,
                     "the checkpoint has no chat template: set one with "
                     "--chat-template-path");
    if (st == ML_OK)
        st = ml_loop_new(&s->loop, err);
    return st == ML_OK ? ml_server_open(&s->server, s->loop, &o, err) : st;
}

static void *serve(void *ud) {
    ml_loop_run(((ml_session_server *)ud)->loop);
    return NULL;
}

ml_status ml_session_server_open(ml_session_server **out, const ml_generator *g,
                                 const ml_run_opts *c, ml_err *err) {
    ml_session_server *s = calloc(1, sizeof *s);
    ml_status st;

    *out = s;
    if (!s)
        return ml_fail(err, ML_ENOMEM, "out of memory for the session server");
    ml_arena_init(&s->arena, "the session server");
    s->host = c->sessions.ip ? c->sessions.ip : "127.0.0.1";
    s->allowed[0] = s->host;
    st = ml_secret_random(&s->key, err);
    if (st == ML_OK)
        st = open_server(s, g, c, err);
    if (st != ML_OK) {
        ml_err_prefix(err, "--use-session-server");
        return st;
    }
    s->running = pthread_create(&s->thread, NULL, serve, s) == 0;
    if (!s->running)
        return ml_fail(err, ML_ENOMEM, "cannot create a thread for the session server");
    ml_log(ML_LOG_INFO, "the run's session server is at http://%s:%d",
           ml_session_server_host(s), ml_session_server_port(s));
    return ML_OK;
}

void ml_session_server_stop(ml_session_server *s) {
    if (!s || !s->running)
        return;
    ml_loop_stop(s->loop);
    pthread_join(s->thread, NULL);
    s->running = false;
}

void ml_session_server_close(ml_session_server *s) {
    if (!s)
        return;
    ml_server_close(s->server);
    if (s->loop)
        ml_loop_free(s->loop);
    ml_arena_release(&s->arena);
    free(s);
}
