/* fleet.h - engines that are processes of this run: started, watched, started again.
 *
 * Each is a server that says "... http://HOST:PORT" in its first line when it can be asked; the
 * system chooses the port.  One that dies, or does not answer when asked how it is, is killed
 * and started again, and the remote generator is told its new address: it then gets the
 * weights of the moment, and after that what was asked of the one before (engine/remote.h).
 * One that cannot be started any more ends generation with a sentence.
 *
 * thread: opened and closed by one owner; a thread of its own starts the processes, so that
 * they end with it, and watches them. */
#ifndef ML_ENGINE_SUPERVISOR_H
#define ML_ENGINE_SUPERVISOR_H

#include "engine/gen.h"

typedef struct ml_supervisor ml_supervisor;

typedef struct ml_supervisor_opts {
    const char *program;     /* path */
    const char *const *argv; /* of all; NULL at its end; must outlive the fleet */
    const char
        *log_dir; /* what engine 3 says on standard error goes to engine_3.log there */
    const char *const *env; /* beside this process's, as ml_child_start takes it, or NULL */
    const char *api_key;    /* that they ask for, or NULL */
    int32_t n;
    bool restart;         /* false: the first death ends generation */
    double check_s;       /* from one question how it is to the next */
    double timeout_s;     /* how long it may think about it */
    double first_check_s; /* from its start to the first question, beside check_s */
} ml_supervisor_opts;

/* Returns when all of them can be asked. */
ml_status ml_supervisor_open(ml_supervisor **out, const ml_supervisor_opts *o, ml_err *err);
void ml_supervisor_close(ml_supervisor *f); /* kills them; NULL is fine */

/* Where an engine is; good until deaths are mended for somebody. */
const char *ml_supervisor_url(const ml_supervisor *f, int32_t i);

/* From now on deaths are mended, for a remote generator whose servers are these engines in
 * their order.  NULL: not any more; when it returns, nobody uses the one before. */
void ml_supervisor_serve(ml_supervisor *f, ml_gen *remote);

/* Kills one, to see what happens; deaths are mended as others are. */
void ml_supervisor_crash(ml_supervisor *f, int32_t i);

#endif
