/* peer.cu - memory shared with other processes (CUDA IPC), and sums over it. */
#include "backend/cuda/common.cuh"

#include <cuda_fp16.h>
#include <string.h>

static_assert(sizeof(cudaIpcMemHandle_t) == ML_PEER_HANDLE, "tensor/device.h");

static ml_status share(const ml_buf *b, unsigned char handle[ML_PEER_HANDLE], ml_err *err) {
    cudaIpcMemHandle_t h;
    cudaError_t e = cudaIpcGetMemHandle(&h, b->ptr);

    if (e != cudaSuccess) {
        cudaGetLastError();
        return ml_fail(err, ML_EUNSUP, "the GPU cannot share its memory: %s",
                       cudaGetErrorString(e));
    }
    memcpy(handle, &h, sizeof h);
    return ML_OK;
}

static ml_status map(ml_device *d, void **out, const unsigned char handle[ML_PEER_HANDLE],
                     ml_err *err) {
    cudaIpcMemHandle_t h;
    cudaError_t e;

    (void)d;
    memcpy(&h, handle, sizeof h);
    e = cudaIpcOpenMemHandle(out, h, cudaIpcMemLazyEnablePeerAccess);
    if (e == cudaSuccess)
        return ML_OK;
    cudaGetLastError();
    return ml_fail(err, ML_EUNSUP,
                   "cannot map the GPU memory of another rank of this host: %s",
                   cudaGetErrorString(e));
}

static void unmap(ml_device *d, void *p) {
    (void)d;
    cudaIpcCloseMemHandle(p);
}

/* ---- the tree of comm.h ---- */

enum { THREADS = 256, DEPTH = 8 }; /* 64 inputs have sums of 7 sizes */

struct inputs {
    const void *in[ML_PEERS];
    int32_t n;
};

__device__ static float widened(const __half *p, int64_t i) {
    return __half2float(p[i]);
}
__device__ static float widened(const bf16 *p, int64_t i) {
    return __bfloat162float(p[i]);
}
__device__ static float widened(const float *p, int64_t i) {
    return p[i];
}
__device__ static int32_t widened(const int32_t *p, int64_t i) {
    return p[i];
}

__device__ static void put(__half *p, int64_t i, float v) {
    p[i] = __float2half_rn(v);
}
__device__ static void put(bf16 *p, int64_t i, float v) {
    p[i] = __float2bfloat16_rn(v);
}
__device__ static void put(float *p, int64_t i, float v) {
    p[i] = v;
}
__device__ static void put(int32_t *p, int64_t i, int32_t v) {
    p[i] = v;
}

__device__ static float sum(float a, float b) {
    return a + b;
}
__device__ static int32_t sum(int32_t a, int32_t b) {
    return (int32_t)((uint32_t)a + (uint32_t)b);
}
__device__ static float larger(float a, float b) {
    return b > a || b != b ? b : a;
}
__device__ static int32_t larger(int32_t a, int32_t b) {
    return b > a ? b : a;
}

/* Sums of 1, 2, 4, ... inputs wait on a stack until the sum of as many next ones is there;
 * what is left at the end is added from the right. */
template <class T, class V, bool MAX>
__global__ static void tree_kernel(T *out, inputs x, int64_t n) {
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    V stack[DEPTH], v;
    int top = 0;

    if (i >= n)
        return;
    for (int r = 0; r < x.n; r++) {
        v = widened((const T *)x.in[r], i);
        for (int k = r; k & 1; k >>= 1, top--)
            v = MAX ? larger(stack[top - 1], v) : sum(stack[top - 1], v);
        stack[top++] = v;
    }
    for (v = stack[--top]; top > 0; top--)
        v = MAX ? larger(stack[top - 1], v) : sum(stack[top - 1], v);
    put(out, i, v);
}

template <class T, class V>
static void launch(ml_cuda_stream *s, void *out, const inputs &x, int64_t n, bool max) {
    unsigned blocks = ml_cuda_blocks(n, THREADS);

    if (max)
        tree_kernel<T, V, true><<<blocks, THREADS, 0, s->stream>>>((T *)out, x, n);
    else
        tree_kernel<T, V, false><<<blocks, THREADS, 0, s->stream>>>((T *)out, x, n);
    ml_cuda_launched(s, "a sum over ranks");
}

static void tree(ml_stream *stream, void *out, const void *const *in, int32_t n_in,
                 int64_t n, ml_dtype dtype, bool max) {
    ml_cuda_stream *s = ml_cuda(stream);
    inputs x = {};

    x.n = n_in;
    memcpy(x.in, in, (size_t)n_in * sizeof *in);
    if (n == 0)
        return;
    switch (dtype) {
    case ML_F32: launch<float, float>(s, out, x, n, max); break;
    case ML_BF16: launch<bf16, float>(s, out, x, n, max); break;
    case ML_F16: launch<__half, float>(s, out, x, n, max); break;
    case ML_I32: launch<int32_t, int32_t>(s, out, x, n, max); break;
    case ML_U8: ml_cuda_note(s, cudaErrorInvalidValue, "a sum of bytes"); break;
    }
}

const ml_peer_memory ml_cuda_peer_memory = { share, map, unmap, tree };
