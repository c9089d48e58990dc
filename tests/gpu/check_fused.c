/* check_fused.c - fused calls of a plan on a GPU give the bits of single ops, except the gradients of LINEARs with one
 * input as one product.
 *
 *     check_fused MODEL_DIR
 *
 * Made-up weights of the shape of MODEL_DIR/config.json: log-probs and all gradients, with and without
 * the backend's fusion of forward and backward calls. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/plan.h"

enum { N_TOKEN = 700, N_SEQ = 2 };

/* LINEARs one by one round up to three parts of dx to bf16 (2^-9), one product rounds their sum: four times on the way
 * through two layers. */
#define BOUND (4 * 3 * 0x1p-9)

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
    ml_weights grads;
    float *grad; /* all of them, on the host */
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

static void read_grads(result *r, model *m) {
    ml_err err = { 0 };

    r->bytes = r->grads.buf.bytes;
    r->grad = malloc(r->bytes);
    if (!r->grad)
        die("no memory");
    m->be.dev->copy_out(m->be.stream, r->grad, r->grads.buf.ptr, r->bytes);
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
    ml_batch b;
    ml_run run = { .weights = &m->w,
                   .grads = &r->grads,
                   .rows = &b.rows,
                   .unwritten = ML_NEW(&m->arena, bool, m->spec.n_param) };
    ml_plan *p = NULL;
    ml_err err = { 0 };

    memset(r, 0, sizeof *r);
    for (int32_t i = 0; i < n; i++)
        ones[i] = 1.0f;
    if (ml_plan_new(&p, &m->spec, &m->be, opts, &err) || ml_plan_alloc(p, &err) ||
        ml_weights_zeros(&r->grads, &m->spec, &m->be, &m->arena, &err))
        die(err.msg);
    ml_batch_init(&b, &m->arena, opts.caps);
    fill(&b, m);
    for (int32_t i = 0; i < m->spec.n_param; i++)
        run.unwritten[i] = true;
    for (int pass = 0; pass < 2; pass++) { /* the first writes gradients, the second adds */
        ml_plan_forward(p, &run);
        ml_plan_backward(p, &run, ones, NULL);
    }
    ml_plan_read(p, &b.rows, r->logprob, NULL, NULL);
    read_grads(r, m);
    ml_plan_free(p);
}

static void free_result(result *r) {
    ml_weights_close(&r->grads);
    free(r->grad);
}

static int n_logprob(const result *a, const result *b) {
    int n = 0;

    for (int i = 0; i < N_SEQ * N_TOKEN; i++)
        n += memcmp(&a->logprob[i], &b->logprob[i], sizeof *a->logprob) != 0;
    return n;
}

static bool same(const char *what, const result *a, const result *b) {
    const size_t n = a->bytes / sizeof *a->grad;
    size_t n_grad = 0, n_zero = 0;
    const int n_other = n_logprob(a, b);

    for (size_t i = 0; i < n; i++) {
        n_grad += memcmp(&a->grad[i], &b->grad[i], sizeof *a->grad) != 0;
        n_zero += a->grad[i] == 0.0f;
    }
    printf("%s: %d of %d log-probs and %zu of %zu gradients (%zu of them zero) differ\n",
           what, n_other, N_SEQ * N_TOKEN, n_grad, n, n_zero);
    return n_other == 0 && n_grad == 0;
}

/* The norm of the difference of a parameter's gradients, relative to the gradient's. */
static double difference(const result *a, const result *b, int32_t param) {
    const ml_tensor *t = &b->grads.t[param];
    const size_t at = (size_t)((char *)t->data - (char *)b->grads.buf.ptr) / sizeof(float);
    double diff = 0.0, norm = 0.0;

    for (size_t i = at; i < at + (size_t)ml_tensor_count(t); i++) {
        double x = (double)a->grad[i], y = (double)b->grad[i];
        diff += (x - y) * (x - y);
        norm += y * y;
    }
    return diff > 0.0 ? sqrt(diff / norm) : 0.0;
}

static bool close_to(const char *what, const result *a, const result *b,
                     const ml_spec *spec) {
    const int n_other = n_logprob(a, b);
    double worst = 0.0;
    int32_t at = 0;
    bool within = true;

    for (int32_t i = 0; i < spec->n_param; i++) {
        double d = difference(a, b, i);
        within &= d <= BOUND; /* not of a NaN */
        if (!(d <= worst)) {
            worst = d;
            at = i;
        }
    }
    printf("%s: %d of %d log-probs differ; gradients by %.2e at most (%s), %.2e allowed\n",
           what, n_other, N_SEQ * N_TOKEN, worst, spec->param[at].name, BOUND);
    return n_other == 0 && within;
}

/* Backward without the products of several LINEARs. */
static const ml_ops *cuda;

static int only_heads(ml_stream *s, const ml_op_call *call, int n) {
    for (int i = 0; i < n; i++)
        if (call[i].op == ML_OP_LINEAR)
            return 0;
    return cuda->together_back(s, call, n);
}

int main(int argc, char **argv) {
    model m = { 0 };
    result single, heads, fused;
    ml_ops ops;
    ml_err err = { 0 };
    int passed;

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
    cuda = m.be.ops;
    compute(&fused, &m);
    ops = *cuda;
    ops.together_back = only_heads;
    m.be.ops = &ops;
    compute(&heads, &m);
    ops.together = NULL;
    ops.together_back = NULL;
    compute(&single, &m);
    passed = same("without joint products", &heads, &single);
    passed += close_to("with joint products", &fused, &single, &m.spec);
    free_result(&fused);
    free_result(&heads);
    free_result(&single);
    printf("%d passed, %d failed, 0 skipped\n", passed, 2 - passed);
    return passed < 2;
}
