/* remote_priv.h - what the files of the remote generator share. */
#ifndef ML_ENGINE_REMOTE_PRIV_H
#define ML_ENGINE_REMOTE_PRIV_H

#include <pthread.h>

#include "base/arena.h"
#include "engine/remote.h"
#include "net/http_client.h"

#define ML_REMOTE_JSON "Content-Type: application/json\n" /* headers without the key */

typedef struct ml_remote ml_remote;

/* One question to one server, on the loop's thread.  Zeros, with done and ud, are one that was
 * not asked yet. */
typedef struct ml_remote_query {
    struct ml_remote_query *prev, *next; /* of the same peer */
    struct ml_remote_peer *peer;
    const char *path;
    bool generates;   /* it is not late while generation is paused */
    ml_http_job *job; /* NULL: not under way */
    int status;
    ml_text reply;
    void (*done)(void *ud, const ml_err *err); /* as ml_http_fns */
    void *ud;
} ml_remote_query;

/* Who is asked: a server, or a worker behind a router. */
typedef struct ml_remote_peer {
    struct ml_remote_peer *next;
    ml_remote *remote;
    char *url;
    ml_remote_query *first; /* what it owes */
    int32_t n_query;
    bool is_router;
    double quiet_since; /* its last answer, or the first thing it owes */
    double warn_after;  /* seconds of quiet */
    double check_at;    /* when it is asked for its health */
    ml_http_job *probe;
    int status;    /* of the probe's reply */
    int32_t n_ill; /* times in a row that it said it is not well */
} ml_remote_peer;

/* A request under way. */
typedef struct ml_remote_call {
    struct ml_remote_call *prev, *next;
    ml_remote *remote;
    uint64_t ticket;
    ml_gen_fn *fn;
    void *ud;
    ml_arena arena; /* the strings of the request */
    ml_gen_request ask;
    ml_text body;
    ml_remote_query query;
    size_t max_reply; /* bytes */
    int32_t server;   /* where it is, or -1: between attempts */
    int32_t n_failed;
    int32_t n_stale;  /* replies of older weights */
    uint64_t version; /* of the weights when it was asked: an answer's are no older */
    bool aborted;     /* it is not tried again */
    bool answered;    /* while paused: to be looked at afterwards */
    bool broken;      /* there is no whole answer, for this reason: */
    ml_err why;
    ml_timer *timer;
} ml_remote_call;

typedef struct ml_remote_server {
    ml_remote *remote;
    char *url;      /* changes on the loop's thread, under the lock */
    char *next_url; /* under the lock: where it has moved to, or NULL */
    int32_t n_call;
    bool lost;     /* it may have other weights, or be gone; changes under the lock */
    bool banned;   /* it lies, and is not asked any more; changes under the lock */
    int32_t n_bad; /* replies in a row that were not what was asked for */
    bool refused;  /* it said no when it was told to load them, which was said */
    ml_timer *timer;
    ml_remote_query query; /* that brings it back */
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
    ml_remote_peer *peers; /* too */
    ml_timer *tick;        /* too */
    double failing_since; /* too: requests fail, and none was answered; 0: that is not so */
    double failing_warn;  /* too: seconds of it, before that is said */
    bool held;            /* too: no request's function is called */
    ml_step_end_fn *watch; /* too */
    void *watch_ud;

    pthread_mutex_t lock; /* of all below */
    uint64_t n_ticket;
    struct {
        const char *load; /* the body that loads them, or NULL: never were */
        const char *pull; /* the body of what comes before, or NULL: nothing does */
        uint64_t newest;  /* version that servers were ever told to load */
    } weights;
    ml_gen_stats stats;
    bool given_up;
    ml_err given_up_why;
};

/* remote_text.c */
/* The body of /generate for a request. */
void ml_remote_write(ml_text *out, const ml_remote_opts *o, const ml_gen_request *r,
                     uint64_t ticket);
/* What a server answered, as an update whose arrays are in the arena.  ML_EFORMAT: it is not
 * what was asked for.  spec may be NULL. */
ml_status ml_remote_read(ml_gen_update *out, ml_arena *a, const ml_gen_request *r,
                         const ml_spec *spec, ml_str reply, const char *url, ml_err *err);
/* The most bytes that a reply to this request can have. */
size_t ml_remote_reply_bytes(const ml_gen_request *r, const ml_spec *spec);

enum {
    ML_REMOTE_CONTROL_BYTES = 1 << 20, /* of a reply to anything but /generate */
    ML_REMOTE_MOST_BAD = 8             /* replies, before who sends them is given up */
};
#define ML_REMOTE_WORKERS_PATH "/list_workers" /* which a router answers */

/* remote_query.c, on the loop's thread */
/* Asks; method, body and max_body of the request count.  done comes once, perhaps from inside,
 * unless it is cancelled.  The path must live as long as the query. */
void ml_remote_query_start(ml_remote *r, ml_remote_query *q, const ml_http_request *ask,
                           const char *server, const char *path);
void ml_remote_query_cancel(ml_remote_query *q); /* one that is not under way is fine */
void ml_remote_query_release(ml_remote_query *q);
void ml_remote_watch_start(ml_remote *r);
void ml_remote_watch_stop(ml_remote *r); /* what is owed fails; the loop has ended */

/* remote.c, on the loop's thread */
/* Somebody gave up: calls that no server has end. */
void ml_remote_drop_waiting(void *remote);

/* remote_control.c */

/* The same request to every server; returns when all have answered, with the first that failed:
 * ML_EAGAIN when it could not be asked, or is not well; ML_EPEER when it said no.  Servers that
 * are lost, which are told everything when they come back, are left out unless lost_too is set.
 * Not from the loop's thread. */
ml_status ml_remote_tell_all(ml_remote *r, const char *method, const char *path,
                             const char *body, bool lost_too, ml_err *err);

/* Has something done on the loop's thread, and waits for it. */
void ml_remote_run_on_loop(ml_remote *r, ml_loop_fn *fn, void *ud);

/* remote_weights.c */
ml_status ml_remote_load(ml_gen *g, const char *dir, uint64_t version, ml_switch how,
                         ml_err *err);

/* remote_server.c, on the loop's thread */
/* The server with the least to do that is not lost, beginning with `from`; -1: none. */
int32_t ml_remote_choose(const ml_remote *r, int32_t from);
/* It failed.  Where weights were loaded it is lost, until it has loaded them again. */
void ml_remote_mark_lost(ml_remote *r, int32_t server, const char *why);
/* It answered, and not what was asked for: after some of these in a row it is asked no more. */
void ml_remote_bad_reply(ml_remote *r, int32_t server, const char *why);
/* It says that it has loaded weights, and answers with older ones: after some of these to one
 * request generation is given up. */
void ml_remote_stale_reply(ml_remote_call *c, const char *why);
/* A request failed, for this reason.  That all do for a while is said, and in the end generation
 * is given up. */
void ml_remote_failing(ml_remote *r, const char *why);
/* All have just loaded them. */
void ml_remote_mark_all_loaded(void *remote);
void ml_remote_cancel_reloads(ml_remote *r); /* the loop has ended */

/* On any thread: whether somebody gave up, and why. */
ml_status ml_remote_check_given_up(ml_remote *r, ml_err *err);

#endif
