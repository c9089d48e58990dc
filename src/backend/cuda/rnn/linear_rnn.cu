/* linear_rnn.cu - LINEAR_RNN token by token: forward, and the two recurrences of backward; see
 * linear_rnn.cuh. */
#include "backend/cuda/rnn/linear_rnn.cuh"

#include <math.h>

/* A lane's first element of the state in its slot: [dk][columns rounded up to 16]. */
template <class T>
__device__ static float *state_at(const rnn_call<T> &c, const rnn_place &p) {
    int64_t padded = (c.dv + 15) / 16 * 16;

    return c.state + ((int64_t)c.slot[p.seq] * c.n_head + p.head) * c.dk * padded +
           (int64_t)p.block * c.dk * ML_RNN_COLS + p.col;
}

__device__ static inline int state_stride(const rnn_place &p) {
    return (p.n_col + 15) / 16 * 16;
}

template <class T, int M>
__device__ static void load_state(rnn_state<M> &s, const rnn_call<T> &c,
                                  const rnn_place &p) {
    const float *from = state_at(c, p);
    int stride = state_stride(p);
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int r = 0; r < 4; r++) {
            int i = 32 * m + 4 * p.l + r;
            if (i < c.dk && p.col < stride)
                ml_load(s.s[m][r], from + (int64_t)i * stride);
        }
}

template <class T, int M>
__device__ static void store_state(const rnn_state<M> &s, const rnn_call<T> &c,
                                   const rnn_place &p) {
    float *to = state_at(c, p);
    int stride = state_stride(p);
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int r = 0; r < 4; r++) {
            int i = 32 * m + 4 * p.l + r;
            if (i < c.dk && p.col < stride)
                ml_store(to + (int64_t)i * stride, s.s[m][r]);
        }
}

/* Four columns of a row; one lane of eight writes. */
template <class V>
__device__ static void put_four(V *row, const float (&x)[4], const rnn_place &p,
                                bool wide) {
    if (p.l)
        return;
    if (wide && p.col < p.n_col) {
        ml_store(row + p.col, x);
        return;
    }
#pragma unroll
    for (int j = 0; j < 4; j++)
        if (p.col + j < p.n_col)
            row[p.col + j] = ml_as<V>(x[j]);
}

template <class T>
__device__ static int64_t out_at(const rnn_call<T> &c, const rnn_place &p, int t) {
    return ((int64_t)(p.first + t) * c.n_head + p.head) * c.dv + p.block * ML_RNN_COLS;
}

/* Tokens of a stage: a divisor of ML_RNN_CHUNK. */
template <int M> static const int stage_tokens = M > 4 ? 8 : 16;

/* A lane's part of the output of a token; its sums over lanes are completed while the next
 * token is computed. */
struct pending {
    float o[4], v[4];
    int t; /* -1: none */
};

/* Sums over the eight lanes of a group, of which each pair gets one column's. */
__device__ static inline float sum_to_pairs(const float (&x)[4], int l) {
    bool high = l & 4, odd = l & 2;
    float a = (high ? x[2] : x[0]) + __shfl_xor_sync(0xffffffffu, high ? x[0] : x[2], 4);
    float b = (high ? x[3] : x[1]) + __shfl_xor_sync(0xffffffffu, high ? x[1] : x[3], 4);
    float c = (odd ? b : a) + __shfl_xor_sync(0xffffffffu, odd ? a : b, 2);

    return c + __shfl_xor_sync(0xffffffffu, c, 1);
}

template <class T>
__device__ static void put_out(const rnn_call<T> &c, const rnn_place &p, const pending &x,
                               float skip) {
    int j = p.l / 2;
    float o = sum_to_pairs(x.o, p.l);
    float v = j & 2 ? (j & 1 ? x.v[3] : x.v[2]) : (j & 1 ? x.v[1] : x.v[0]);

    if (c.skip)
        o = fmaf(skip, v, o);
    if (p.l % 2 == 0 && x.t >= 0 && p.col + j < p.n_col)
        c.o[out_at(c, p, x.t) + p.col + j] = ml_as<T>(o);
}

/* The state moves on by a token; `meanwhile` runs while lanes exchange sums. */
template <int M, bool DELTA, class S, class F>
__device__ static rnn_update advance(rnn_state<M> &s, const S &in, int i,
                                     const rnn_place &p, F meanwhile) {
    float k[M][4], v[4], seen[4] = {}, keep = in.rate[i][0], take = in.rate[i][1];
    rnn_update up;

    rnn_row<M>(k, in.k[i], p.l);
    rnn_four(v, in.v[i], p.col);
    if (DELTA)
        rnn_dot<M>(seen, k, s);
    rnn_scale<M>(s, keep);
    if (DELTA)
        rnn_sum_lanes(seen);
    meanwhile();
    up = rnn_take(v, seen, keep, take, DELTA);
    rnn_outer<M>(s, k, up.u);
    return up;
}

