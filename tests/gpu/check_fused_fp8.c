/* check_fused_fp8.c - layers with FP8 weights on a GPU, of which norms and gates write the codes that the products read
 * (fuse.cu), and so does the backward of a gate (gemm_fp8_back.cu): fused calls leave the bits of the single ones. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/backend.h"
#include "tensor/codes.h"

enum { HIDDEN = 256, INNER = 384, MOST_ROWS = 6000, MOST_CALLS = 6, LATER = 100 };

/* Values of a chain of calls, and what is between two layers. */
enum { X, BEFORE, SUM, NORMED, GATE, UP, THIRD, GATED, ALSO, DOWN, N_VALUE };
enum { NO_WEIGHT, SCALE, W_GATE, W_UP, W_THIRD, W_DOWN, N_WEIGHT };

static const int width[N_VALUE] = { HIDDEN, HIDDEN, HIDDEN, HIDDEN, INNER,
                                    INNER,  INNER,  INNER,  INNER,  HIDDEN };

typedef struct step {
    ml_op_id op;
    int in[2], w, out;
} step;

/* Ends with a step whose op is ML_OP_COUNT. */
typedef struct chain {
    const char *name;
    step step[MOST_CALLS + 1];
} chain;

static const chain chains[] = {
    { "add, norm, gate and up, GLU, down",
      { { ML_OP_ADD, { X, BEFORE }, NO_WEIGHT, SUM },
        { ML_OP_RMSNORM, { SUM }, SCALE, NORMED },
        { ML_OP_LINEAR, { NORMED }, W_GATE, GATE },
        { ML_OP_LINEAR, { NORMED }, W_UP, UP },
        { ML_OP_GLU, { GATE, UP }, NO_WEIGHT, GATED },
        { ML_OP_LINEAR, { GATED }, W_DOWN, DOWN },
        { ML_OP_COUNT, { 0 }, 0, 0 } } },
    { "norm, three products",
      { { ML_OP_RMSNORM, { X }, SCALE, NORMED },
        { ML_OP_LINEAR, { NORMED }, W_GATE, GATE },
        { ML_OP_LINEAR, { NORMED }, W_UP, UP },
        { ML_OP_LINEAR, { NORMED }, W_THIRD, THIRD },
        { ML_OP_COUNT, { 0 }, 0, 0 } } },
};

static const int32_t row_counts[] = { 1, 40, 300, 700, MOST_ROWS };

typedef struct setup {
    ml_backend be;
    ml_buf values, weights, weight_grads, scratch;
    ml_tensor value[N_VALUE], weight[N_WEIGHT];
} setup;

static _Noreturn void die(const char *what) {
    fprintf(stderr, "check_fused_fp8: %s\n", what);
    exit(1);
}

static ml_buf device_bytes(setup *s, size_t bytes) {
    ml_buf b;
    ml_err err;

    if (s->be.dev->alloc(s->be.dev, &b, bytes, ML_MEM_WEIGHT, &err))
        die(err.msg);
    return b;
}

static float number(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return ldexpf((float)(*state >> 40) * 0x1p-23f - 1.0f, -(int)(*state >> 8 & 7));
}

static void sync(setup *s) {
    ml_err err;

    if (s->be.dev->sync(s->be.stream, &err))
        die(err.msg);
}

/* n random numbers in bf16 to device memory. */
static void fill(setup *s, void *to, int64_t n, uint64_t seed) {
    uint16_t *x = calloc((size_t)n, sizeof *x);

    if (!x)
        die("no memory");
    for (int64_t i = 0; i < n; i++)
        x[i] = ml_f32_to_bf16(number(&seed));
    s->be.dev->copy_in(s->be.stream, to, x, (size_t)n * sizeof *x);
    sync(s);
    free(x);
}

/* A weight after the others, of codes of random numbers. */
static size_t make_weight(setup *s, int k, size_t at) {
    const int64_t n = k == W_DOWN ? HIDDEN : INNER, in = k == W_DOWN ? INNER : HIDDEN;
    ml_tensor from = {
        .dtype = ML_BF16, .layout = ML_ROWS, .n_dim = 2, .shape = { n, in }
    };
    ml_tensor *to = &s->weight[k];

    *to = from;
    to->dtype = ML_FP8_BLOCKWISE;
    to->layout = ml_codes_layout(to->dtype, ML_ROWS);
    to->data = (char *)s->weights.ptr + at;
    from.data = s->scratch.ptr;
    fill(s, from.data, n * in, (uint64_t)k);
    s->be.optim->encode(s->be.stream, to, &from);
    sync(s);
    return at + ml_tensor_bytes(to);
}

static void make_weights(setup *s) {
    float scale[HIDDEN];
    uint64_t seed = 77;
    size_t at = sizeof scale;

    for (int i = 0; i < HIDDEN; i++)
        scale[i] = number(&seed);
    s->weight[SCALE] = (ml_tensor){
        .data = s->weights.ptr, .dtype = ML_F32, .n_dim = 1, .shape = { HIDDEN }
    };
    s->be.dev->copy_in(s->be.stream, s->weights.ptr, scale, sizeof scale);
    sync(s);
    for (int k = W_GATE; k < N_WEIGHT; k++)
        at = make_weight(s, k, at);
}

