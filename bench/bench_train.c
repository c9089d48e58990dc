/* bench_train.c - whole training steps: forward, backward, clipping and AdamW, through the trainer.
 *
 *     bench_train [--steps N]
 *
 * A 48M-parameter llama shape, 4 sequences of 256 tokens with a loss at every position, f32, two
 * threads.  Prints the best step, the GEMMs of the same step in OpenBLAS, and their ratio;
 * bench_train.sh holds it against bench_torch.py, turn by turn. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "bench/openblas.h"
#include "bench/train48m.h"

enum { THREADS = 2, WIDEST = 1536 };

static void die(const char *what) {
    fprintf(stderr, "bench_train: %s\n", what);
    exit(1);
}

/* Three products for each matrix: forward, and both of backward. */
static double multiply(const ml_spec *s, float *x, float *y, float *w) {
    const int m = N_SEQ * SEQ_LEN;
    double start = ml_clock_s();
    for (int32_t i = 0; i < s->n_param; i++) {
        const ml_param *p = &s->param[i];
        const int n = (int)p->shape[0], k = (int)p->shape[1];
        if (p->n_dim != 2)
            continue;
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, m, n, k, 1, x, k, w, k, 0, y,
                    n);
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, m, k, n, 1, y, n, w, k, 0, x,
                    k);
        cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, n, k, m, 1, y, n, x, k, 0, w,
                    k);
    }
    return ml_clock_s() - start;
}

static float *floats(size_t n) {
    float *p = aligned_alloc(64, n * sizeof *p);
    if (!p)
        die("no memory");
    for (size_t i = 0; i < n; i++)
        p[i] = 1e-3f * (float)(i % 17);
    return p;
}

int main(int argc, char **argv) {
    static int32_t token[N_SEQ * SEQ_LEN];
    ml_train_sample sample[N_SEQ];
    ml_trainer_opts opts = trainer_opts(1);
    ml_arena a;
    ml_spec spec;
    ml_backend be;
    ml_weights w;
    ml_trainer *trainer;
    ml_schedule plan;
    ml_step_result r;
    ml_err err = { 0 };
    int n_step = argc == 3 && strcmp(argv[1], "--steps") == 0 ? atoi(argv[2]) : 6;
    float *x, *y, *z;
    double best = 1e9, products = 1e9;

    openblas_use_best_core(argv);
    openblas_set_num_threads(THREADS);
    ml_arena_init(&a, "bench");
    make_samples(sample, token);
    if (ml_spec_parse(&spec, ml_str_of(config), "config", &err) ||
        ml_backend_cpu_open(&be, THREADS, NULL, &err) ||
        ml_weights_dummy(&w, &spec, ML_WEIGHT_F32, 1, &be, &a, &err) ||
        ml_trainer_open(&trainer, &spec, &w, &be, &opts, &err) ||
        ml_trainer_schedule(&plan, trainer, &a, sample, N_SEQ, &err))
        die(err.msg);
    x = floats((size_t)N_SEQ * SEQ_LEN * WIDEST);
    y = floats((size_t)N_SEQ * SEQ_LEN * VOCAB);
    z = floats((size_t)VOCAB * 512);
    for (int i = 0; i < n_step; i++) {
        double start = ml_clock_s(), t;
        if (ml_trainer_step(trainer,
                            &(ml_step){ .sample = sample,
                                        .micro = &plan.step[0].rank[0],
                                        .n_rollout = N_SEQ,
                                        .denominator = N_SEQ * (SEQ_LEN - 1),
                                        .loss = nll },
                            &r, &err) != ML_OK)
            die(err.msg);
        t = ml_clock_s() - start;
        best = t < best ? t : best;
        t = multiply(&spec, x, y, z);
        products = t < products ? t : products;
    }
    printf(
        "train48M, %d threads: %.1f ms, %.0f tokens/s; OpenBLAS alone %.1f ms, ratio %.2f, "
        "goal 0.85, %s\n",
        THREADS, 1e3 * best, N_SEQ * SEQ_LEN / best, 1e3 * products, products / best,
        products / best >= 0.85 ? "ok" : "MISS");
    ml_trainer_close(trainer);
    ml_weights_close(&w);
    ml_backend_close(&be);
    ml_spec_close(&spec);
    ml_arena_release(&a);
    free(x);
    free(y);
    free(z);
    return products / best >= 0.85 ? 0 : 1;
}
