#include "cli/commands/doctor_ranks.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/oom.h"
#include "base/pool.h"

enum {
    N_PING = 50,
    N_LARGE = 3,
};

static const size_t large = (size_t)8 << 20;

/* --- measuring ------------------------------------------------------------------- */

static int threads_of(const ml_comm *c) {
    cpu_set_t set;
    int n;

    CPU_ZERO(&set);
    n = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    n /= c->local_size;
    return n < 1 ? 1 : n > ML_POOL_MAX ? ML_POOL_MAX : n;
}

static ml_status measure_rank(ml_rank_report *out, const ml_comm *c, ml_err *err) {
    ml_backend_opts o = { .device = getenv("MILES_DEVICE"), .n_thread = threads_of(c) };
    ml_backend be = { 0 };
    ml_status st = ml_backend_open(&be, &o, err);

    if (st != ML_OK)
        return st;
    (void)gethostname(out->host, sizeof out->host - 1);
    (void)snprintf(out->backend, sizeof out->backend, "%s %s", be.name, be.level);
    out->n_thread = be.n_thread;
    st = ml_probe_run(&out->probe, &be, err);
    ml_backend_close(&be);
    return st;
}

/* A message to the peer and one byte back; `first` starts.  Returns the seconds. */
static double ping(ml_comm *c, int32_t peer, bool first, void *data, size_t bytes) {
    char one = 0;
    ml_tensor there = ml_comm_bytes(data, bytes), back = ml_comm_bytes(&one, 1);
    double start = ml_clock_s();

    (void)(first ? c->send : c->recv)(c, NULL, &there, peer, NULL);
    (void)(first ? c->recv : c->send)(c, NULL, &back, peer, NULL);
    return ml_clock_s() - start;
}

static double lesser(double a, double b) {
    return a < b ? a : b;
}

static void measure_pair(ml_rank_report *out, ml_comm *c, int32_t peer, bool first,
                         void *data) {
    double best = 1e9, best_large = 1e9;

    for (int i = 0; i < N_PING; i++)
        best = lesser(best, ping(c, peer, first, data, 1));
    for (int i = 0; i < N_LARGE; i++)
        best_large = lesser(best_large, ping(c, peer, first, data, large));
    if (first) {
        out->latency_s = best / 2;
        out->link_bytes = (double)large / best_large;
    }
}

/* One pair at a time: others would share its link. */
static ml_status measure_links(ml_rank_report *out, ml_comm *c, ml_err *err) {
    char *data = ml_memory_grow(NULL, large, "a message");
    ml_status st = ML_OK;

    memset(data, 1, large);
    for (int32_t r = 0; r < c->size && st == ML_OK; r++) {
        int32_t next = (r + 1) % c->size;

        if (c->rank == r)
            measure_pair(out, c, next, true, data);
        else if (c->rank == next)
            measure_pair(out, c, r, false, data);
        st = c->barrier(c, NULL, err);
    }
    free(data);
    return st;
}

ml_status ml_doctor_measure(ml_rank_report *all, ml_comm *c, ml_err *err) {
    ml_rank_report *mine = &all[c->rank];
    ml_tensor in = ml_comm_bytes(mine, sizeof *mine),
              out = ml_comm_bytes(all, (size_t)c->size * sizeof *all);
    ml_status st;

    memset(all, 0, (size_t)c->size * sizeof *all);
    st = c->agree(c, measure_rank(mine, c, err), err);
    if (st == ML_OK && c->size > 1)
        st = measure_links(mine, c, err);
    return st == ML_OK ? c->allgather(c, NULL, &out, &in, err) : st;
}

/* --- the table ------------------------------------------------------------------- */

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double latency(const ml_rank_report *r) {
    return 1.0 / r->latency_s; /* as a speed */
}

static double flops(const ml_rank_report *r) {
    return r->probe.flops;
}

static double memory(const ml_rank_report *r) {
    return r->probe.bytes;
}

static double link_rate(const ml_rank_report *r) {
    return r->link_bytes;
}

static const struct speed {
    double (*of)(const ml_rank_report *r);
    const char *name;
} speeds[] = {
    { flops, "forward pass" },
    { memory, "memory" },
    { latency, "latency to the next rank" },
    { link_rate, "bandwidth to the next rank" },
};

/* Ranks that have less than half of the median speed. */
static void name_slow(ml_text *out, const ml_rank_report *all, int32_t n,
                      const struct speed *s) {
    double *v = ml_memory_grow(NULL, (size_t)n * sizeof *v, "speeds of ranks"), median;

    for (int32_t r = 0; r < n; r++)
        v[r] = s->of(&all[r]);
    qsort(v, (size_t)n, sizeof *v, by_value);
    median = v[n / 2];
    for (int32_t r = 0; r < n; r++)
        if (s->of(&all[r]) < median / 2)
            ml_text_printf(out,
                           "slow       rank %d on host %s: %s %.1f times slower than "
                           "the median rank's\n",
                           (int)r, all[r].host, s->name, median / s->of(&all[r]));
    free(v);
}

/* Backends of one name have the same bits: CPUs of all levels, GPUs of one level. */
static bool alike(const ml_rank_report *a, const ml_rank_report *b) {
    return strcmp(a->probe.hash, b->probe.hash) == 0;
}

/* The rank whose bits most ranks have; of several, the lowest. */
static int32_t usual(const ml_rank_report *all, int32_t n) {
    int32_t best = 0, most = 0;

    for (int32_t r = 0; r < n; r++) {
        int32_t same = 0;
        for (int32_t i = 0; i < n; i++)
            same += alike(&all[r], &all[i]);
        if (same > most) {
            most = same;
            best = r;
        }
    }
    return best;
}

static void put_rank(ml_text *out, const ml_rank_report *r, int32_t rank, int32_t n) {
    ml_text_printf(out,
                   "rank %-5d %s, %s, %d thread%s, bits %.8s, forward %.1f GFLOP/s, "
                   "memory %.1f GB/s",
                   (int)rank, r->host, r->backend, (int)r->n_thread,
                   r->n_thread == 1 ? "" : "s", r->probe.hash, r->probe.flops / 1e9,
                   r->probe.bytes / 1e9);
    if (n > 1)
        ml_text_printf(out, ", to rank %d %.1f us and %.2f GB/s", (int)((rank + 1) % n),
                       r->latency_s * 1e6, r->link_bytes / 1e9);
    ml_text_printf(out, "\n");
}

int32_t ml_doctor_table(ml_text *out, const ml_rank_report *all, int32_t n) {
    int32_t as = usual(all, n), n_wrong = 0;

    for (int32_t r = 0; r < n; r++)
        put_rank(out, &all[r], r, n);
    for (int32_t r = 0; r < n; r++)
        if (!alike(&all[r], &all[as])) {
            ml_text_printf(out,
                           "ranks      ERROR: rank %d on host %s (%s) does not compute "
                           "the bits of rank %d on host %s (%s)\n",
                           (int)r, all[r].host, all[r].backend, (int)as, all[as].host,
                           all[as].backend);
            n_wrong++;
        }
    for (size_t i = 0; i < sizeof speeds / sizeof *speeds && n > 1; i++)
        name_slow(out, all, n, &speeds[i]);
    return n_wrong;
}