template <class T, int M, bool DELTA>
__device__ static void walk_rows(rnn_state<M> &s, const rnn_call<T> &c,
                                 const rnn_place &p) {
    const int TOKENS = stage_tokens<M>;
    __shared__ rnn_stage<M, TOKENS> stage[2];
    rnn_fetch<T, M, TOKENS> next;
    rnn_values<T> values = { c.x + c.v_at, c.width };
    float skip = c.skip ? c.skip[p.head] : 0.0f;
    pending out = {};

    out.t = -1;
    next.load(c, p, values, 0);
    for (int from = 0, b = 0; from < p.n_row; from += TOKENS, b ^= 1) {
        next.store(stage[b], c);
        __syncthreads();
        next.load(c, p, values, from + TOKENS);
        for (int i = 0; i < TOKENS && from + i < p.n_row; i++) {
            float q[M][4];
            advance<M, DELTA>(s, stage[b], i, p, [&] { put_out(c, p, out, skip); });
            rnn_row<M>(q, stage[b].q[i], p.l);
            rnn_four(out.v, stage[b].v[i], p.col);
#pragma unroll
            for (int j = 0; j < 4; j++)
                out.o[j] = 0.0f;
            out.t = from + i;
            rnn_dot<M>(out.o, q, s);
        }
    }
    put_out(c, p, out, skip);
}

/* A padding row of a CUDA graph has no sequence: its output is 0. */
template <class T>
__device__ static void put_zero(const rnn_call<T> &c, const rnn_place &p) {
    float zero[4] = {};

    for (int t = 0; t < p.n_row; t++)
        put_four(c.o + out_at(c, p, t), zero, p, c.wide);
}

template <class T, int M, bool DELTA>
__global__ void __launch_bounds__(RNN_THREADS, M > 4 ? 1 : 3) rnn_kernel(rnn_call<T> c) {
    rnn_place p = rnn_find(c);
    rnn_state<M> s;
    int pos;

    if (p.n_row == 0)
        return;
    pos = c.pos[p.first];
    if (pos < 0) {
        put_zero(c, p);
        return;
    }
    rnn_zero(s);
    if (c.state && pos > 0)
        load_state<T, M>(s, c, p);
    walk_rows<T, M, DELTA>(s, c, p);
    if (c.state)
        store_state<T, M>(s, c, p);
}

template <class T, int M> static void launch(ml_cuda_stream *s, const rnn_call<T> &c) {
    unsigned blocks = (unsigned)c.n_seq * (unsigned)c.n_head * (unsigned)c.n_block;

    if (c.delta)
        rnn_kernel<T, M, true><<<blocks, RNN_THREADS, 0, s->stream>>>(c);
    else
        rnn_kernel<T, M, false><<<blocks, RNN_THREADS, 0, s->stream>>>(c);
    ml_cuda_launched(s, "linear-rnn");
}

/* ---- the recurrences of backward ---- */

/* Keeps the state before token t, the first of a chunk. */
template <class T, int M>
__device__ static void put_mark(float *marks, const rnn_state<M> &s, const rnn_call<T> &c,
                                const rnn_place &p, int t) {
    int64_t at = rnn_mark(p.first, t / ML_RNN_CHUNK) * c.n_head + p.head;
    float *to = marks + (at * c.dv + p.block * ML_RNN_COLS + p.col) * c.key_pitch;
#pragma unroll
    for (int j = 0; j < 4; j++)
#pragma unroll
        for (int m = 0; m < M; m++) {
            int i = 32 * m + 4 * p.l;
            float four[4] = { s.s[m][0][j], s.s[m][1][j], s.s[m][2][j], s.s[m][3][j] };
            if (i < c.dk && p.col + j < p.n_col)
                ml_store(to + j * c.key_pitch + i, four);
        }
}

template <class T, int M, bool DELTA, class S>
__device__ static void walk_states(S *stage, const rnn_call<T> &c, const rnn_place &p) {
    const int TOKENS = stage_tokens<M>;
    rnn_fetch<T, M, TOKENS> next;
    rnn_values<T> values = { c.x + c.v_at, c.width };
    rnn_state<M> s;

    rnn_zero(s);
    next.load(c, p, values, 0);
    for (int from = 0, b = 0; from < p.n_row; from += TOKENS, b ^= 1) {
        next.store(stage[b], c);
        __syncthreads();
        next.load(c, p, values, from + TOKENS);
        if (from && from % ML_RNN_CHUNK == 0)
            put_mark<T, M>(c.mark, s, c, p, from);
        for (int i = 0; i < TOKENS && from + i < p.n_row; i++) {
            rnn_update up = advance<M, DELTA>(s, stage[b], i, p, [] {});
            put_four(c.e + out_at(c, p, from + i), up.e, p, c.wide);
        }
    }
}

