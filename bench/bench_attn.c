/* bench_attn.c - speeds of attention on a GPU, by the shapes of known models.
 *
 *     bench_attn [NAME]...
 *
 * Prints for each shape (or those named) the time of one call, the products' TFLOP/s and the bytes
 * of keys and values read once, in TB/s.  Backward counts five products of rows and keys, as
 * FlashAttention does.  Numbers are random; decode reads full pages. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/backend.h"
#include "tensor/codes.h"
#include "tensor/tensor.h"

enum { RUNS = 5, MAX_BUF = 32 };

static const struct shape {
    const char *name;
    int32_t n_seq, len;
    bool decode; /* one row per sequence; otherwise whole sequences, and backward */
    int32_t n_head, n_kv, d, e;
    bool in_key;
    int32_t window, top_k; /* top_k: ATTN_CHOSEN */
    bool sink;
    ml_dtype kv; /* of codes in pages; 0: bf16 */
} shapes[] = {
    { "mla-decode", 64, 4096, true, 128, 1, 576, 512, .in_key = true },
    { "mla-train", 2, 4096, false, 128, 1, 576, 512, .in_key = true },
    { "mla-decode-16-heads", 64, 4096, true, 16, 1, 576, 512, .in_key = true },
    { "chosen-decode", 64, 4096, true, 128, 1, 576, 512, .in_key = true, .top_k = 2048 },
    { "chosen-train", 1, 4096, false, 128, 1, 576, 512, .in_key = true, .top_k = 2048 },
    { "head256-decode", 64, 4096, true, 16, 2, 256, 256 },
    { "head256-train", 2, 4096, false, 16, 2, 256, 256 },
    { "head512-train", 2, 4096, false, 8, 1, 512, 512 },
    { "sink64-decode", 64, 4096, true, 64, 8, 64, 64, .window = 128, .sink = true },
    { "sink64-train", 2, 4096, false, 64, 8, 64, 64, .sink = true },
    { "head128-4k", 4, 4096, false, 16, 8, 128, 128 },
    { "head128-16k", 1, 16384, false, 16, 8, 128, 128 },
    { "head128-32k", 1, 32768, false, 16, 8, 128, 128 },
    { "head64-1k", 32, 1024, false, 9, 3, 64, 64 },
    { "decode-bf16", 256, 1536, true, 32, 8, 128, 128 },
    { "decode-fp8", 256, 1536, true, 32, 8, 128, 128, .kv = ML_KV_E4M3 },
    { "decode-fp8_e5m2", 256, 1536, true, 32, 8, 128, 128, .kv = ML_KV_E5M2 },
    { "decode-int8", 256, 1536, true, 32, 8, 128, 128, .kv = ML_KV_INT8 },
    { "train-bf16", 4, 4096, false, 32, 8, 128, 128 },
    { "train-fp8", 4, 4096, false, 32, 8, 128, 128, .kv = ML_KV_E4M3 },
    { "mla-decode-fp8", 64, 4096, true, 128, 1, 576, 512, .in_key = true,
      .kv = ML_KV_E4M3 },
    { "head256-decode-fp8", 64, 4096, true, 16, 2, 256, 256, .kv = ML_KV_E4M3 },
};

typedef struct bench {
    ml_backend be;
    const struct shape *s;
    ml_op_id op;
    ml_op_attr attr;
    ml_rows rows;
    ml_op_args args;
    ml_buf buf[MAX_BUF];
    int n_buf;
} bench;

static _Noreturn void die(const char *what) {
    fprintf(stderr, "bench_attn: %s\n", what);
    exit(1);
}

static void *take(bench *b, size_t bytes, const void *from) {
    ml_device *dev = b->be.dev;
    ml_buf *to = &b->buf[b->n_buf++];
    ml_err err;

    if (b->n_buf > MAX_BUF || dev->alloc(dev, to, bytes + 1, ML_MEM_ACT, &err))
        die("no memory for a tensor");
    if (from)
        dev->copy_in(b->be.stream, to->ptr, from, bytes);
    return to->ptr;
}

