/* bench_gemm.c - the products of linear layers against OpenBLAS, memory and the FMA units.
 *
 *     bench_gemm [--csv FILE]      lines: case,threads,ours,peer,ratio,goal
 *
 * Ours and the peer take turns in one run and the best of each counts.
 *   M=512   GFLOP/s of the three products, f32; the peer is OpenBLAS' sgemm.
 *   M=1     GB/s of weights that no cache holds; the peer only reads as many bytes.
 *   M=8, 16 GFLOP/s on such weights; the peer is what that reading speed or the FMA units
 *           allow, whichever is lower.
 *   experts GFLOP/s of MOE_LINEAR, 64 experts with 1,024 tokens of 4 each, unevenly spread;
 *           the peer is our own dense product of as many rows.
 * Every line also says which share of the FMA units' speed ours is.
 *
 * Linked with -lopenblas, which is a dependency of benchmarks only. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "backend/backend.h"
#include "backend/cpu/gemm.h"
#include "base/clock.h"
#include "bench/fma.h"
#include "bench/openblas.h"

enum {
    TURNS = 15,
    ROWS = 512,
    FAR_N = 3072, /* the weights that come from memory: FAR_N x FAR_K, one after another */
    FAR_K = 1024,
};

static const size_t far_bytes = (size_t)1200 << 20; /* several times the largest cache */

typedef struct bench {
    ml_backend be;
    const ml_cpu_stream *s;
    int threads;
    double peak; /* FMA units, GFLOP/s of all threads */
    FILE *csv;
    bool missed;
} bench;

static void die(const char *what) {
    fprintf(stderr, "bench_gemm: %s\n", what);
    exit(1);
}

static void *allocate(size_t bytes) {
    void *p = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    if (!p)
        die("no memory");
    memset(p, 0x3c, bytes); /* 0.0115 in f32 and in bf16; also, pages of its own */
    return p;
}

static double lesser(double a, double b) {
    return a < b ? a : b;
}

static void report(bench *b, const char *name, const char *unit, double ours, double peer,
                   double goal, double gflops) {
    const double ratio = ours / peer;

    printf(
        "%-30s %d thread%s  %7.1f %-8s peer %7.1f  ratio %.2f  goal %.2f  %-4s  (%.0f%% of "
        "FMA peak)\n",
        name, b->threads, b->threads > 1 ? "s" : " ", ours, unit, peer, ratio, goal,
        ratio >= goal ? "ok" : "MISS", 100.0 * gflops / b->peak);
    fflush(stdout);
    if (b->csv)
        fprintf(b->csv, "%s,%d,%.2f,%.2f,%.3f,%.2f\n", name, b->threads, ours, peer, ratio,
                goal);
    b->missed = b->missed || ratio < goal;
}

/* OpenBLAS' threads look for work some 30 ms long before they sleep. */
static void let_peer_sleep(const bench *b) {
    if (b->threads > 1)
        nanosleep(&(struct timespec){ .tv_nsec = 50000000 }, NULL);
}

/* ---- the FMA units ---- */

enum { PEAK_PIECES = 16 };

typedef struct fma_job {
    const char *level;
    double flop[ML_POOL_MAX];
} fma_job;

static void run_fmas(void *ud, int64_t begin, int64_t end, int worker) {
    fma_job *j = ud;
    volatile float out;

    for (int64_t i = begin; i < end; i++)
        j->flop[worker] += fma_run(j->level, &out);
}

static double fma_peak(bench *b) {
    double best = 0;

    for (int i = 0; i < 10 * TURNS; i++) {
        fma_job j = { .level = b->be.level };
        const double start = ml_clock_s();
        double flop = 0, speed;
        ml_pool_run(b->s->pool, PEAK_PIECES * b->threads, 1, run_fmas, &j);
        for (int t = 0; t < b->threads; t++)
            flop += j.flop[t];
        speed = 1e-9 * flop / (ml_clock_s() - start);
        best = speed > best ? speed : best;
    }
    if (best == 0)
        die("the speed of FMAs is not measured at this level");
    return best;
}

/* ---- M=512 ---- */

typedef enum direction { FORWARD, DINPUT, DWEIGHT } direction;
static const char *const direction_name[] = { "forward", "dinput", "dweight" };

typedef struct layer {
    int n, k;
    float *x, *y, *w, *dx, *dw;
    void *scratch;
} layer;

static void ours(const bench *b, const layer *l, direction d) {
    const ml_tensor w = { l->w, ML_F32, ML_PANELS, 2, { l->n, l->k } };
    const ml_tensor dw = { l->dw, ML_F32, ML_PANELS, 2, { l->n, l->k } };
    const ml_gemm_out out = { l->y, l->n, &w, NULL };

    switch (d) {
    case FORWARD: ml_gemm_forward(b->s, &out, 1, l->x, l->k, ROWS, l->scratch); break;
    case DINPUT:
        ml_gemm_dinput(b->s, l->dx, l->k, l->y, l->n, &w, ROWS, false, false, l->scratch);
        break;
    case DWEIGHT:
        ml_gemm_dweight(b->s, &dw, l->y, l->n, l->x, l->k, ROWS, NULL, true, l->scratch);
        break;
    }
}

