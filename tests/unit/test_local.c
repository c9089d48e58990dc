/* The engine on a thread of its own: what other threads may ask for meanwhile. */
#include "gen/local.h"

#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/engine_fixture.h"
#include "tests/support/must.h"

typedef struct waiter {
    pthread_mutex_t lock;
    pthread_cond_t cond;
    ml_received h;
    useconds_t slow_us; /* each call takes this long, so that the test can act meanwhile */
} waiter;

static void hear_locked(void *ud, const ml_gen_update *u) {
    waiter *w = ud;
    pthread_mutex_lock(&w->lock);
    ml_receive(&w->h, u);
    pthread_cond_broadcast(&w->cond);
    pthread_mutex_unlock(&w->lock);
    if (w->slow_us)
        usleep(w->slow_us);
}

static void await_tokens(waiter *w, int32_t n) {
    pthread_mutex_lock(&w->lock);
    while (w->h.n < n && !w->h.n_end)
        pthread_cond_wait(&w->cond, &w->lock);
    pthread_mutex_unlock(&w->lock);
}

static void await_end(waiter *w) {
    pthread_mutex_lock(&w->lock);
    while (!w->h.n_end)
        pthread_cond_wait(&w->cond, &w->lock);
    pthread_mutex_unlock(&w->lock);
}

static void init_waiter(waiter *w) {
    *w = (waiter){ 0 };
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->cond, NULL);
}

static ml_gen *open_local(ml_engine_fixture *b, bool own_weights) {
    ml_gen *g;
    ml_local_opts o = { .engine = b->o,
                        .spec = &b->spec,
                        .be = &b->be,
                        .weights = own_weights ? NULL : &b->w,
                        .dir = ML_FIXTURE_MODEL,
                        .version = 7 };
    MUST(ml_local_open(&g, &o, &err));
    return g;
}

static void threads_submit_and_hear(void) {
    ml_engine_fixture b;
    ml_gen *g;
    waiter w[8];
    uint64_t ticket[8];
    ml_gen_request r = ml_fixture_request(30, 20);
    ml_received first;

    ml_engine_fixture_open(&b, ML_FIXTURE_MODEL);
    g = open_local(&b, false);
    for (int i = 0; i < 8; i++) {
        init_waiter(&w[i]);
        r.draw.sample = (uint64_t)i % 2;
        MUST(g->submit(g, &r, hear_locked, &w[i], &ticket[i], &err));
    }
    for (int i = 0; i < 8; i++) {
        await_end(&w[i]);
        first = w[i % 2].h;
        CHECK(w[i].h.n == 20 && memcmp(w[i].h.id, first.id, sizeof first.id) == 0);
    }
    CHECK(memcmp(w[0].h.id, w[1].h.id, sizeof first.id) != 0);
    g->close(g);
    ml_engine_fixture_close(&b);
}

static void aborting_and_pausing(void) {
    ml_engine_fixture b;
    ml_gen *g;
    waiter w;
    uint64_t ticket;
    ml_gen_stats s;
    ml_gen_request r = ml_fixture_request(10, 110);
    int32_t n;

    ml_engine_fixture_open(&b, ML_FIXTURE_MODEL);
    g = open_local(&b, false);
    init_waiter(&w);
    w.slow_us = 20000;
    MUST(g->submit(g, &r, hear_locked, &w, &ticket, &err));
    await_tokens(&w, 3);
    g->pause(g);
    n = w.h.n; /* nobody writes now */
    g->stats(g, &s);
    CHECK(s.paused && s.n_running == 1 && w.h.n == n && !g->flush(g));
    g->abort(g, ticket);
    await_end(&w);
    CHECK(w.h.finish == ML_FINISH_ABORT && w.h.n == n);
    g->resume(g);
    CHECK(g->flush(g));
    g->abort(g, ticket); /* gone already: nothing happens */
    init_waiter(&w);
    MUST(g->submit(g, &r, hear_locked, &w, &ticket, &err));
    g->close(g); /* hears its end */
    CHECK(w.h.n_end == 1);
    ml_engine_fixture_close(&b);
}

/* Counts its calls. */
static void on_step_end(void *ud) {
    waiter *w = ud;

    pthread_mutex_lock(&w->lock);
    w->h.n_end++;
    pthread_cond_broadcast(&w->cond);
    pthread_mutex_unlock(&w->lock);
}

static void notify_calls_back_without_requests(void) {
    ml_engine_fixture b;
    ml_gen *g;
    waiter w;

    ml_engine_fixture_open(&b, ML_FIXTURE_MODEL);
    g = open_local(&b, false);
    init_waiter(&w);
    g->on_step_end(g, on_step_end, &w);
    g->notify(g);
    await_end(&w);
    g->pause(g);
    w.h.n_end = 0; /* nobody writes while it is paused */
    g->notify(g);
    g->on_step_end(g, on_step_end, &w); /* returns after the engine's thread has run */
    CHECK(w.h.n_end == 0);
    g->resume(g);
    await_end(&w);
    g->on_step_end(g, NULL, NULL);
    g->notify(g); /* nobody is called */
    g->close(g);
    CHECK(w.h.n_end == 1);
    ml_engine_fixture_close(&b);
}

static void weights_are_loaded_and_let_go(void) {
    ml_engine_fixture b;
    ml_gen *g;
    waiter w;
    uint64_t ticket;
    ml_gen_stats s;
    ml_gen_request r = ml_fixture_request(10, 110);
    ml_err why = { 0 };

    ml_engine_fixture_open(&b, ML_FIXTURE_MODEL);
    g = open_local(&b, true);
    init_waiter(&w);
    MUST(g->submit(g, &r, hear_locked, &w, &ticket, &err));
    await_tokens(&w, 2);
    CHECK(g->load(g, "tests/golden/data/llama", 0, ML_SWITCH_RECOMPUTE, &why) != ML_OK);
    CHECK_HAS(why.msg, "tests/golden/data/llama");
    MUST(g->load(g, ML_FIXTURE_MODEL, 0, ML_SWITCH_FINISH,
                 &err)); /* waits for the request */
    await_end(&w);
    CHECK(w.h.version[0] == 7 && w.h.version[w.h.n - 1] == 7);
    g->stats(g, &s);
    CHECK(s.version == 8);
    ml_local_release(g, true, true);
    init_waiter(&w);
    MUST(g->submit(g, &r, hear_locked, &w, &ticket, &err));
    MUST(ml_local_take(g, true, true, &err));
    await_end(&w);
    CHECK(w.h.n == 110 && w.h.version[0] == 8);
    g->pause(g);
    init_waiter(&w);
    g->resume(g);
    MUST(g->submit(g, &r, hear_locked, &w, &ticket, &err));
    await_tokens(&w, 2);
    g->pause(g);
    if (!w.h.n_end) {
        CHECK(g->load(g, ML_FIXTURE_MODEL, 0, ML_SWITCH_FINISH, &why) == ML_EUSAGE);
        CHECK_HAS(why.msg, "paused");
    }
    g->close(g);
    ml_engine_fixture_close(&b);
}

int main(int argc, char **argv) {
    static const ml_test tests[] = {
        { "threads submit requests and get their own tokens", threads_submit_and_hear },
        { "a local engine pauses, continues and aborts", aborting_and_pausing },
        { "notify calls back without requests, and after a pause",
          notify_calls_back_without_requests },
        { "a local engine loads weights and frees the old ones",
          weights_are_loaded_and_let_go },
        { 0 },
    };
    return ml_test_main(argc, argv, tests);
}
