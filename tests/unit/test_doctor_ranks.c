/* The probe of a backend, and what miles doctor says about the ranks of a job. */
#include <stdlib.h>
#include <string.h>

#include "cli/commands/doctor_ranks.h"
#include "tests/support/ranks.h"
#include "tests/support/test.h"

static void probe_is(const char *level, int n_thread, const char *hash) {
    ml_backend be = { 0 };
    ml_probe p;
    ml_err err = { 0 };

    CHECK(ml_backend_cpu_open(&be, n_thread, level, &err) == ML_OK);
    CHECK(ml_probe_run(&p, &be, &err) == ML_OK);
    if (strcmp(p.hash, hash) != 0)
        ml_test_fail(__FILE__, __LINE__, "%s, %d threads: %s", be.level, n_thread, p.hash);
    CHECK(p.flops > 0 && p.bytes > 0);
    ml_backend_close(&be);
}

/* All CPUs have the same bits, arm64 and x86-64 alike. */
static void one_hash(void) {
    static const char hash[] = "bd3a631741e39bb5586abcea6f4f495a";

    for (const char *const *l = ml_backend_cpu_levels(); *l && !ML_TEST_SANITIZED; l++)
        probe_is(*l, 1, hash);
    probe_is(NULL, 3, hash);
}

static void measure(ml_comm *c, void *ud) {
    ml_rank_report *all = calloc((size_t)c->size, sizeof *all);
    ml_err err = { 0 };

    (void)ud;
    CHECK(ml_doctor_measure(all, c, &err) == ML_OK);
    for (int32_t r = 0; r < c->size; r++) {
        CHECK(strcmp(all[r].probe.hash, all[0].probe.hash) == 0 && all[r].probe.hash[0]);
        CHECK(all[r].probe.flops > 0 && all[r].n_thread >= 1 && all[r].host[0]);
        CHECK(c->size == 1 || (all[r].latency_s > 0 && all[r].link_bytes > 0));
    }
    free(all);
}

static void every_rank(void) {
    ml_ranks_run(1, measure, NULL);
    ml_ranks_run(3, measure, NULL);
}

static void fill(ml_rank_report *all, int32_t n) {
    for (int32_t r = 0; r < n; r++)
        all[r] = (ml_rank_report){ .host = "a",
                                   .backend = "cpu avx512",
                                   .n_thread = 4,
                                   .probe = { "0123456789abcdef", 3e11, 2e10 },
                                   .latency_s = 2e-6,
                                   .link_bytes = 5e9 };
}

static void table(void) {
    ml_rank_report all[4];
    ml_text t = { 0 };

    fill(all, 4);
    CHECK(ml_doctor_table(&t, all, 4) == 0);
    CHECK_HAS(t.ptr, "rank 0     a, cpu avx512, 4 threads, bits 01234567, forward 300.0 "
                     "GFLOP/s, memory 20.0 GB/s, to rank 1 2.0 us and 5.00 GB/s\n");
    CHECK_HAS(t.ptr, "to rank 0 2.0 us");
    CHECK(!strstr(t.ptr, "ERROR") && !strstr(t.ptr, "slow"));
    ml_text_release(&t);
}

static void others(void) {
    ml_rank_report all[4];
    ml_text t = { 0 };

    fill(all, 4);
    strcpy(all[0].host, "b");
    strcpy(all[0].backend, "cuda sm90");
    strcpy(all[0].probe.hash, "f");
    all[2].probe.flops /= 10;
    all[3].latency_s *= 5;
    CHECK(ml_doctor_table(&t, all, 4) == 1);
    CHECK_HAS(t.ptr, "ranks      ERROR: rank 0 on host b (cuda sm90) does not compute the "
                     "bits of rank 1 on host a (cpu avx512)\n");
    CHECK_HAS(t.ptr, "slow       rank 2 on host a: forward pass 10.0 times slower than the "
                     "median rank's\n");
    CHECK_HAS(t.ptr, "slow       rank 3 on host a: latency to the next rank 5.0 times");
    ml_text_release(&t);
}

static const ml_test tests[] = {
    { "the probe has the same bits at every level and thread count", one_hash, 300 },
    { "every rank of a job is measured and sees all reports", every_rank },
    { "the table of ranks has a line for each", table },
    { "a rank with other bits and a slow rank are named with their host", others },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
