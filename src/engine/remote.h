/* remote.h - servers behind HTTP as an ml_gen: `miles serve`, real SGLang, or a router in front of
 * either.
 *
 * A request is one POST to /generate, answered when it has ended; so its function is called
 * once.  What fails on the way (no connection, a status that is not 200, a broken reply) is
 * tried again, on the server with the least to do; when attempts run out the request ends
 * with ML_FINISH_ABORT and the sentence.  A reply is checked against the request before it is
 * used: lengths of lists, token ids, log-probabilities, versions.  A server whose
 * replies fail this check again and again is asked no more; when that is so of all of them,
 * generation ends.  Pausing, weights and caches concern all
 * servers; those behind a router are asked from it.
 *
 * A server that hangs is treated as one that died (remote_query.c).
 *
 * Once weights were loaded, a server that fails or answers with older ones is lost: it gets
 * nothing more to do until it has been told to load them again.  So one that was killed and
 * started anew goes on where it was, and no answer of other weights is ever used.
 *
 * thread: as gen.h says; a thread of its own carries the connections. */
#ifndef ML_ENGINE_REMOTE_H
#define ML_ENGINE_REMOTE_H

#include "engine/gen.h"
#include "model/spec.h"

typedef struct ml_remote_opts {
    const char *const *url; /* [n_url] "http://host:port" */
    int32_t n_url;
    const char
        *api_key; /* or NULL; sent to these URLs, not to workers that a router lists */
    /* The model: token ids and the number of choices in replies must be its own.  NULL: any
     * are taken. */
    const ml_spec *spec;
    bool sglang; /* real SGLang: what only our servers know is not sent.  The seed of a
                            sample is then one number made of its seed and sample */
    int32_t n_attempt; /* 0: for ever; what is awaited is said in a warning */
    double retry_s, connect_s;
    double idle_s; /* how long a server may say nothing, generation included; 0: for ever */
    /* How long a request may take at one server, how long all servers may be lost, and how long
     * new weights may take to arrive; 0: for ever. */
    double request_s;
    double check_s; /* servers that owe an answer are asked for their health; 0: not */
    double check_timeout_s; /* one that does not answer this is lost */
    double warn_s;          /* without an answer, before that is said; 0: never */
} ml_remote_opts;

ml_status ml_remote_open(ml_gen **out, const ml_remote_opts *o, ml_err *err);

/* ML_EPEER: a server does not answer, or says that it is not well. */
ml_status ml_remote_check(ml_gen *g, ml_err *err);

/* Weights that servers copy to their own machine before they load them, from versions that
 * somebody publishes (io/version_dir.h). */
typedef struct ml_pull {
    const char *local, *source; /* the copy, as servers name it; where versions are */
    int64_t version;
} ml_pull;

/* Brings the copies there; requests go on meanwhile.  ML_EPEER: one cannot be brought there. */
ml_status ml_remote_pull(ml_gen *g, const ml_pull *p, ml_err *err);
/* As ml_gen's load, from the copies. */
ml_status ml_remote_load_pulled(ml_gen *g, const ml_pull *p, uint64_t version,
                                ml_switch how, ml_err *err);

/* Another process, at another address, has taken the place of a server: it gets the weights,
 * then what was asked of the one before. */
void ml_remote_move(ml_gen *g, int32_t server, const char *url);

/* A server will not come back: what cannot be answered elsewhere ends with this sentence, and
 * nothing more is taken. */
void ml_remote_give_up(ml_gen *g, const char *why);

#endif
