/* common.cuh - declarations shared by the files of the CUDA backend.
 *
 * C style: templates over the stored type and over tile sizes only; op functions have the
 * prefix ml_cuda_.  An op function launches kernels on its stream and returns; the stream
 * keeps the first error, and the next sync reports it.
 *
 * Kernels are batch-invariant, as on the CPU: an output row depends on its own inputs
 * and the weights only.  So a kernel's order of sums may depend on widths (N, K, head
 * size, vocabulary), never on the number of rows.  The build uses --fmad=false: a fused
 * multiply-add is written as fmaf where one is meant. */
#ifndef ML_BACKEND_CUDA_COMMON_CUH
#define ML_BACKEND_CUDA_COMMON_CUH

#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <stdint.h>

extern "C" {
#include "backend/cuda_door.h"
#include "backend/cuda_ops.h"
}

typedef __nv_bfloat16 bf16;

struct ml_gemm_algo_cache;     /* gemm.cu: the algorithm cache */
struct ml_gemm_fp8_cache;      /* gemm_fp8.cu: the same of FP8 products */
struct ml_gemm_fp8_back_cache; /* gemm_fp8_back.cu: and of FP8 gradients */
struct ml_sample_stage;        /* sample.cu */
struct ml_staging_ring;        /* staging.cu */
struct ml_cuda_clock;          /* timers.cu */

typedef struct ml_cuda_stream {
    ml_stream base; /* first: an ml_stream * of this backend is an ml_cuda_stream * */
    cudaStream_t stream;
    cudaError_t error; /* the first error since the last sync, and the operation */
    const char *doing;
    ml_gemm_algo_cache *gemm;
    ml_gemm_fp8_cache *gemm_fp8;           /* NULL: none yet */
    ml_gemm_fp8_back_cache *gemm_fp8_back; /* likewise */
    ml_sample_stage *sample;
    ml_staging_ring *staging;
    ml_cuda_clock *clock; /* NULL: not used yet */
    struct {              /* consecutive LINEARs of the plan being made, as one GEMM */
        int64_t n, k, calls;
    } joint;
    ml_cuda_host host;
    bool early; /* PDL: kernels may begin before the previous one has ended (sm_90) */
    bool wgmma; /* the card and this library have the kernels of Hopper */
    unsigned sms, number; /* of the card; of the streams opened before this one */
    char level[16];
} ml_cuda_stream;

static inline ml_cuda_stream *ml_cuda(ml_stream *s) {
    return (ml_cuda_stream *)s;
}

static inline void ml_cuda_note(ml_cuda_stream *s, cudaError_t e, const char *doing) {
    if (e != cudaSuccess && s->error == cudaSuccess) {
        s->error = e;
        s->doing = doing;
    }
}

/* After a launch. */
static inline void ml_cuda_launched(ml_cuda_stream *s, const char *doing) {
    ml_cuda_note(s, cudaGetLastError(), doing);
}

/* Blocks of a cluster, and whether a kernel is launched with PDL (programmatic dependent launch) or after the
 * dependencies of graph_edges.cuh. */
typedef struct ml_launch_kind {
    bool pdl;
    unsigned cluster;
} ml_launch_kind;

