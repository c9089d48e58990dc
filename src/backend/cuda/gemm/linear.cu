/* linear.cu - LINEAR: three GEMMs (y, dx, dw), and a bias. */
#include "backend/cuda/dense.cuh"
#include "backend/cuda/gemm/gemm.cuh"
#include "backend/cuda/gemm/gemm_codes.cuh"
#include "backend/cuda/gemm/gemm_fp8.cuh"
#include "backend/cuda/gemm/gemm_fp8_back.cuh"
#include "backend/cuda/gemm/linear_f32_out.cuh"
#include "backend/cuda/gemm/linear_joint_back.cuh"

enum { THREADS = 256, BIAS_ROWS = ML_BIAS_ROWS };

/* y += bias, with a rounding of its own at any number of rows. */
template <class T>
__global__ void bias_kernel(T *y, const float *bias, int64_t count, int64_t n) {
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < count)
        y[i] = ml_as<T>(ml_f32(y[i]) + bias[i % n]);
}

/* Partial sums of BIAS_ROWS rows each; rows in order. */
template <class T>
__global__ void bias_sums(float *part, const T *dy, int64_t rows, int64_t n) {
    int64_t col = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    int64_t first = (int64_t)blockIdx.y * BIAS_ROWS;
    int64_t end = first + BIAS_ROWS < rows ? first + BIAS_ROWS : rows;
    float sum = 0.0f;

    if (col >= n)
        return;
    for (int64_t t = first; t < end; t++)
        sum += ml_f32(dy[t * n + col]);
    part[(int64_t)blockIdx.y * n + col] = sum;
}

static unsigned bias_parts(int64_t rows) {
    return ml_cuda_blocks(rows, BIAS_ROWS);
}

/* Weights in f32 beside rows in bf16. */
static bool has_f32_weights(const ml_op_args *a) {
    return a->in[0].dtype == ML_BF16 && a->w[0].dtype == ML_F32;
}

static ml_gemm forward_gemm(ml_stream *s, const ml_op_args *a) {
    const ml_tensor *x = &a->in[0], *w = &a->w[0], *y = &a->out[0];
    ml_gemm g = ml_gemm_shape(x->shape[0], w->shape[0], w->shape[1], false, false);

    g.a = ml_fp8_values(ml_cuda(s), a);
    g.b = ml_cuda_dense(ml_cuda(s), a, NULL);
    g.c = y->data;
    g.in = ml_cuda_dense_dtype(w);
    g.out = y->dtype;
    return g;
}

/* Few rows with quantized weights: a kernel that reads their codes. */
static bool reads_codes(ml_cuda_stream *s, const ml_op_args *a) {
    ml_skinny_gemm f = {};

    if (!s->early || !ml_codes_gemm_reads(a->w[0].dtype) || a->in[0].dtype != ML_BF16 ||
        a->out[0].dtype != ML_BF16)
        return false;
    ml_skinny_gemm_add(&f, a, true);
    if (!ml_skinny_gemm_supports(s, &f))
        return false;
    ml_skinny_gemm_run(s, &f);
    return true;
}

static void add_bias(ml_stream *s, const ml_op_args *a) {
    const ml_tensor *y = &a->out[0];
    int64_t n = y->shape[1], count = y->shape[0] * n;

    if (!a->w[1].data || count == 0)
        return;
    ML_CUDA_TYPED(y->dtype, bias_kernel<T>
                  <<<ml_cuda_blocks(count, THREADS), THREADS, 0, ml_cuda(s)->stream>>>(
                      (T *)y->data, (const float *)a->w[1].data, count, n));
    ml_cuda_launched(ml_cuda(s), "bias");
}

void ml_cuda_linear_of_codes(ml_cuda_stream *s, const ml_op_args *a, ml_fp8_input x) {
    ml_fp8_gemm g = ml_fp8_gemm_of(a, x, a->w[0].shape[0], a->out[0].data);

    if (!ml_gemm_fp8(s, a, &g))
        ml_fp8_multiply(s, &g);
    add_bias(&s->base, a);
}