static void place_values(setup *s, int32_t rows) {
    char *at = s->values.ptr;

    for (int k = 0; k < N_VALUE; k++) {
        s->value[k] = (ml_tensor){ .data = at,
                                   .dtype = ML_BF16,
                                   .layout = ML_ROWS,
                                   .n_dim = 2,
                                   .shape = { rows, width[k] } };
        at += ml_tensor_bytes(&s->value[k]);
    }
}

/* The distance from step i to the last one that reads its output.  kept: a later call reads all. */
static int32_t reader_of(const chain *c, int i, int n, bool kept) {
    int32_t last = 0;

    for (int k = i + 1; k < n; k++)
        if (c->step[k].in[0] == c->step[i].out || c->step[k].in[1] == c->step[i].out)
            last = k - i;
    return last && !kept ? last : LATER;
}

static int bind(setup *s, const chain *c, bool kept, const ml_rows *rows,
                ml_op_call *call) {
    static const ml_op_attr norm = { .norm = { .width = HIDDEN, .eps = 1e-6f } };
    static const ml_op_attr plain = { 0 };
    int n = 0;

    while (c->step[n].op != ML_OP_COUNT)
        n++;
    for (int i = 0; i < n; i++) {
        const step *t = &c->step[i];
        ml_op_args a = { .attr = t->op == ML_OP_RMSNORM ? &norm : &plain,
                         .rows = rows,
                         .scratch = s->scratch.ptr };
        a.in[0] = s->value[t->in[0]];
        if (t->op == ML_OP_ADD || t->op == ML_OP_GLU)
            a.in[1] = s->value[t->in[1]];
        a.out[0] = s->value[t->out];
        if (t->w != NO_WEIGHT)
            a.w[0] = s->weight[t->w];
        call[i] =
            (ml_op_call){ .op = t->op, .args = a, .reader = { reader_of(c, i, n, kept) } };
    }
    return n;
}

/* Runs the calls, and copies all values. */
static void run(setup *s, const ml_op_call *call, int n, bool fused, unsigned char *out) {
    const ml_ops *ops = s->be.ops;
    size_t bytes = s->values.bytes;

    memset(out, 0xff, bytes);
    s->be.dev->copy_in(s->be.stream, s->values.ptr, out, bytes);
    sync(s);
    fill(s, s->value[X].data, ml_tensor_count(&s->value[X]), 1);
    fill(s, s->value[BEFORE].data, ml_tensor_count(&s->value[BEFORE]), 2);
    for (int i = 0, took; i < n; i += took) {
        took = fused ? ops->together(s->be.stream, call + i, n - i) : 0;
        if (took == 0)
            ops->forward[call[i].op](s->be.stream, &call[i].args);
        took = took ? took : 1;
    }
    s->be.dev->copy_out(s->be.stream, out, s->values.ptr, bytes);
    sync(s);
}

static bool check(setup *s, const chain *c, int32_t n_row, bool kept) {
    const ml_rows rows = { .n_token = n_row };
    ml_op_call call[MOST_CALLS];
    unsigned char *single = malloc(s->values.bytes), *fused = malloc(s->values.bytes);
    bool same = true;
    int n;

    if (!single || !fused)
        die("no memory");
    place_values(s, n_row);
    n = bind(s, c, kept, &rows, call);
    run(s, call, n, false, single);
    run(s, call, n, true, fused);
    for (int i = 0; i < n; i++) {
        const ml_tensor *y = &call[i].args.out[0];
        size_t at = (size_t)((char *)y->data - (char *)s->values.ptr);
        if (call[i].reader[0] < LATER ||
            !memcmp(single + at, fused + at, ml_tensor_bytes(y)))
            continue;
        printf("%s, %d rows%s: the output of call %d differs\n", c->name, n_row,
               kept ? ", all kept" : "", i);
        same = false;
    }
    free(single);
    free(fused);
    return same;
}

/* ---- backward: GLU, then up and gate ---- */

enum { BACK_CALLS = 3, DX = SUM, D_GATE = THIRD, D_UP = ALSO, D_GATED = GATED };