/* The gradient of the state moves back by a token; returns that of u. */
template <int M, bool DELTA, class S>
__device__ static void retreat(float (&du)[4], rnn_state<M> &ds, const S &in, int i,
                               const rnn_place &p) {
    float q[M][4], k[M][4], dout[4], dseen[4], keep = in.rate[i][0], take = in.rate[i][1];

    rnn_row<M>(q, in.q[i], p.l);
    rnn_row<M>(k, in.k[i], p.l);
    rnn_four(dout, in.v[i], p.col);
#pragma unroll
    for (int j = 0; j < 4; j++)
        du[j] = 0.0f;
    rnn_outer<M>(ds, q, dout);
    rnn_dot<M>(du, k, ds);
    rnn_scale<M>(ds, keep);
    rnn_sum_lanes(du);
#pragma unroll
    for (int j = 0; j < 4; j++)
        dseen[j] = -(keep * (take * du[j]));
    if (DELTA)
        rnn_outer<M>(ds, k, dseen);
}

template <class T, int M, bool DELTA, class S>
__device__ static void walk_gradients(S *stage, const rnn_call<T> &c, const rnn_place &p) {
    const int TOKENS = stage_tokens<M>;
    rnn_fetch<T, M, TOKENS> next;
    rnn_values<T> values = { c.dout, (int64_t)c.n_head * c.dv };
    rnn_state<M> ds;
    int from = (p.n_row - 1) / TOKENS * TOKENS;

    rnn_zero(ds);
    next.load(c, p, values, from);
    for (int b = 0; from >= 0; from -= TOKENS, b ^= 1) {
        next.store(stage[b], c);
        __syncthreads();
        if (from)
            next.load(c, p, values, from - TOKENS);
        for (int i = min(TOKENS, p.n_row - from) - 1; i >= 0; i--) {
            float du[4];
            retreat<M, DELTA>(du, ds, stage[b], i, p);
            put_four(c.du + out_at(c, p, from + i), du, p, c.wide);
        }
        if (from && from % ML_RNN_CHUNK == 0)
            put_mark<T, M>(c.dmark, ds, c, p, from);
    }
}

/* blockIdx.y: the recurrence. */
template <class T, int M, bool DELTA>
__global__ void __launch_bounds__(RNN_THREADS, M > 4 ? 1 : 2) walk_kernel(rnn_call<T> c) {
    __shared__ rnn_stage<M, stage_tokens<M>> stage[2];
    rnn_place p = rnn_find(c);

    if (p.n_row == 0)
        return;
    if (blockIdx.y)
        walk_gradients<T, M, DELTA>(stage, c, p);
    else
        walk_states<T, M, DELTA>(stage, c, p);
}

template <class T, int M> static void walk(ml_cuda_stream *s, const rnn_call<T> &c) {
    dim3 blocks((unsigned)c.n_seq * (unsigned)c.n_head * (unsigned)c.n_block, 2);

    if (c.delta)
        walk_kernel<T, M, true><<<blocks, RNN_THREADS, 0, s->stream>>>(c);
    else
        walk_kernel<T, M, false><<<blocks, RNN_THREADS, 0, s->stream>>>(c);
    ml_cuda_launched(s, "linear-rnn backward");
}

template <class T> void rnn_walk(ml_cuda_stream *s, const rnn_call<T> &c) {
    RNN_SIZED(c.dk, walk<T, M>(s, c));
}
template void rnn_walk<float>(ml_cuda_stream *, const rnn_call<float> &);
template void rnn_walk<bf16>(ml_cuda_stream *, const rnn_call<bf16> &);

/* ---- forward ---- */

template <class T> static void forward(ml_cuda_stream *s, const ml_op_args *a) {
    rnn_call<T> c = rnn_open<T>(a);

    c.o = (T *)a->out[0].data;
    c.state = (float *)a->out[1].data;
    if (c.n && c.n_head) /* a context-parallel rank may have no heads */
        RNN_SIZED(c.dk, launch<T, M>(s, c));
}

void ml_cuda_linear_rnn_forward(ml_stream *s, const ml_op_args *a) {
    ML_CUDA_TYPED(a->in[0].dtype, forward<T>(ml_cuda(s), a));
}
