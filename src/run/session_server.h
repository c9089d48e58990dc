/* session_server.h - the session server of a run: agents talk to its generator, and their
 * conversations become samples (serve/session.h).
 *
 * thread: opened, stopped and closed by one owner; the server runs on a thread of its own. */
#ifndef ML_RUN_SESSION_SERVER_H
#define ML_RUN_SESSION_SERVER_H

#include "run/generator.h"

typedef struct ml_session_server ml_session_server;

ml_status ml_session_server_open(ml_session_server **out, const ml_generator *g,
                                 const ml_run_opts *c, ml_err *err);
const char *ml_session_server_host(const ml_session_server *s);
int ml_session_server_port(const ml_session_server *s);
const char *ml_session_server_key(const ml_session_server *s);

/* Stop before the generator is closed, close afterwards: requests in flight end with it.
 * NULL is allowed. */
void ml_session_server_stop(ml_session_server *s);
void ml_session_server_close(ml_session_server *s);

#endif
