/* bench_linear.c - speeds of LINEAR on a GPU, by the dtype of the weight.
 *
 *     bench_linear M N K DTYPE...
 *
 * Prints the time of a product of M rows and a weight [N, K] and its TFLOP/s, for each DTYPE: bf16,
 * or a quantized one.  Calls take turns with copies of the weight that do not fit into the L2 cache
 * together.  Numbers are random. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/backend.h"
#include "tensor/codes.h"
#include "tensor/tensor.h"

enum { RUNS = 24, MAX_COPIES = 16, L2_BYTES = 200 << 20 };

typedef struct bench {
    ml_backend be;
    ml_op_attr attr;
    ml_rows rows;
    ml_op_args args;
    ml_buf x, y, scratch, w[MAX_COPIES];
    int n_copy;
} bench;

static _Noreturn void die(const char *what) {
    fprintf(stderr, "bench_linear: %s\n", what);
    exit(1);
}

static void take(bench *b, ml_buf *to, size_t bytes) {
    ml_err err;

    if (b->be.dev->alloc(b->be.dev, to, bytes + 1, ML_MEM_ACT, &err))
        die("no memory for a tensor");
}

/* bf16 in [-1, 1). */
static void fill_values(unsigned char *to, size_t bytes) {
    uint32_t state = 1;

    for (size_t i = 0; i + 1 < bytes; i += 2) {
        uint16_t x;
        state = state * 1664525u + 1013904223u;
        x = ml_f32_to_bf16((float)(state >> 8) * 0x1p-23f - 1.0f);
        memcpy(to + i, &x, sizeof x);
    }
}

/* Random codes below the largest; scales of 2^-9. */
static void fill_codes(unsigned char *to, const ml_tensor *w) {
    const int64_t rows = w->shape[0], cols = w->shape[1];
    ml_tensor m = *w;
    uint8_t *code = malloc((size_t)cols);
    float *scale = malloc((size_t)cols * sizeof *scale);
    uint32_t state = 1;

    if (!code || !scale)
        die("no memory for codes");
    m.data = to;
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t k = 0; k < cols; k++) {
            state = state * 1664525u + 1013904223u;
            code[k] = (uint8_t)((state >> 24) %
                                (ml_dtype_codes(w->dtype)->bits == 4 ? 16u : 120u));
            scale[k] = 0x1p-9f;
        }
        ml_codes_put(&m, i, 0, cols, code);
        ml_codes_put_scales(&m, i, scale);
    }
    free(code);
    free(scale);
}

static void make_weights(bench *b, const ml_tensor *w) {
    const size_t bytes = ml_tensor_bytes(w);
    unsigned char *image = calloc(1, bytes + 1);

    if (!image)
        die("no memory for a weight");
    if (ml_dtype_codes(w->dtype))
        fill_codes(image, w);
    else
        fill_values(image, bytes);
    b->n_copy = L2_BYTES / (int64_t)bytes + 1 < MAX_COPIES
                    ? (int)(L2_BYTES / (int64_t)bytes) + 1
                    : MAX_COPIES;
    for (int i = 0; i < b->n_copy; i++) {
        take(b, &b->w[i], bytes);
        b->be.dev->copy_in(b->be.stream, b->w[i].ptr, image, bytes);
    }
    free(image);
}

static ml_tensor matrix(int64_t rows, int64_t cols) {
    return (ml_tensor){
        .dtype = ML_BF16, .layout = ML_ROWS, .n_dim = 2, .shape = { rows, cols }
    };
}

static void make_args(bench *b, int64_t m, int64_t n, int64_t k, ml_dtype dtype) {
    ml_op_args *a = &b->args;
    unsigned char *image = malloc((size_t)(m * k) * 2 + 1);
    ml_err err;

    if (!image)
        die("no memory for the rows");
    *a = (ml_op_args){ .attr = &b->attr, .rows = &b->rows };
    b->rows.n_token = (int32_t)m;
    a->in[0] = matrix(m, k);
    a->out[0] = matrix(m, n);
    a->w[0] = matrix(n, k);
    a->w[0].dtype = dtype;
    a->w[0].layout = ml_dtype_codes(dtype) ? ml_codes_layout(dtype, ML_ROWS) : ML_ROWS;
    take(b, &b->x, ml_tensor_bytes(&a->in[0]));
    take(b, &b->y, ml_tensor_bytes(&a->out[0]));
    fill_values(image, ml_tensor_bytes(&a->in[0]));
    b->be.dev->copy_in(b->be.stream, b->x.ptr, image, ml_tensor_bytes(&a->in[0]));
    free(image);
    a->in[0].data = b->x.ptr;
    a->out[0].data = b->y.ptr;
    make_weights(b, &a->w[0]);
    if (b->be.ops->prepare(b->be.stream, ML_OP_LINEAR, a, false, &err))
        die(err.msg);
    take(b, &b->scratch, b->be.ops->scratch(b->be.stream, ML_OP_LINEAR, a, false));
    a->scratch = b->scratch.ptr;
}

/* Of a call, the mean of RUNS after as many that do not count. */
static double mean_s(bench *b) {
    double at_s[3];
    ml_err err;

    for (int i = 0; i < 2 * RUNS; i++) {
        if (i % RUNS == 0)
            b->be.marks->mark(b->be.stream, i / RUNS);
        b->args.w[0].data = b->w[i % b->n_copy].ptr;
        b->be.ops->forward[ML_OP_LINEAR](b->be.stream, &b->args);
    }
    b->be.marks->mark(b->be.stream, 2);
    b->be.marks->read(b->be.stream, at_s, 3);
    if (b->be.dev->sync(b->be.stream, &err))
        die(err.msg);
    return (at_s[2] - at_s[1]) / RUNS;
}

static ml_dtype dtype_named(const char *name) {
    for (int i = 0; i < ML_N_DTYPE; i++)
        if (strcmp(name, ml_dtype_name((ml_dtype)i)) == 0 &&
            (i == ML_BF16 || ml_dtype_codes((ml_dtype)i)))
            return (ml_dtype)i;
    die("DTYPE is bf16 or a quantized dtype, such as fp8-blockwise");
}

static void run(bench *b, int64_t m, int64_t n, int64_t k, const char *name) {
    double t;

    make_args(b, m, n, k, dtype_named(name));
    t = mean_s(b);
    printf("%lld x %lld x %lld %-14s %9.1f us %7.1f TFLOP/s\n", (long long)m, (long long)n,
           (long long)k, name, t * 1e6, 2.0 * (double)(m * n) * (double)k / t / 1e12);
    for (int i = 0; i < b->n_copy; i++)
        b->be.dev->free(&b->w[i]);
    b->be.dev->free(&b->x);
    b->be.dev->free(&b->y);
    b->be.dev->free(&b->scratch);
}

int main(int argc, char **argv) {
    static bench b;
    ml_err err = { 0 };

    if (argc < 5 || atoll(argv[1]) < 1 || atoll(argv[2]) < 1 || atoll(argv[3]) < 1)
        die("usage: bench_linear M N K DTYPE...");
    if (ml_backend_open(&b.be, &(ml_backend_opts){ .device = "cuda", .n_thread = 1 }, &err))
        die(err.msg);
    for (int i = 4; i < argc; i++)
        run(&b, atoll(argv[1]), atoll(argv[2]), atoll(argv[3]), argv[i]);
    ml_backend_close(&b.be);
    return 0;
}
