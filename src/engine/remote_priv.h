/* remote_priv.h - what the files of the remote generator share. */
#ifndef ML_ENGINE_REMOTE_PRIV_H
#define ML_ENGINE_REMOTE_PRIV_H

#include <pthread.h>

#include "base/arena.h"
#include "engine/remote.h"
#include "net/http_client.h"

typedef struct ml_remote ml_remote;

/* A request under way. */
typedef struct ml_remote_call {
    struct ml_remote_call *prev, *next;
    ml_remote *remote;
    uint64_t ticket;
    ml_gen_fn *fn;
    void *ud;
    ml_arena arena; /* the strings of the request */
    ml_gen_request ask;
    ml_text body, reply;
    int32_t server; /* where it is, or -1: between attempts */
    int32_t n_failed;
    int status;
    ml_http_job *job;
    ml_timer *timer;
} ml_remote_call;

typedef struct ml_remote_server {
    char *url;
    int32_t n_call;
} ml_remote_server;

struct ml_remote {
    ml_gen gen; /* first */
    ml_arena arena;
    ml_remote_opts opts;
    ml_remote_server *server; /* [opts.n_url] */
    char *headers;
    pthread_t thread;
    ml_loop *loop;
    ml_http_client *client;
    ml_remote_call *first; /* on the loop's thread only */

    pthread_mutex_t lock; /* of all below */
    uint64_t n_ticket;
    ml_gen_stats stats;
    ml_watch_fn *watch;
    void *watch_ud;
};

/* remote_text.c */
/* The body of /generate for a request. */
void ml_remote_write(ml_text *out, const ml_remote_opts *o, const ml_gen_request *r,
                     uint64_t ticket);
/* What a server answered, as an update whose arrays are in the arena. */
ml_status ml_remote_read(ml_gen_update *out, ml_arena *a, const ml_gen_request *r,
                         ml_str reply, const char *url, ml_err *err);

/* remote_control.c */
/* The same request to every server; returns when all have answered, with the first that failed.
 * Not from the loop's thread. */
ml_status ml_remote_tell_all(ml_remote *r, const char *path, const char *body, ml_err *err);

#endif
