/* linear_rnn_back.cu - LINEAR_RNN backward.
 *
 * The gradient dS of the state has a recurrence of its own, which does not read the state:
 * with S' = keep S + k u', u = take (v - keep seen), seen = S' k, and o = S'' q, from the last
 * token to the first,
 *
 *     dS = dS + q do',   du = dS' k,   de = take du,   dseen = -keep de,
 *     dS = keep dS + k dseen'                          (Mamba-2: keep dS)
 *
 * So no state is saved or stored; three passes over the tokens compute (1) seen, forwards;
 * (2) du, de and the part dS u of dk, backwards; (3) dq = S' do and the part S dseen of dk,
 * forwards.  Blocks sum over their columns, and a last kernel over blocks and over the heads
 * of a key; every number has one writer.
 *
 * The gradient of a decay, <dS, S> - de.seen, would need both states at once.  Times keep it
 * is R = <dS, S> of the token before it, and from one token to the one before,
 *
 *     R += keep (S q).do + dseen.seen - (dS k).u,   S before the token, dS after it
 *
 * with R = 0 after the last token: a scan in f64.  A token's own share of o.do and of du.u,
 * (q.k)(u.do), is equal in both and left out: where decays are strong it is much larger than R.
 * So passes (2) and (3) compute dS k and S do, and du = dS k + (q.k) do,
 * dq = keep S do + k (u.do). */
#include "backend/cuda/rnn/linear_rnn.cuh"

#include <math.h>

static const float LEAST_KEEP = 1e-30f; /* below it a state does not outlast a token */

/* Sums of x over the column groups of a warp, written to `to` [32 M]. */
template <int M> __device__ static void sum_columns(float *to, float (&x)[M][4]) {
    int lane = (int)threadIdx.x % 32, l = lane % 8;

    if constexpr (M == 1) {
#pragma unroll
        for (int r = 0; r < 4; r++) {
            x[0][r] += __shfl_xor_sync(0xffffffffu, x[0][r], 8);
            x[0][r] += __shfl_xor_sync(0xffffffffu, x[0][r], 16);
        }
        if (lane < 8)
            ml_store(to + 4 * l, x[0]);
    } else { /* each step halves the number of a lane's sums */
        const int H = M / 2, Q = M / 4;
        bool high = lane & 16, odd = lane & 8;
        float y[H][4], z[Q][4];
#pragma unroll
        for (int m = 0; m < H; m++)
#pragma unroll
            for (int r = 0; r < 4; r++) {
                float give = high ? x[m][r] : x[m + H][r];
                y[m][r] =
                    (high ? x[m + H][r] : x[m][r]) + __shfl_xor_sync(0xffffffffu, give, 16);
            }
#pragma unroll
        for (int m = 0; m < Q; m++) {
#pragma unroll
            for (int r = 0; r < 4; r++) {
                float give = odd ? y[m][r] : y[m + Q][r];
                z[m][r] =
                    (odd ? y[m + Q][r] : y[m][r]) + __shfl_xor_sync(0xffffffffu, give, 8);
            }
            ml_store(to + 32 * (m + (high ? H : 0) + (odd ? Q : 0)) + 4 * l, z[m]);
        }
    }
}

/* The sums of s[i][j] u[j] over a lane's columns, and over those of its warp. */
template <int M>
__device__ static void columns(float *to, const rnn_state<M> &s, const float (&u)[4]) {
    float x[M][4];
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int r = 0; r < 4; r++) {
            x[m][r] = s.s[m][r][0] * u[0];
#pragma unroll
            for (int j = 1; j < 4; j++)
                x[m][r] = fmaf(s.s[m][r][j], u[j], x[m][r]);
        }
    sum_columns<M>(to, x);
}

/* Of a token: the place of a block in [n, n_head, n_block]. */
template <class T>
__device__ static int64_t block_at(const rnn_call<T> &c, const rnn_place &p, int t) {
    return ((int64_t)(p.first + t) * c.n_head + p.head) * c.n_block + p.block;
}

