/* check_fused.c - fused calls of a plan on a GPU give the bits of single ops.
 *
 *     check_fused MODEL_DIR
 *
 * Made-up weights of the shape of MODEL_DIR/config.json: log-probs and all gradients, with and without
 * the backend's fusion of forward and backward calls. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/plan.h"

enum { N_TOKEN = 700, N_SEQ = 2 };

static _Noreturn void die(const char *what) {
    fprintf(stderr, "check_fused: %s\n", what);
    exit(1);
}

typedef struct model {
    ml_arena arena;
    ml_spec spec;
    ml_backend be;
    ml_weights w;
} model;

typedef struct result {
    float logprob[N_SEQ * N_TOKEN];
    void *grad;
    size_t bytes;
} result;

static void fill(ml_batch *b, const model *m) {
    int32_t id[N_TOKEN], target[N_TOKEN];

    for (int32_t s = 0; s < N_SEQ; s++) {
        for (int32_t i = 0; i < N_TOKEN; i++) {
            id[i] = (int32_t)((i * 31 + 7 + s) % m->spec.n_vocab);
            target[i] = (int32_t)((i * 17 + 3) % m->spec.n_vocab);
        }
        ml_batch_add(b, id, target, N_TOKEN - 13 * s, 0, NULL);
    }
}

static void read_grads(result *r, model *m, const ml_weights *grads) {
    ml_err err = { 0 };

    r->bytes = grads->buf.bytes;
    r->grad = malloc(r->bytes);
    if (!r->grad)
        die("no memory");
    m->be.dev->copy_out(m->be.stream, r->grad, grads->buf.ptr, r->bytes);
    if (m->be.dev->sync(m->be.stream, &err))
        die(err.msg);
}

static void compute(result *r, model *m) {
    const int32_t n = N_SEQ * N_TOKEN;
    ml_plan_opts opts = { .caps = { .n_token = n,
                                    .n_seq = N_SEQ,
                                    .n_loss = n,
                                    .n_page = n / ML_PAGE + N_SEQ + 1 },
                          .backward = true };
    float ones[N_SEQ * N_TOKEN];
    ml_weights grads;
    ml_batch b;
    ml_run run = { .weights = &m->w, .grads = &grads, .rows = &b.rows };
    ml_plan *p = NULL;
    ml_err err = { 0 };

    memset(r, 0, sizeof *r);
    for (int32_t i = 0; i < n; i++)
        ones[i] = 1.0f;
    if (ml_plan_new(&p, &m->spec, &m->be, opts, &err) || ml_plan_alloc(p, &err) ||
        ml_weights_zeros(&grads, &m->spec, &m->be, &m->arena, &err))
        die(err.msg);
    ml_batch_init(&b, &m->arena, opts.caps);
    fill(&b, m);
    ml_plan_forward(p, &run);
    ml_plan_read(p, &b.rows, r->logprob, NULL, NULL);
    ml_plan_backward(p, &run, ones, NULL);
    read_grads(r, m, &grads);
    ml_weights_close(&grads);
    ml_plan_free(p);
}

static bool same(const result *a, const result *b) {
    const float *x = a->grad, *y = b->grad;
    size_t n_grad = 0, n_zero = 0;
    int n_logprob = 0;

    for (int i = 0; i < N_SEQ * N_TOKEN; i++)
        n_logprob += memcmp(&a->logprob[i], &b->logprob[i], sizeof *a->logprob) != 0;
    for (size_t i = 0; i < a->bytes / sizeof *x; i++) {
        n_grad += memcmp(&x[i], &y[i], sizeof *x) != 0;
        n_zero += x[i] == 0.0f;
    }
    printf("%d of %d log-probs and %zu of %zu gradients (%zu of them zero) differ\n",
           n_logprob, N_SEQ * N_TOKEN, n_grad, a->bytes / sizeof *x, n_zero);
    return n_logprob == 0 && n_grad == 0;
}

int main(int argc, char **argv) {
    model m = { 0 };
    result fused, single;
    ml_ops ops;
    ml_err err = { 0 };
    bool ok;

    if (argc != 2)
        die("usage: check_fused MODEL_DIR");
    if (ml_backend_open(&m.be, &(ml_backend_opts){ .device = "cuda", .n_thread = 1 },
                        &err)) {
        printf("skipped: %s\n0 passed, 0 failed, 1 skipped\n", err.msg);
        return 0;
    }
    ml_arena_init(&m.arena, "check_fused");
    if (ml_spec_open(&m.spec, argv[1], &err) ||
        ml_weights_dummy(&m.w, &m.spec, ML_WEIGHT_BF16, 1, &m.be, &m.arena, &err))
        die(err.msg);
    compute(&fused, &m);
    ops = *m.be.ops;
    ops.together = NULL;
    ops.together_back = NULL;
    m.be.ops = &ops;
    compute(&single, &m);
    ok = same(&fused, &single);
    printf("%d passed, %d failed, 0 skipped\n", ok, !ok);
    return !ok;
}
