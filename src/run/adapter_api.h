/* adapter_api.h - the HTTP API of a multi-LoRA service, with the routes, bodies and status codes
 * of Miles: /health, /adapter_runs, /adapter_runs/state, /adapter_runs/NAME.
 *
 * thread: opened and closed by one owner; the server runs on a thread of its own, and takes the
 * registry's lock. */
#ifndef ML_RUN_ADAPTER_API_H
#define ML_RUN_ADAPTER_API_H

#include <pthread.h>

#include "run/adapter_registry.h"

typedef struct ml_adapter_api ml_adapter_api;

typedef struct ml_adapter_api_opts {
    int port; /* 0: any */
    const ml_adapter_registry *registry;
    pthread_mutex_t *lock; /* of the registry */
    /* Called without the lock.  Register returns ML_ENOMEM if no slot is free; the arena has
     * the strings of the configuration, which is not resolved. */
    ml_status (*add)(void *ud, const char *name, ml_adapter_config *c, ml_arena *a,
                     int32_t *slot, ml_err *err);
    void (*retire)(void *ud, const char *name);
    void *ud;
} ml_adapter_api_opts;

ml_status ml_adapter_api_open(ml_adapter_api **out, const ml_adapter_api_opts *o,
                              ml_err *err);
int ml_adapter_api_port(const ml_adapter_api *s);
void ml_adapter_api_close(ml_adapter_api *s); /* NULL is allowed */

#endif