template <class T>
__device__ static int64_t value_at(const rnn_call<T> &c, const rnn_place &p, int t) {
    return ((int64_t)(p.first + t) * c.n_head + p.head) * c.dv + p.block * ML_RNN_COLS;
}

/* ---- the second pass, backwards ---- */

template <int M, int TOKENS> struct alignas(16) back_sums {
    float dk[TOKENS][RNN_WARPS][32 * M];
    float stat[TOKENS][RNN_WARPS][RNN_STATS];
};

/* A token's values are replaced: seen by u, v by de. */
template <class S>
__device__ static void keep_values(S &in, int i, const rnn_place &p, const float (&u)[4],
                                   const float (&de)[4]) {
    __syncwarp();
    if (p.l == 0) {
        ml_store(in.seen[i] + p.col, u);
        ml_store(in.v[i] + p.col, de);
    }
}

template <int M, int TOKENS, class S>
__device__ static void step_back(rnn_state<M> &ds, S &in, back_sums<M, TOKENS> &sums, int i,
                                 const rnn_place &p, bool delta) {
    float keep = in.rate[i][0], take = in.rate[i][1], stat[RNN_STATS] = {};
    float d[4], v[4], seen[4], later[4] = {}, de[4], dseen[4], q[M][4], k[M][4];
    int warp = (int)threadIdx.x / 32;
    rnn_update up;

    rnn_four(d, in.dout[i], p.col);
    rnn_four(v, in.v[i], p.col);
    rnn_four(seen, in.seen[i], p.col);
    up = rnn_take(v, seen, keep, take, delta);
    rnn_row<M>(k, in.k[i], p.l);
    rnn_dot<M>(later, k, ds);
    rnn_row<M>(q, in.q[i], p.l);
    rnn_outer<M>(ds, q, d);
    rnn_sum_lanes(later);
    columns<M>(sums.dk[i][warp], ds, up.u);
    rnn_scale<M>(ds, keep);
#pragma unroll
    for (int j = 0; j < 4; j++) {
        float du = fmaf(in.qk[i], d[j], later[j]);
        de[j] = take * du;
        dseen[j] = delta ? -(keep * de[j]) : 0.0f;
        stat[RNN_R] = fmaf(dseen[j], seen[j], fmaf(-later[j], up.u[j], stat[RNN_R]));
        stat[RNN_DTAKE] = fmaf(du, up.e[j], stat[RNN_DTAKE]);
        stat[RNN_UDO] = fmaf(up.u[j], d[j], stat[RNN_UDO]);
    }
    if (delta)
        rnn_outer<M>(ds, k, dseen);
#pragma unroll
    for (int n = 0; n < RNN_STATS; n++) {
        stat[n] += __shfl_xor_sync(0xffffffffu, stat[n], 8);
        stat[n] += __shfl_xor_sync(0xffffffffu, stat[n], 16);
        if (threadIdx.x % 32 == 0)
            sums.stat[i][warp][n] = stat[n];
    }
    keep_values(in, i, p, up.u, de);
}

/* The sum over warps, in order. */
template <int M> __device__ static float of_warps(const float (*x)[32 * M], int i) {
    float sum = 0.0f;
#pragma unroll
    for (int w = 0; w < RNN_WARPS; w++)
        sum += x[w][i];
    return sum;
}

template <class T>
__device__ static void put_dv(const rnn_call<T> &c, const rnn_place &p, int t, int col,
                              float de, float dout) {
    T *to = c.dx + (p.first + t) * c.width + c.v_at + (int64_t)p.head * c.dv +
            p.block * ML_RNN_COLS + col;
    float d = c.skip ? fmaf(c.skip[p.head], dout, de) : de;

    *to = ml_as<T>(c.add_x ? ml_f32(*to) + d : d);
}

