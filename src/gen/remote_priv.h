/* remote_priv.h - declarations shared by the files of the remote generator. */
#ifndef ML_GEN_REMOTE_PRIV_H
#define ML_GEN_REMOTE_PRIV_H

#include <pthread.h>

#include "base/arena.h"
#include "gen/remote.h"
#include "net/http_client.h"

#define ML_REMOTE_JSON "Content-Type: application/json\n" /* headers without the API key */

typedef struct ml_remote ml_remote;

/* One HTTP exchange with one server, on the loop's thread.  Zeros, with done and ud, are a
 * query that was not started. */
typedef struct ml_remote_query {
    struct ml_remote_query *prev, *next; /* of the same peer */
    struct ml_remote_peer *peer;
    const char *path;
    bool generates;   /* /generate: no answer is due while generation is paused */
    ml_http_job *job; /* NULL: not running */
    int status;
    ml_text reply;
    void (*done)(void *ud, const ml_err *err); /* as ml_http_fns */
    void *ud;
} ml_remote_query;

/* The other side of queries: a server, or a worker behind a router. */
typedef struct ml_remote_peer {
    struct ml_remote_peer *next;
    ml_remote *remote;
    char *url;
    ml_remote_query *first; /* its unanswered queries */
    int32_t n_query;
    bool is_router;
    double quiet_since; /* time of its last answer, or of the first unanswered query */
    double warn_after;  /* seconds without an answer */
    double check_at;    /* time of the next health check */
    ml_http_job *probe;
    int status;    /* of the probe's reply */
    int32_t n_ill; /* consecutive health checks with status >= 500 */
} ml_remote_peer;

/* A request in flight. */
typedef struct ml_remote_call {
    struct ml_remote_call *prev, *next;
    ml_remote *remote;
    uint64_t ticket;
    ml_gen_fn *fn;
    void *ud;
    ml_arena arena; /* the strings of the request */
    ml_gen_request params;
    ml_text body;
    ml_remote_query query;
    size_t max_reply; /* bytes */
    int32_t server;   /* the server it was sent to, or -1: between attempts */
    int32_t n_failed;
    int32_t n_stale;  /* replies from older weights */
    uint64_t version; /* of the weights at submission: older answers are refused */
    bool aborted;     /* it is not retried */
    bool answered;    /* while paused: the answer is processed on resume */
    bool broken;      /* the exchange failed; `why` has the reason */
    ml_err why;
    ml_timer *timer;
} ml_remote_call;

/* Requests that bring a server to the current weights, one after the other.  The strings and
 * the array are in the arena of the generator. */
typedef struct ml_remote_steps {
    const ml_remote_step *step; /* [n] */
    int32_t n;
} ml_remote_steps;

typedef struct ml_remote_server {
    ml_remote *remote;
    char *url;       /* changes on the loop's thread, under the mutex */
    char *next_url;  /* under the mutex: the address it has moved to, or NULL */
    char *headers;   /* of requests to it, with its key */
    const char *key; /* NULL: none */
    int32_t n_call;
    int64_t n_sent; /* requests so far */
    bool lost;      /* it may have outdated weights, or be dead; changes under the mutex */
    bool banned; /* too many invalid replies: not used any more; changes under the mutex */
    int32_t n_bad; /* consecutive invalid replies */
    bool refused;  /* it refused to load the weights, and the warning was logged */
    ml_timer *timer;
    ml_remote_query query;  /* that reloads its weights */
    ml_remote_steps reload; /* the requests of this attempt, */
    int32_t next_step;      /* and the next of them */
} ml_remote_server;

struct ml_remote {
    ml_gen gen; /* first */
    ml_arena arena;
    ml_remote_opts opts;
    ml_remote_server
        *server; /* [opts.n_url] of ML_REMOTE_MOST_SERVERS; more are added on the
                                 loop's thread, under the mutex */
    ml_remote_watch_fn *watch; /* on the loop's thread only */
    void *watch_ud;
    pthread_t thread;
    ml_loop *loop;
    ml_http_client *client;
    ml_remote_call *first;    /* on the loop's thread only */
    ml_remote_peer *peers;    /* likewise */
    ml_timer *tick;           /* likewise */
    double failing_since;     /* likewise: start of failures without any answer; 0: none */
    double failing_warn;      /* likewise: seconds of failures before the next warning */
    bool paused;              /* likewise: paused, no callback is invoked */
    bool notified;            /* likewise: ml_gen.notify was called while paused */
    ml_step_end_fn *step_end; /* likewise */
    void *step_end_ud;

