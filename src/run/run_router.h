/* run_router.h - the router of a run: one address for its engines.
 *
 * Clients (user code of the run, evaluations) send requests to it.  Engines that register
 * with /add_worker join the run: they get the current weights, then requests;
 * /remove_worker takes them out.  The run's own requests follow the same policy
 * (--router-policy), but go from the generator to the selected engine without this detour.
 *
 * thread: opened and closed by one owner; the router runs on a thread of its own. */
#ifndef ML_RUN_RUN_ROUTER_H
#define ML_RUN_RUN_ROUTER_H

#include "gen/remote.h"
#include "run/opts.h"

typedef struct ml_run_router ml_run_router;

/* --router-policy for the requests of a remote generator, which owns it. */
ml_remote_policy ml_run_router_policy(const ml_run_opts *c);

/* gen: the remote generator over the engines.  key: that clients must know; NULL: a random
 * one.  The address and the key are written to `file`, readable by this user only; NULL: to
 * none. */
ml_status ml_run_router_open(ml_run_router **out, ml_gen *gen, const ml_run_opts *c,
                             const char *key, const char *file, ml_err *err);
/* Adds an engine that reads the weights of the run, and so has them already. */
void ml_run_router_add(ml_run_router *r, const char *url, const char *key);
int ml_run_router_port(const ml_run_router *r);
const char *ml_run_router_key(const ml_run_router *r);
void ml_run_router_close(ml_run_router *r); /* before gen; NULL is allowed */

#endif