/* Writes the results of n tokens. */
template <class T, int M, int TOKENS, class S>
__device__ static void flush_back(const rnn_call<T> &c, const rnn_place &p, const S &in,
                                  const back_sums<M, TOKENS> &sums, int from, int n) {
    int tid = (int)threadIdx.x;

    for (int at = tid; at < n * 32 * M; at += RNN_THREADS) {
        int t = at / (32 * M), i = at % (32 * M);
        if (i < c.dk)
            c.dk_part[block_at(c, p, from + t) * c.dk + i] = of_warps<M>(sums.dk[t], i);
    }
    for (int at = tid; at < n * ML_RNN_COLS; at += RNN_THREADS) {
        int t = at / ML_RNN_COLS, col = at % ML_RNN_COLS;
        if (col >= p.n_col)
            continue;
        c.de[value_at(c, p, from + t) + col] = in.v[t][col];
        c.seen[value_at(c, p, from + t) + col] = in.seen[t][col];
        if (c.dx)
            put_dv(c, p, from + t, col, in.v[t][col], in.dout[t][col]);
    }
    if (tid < RNN_STATS * n) {
        int t = tid / RNN_STATS, k = tid % RNN_STATS;
        float sum = 0.0f;
        for (int w = 0; w < RNN_WARPS; w++)
            sum += sums.stat[t][w][k];
        c.stat[block_at(c, p, from + t) * RNN_STATS + k] = sum;
    }
}

template <class T, int M>
__global__ void __launch_bounds__(RNN_THREADS) back_kernel(rnn_call<T> c) {
    const int TOKENS = M > 4 ? 4 : 8;
    __shared__ rnn_stage<M, TOKENS, RNN_BACK> stage[2];
    __shared__ back_sums<M, TOKENS> sums;
    rnn_fetch<T, M, TOKENS, RNN_BACK> next;
    rnn_place p = rnn_find(c);
    rnn_state<M> ds;
    int from = (p.n_row - 1) / TOKENS * TOKENS;

    if (p.n_row == 0)
        return;
    rnn_zero(ds);
    next.load(c, p, from);
    for (int b = 0; from >= 0; from -= TOKENS, b ^= 1) {
        int n = min(TOKENS, p.n_row - from);
        next.store(stage[b], c);
        __syncthreads();
        if (from)
            next.load(c, p, from - TOKENS);
        for (int i = n - 1; i >= 0; i--)
            step_back<M, TOKENS>(ds, stage[b], sums, i, p, c.delta);
        __syncthreads();
        flush_back<T, M, TOKENS>(c, p, stage[b], sums, from, n);
    }
}

/* ---- the third pass, forwards ---- */

template <int M, int TOKENS> struct again_sums {
    float dq[TOKENS][RNN_WARPS][32 * M], dk[TOKENS][RNN_WARPS][32 * M];
};

template <int M, int TOKENS, class S>
__device__ static void step_again(rnn_state<M> &s, const S &in, again_sums<M, TOKENS> &sums,
                                  int i, const rnn_place &p, bool delta) {
    float keep = in.rate[i][0], d[4], u[4], dseen[4], k[M][4];
    int warp = (int)threadIdx.x / 32;

    rnn_four(d, in.dout[i], p.col);
    rnn_four(u, in.seen[i], p.col);
    rnn_four(dseen, in.v[i], p.col);
#pragma unroll
    for (int j = 0; j < 4; j++)
        dseen[j] = -(keep * dseen[j]);
    if (delta)
        columns<M>(sums.dk[i][warp], s, dseen);
    columns<M>(sums.dq[i][warp], s, d);
    rnn_row<M>(k, in.k[i], p.l);
    rnn_scale<M>(s, keep);
    rnn_outer<M>(s, k, u);
}

