/* gemm_plain.cu - GEMM for the f32 mode and for odd shapes: one FMA chain per output. */
#include "backend/cuda/gemm/gemm.cuh"

enum { TILE = 32, ROWS = 8 };

/* A tile of 32 x 32 outputs; a thread has four of a column.  Operands out of range
 * count as zero, which changes nothing but the sign of a zero. */
template <class IN, class OUT>
__global__ void __launch_bounds__(TILE *ROWS) plain_kernel(ml_gemm g) {
    __shared__ float ta[TILE][TILE + 1], tb[TILE][TILE + 1];
    const IN *a = (const IN *)g.a, *b = (const IN *)g.b;
    OUT *c = (OUT *)g.c;
    int64_t m0 = (int64_t)blockIdx.y * TILE, n0 = (int64_t)blockIdx.x * TILE;
    int x = (int)threadIdx.x, y = (int)threadIdx.y;
    float sum[TILE / ROWS] = {};

    for (int j = 0; g.add && j < TILE / ROWS; j++)
        if (m0 + y + ROWS * j < g.m && n0 + x < g.n)
            sum[j] = ml_f32(c[(m0 + y + ROWS * j) * g.ldc + n0 + x]);
    for (int64_t k0 = 0; k0 < g.k; k0 += TILE) {
        for (int j = y; j < TILE; j += ROWS) {
            /* Coalesced: the operand's contiguous dimension runs along the warp. */
            int ra = g.a_k == 1 ? j : x, ka = g.a_k == 1 ? x : j;
            int rb = g.b_k == 1 ? j : x, kb = g.b_k == 1 ? x : j;
            bool in_a = m0 + ra < g.m && k0 + ka < g.k;
            bool in_b = n0 + rb < g.n && k0 + kb < g.k;
            ta[ra][ka] = in_a ? ml_f32(a[(m0 + ra) * g.a_m + (k0 + ka) * g.a_k]) : 0.0f;
            tb[rb][kb] = in_b ? ml_f32(b[(n0 + rb) * g.b_n + (k0 + kb) * g.b_k]) : 0.0f;
        }
        __syncthreads();
        for (int k = 0; k < TILE; k++)
#pragma unroll
            for (int j = 0; j < TILE / ROWS; j++)
                sum[j] = fmaf(ta[y + ROWS * j][k], tb[x][k], sum[j]);
        __syncthreads();
    }
    for (int j = 0; j < TILE / ROWS; j++)
        if (m0 + y + ROWS * j < g.m && n0 + x < g.n)
            c[(m0 + y + ROWS * j) * g.ldc + n0 + x] = ml_as<OUT>(sum[j]);
}

void ml_gemm_plain(ml_cuda_stream *s, const ml_gemm *g) {
    dim3 grid(ml_cuda_blocks(g->n, TILE), ml_cuda_blocks(g->m, TILE)), block(TILE, ROWS);

    if (g->m == 0 || g->n == 0)
        return;
    if (g->in == ML_F32)
        plain_kernel<float, float><<<grid, block, 0, s->stream>>>(*g);
    else if (g->out == ML_F32)
        plain_kernel<bf16, float><<<grid, block, 0, s->stream>>>(*g);
    else
        plain_kernel<bf16, bf16><<<grid, block, 0, s->stream>>>(*g);
    ml_cuda_launched(s, "product");
}

cudaError_t ml_gemm_probe(cudaFuncAttributes *out) {
    return cudaFuncGetAttributes(out, plain_kernel<float, float>);
}
