/* router_fixture.h - a router, its workers and a client over real sockets, on one loop. */
#ifndef ML_TESTS_SUPPORT_ROUTER_FIXTURE_H
#define ML_TESTS_SUPPORT_ROUTER_FIXTURE_H

#include "net/http_client.h"
#include "serve/router.h"
#include "tests/support/fake_worker.h"

enum { ML_FIXTURE_WORKERS = 3 };

typedef struct ml_router_fixture {
    ml_loop *loop;
    ml_router *router;
    ml_http_client *client;
    ml_fake_worker worker[ML_FIXTURE_WORKERS];
    char base[64]; /* the router's URL */
} ml_router_fixture;

/* The options of most tests. */
ml_router_opts ml_router_fixture_opts(void);

/* Opens the first n_worker workers and registers them with the router. */
ml_router_fixture *ml_router_fixture_open(ml_router_opts o, int n_worker);
void ml_router_fixture_close(ml_router_fixture *w);

/* Runs the event loop for this time. */
void ml_router_fixture_run(ml_router_fixture *w, double seconds);
/* Runs it until the counter reaches n, for some seconds at most; true when it did. */
bool ml_router_fixture_until(ml_router_fixture *w, const int *counter, int n);

/* A request of the client and its reply.  Zeroed before it is started. */
typedef struct ml_fetch {
    ml_router_fixture *fixture;
    ml_http_job *job;
    int status, n_piece;
    bool failed, done;
    ml_text headers, body;
    ml_err err;
    bool stop_at_data; /* the loop stops at each piece, not only at the end */
    bool no_key;       /* sends no Authorization */
    const char *more;  /* further headers, "Name: value\n" each; NULL: none */
} ml_fetch;

void ml_fetch_start(ml_router_fixture *w, ml_fetch *f, const char *method, const char *path,
                    const char *body);
/* Starts it and runs the event loop until a callback stops the loop. */
void ml_fetch_now(ml_router_fixture *w, ml_fetch *f, const char *method, const char *path,
                  const char *body);
void ml_fetch_release(ml_fetch *f);

#endif
