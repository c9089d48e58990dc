/* bench_infer.c - steps of generation of a 135M-parameter llama shape with bf16 weights.
 *
 *     bench_infer [--csv FILE]      lines: case,threads,ours,peer,ratio,goal
 *
 * Forward only, over shared KV pages, two threads.  Ours and the peer take turns in one run
 * and the best of each counts.
 *   prefill     512 tokens of one sequence, logits of the last; the peer is the time OpenBLAS
 *               takes for the matrix products alone, in f32.
 *   decode 1    one token at position CONTEXT; the peer reads the weights' bytes once.
 *   decode 16   a token each of 16 sequences there; the peer is our own prefill, in products
 *               per second (a decoded token needs its logits too, which prefill does not).
 *
 * Linked with -lopenblas, which is a dependency of benchmarks only. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/cpu_priv.h"
#include "base/clock.h"
#include "bench/openblas.h"
#include "model/plan.h"

enum {
    PREFILL = 512,
    CONTEXT = 256,
    MANY = 16,
    SEQ_PAGES = PREFILL / ML_PAGE,
    N_PAGE = MANY * SEQ_PAGES,
    THREADS = 2,
    TURNS = 15,
    LINE = 64,
    PIECE_LINES = 8 * 1024,
};

static const char config[] =
    "{\"model_type\": \"llama\", \"vocab_size\": 49152, \"hidden_size\": 576,"
    " \"intermediate_size\": 1536, \"num_hidden_layers\": 30, \"num_attention_heads\": 9,"
    " \"num_key_value_heads\": 3, \"head_dim\": 64, \"tie_word_embeddings\": true}";

typedef struct bench {
    ml_arena arena;
    ml_spec spec;
    ml_backend be;
    ml_weights w;
    ml_kv kv;
    ml_plan *plan;
    ml_batch batch;
    float *x, *y, *far; /* OpenBLAS' operands: far is the largest weight in f32 */
    FILE *csv;
    bool missed;
} bench;

static void die(const char *what) {
    fprintf(stderr, "bench_infer: %s\n", what);
    exit(1);
}

static float *floats(size_t n) {
    float *p = aligned_alloc(LINE, n * sizeof *p);
    if (!p)
        die("no memory");
    for (size_t i = 0; i < n; i++)
        p[i] = 0.01f * (float)(i % 17);
    return p;
}

static void open_bench(bench *b) {
    ml_err err = { 0 };
    ml_batch_caps caps = { PREFILL, MANY, MANY, N_PAGE };
    ml_plan_opts opts = { .caps = caps, .logits = true, .kv_shared = true };

    ml_arena_init(&b->arena, "bench");
    if (ml_spec_parse(&b->spec, ml_str_of(config), "config", &err) ||
        ml_backend_cpu_open(&b->be, THREADS, NULL, &err) ||
        ml_weights_dummy(&b->w, &b->spec, ML_WEIGHT_BF16, 1, &b->be, &b->arena, &err) ||
        ml_kv_open(&b->kv, &b->spec, N_PAGE, &b->be, &b->arena, &err) ||
        ml_plan_new(&b->plan, &b->spec, &b->be, opts, &err) || ml_plan_alloc(b->plan, &err))
        die(err.msg);
    ml_batch_init(&b->batch, &b->arena, caps);
    b->x = floats((size_t)PREFILL * 1536);
    b->y = floats((size_t)PREFILL * 1536);
    b->far = floats((size_t)1536 * 1536);
}

static void close_bench(bench *b) {
    ml_plan_free(b->plan);
    ml_kv_close(&b->kv);
    ml_weights_close(&b->w);
    ml_backend_close(&b->be);
    ml_spec_close(&b->spec);
    ml_arena_release(&b->arena);
    free(b->x);
    free(b->y);
    free(b->far);
}

