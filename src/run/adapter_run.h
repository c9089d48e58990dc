/* adapter_run.h - the training of one adapter of a multi-LoRA service: a run of its own, with
 * data, rewards, optimizer, schedule, directory and thread, on the base and the engine of all.
 *
 * Runs generate at the same time, and train in turn: gradients, optimizer state and the engine's
 * copy of an adapter exist for each, the plans of training with their activations once.  Data
 * for a step is generated with the adapter before the previous one (prefetch.h).  Nothing that
 * a run computes depends on the others: its files are those of a train-async run alone.
 *
 * thread: opened and closed by one owner; the run has a thread of its own in between. */
#ifndef ML_RUN_ADAPTER_RUN_H
#define ML_RUN_ADAPTER_RUN_H

#include "gen/tenants.h"
#include "run/adapter_registry.h"
#include "run/assembly.h"

typedef struct ml_adapter_run ml_adapter_run;

/* What runs share.  The owner fills in the first part, and keeps it alive longer than them. */
typedef struct ml_adapter_host {
    ml_train_run *base; /* started */
    ml_generator *generator;
    ml_tenants *tenants;       /* of its engine, whose weights have the table */
    ml_lora_table *table;      /* adapters by slot */
    const ml_lora_site **site; /* [n_slot] of the table; NULL: none */
    const ml_run_opts *flags;
    ml_loop_extensions *extensions;
    void (*say)(const char *line);
    /* On the run's thread: its adapter was published after this number of steps; and it has
     * ended.  ud is that of ml_adapter_run_start. */
    void (*published)(void *ud, int64_t step);
    void (*ended)(void *ud);

    /* Internal. */
    pthread_mutex_t turn;      /* of training */
    ml_adapter_run *has_plans; /* that trained last; NULL: none */
} ml_adapter_host;

void ml_adapter_host_init(ml_adapter_host *h);
void ml_adapter_host_release(ml_adapter_host *h);

/* Opens data, rewards and directories, where most configurations that cannot work fail.  The
 * configuration is resolved, and outlives the run.  last_step 0: by num_step or num_epoch. */
ml_status ml_adapter_run_open(ml_adapter_run **out, ml_adapter_host *h, const char *name,
                              const ml_adapter_config *c, int32_t slot, int64_t last_step,
                              ml_err *err);
void ml_adapter_run_close(ml_adapter_run *x); /* waits for its end; NULL is allowed */

int64_t ml_adapter_run_last_step(const ml_adapter_run *x);
ml_status ml_adapter_run_start(ml_adapter_run *x, void *ud, ml_err *err);
/* It saves after the current step, and ends. */
void ml_adapter_run_stop(ml_adapter_run *x);
/* After its end: the status, and the sentence if it failed. */
ml_status ml_adapter_run_result(const ml_adapter_run *x, const char **error);

#endif
