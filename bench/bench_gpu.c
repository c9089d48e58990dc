/* bench_gpu.c - whole training steps on a GPU: forward, backward, clipping and AdamW.
 *
 *     bench_gpu MODEL_DIR N_SEQ SEQ_LEN STEPS [MAX_TOKENS]
 *
 * Made-up weights of the shape that MODEL_DIR/config.json has, in bf16 with f32 masters; a loss at
 * every position.  Prints lines of a name and a number: the median step, tokens per second, the
 * share of 989 TFLOP/s by 6 x matmul parameters (the LM head once, of experts those that a token
 * has) + 6 x layers x heads x head size x T per token, memory as planned and as used, and how long
 * weights take to be published. */
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "engine/engine.h"
#include "run/memory_plan.h"
#include "train/memory.h"

enum { MAX_STEPS = 1000 };
#define PEAK 989e12

static _Noreturn void die(const char *what) {
    fprintf(stderr, "bench_gpu: %s\n", what);
    exit(1);
}

/* The mean of -log p. */
static ml_status nll(void *ud, ml_loss_io *io, int32_t n, ml_err *err) {
    (void)ud;
    (void)err;
    for (int32_t i = 0; i < n; i++)
        for (int32_t t = 0; t < io[i].n_response; t++) {
            io[i].loss -= (double)io[i].logprob[t];
            io[i].dlogprob[t] = -1.0f;
        }
    return ML_OK;
}

