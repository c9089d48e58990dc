/* bench_model.c - a training step of a 50M-parameter qwen3-shaped model against its GEMMs.
 *
 * Ours is the whole forward and backward of a packed batch, everything included.  The peer
 * is the time OpenBLAS takes for the matrix products of the linear layers and the head
 * alone: forward, input gradient and weight gradient once each, nothing else.  Both are
 * measured in one run, turn by turn, and the best of each counts.
 *
 * Linked with -lopenblas, which is a dependency of benchmarks only. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "bench/openblas.h"
#include "model/plan.h"

#define GOAL 0.75
#define N_SEQ 2
#define SEQ_LEN 256
#define N_TOKEN (N_SEQ * SEQ_LEN)
#define TURNS 9

static const char config[] =
    "{\"model_type\": \"qwen3\", \"vocab_size\": 24576, \"hidden_size\": 512,"
    " \"intermediate_size\": 1536, \"num_hidden_layers\": 12, \"num_attention_heads\": 8,"
    " \"num_key_value_heads\": 4, \"head_dim\": 64, \"tie_word_embeddings\": true}";

static void die(const ml_err *err) {
    fprintf(stderr, "bench_model: %s\n", err->msg);
    exit(1);
}

static void fill(float *p, size_t n, float scale) {
    uint32_t x = 12345;
    for (size_t i = 0; i < n; i++) {
        x = x * 1664525u + 1013904223u;
        p[i] = ((float)(x >> 8) * 0x1p-23f - 1.0f) * scale;
    }
}

typedef struct bench {
    ml_arena arena;
    ml_spec spec;
    ml_backend be;
    ml_weights w, g;
    ml_plan *plan;
    ml_batch batch;
    float *d;
} bench;

static void open_bench(bench *b, int n_thread) {
    ml_err err = { 0 };
    ml_batch_caps caps = { N_TOKEN, N_SEQ, N_TOKEN, N_TOKEN / ML_PAGE };
    int32_t id[SEQ_LEN + 1];

    *b = (bench){ 0 };
    ml_arena_init(&b->arena, "bench");
    if (ml_spec_parse(&b->spec, ml_str_of(config), "config", &err) ||
        ml_backend_cpu_open(&b->be, n_thread, NULL, &err) ||
        ml_weights_zeros(&b->w, &b->spec, &b->be, &b->arena, &err) ||
        ml_weights_zeros(&b->g, &b->spec, &b->be, &b->arena, &err) ||
        ml_plan_new(&b->plan, &b->spec, &b->be,
                    (ml_plan_opts){ .caps = caps, .backward = true }, &err) ||
        ml_plan_alloc(b->plan, &err))
        die(&err);
    fill(b->w.buf.ptr, b->w.buf.bytes / sizeof(float), 0.05f);
    ml_batch_init(&b->batch, &b->arena, caps);
    for (int s = 0; s < N_SEQ; s++) {
        for (int i = 0; i <= SEQ_LEN; i++)
            id[i] = (i * 7919 + s * 104729) % 24576;
        ml_batch_add(&b->batch, id, id + 1, SEQ_LEN, 0, NULL);
    }
    b->d = ML_NEW(&b->arena, float, N_TOKEN);
    for (int i = 0; i < N_TOKEN; i++)
        b->d[i] = -1.0f / N_TOKEN;
}

static void close_bench(bench *b) {
    ml_plan_free(b->plan);
    ml_weights_close(&b->w);
    ml_weights_close(&b->g);
    ml_backend_close(&b->be);
    ml_spec_close(&b->spec);
    ml_arena_release(&b->arena);
}

static double step(bench *b) {
    ml_run run = { .weights = &b->w, .grads = &b->g, .rows = &b->batch.rows };
    double start = ml_clock_s();
    ml_plan_forward(b->plan, &run);
    ml_plan_backward(b->plan, &run, b->d, NULL);
    return ml_clock_s() - start;
}

/* The three products of an [n, k] weight, row-major, in buffers large enough for all. */
static void products(int n, int k, const float *w, const float *x, float *y, float *dw) {
    int m = N_TOKEN;
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, m, n, k, 1, x, k, w, k, 0, y, n);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, m, k, n, 1, y, n, w, k, 0, dw,
                k);
    cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, n, k, m, 1, y, n, x, k, 1, dw, k);
}

static double peer(const ml_spec *s, const float *w, const float *x, float *y, float *dw,
                   double *flops) {
    double start = ml_clock_s();
    *flops = 0;
    for (int32_t i = 0; i < s->n_param; i++) {
        const ml_param *p = &s->param[i];
        if (p->n_dim != 2)
            continue;
        products((int)p->shape[0], (int)p->shape[1], w, x, y, dw);
        *flops += 6.0 * N_TOKEN * (double)ml_param_count(p);
    }
    return ml_clock_s() - start;
}

static float *floats(size_t n) {
    float *p = aligned_alloc(64, n * sizeof *p);
    if (!p)
        exit(1);
    fill(p, n, 0.05f);
    return p;
}

/* Where a step's time goes; means over all turns. */
static void print_ops(const bench *b) {
    const ml_plan_stats *op = ml_plan_stats_of(b->plan);
    for (int i = 0; i < ML_OP_COUNT; i++)
        if (op->rows[i])
            printf("    %-12s forward %8.2f ms   backward %8.2f ms\n", ml_op_infos[i].name,
                   op->forward_s[i] * 1e3 / TURNS, op->backward_s[i] * 1e3 / TURNS);
}

static bool run(int n_thread, FILE *csv) {
    bench b;
    size_t most = (size_t)24576 * 1536;
    float *w = floats(most), *x = floats((size_t)N_TOKEN * 1536);
    float *y = floats((size_t)N_TOKEN * 24576), *dw = floats(most);
    double ours = 1e9, theirs = 1e9, flops = 0, ratio;

    open_bench(&b, n_thread);
    openblas_set_num_threads(n_thread);
    for (int i = 0; i < TURNS; i++) {
        double t = step(&b), u = peer(&b.spec, w, x, y, dw, &flops);
        ours = t < ours ? t : ours;
        theirs = u < theirs ? u : theirs;
    }
    ratio = theirs / ours;
    printf("step of %.1fM parameters, %d tokens, %d thread%s: %.1f ms (%.1f GFLOP/s of its "
           "GEMMs), OpenBLAS alone %.1f ms (%.1f), ratio %.2f, goal %.2f, %s\n",
           (double)ml_spec_param_count(&b.spec) / 1e6, N_TOKEN, n_thread,
           n_thread > 1 ? "s" : "", ours * 1e3, flops / ours / 1e9, theirs * 1e3,
           flops / theirs / 1e9, ratio, GOAL, ratio >= GOAL ? "ok" : "MISS");
    print_ops(&b);
    if (csv)
        fprintf(csv, "step50M,%d,%.4f,%.4f,%.3f,%.2f\n", n_thread, ours, theirs, ratio,
                GOAL);
    close_bench(&b);
    free(w);
    free(x);
    free(y);
    free(dw);
    return ratio >= GOAL;
}

int main(int argc, char **argv) {
    FILE *csv;
    bool ok;

    openblas_use_best_core(argv);
    csv = argc == 3 && !strcmp(argv[1], "--csv") ? fopen(argv[2], "a") : NULL;
    ok = run(1, csv);
    ok = run(2, csv) && ok;
    if (csv)
        fclose(csv);
    return ok ? 0 : 1;
}