static void bind_back(setup *s, ml_grad_format format, const ml_rows *rows,
                      ml_op_call *call) {
    static const ml_op_attr plain = { 0 };
    ml_op_args a = {
        .attr = &plain, .rows = rows, .grad_format = format, .scratch = s->scratch.ptr
    };
    ml_op_args linear = a;
    float *dw = s->weight_grads.ptr;

    a.in[0] = s->value[GATE];
    a.in[1] = s->value[UP];
    a.din[0] = s->value[D_GATE];
    a.din[1] = s->value[D_UP];
    a.dout[0] = s->value[D_GATED];
    call[0] = (ml_op_call){ .op = ML_OP_GLU, .args = a };
    for (int i = 1; i < BACK_CALLS; i++) { /* gate is the last, and the first in memory */
        bool gate = i == BACK_CALLS - 1;
        linear.in[0] = s->value[NORMED];
        linear.din[0] = s->value[DX];
        linear.din_add[0] = gate;
        linear.w[0] = s->weight[gate ? W_GATE : W_UP];
        linear.dout[0] = s->value[gate ? D_GATE : D_UP];
        linear.dw[0] = linear.w[0];
        linear.dw[0].dtype = ML_F32;
        linear.dw[0].data = dw + (gate ? 0 : INNER * HIDDEN);
        call[i] = (ml_op_call){ .op = ML_OP_LINEAR, .args = linear };
    }
}

/* The gradients of the input and of the weights, to out. */
static bool run_back(setup *s, const ml_op_call *call, bool fused, unsigned char *out) {
    static const int random[] = { GATE, UP, NORMED, D_GATED };
    const ml_tensor *dx = &s->value[DX];
    const size_t dw_bytes = s->weight_grads.bytes;
    int took = 0;

    memset(out, 0, dw_bytes);
    s->be.dev->copy_in(s->be.stream, s->weight_grads.ptr, out, dw_bytes);
    sync(s);
    for (uint64_t i = 0; i < sizeof random / sizeof *random; i++)
        fill(s, s->value[random[i]].data, ml_tensor_count(&s->value[random[i]]), 10 + i);
    if (fused) {
        took = s->be.ops->together_back(s->be.stream, call, BACK_CALLS);
    } else {
        s->be.ops->backward[ML_OP_GLU](s->be.stream, &call[0].args);
        took = 1 + s->be.ops->together_back(s->be.stream, call + 1, BACK_CALLS - 1);
    }
    s->be.dev->copy_out(s->be.stream, out, s->weight_grads.ptr, dw_bytes);
    s->be.dev->copy_out(s->be.stream, out + dw_bytes, dx->data, ml_tensor_bytes(dx));
    sync(s);
    return took == BACK_CALLS;
}

static bool check_back(setup *s, int32_t n_row, ml_grad_format format) {
    const ml_rows rows = { .n_token = n_row };
    ml_op_call call[BACK_CALLS];
    unsigned char *single, *fused;
    size_t bytes;
    bool ran, same;

    place_values(s, n_row);
    bytes = s->weight_grads.bytes + ml_tensor_bytes(&s->value[DX]);
    single = malloc(bytes);
    fused = malloc(bytes);
    if (!single || !fused)
        die("no memory");
    bind_back(s, format, &rows, call);
    ran = run_back(s, call, false, single) && run_back(s, call, true, fused);
    same = ran && memcmp(single, fused, bytes) == 0;
    if (!same)
        printf("backward of a gate, %d rows, %s: %s\n", n_row,
               format == ML_GRAD_E5M2 ? "e5m2" : "e4m3",
               ran ? "the gradients differ" : "calls were not fused");
    free(single);
    free(fused);
    return same;
}

static void open_memory(setup *s) {
    const size_t row = sizeof(uint16_t) * (4 * HIDDEN + 5 * INNER + HIDDEN);

    s->values = device_bytes(s, MOST_ROWS * row);
    s->weights = device_bytes(s, 8 << 20);
    s->weight_grads = device_bytes(s, sizeof(float) * 2 * INNER * HIDDEN);
    s->scratch = device_bytes(s, 64 << 20);
    make_weights(s);
}

static void count(bool right, int *passed, int *failed) {
    *(right ? passed : failed) += 1;
}

int main(void) {
    int passed = 0, failed = 0;
    setup s = { 0 };
    ml_err err;

    if (ml_backend_open(&s.be, &(ml_backend_opts){ .device = "cuda", .n_thread = 1 },
                        &err)) {
        printf("skipped: %s\n0 passed, 0 failed, 1 skipped\n", err.msg);
        return 0;
    }
    open_memory(&s);
    for (size_t k = 0; k < sizeof row_counts / sizeof *row_counts; k++) {
        for (size_t i = 0; i < sizeof chains / sizeof *chains; i++)
            for (int kept = 0; kept < 2; kept++)
                count(check(&s, &chains[i], row_counts[k], kept != 0), &passed, &failed);
        for (int e5m2 = 0; s.be.fp8_grads && e5m2 < 2; e5m2++)
            count(check_back(&s, row_counts[k], e5m2 ? ML_GRAD_E5M2 : ML_GRAD_E4M3),
                  &passed, &failed);
    }
    s.be.dev->free(&s.values);
    s.be.dev->free(&s.weights);
    s.be.dev->free(&s.weight_grads);
    s.be.dev->free(&s.scratch);
    ml_backend_close(&s.be);
    printf("%d passed, %d failed, 0 skipped\n", passed, failed);
    return failed > 0;
}
