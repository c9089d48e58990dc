/* serve_fixture.h - a server on a thread, over a generator that says what it is told to say.
 *
 * The tokenizer has a token for each character of ASCII, whose id is its code, and
 * ML_FAKE_EOS.  The generator answers every request with the script's characters and then
 * ML_FAKE_EOS; a token's log-probability is -(its id) / 64, the most probable tokens beside it
 * are the ids that follow. */
#ifndef ML_TESTS_SUPPORT_SERVE_FIXTURE_H
#define ML_TESTS_SUPPORT_SERVE_FIXTURE_H

#include "serve/server.h"

enum { ML_FAKE_EOS = 200, ML_FAKE_PYTHON_TAG = 201, ML_FAKE_VOCAB = 202 };

typedef struct ml_serve_fixture {
    ml_server_opts opts; /* change before start */
    const char *template;
    bool no_text; /* neither tokenizer nor template */
    /* the client */
    const char *host; /* in Host; NULL: localhost */
    size_t promised;  /* bytes of a body that Content-Length names and that never come */
    /* the generator */
    const char *script;
    bool hold;     /* answers do not end before they are aborted */
    bool full;     /* the queue is full */
    bool no_flush; /* requests are in flight */
    bool slow;     /* no token before the server has seen the one before */
    int32_t n_submit, n_abort, n_pause, n_resume, n_release, n_take;
    uint64_t seed, sample; /* of the latest request */
    int32_t max_new, n_prompt, score_from;
    float temperature, top_p;
    char loaded[256];
    uint64_t load_version;
    ml_switch load_how;
    struct ml_serve_fixture_priv *priv;
} ml_serve_fixture;

void ml_serve_fixture_init(ml_serve_fixture *f);
void ml_serve_fixture_start(ml_serve_fixture *f);
void ml_serve_fixture_stop(ml_serve_fixture *f); /* waits until the server has drained */

/* One request on a connection of its own; the reply's status, and its body or its bytes.
 * headers: "Name: value\r\n" lines, or NULL.  What it returns lives until the next call. */
int ml_serve_ask(ml_serve_fixture *f, const char *method, const char *path,
                 const char *headers, const char *body, const char **reply);
/* Sends a request; the connection, which the caller closes. */
int ml_serve_send(ml_serve_fixture *f, const char *path, const char *body);
/* Sends a request and hangs up. */
void ml_serve_hang_up(ml_serve_fixture *f, const char *path, const char *body);

/* A number of the generator's, read under its lock. */
int32_t ml_serve_count(ml_serve_fixture *f, const int32_t *counter);
/* Waits until it reaches n, a few seconds at most. */
bool ml_serve_wait(ml_serve_fixture *f, const int32_t *counter, int32_t n);

#endif
