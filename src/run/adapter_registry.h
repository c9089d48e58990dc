/* adapter_registry.h - the adapters of a multi-LoRA service: their configuration, and where each
 * is in its life, PENDING -> ACTIVE -> RETIRING -> CLEANUP -> COMPLETED, as in Miles.
 *
 * An adapter holds a slot until it is COMPLETED.  Versions count the publications of a slot and
 * are never reset, so that a slot and a version name one state of one adapter.  The registry
 * is kept in a file: a service that starts again goes on with the adapters it had.
 *
 * thread: any; the caller holds a lock. */
#ifndef ML_RUN_ADAPTER_REGISTRY_H
#define ML_RUN_ADAPTER_REGISTRY_H

#include "base/json.h"
#include "base/json_out.h"
#include "run/opts.h"

typedef enum ml_adapter_state {
    ML_ADAPTER_PENDING,  /* registered, not generating yet */
    ML_ADAPTER_ACTIVE,   /* it generates and trains */
    ML_ADAPTER_RETIRING, /* it ends after the current step */
    ML_ADAPTER_CLEANUP,  /* it has ended; its slot is being freed */
    ML_ADAPTER_COMPLETED
} ml_adapter_state;

/* An adapter's configuration, with Miles' names.  NULL and 0: not given; ml_adapter_resolve
 * fills in what the flags say. */
typedef struct ml_adapter_config {
    const char *data;
    int64_t rank;
    double alpha;
    int64_t rollout_batch_size, n_samples_per_prompt;
    const char *save;
    const char *input_key, *label_key, *metadata_key;
    const char *rm_type, *custom_rm_path;
    int64_t num_step, num_epoch;
} ml_adapter_config;

typedef struct ml_adapter_record {
    struct ml_adapter_record *next; /* in the order of registration */
    ml_arena arena;                 /* owns the strings */
    const char *name;
    ml_adapter_config config;
    int32_t slot;
    ml_adapter_state state;
    int64_t step;      /* taken so far */
    int64_t last_step; /* at which it ends; 0: not known yet */
    const char *id;    /* of this registration: no other one has it */
    const char *error; /* why it ended; NULL: it reached its last step, or was removed */
    void *run;         /* the caller's; NULL: none */
} ml_adapter_record;

typedef struct ml_adapter_registry {
    ml_adapter_record *first;
    int32_t n_slot;
    const char *file; /* NULL: the registry is not kept */
    int64_t *version; /* [n_slot] */
    bool *taken;      /* [n_slot] */
} ml_adapter_registry;

ml_status ml_adapter_registry_open(ml_adapter_registry *r, int32_t n_slot, const char *file,
                                   ml_err *err);
void ml_adapter_registry_close(ml_adapter_registry *r); /* zeros are allowed */

/* Reads a configuration: an object of a request or of a file.  Strings are in the arena.
 * A member that is missing or has another type: ML_EFORMAT, and *member is its name. */
ml_status ml_adapter_config_read(ml_adapter_config *out, const ml_json *object, ml_arena *a,
                                 const char **member, ml_err *err);
/* The same of a YAML file. */
ml_status ml_adapter_config_read_file(ml_adapter_config *out, const char *path, ml_arena *a,
                                      ml_err *err);

/* Fills in defaults from the flags and checks the result: ML_EUSAGE. */
ml_status ml_adapter_resolve(ml_adapter_config *c, ml_arena *a, const char *name,
                             const ml_run_opts *flags, ml_err *err);

/* Copies a resolved configuration into a new record, which is PENDING.  ML_EUSAGE: the name is
 * not valid, or in use; or the directory is.  ML_ENOMEM: no slot is free. */
ml_status ml_adapter_register(ml_adapter_registry *r, ml_adapter_record **out,
                              const char *name, const ml_adapter_config *c, ml_err *err);
/* Removes a record that was just registered. */
void ml_adapter_forget(ml_adapter_registry *r, ml_adapter_record *x);

ml_adapter_record *ml_adapter_find(const ml_adapter_registry *r, ml_str name); /* or NULL */
bool ml_adapter_live(const ml_adapter_record *x); /* it holds a slot */
const char *ml_adapter_state_word(ml_adapter_state s);

/* It has no slot any more; the oldest of many completed records are forgotten. */
void ml_adapter_complete(ml_adapter_registry *r, ml_adapter_record *x);

/* Writes the file. */
ml_status ml_adapter_registry_save(const ml_adapter_registry *r, ml_err *err);

/* An object with the fields of Miles' reply, and "error" if it ended with one. */
void ml_adapter_write(ml_json_out *o, const ml_adapter_registry *r,
                      const ml_adapter_record *x);

#endif
