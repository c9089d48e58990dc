/* tinker_priv.h - declarations shared by the files of this module. */
#ifndef ML_TINKER_TINKER_PRIV_H
#define ML_TINKER_TINKER_PRIV_H

#include "base/job_queue.h"
#include "base/json.h"
#include "base/json_out.h"
#include "net/http_server.h"
#include "tinker/tinker.h"

typedef struct ml_future ml_future;
typedef struct ml_session_client ml_session_client;
typedef struct ml_model_client ml_model_client;
typedef struct ml_sampler ml_sampler;
typedef struct ml_sampler_adapter ml_sampler_adapter;
typedef struct ml_sample_job ml_sample_job;
typedef struct ml_tinker_work ml_tinker_work;

/* --- futures (futures.c) ---------------------------------------------------------- */

/* The result of a request, from its acceptance until it is forgotten. */
struct ml_future {
    ml_future *next;  /* in its bucket */
    ml_future *newer; /* in the order of completion */
    char *id;
    bool done, failed, proto, read;
    ml_text body;                 /* the reply */
    struct ml_future_wait *waits; /* calls that wait for it */
    ml_sample_job *job;           /* that computes it, if it can be cancelled */
};

enum { ML_FUTURE_BUCKETS = 4096 };

typedef struct ml_futures {
    ml_future *bucket[ML_FUTURE_BUCKETS];
    ml_future *oldest, *newest; /* complete ones */
    size_t bytes;               /* of their replies */
} ml_futures;

ml_future *ml_future_find(ml_tinker *t, const char *id);
ml_future *ml_future_new(ml_tinker *t, const char *id);
/* Completes it with a reply, whose text it takes over, or with an error. */
void ml_future_finish(ml_tinker *t, ml_future *f, ml_text *body, bool proto);
void ml_future_fail(ml_tinker *t, ml_future *f, const char *why, bool user);
void ml_futures_close(ml_tinker *t);
void ml_tinker_retrieve(ml_tinker *t, ml_http_call *c);

/* --- the thread that trains (tinker.c) ---------------------------------------------- */

/* Runs on the thread that trains, then on the loop. */
struct ml_tinker_work {
    ml_job job;
    ml_tinker *t;
    void (*run)(ml_tinker_work *w);
    void (*done)(ml_tinker_work *w); /* frees it */
    ml_tinker_work *later, *earlier; /* in the list of all */
    ml_tinker_work *next;            /* in the list of a model's waiting requests */
    ml_future *future;
    ml_model_client *model;
    bool needs_slot; /* it fails if the model has none */
    ml_sampler_adapter *adapter;
    int64_t seq;
    const char *path;    /* of files, or NULL */
    const ml_json *body; /* the request, in the arena; NULL: it is `raw` */
    ml_text raw;
    ml_text reply;
    bool proto;
    ml_status st;
    ml_err err;
    ml_arena arena;
};

ml_tinker_work *ml_tinker_work_new(ml_tinker *t, void (*run)(ml_tinker_work *w),
                                   void (*done)(ml_tinker_work *w));
void ml_tinker_work_post(ml_tinker_work *w);
void ml_tinker_work_free(ml_tinker_work *w);
/* Completes the work's future from st, err and reply, and frees it. */
void ml_tinker_work_answer(ml_tinker_work *w);

/* --- sessions and models ------------------------------------------------------------ */

struct ml_session_client {
    ml_session_client *next;
    char *id;
    double seen_s; /* clock of its last request */
};

/* A training client: an adapter in a slot. */
struct ml_model_client {
    ml_model_client *next;
    char *id; /* SESSION:train:NUMBER, also the id of the training run */
    ml_session_client *session;
    ml_lora_slot *slot; /* the training thread's; NULL: not created */
    int32_t rank;
    bool attn, mlp;
    int64_t next_seq;        /* of the next request to run */
    ml_tinker_work *waiting; /* later ones, ascending */
    int64_t n_ephemeral;     /* adapters saved without a name */
};

/* A sampling client: the base, or saved adapter weights. */
struct ml_sampler {
    ml_sampler *next;
    char *id;
    ml_session_client *session;
    int64_t number; /* within the session */
    char *path;     /* tinker://..., or NULL: the base */
    char *dir;      /* of the adapter; NULL: the base */
};

struct ml_tinker {
    ml_tinker_opts opts;
    ml_access access;
    ml_loop *loop;
    ml_http_server *http;
    ml_job_queue *queue;
    ml_lora_slots *slots;
    ml_timer *clock;
    ml_futures futures;
    ml_session_client *sessions;
    ml_model_client *models;
    ml_sampler *samplers;
    ml_sampler_adapter *adapters;
    ml_sample_job *jobs;
    ml_tinker_work *works; /* all that exist */
    int32_t n_adapter_id;
    uint64_t n_use;
    int64_t n_work; /* posted and not done */
    bool draining, closing;
};