static double flops_per_token(const ml_spec *s, double seq_len) {
    double products = 0, attention = 0;

    for (int32_t i = 0; i < s->n_node; i++) {
        const ml_node *n = &s->node[i];
        if (n->op == ML_OP_LINEAR || n->op == ML_OP_LMHEAD)
            products +=
                (double)s->param[n->w[0]].shape[0] * (double)s->param[n->w[0]].shape[1];
        if (n->op == ML_OP_MOE_LINEAR)
            products += (double)n->attr.moe.top_k * (double)s->param[n->w[0]].shape[0] *
                        (double)s->param[n->w[0]].shape[1];
        if (n->op == ML_OP_ATTN)
            attention += (double)n->attr.attn.n_head * n->attr.attn.head_dim;
    }
    return 6 * products + 6 * attention * seq_len;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static ml_train_sample *make_samples(ml_arena *a, int32_t n, int32_t len, int64_t vocab) {
    ml_train_sample *s = ML_NEW(a, ml_train_sample, n);
    int32_t *token = ML_NEW(a, int32_t, (int64_t)n * len);
    uint32_t state = 1;

    for (int64_t i = 0; i < (int64_t)n * len; i++) {
        state = state * 1664525u + 1013904223u;
        token[i] = (int32_t)((state >> 8) % (uint32_t)vocab);
    }
    for (int32_t i = 0; i < n; i++)
        s[i] = (ml_train_sample){ .token = token + (size_t)i * (size_t)len,
                                  .n_token = len,
                                  .n_response = len - 1,
                                  .rollout = i };
    return s;
}

static void report(const ml_spec *spec, double *took, int n_step, double tokens,
                   double seq_len) {
    double median, flops = flops_per_token(spec, seq_len);

    qsort(took, (size_t)n_step, sizeof *took, by_value);
    median = took[n_step / 2];
    printf("step_ms %.1f\ntokens_per_s %.0f\ntflops %.1f\nmfu %.1f\n", 1e3 * median,
           tokens / median, flops * tokens / median / 1e12,
           100 * flops * tokens / median / PEAK);
}

/* What was planned before anything was taken, and the most that was in use. */
static void report_memory(ml_backend *be, const ml_spec *spec, const ml_trainer_opts *opts,
                          size_t base) {
    const char *const set[] = { "weights", NULL };
    ml_memory_request ask = { .spec = spec,
                              .be = be,
                              .weight_bytes = ml_weights_bytes(spec, NULL, ML_WEIGHT_BF16),
                              .bf16 = true,
                              .set = set,
                              .opts = *opts,
                              .base_bytes = base };
    size_t peak = ml_memory_peak(be);
    ml_memory plan;
    ml_err err;

    if (ml_memory_plan(&plan, &ask, &err))
        die(err.msg);
    for (int i = 0; i < plan.n; i++)
        fprintf(stderr, "  %-24s %9.3f GiB\n", plan.row[i].what,
                (double)plan.row[i].bytes / 0x1p30);
    printf("planned_gib %.3f\npeak_gib %.3f\n", (double)plan.total / 0x1p30,
           (double)peak / 0x1p30);
}

/* How long it takes until an engine uses the weights of a step: the same memory, or a copy. */
static void report_publication(ml_backend *be, const ml_spec *spec, ml_weights *w,
                               ml_arena *a) {
    ml_engine_opts opts = {
        .context = 256, .max_running = 8, .max_waiting = 8, .chunk = 64
    };
    ml_engine *engine;
    ml_weights copy;
    ml_err err;
    double start, shared;

    if (ml_engine_open(&engine, spec, w, be, &opts, &err) ||
        ml_weights_clone(&copy, w, be, a, &err))
        die(err.msg);
    start = ml_clock_s();
    ml_engine_switch(engine, w, ML_SWITCH_RECOMPUTE);
    shared = ml_clock_s() - start;
    start = ml_clock_s();
    if (ml_weights_copy(&copy, w, be, &err))
        die(err.msg);
    ml_engine_switch(engine, &copy, ML_SWITCH_RECOMPUTE);
    printf("publish_ms %.3f\npublish_copy_ms %.3f\n", 1e3 * shared,
           1e3 * (ml_clock_s() - start));
    ml_engine_close(engine);
    ml_weights_close(&copy);
}

/* With CUDA_LAUNCH_BLOCKING=1 these are the times of ops; else of their launches. */
static void print_ops(const ml_plan_stats *s, int n_step) {
    for (int i = 0; i < ML_OP_COUNT; i++)
        if (s->rows[i])
            printf("  %-12s forward %8.2f ms, backward %8.2f ms a step\n",
                   ml_op_infos[i].name, 1e3 * s->forward_s[i] / n_step,
                   1e3 * s->backward_s[i] / n_step);
}

int main(int argc, char **argv) {
    double began = ml_clock_s(), took[MAX_STEPS];
    int32_t n_seq = argc > 4 ? atoi(argv[2]) : 0, len = argc > 4 ? atoi(argv[3]) : 0;
    int n_step = argc > 4 ? atoi(argv[4]) : 0;
    int64_t max_tokens = argc > 5 ? atoll(argv[5]) : (int64_t)n_seq * len;
    ml_trainer_opts opts = {
        .optimizer = { .rule = { .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8 },
                       .clip_grad = 1 },
        .lr = { .train_iters = 1000, .global_batch_size = n_seq, .lr = 1e-4 },
        .batch = { .global_batch_size = n_seq, .dynamic = true, .max_tokens = max_tokens },
        .keep_logits = true,
        .stop_on_bad = true,
    };
    ml_arena a;
    ml_spec spec;
    ml_backend be;
    ml_weights w;
    ml_trainer *trainer;
    ml_schedule plan;
    ml_step_result r;
    ml_train_sample *sample;
    ml_err err = { 0 };
    size_t base;

    if (n_seq < 1 || len < 2 || n_step < 1 || n_step > MAX_STEPS)
        die("usage: bench_gpu MODEL_DIR N_SEQ SEQ_LEN STEPS [MAX_TOKENS]");
    ml_arena_init(&a, "bench");
    if (ml_spec_open(&spec, argv[1], &err) ||
        ml_backend_open(&be, &(ml_backend_opts){ .device = "cuda", .n_thread = 1 }, &err))
        die(err.msg);
    base = ml_memory_base(&be);
    sample = make_samples(&a, n_seq, len, spec.n_vocab);
    if (ml_weights_dummy(&w, &spec, ML_WEIGHT_BF16, 1, &be, &a, &err) ||
        ml_trainer_open(&trainer, &spec, &w, &be, &opts, &err) ||
        ml_trainer_schedule(&plan, trainer, &a, sample, n_seq, &err))
        die(err.msg);
    for (int i = 0; i < n_step; i++) {
        double start = ml_clock_s();
        if (ml_trainer_step(trainer,
                            &(ml_step){ .sample = sample,
                                        .micro = &plan.step[0].rank[0],
                                        .n_rollout = n_seq,
                                        .denominator = (double)n_seq * (len - 1),
                                        .loss = nll },
                            &r, &err) != ML_OK)
            die(err.msg);
        took[i] = ml_clock_s() - start;
        if (i == 0)
            printf("first_step_s %.2f\n", ml_clock_s() - began);
    }
    fprintf(stderr, "loss %.4f, gradient norm %.4f\n", r.loss, r.grad_norm);
    report(&spec, took, n_step, (double)n_seq * len, len);
    report_memory(&be, &spec, &opts, base);
    if (getenv("CUDA_LAUNCH_BLOCKING"))
        print_ops(ml_trainer_stats(trainer), n_step);
    ml_trainer_close(trainer);
    report_publication(&be, &spec, &w, &a);
    ml_weights_close(&w);
    ml_backend_close(&be);
    ml_spec_close(&spec);
    ml_arena_release(&a);
    return 0;
}
