/* multi_lora.h - a service that trains several adapters at once on one base (Miles'
 * train_multi_lora_async.py): adapters are registered at the start or over HTTP while it runs,
 * and each is a run of its own (adapter_run.h).
 *
 * thread: the command's. */
#ifndef ML_RUN_MULTI_LORA_H
#define ML_RUN_MULTI_LORA_H

#include <stdatomic.h>

#include "run/run.h"

typedef struct ml_multi_lora_io {
    void (*say)(const char *line); /* from any thread */
    const atomic_int *stop; /* not 0: adapters save after their current step, and it ends */
} ml_multi_lora_io;

/* Runs until all adapters are completed, in service mode until it is stopped.  flags: as given.
 * An adapter that fails ends alone; without service mode its error is that of the service. */
ml_status ml_multi_lora_run(const ml_run_opts *flags, const ml_multi_lora_io *io,
                            ml_err *err);

#endif
