/* check_fused.c - layers with FP8 weights on a GPU, of which norms and gates write the codes that the products read
 * (fuse.cu): fused calls leave the bits of the single ones. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/backend.h"
#include "tensor/codes.h"

enum { HIDDEN = 256, INNER = 384, MOST_ROWS = 700, MOST_CALLS = 6, LATER = 100 };

/* Values of a chain of calls, and what is between two layers. */
enum { X, BEFORE, SUM, NORMED, GATE, UP, THIRD, GATED, DOWN, N_VALUE };
enum { NO_WEIGHT, SCALE, W_GATE, W_UP, W_THIRD, W_DOWN, N_WEIGHT };

static const int width[N_VALUE] = { HIDDEN, HIDDEN, HIDDEN, HIDDEN, INNER,
                                    INNER,  INNER,  INNER,  HIDDEN };

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

static const int32_t row_counts[] = { 1, 40, 300, MOST_ROWS };

typedef struct setup {
    ml_backend be;
    ml_buf values, weights, scratch;
    ml_tensor value[N_VALUE], weight[N_WEIGHT];
} setup;

static _Noreturn void die(const char *what) {
    fprintf(stderr, "check_fused: %s\n", what);
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

/* Runs the calls, and copies all values; ends the program where a fused call was expected and there was none. */
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

static void open_memory(setup *s) {
    const size_t row = sizeof(uint16_t) * (4 * HIDDEN + 4 * INNER + HIDDEN);

    s->values = device_bytes(s, MOST_ROWS * row);
    s->weights = device_bytes(s, 8 << 20);
    s->scratch = device_bytes(s, 64 << 20);
    make_weights(s);
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
    for (size_t i = 0; i < sizeof chains / sizeof *chains; i++)
        for (size_t k = 0; k < sizeof row_counts / sizeof *row_counts; k++)
            for (int kept = 0; kept < 2; kept++)
                if (check(&s, &chains[i], row_counts[k], kept != 0))
                    passed++;
                else
                    failed++;
    s.be.dev->free(&s.values);
    s.be.dev->free(&s.weights);
    s.be.dev->free(&s.scratch);
    ml_backend_close(&s.be);
    printf("%d passed, %d failed, 0 skipped\n", passed, failed);
    return failed > 0;
}