template <class T, int M>
__global__ void __launch_bounds__(RNN_THREADS) again_kernel(rnn_call<T> c) {
    const int TOKENS = 4, EACH = TOKENS * 32 * M / RNN_THREADS;
    __shared__ rnn_stage<M, TOKENS, RNN_AGAIN> stage[2];
    __shared__ again_sums<M, TOKENS> sums;
    rnn_fetch<T, M, TOKENS, RNN_AGAIN> next;
    rnn_place p = rnn_find(c);
    rnn_state<M> s;
    float dk[EACH]; /* of the second pass */

    rnn_zero(s);
    next.load(c, p, 0);
    for (int from = 0, b = 0; from < p.n_row; from += TOKENS, b ^= 1) {
        int n = min(TOKENS, p.n_row - from);
        next.store(stage[b], c);
        __syncthreads();
        next.load(c, p, from + TOKENS);
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            int at = e * RNN_THREADS + (int)threadIdx.x, t = at / (32 * M);
            if (c.delta && t < n && at % (32 * M) < c.dk)
                dk[e] = c.dk_part[block_at(c, p, from + t) * c.dk + at % (32 * M)];
        }
        for (int i = 0; i < n; i++)
            step_again<M, TOKENS>(s, stage[b], sums, i, p, c.delta);
        __syncthreads();
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            int at = e * RNN_THREADS + (int)threadIdx.x, t = at / (32 * M);
            int i = at % (32 * M);
            int64_t to = block_at(c, p, from + t) * c.dk + i;
            if (t >= n || i >= c.dk)
                continue;
            c.dq_part[to] = of_warps<M>(sums.dq[t], i);
            if (c.delta)
                c.dk_part[to] = dk[e] + of_warps<M>(sums.dk[t], i);
        }
    }
}

/* ---- sums over blocks, and over the heads of a key ---- */

template <class T, int QUADS>
__device__ static void load_row(float (&o)[QUADS][4], const T *x, int dk, bool wide) {
    int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int h = 0; h < QUADS; h++) {
        rnn_raw<T> four = rnn_load4(x + 128 * h + 4 * lane, dk - 128 * h - 4 * lane, wide);
#pragma unroll
        for (int e = 0; e < 4; e++)
            o[h][e] = rnn_at(four, e);
    }
}

/* Turns the gradient g of a normalized row into that of x: with h = x r and gs = g scale,
 * dx = r (gs - h (gs . h)). */
template <int QUADS>
__device__ static void norm_back(float (&g)[QUADS][4], const float (&x)[QUADS][4], float r,
                                 float scale) {
    float dot = 0.0f;
#pragma unroll
    for (int h = 0; h < QUADS; h++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            g[h][e] = g[h][e] * scale;
            dot = fmaf(g[h][e], x[h][e], dot);
        }
    dot = ml_warp_sum(dot) * r;
#pragma unroll
    for (int h = 0; h < QUADS; h++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            g[h][e] = r * (g[h][e] - x[h][e] * r * dot);
}

template <class T, int QUADS>
__device__ static void put_row(const rnn_call<T> &c, T *to, const float (&g)[QUADS][4]) {
    int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int h = 0; h < QUADS; h++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            int i = 128 * h + 4 * lane + e;
            if (i < c.dk)
                to[i] = ml_as<T>(c.add_x ? ml_f32(to[i]) + g[h][e] : g[h][e]);
        }
}

