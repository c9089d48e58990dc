/* load.h - a load test of the server, with well-behaved and misbehaving clients.
 *
 * Well-behaved clients (load_users.c) share one event loop; misbehaving ("rowdy") clients
 * (load_rowdy.c) are threads with raw sockets.  Every answer is compared with the answer
 * that the same request got when it ran alone. */
#ifndef ML_TESTS_LOAD_LOAD_H
#define ML_TESTS_LOAD_LOAD_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/str.h"
#include "net/http_client.h"

enum { LOAD_CASES = 40, LOAD_PROMPT = 100, LOAD_ANSWER = 64, LOAD_PROCESSES = 3 };

/* A request and its expected answer. */
typedef struct load_case {
    int32_t prompt[LOAD_PROMPT], answer[LOAD_ANSWER];
    int n_prompt, n_answer, max_new, seed;
    ml_text text; /* the answer, decoded */
} load_case;

typedef struct load {
    /* options */
    int n_connection, seed;
    double seconds;
    bool no_rss, router;
    /* the server; or two servers and the router */
    pid_t pid[LOAD_PROCESSES];
    int n_process, port;
    size_t max_body;
    /* the requests */
    load_case cases[LOAD_CASES];
    ml_loop *loop;
    ml_http_client *client;
    atomic_bool stopping;
    atomic_int n_bad;
    /* counts for the report */
    long n_whole, n_stream, n_completion, n_aborted, n_vanished, n_malformed;
    atomic_long n_rowdy, n_refused, n_slow;
} load;

/* Counts a failure, and prints the first few.  Thread-safe. */
__attribute__((format(printf, 2, 3))) void load_fail(load *l, const char *fmt, ...);

/* 0 .. n - 1 */
int load_random(uint64_t *state, int n);

/* --- load_server.c --- */

bool load_server_start(load *l);
/* Resident memory of all processes in MiB. */
double load_server_rss(const load *l);
bool load_server_lives(const load *l); /* all of them */
/* Sends SIGTERM; returns true if all processes exit by themselves with status 0. */
bool load_server_stop(load *l);

/* --- load_cases.c --- */

/* Makes random requests and runs each of them alone, to get the expected answers. */
void load_cases_ask(load *l);
void load_cases_free(load *l);
/* Writes a request as JSON; rid may be NULL. */
void load_case_generate(const load_case *c, bool stream, const char *rid, ml_text *out);
void load_case_completion(const load_case *c, bool stream, ml_text *out);
/* Reads "output_ids" and whether it was aborted; false if not a reply of /generate. */
bool load_read_answer(ml_str json, int32_t *id, int *n, bool *aborted);
/* Appends the text of a /v1/completions reply or event. */
bool load_read_text(ml_str json, ml_text *out);

/* --- load_users.c --- */

typedef struct load_users load_users;
load_users *load_users_start(load *l, int n);
int load_users_busy(const load_users *u); /* users with a request in flight */
void load_users_free(load_users *u);

/* --- load_rowdy.c --- */

typedef struct load_rowdies load_rowdies;
load_rowdies *load_rowdies_start(load *l, int n);
void load_rowdies_join(load_rowdies *r); /* after l->stopping was set */

#endif