static void theirs(const layer *l, direction d) {
    const int m = ROWS, n = l->n, k = l->k;

    switch (d) {
    case FORWARD:
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, m, n, k, 1, l->x, k, l->w, k,
                    0, l->y, n);
        break;
    case DINPUT:
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, m, k, n, 1, l->y, n, l->w, k,
                    0, l->dx, k);
        break;
    case DWEIGHT:
        cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, n, k, m, 1, l->y, n, l->x, k,
                    1, l->dw, k);
        break;
    }
}

static void bench_direction(bench *b, const layer *l, direction d) {
    const double gflop = 2e-9 * ROWS * l->n * l->k;
    double best = 1e9, peer = 1e9;
    char name[64];

    for (int i = 0; i < TURNS; i++) {
        double start;
        let_peer_sleep(b);
        ours(b, l, d); /* wakes the pool, as the layer before would */
        start = ml_clock_s();
        ours(b, l, d);
        best = lesser(best, ml_clock_s() - start);
        theirs(l, d);
        start = ml_clock_s();
        theirs(l, d);
        peer = lesser(peer, ml_clock_s() - start);
    }
    snprintf(name, sizeof name, "gemm %s M=%d N=%d K=%d", direction_name[d], ROWS, l->n,
             l->k);
    report(b, name, "GFLOP/s", gflop / best, gflop / peer, 0.85, gflop / best);
}

static void bench_layer(bench *b, int n, int k) {
    const size_t weights = sizeof(float) * (size_t)n * (size_t)k;
    const ml_tensor w = { NULL, ML_F32, ML_PANELS, 2, { n, k } };
    layer l = {
        .n = n,
        .k = k,
        .x = allocate(sizeof(float) * ROWS * (size_t)k),
        .y = allocate(sizeof(float) * ROWS * (size_t)n),
        .w = allocate(weights),
        .dx = allocate(sizeof(float) * ROWS * (size_t)k),
        .dw = allocate(weights),
        .scratch = allocate(ml_gemm_scratch(b->s, &w, ROWS)),
    };

    for (direction d = FORWARD; d <= DWEIGHT; d++)
        bench_direction(b, &l, d);
    free(l.x);
    free(l.y);
    free(l.w);
    free(l.dx);
    free(l.dw);
    free(l.scratch);
}

/* ---- M=1, M=8 and M=16 ---- */

typedef struct reading {
    const char *at;
    uint64_t sum[ML_POOL_MAX];
} reading;

enum { LINE = 64, PIECE_LINES = 8 * 1024, MOST_ROWS = 16 };

/* One word of every line: memory sends the whole line, and nothing else takes time. */
static void read_lines(void *ud, int64_t begin, int64_t end, int worker) {
    reading *r = ud;
    uint64_t sum = 0, word;

    for (int64_t i = begin; i < end; i++) {
        memcpy(&word, r->at + i * LINE, sizeof word);
        sum += word;
    }
    r->sum[worker] += sum;
}

static void bench_far(bench *b, char *far, ml_dtype dtype, int m) {
    const size_t bytes = (size_t)FAR_N * FAR_K * ml_dtype_bytes(dtype);
    const double gflop = 2e-9 * m * FAR_N * FAR_K, gbyte = 1e-9 * (double)bytes;
    static float x[MOST_ROWS * FAR_K], y[MOST_ROWS * FAR_N];
    const ml_tensor any = { NULL, dtype, ML_PANELS, 2, { FAR_N, FAR_K } };
    void *scratch = allocate(ml_gemm_scratch(b->s, &any, m));
    double best = 1e9, reads = 1e9;
    reading r = { 0 };
    char name[64];

    for (size_t at = 0; at + 2 * bytes <= far_bytes; at += 2 * bytes) {
        ml_tensor w = any;
        double start = ml_clock_s();
        w.data = far + at;
        const ml_gemm_out out = { y, FAR_N, &w, NULL };
        ml_gemm_forward(b->s, &out, 1, x, FAR_K, m, scratch);
        best = lesser(best, ml_clock_s() - start);
        r.at = far + at + bytes;
        start = ml_clock_s();
        ml_pool_run(b->s->pool, (int64_t)(bytes / LINE), PIECE_LINES, read_lines, &r);
        reads = lesser(reads, ml_clock_s() - start);
    }
    free(scratch);
    snprintf(name, sizeof name, "stream %s M=%d N=%d K=%d", ml_dtype_name(dtype), m, FAR_N,
             FAR_K);
    if (m == 1)
        report(b, name, "GB/s", gbyte / best, gbyte / reads, 0.85, gflop / best);
    else
        report(b, name, "GFLOP/s", gflop / best, lesser(gflop / reads, b->peak), 0.75,
               gflop / best);
}

/* ---- experts ---- */

enum { EXPERTS = 64, PAIRS = 4096, EXPERT_N = 512, EXPERT_K = 1024 };

typedef struct experts {
    ml_op_args one, many; /* a dense layer, and MOE_LINEAR, on the same rows */
    int32_t start[EXPERTS + 1];
} experts;

