/* Fused runs of op calls: plans give backends the right last reader of each output.
 *
 * The CPU's ops run behind a `together` that takes runs of calls of every length and
 * overwrites each output as soon as its last reader is done: log-probs and gradients must
 * not change.  Nor must they with the CPU backend's own `together`.  A `together_back` runs RoPE's
 * backward and the QK norms' in another order. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/plan.h"
#include "tests/support/test.h"

#define DATA "tests/golden/data/"

enum { N_TOKEN = 40, MOST = 7 };

static const ml_ops *plain;
static int n_spoiled, n_sides, n_with_linears, run_length; /* 0: all lengths in turn */

static bool overlap(const ml_tensor *a, const ml_tensor *b) {
    const char *x = a->data, *y = b->data;
    return x && y && x < y + ml_tensor_bytes(b) && y < x + ml_tensor_bytes(a);
}

/* Overwrites a dead tensor, unless its last reader wrote an output to the same memory. */
static void spoil(const ml_tensor *dead, const ml_op_call *reader) {
    for (int k = 0; k < ML_OP_OUT; k++)
        if (overlap(dead, &reader->args.out[k]))
            return;
    memset(dead->data, 0xff, ml_tensor_bytes(dead));
    n_spoiled++;
}

static int in_runs(ml_stream *s, const ml_op_call *c, int n) {
    static int turn;
    int took = run_length ? run_length : turn++ % MOST; /* 0: the first call runs alone */

    if (took > n)
        took = n;
    for (int i = 0; i < took; i++) {
        plain->forward[c[i].op](s, &c[i].args);
        for (int j = 0; j <= i; j++)
            for (int k = 0; k < ML_OP_OUT; k++)
                if (c[j].args.out[k].data && c[j].reader[k] == i - j && i > j)
                    spoil(&c[j].args.out[k], &c[i]);
    }
    return took;
}

/* The calls of k before those of q: RoPE, then the norm before it.  The LINEARs after them are refused in every other
 * turn, and then are not among the calls. */
static int back_by_side(ml_stream *s, const ml_op_call *c, int n) {
    const int heads = c->op == ML_OP_ROPE ? 4 : 0;
    static int turn;

    if (heads && n > heads && turn++ % 2)
        return 0;
    for (int i = 0; i < n; i++) {
        const ml_op_call *next = &c[i < heads ? i / 2 + i % 2 * heads / 2 : i];
        plain->backward[next->op](s, &next->args);
    }
    n_sides += heads > 0;
    n_with_linears += n > heads && heads > 0;
    return n;
}

typedef struct result {
    float logprob[N_TOKEN];
    ml_weights grads;
} result;

static void compute(result *r, const ml_spec *spec, ml_backend *be, const ml_weights *w,
                    ml_arena *a, int32_t n_token, bool backward) {
    ml_plan_opts opts = {
        .caps = { .n_token = N_TOKEN, .n_seq = 1, .n_loss = N_TOKEN, .n_page = 4 },
        .backward = backward
    };
    int32_t id[N_TOKEN], target[N_TOKEN];
    float ones[N_TOKEN];
    ml_batch b;
    ml_run run = { .weights = w, .grads = &r->grads, .rows = &b.rows };
    ml_plan *p = NULL;
    ml_err err = { 0 };

    memset(r->logprob, 0, sizeof r->logprob);
    for (int i = 0; i < N_TOKEN; i++) {
        id[i] = (i * 31 + 7) % 50;
        target[i] = (i * 17 + 3) % 50;
        ones[i] = 1.0f;
    }
    if (ml_plan_new(&p, spec, be, opts, &err) || ml_plan_alloc(p, &err) ||
        ml_weights_zeros(&r->grads, spec, be, a, &err)) {
        ml_test_fail(__FILE__, __LINE__, "%s", err.msg);
        exit(1);
    }
    ml_batch_init(&b, a, opts.caps);
    ml_batch_add(&b, id, target, n_token, 0, NULL);
    ml_plan_forward(p, &run);
    CHECK(ml_plan_stats_of(p)->forward_s[ML_OP_ATTN] > 0); /* at any position in a run */
    ml_plan_read(p, &b.rows, r->logprob, NULL, NULL);
    if (backward)
        ml_plan_backward(p, &run, ones, NULL);
    ml_plan_free(p);
}

