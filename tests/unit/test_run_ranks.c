/* The ranks of a run: their part of a host, their heartbeats, the flags that name sizes. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "run/heartbeat.h"
#include "run/opts.h"
#include "tests/support/ranks.h"
#include "tests/support/test.h"

static void sleep_s(double s) {
    struct timespec t = { (time_t)s, (long)(1e9 * (s - (double)(time_t)s)) };
    nanosleep(&t, NULL);
}

static ml_status check(int64_t nodes, int64_t per_node, int64_t most, bool dry_run,
                       const ml_run_ranks *r, ml_err *err) {
    ml_run_opts o = { .place = { nodes, per_node, most, 10 }, .dry_run = dry_run };
    return ml_run_ranks_check(r, &o, err);
}

static void one_rank_is_a_job(void) {
    ml_run_ranks r;
    ml_err err = { 0 };

    CHECK(ml_run_ranks_open(&r, NULL, 60, &err) == ML_OK);
    CHECK(ml_run_ranks_first(&r) && ml_run_ranks_size(&r) == 1 && !r.data);
    CHECK(ml_run_ranks_threads(&r, 7) == 7 && ml_run_ranks_bytes(&r, 1000, true) == 1000);
    CHECK(check(0, 0, 0, false, &r, &err) == ML_OK);
    CHECK(check(1, 1, 1, false, &r, &err) == ML_OK);
    CHECK(check(2, 8, 8, true, &r, &err) == ML_OK); /* a dry run plans one of 16 */
    CHECK(check(2, 8, 8, false, &r, &err) == ML_EUSAGE);
    CHECK(strstr(err.msg, "16 ranks") && strstr(err.msg, "mpirun -n 16"));
    ml_run_ranks_close(&r);
}

static void place(ml_comm *c, void *ud) {
    ml_run_opts witness = { .record = { .coverage = true } };
    ml_run_ranks r;
    ml_err err = { 0 };

    (void)ud;
    CHECK(ml_run_ranks_open(&r, c, 60, &err) == ML_OK);
    CHECK(ml_run_ranks_size(&r) == 3 && ml_run_ranks_first(&r) == (c->rank == 0));
    CHECK(r.n_host == 1 && r.local_size == 3 && r.local_rank == c->rank && !r.n_core);
    CHECK(r.data && r.data != c && r.data->deadline_s == 60 && c->deadline_s == 0);
    CHECK(ml_run_ranks_threads(&r, 7) == 2 && ml_run_ranks_threads(&r, 2) == 1);
    CHECK(ml_run_ranks_bytes(&r, 1000, true) == 333);
    CHECK(r.n_device == 2 && ml_run_ranks_bytes(&r, 1000, false) == 500);
    CHECK(check(0, 0, 0, false, &r, &err) == ML_OK);
    CHECK(check(1, 3, 3, false, &r, &err) == ML_OK);
    CHECK(check(1, 2, 0, true, &r, &err) == ML_EUSAGE && strstr(err.msg, "mpirun -n 2"));
    CHECK(check(0, 0, 2, false, &r, &err) == ML_EUSAGE && strstr(err.msg, "has 3 ranks"));
    CHECK(ml_run_ranks_check(&r, &witness, &err) == ML_EUSAGE);
    CHECK(strstr(err.msg, "--enable-witness needs one rank"));
    ml_run_ranks_close(&r);
}

/* The environment is the process's: the ranks here overwrite each other's choice. */
static void ranks_divide_their_host(void) {
    setenv("CUDA_VISIBLE_DEVICES", "4,7", 1);
    ml_ranks_run(3, place, NULL);
    CHECK(strcmp(getenv("CUDA_VISIBLE_DEVICES"), "4") == 0 ||
          strcmp(getenv("CUDA_VISIBLE_DEVICES"), "7") == 0);
}

/* --- heartbeats -------------------------------------------------------------------- */

static void beat(ml_comm *c, void *ud) {
    ml_heartbeat *h;
    ml_err err = { 0 };

    (void)ud;
    CHECK(ml_heartbeat_open(&h, c, 40, &err) == ML_OK && h);
    sleep_s(0.01 * c->rank); /* they end one after the other */
    ml_heartbeat_close(h);
    CHECK(c->barrier(c, NULL, &err) == ML_OK);
}

static void heartbeats_end(void) {
    ml_heartbeat *h;
    ml_err err = { 0 };

    for (int32_t n = 2; n < 6; n++)
        ml_ranks_run(n, beat, NULL);
    CHECK(ml_heartbeat_open(&h, NULL, 60, &err) == ML_OK && !h);
    ml_heartbeat_close(h);
}

/* The last rank joins the ring and falls silent; the others wait for something else. */
static void fall_silent(ml_comm *c, void *ud) {
    ml_heartbeat *h = NULL;
    ml_comm *ring;
    ml_err err = { 0 };
    char byte;
    ml_tensor t = ml_comm_bytes(&byte, 1);

    (void)ud;
    if (c->rank == c->size - 1) {
        CHECK(c->split(c, &ring, 0, c->rank, &err) == ML_OK);
        CHECK(ring->recv(ring, NULL, &t, 1, &err) == ML_OK); /* a beat; none is sent */
        CHECK(c->recv(c, NULL, &t, 0, &err) == ML_EPEER);
        ring->close(ring);
        return;
    }
    CHECK(ml_heartbeat_open(&h, c, 0.4, &err) == ML_OK);
    CHECK(c->recv(c, NULL, &t, c->size - 1, &err) == ML_EPEER);
    CHECK(strstr(err.msg, "heartbeats") && strstr(err.msg, "rank 2"));
    ml_heartbeat_close(h);
}

static void a_silent_rank_is_named(void) {
    ml_ranks_run(3, fall_silent, NULL);
}

static const ml_test tests[] = {
    { "one rank is a job", one_rank_is_a_job },
    { "ranks divide threads and memory of their host", ranks_divide_their_host },
    { "heartbeats end with their ranks", heartbeats_end },
    { "a silent rank is named while others wait", a_silent_rank_is_named },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