/* A bf16 matrix of random numbers in [-1, 1). */
static ml_tensor matrix(bench *b, int64_t rows, int64_t cols) {
    ml_tensor t = {
        .dtype = ML_BF16, .layout = ML_ROWS, .n_dim = 2, .shape = { rows, cols }
    };
    uint16_t *x = malloc(ml_tensor_bytes(&t) + 1);
    uint32_t state = 1;

    if (!x)
        die("no memory for a matrix");
    for (int64_t i = 0; i < rows * cols; i++) {
        state = state * 1664525u + 1013904223u;
        x[i] = ml_f32_to_bf16((float)(state >> 8) * 0x1p-23f - 1.0f);
    }
    t.data = take(b, ml_tensor_bytes(&t), x);
    free(x);
    return t;
}

/* Pages of numbers, or of codes and scales. */
static ml_tensor page_matrix(bench *b, int64_t pages, int64_t width) {
    int64_t n_kv = b->s->n_kv;
    ml_tensor t;

    if (!b->s->kv)
        return matrix(b, pages, ML_PAGE * n_kv * width);
    t = matrix(b, pages, ML_PAGE * n_kv * (width + ML_KV_SCALE_BYTES) / 2);
    t.dtype = b->s->kv;
    t.shape[1] *= 2;
    return t;
}

static ml_tensor floats(bench *b, int64_t rows, int64_t cols) {
    ml_tensor t = {
        .dtype = ML_F32, .layout = ML_ROWS, .n_dim = 2, .shape = { rows, cols }
    };
    t.data = take(b, ml_tensor_bytes(&t), NULL);
    return t;
}

static const int32_t *ints(bench *b, int32_t *x, int64_t n) {
    const int32_t *to = take(b, (size_t)n * sizeof *x, x);
    free(x);
    return to;
}

static int32_t *new_ints(int64_t n) {
    int32_t *x = malloc((size_t)(n + 1) * sizeof *x);
    if (!x)
        die("no memory for the rows");
    return x;
}

static void make_rows(bench *b) {
    const struct shape *s = b->s;
    int32_t each = s->decode ? 1 : s->len, n = s->n_seq * each, pages = s->len / ML_PAGE;
    int32_t *pos = new_ints(n), *start = new_ints(s->n_seq), *first = new_ints(s->n_seq);
    int32_t *page = new_ints((int64_t)s->n_seq * pages);

    for (int32_t i = 0; i <= s->n_seq; i++) {
        start[i] = i * each;
        first[i] = i * pages;
    }
    for (int32_t i = 0; i < n; i++)
        pos[i] = s->decode ? s->len - 1 : i % s->len;
    for (int32_t i = 0; i < s->n_seq * pages; i++)
        page[i] = i;
    b->rows = (ml_rows){ .n_token = n, .n_seq = s->n_seq, .n_page = s->n_seq * pages };
    b->rows.pos = ints(b, pos, n);
    b->rows.seq_start = ints(b, start, s->n_seq + 1);
    b->rows.page_start = ints(b, first, s->n_seq + 1);
    b->rows.page = ints(b, page, (int64_t)s->n_seq * pages);
}

/* Every second key of a row, or all if there are few. */
static ml_tensor make_lists(bench *b) {
    const struct shape *s = b->s;
    int64_t n = b->rows.n_token, k = s->top_k;
    ml_tensor t = { .dtype = ML_I32, .layout = ML_ROWS, .n_dim = 2, .shape = { n, k } };
    int32_t *list = new_ints(n * k);

    for (int64_t row = 0; row < n; row++) {
        int64_t keys = s->decode ? s->len : row % s->len + 1, step = keys >= 2 * k ? 2 : 1;
        for (int64_t i = 0; i < k; i++)
            list[row * k + i] = i * step < keys ? (int32_t)(i * step) : -1;
    }
    t.data = (void *)(uintptr_t)ints(b, list, n * k);
    return t;
}

