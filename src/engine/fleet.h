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
#ifndef ML_ENGINE_FLEET_H
#define ML_ENGINE_FLEET_H

#include "engine/gen.h"

typedef struct ml_fleet ml_fleet;

typedef struct ml_fleet_opts {
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
} ml_fleet_opts;

/* Returns when all of them can be asked. */
ml_status ml_fleet_open(ml_fleet **out, const ml_fleet_opts *o, ml_err *err);
void ml_fleet_close(ml_fleet *f); /* kills them; NULL is fine */

/* Where an engine is; good until deaths are mended for somebody. */
const char *ml_fleet_url(const ml_fleet *f, int32_t i);

/* From now on deaths are mended, for a remote generator whose servers are these engines in
 * their order.  NULL: not any more; when it returns, nobody uses the one before. */
void ml_fleet_serve(ml_fleet *f, ml_gen *remote);

/* Kills one, to see what happens; deaths are mended as others are. */
void ml_fleet_crash(ml_fleet *f, int32_t i);

#endif
