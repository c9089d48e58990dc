/* local_priv.h - declarations shared by local.c, which runs the engine's thread,
 * local_orders.c and local_commands.c, which has the operations between steps. */
#ifndef ML_GEN_LOCAL_PRIV_H
#define ML_GEN_LOCAL_PRIV_H

#include <pthread.h>

#include "gen/rank_group.h"
#include "gen/local.h"
#include "gen/weight_link.h"
#include "model/weight_inbox.h"

/* A set of weights, loaded or dummy, that this generator owns. */
typedef struct ml_weight_set {
    ml_weights w;
    ml_arena arena;
    bool received; /* over TCP: no directory has these weights */
} ml_weight_set;

/* A process that trains, which this engine gets weights from. */
typedef struct ml_local_group {
    struct ml_local_group *next;
    char name[ML_WEIGHT_MAX_GROUP + 1];
    ml_weight_link link;
} ml_local_group;

/* The set of an update of several requests, from begin to end. */
typedef struct ml_incoming {
    ml_weight_set *set; /* NULL: there is none */
    ml_weight_inbox inbox;
    char version[80]; /* to ask for */
} ml_incoming;

typedef struct ml_local ml_local;

/* An operation that another thread wants run between steps; on that thread's stack. */
typedef enum ml_command_kind {
    ML_DO_ABORT_ALL,
    ML_DO_PAUSE,
    ML_DO_FLUSH,
    ML_DO_LOAD,
    ML_DO_RELEASE,
    ML_DO_TAKE,
    ML_DO_SWITCH,
    ML_DO_GROUP,
    ML_DO_ADAPTER,
    ML_DO_EMBED,
    ML_DO_SET_STEP_END, /* concerns the first rank only */
} ml_command_kind;

typedef struct ml_command ml_command;
struct ml_command {
    ml_command *next;
    ml_command_kind kind;
    bool done;
    bool received; /* from the first rank: in memory of its own */
    ml_status st;
    ml_err *err;
    /* arguments; each operation uses some */
    const ml_weights *weights;
    ml_weight_set *set;
    char *dir; /* of a load, or the JSON of a group's operation: the generator's after
                  success */
    ml_step_end_fn *step_end;
    void *ud;
    uint64_t version;
    ml_switch how;
    ml_group_op op;
    int32_t slot;
    uint64_t crc64; /* of the base, if flag[1] */
    bool flag[2];
    const ml_embed_request *embed;
};

/* The adapters that requests name. */
typedef struct ml_local_adapters {
    ml_lora *lora;             /* [n]; without parameters: an empty slot */
    const ml_lora_site **site; /* [n] as the table has them */
    int32_t n;
    ml_lora_table table;
    const ml_weights *checked; /* whose checksum crc64 is, or NULL */
    uint64_t crc64;
} ml_local_adapters;

struct ml_local {
    ml_gen gen; /* first, so that the ml_gen * can be cast to ml_local * */
    ml_local_opts opts;
    ml_rank_group group;
    ml_engine *engine;
    ml_weight_set *own; /* the weights in use, or NULL: they are the caller's */
    char *dir;          /* checkpoint of `own`; NULL: dummy weights */
    ml_local_group *groups;
    ml_incoming incoming;
    ml_local_adapters adapters;
    ml_embedder *embedder; /* NULL: none */
    bool paused, no_kv, no_weights;
    ml_command *retry; /* commands to run again after a step */
    ml_step_end_fn *step_end;
    void *step_end_ud;
    int64_t n_ended; /* requests that had ended at the last call_step_end */

    pthread_t thread;
    pthread_mutex_t lock; /* guards the fields below */
    pthread_cond_t wake, done;
    ml_request_list inbox;
    uint64_t n_ticket;
    int32_t n_queued;   /* in the inbox and in the engine's queue, as of the last step */
    ml_gen_stats stats; /* as of the last step */
    uint64_t *abort;    /* [n_abort] tickets */
    int32_t n_abort, cap_abort;
    ml_command *first, *last;
    bool notified; /* the step-end callback is to run before the next step */
    bool stopping;
    ml_err failed; /* the ranks can no longer work together */
};

static inline bool ml_local_may_step(const ml_local *l) {
    return !l->paused && !l->no_kv && !l->no_weights;
}

/* What the engine's thread does before a step. */
typedef struct ml_order {
    ml_request_list requests;
    uint64_t *abort; /* [n_abort] tickets; owned */
    int32_t n_abort;
    ml_command *first;
    bool stop;
} ml_order;

/* local_orders.c: from the first rank to the others. */
ml_status ml_order_send(ml_local *l, const ml_order *o, ml_err *err);
ml_status ml_order_receive(ml_local *l, ml_order *o, ml_err *err);

/* local_commands.c: ML_EAGAIN: to be run again after a step. */
ml_status ml_local_do(ml_local *l, ml_command *c);
/* Replaces the weights by c->set, which it takes over on success. */
ml_status ml_local_replace(ml_local *l, ml_command *c);

/* The generator takes a set into use: adapters apply to it. */
void ml_local_adopt(ml_local *l, ml_weight_set *s);
void ml_local_close_adapters(ml_local *l);

/* local_group.c: weights over TCP. */
ml_status ml_local_do_group(ml_local *l, ml_command *c);
void ml_local_leave_groups(ml_local *l);
/* Reads an adapter that a request (JSON) describes from a group. */
ml_status ml_local_receive_adapter(ml_local *l, ml_lora *out, const char *json,
                                   ml_err *err);

/* version: of the new set.  dir NULL: dummy weights. */
ml_status ml_weight_set_new(ml_weight_set **out, const ml_local_opts *o, const char *dir,
                            uint64_t version, ml_err *err);
void ml_weight_set_free(ml_weight_set *s); /* NULL is allowed */

#endif
