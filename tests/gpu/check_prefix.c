/* check_prefix.c - samples that share the rows of their prompt on a GPU (train/prefix.h).
 *
 *     check_prefix MODEL_DIR [PROMPT ANSWER]
 *
 * Made-up weights of the shape of MODEL_DIR/config.json.  With and without shared rows, log-probs must have the
 * same bits; gradients must be close, and the same bytes each time: where new memory is zero and backward adds to
 * it, and in a second step, which writes them.  f32, in which gradients differ by the
 * order of sums alone, then bf16, in which those of a shared key are rounded once instead of once for each
 * sample.  With two numbers: bf16 alone, 8 samples of a prompt of that length, and how much time the shared
 * rows save. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "train/trainer.h"

enum { MOST_SAMPLES = 16, TURNS = 4 };

static const double f32_bound = 1e-6, bf16_bound = 1e-2;

typedef struct group {
    ml_train_sample sample[MOST_SAMPLES];
    int32_t n;
} group;

/* What a trainer computes of a group. */
typedef struct side {
    ml_trainer *trainer;
    ml_schedule plan;
    float *logprob[MOST_SAMPLES];
    float *grad;
    int64_t n_grad;
    double best; /* seconds */
} side;

static _Noreturn void die(const char *what) {
    fprintf(stderr, "check_prefix: %s\n", what);
    exit(1);
}

static void add_sample(group *g, ml_arena *a, int32_t which, int32_t prompt, int32_t answer,
                       int64_t vocab) {
    int32_t *token = ML_NEW(a, int32_t, prompt + answer);

    for (int32_t k = 0; k < prompt + answer; k++) {
        uint32_t of = (uint32_t)(k < prompt ? which : 100 + g->n);
        token[k] = (int32_t)((of * 104729u + (uint32_t)k * 7919u) % (uint32_t)vocab);
    }
    g->sample[g->n] = (ml_train_sample){
        .token = token, .n_token = prompt + answer, .n_response = answer, .rollout = g->n
    };
    g->n++;
}

/* Prompts of a page and a bit, of a tile, and of several tiles; trees of several levels. */
static void make_mixed(group *g, ml_arena *a, int64_t vocab) {
    static const int32_t prompt[] = { 21, 64, 150 }, answer[] = { 60, 1, 95, 14 };

    for (int i = 0; i < 12; i++)
        add_sample(g, a, i % 3, prompt[i % 3], answer[i / 3], vocab);
    add_sample(g, a, 2, 190, 20, vocab); /* later turns after a prompt */
    add_sample(g, a, 2, 230, 30, vocab);
    add_sample(g, a, 2, 230, 7, vocab);
    add_sample(g, a, 2, 190, 21, vocab);
}

/* The derivatives of samples have different signs, as advantages do. */
static ml_status loss(void *ud, ml_loss_io *io, int32_t n, ml_err *err) {
    (void)ud;
    (void)err;
    for (int32_t i = 0; i < n; i++)
        for (int32_t t = 0; t < io[i].n_response; t++) {
            io[i].dlogprob[t] = io[i].n_response % 2 ? 1.0f : -1.0f;
            io[i].loss += (double)io[i].dlogprob[t] * (double)io[i].logprob[t];
        }
    return ML_OK;
}

static void accumulate(side *x, const group *g) {
    double start = ml_clock_s(), t;
    ml_step_result r;
    ml_err err = { 0 };

    if (ml_trainer_accumulate(x->trainer,
                              &(ml_step){ .sample = g->sample,
                                          .micro = &x->plan.step[0].rank[0],
                                          .n_rollout = g->n,
                                          .denominator = g->n,
                                          .loss = loss },
                              &r, &err) != ML_OK)
        die(err.msg);
    t = ml_clock_s() - start;
    x->best = x->best == 0.0 || t < x->best ? t : x->best;
}

static void read_grads(side *x, ml_backend *be, ml_arena *a) {
    const ml_weights *g = ml_trainer_grads(x->trainer);
    int64_t at = 0;

    for (int32_t i = 0; i < g->n; i++)
        x->n_grad += (int64_t)(ml_tensor_bytes(&g->t[i]) / sizeof(float));
    x->grad = ML_NEW(a, float, x->n_grad);
    for (int32_t i = 0; i < g->n; i++) {
        size_t bytes = ml_tensor_bytes(&g->t[i]);
        be->dev->copy_out(be->stream, x->grad + at, g->t[i].data, bytes);
        at += (int64_t)(bytes / sizeof(float));
    }
}