    pthread_mutex_t lock; /* guards the fields below */
    uint64_t n_ticket;
    struct {
        ml_remote_steps steps; /* for a server that comes back; none: none was loaded yet */
        uint64_t newest;       /* newest version that servers were told to load */
    } weights;
    ml_gen_stats stats;
    bool given_up;
    ml_err given_up_why;
};

/* remote_text.c */
/* The body of /generate for a request. */
void ml_remote_write(ml_text *out, const ml_remote_opts *o, const ml_gen_request *r,
                     uint64_t ticket);
/* Parses a reply into an update whose arrays are in the arena.  ML_EFORMAT: it does not
 * match the request, which the options of its generator wrote. */
ml_status ml_remote_read(ml_gen_update *out, ml_arena *a, const ml_gen_request *r,
                         const ml_remote_opts *o, ml_str reply, const char *url,
                         ml_err *err);
/* Upper bound of the bytes of a reply to this request. */
size_t ml_remote_reply_bytes(const ml_gen_request *r, const ml_remote_opts *o);

enum {
    ML_REMOTE_MOST_SERVERS = 4096,
    ML_REMOTE_CONTROL_BYTES = 1 << 20, /* limit of a reply to anything but /generate */
    ML_REMOTE_MOST_BAD = 8             /* invalid replies until the sender is given up */
};
#define ML_REMOTE_WORKERS_PATH "/list_workers" /* known to routers only */

/* remote_query.c, on the loop's thread */
/* Starts a query; of `ask`, only method, body and max_body are used.  Calls done once,
 * possibly before returning, unless the query is cancelled.  path must outlive q. */
void ml_remote_query_start(ml_remote *r, ml_remote_query *q, const ml_http_request *what,
                           const char *server, const char *path);
void ml_remote_query_cancel(ml_remote_query *q); /* no effect if it is not running */
void ml_remote_query_release(ml_remote_query *q);
void ml_remote_probe_start(ml_remote *r);
void ml_remote_probe_stop(ml_remote *r); /* open queries fail; the loop has ended */

/* remote.c, on the loop's thread */
/* After ml_remote_give_up: aborts the calls that are between attempts. */
void ml_remote_drop_waiting(void *remote);

/* remote_control.c */

/* Sends the same requests to every server, to each one after the other; returns when all
 * have answered, with the first failure: ML_EAGAIN for no connection or status >= 500,
 * ML_EPEER for a refusal.  done NULL: lost servers are skipped; they get the state when they
 * come back.  Otherwise servers that it lists are skipped, and those that succeed are added.
 * Not from the loop's thread. */
ml_status ml_remote_request_all(ml_remote *r, const char *method, ml_remote_steps steps,
                                ml_text *done, ml_err *err);
/* The same for one POST request to servers that are not lost. */
ml_status ml_remote_post_all(ml_remote *r, const char *path, const char *body);

/* remote.c: fills an unused server. */
void ml_remote_server_init(ml_remote *r, ml_remote_server *s, const char *url,
                           const char *key);

/* Runs a function on the loop's thread and waits for it. */
void ml_remote_run_on_loop(ml_remote *r, ml_loop_fn *fn, void *ud);

/* remote_weights.c */
ml_status ml_remote_load(ml_gen *g, const char *dir, uint64_t version, ml_switch how,
                         ml_err *err);

/* remote_server.c, on the loop's thread */
/* The server of a call; -1: none is usable. */
int32_t ml_remote_choose(const ml_remote *r, const ml_remote_call *c);
/* A server failed.  After a weight update, it is lost until it has loaded them again. */
void ml_remote_mark_lost(ml_remote *r, int32_t server, const char *why);
/* A server sent an invalid reply: after ML_REMOTE_MOST_BAD in a row it is banned. */
void ml_remote_bad_reply(ml_remote *r, int32_t server, const char *why);
/* A server that acknowledged new weights answered with older ones: after ML_REMOTE_MOST_BAD
 * such replies to one request, generation ends. */
void ml_remote_stale_reply(ml_remote_call *c, const char *why);
/* A request failed, for this reason.  Logs a warning when all requests fail for warn_s,
 * and ends generation after request_s. */
void ml_remote_failing(ml_remote *r, const char *why);
/* All servers have just loaded the weights. */
void ml_remote_mark_all_loaded(void *remote);
void ml_remote_cancel_reloads(ml_remote *r); /* the loop has ended */

/* On any thread: ML_EPEER with the reason after ml_remote_give_up. */
ml_status ml_remote_check_given_up(ml_remote *r, ml_err *err);

#endif
