/* The server while single allocations fail: each request gets an answer or a closed
 * connection, and the server goes on.  Sanitizers have allocators of their own; there the
 * cases run without faults. */
#include <errno.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/serve_fixture.h"
#include "tests/support/test.h"

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) ||                 \
    __has_feature(memory_sanitizer)
#define OWN_ALLOCATOR 0
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define OWN_ALLOCATOR 0
#endif
#ifndef OWN_ALLOCATOR
#define OWN_ALLOCATOR 1
#endif

static atomic_int countdown;    /* the allocation that fails; 0: none */
static _Thread_local bool calm; /* the test's own thread */

#if OWN_ALLOCATOR
void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t n);

/* By libevent, too. */
#define SEEN __attribute__((visibility("default")))

static bool fails(void) {
    if (calm || atomic_load(&countdown) <= 0 || atomic_fetch_sub(&countdown, 1) != 1)
        return false;
    errno = ENOMEM;
    return true;
}

SEEN void *malloc(size_t n) {
    return fails() ? NULL : __libc_malloc(n);
}

SEEN void *calloc(size_t n, size_t size) {
    return fails() ? NULL : __libc_calloc(n, size);
}

SEEN void *realloc(void *p, size_t n) {
    return fails() ? NULL : __libc_realloc(p, n);
}
#endif

static ml_serve_fixture f;

/* The n-th allocation of the server fails while it serves the request, for all n until the
 * request no longer reaches that many. */
static void serve_all(const char *path, const char *request, int least) {
    int n = 1, refused = 0;

    for (; n < 2000; n++) {
        const char *body;
        int status, left;

        atomic_store(&countdown, n);
        status = ml_serve_ask(&f, "POST", path, NULL, request, &body);
        left = atomic_exchange(&countdown, 0);
        if (status != 200 && status != 503 && status != -1)
            ml_test_fail(__FILE__, __LINE__, "%s, allocation %d: status %d: %s", path, n,
                         status, body);
        refused += status != 200;
        if (ml_serve_ask(&f, "POST", path, NULL, request, &body) != 200)
            ml_test_fail(__FILE__, __LINE__, "%s: not served after allocation %d failed",
                         path, n);
        if (left > 0)
            break;
    }
    if (OWN_ALLOCATOR && refused < least)
        ml_test_fail(__FILE__, __LINE__, "%s: %d of %d allocations made a difference", path,
                     refused, n);
}

static void start(void) {
    calm = true;
    ml_serve_fixture_init(&f);
    f.opts.tools = ML_TOOLS_QWEN;
    f.opts.max_in_flight = (size_t)1 << 30;
    ml_serve_fixture_start(&f);
}

static void generate(void) {
    start();
    serve_all(
        "/generate",
        "{\"text\": [\"ab\", \"c\"], \"return_logprob\": true, \"logprob_start_len\": "
        "0, \"sampling_params\": {\"stop\": [\"x\"], \"logit_bias\": {\"3\": 1}}}",
        10);
    serve_all("/generate", "{\"text\": \"ab\", \"stream\": true}", 5);
    ml_serve_fixture_stop(&f);
}

static void openai(void) {
    start();
    serve_all("/v1/completions", "{\"prompt\": \"ab\", \"echo\": true, \"n\": 2}", 5);
    serve_all("/v1/chat/completions",
              "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"text\", "
              "\"text\": \"x\"}]}], \"logprobs\": true, \"top_logprobs\": 2}",
              5);
    serve_all("/tokenize", "{\"prompt\": \"ab\"}", 3);
    ml_serve_fixture_stop(&f);
}

/* On the text thread. */
static void large(void) {
    ml_text json = { 0 };

    start();
    ml_text_printf(&json, "{\"text\": \"ab\", \"custom_labels\": [\"%020000d\"]}", 0);
    serve_all("/generate", json.ptr, 5);
    ml_serve_fixture_stop(&f);
    ml_text_release(&json);
}

static const ml_test tests[] = {
    { "/generate survives every failed allocation", generate },
    { "OpenAI endpoints survive every failed allocation", openai },
    { "large requests survive every failed allocation", large },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
