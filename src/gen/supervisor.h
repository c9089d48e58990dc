/* supervisor.h - starts, health-checks and restarts the engine processes of this run.
 *
 * Each engine is a server that prints "... http://HOST:PORT" in its first line when it is
 * ready; the system chooses the port.  The supervisor kills an engine that fails its
 * health check, restarts each one that dies, and gives its new address to the remote
 * generator, which sends it the current weights and then the requests of its predecessor
 * (gen/remote.h).  An engine that fails to start repeatedly ends generation.
 *
 * thread: opened and closed by one owner.  A thread of the supervisor starts the
 * processes, so that they end with it, and watches them. */
#ifndef ML_GEN_SUPERVISOR_H
#define ML_GEN_SUPERVISOR_H

#include "gen/gen.h"

typedef struct ml_supervisor ml_supervisor;

typedef struct ml_supervisor_opts {
    const char *program;     /* path */
    const char *const *argv; /* of all engines; NULL-terminated; must outlive this */
    const char *log_dir;     /* standard error of engine 3 goes to engine_3.log there */
    const char *const *env;  /* added to this process's, as in ml_child_start, or NULL */
    const char *api_key;     /* that the engines require, or NULL */
    int32_t n;
    bool restart;         /* false: the first death ends generation */
    double check_s;       /* interval of health checks */
    double timeout_s;     /* of a health check */
    double first_check_s; /* added to check_s before the first check */
} ml_supervisor_opts;

/* Returns when all engines are ready. */
ml_status ml_supervisor_open(ml_supervisor **out, const ml_supervisor_opts *o, ml_err *err);
void ml_supervisor_close(ml_supervisor *f); /* kills the engines; NULL is allowed */

/* Address of an engine; valid until ml_supervisor_serve. */
const char *ml_supervisor_url(const ml_supervisor *f, int32_t i);

/* Starts restarting dead engines, for a remote generator whose servers are these engines in
 * the same order.  NULL stops it; after return the previous generator is no longer used. */
void ml_supervisor_serve(ml_supervisor *f, ml_gen *remote);

/* Kills an engine, for fault-injection tests; it is restarted like any other. */
void ml_supervisor_crash(ml_supervisor *f, int32_t i);

#endif