/* n tokens each of n_seq sequences, from position `first` on; logits of the last of each. */
static double step(bench *b, int32_t n_seq, int32_t n, int32_t first) {
    ml_run run = { .weights = &b->w, .kv = &b->kv, .rows = &b->batch.rows };
    int32_t id[PREFILL], target[PREFILL], page[SEQ_PAGES];
    double start;

    ml_batch_clear(&b->batch);
    for (int32_t s = 0; s < n_seq; s++) {
        for (int32_t i = 0; i < n; i++) {
            id[i] = (i * 7919 + s * 104729) % 49152;
            target[i] = i == n - 1 ? ML_TARGET_NONE : ML_TARGET_SKIP;
        }
        for (int32_t i = 0; i < SEQ_PAGES; i++)
            page[i] = s * SEQ_PAGES + i;
        ml_batch_add(&b->batch, id, target, n, first, page);
    }
    start = ml_clock_s();
    ml_plan_forward(b->plan, &run);
    return ml_clock_s() - start;
}

/* The products of the linear layers, without the head. */
static double multiply(const bench *b) {
    double start = ml_clock_s();
    for (int32_t i = 0; i < b->spec.n_param; i++) {
        const ml_param *p = &b->spec.param[i];
        const int n = (int)p->shape[0], k = (int)p->shape[1];
        if (p->n_dim == 2 && n <= 1536)
            cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, PREFILL, n, k, 1, b->x, k,
                        b->far, k, 0, b->y, n);
    }
    return ml_clock_s() - start;
}

typedef struct reading {
    const char *at;
    uint64_t sum[THREADS];
} reading;

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

static double read_weights(const bench *b) {
    reading r = { .at = b->w.buf.ptr };
    double start = ml_clock_s();
    ml_pool_run(ml_cpu(b->be.stream)->pool, (int64_t)(b->w.buf.bytes / LINE), PIECE_LINES,
                read_lines, &r);
    return ml_clock_s() - start;
}

static void report(bench *b, const char *name, const char *unit, double ours, double peer,
                   double goal) {
    const double ratio = ours / peer;

    printf("%-10s %d threads  %8.1f %-8s peer %8.1f  ratio %.2f  goal %.2f  %s\n", name,
           THREADS, ours, unit, peer, ratio, goal, ratio >= goal ? "ok" : "MISS");
    if (b->csv)
        fprintf(b->csv, "%s,%d,%.2f,%.2f,%.3f,%.2f\n", name, THREADS, ours, peer, ratio,
                goal);
    b->missed = b->missed || ratio < goal;
}

static void keep_least(double *least, double t) {
    if (t < *least)
        *least = t;
}

static void run(bench *b) {
    double prefill = 1e9, products = 1e9, one = 1e9, reads = 1e9, many = 1e9;
    double layers = 0, head = 0; /* GFLOP of a token */

    for (int32_t i = 0; i < b->spec.n_param; i++) {
        const ml_param *p = &b->spec.param[i];
        double gflop = p->n_dim == 2 ? 2e-9 * (double)ml_param_count(p) : 0;
        *(p->shape[0] <= 1536 ? &layers : &head) += gflop;
    }
    step(b, MANY, PREFILL / MANY, 0); /* keys and values that are numbers */
    for (int i = 0; i < TURNS; i++) {
        keep_least(&prefill, step(b, 1, PREFILL, 0));
        keep_least(&many, step(b, MANY, 1, CONTEXT));
        keep_least(&one, step(b, 1, 1, CONTEXT));
        keep_least(&reads, read_weights(b));
        keep_least(&products, multiply(b));
    }
    printf("prefill %.0f tokens/s, decode of %d %.0f tokens/s, of 1 %.0f tokens/s\n",
           PREFILL / prefill, MANY, MANY / many, 1 / one);
    report(b, "prefill", "GFLOP/s", PREFILL * layers / prefill, PREFILL * layers / products,
           0.8);
    report(b, "decode 1", "GB/s", 1e-9 * (double)b->w.buf.bytes / one,
           1e-9 * (double)b->w.buf.bytes / reads, 0.75);
    report(b, "decode 16", "GFLOP/s", MANY * (layers + head) / many,
           PREFILL * layers / prefill, 0.75);
}

int main(int argc, char **argv) {
    bench b = { 0 };

    openblas_use_best_core(argv);
    if (argc == 3 && strcmp(argv[1], "--csv") == 0)
        b.csv = fopen(argv[2], "a");
    if (argc != 1 && !b.csv)
        die("usage: bench_infer [--csv FILE], FILE to be written to");
    open_bench(&b);
    openblas_set_num_threads(THREADS);
    run(&b);
    close_bench(&b);
    if (b.csv)
        fclose(b.csv);
    return b.missed ? 1 : 0;
}
