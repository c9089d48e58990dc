/* remote.h - HTTP servers as an ml_gen: `miles serve`, real SGLang, or routers to either.
 *
 * A request is one POST to /generate, answered when generation has ended, so its callback
 * is called once.  A failed attempt (no connection, a status other than 200 and 400, a
 * broken reply) is retried on the least loaded server, whatever the policy; after the last
 * attempt, or status 400, the request ends with ML_FINISH_ABORT and the error message.
 * Replies are validated
 * against the request: lengths of lists, token ids, log-probabilities, versions.  A server
 * with several invalid replies in a row is banned; when all are banned, generation ends.
 * Pause, weight updates and cache flushes go to all servers and to the workers that a
 * router lists.
 *
 * A server that hangs is treated as one that died (remote_query.c).
 *
 * After the first weight update, a server that fails or answers with older weights is
 * lost: it gets no requests until it has loaded the current weights again.  So a server
 * that was killed and restarted rejoins, and answers from outdated weights are never used.
 *
 * thread: as in gen.h; a thread of its own runs the connections' event loop. */
#ifndef ML_GEN_REMOTE_H
#define ML_GEN_REMOTE_H

#include "gen/gen.h"
#include "model/spec.h"

/* A server, as a policy sees it. */
typedef struct ml_remote_choice {
    const char *url;
    bool usable;
    int64_t n_call, n_sent; /* requests in flight; sent so far */
} ml_remote_choice;

/* Selects the server of a request, whose body is given, or -1; on the generator's thread.
 * close, with the generator, may be NULL.  Zeros: the least loaded server. */
typedef struct ml_remote_policy {
    int32_t (*pick)(void *ud, const ml_remote_choice *server, int32_t n, ml_str body);
    void (*close)(void *ud);
    void *ud;
} ml_remote_policy;

typedef struct ml_remote_opts {
    const char *const *url; /* [n_url] "http://host:port" */
    int32_t n_url;
    const char *api_key; /* or NULL; not sent to workers that a router lists */
    /* The model that token ids and routing widths in replies are checked against.  NULL: no
     * such checks. */
    const ml_spec *spec;
    bool sglang; /* real SGLang: fields that only `miles serve` knows are not sent, and the
                            sampling seed is one number hashed from (seed, sample) */
    const char *adapter; /* the name that servers know the trained adapter by; NULL: none */
    /* With sglang: it knows "token_ids_logprob_positions", ids per position; otherwise the
     * ids of all positions are scored at each. */
    bool id_positions;
    int32_t n_attempt; /* 0: no limit; warnings give the cause of the failures */
    double retry_s, connect_s;
    double idle_s; /* limit without any bytes received, generation included; 0: none */
    /* Limit of a request at one server, of the time in which no server answers, and of a
     * weight update; 0: none. */
    double request_s;
    double check_s; /* interval of health checks of servers with open requests; 0: none */
    double check_timeout_s; /* a server that exceeds it in a health check is lost */
    double warn_s;          /* time without an answer before a warning; 0: never */
    ml_remote_policy policy;
} ml_remote_opts;

ml_status ml_remote_open(ml_gen **out, const ml_remote_opts *o, ml_err *err);

/* ML_EPEER: a server does not answer, or reports that it is unhealthy. */
ml_status ml_remote_check(ml_gen *g, ml_err *err);

/* Weights that servers copy to their own machine before loading them, from a directory of
 * published versions (io/version_dir.h). */
typedef struct ml_pull {
    const char *local, *source; /* directory of the copy on a server; of the versions */
    int64_t version;
} ml_pull;

/* Has all servers copy a version; generation continues meanwhile.  ML_EPEER: one cannot. */
ml_status ml_remote_pull(ml_gen *g, const ml_pull *p, ml_err *err);
/* Like ml_gen's load, from the copies. */
ml_status ml_remote_load_pulled(ml_gen *g, const ml_pull *p, uint64_t version,
                                ml_switch how, ml_err *err);

/* A POST request. */
typedef struct ml_remote_step {
    const char *path, *body;
} ml_remote_step;

/* Has all servers take new weights by these requests, each server one after the other (a
 * server that fails begins again with the first), and a server that comes back later too.
 * The steps must outlive the generator. */
ml_status ml_remote_update(ml_gen *g, const ml_remote_step *step, int32_t n,
                           uint64_t version, ml_err *err);

/* A new process at another address has replaced a server: it gets the weights, then the
 * requests of its predecessor. */
void ml_remote_move(ml_gen *g, int32_t server, const char *url);

/* Adds a server, which gets requests when it has the current weights; or removes one, whose
 * requests in flight may still be answered.  key: sent to it, or NULL. */
void ml_remote_add(ml_gen *g, const char *url, const char *key);
void ml_remote_remove(ml_gen *g, const char *url);

/* Told on the generator's thread whenever a server has the current weights (again), or is lost,
 * moved or removed.  NULL ends it; after return the previous fn is no longer called. */
typedef void ml_remote_watch_fn(void *ud, const char *url, const char *key, bool usable);
void ml_remote_watch(ml_gen *g, ml_remote_watch_fn *fn, void *ud);

/* Ends generation, for instance because a server will not come back: requests between
 * attempts end with this message, and submit fails from now on. */
void ml_remote_give_up(ml_gen *g, const char *why);

#endif
