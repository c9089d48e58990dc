/* local.h - an engine of this process as an ml_gen, stepping on a thread of its own.
 *
 * Requests are checked and copied on the caller's thread and join the queue between
 * steps; everything else that touches the engine is done by its thread, between steps,
 * while the caller waits.
 *
 * thread: as gen.h says.  The backend is the engine thread's from open to close. */
#ifndef ML_ENGINE_LOCAL_H
#define ML_ENGINE_LOCAL_H

#include "engine/engine.h"

typedef struct ml_local_opts {
    ml_engine_opts engine;
    const ml_spec *spec;
    ml_backend *be;
    /* The weights: the caller's, or (NULL) read from a checkpoint's directory, or (NULL) made
     * up. */
    const ml_weights *weights;
    const char *dir;
    ml_weight_dtype dtype;
    uint64_t seed, version; /* of what is made up; of what is read or made up first */
} ml_local_opts;

ml_status ml_local_open(ml_gen **out, const ml_local_opts *o, ml_err *err);

/* Weights that are in memory already and stay there until the next switch.  Returns when they
 * are in use.  ML_EUSAGE: FINISH while paused with requests in inflight would wait for ever. */
ml_status ml_local_switch(ml_gen *g, const ml_weights *w, ml_switch how, ml_err *err);

/* Gives memory back while nothing is generated, and takes it again; requests in inflight wait.
 * Weights that were read or made up are read or made up again, the caller's are left alone. */
void ml_local_release(ml_gen *g, bool kv, bool weights);
ml_status ml_local_take(ml_gen *g, bool kv, bool weights, ml_err *err);

#endif
