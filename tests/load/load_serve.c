/* load_serve --connections N --seconds S [--seed N] [--router] [--no-rss]
 *
 * Starts `miles serve` on a tiny model, or with --router two of them behind `miles router`,
 * and runs N clients against it for S seconds, one in twenty of them misbehaving ("rowdy").
 * Then checks that every answer equals the one that the same request gets alone, every
 * request ended, there was traffic of every kind, memory did not grow, and SIGTERM ended
 * the server with status 0.  --no-rss skips the memory check, for builds whose allocator
 * keeps freed memory. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "tests/load/load.h"

#define MAX_SHOWN 20
#define END_S 240.0 /* time limit of the last requests */

/* Averages of the resident memory in two intervals: after the start, and at the end. */
typedef struct watch {
    load *load;
    load_users *users;
    double begin, early, late; /* sums of MiB */
    int n_early, n_late;
} watch;

void load_fail(load *l, const char *fmt, ...) {
    va_list ap;

    if (atomic_fetch_add(&l->n_bad, 1) >= MAX_SHOWN)
        return;
    va_start(ap, fmt);
    fprintf(stderr, "    ");
    vfprintf(stderr, fmt, ap);
    fprintf(stderr, "\n");
    va_end(ap);
}

int load_random(uint64_t *state, int n) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (int)((*state >> 33) % (uint64_t)n);
}

static void look(void *ud) {
    watch *w = ud;
    double part = (ml_clock_s() - w->begin) / w->load->seconds;
    double rss = load_server_rss(w->load);

    if (part >= 0.3 && part < 0.4) {
        w->early += rss;
        w->n_early++;
    } else if (part >= 0.9 && part < 1) {
        w->late += rss;
        w->n_late++;
    }
    if (part >= 1)
        atomic_store(&w->load->stopping, true);
    if (!load_server_lives(w->load)) {
        load_fail(w->load, "the server died");
        ml_loop_stop(w->load->loop);
    }
    if (part * w->load->seconds > w->load->seconds + END_S)
        ml_loop_stop(w->load->loop);
}

static int check(const char *what, bool ok) {
    printf("%s %s\n", ok ? "ok  " : "FAIL", what);
    return ok;
}

static bool flat(const watch *w) {
    double early = w->early / (w->n_early ? w->n_early : 1);
    double late = w->late / (w->n_late ? w->n_late : 1);

    printf("memory: %.1f MiB after the start, %.1f MiB at the end\n", early, late);
    return late <= early * 1.05 + 8;
}

static int report(load *l, const watch *w, int n_busy, bool stopped) {
    int n_ok = 0, n_check = l->no_rss ? 4 : 5;

    printf("%ld whole answers, %ld streams, %ld completions; %ld aborted, %ld vanished, "
           "%ld malformed; %ld rowdy visits\n",
           l->n_whole, l->n_stream, l->n_completion, l->n_aborted, l->n_vanished,
           l->n_malformed, atomic_load(&l->n_rowdy));
    n_ok += check("every answer is the one it gets alone", atomic_load(&l->n_bad) == 0);
    n_ok += check("every request has an end", n_busy == 0);
    n_ok += check("there was traffic of every kind",
                  l->n_whole && l->n_stream && l->n_completion && l->n_aborted &&
                      l->n_vanished && l->n_malformed && atomic_load(&l->n_refused) &&
                      atomic_load(&l->n_slow));
    n_ok += check("SIGTERM ends the server with status 0", stopped);
    if (!l->no_rss)
        n_ok += check("memory is flat", flat(w));
    printf("%d passed, %d failed, 0 skipped\n", n_ok, n_check - n_ok);
    return n_ok == n_check ? 0 : 1;
}

static int run(load *l) {
    int n_rowdy = 1 + l->n_connection / 20, n_busy;
    bool stopped;
    load_rowdies *rowdies;
    watch w = { .load = l };
    ml_timer *timer;

    load_cases_ask(l);
    w.begin = ml_clock_s();
    timer = ml_timer_start(l->loop, 0.1, true, look, &w);
    rowdies = load_rowdies_start(l, n_rowdy);
    w.users = load_users_start(l, l->n_connection - n_rowdy);
    ml_loop_run(l->loop);
    atomic_store(&l->stopping, true);
    n_busy = load_users_busy(w.users);
    load_rowdies_join(rowdies);
    ml_timer_stop(timer);
    stopped = load_server_stop(l);
    ml_http_client_free(l->client);
    load_users_free(w.users);
    return report(l, &w, n_busy, stopped);
}

static bool parse(load *l, int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        bool more = i + 1 < argc;
        if (strcmp(argv[i], "--no-rss") == 0)
            l->no_rss = true;
        else if (strcmp(argv[i], "--router") == 0)
            l->router = true;
        else if (strcmp(argv[i], "--connections") == 0 && more)
            l->n_connection = atoi(argv[++i]);
        else if (strcmp(argv[i], "--seconds") == 0 && more)
            l->seconds = atof(argv[++i]);
        else if (strcmp(argv[i], "--seed") == 0 && more)
            l->seed = atoi(argv[++i]);
        else
            return false;
    }
    return l->n_connection >= 2 && l->seconds > 0;
}

int main(int argc, char **argv) {
    static load l = { .n_connection = 100, .seconds = 15, .seed = 1, .max_body = 100000 };
    ml_err err;
    int code;

    if (!parse(&l, argc, argv)) {
        fprintf(stderr,
                "usage: load_serve --connections N --seconds S [--seed N] [--router] "
                "[--no-rss]\n");
        return 2;
    }
    if (!load_server_start(&l)) {
        printf("the server did not start\n0 passed, 1 failed, 0 skipped\n");
        return 1;
    }
    if (ml_loop_new(&l.loop, &err) != ML_OK) {
        printf("%s\n0 passed, 1 failed, 0 skipped\n", err.msg);
        return 1;
    }
    l.client = ml_http_client_new(l.loop);
    code = run(&l);
    load_cases_free(&l);
    ml_loop_free(l.loop);
    return code;
}
