/* bench_ranks.c - what ranks cost on the CPU: the 48M training step, f32.
 *
 *     bench_ranks [--turns N]
 *
 * Measures, turn by turn, one rank without a mesh and with a mesh of one rank, both with two
 * threads, and two data parallel ranks with a thread each.  The best step of each counts: other
 * work on the machine makes steps slower, never faster.  Each turn prints its best steps.  Goals:
 * the mesh of one rank costs at most 1 %; two ranks have at least 0.9 of the speed of one rank with
 * two threads. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "bench/train48m.h"
#include "comm/threads/threads.h"

enum { STEPS = 3, MAX_RANK = 2 };

typedef struct variant {
    const char *name;
    int32_t n_rank;
    int n_thread;
    bool mesh;
    double best, last; /* steps: of all turns, of the latest one */
} variant;

typedef struct rank {
    pthread_t thread;
    ml_comm *comm;
    variant *v;
} rank;

static void die(const char *what) {
    fprintf(stderr, "bench_ranks: %s\n", what);
    exit(1);
}

static void must(ml_status st, const ml_err *err) {
    if (st != ML_OK)
        die(err->msg);
}

static double step(ml_trainer *t, const ml_train_sample *sample, ml_comm *c) {
    ml_schedule plan;
    ml_step_result r;
    ml_err err = { 0 };
    double start;
    ml_arena a;

    ml_arena_init(&a, "step");
    must(ml_trainer_schedule(&plan, t, &a, sample, N_SEQ, &err), &err);
    must(c->barrier(c, NULL, &err), &err);
    start = ml_clock_s();
    must(ml_trainer_step(t,
                         &(ml_step){ .sample = sample,
                                     .micro = &plan.step[0].rank[ml_trainer_data_place(t)],
                                     .n_rollout = N_SEQ,
                                     .denominator = N_SEQ * (SEQ_LEN - 1),
                                     .loss = nll },
                         &r, &err),
         &err);
    ml_arena_release(&a);
    return ml_clock_s() - start;
}

static void *run_rank(void *p) {
    const rank *r = p;
    ml_trainer_opts opts = trainer_opts(r->v->n_rank);
    int32_t *token = calloc(N_SEQ * SEQ_LEN, sizeof *token);
    ml_train_sample sample[N_SEQ];
    ml_trainer *t;
    ml_mesh mesh;
    ml_arena a;
    ml_spec spec;
    ml_backend be;
    ml_weights w;
    ml_err err = { 0 };

    ml_arena_init(&a, "rank");
    if (!token)
        die("no memory");
    make_samples(sample, token);
    must(ml_mesh_open(&mesh, r->comm, NULL, (ml_mesh_opts){ 0 }, &err), &err);
    opts.mesh = r->v->mesh ? &mesh : NULL;
    must(ml_spec_parse(&spec, ml_str_of(config), "config", &err), &err);
    must(ml_backend_cpu_open(&be, r->v->n_thread, NULL, &err), &err);
    must(ml_weights_dummy(&w, &spec, ML_WEIGHT_F32, 1, &be, &a, &err), &err);
    must(ml_trainer_open(&t, &spec, &w, &be, &opts, &err), &err);
    for (int i = 0; i <= STEPS; i++) { /* the first one allocates */
        double s = step(t, sample, r->comm);
        if (i > 0 && r->comm->rank == 0 && s < r->v->last)
            r->v->last = s;
    }
    ml_trainer_close(t);
    ml_weights_close(&w);
    ml_backend_close(&be);
    ml_spec_close(&spec);
    ml_mesh_close(&mesh);
    r->comm->close(r->comm);
    ml_arena_release(&a);
    free(token);
    return NULL;
}

static void run(variant *v) {
    ml_comm *c[MAX_RANK];
    rank all[MAX_RANK];
    ml_err err = { 0 };

    v->last = 1e9;
    must(ml_comm_threads_open(c, v->n_rank, &err), &err);
    for (int32_t i = 0; i < v->n_rank; i++) {
        all[i] = (rank){ .comm = c[i], .v = v };
        if (pthread_create(&all[i].thread, NULL, run_rank, &all[i]))
            die("cannot start a thread");
    }
    for (int32_t i = 0; i < v->n_rank; i++)
        pthread_join(all[i].thread, NULL);
    v->best = v->last < v->best ? v->last : v->best;
}

int main(int argc, char **argv) {
    variant of[] = { { "one rank, 2 threads", 1, 2, false, 1e9, 0 },
                     { "the same with a mesh", 1, 2, true, 1e9, 0 },
                     { "dp 2, a thread each", 2, 1, true, 1e9, 0 } };
    int n_turn = argc == 3 && strcmp(argv[1], "--turns") == 0 ? atoi(argv[2]) : 6;
    double mesh, dp;

    for (int i = 0; i < n_turn; i++) {
        for (size_t k = 0; k < sizeof of / sizeof *of; k++)
            run(&of[(k + (size_t)i) % 3]); /* each one comes first in turn */
        fprintf(stderr, "turn %d of %d: %.1f, %.1f, %.1f ms\n", i + 1, n_turn,
                1e3 * of[0].last, 1e3 * of[1].last, 1e3 * of[2].last);
    }
    for (size_t k = 0; k < sizeof of / sizeof *of; k++)
        printf("train48M, %-20s %8.1f ms, %.0f tokens/s\n", of[k].name, 1e3 * of[k].best,
               N_SEQ * SEQ_LEN / of[k].best);
    mesh = of[1].best / of[0].best;
    dp = of[0].best / of[2].best;
    printf("a mesh of one rank: %.3f of the time without, goal 1.01, %s\n", mesh,
           mesh <= 1.01 ? "ok" : "MISS");
    printf("dp 2: %.2f of the speed of one rank, goal 0.90, %s\n", dp,
           dp >= 0.9 ? "ok" : "MISS");
    return mesh <= 1.01 && dp >= 0.9 ? 0 : 1;
}
