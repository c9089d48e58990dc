/* serve_fixture.h - a server on a thread of its own, over a generator with scripted
 * answers.
 *
 * The tokenizer has a token for each ASCII character, whose id is its code, and
 * ML_FAKE_EOS.  The generator answers every request with the script's characters and then
 * ML_FAKE_EOS.  A token's log-probability is -(its id) / 64; its top-n tokens are the ids
 * after it. */
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
    bool hold;     /* answers end only when they are aborted */
    bool full;     /* the queue is full */
    bool no_flush; /* requests are in flight */
    bool slow;     /* each token waits until the server has seen the previous one */
    int32_t n_submit, n_abort, n_pause, n_resume, n_release, n_take;
    uint64_t seed, sample; /* of the latest request */
    int32_t max_new, n_prompt, score_from, adapter, adapter_id;
    float temperature, top_p;
    /* adapters: the directories of the slots, and how often one was filled or emptied */
    char slot[4][64];
    int32_t n_set;
    char loaded[256];
    uint64_t load_version;
    ml_switch load_how;
    struct ml_serve_fixture_priv *priv;
} ml_serve_fixture;

void ml_serve_fixture_init(ml_serve_fixture *f);
void ml_serve_fixture_start(ml_serve_fixture *f);
void ml_serve_fixture_stop(ml_serve_fixture *f); /* waits until the server has drained */

/* Lets requests name adapters, at most this many in memory; before start. */
void ml_serve_fixture_adapters(ml_serve_fixture *f, int32_t max_loaded);

/* Sends one request on a new connection; returns the status, and the body or bytes of the
 * reply, valid until the next call.  headers: "Name: value\r\n" lines, or NULL. */
int ml_serve_ask(ml_serve_fixture *f, const char *method, const char *path,
                 const char *headers, const char *body, const char **reply);
/* Sends a request; returns the connection, which the caller closes. */
int ml_serve_send(ml_serve_fixture *f, const char *path, const char *body);
/* Sends a request and closes the connection. */
void ml_serve_hang_up(ml_serve_fixture *f, const char *path, const char *body);

/* A counter of the generator, read under its mutex. */
int32_t ml_serve_count(ml_serve_fixture *f, const int32_t *counter);
/* Waits until it reaches n, for a few seconds at most. */
bool ml_serve_wait(ml_serve_fixture *f, const int32_t *counter, int32_t n);

#endif
