/* check_encode.c - quantization on a GPU: the codes and scales that the host writes, and the bf16
 * numbers of INT4 training with f32 scales, byte for byte. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/weights_codes.h"
#include "tensor/codes.h"

static const struct shape {
    int32_t members, n, k;
} shapes[] = {
    { 1, 16, 8 }, { 1, 130, 260 }, { 3, 40, 77 }, { 1, 256, 1024 }, { 2, 129, 128 }
};

static const ml_dtype dtypes[] = { ML_FP8,  ML_FP8_BLOCKWISE, ML_MXFP8, ML_INT8,
                                   ML_INT4, ML_INT4_G128,     ML_NF4 };

static _Noreturn void die(const char *what) {
    fprintf(stderr, "check_encode: %s\n", what);
    exit(1);
}

static void *take(size_t bytes) {
    void *p = calloc(1, bytes + 1);
    if (!p)
        die("no memory");
    return p;
}

/* Numbers of many sizes; some blocks of zeros, and some with an infinity or NaN. */
static uint16_t number(uint64_t *state, int64_t i) {
    float x;

    *state = *state * 6364136223846793005u + 1442695040888963407u;
    x = ldexpf((float)(*state >> 40) * 0x1p-23f - 1.0f, -(int)(*state >> 8 & 7));
    if (i / 300 % 5 == 1)
        x = *state & 1 ? 0.0f : -0.0f;
    if (i / 300 % 7 == 2)
        x *= 0x1p-120f;
    if (i % 40009 == 4001)
        x = *state & 1 ? INFINITY : NAN;
    return ml_f32_to_bf16(x);
}

typedef struct rows {
    const uint16_t *x;
    int64_t cols;
} rows;

static void read_rows(const void *ud, int64_t row, int64_t n, float *out) {
    const rows *r = ud;

    for (int64_t i = 0; i < n * r->cols; i++)
        out[i] = ml_bf16_to_f32(r->x[row * r->cols + i]);
}

static ml_tensor stack(const struct shape *s, ml_dtype dtype) {
    return (ml_tensor){ .dtype = dtype,
                        .layout = ml_dtype_codes(dtype) ? ml_codes_layout(dtype, ML_ROWS)
                                                        : ML_ROWS,
                        .n_dim = 3,
                        .shape = { s->members, s->n, s->k } };
}

/* What the device wrote, and the same with the host's codes in place of them: bytes that are neither
 * codes nor scales are left alone. */
static int differing_bytes(const ml_tensor *t, int64_t fake_group,
                           const unsigned char *theirs, const uint16_t *x) {
    ml_tensor m = { .dtype = t->dtype,
                    .layout = t->layout,
                    .n_dim = 2,
                    .shape = { t->shape[1], t->shape[2] } };
    const size_t bytes = ml_tensor_bytes(t);
    unsigned char *ours = take(bytes);
    int differ = 0;

    memcpy(ours, theirs, bytes);
    for (int64_t e = 0; e < t->shape[0]; e++) {
        const rows r = { x + e * t->shape[1] * t->shape[2], t->shape[2] };
        m.data = ours + (size_t)e * ml_tensor_bytes(&m);
        ml_weights_encode(&m, fake_group, read_rows, &r, NULL);
    }
    for (size_t i = 0; i < bytes; i++)
        differ += ours[i] != theirs[i];
    free(ours);
    return differ;
}

/* dtype: with a fake_group, bf16. */
static bool check(ml_backend *be, const struct shape *s, ml_dtype dtype,
                  int64_t fake_group) {
    ml_tensor from = stack(s, ML_BF16), to = stack(s, dtype);
    const int64_t n = ml_tensor_count(&from);
    uint16_t *x = take((size_t)n * sizeof *x);
    unsigned char *codes = take(ml_tensor_bytes(&to));
    uint64_t state = 1;
    ml_buf in, out;
    ml_err err;
    int differ;

    for (int64_t i = 0; i < n; i++)
        x[i] = number(&state, i);
    if (be->dev->alloc(be->dev, &in, ml_tensor_bytes(&from), ML_MEM_WEIGHT, &err) ||
        be->dev->alloc(be->dev, &out, ml_tensor_bytes(&to), ML_MEM_WEIGHT, &err))
        die(err.msg);
    from.data = in.ptr;
    to.data = out.ptr;
    be->dev->copy_in(be->stream, in.ptr, x, ml_tensor_bytes(&from));
    if (fake_group)
        be->optim->fake_int4(be->stream, &to, &from, fake_group);
    else
        be->optim->encode(be->stream, &to, &from);
    be->dev->copy_out(be->stream, codes, out.ptr, ml_tensor_bytes(&to));
    if (be->dev->sync(be->stream, &err))
        die(err.msg);
    differ = differing_bytes(&to, fake_group, codes, x);
    if (differ)
        printf("%s, groups of %d, %d x %d x %d: %d bytes differ\n", ml_dtype_name(dtype),
               (int)fake_group, s->members, s->n, s->k, differ);
    be->dev->free(&in);
    be->dev->free(&out);
    free(x);
    free(codes);
    return differ == 0;
}

int main(void) {
    int n_ok = 0, n_all = 0;
    ml_backend be;
    ml_err err;

    if (ml_backend_open(&be, &(ml_backend_opts){ .device = "cuda", .n_thread = 1 }, &err)) {
        printf("skipped: %s\n0 passed, 0 failed, 1 skipped\n", err.msg);
        return 0;
    }
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes; d++, n_all++)
            n_ok += check(&be, &shapes[i], dtypes[d], 0);
        for (int64_t group = 32; group <= 128; group += 96, n_all++)
            n_ok += check(&be, &shapes[i], ML_BF16, group);
    }
    ml_backend_close(&be);
    printf("%d passed, %d failed, 0 skipped\n", n_ok, n_all - n_ok);
    return n_ok < n_all;
}
