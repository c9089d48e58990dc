/* bench_model.c - training steps of small models against their GEMMs.
 *
 *     bench_model [--csv FILE]      lines: case,threads,ours,peer,ratio,goal
 *
 * Ours is the whole forward and backward of a packed batch, everything included; logits are
 * kept.  The peer is the time OpenBLAS takes for the matrix products of the linear layers and
 * the head alone: forward, input gradient and weight gradient once each, nothing else.  Both
 * are measured in one run, turn by turn, and the best of each counts.
 *
 * Linked with -lopenblas, which is a dependency of benchmarks only. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "bench/openblas.h"
#include "model/plan.h"

#define GOAL 0.75
#define TURNS 9
#define SEQ_LEN 256

typedef struct bench_case {
    const char *name, *config;
    int n_seq; /* of SEQ_LEN tokens */
} bench_case;

static const bench_case cases[] = {
    { "step50M",
      "{\"model_type\": \"qwen3\", \"vocab_size\": 24576, \"hidden_size\": 512,"
      " \"intermediate_size\": 1536, \"num_hidden_layers\": 12,"
      " \"num_attention_heads\": 8, \"num_key_value_heads\": 4, \"head_dim\": 64,"
      " \"tie_word_embeddings\": true}",
      2 },
    { "step48M",
      "{\"model_type\": \"llama\", \"vocab_size\": 32000, \"hidden_size\": 512,"
      " \"intermediate_size\": 1536, \"num_hidden_layers\": 10,"
      " \"num_attention_heads\": 8, \"num_key_value_heads\": 4, \"head_dim\": 64,"
      " \"tie_word_embeddings\": true}",
      4 },
};

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
    int n_token;
    float *d;
} bench;

static void open_bench(bench *b, const bench_case *c, int n_thread) {
    ml_err err = { 0 };
    const int n = c->n_seq * SEQ_LEN;
    ml_batch_caps caps = { n, c->n_seq, n, n / ML_PAGE };
    ml_plan_opts opts = { .caps = caps, .backward = true, .logits = true };
    int32_t id[SEQ_LEN + 1];

    *b = (bench){ .n_token = n };
    ml_arena_init(&b->arena, "bench");
    if (ml_spec_parse(&b->spec, ml_str_of(c->config), "config", &err) ||
        ml_backend_cpu_open(&b->be, n_thread, NULL, &err) ||
        ml_weights_zeros(&b->w, &b->spec, &b->be, &b->arena, &err) ||
        ml_weights_zeros(&b->g, &b->spec, &b->be, &b->arena, &err) ||
        ml_plan_new(&b->plan, &b->spec, &b->be, opts, &err) || ml_plan_alloc(b->plan, &err))
        die(&err);
    fill(b->w.buf.ptr, b->w.buf.bytes / sizeof(float), 0.05f);
    ml_batch_init(&b->batch, &b->arena, caps);
    for (int s = 0; s < c->n_seq; s++) {
        for (int i = 0; i <= SEQ_LEN; i++)
            id[i] = (i * 7919 + s * 104729) % (int)b->spec.n_vocab;
        ml_batch_add(&b->batch, id, id + 1, SEQ_LEN, 0, NULL);
    }
    b->d = ML_NEW(&b->arena, float, n);
    for (int i = 0; i < n; i++)
        b->d[i] = -1.0f / (float)n;
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

/* Operands large enough for all products of a model. */
typedef struct operands {
    float *w, *x, *y, *dw;
} operands;

/* The three products of an [n, k] weight with m rows, row-major. */
static void products(int m, int n, int k, const operands *o) {
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, m, n, k, 1, o->x, k, o->w, k, 0,
                o->y, n);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, m, k, n, 1, o->y, n, o->w, k, 0,
                o->dw, k);
    cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, n, k, m, 1, o->y, n, o->x, k, 1,
                o->dw, k);
}

static double peer(const bench *b, const operands *o) {
    double start = ml_clock_s();
    for (int32_t i = 0; i < b->spec.n_param; i++) {
        const ml_param *p = &b->spec.param[i];
        if (p->n_dim == 2)
            products(b->n_token, (int)p->shape[0], (int)p->shape[1], o);
    }
    return ml_clock_s() - start;
}

static double gflop_of(const bench *b) {
    double n = 0;
    for (int32_t i = 0; i < b->spec.n_param; i++)
        if (b->spec.param[i].n_dim == 2)
            n += (double)ml_param_count(&b->spec.param[i]);
    return 6e-9 * b->n_token * n;
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

static operands open_operands(const bench *b) {
    const size_t m = (size_t)b->n_token, vocab = (size_t)b->spec.n_vocab, width = 1536;
    return (operands){ floats(vocab * width), floats(m * width), floats(m * vocab),
                       floats(vocab * width) };
}

static void close_operands(operands *o) {
    free(o->w);
    free(o->x);
    free(o->y);
    free(o->dw);
}

static bool run(const bench_case *c, int n_thread, FILE *csv) {
    double ours = 1e9, theirs = 1e9, gflop, ratio;
    operands o;
    bench b;

    open_bench(&b, c, n_thread);
    o = open_operands(&b);
    gflop = gflop_of(&b);
    openblas_set_num_threads(n_thread);
    for (int i = 0; i < TURNS; i++) {
        double t = step(&b), u = peer(&b, &o);
        ours = t < ours ? t : ours;
        theirs = u < theirs ? u : theirs;
    }
    ratio = theirs / ours;
    printf("%s, %d tokens, %d thread%s: %.1f ms, %.0f tokens/s (%.1f GFLOP/s of its "
           "GEMMs), OpenBLAS alone %.1f ms (%.1f), ratio %.2f, goal %.2f, %s\n",
           c->name, b.n_token, n_thread, n_thread > 1 ? "s" : "", ours * 1e3,
           b.n_token / ours, gflop / ours, theirs * 1e3, gflop / theirs, ratio, GOAL,
           ratio >= GOAL ? "ok" : "MISS");
    print_ops(&b);
    if (csv)
        fprintf(csv, "%s,%d,%.4f,%.4f,%.3f,%.2f\n", c->name, n_thread, ours, theirs, ratio,
                GOAL);
    close_bench(&b);
    close_operands(&o);
    return ratio >= GOAL;
}

int main(int argc, char **argv) {
    FILE *csv;
    bool ok = true;

    openblas_use_best_core(argv);
    csv = argc == 3 && !strcmp(argv[1], "--csv") ? fopen(argv[2], "a") : NULL;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int n_thread = 1; n_thread <= 2; n_thread++)
            ok = run(&cases[i], n_thread, csv) && ok;
    if (csv)
        fclose(csv);
    return ok ? 0 : 1;
}
