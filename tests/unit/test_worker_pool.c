/* Pools of worker processes, and Python functions in them. */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "plugin/python.h"
#include "tests/support/scratch.h"
#include "tests/support/test.h"

static const char functions[] =
    "import asyncio, os, sys, time\n"
    "from miles.utils.types import Sample\n"
    "async def one(args, sample, **kwargs):\n"
    "    assert isinstance(sample, Sample)\n"
    "    return sample.index\n"
    "async def sleepy(args, sample, **kwargs):\n"
    "    await asyncio.sleep(1)\n"
    "    return sample.index\n"
    "async def moody(args, sample, **kwargs):\n"
    "    kind = sample.metadata.get('kind')\n"
    "    if kind == 'raise': raise ValueError('no')\n"
    "    if kind == 'exit': os._exit(3)\n"
    "    if kind == 'sysexit': sys.exit(4)\n"
    "    if kind == 'hang': await asyncio.sleep(1000)\n"
    "    if kind == 'block': time.sleep(1000)\n"
    "    if kind == 'print': print('x' * 100000); print('y', file=sys.stderr)\n"
    "    if kind == 'fork' and os.fork() == 0: return -1\n"
    "    if kind == 'fork, block':\n"
    "        if os.fork() == 0:\n"
    "            time.sleep(1)\n"
    "            return -1\n"
    "        time.sleep(1000)\n"
    "    if kind == 'greedy':\n"
    "        kept = bytearray(os.urandom(1 << 20)) * 512\n"
    "        await asyncio.sleep(1000)\n"
    "    if kind == 'cancel':\n"
    "        try:\n"
    "            await asyncio.sleep(1000)\n"
    "        except asyncio.CancelledError:\n"
    "            await asyncio.sleep(1000)\n"
    "    await asyncio.sleep(0)\n"
    "    return sample.index\n";

typedef struct result {
    ml_worker_end end;
    char text[300];
} result;

typedef struct sink {
    pthread_mutex_t lock;
    pthread_cond_t change;
    int n_left;
    result *result;
} sink;

typedef struct one_call {
    sink *to;
    int i;
} one_call;

static void take(void *ud, ml_worker_end end, ml_str text) {
    one_call *c = ud;

    pthread_mutex_lock(&c->to->lock);
    c->to->result[c->i].end = end;
    ml_str_copy(c->to->result[c->i].text, sizeof c->to->result->text, text);
    if (--c->to->n_left == 0)
        pthread_cond_broadcast(&c->to->change);
    pthread_mutex_unlock(&c->to->lock);
}

/* Calls the function with each kind, all at once, and waits for the ends. */
static void call_all(ml_worker_pool *p, const char *const *kind, int n, double limit_s,
                     result *out) {
    sink s = { .n_left = n, .result = out };
    one_call *c = calloc((size_t)n, sizeof *c);
    char text[400];

    pthread_mutex_init(&s.lock, NULL);
    pthread_cond_init(&s.change, NULL);
    for (int i = 0; i < n; i++) {
        c[i] = (one_call){ &s, i };
        snprintf(text, sizeof text,
                 "{\"f\": \"custom-rm-path\", \"sample\": {\"index\": %d, \"status\": "
                 "\"completed\", \"metadata\": {\"kind\": \"%s\"}}}",
                 i, kind ? kind[i] : "");
        ml_worker_pool_call(p, ml_str_of(text), limit_s, take, &c[i]);
    }
    pthread_mutex_lock(&s.lock);
    while (s.n_left)
        pthread_cond_wait(&s.change, &s.lock);
    pthread_mutex_unlock(&s.lock);
    pthread_cond_destroy(&s.change);
    pthread_mutex_destroy(&s.lock);
    free(c);
}

static ml_worker_pool *open_pool(ml_arena *a, const char *name, int64_t n,
                                 int64_t memory_bytes) {
    char path[1000];
    ml_python_function fn = { "custom-rm-path", path, NULL };
    ml_worker_pool_opts opts;
    ml_worker_pool *p = NULL;
    ml_err err = { 0 };

    CHECK(ml_file_replace(ml_test_path("functions.py"), ml_str_of(functions), &err) ==
          ML_OK);
    snprintf(path, sizeof path, "%s:%s", ml_test_path("functions.py"), name);
    CHECK(ml_python_workers(&opts, a, &fn, 1, (ml_str){ 0 }, &err) == ML_OK);
    opts.n = n;
    opts.memory_bytes = memory_bytes;
    if (ml_worker_pool_open(&p, &opts, &err) != ML_OK)
        ml_test_fail(__FILE__, __LINE__, "%s", err.msg);
    return p;
}

static void many_calls_are_answered(void) {
    enum { N = 20000 };
    result *r = calloc(N, sizeof *r);
    ml_worker_pool *p;
    ml_arena a;
    double start;

    ml_arena_init(&a, "pool");
    p = open_pool(&a, "one", 2, 0);
    start = ml_clock_s();
    call_all(p, NULL, N, 30, r);
    fprintf(stderr, "%.0f calls per second\n", N / (ml_clock_s() - start));
    for (int i = 0; i < N; i++)
        CHECK(r[i].end == ML_WORKER_ANSWERED && atoi(r[i].text) == i);
    ml_worker_pool_close(p);
    ml_arena_release(&a);
    free(r);
}

