/* bench_prefix.c - a train step whose samples share the rows of their prompt, beside one whose samples do not.
 *
 *     bench_prefix [PROMPT ANSWER]       8 samples of a prompt; 2,048 and 256 tokens
 *
 * The 48M-parameter llama shape of train48m.h, f32, two threads; gradients without an update, by turns, the
 * best of each.  Prints the ratio and how far apart the gradients are. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "bench/train48m.h"

enum { THREADS = 2, SAMPLES = 8, TURNS = 2 };
static const double goal = 2.5, bound = 1e-6;

typedef struct side {
    ml_trainer *trainer;
    ml_schedule plan;
    double best;
} side;

static void die(const char *what) {
    fprintf(stderr, "bench_prefix: %s\n", what);
    exit(1);
}

static void make_group(ml_train_sample *s, ml_arena *a, int32_t prompt, int32_t answer) {
    for (int32_t i = 0; i < SAMPLES; i++) {
        int32_t *token = ML_NEW(a, int32_t, prompt + answer);
        for (int32_t k = 0; k < prompt + answer; k++)
            token[k] = ((k < prompt ? 0 : i + 1) * 104729 + k * 7919) % VOCAB;
        s[i] = (ml_train_sample){
            .token = token, .n_token = prompt + answer, .n_response = answer, .rollout = i
        };
    }
}

static void accumulate(side *x, const ml_train_sample *s) {
    double start = ml_clock_s(), t;
    ml_step_result r;
    ml_err err = { 0 };

    if (ml_trainer_accumulate(x->trainer,
                              &(ml_step){ .sample = s,
                                          .micro = &x->plan.step[0].rank[0],
                                          .n_rollout = SAMPLES,
                                          .denominator = SAMPLES,
                                          .loss = nll },
                              &r, &err) != ML_OK)
        die(err.msg);
    t = ml_clock_s() - start;
    x->best = x->best == 0.0 || t < x->best ? t : x->best;
}

/* The largest difference of a tensor's gradients, as a share of the largest of them. */
static double tensor_apart(const ml_tensor *a, const ml_tensor *b) {
    const float *x = a->data, *y = b->data;
    double most = 0.0, diff = 0.0;

    for (size_t i = 0; i < ml_tensor_bytes(a) / sizeof *x; i++) {
        most = fmax(most, fabs((double)x[i]));
        diff = fmax(diff, fabs((double)x[i] - (double)y[i]));
    }
    return most > 0.0 ? diff / most : 0.0;
}

/* The worst of all tensors. */
static double apart(const side *a, const side *b) {
    const ml_weights *g = ml_trainer_grads(a->trainer), *h = ml_trainer_grads(b->trainer);
    double worst = 0.0;

    for (int32_t i = 0; i < g->n; i++)
        worst = fmax(worst, tensor_apart(&g->t[i], &h->t[i]));
    return worst;
}

int main(int argc, char **argv) {
    int32_t prompt = argc == 3 ? atoi(argv[1]) : 2048,
            answer = argc == 3 ? atoi(argv[2]) : 256;
    ml_train_sample sample[SAMPLES];
    ml_trainer_opts opts = trainer_opts(1);
    side of[2] = { 0 };
    ml_arena a;
    ml_spec spec;
    ml_backend be;
    ml_weights w;
    ml_err err = { 0 };
    double ratio, far;

    if (prompt < 1 || answer < 1)
        die("usage: bench_prefix [PROMPT ANSWER], in tokens");
    ml_arena_init(&a, "bench");
    make_group(sample, &a, prompt, answer);
    opts.use = ML_TRAINER_GRADS;
    opts.keep_logits = false;
    opts.batch = (ml_schedule_opts){ .one_step = true, .micro_batch_size = SAMPLES };
    if (ml_spec_parse(&spec, ml_str_of(config), "config", &err) ||
        ml_backend_cpu_open(&be, THREADS, NULL, &err) ||
        ml_weights_dummy(&w, &spec, ML_WEIGHT_F32, 1, &be, &a, &err))
        die(err.msg);
    for (int i = 0; i < 2; i++) {
        opts.share_prefixes = i == 1;
        if (ml_trainer_open(&of[i].trainer, &spec, &w, &be, &opts, &err) ||
            ml_trainer_schedule(&of[i].plan, of[i].trainer, &a, sample, SAMPLES, &err))
            die(err.msg);
    }
    for (int i = 0; i < 2 * TURNS; i++)
        accumulate(&of[i % 2], sample);
    ratio = of[0].best / of[1].best;
    far = apart(&of[0], &of[1]);
    printf("prefix sharing, %d x (%d, %d), %d threads: %.2f s alone, %.2f s shared, ratio "
           "%.2f, "
           "goal %.1f, gradients %.1e apart, %s\n",
           SAMPLES, prompt, answer, THREADS, of[0].best, of[1].best, ratio, goal, far,
           ratio >= goal && far < bound ? "ok" : "MISS");
    for (int i = 0; i < 2; i++)
        ml_trainer_close(of[i].trainer);
    ml_weights_close(&w);
    ml_backend_close(&be);
    ml_spec_close(&spec);
    ml_arena_release(&a);
    return ratio >= goal && far < bound ? 0 : 1;
}
