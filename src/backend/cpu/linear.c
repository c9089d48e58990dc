/* linear.c - LINEAR, MOE_LINEAR and HEAD_LINEAR: the products of gemm.h on a batch's rows. */
#include "backend/cpu/gemm.h"

enum { BIAS_GRAIN = 64 }; /* columns of the bias gradient a thread takes at once */

size_t ml_cpu_linear_scratch(const ml_cpu_stream *s, const ml_op_args *a, bool backward) {
    (void)backward;
    return ml_gemm_scratch(s, &a->w[0], a->in[0].shape[0]);
}

void ml_cpu_linear_forward(ml_stream *s, const ml_op_args *a) {
    const ml_tensor *x = &a->in[0], *w = &a->w[0], *y = &a->out[0];

    ml_gemm_forward(ml_cpu(s), y->data, w->shape[0], x->data, w->shape[1], w, a->w[1].data,
                    x->shape[0], a->scratch);
}

typedef struct bias_sum {
    const ml_gemm_kern *kern;
    float *sum;      /* [n] */
    const float *dy; /* [m, n] */
    int64_t m, n;
} bias_sum;

static void sum_columns(void *ud, int64_t begin, int64_t end, int worker) {
    const bias_sum *b = ud;

    (void)worker;
    b->kern->sum_rows(b->sum + begin, b->dy + begin, b->n, b->m, end - begin);
}

/* db[n] += the sum of dy[m, n] over rows. */
static void add_bias_grad(const ml_cpu_stream *s, float *db, const float *dy, int64_t m,
                          int64_t n) {
    bias_sum b = { s->kern->gemm, db, dy, m, n };
    ml_pool_run(s->pool, n, BIAS_GRAIN, sum_columns, &b);
}

void ml_cpu_linear_backward(ml_stream *s, const ml_op_args *a) {
    const ml_tensor *x = &a->in[0], *w = &a->w[0];
    const float *dy = a->dout[0].data;
    const int64_t m = x->shape[0], n = w->shape[0], k = w->shape[1];

    if (a->din[0].data)
        ml_gemm_dinput(ml_cpu(s), a->din[0].data, k, dy, n, w, m, a->din_add[0],
                       a->scratch);
    if (a->dw[0].data)
        ml_gemm_dweight(ml_cpu(s), &a->dw[0], dy, n, x->data, k, m, a->scratch);
    if (a->dw[1].data)
        add_bias_grad(ml_cpu(s), a->dw[1].data, dy, m, n);
}

/* One expert of a stack [E, N, K]: a weight [N, K] of its own. */
static ml_tensor expert_of(const ml_tensor *w, int64_t e) {
    const int64_t n = w->shape[1], k = w->shape[2];
    const int64_t stride = (n + ML_LANES - 1) / ML_LANES * ML_LANES * k;

    return (ml_tensor){
        .data = (char *)w->data + (size_t)(e * stride) * ml_dtype_bytes(w->dtype),
        .dtype = w->dtype,
        .layout = w->layout,
        .n_dim = 2,
        .shape = { n, k },
    };
}

size_t ml_cpu_moe_linear_scratch(const ml_cpu_stream *s, const ml_op_args *a,
                                 bool backward) {
    (void)backward;
    return ml_gemm_scratch(s, &a->w[0], a->in[0].shape[0]);
}

void ml_cpu_moe_linear_forward(ml_stream *s, const ml_op_args *a) {
    const int32_t *start = a->in[1].data; /* [E+1] */
    const int64_t n_expert = a->w[0].shape[0], n = a->w[0].shape[1], k = a->w[0].shape[2];
    const float *x = a->in[0].data;
    float *y = a->out[0].data;

    for (int64_t e = 0; e < n_expert; e++) {
        const ml_tensor w = expert_of(&a->w[0], e);
        const float *bias = a->w[1].data;
        ml_gemm_forward(ml_cpu(s), y + start[e] * n, n, x + start[e] * k, k, &w,
                        bias ? bias + e * n : NULL, start[e + 1] - start[e], a->scratch);
    }
}

void ml_cpu_moe_linear_backward(ml_stream *s, const ml_op_args *a) {
    const int32_t *start = a->in[1].data; /* [E+1] */
    const int64_t n_expert = a->w[0].shape[0], n = a->w[0].shape[1], k = a->w[0].shape[2];
    const float *x = a->in[0].data, *dy = a->dout[0].data;
    float *dx = a->din[0].data;

    for (int64_t e = 0; e < n_expert; e++) {
        const int64_t m = start[e + 1] - start[e];
        if (dx) {
            const ml_tensor w = expert_of(&a->w[0], e);
            ml_gemm_dinput(ml_cpu(s), dx + start[e] * k, k, dy + start[e] * n, n, &w, m,
                           a->din_add[0], a->scratch);
        }
        if (a->dw[0].data) {
            const ml_tensor dw = expert_of(&a->dw[0], e);
            ml_gemm_dweight(ml_cpu(s), &dw, dy + start[e] * n, n, x + start[e] * k, k, m,
                            a->scratch);
        }
        if (a->dw[1].data)
            add_bias_grad(ml_cpu(s), (float *)a->dw[1].data + e * n, dy + start[e] * n, m,
                          n);
    }
}

/* Heads stand side by side in a row: each is a product with its own columns. */
void ml_cpu_head_linear_forward(ml_stream *s, const ml_op_args *a) {
    const int64_t h = a->w[0].shape[0], n = a->w[0].shape[1], k = a->w[0].shape[2];
    const float *x = a->in[0].data;
    float *y = a->out[0].data;

    for (int64_t i = 0; i < h; i++) {
        const ml_tensor w = expert_of(&a->w[0], i);
        ml_gemm_forward(ml_cpu(s), y + i * n, h * n, x + i * k, h * k, &w, NULL,
                        a->in[0].shape[0], a->scratch);
    }
}

void ml_cpu_head_linear_backward(ml_stream *s, const ml_op_args *a) {
    const int64_t h = a->w[0].shape[0], n = a->w[0].shape[1], k = a->w[0].shape[2];
    const int64_t m = a->in[0].shape[0];
    const float *x = a->in[0].data, *dy = a->dout[0].data;
    float *dx = a->din[0].data;

    for (int64_t i = 0; i < h; i++) {
        const ml_tensor w = expert_of(&a->w[0], i);
        if (dx)
            ml_gemm_dinput(ml_cpu(s), dx + i * k, h * k, dy + i * n, h * n, &w, m,
                           a->din_add[0], a->scratch);
        if (a->dw[0].data) {
            const ml_tensor dw = expert_of(&a->dw[0], i);
            ml_gemm_dweight(ml_cpu(s), &dw, dy + i * n, h * n, x + i * k, h * k, m,
                            a->scratch);
        }
    }
}