/* One worker: one after the other they would take 512 s. */
static void sleeping_calls_wait_together(void) {
    enum { N = 512 };
    result *r = calloc(N, sizeof *r);
    ml_worker_pool *p;
    ml_arena a;
    double start;

    ml_arena_init(&a, "pool");
    p = open_pool(&a, "sleepy", 1, 0);
    start = ml_clock_s();
    call_all(p, NULL, N, 30, r);
    CHECK(ml_clock_s() - start < 20);
    fprintf(stderr, "%.3f s\n", ml_clock_s() - start);
    for (int i = 0; i < N; i++)
        CHECK(r[i].end == ML_WORKER_ANSWERED && atoi(r[i].text) == i);
    ml_worker_pool_close(p);
    ml_arena_release(&a);
    free(r);
}

/* Each call fails or succeeds by itself, whatever its neighbours do. */
static void a_bad_call_fails_alone(void) {
    static const char *const kind[] = { "",        "raise",  "",           "exit",  "",
                                        "sysexit", "hang",   "",           "print", "fork",
                                        "",        "cancel", "block",      "",      "exit",
                                        "",        "block",  "fork, block" };
    enum { N = sizeof kind / sizeof *kind };
    result r[N] = { { 0 } };
    ml_worker_pool *p;
    ml_arena a;

    ml_arena_init(&a, "pool");
    p = open_pool(&a, "moody", 1, 0);
    call_all(p, kind, N, 3, r);
    for (int i = 0; i < N; i++) {
        if (!kind[i][0] || !strcmp(kind[i], "print") || !strcmp(kind[i], "fork"))
            CHECK(r[i].end == ML_WORKER_ANSWERED && atoi(r[i].text) == i);
        if (!strcmp(kind[i], "raise"))
            CHECK_HAS(r[i].text, "ValueError: no (");
        if (!strcmp(kind[i], "raise"))
            CHECK_HAS(r[i].text, "functions.py, line 11)");
        if (!strcmp(kind[i], "sysexit"))
            CHECK_HAS(r[i].text, "SystemExit: 4");
        if (!strcmp(kind[i], "exit"))
            CHECK(r[i].end == ML_WORKER_DIED && strstr(r[i].text, "exited with status 3"));
        if (!strcmp(kind[i], "hang") || !strcmp(kind[i], "cancel"))
            CHECK(r[i].end == ML_WORKER_LATE &&
                  strstr(r[i].text, "did not return within 3 s"));
        if (strstr(kind[i], "block"))
            CHECK(r[i].end == ML_WORKER_LATE &&
                  strstr(r[i].text, "did not answer within 3 s"));
    }
    ml_worker_pool_close(p);
    ml_arena_release(&a);
}

static void memory_is_limited(void) {
    static const char *const kind[] = { "greedy", "" };
    result r[2] = { { 0 } };
    ml_worker_pool *p;
    ml_arena a;

    ml_arena_init(&a, "pool");
    p = open_pool(&a, "moody", 1, (int64_t)256 << 20);
    call_all(p, kind, 2, 60, r);
    CHECK(r[0].end == ML_WORKER_DIED);
    CHECK_HAS(r[0].text, "used more than 256 MiB of memory (--reward-memory)");
    CHECK(r[1].end == ML_WORKER_ANSWERED);
    ml_worker_pool_close(p);
    ml_arena_release(&a);
}

/* Calls in flight end when the pool is closed. */
static void closing_ends_calls(void) {
    result r = { 0 };
    sink s = { .n_left = 1, .result = &r };
    one_call c = { &s, 0 };
    ml_worker_pool *p;
    ml_arena a;

    ml_arena_init(&a, "pool");
    pthread_mutex_init(&s.lock, NULL);
    pthread_cond_init(&s.change, NULL);
    p = open_pool(&a, "sleepy", 1, 0);
    ml_worker_pool_call(p,
                        ml_str_of("{\"f\": \"custom-rm-path\", \"sample\": {\"status\": "
                                  "\"pending\"}}"),
                        30, take, &c);
    ml_worker_pool_close(p);
    CHECK(s.n_left == 0 && (r.end == ML_WORKER_DIED || r.end == ML_WORKER_ANSWERED));
    pthread_cond_destroy(&s.change);
    pthread_mutex_destroy(&s.lock);
    ml_arena_release(&a);
}

static void paths_are_recognised(void) {
    CHECK(ml_python_is("my_pkg.module.func") && ml_python_is("module.func"));
    CHECK(ml_python_is("my_pkg.module:func") && ml_python_is("./a/file.py:func"));
    CHECK(ml_python_is("file.py") && ml_python_is("/a/b.c/file.py"));
    CHECK(!ml_python_is("./my.so:name") && !ml_python_is("my.so:name"));
    CHECK(!ml_python_is("grpo") && !ml_python_is("") && !ml_python_is("a..b"));
    CHECK(!ml_python_is("a.b.") && !ml_python_is("a b.c") && !ml_python_is("1.5"));
}

static const ml_test tests[] = {
    { "a pool answers many calls", many_calls_are_answered, 120 },
    { "async functions that sleep do not wait for each other", sleeping_calls_wait_together,
      120 },
    { "a Python function that fails does not harm other calls", a_bad_call_fails_alone,
      120 },
    { "the memory of a pool's worker is limited", memory_is_limited, 120 },
    { "closing a pool ends its calls", closing_ends_calls },
    { "paths of Python functions are recognised", paths_are_recognised },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