void ml_cuda_linear_forward(ml_stream *s, const ml_op_args *a) {
    ml_gemm g;

    if (reads_codes(ml_cuda(s), a))
        return;
    if (has_f32_weights(a)) {
        ml_cuda_linear_f32_out_forward(s, a);
        return;
    }
    if (ml_fp8_takes(ml_cuda(s), a->w[0].dtype)) {
        ml_cuda_linear_of_codes(ml_cuda(s), a, ml_fp8_encode(ml_cuda(s), a));
        return;
    }
    g = forward_gemm(s, a);
    ml_gemm_rows(ml_cuda(s), &g);
    add_bias(s, a);
}

/* dx [m, k] = dy [m, n] w [n, k]. */
static void back_input(ml_stream *s, const ml_op_args *a) {
    const ml_tensor *w = &a->w[0], *dy = &a->dout[0], *dx = &a->din[0];
    ml_gemm g = ml_gemm_shape(dy->shape[0], w->shape[1], w->shape[0], false, true);

    g.a = dy->data;
    g.b = ml_cuda_dense(ml_cuda(s), a, NULL);
    g.c = dx->data;
    g.in = ml_cuda_dense_dtype(w);
    g.out = dx->dtype;
    g.add = a->din_add[0];
    ml_gemm_any(ml_cuda(s), &g);
}

/* dw [n, k] (+)= dy' [n, m] x [m, k]. */
static void back_weight(ml_stream *s, const ml_op_args *a) {
    const ml_tensor *x = &a->in[0], *dy = &a->dout[0], *dw = &a->dw[0];
    ml_gemm g = ml_gemm_shape(dy->shape[1], x->shape[1], dy->shape[0], true, true);

    g.a = dy->data;
    g.b = x->data;
    g.c = dw->data;
    g.in = x->dtype;
    g.out = ML_F32;
    g.add = !a->dw_write[0];
    ml_gemm_any(ml_cuda(s), &g);
}

static void back_bias(ml_stream *s, const ml_op_args *a) {
    const ml_tensor *dy = &a->dout[0];
    int64_t rows = dy->shape[0], n = dy->shape[1];
    float *part = (float *)((char *)a->scratch + ml_cuda_linear_bias_at(a));
    unsigned parts = bias_parts(rows), blocks = ml_cuda_blocks(n, THREADS);

    if (a->dw_write[1])
        ml_cuda_zero_dw(ml_cuda(s), a, 1);
    ML_CUDA_TYPED(dy->dtype,
                  bias_sums<T><<<dim3(blocks, parts), THREADS, 0, ml_cuda(s)->stream>>>(
                      part, (const T *)dy->data, rows, n));
    ml_cuda_launched(ml_cuda(s), "bias gradient");
    ml_cuda_add_parts(ml_cuda(s), (float *)a->dw[1].data, part, (int)parts, n);
}

/* dx and dw. */
static void back_products(ml_stream *s, const ml_op_args *a) {
    if (ml_gemm_fp8_back(ml_cuda(s), a))
        return;
    if (has_f32_weights(a)) {
        ml_cuda_linear_f32_out_backward(s, a);
        return;
    }
    if (a->din[0].data)
        back_input(s, a);
    if (a->dw[0].data)
        back_weight(s, a);
}

/* No rows: a gradient that is written is zero. */
static bool has_no_rows(ml_stream *s, const ml_op_args *a) {
    if (a->dout[0].shape[0])
        return false;
    for (int k = 0; k < ML_OP_W; k++)
        if (a->dw[k].data && a->dw_write[k])
            ml_cuda_zero_dw(ml_cuda(s), a, k);
    return true;
}

void ml_cuda_linear_backward(ml_stream *s, const ml_op_args *a) {
    if (has_no_rows(s, a))
        return;
    back_products(s, a);
    if (a->dw[1].data)
        back_bias(s, a);
}

int ml_cuda_linear_together_back(ml_stream *s, const ml_op_call *c, int n) {
    if (c[0].args.dout[0].shape[0] == 0)
        return 0;
    if (c->op == ML_OP_GLU)
        return ml_gemm_fp8_back_gated(ml_cuda(s), &c->args, c + 1) ||
                       ml_joint_back_gated(ml_cuda(s), &c->args, c + 1)
                   ? n
                   : 0;
    if (!ml_gemm_fp8_back_joint(ml_cuda(s), c, n))
        return 0;
    for (int i = 0; i < n; i++)
        if (c[i].args.dw[1].data)
            back_bias(s, &c[i].args);
    return n;
}