/* From 40 to 88 rows each. */
static void spread_rows(int32_t *start) {
    start[0] = 0;
    for (int e = 0; e < EXPERTS; e++)
        start[e + 1] = start[e] + PAIRS / EXPERTS + 8 * (e % 7 - 3);
    start[EXPERTS] = PAIRS;
}

static void open_experts(experts *x, const bench *b) {
    static const ml_op_attr attr = { .moe = {
                                         .n_expert = EXPERTS, .top_k = 4, .scale = 1 } };
    const size_t weight = sizeof(float) * EXPERT_N * EXPERT_K;
    const ml_tensor w = {
        allocate(weight * EXPERTS), ML_F32, ML_PANELS, 3, { EXPERTS, EXPERT_N, EXPERT_K }
    };
    ml_op_args a = { .attr = &attr };

    spread_rows(x->start);
    a.in[0] = (ml_tensor){
        allocate(sizeof(float) * PAIRS * EXPERT_K), ML_F32, ML_ROWS, 2, { PAIRS, EXPERT_K }
    };
    a.out[0] = (ml_tensor){
        allocate(sizeof(float) * PAIRS * EXPERT_N), ML_F32, ML_ROWS, 2, { PAIRS, EXPERT_N }
    };
    a.din[0] = a.in[0];
    a.din[0].data = allocate(sizeof(float) * PAIRS * EXPERT_K);
    a.dout[0] = a.out[0];
    x->one = x->many = a;
    x->one.w[0] = (ml_tensor){ w.data, ML_F32, ML_PANELS, 2, { EXPERT_N, EXPERT_K } };
    x->many.w[0] = w;
    x->many.in[1] = (ml_tensor){ x->start, ML_I32, ML_ROWS, 1, { EXPERTS + 1 } };
    x->one.dw[0] = x->one.w[0];
    x->many.dw[0] = w;
    x->one.dw[0].data = x->many.dw[0].data = allocate(weight * EXPERTS);
    x->one.scratch = x->many.scratch =
        allocate(ml_cpu_moe_linear_scratch(b->s, &x->many, false));
}

static void close_experts(experts *x) {
    free(x->many.w[0].data);
    free(x->many.dw[0].data);
    free(x->many.in[0].data);
    free(x->many.out[0].data);
    free(x->many.din[0].data);
    free(x->many.scratch);
}

static double time_op(const bench *b, ml_op_id op, const ml_op_args *a, bool backward) {
    const double start = ml_clock_s();
    (backward ? b->be.ops->backward : b->be.ops->forward)[op](b->be.stream, a);
    return ml_clock_s() - start;
}

static void bench_experts(bench *b) {
    experts x;

    open_experts(&x, b);
    for (int backward = 0; backward < 2; backward++) {
        const double gflop = 2e-9 * PAIRS * EXPERT_N * EXPERT_K * (backward ? 2 : 1);
        double best = 1e9, peer = 1e9;
        for (int i = 0; i < TURNS; i++) {
            best = lesser(best, time_op(b, ML_OP_MOE_LINEAR, &x.many, backward));
            peer = lesser(peer, time_op(b, ML_OP_LINEAR, &x.one, backward));
        }
        report(b, backward ? "experts backward" : "experts forward", "GFLOP/s",
               gflop / best, gflop / peer, 0.7, gflop / best);
    }
    close_experts(&x);
}

static void bench_threads(bench *b, int threads, char *far) {
    ml_err err;

    if (ml_backend_cpu_open(&b->be, threads, NULL, &err))
        die(err.msg);
    openblas_set_num_threads(threads);
    b->threads = threads;
    b->s = ml_cpu(b->be.stream);
    b->peak = fma_peak(b);
    printf("level %s, %d thread%s: FMA peak %.1f GFLOP/s\n", b->be.level, threads,
           threads > 1 ? "s" : "", b->peak);
    bench_far(b, far, ML_F32, 1);
    bench_far(b, far, ML_BF16, 1);
    bench_far(b, far, ML_F32, 8);
    bench_far(b, far, ML_BF16, 8);
    bench_far(b, far, ML_F32, 16);
    bench_far(b, far, ML_BF16, 16);
    bench_layer(b, 1024, 1024);
    bench_layer(b, 3072, 1024);
    bench_layer(b, 1024, 3072);
    bench_experts(b);
    ml_backend_close(&b->be);
}

int main(int argc, char **argv) {
    bench b = { 0 };
    char *far;

    openblas_use_best_core(argv);
    if (argc == 3 && strcmp(argv[1], "--csv") == 0)
        b.csv = fopen(argv[2], "a");
    if (argc != 1 && !b.csv)
        die("usage: bench_gemm [--csv FILE], FILE to be written to");
    printf("peer: OpenBLAS with its %s kernels\n", openblas_get_corename());
    far = allocate(far_bytes);
    bench_threads(&b, 1, far);
    bench_threads(&b, 2, far);
    free(far);
    if (b.csv)
        fclose(b.csv);
    return b.missed ? 1 : 0;
}