ml_session_client *ml_tinker_session(ml_tinker *t, ml_str id);
ml_model_client *ml_tinker_model(ml_tinker *t, ml_str id);
ml_sampler *ml_tinker_sampler(ml_tinker *t, ml_str id);
/* Closes what belongs to a session, and forgets it. */
void ml_tinker_end_session(ml_tinker *t, ml_session_client *s);

/* models.c: requests of training clients */
void ml_tinker_create_model(ml_tinker *t, ml_http_call *c, const ml_json *body);
void ml_tinker_load_weights(ml_tinker *t, ml_http_call *c, const ml_json *body);
void ml_tinker_get_info(ml_tinker *t, ml_http_call *c, const ml_json *body);
void ml_tinker_forward_backward(ml_tinker *t, ml_http_call *c);
/* optim_step, save_weights and others: by the last part of the path. */
void ml_tinker_model_request(ml_tinker *t, ml_http_call *c, const ml_json *body);
void ml_tinker_close_model(ml_tinker *t, ml_model_client *m);

/* model_files.c: those that write and read files, on the thread that trains; and the end of a
 * save for sampling, on the loop */
void ml_tinker_run_save(ml_tinker_work *w);
void ml_tinker_run_save_external(ml_tinker_work *w);
void ml_tinker_run_save_sampler(ml_tinker_work *w);
void ml_tinker_run_load(ml_tinker_work *w);
void ml_tinker_sampler_saved(ml_tinker_work *w);

/* samples.c: requests of sampling clients */
void ml_tinker_create_sampler(ml_tinker *t, ml_http_call *c, const ml_json *body);
void ml_tinker_get_sampler(ml_tinker *t, ml_http_call *c, ml_str id);
void ml_tinker_sample(ml_tinker *t, ml_http_call *c, const ml_json *body);
void ml_tinker_cancel(ml_tinker *t, ml_http_call *c, const ml_json *body);
ml_sampler *ml_tinker_add_sampler(ml_tinker *t, ml_session_client *s, int64_t number,
                                  const char *path, const char *dir);
/* The files of an adapter are replaced: samplers load them again. */
void ml_tinker_forget_adapter(ml_tinker *t, const char *dir);
void ml_tinker_samples_close(ml_tinker *t);

/* --- files (store.c) ------------------------------------------------------------------ */

typedef enum ml_store_kind {
    ML_STORE_STATE,   /* weights: an adapter with its optimizer */
    ML_STORE_SAMPLER, /* sampler_weights: an adapter */
    ML_STORE_EXTERNAL /* external_weights: the same */
} ml_store_kind;

/* DIR/RUN/KIND/NAME, which tinker://RUN/KIND/NAME names. */
typedef struct ml_store_path {
    ml_store_kind kind;
    const char *run, *name, *dir, *uri;
} ml_store_path;

ml_status ml_store_open(const char *dir, ml_err *err);
/* Reads a URI; in the arena. */
ml_status ml_store_parse(ml_store_path *out, ml_arena *a, const char *dir, ml_str uri,
                         ml_err *err);
/* The path of a new checkpoint; checks the name. */
ml_status ml_store_path_of(ml_store_path *out, ml_arena *a, const char *dir,
                           const char *run, ml_store_kind kind, ml_str name, ml_err *err);
bool ml_store_exists(const ml_store_path *p);
/* Writes DIR/RUN/run.json. */
ml_status ml_store_add_run(ml_tinker *t, const ml_model_client *m, const ml_json *metadata,
                           ml_err *err);
/* Enters a complete checkpoint, with the client's metadata. */
ml_status ml_store_add(const ml_store_path *p, const ml_json *metadata, ml_err *err);
/* What clients need to create a training client for a checkpoint. */
ml_status ml_store_info(ml_text *out, ml_tinker *t, ml_str uri, ml_err *err);
/* GET and DELETE of training_runs and checkpoints; false: not such a path. */
bool ml_store_serve(ml_tinker *t, ml_http_call *c, ml_str rest);

/* --- replies (tinker.c) --------------------------------------------------------------- */

void ml_tinker_reply(ml_http_call *c, int status, ml_text *body); /* releases it */
void ml_tinker_refuse(ml_http_call *c, int status, const char *why);
void ml_tinker_reply_future(ml_http_call *c, const ml_future *f, const char *model_id);
/* A string of a request; empty: absent. */
ml_str ml_tinker_text(const ml_json *body, const char *key);
int64_t ml_tinker_number(const ml_json *body, const char *key, int64_t absent);
bool ml_tinker_true(const ml_json *body, const char *key, bool absent);

#endif