static void make_args(bench *b) {
    const struct shape *s = b->s;
    int64_t n = b->rows.n_token, pages = (int64_t)s->n_seq * s->len / ML_PAGE;
    ml_op_args *a = &b->args;

    *a = (ml_op_args){ .attr = &b->attr, .rows = &b->rows };
    a->in[0] = matrix(b, n, (int64_t)s->n_head * s->d);
    a->in[1] = matrix(b, n, (int64_t)s->n_kv * s->d);
    a->out[0] = matrix(b, n, (int64_t)s->n_head * s->e);
    a->dout[0] = matrix(b, n, (int64_t)s->n_head * s->e);
    a->din[0] = matrix(b, n, (int64_t)s->n_head * s->d);
    a->din[1] = matrix(b, n, (int64_t)s->n_kv * s->d);
    if (s->sink)
        a->w[0] = floats(b, 1, s->n_head);
    if (s->top_k) {
        a->in[2] = make_lists(b);
        a->out[1] = matrix(b, pages, (int64_t)ML_PAGE * s->d);
        return;
    }
    a->in[2] = matrix(b, n, (int64_t)s->n_kv * s->e);
    a->din[2] = matrix(b, n, (int64_t)s->n_kv * s->e);
    a->out[1] = floats(b, n, 2 * (int64_t)s->n_head);
    a->out[2] = page_matrix(b, pages, s->d);
    if (!s->in_key)
        a->out[3] = page_matrix(b, pages, s->e);
}

/* The fastest of some calls; the first does not count. */
static double best_s(bench *b, bool backward) {
    ml_op_fn *fn = backward ? b->be.ops->backward[b->op] : b->be.ops->forward[b->op];
    double at_s[RUNS + 2], best = 1e9;
    ml_err err;

    for (int i = 0; i <= RUNS; i++) {
        b->be.marks->mark(b->be.stream, i);
        fn(b->be.stream, &b->args);
    }
    b->be.marks->mark(b->be.stream, RUNS + 1);
    b->be.marks->read(b->be.stream, at_s, RUNS + 2);
    if (b->be.dev->sync(b->be.stream, &err))
        die(err.msg);
    for (int i = 1; i <= RUNS; i++)
        best = at_s[i + 1] - at_s[i] < best ? at_s[i + 1] - at_s[i] : best;
    return best;
}

/* Keys that all rows attend to. */
static double pairs(const struct shape *s) {
    double sum = 0.0;

    for (int32_t i = s->decode ? s->len - 1 : 0; i < s->len; i++) {
        int32_t most = s->top_k ? s->top_k : s->window ? s->window : s->len;
        sum += i + 1 < most ? i + 1 : most;
    }
    return sum * s->n_seq;
}

static void show(bench *b, const char *what, bool backward) {
    const struct shape *s = b->s;
    double t = best_s(b, backward), n = pairs(s) * s->n_head;
    double flop = 2.0 * n * (backward ? 3.0 * s->d + 2.0 * s->e : s->d + s->e);
    double bytes = pairs(s) / (s->decode ? 1 : s->len) * s->n_kv * (s->kv ? 1.0 : 2.0) *
                   (s->d + (s->in_key ? 0 : s->e));

    printf("%-20s %-8s %8.3f ms %7.1f TFLOP/s %6.3f TB/s\n", s->name, what, t * 1e3,
           flop / t / 1e12, bytes / t / 1e12);
}

static void run(bench *b, const struct shape *s) {
    size_t fore, back;

    b->s = s;
    b->op = s->top_k ? ML_OP_ATTN_CHOSEN : ML_OP_ATTN;
    b->attr = (ml_op_attr){ 0 };
    b->attr.attn.n_head = s->n_head;
    b->attr.attn.n_kv = s->n_kv;
    b->attr.attn.head_dim = s->d;
    b->attr.attn.value_dim = s->e;
    b->attr.attn.window = s->window;
    b->attr.attn.scale = 0.05f;
    make_rows(b);
    make_args(b);
    fore = b->be.ops->scratch(b->be.stream, b->op, &b->args, false);
    back = b->be.ops->scratch(b->be.stream, b->op, &b->args, true);
    b->args.scratch = take(b, fore > back ? fore : back, NULL);
    show(b, "forward", false);
    if (!s->decode)
        show(b, "backward", true);
    while (b->n_buf > 0)
        b->be.dev->free(&b->buf[--b->n_buf]);
}

int main(int argc, char **argv) {
    static bench b;
    ml_err err = { 0 };

    if (ml_backend_open(&b.be, &(ml_backend_opts){ .device = "cuda", .n_thread = 1 }, &err))
        die(err.msg);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        bool wanted = argc == 1;
        for (int k = 1; k < argc; k++)
            wanted = wanted || strcmp(argv[k], shapes[i].name) == 0;
        if (wanted)
            run(&b, &shapes[i]);
    }
    ml_backend_close(&b.be);
    return 0;
}