static void run(side *x, const group *g, const ml_spec *spec, ml_weights *w, ml_backend *be,
                bool share, int turns, ml_arena *a) {
    ml_trainer_opts o = {
        .optimizer = { .rule = { .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8 } },
        .lr = { .train_iters = 1, .global_batch_size = 1, .lr = 1e-4 },
        .use = ML_TRAINER_GRADS,
        .batch = { .one_step = true, .micro_batch_size = MOST_SAMPLES },
        .share_prefixes = share
    };
    ml_err err = { 0 };

    *x = (side){ 0 };
    if (ml_trainer_open(&x->trainer, spec, w, be, &o, &err) ||
        ml_trainer_schedule(&x->plan, x->trainer, a, g->sample, g->n, &err))
        die(err.msg);
    for (int32_t i = 0; i < g->n; i++)
        x->logprob[i] = ML_NEW(a, float, g->sample[i].n_response);
    if (ml_trainer_score(x->trainer, NULL, g->sample, g->n, x->logprob, NULL, &err))
        die(err.msg);
    for (int i = 0; i < turns; i++)
        accumulate(x, g);
    read_grads(x, be, a);
    ml_trainer_close(x->trainer);
}

static int differing(const side *a, const side *b, const group *g) {
    int bad = 0;

    for (int32_t i = 0; i < g->n; i++)
        for (int32_t t = 0; t < g->sample[i].n_response; t++)
            bad += memcmp(&a->logprob[i][t], &b->logprob[i][t], sizeof(float)) != 0;
    return bad;
}

/* The norm of the difference, as a share of that of the gradients. */
static double apart(const side *a, const side *b) {
    double all = 0.0, diff = 0.0;

    for (int64_t i = 0; i < a->n_grad; i++) {
        double d = (double)a->grad[i] - (double)b->grad[i];
        all += (double)a->grad[i] * (double)a->grad[i];
        diff += d * d;
    }
    return all > 0.0 ? sqrt(diff / all) : 1.0;
}

/* 0: it passed. */
static int check(const char *dir, bool f32, int32_t prompt, int32_t answer) {
    double bound = f32 ? f32_bound : bf16_bound, far;
    ml_weights w;
    ml_backend be;
    ml_spec spec;
    ml_arena a;
    group g = { 0 };
    side alone, shared, again;
    int bad;
    bool repeats;
    ml_err err;

    ml_arena_init(&a, "check");
    if (ml_spec_open(&spec, dir, &err) ||
        ml_backend_open(
            &be, &(ml_backend_opts){ .device = "cuda", .n_thread = 2, .f32 = f32 }, &err))
        die(err.msg);
    if (ml_weights_dummy(&w, &spec, f32 ? ML_WEIGHT_F32 : ML_WEIGHT_BF16, 1, &be, &a, &err))
        die(err.msg);
    if (prompt)
        for (int i = 0; i < 8; i++)
            add_sample(&g, &a, 0, prompt, answer + i % 2, spec.n_vocab);
    else
        make_mixed(&g, &a, spec.n_vocab);
    run(&alone, &g, &spec, &w, &be, false, prompt ? TURNS : 1, &a);
    run(&shared, &g, &spec, &w, &be, true, prompt ? TURNS : 1, &a);
    run(&again, &g, &spec, &w, &be, true, prompt ? TURNS : 2, &a);
    bad = differing(&alone, &shared, &g);
    far = apart(&alone, &shared);
    repeats = memcmp(shared.grad, again.grad, (size_t)shared.n_grad * sizeof(float)) == 0;
    printf("%s: %d log-probs differ, gradients %.1e apart (at most %.0e), %s\n",
           f32 ? "f32" : "bf16", bad, far, bound,
           repeats ? "the same each time" : "NOT the same each time");
    if (prompt)
        printf("alone_s %.4f\nshared_s %.4f\nratio %.2f\n", alone.best, shared.best,
               alone.best / shared.best);
    ml_weights_close(&w);
    ml_backend_close(&be);
    ml_spec_close(&spec);
    ml_arena_release(&a);
    return bad || !(far <= bound) || !repeats;
}

int main(int argc, char **argv) {
    int failed;

    if (argc != 2 && argc != 4)
        die("usage: check_prefix MODEL_DIR [PROMPT ANSWER]");
    if (argc == 4)
        return check(argv[1], false, atoi(argv[2]), atoi(argv[3]));
    failed = check(argv[1], true, 0, 0) + check(argv[1], false, 0, 0);
    printf("%d passed, %d failed, 0 skipped\n", 2 - failed, failed);
    return failed != 0;
}
