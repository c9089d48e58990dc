/* The event loop, and server-sent events. */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "net/loop.h"
#include "net/sse.h"
#include "tests/support/test.h"

/* --- the loop --------------------------------------------------------------- */

typedef struct tally {
    ml_loop *loop;
    ml_timer *timer;
    int n, last[4];
    bool in_order;
} tally;

typedef struct ticket {
    tally *tally;
    int thread, number;
} ticket;

static void count_ticket(void *ud) {
    ticket *k = ud;
    tally *t = k->tally;

    t->in_order = t->in_order && t->last[k->thread] + 1 == k->number;
    t->last[k->thread] = k->number;
    free(k);
    if (++t->n == 4 * 1000)
        ml_loop_stop(t->loop);
}

static void *post_many(void *ud) {
    ticket *first = ud;

    for (int i = 1; i <= 1000; i++) {
        ticket *k = malloc(sizeof *k);
        *k = (ticket){ first->tally, first->thread, i };
        ml_loop_post(first->tally->loop, count_ticket, k);
    }
    return NULL;
}

static void stop(void *ud) {
    ml_loop_stop(((tally *)ud)->loop);
}

static void posting(void) {
    tally t = { .in_order = true };
    ticket first[4];
    pthread_t thread[4];
    ml_err err = { 0 };

    CHECK(ml_loop_new(&t.loop, &err) == ML_OK);
    for (int i = 0; i < 4; i++) {
        first[i] = (ticket){ &t, i, 0 };
        pthread_create(&thread[i], NULL, post_many, &first[i]);
    }
    ml_loop_run(t.loop);
    for (int i = 0; i < 4; i++)
        pthread_join(thread[i], NULL);
    CHECK(t.n == 4000 && t.in_order);
    ml_loop_post(t.loop, stop, &t); /* dropped */
    ml_loop_free(t.loop);
}

static void tick(void *ud) {
    tally *t = ud;

    if (++t->n == 3) {
        ml_timer_stop(t->timer);
        t->timer = NULL;
        kill(getpid(), SIGTERM);
    }
}

static void timers_and_signals(void) {
    tally t = { 0 };
    ml_err err = { 0 };
    double start = ml_clock_s();

    CHECK(ml_loop_new(&t.loop, &err) == ML_OK);
    CHECK(ml_loop_on_signal(t.loop, SIGTERM, stop, &t, &err) == ML_OK);
    t.timer = ml_timer_start(t.loop, 0.02, true, tick, &t);
    ml_loop_run(t.loop);
    CHECK(t.n == 3 && t.timer == NULL && ml_clock_s() - start >= 0.055);
    ml_timer_stop(NULL);
    ml_loop_free(t.loop);
}

/* --- server-sent events ----------------------------------------------------- */

static void collect(void *ud, ml_str data) {
    ml_text_printf(ud, "[%.*s]", (int)data.len, data.ptr);
}

static void events(void) {
    const char *source = "data: one\n\n: comment\ndata:two\ndata\ndata:  three\r\n\r\n"
                         "event: x\nid: 7\ndata: a\rdata: b\r\rdatum: no\n\n\ndata: end\n\n"
                         "data: unfinished";
    const char *want = "[one][two\n\n three][a\nb][end]";
    size_t n = strlen(source);

    for (size_t cut = 0; cut <= n; cut++) {
        ml_sse s = { 0 };
        ml_text got = { 0 };
        ml_sse_push(&s, (ml_str){ source, cut }, collect, &got);
        ml_sse_push(&s, (ml_str){ source + cut, n - cut }, collect, &got);
        CHECK(got.ptr && strcmp(got.ptr, want) == 0);
        ml_text_release(&got);
        ml_sse_release(&s);
    }
    for (int k = 0; k < 2; k++) {
        ml_sse s = { 0 };
        ml_text out = { 0 }, got = { 0 };
        ml_sse_write(&out, ml_str_of("a\nb\r\n\nc"));
        ml_sse_write(&out, ml_str_of("[DONE]"));
        CHECK(strcmp(out.ptr, "data: a\ndata: b\ndata: \ndata: c\n\ndata: [DONE]\n\n") ==
              0);
        for (size_t i = 0; i < out.len; i++)
            ml_sse_push(&s, (ml_str){ out.ptr + i, 1 }, collect, &got);
        CHECK(strcmp(got.ptr, "[a\nb\n\nc][[DONE]]") == 0);
        ml_text_release(&out);
        ml_text_release(&got);
        ml_sse_release(&s);
    }
}

static const ml_test tests[] = {
    { "calls posted by threads run in order on the loop", posting },
    { "timers and signals reach the loop", timers_and_signals },
    { "server-sent events parse however they are cut", events },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