/* A model with dummy weights. */
typedef struct model {
    ml_arena arena;
    ml_spec spec;
    ml_backend be;
    ml_weights w;
} model;

static void open_model(model *m, const char *dir, ml_weight_dtype dtype, int n_thread) {
    ml_err err = { 0 };

    ml_arena_init(&m->arena, "together");
    if (ml_spec_open(&m->spec, dir, &err) ||
        ml_backend_cpu_open(&m->be, n_thread, NULL, &err) ||
        ml_weights_dummy(&m->w, &m->spec, dtype, 1, &m->be, &m->arena, &err)) {
        ml_test_fail(__FILE__, __LINE__, "%s", err.msg);
        exit(1);
    }
}

static void close_model(model *m) {
    ml_weights_close(&m->w);
    ml_backend_close(&m->be);
    ml_spec_close(&m->spec);
    ml_arena_release(&m->arena);
}

static void check_model(const char *dir, bool backward) {
    result want, got;
    model m;
    ml_ops ops;

    open_model(&m, dir, ML_WEIGHT_BF16, 2);
    compute(&want, &m.spec, &m.be, &m.w, &m.arena, N_TOKEN, backward);
    plain = m.be.ops;
    ops = *plain;
    ops.together = in_runs;
    ops.together_back = back_by_side;
    m.be.ops = &ops;
    for (run_length = 0; run_length <= MOST; run_length++) {
        compute(&got, &m.spec, &m.be, &m.w, &m.arena, N_TOKEN, backward);
        CHECK(memcmp(want.logprob, got.logprob, sizeof want.logprob) == 0);
        CHECK(memcmp(want.grads.buf.ptr, got.grads.buf.ptr, want.grads.buf.bytes) == 0);
        ml_weights_close(&got.grads);
    }
    CHECK(n_spoiled > 0);
    CHECK(!backward || (n_sides > 0 && n_with_linears > 0));
    m.be.ops = plain;
    ml_weights_close(&want.grads);
    close_model(&m);
}

/* Few rows and many: the GEMMs take different paths. */
static void check_own(const char *dir, ml_weight_dtype dtype, int n_thread) {
    static const int32_t n_token[] = { 1, 3, 5, 16, 17, N_TOKEN };
    model m;
    ml_ops ops;

    open_model(&m, dir, dtype, n_thread);
    plain = m.be.ops;
    ops = *plain;
    ops.together = NULL;
    for (size_t i = 0; i < sizeof n_token / sizeof *n_token; i++) {
        result want, got;
        compute(&got, &m.spec, &m.be, &m.w, &m.arena, n_token[i], false);
        m.be.ops = &ops;
        compute(&want, &m.spec, &m.be, &m.w, &m.arena, n_token[i], false);
        m.be.ops = plain;
        CHECK(memcmp(want.logprob, got.logprob, sizeof want.logprob) == 0);
        ml_weights_close(&want.grads);
        ml_weights_close(&got.grads);
    }
    close_model(&m);
}

static void own(void) {
    static const int n_thread[] = { 1, 2, 3, 8 };

    for (size_t i = 0; i < sizeof n_thread / sizeof *n_thread; i++) {
        check_own(DATA "qwen3", ML_WEIGHT_BF16, n_thread[i]);
        check_own(DATA "qwen3", ML_WEIGHT_F32, n_thread[i]);
        check_own(DATA "qwen2", ML_WEIGHT_BF16, n_thread[i]); /* with biases */
    }
}

static void forward(void) {
    check_model(DATA "qwen3", false);
    check_model(DATA "qwen3_moe", false);
    check_model(DATA "gemma2", false);
}

static void with_backward(void) {
    check_model(DATA "qwen3", true);
    check_model(DATA "qwen3_moe", true);
}

static const ml_test tests[] = {
    { "fused runs of ops give the bits of single ops in forward", forward, 0 },
    { "fused runs of ops give the bits of single ops in backward", with_backward, 0 },
    { "the CPU's fused ops give the bits of its single ops", own, 0 },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
