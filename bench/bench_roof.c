/* bench_roof.c - what a GPU can do: bytes that a copy moves, operations of a large product.
 *
 *     bench_roof
 *
 * Prints lines of a name and a number; other figures are shares of these.  A copy of 4 GiB counts
 * bytes read and written.  The product is 8192 x 8192 x 8192 in bf16 on numbers around 0. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "backend/backend.h"
#include "tensor/tensor.h"

enum { SIDE = 8192, RUNS = 10 };
#define COPY_BYTES ((size_t)4 << 30)

static _Noreturn void die(const char *what) {
    fprintf(stderr, "bench_roof: %s\n", what);
    exit(1);
}

static ml_buf take(const ml_backend *be, size_t bytes) {
    ml_buf b;
    ml_err err;

    if (be->dev->alloc(be->dev, &b, bytes, ML_MEM_ACT, &err))
        die(err.msg);
    return b;
}

/* The fastest of some runs, the first of which is not looked at. */
static double best_s(const ml_backend *be, void (*fn)(const ml_backend *be, void *ud),
                     void *ud) {
    double at_s[RUNS + 2], best = 1e9;
    ml_err err;

    for (int i = 0; i <= RUNS; i++) {
        be->marks->mark(be->stream, i);
        fn(be, ud);
    }
    be->marks->mark(be->stream, RUNS + 1);
    be->marks->read(be->stream, at_s, RUNS + 2);
    if (be->dev->sync(be->stream, &err))
        die(err.msg);
    for (int i = 1; i <= RUNS; i++)
        best = at_s[i + 1] - at_s[i] < best ? at_s[i + 1] - at_s[i] : best;
    return best;
}

static void copy(const ml_backend *be, void *ud) {
    const ml_buf *b = ud;
    be->dev->copy(be->stream, b[1].ptr, b[0].ptr, COPY_BYTES);
}

static double copy_tb_s(const ml_backend *be) {
    ml_buf b[2] = { take(be, COPY_BYTES), take(be, COPY_BYTES) };
    double s = best_s(be, copy, b);

    be->dev->free(&b[0]);
    be->dev->free(&b[1]);
    return 2 * (double)COPY_BYTES / s / 1e12;
}

static void multiply(const ml_backend *be, void *ud) {
    const ml_op_args *a = ud;
    be->ops->forward[ML_OP_LINEAR](be->stream, a);
}

static void fill(const ml_backend *be, const ml_buf *b) {
    uint16_t *x = malloc(b->bytes);
    uint32_t state = 1;

    if (!x)
        die("no memory for a matrix");
    for (size_t i = 0; i < b->bytes / sizeof *x; i++) {
        state = state * 1664525u + 1013904223u;
        x[i] = ml_f32_to_bf16((float)(state >> 8) * 0x1p-23f - 1.0f);
    }
    be->dev->copy_in(be->stream, b->ptr, x, b->bytes);
    free(x);
}

static ml_tensor square(void *data) {
    return (ml_tensor){ .data = data,
                        .dtype = ML_BF16,
                        .layout = ML_ROWS,
                        .n_dim = 2,
                        .shape = { SIDE, SIDE } };
}

static double gemm_tflops(const ml_backend *be) {
    size_t bytes = (size_t)SIDE * SIDE * 2, scratch;
    ml_buf x = take(be, bytes), w = take(be, bytes), y = take(be, bytes), own;
    ml_op_attr attr = { 0 };
    ml_rows rows = { .n_token = SIDE };
    ml_op_args a = { .attr = &attr,
                     .rows = &rows,
                     .in = { square(x.ptr) },
                     .w = { square(w.ptr) },
                     .out = { square(y.ptr) } };
    double s;
    ml_err err;

    if (be->ops->prepare(be->stream, ML_OP_LINEAR, &a, false, &err))
        die(err.msg);
    scratch = be->ops->scratch(be->stream, ML_OP_LINEAR, &a, false);
    own = take(be, scratch + 1);
    a.scratch = own.ptr;
    fill(be, &x);
    fill(be, &w);
    s = best_s(be, multiply, &a);
    be->dev->free(&x);
    be->dev->free(&w);
    be->dev->free(&y);
    be->dev->free(&own);
    return 2.0 * SIDE * SIDE * SIDE / s / 1e12;
}

int main(void) {
    ml_backend be;
    ml_err err = { 0 };

    if (ml_backend_open(&be, &(ml_backend_opts){ .device = "cuda", .n_thread = 1 }, &err))
        die(err.msg);
    printf("copy_tb_s %.3f\n", copy_tb_s(&be));
    printf("gemm_tflops %.1f\n", gemm_tflops(&be));
    ml_backend_close(&be);
    return 0;
}
