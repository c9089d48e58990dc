/* admin_priv.h - tasks of the admin thread, which changes the server's state (admin.c,
 * admin_weights.c).
 *
 * thread: the event loop's creates and answers a task, the admin thread runs it. */
#ifndef ML_SERVE_ADMIN_PRIV_H
#define ML_SERVE_ADMIN_PRIV_H

#include <pthread.h>

#include "serve/serve_priv.h"

typedef enum ml_pause_mode {
    ML_NOT_PAUSED,
    ML_PAUSE_ABORT,
    ML_PAUSE_RETRACT,
    ML_PAUSE_IN_PLACE
} ml_pause_mode;

typedef struct ml_admin_task ml_admin_task;

struct ml_admin_task {
    ml_arena arena;
    ml_server *server;
    ml_http_call *call; /* NULL: the client has disconnected, or there is none; the loop's
                           thread only */
    ml_admin_task *next;
    void (*run)(ml_admin *a, ml_admin_task *t);       /* on the admin thread */
    void (*reply)(ml_admin_task *t, ml_http_call *c); /* on the loop's thread */
    void (*done)(ml_admin_task *t); /* the same, for a task of no client; or NULL */
    ml_status st;
    ml_err err;
    bool again; /* an error that another attempt may not have */
    /* arguments and results; each task uses some of them */
    ml_pause_mode mode;
    const char *dir, *source;
    ml_str label;
    uint64_t version;
    int64_t published; /* the publisher's version number; -1: not given */
    ml_text_work work;
    ml_group_op op;
    struct ml_adapter *adapter;
    const char *crc64;
    int32_t slot;
    bool abort_all, prefix, kv, weights, flushed;
    int64_t n_paused;
};

struct ml_admin {
    ml_server *server;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    ml_admin_task *first, **last;
    bool stopping;
    ml_pause_mode mode; /* the admin thread only */
};

ml_admin_task *ml_admin_new_task(ml_server *s, ml_http_call *c);
void ml_admin_free_task(ml_admin_task *t);
/* Reads the fields of the body; an empty body is allowed if `optional`. */
ml_status ml_admin_read(ml_admin_task *t, void *out, const ml_field *rows, bool optional,
                        ml_err *err);
/* Queues the task; its run and then its reply will be called. */
void ml_admin_hand_over(ml_admin_task *t);
/* Replies with an error and frees the task. */
void ml_admin_refuse(ml_admin_task *t, const ml_err *err);
/* {"success": ..., "message": ...} and the members that `more` writes. */
void ml_admin_reply(ml_admin_task *t, ml_http_call *c, const char *message,
                    void (*more)(const ml_admin_task *t, ml_json_out *o));
/* How a change of the weights treats requests in flight. */
ml_switch ml_admin_switch(const ml_admin *a, const ml_admin_task *t);
/* Aborts all requests in flight. */
void ml_admin_abort_all(ml_server *s);

#endif