/* The sum of the parts of a head's blocks, in order. */
template <class T, int QUADS>
__device__ static void sum_blocks(const rnn_call<T> &c, float (&sum)[QUADS][4],
                                  const float *part, int64_t row, int head) {
    float one[QUADS][4];

    for (int b = 0; b < c.n_block; b++) {
        load_row(one, part + ((row * c.n_head + head) * c.n_block + b) * c.dk, c.dk,
                 c.wide);
#pragma unroll
        for (int h = 0; h < QUADS; h++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                sum[h][e] = b ? sum[h][e] + one[h][e] : one[h][e];
    }
}

template <class T>
__device__ static double stat_of(const rnn_call<T> &c, int64_t row, int head, int k) {
    double sum = 0.0;

    for (int b = 0; b < c.n_block; b++)
        sum += (double)c.stat[((row * c.n_head + head) * c.n_block + b) * RNN_STATS + k];
    return sum;
}

/* Adds a head's dk, and its dq = keep S do + k (u.do); writes keep (S q).do. */
template <class T, int QUADS>
__device__ static void add_head(const rnn_call<T> &c, float (&dq)[QUADS][4],
                                float (&dk)[QUADS][4], int64_t row, int head,
                                const float (&q)[QUADS][4], const float (&k)[QUADS][4]) {
    float part[QUADS][4], keep = c.rate[row * 2 * c.n_head + head], dot = 0.0f;
    float udo = (float)stat_of(c, row, head, RNN_UDO);

    sum_blocks(c, part, c.dq_part, row, head);
#pragma unroll
    for (int h = 0; h < QUADS; h++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            float past = keep * part[h][e];
            dot = fmaf(q[h][e], past, dot);
            dq[h][e] += fmaf(k[h][e], udo, past);
        }
    dot = ml_warp_sum(dot);
    if (threadIdx.x % 32 == 0)
        c.dot_part[row * c.n_head + head] = dot;
    sum_blocks(c, part, c.dk_part, row, head);
#pragma unroll
    for (int h = 0; h < QUADS; h++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            dk[h][e] += part[h][e];
}

/* A warp has a key of a row. */
template <class T, int QUADS> __global__ void gather_kernel(rnn_call<T> c) {
    int64_t unit = (int64_t)blockIdx.x * RNN_WARPS + threadIdx.x / 32, row = unit / c.n_key;
    int key = (int)(unit % c.n_key), each = c.n_head / c.n_key;
    float x[2][QUADS][4], qk[2][QUADS][4], dq[QUADS][4] = {}, dk[QUADS][4] = {}, r[2] = {};

    if (row >= c.n)
        return;
    load_row(x[0], c.x + row * c.width + c.q_at + (int64_t)key * c.dk, c.dk, c.wide);
    load_row(x[1], c.x + row * c.width + c.k_at + (int64_t)key * c.dk, c.dk, c.wide);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float scale = i ? 1.0f : c.q_scale;
        if (c.delta)
            r[i] = rnn_inverse_length(x[i], c.eps);
#pragma unroll
        for (int h = 0; h < QUADS; h++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                qk[i][h][e] = c.delta ? x[i][h][e] * r[i] * scale : x[i][h][e];
    }
    for (int head = key * each; head < (key + 1) * each; head++)
        add_head(c, dq, dk, row, head, qk[0], qk[1]);
    if (!c.dx)
        return;
    if (c.delta) {
        norm_back(dq, x[0], r[0], c.q_scale);
        norm_back(dk, x[1], r[1], 1.0f);
    }
    put_row(c, c.dx + row * c.width + c.q_at + (int64_t)key * c.dk, dq);
    put_row(c, c.dx + row * c.width + c.k_at + (int64_t)key * c.dk, dk);
}

/* ---- gradients of the rates, and of the skip weights ---- */

template <class T>
__device__ static void put_rate(const rnn_call<T> &c, int64_t row, int k, int head,
                                float d) {
    float *to = c.drate + (row * 2 + k) * c.n_head + head;
    *to = c.add_rate ? *to + d : d;
}

/* A warp has a head of a sequence: R of 32 tokens at a time, from the last to the first. */
template <class T> __global__ void rate_kernel(rnn_call<T> c) {
    int unit = (int)blockIdx.x * RNN_WARPS + (int)threadIdx.x / 32;
    int lane = (int)threadIdx.x % 32, head = unit % c.n_head, seq = unit / c.n_head;
    double above = 0.0;

    if (seq >= c.n_seq)
        return;
    for (int64_t last = c.start[seq + 1] - 1; last >= c.start[seq]; last -= 32) {
        int64_t row = last - lane;
        bool there = row >= c.start[seq];
        double sum = 0.0;
        if (there)
            sum = (double)c.dot_part[row * c.n_head + head] + stat_of(c, row, head, RNN_R);
#pragma unroll
        for (int w = 1; w < 32; w <<= 1) {
            double more = __shfl_up_sync(0xffffffffu, sum, w);
            if (lane >= w)
                sum += more;
        }
        if (there) {
            float keep = c.rate[row * 2 * c.n_head + head];
            double d = keep > LEAST_KEEP ? (above + sum) / (double)keep : 0.0;
            put_rate(c, row, 0, head, (float)d);
            put_rate(c, row, 1, head, (float)stat_of(c, row, head, RNN_DTAKE));
        }
        above += __shfl_sync(0xffffffffu, sum, 31);
    }
}

/* dD of a head over a chunk of rows. */
template <class T> __global__ void skip_kernel(rnn_call<T> c) {
    __shared__ float smem[RNN_WARPS];
    int head = (int)blockIdx.y;
    int64_t from = (int64_t)blockIdx.x * ML_RNN_SKIP_ROWS;
    int64_t n = c.n - from < ML_RNN_SKIP_ROWS ? c.n - from : ML_RNN_SKIP_ROWS;
    float sum = 0.0f;

    for (int64_t at = threadIdx.x; at < n * c.dv; at += RNN_THREADS) {
        int64_t row = from + at / c.dv, col = (int64_t)head * c.dv + at % c.dv;
        sum = fmaf(ml_f32(c.dout[row * c.n_head * c.dv + col]),
                   ml_f32(c.x[row * c.width + c.v_at + col]), sum);
    }
    sum = ml_block_sum<RNN_WARPS>(sum, smem);
    if (threadIdx.x == 0)
        c.skip_part[(int64_t)blockIdx.x * c.n_head + head] = sum;
}

/* ---- launches ---- */

template <class T, int M> static void passes(ml_cuda_stream *s, const rnn_call<T> &c) {
    unsigned blocks = (unsigned)c.n_seq * (unsigned)c.n_head * (unsigned)c.n_block;
    const int QUADS = (M + 3) / 4;

    if (c.delta)
        rnn_walk<T>(s, c);
    back_kernel<T, M><<<blocks, RNN_THREADS, 0, s->stream>>>(c);
    again_kernel<T, M><<<blocks, RNN_THREADS, 0, s->stream>>>(c);
    gather_kernel<T, QUADS>
        <<<ml_cuda_blocks(c.n * c.n_key, RNN_WARPS), RNN_THREADS, 0, s->stream>>>(c);
    if (c.drate)
        rate_kernel<T><<<ml_cuda_blocks((int64_t)c.n_seq * c.n_head, RNN_WARPS),
                         RNN_THREADS, 0, s->stream>>>(c);
    ml_cuda_launched(s, "linear-rnn backward");
}

template <class T> static void skip_back(ml_cuda_stream *s, const rnn_call<T> &c) {
    unsigned chunks = ml_cuda_blocks(c.n, ML_RNN_SKIP_ROWS);

    skip_kernel<T><<<dim3(chunks, (unsigned)c.n_head), RNN_THREADS, 0, s->stream>>>(c);
    ml_cuda_launched(s, "linear-rnn backward");
    ml_cuda_add_parts(s, c.dskip, c.skip_part, (int)chunks, c.n_head);
}

template <class T> static void backward(ml_cuda_stream *s, const ml_op_args *a) {
    rnn_call<T> c = rnn_open<T>(a);
    ml_rnn_scratch at = ml_cuda_rnn_scratch(a);
    char *base = (char *)a->scratch;

    c.dout = (const T *)a->dout[0].data;
    c.dx = (T *)a->din[0].data;
    c.drate = (float *)a->din[1].data;
    c.add_x = a->din_add[0];
    c.add_rate = a->din_add[1];
    c.seen = (float *)base;
    c.de = (float *)(base + at.de);
    c.dq_part = (float *)(base + at.dq);
    c.dk_part = (float *)(base + at.dk);
    c.stat = (float *)(base + at.stat);
    c.dot_part = (float *)(base + at.dot);
    c.skip_part = (float *)(base + at.skip);
    if (!c.n || !c.n_head)
        return;
    if (c.dx || c.drate)
        RNN_SIZED(c.dk, passes<T, M>(s, c));
    if (a->dw[0].data) {
        c.dskip = (float *)a->dw[0].data + a->attr->linear_rnn.first_head;
        skip_back(s, c);
    }
}

void ml_cuda_linear_rnn_backward(ml_stream *s, const ml_op_args *a) {
    ML_CUDA_TYPED(a->in[0].dtype, backward<T>(ml_cuda(s), a));
}