template <class... P, class... A>
static inline void ml_cuda_launch_as(ml_cuda_stream *s, const char *doing,
                                     ml_launch_kind kind, void (*kernel)(P...), dim3 grid,
                                     unsigned threads, size_t smem, A... args) {
    cudaLaunchAttribute attr[2] = {};
    cudaLaunchConfig_t c = {};

    c.gridDim = grid;
    c.blockDim = dim3(threads);
    c.dynamicSmemBytes = smem;
    c.stream = s->stream;
    c.attrs = attr;
    if (kind.pdl) {
        attr[c.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attr[c.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
    }
    if (kind.cluster > 1) {
        attr[c.numAttrs].id = cudaLaunchAttributeClusterDimension;
        attr[c.numAttrs++].val.clusterDim = { kind.cluster, 1, 1 };
    }
    ml_cuda_note(s, cudaLaunchKernelEx(&c, kernel, P(args)...), doing);
}

/* With PDL the kernel may begin before the previous one has ended.  It calls ml_grid_release as soon
 * as the next one may begin likewise, and ml_grid_wait before it touches memory that kernels write;
 * before that it may prefetch weights. */
template <class... P, class... A>
static inline void ml_cuda_launch(ml_cuda_stream *s, const char *doing,
                                  void (*kernel)(P...), dim3 grid, unsigned threads,
                                  size_t smem, A... args) {
    ml_cuda_launch_as(s, doing, { s->early, 1 }, kernel, grid, threads, smem, args...);
}

__device__ static inline void ml_grid_wait(void) {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* Reads a word of each 64 bytes of a kernel's parameters, before ml_grid_wait: the first read of a line takes
 * as long as one of device memory. */
template <class T> __device__ static inline void ml_touch_params(const T &p) {
#pragma unroll
    for (int i = 0; i < (int)(sizeof p / sizeof(int)); i += 16)
        asm volatile("" ::"r"(((const int *)&p)[i]));
}

__device__ static inline void ml_grid_release(void) {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

#define ML_CUDA_OP(name)                                                                   \
    void ml_cuda_##name##_forward(ml_stream *s, const ml_op_args *a);                      \
    void ml_cuda_##name##_backward(ml_stream *s, const ml_op_args *a);

ML_CUDA_OP(embed)       /* embed.cu */
ML_CUDA_OP(linear)      /* linear.cu */
ML_CUDA_OP(rmsnorm)     /* norm.cu */
ML_CUDA_OP(rope_table)  /* rope.cu; backward has nothing to do */
ML_CUDA_OP(rope)        /* rope.cu */
ML_CUDA_OP(attn)        /* attn.cu */
ML_CUDA_OP(add)         /* elementwise.cu */
ML_CUDA_OP(glu)         /* elementwise.cu */
ML_CUDA_OP(moe_route)   /* moe.cu */
ML_CUDA_OP(moe_gather)  /* moe.cu */
ML_CUDA_OP(moe_linear)  /* moe_linear.cu */
ML_CUDA_OP(moe_combine) /* moe.cu */
ML_CUDA_OP(lmhead)      /* lmhead.cu */
ML_CUDA_OP(conv)        /* conv.cu */
ML_CUDA_OP(decay)       /* decay.cu */
ML_CUDA_OP(linear_rnn)  /* linear_rnn.cu, linear_rnn_back.cu */
ML_CUDA_OP(compress)    /* compress.cu */
ML_CUDA_OP(index)       /* index.cu; backward has nothing to do */
ML_CUDA_OP(attn_chosen) /* attn_chosen.cu */
ML_CUDA_OP(slice)       /* copies.cu */
ML_CUDA_OP(concat)      /* copies.cu */
ML_CUDA_OP(split_cols)  /* copies.cu */
ML_CUDA_OP(order_rows)  /* copies.cu */
ML_CUDA_OP(tanh)        /* elementwise.cu */
ML_CUDA_OP(scale)       /* elementwise.cu */
ML_CUDA_OP(col_scale)   /* elementwise.cu */
ML_CUDA_OP(moe_scale)   /* elementwise.cu */
ML_CUDA_OP(row_gate)    /* rows.cu */
ML_CUDA_OP(layernorm)   /* rows.cu */
ML_CUDA_OP(cutoff)      /* rows.cu */
ML_CUDA_OP(match_rms)   /* rows.cu */
ML_CUDA_OP(moe_weigh)   /* moe.cu */
ML_CUDA_OP(head_linear) /* moe_linear.cu */
ML_CUDA_OP(stream_mix)  /* streams.cu */
ML_CUDA_OP(hyper_coef)  /* streams.cu */
ML_CUDA_OP(lora)        /* lora.cu */
#undef ML_CUDA_OP
/* ml_ops.together_back, of LINEARs and of a GLU before them: linear.cu */
int ml_cuda_linear_together_back(ml_stream *s, const ml_op_call *call, int n);
void ml_cuda_merge_cols_forward(ml_stream *s, const ml_op_args *a); /* copies.cu */

/* Zeroes a weight's gradient that an op shall write.  copies.cu */
void ml_cuda_zero_dw(ml_cuda_stream *s, const ml_op_args *a, int k);

/* y [n] += the sum of part [n_part, n], in order.  elementwise.cu */
void ml_cuda_add_parts(ml_cuda_stream *s, float *y, const float *part, int n_part,
                       int64_t n);

/* Of the rows of a norm, or NULL. */
typedef struct ml_row_stats {
    const float *mean, *scale;
} ml_row_stats;

/* y [n] += the sums over rows of dy x, or of dy (x - mean) scale; x NULL: of dy.  part has
 * ml_cuda_column_scratch bytes.  elementwise.cu */
void ml_cuda_column_sums(ml_cuda_stream *s, float *y, const ml_tensor *dy,
                         const ml_tensor *x, ml_row_stats stats, float *part);

extern const ml_optim_ops ml_cuda_optim; /* optim.cu */
/* encode.cu */
void ml_cuda_encode(ml_stream *stream, const ml_tensor *to, const ml_tensor *from);
void ml_cuda_fake_int4(ml_stream *stream, const ml_tensor *to, const ml_tensor *from,
                       int64_t group);

extern const ml_peer_memory ml_cuda_peer_memory; /* peer.cu */

extern const ml_marks ml_cuda_marks; /* timers.cu */
void ml_cuda_marks_close(ml_cuda_stream *s);

/* Copies from the host (staging.cu), and the sampler (sample.cu). */
ml_status ml_cuda_staging_open(ml_cuda_stream *s, ml_err *err);
void ml_cuda_staging_close(ml_cuda_stream *s);
void ml_cuda_staged_copy(ml_stream *s, void *dst, const void *host, size_t bytes);
ml_status ml_cuda_sample_open(ml_cuda_stream *s, ml_err *err);
void ml_cuda_sample_close(ml_cuda_stream *s);
void ml_cuda_sample(ml_stream *s, struct ml_draw *draw, int64_t n, int64_t n_vocab,
                    void *scratch, int32_t *drawn);
void ml_cuda_sampled(ml_stream *s, struct ml_draw *draw, int64_t n); /* sample.cu */

static inline unsigned ml_cuda_blocks(int64_t n, int64_t per_block) {
    return (unsigned)((n + per_block - 1) / per_block);
}

/* ---- stored types ---- */

/* V consecutive numbers, in one access. */
template <class T, int V> struct ml_pack { alignas(sizeof(T) * V) T v[V]; };

/* The widest access: 16 bytes. */
template <class T> struct ml_wide { static const int n = 16 / (int)sizeof(T); };

__device__ static inline float ml_f32(float x) {
    return x;
}

__device__ static inline float ml_f32(bf16 x) {
    return __bfloat162float(x);
}

template <class T> __device__ static inline T ml_as(float x);
template <> __device__ inline float ml_as<float>(float x) {
    return x;
}
template <> __device__ inline bf16 ml_as<bf16>(float x) {
    return __float2bfloat16_rn(x);
}

template <class T, int V>
__device__ static inline void ml_load(float (&out)[V], const T *from) {
    ml_pack<T, V> p = *(const ml_pack<T, V> *)from;
#pragma unroll
    for (int i = 0; i < V; i++)
        out[i] = ml_f32(p.v[i]);
}

template <class T, int V>
__device__ static inline void ml_store(T *to, const float (&in)[V]) {
    ml_pack<T, V> p;
#pragma unroll
    for (int i = 0; i < V; i++)
        p.v[i] = ml_as<T>(in[i]);
    *(ml_pack<T, V> *)to = p;
}

/* ---- functions ---- */

#define ML_LOG2E 1.4426950408889634f

/* 2^x by the hardware: the same bits on every GPU of a generation. */
__device__ static inline float ml_exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ static inline float ml_log2(float x) {
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ static inline float ml_exp(float x) {
    return ml_exp2(x * ML_LOG2E);
}

/* 1 / x for x >= 1 by one step of Newton's method.  An IEEE division has a branch for numbers that are
 * subnormal, at which all other work waits. */
__device__ static inline float ml_inverse(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return x < 0x1p126f ? fmaf(y, fmaf(-x, y, 1.0f), y) : y;
}

__device__ static inline float ml_sigmoid(float x) {
    return ml_inverse(1.0f + ml_exp(-x));
}

__device__ static inline float ml_tanh(float x) {
    return fmaf(-2.0f, ml_inverse(ml_exp(2.0f * x) + 1.0f), 1.0f);
}

__device__ static inline float ml_max(float a, float b) {
    return a > b ? a : b;
}

/* ---- reductions over threads, in one fixed order ---- */

template <class T> __device__ static inline T ml_warp_sum(T x) {
#pragma unroll
    for (int w = 16; w; w >>= 1)
        x += __shfl_xor_sync(0xffffffffu, x, w);
    return x;
}

__device__ static inline float ml_warp_max(float x) {
#pragma unroll
    for (int w = 16; w; w >>= 1)
        x = ml_max(x, __shfl_xor_sync(0xffffffffu, x, w));
    return x;
}

/* Over a block of WARPS warps; all threads get the sum.  `smem` is [WARPS] in shared
 * memory; the next call may reuse it. */
template <int WARPS, class T> __device__ static inline T ml_block_sum(T x, T *smem) {
    T sum = 0;

    x = ml_warp_sum(x);
    if (WARPS == 1)
        return x;
    __syncthreads();
    if (threadIdx.x % 32 == 0)
        smem[threadIdx.x / 32] = x;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < WARPS; i++)
        sum += smem[i];
    return sum;
}

template <int WARPS> __device__ static inline float ml_block_max(float x, float *smem) {
    x = ml_warp_max(x);
    if (WARPS == 1)
        return x;
    __syncthreads();
    if (threadIdx.x % 32 == 0)
        smem[threadIdx.x / 32] = x;
    __syncthreads();
    x = smem[0];
#pragma unroll
    for (int i = 1; i < WARPS; i++)
        x = ml_max(x, smem[i]);
    return x;
}

/* ---- tiles of a ragged batch ---- */

/* A block's tile of the rows of a sequence, or of an expert. */
typedef struct ml_piece {
    int owner, index;    /* index: of the piece within its owner; -1: no such piece */
    int first_row, rows; /* the owner's first row in the batch; the owner's row count */
} ml_piece;

/* The most pieces of `per` rows that `rows` rows of n owners have: an owner without rows has none. */
static inline unsigned ml_most_pieces(int64_t rows, int n_owner, int per) {
    return (unsigned)(rows / per + (rows < n_owner ? rows : n_owner));
}

/* Owner i has rows start[i] .. start[i + 1] - 1, with `group` outputs each.  Each
 * owner's outputs are cut into pieces of `per`, numbered through all owners.  Finds
 * piece `at` by a prefix sum; all lanes of a warp call it. */
__device__ static inline void ml_find_piece_warp(ml_piece *found, const int32_t *start,
                                                 int n_owner, int group, int per, int at) {
    int lane = (int)threadIdx.x % 32, before = 0;

    if (lane == 0)
        found->index = -1;
    __syncwarp();
    for (int base = 0; base < n_owner && before <= at; base += 32) {
        int i = base + lane, first = i < n_owner ? start[i] : 0;
        int rows = i < n_owner ? start[i + 1] - first : 0;
        int pieces = (rows * group + per - 1) / per, sum = pieces;
        for (int w = 1; w < 32; w <<= 1) {
            int below = __shfl_up_sync(0xffffffffu, sum, w);
            if (lane >= w)
                sum += below;
        }
        if (at >= before + sum - pieces && at < before + sum)
            *found = { i, at - (before + sum - pieces), first, rows };
        before += __shfl_sync(0xffffffffu, sum, 31);
    }
    __syncwarp();
}

/* The same for the threads of a block. */
__device__ static inline ml_piece ml_find_piece(const int32_t *start, int n_owner,
                                                int group, int per, int at) {
    __shared__ ml_piece found;

    if (threadIdx.x < 32)
        ml_find_piece_warp(&found, start, n_owner, group, per, at);
    __syncthreads();
    return found;
}

/* ---- calling a kernel for the stored type ---- */

/* ML_CUDA_TYPED(dtype, CALL): CALL with T as the stored type. */
#define ML_CUDA_TYPED(dtype_, ...)                                                         \
    do {                                                                                   \
        if ((dtype_) == ML_BF16) {                                                         \
            typedef bf16 T;                                                                \
            __VA_ARGS__;                                                                   \
        } else {                                                                           \
            typedef float T;                                                               \
            __VA_ARGS__;                                                                   \
        }                                                                                  \
    } while (0)

#endif
