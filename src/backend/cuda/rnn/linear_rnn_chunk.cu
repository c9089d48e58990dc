/* linear_rnn_chunk.cu - LINEAR_RNN backward: the gradients of a chunk of tokens.
 *
 * The gradient dS of the state has a recurrence of its own, which does not read the state:
 * with S' = keep S + k u', u = take e, e = v - keep S' k (Mamba-2: v), and o = S'' q, from the
 * last token to the first,
 *
 *     dS = dS + q do',   du = dS' k,   de = take du,
 *     dS = keep (dS - k de')                           (Mamba-2: keep dS)
 *
 * rnn_walk runs both recurrences and keeps e and du of every token, and S and dS between
 * chunks of ML_RNN_CHUNK tokens.  The rest needs no order of chunks: a block has a chunk of a
 * head.  With D[s,t] the product of the decays after token s up to token t, A[t] that from the
 * chunk's start to t, Z[t] that after t to the chunk's end, and S and dS the states at its two
 * ends,
 *
 *     dq[t] = A[t] S do[t] + sum of D[s,t] (u[s].do[t]) k[s] over s <= t
 *     dk[t] = Z[t] dS u[t] - A[t] S de[t] + sum of D[t,r] (u[t].do[r]) q[r] over r >= t
 *             - sum of D[s,t] (u[s].de[t]) k[s] over s < t - the same with t, r for r > t
 *
 * (Mamba-2: de = 0), so products of matrices.  The gradient of keep[t] is the inner product of the
 * state before t and of dS - k de' at t, thus a sum over pairs of s < t and r >= t (or the chunk's
 * ends) of D[s,t-1] D[t,r] P[s,r], P[s,r] = (k[s].q[r])(u[s].do[r]) - (k[s].k[r])(u[s].de[r]).
 * Each is found from the terms that belong to it: none is a difference of larger sums. */
#include "backend/cuda/mma.cuh"
#include "backend/cuda/rnn/linear_rnn.cuh"

#include <math.h>

enum {
    CHUNK = ML_RNN_CHUNK,
    PITCH = CHUNK + 4, /* of a row of CHUNK numbers */
    CHUNK_THREADS = 256,
    CHUNK_WARPS = CHUNK_THREADS / 32,
    SLICE = 8,  /* columns of values at a time */
    PIECE = 64, /* elements of keys at a time */
    TILE = 128  /* elements of keys for which a thread has sums */
};

/* ---- a chunk of a head ---- */

struct chunk_place {
    int head, key, n;      /* n: tokens */
    int64_t row;           /* of the batch */
    int64_t before, after; /* the states at its ends, or -1: the sequence's end */
};

/* Sequence i has blocks from start[i] / CHUNK + i on, at least one for each of its chunks.
 * False: a block without a chunk. */
template <class T> __device__ static bool chunk_find(const rnn_call<T> &c, chunk_place *p) {
    int unit = (int)blockIdx.x, seq = 0, end = c.n_seq, chunk, first, left;

    while (end - seq > 1) {
        int middle = (seq + end) / 2;
        if (c.start[middle] / CHUNK + middle <= unit)
            seq = middle;
        else
            end = middle;
    }
    first = c.start[seq];
    chunk = unit - (first / CHUNK + seq);
    left = c.start[seq + 1] - first - chunk * CHUNK;
    if (left <= 0)
        return false;
    p->head = (int)blockIdx.y;
    p->key = p->head / (c.n_head / c.n_key);
    p->n = min(CHUNK, left);
    p->row = first + (int64_t)chunk * CHUNK;
    p->before = chunk ? rnn_mark(first, chunk) * c.n_head + p->head : -1;
    p->after = left > CHUNK ? rnn_mark(first, chunk + 1) * c.n_head + p->head : -1;
    return true;
}

/* A thread's tokens 4 t .. 4 t + 3, and its elements of keys 4 i .. 4 i + 3 of each half of a
 * tile; of pairs of tokens, the first is one of 4 i .. 4 i + 3.  A warp has 4 x 8 threads. */
struct chunk_thread {
    int t, i;
};

__device__ static inline chunk_thread chunk_me(void) {
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;

    return { warp / 2 * 4 + lane / 8, warp % 2 * 8 + lane % 8 };
}

/* Columns of values: of tokens, and of the states at the ends. */
struct alignas(16) chunk_slice {
    float dout[SLICE][PITCH], de[SLICE][PITCH], u[SLICE][PITCH];
    float s[SLICE][TILE], ds[SLICE][TILE];
};

/* A piece of the rows of q and k, [token][element] or [element][token]. */
struct alignas(16) chunk_keys {
    float q[PIECE][PITCH], k[PIECE][PITCH];
};

struct alignas(16) chunk_smem {
    /* [s][t]: k[s].q[t] and k[s].k[t], later what multiplies rows of q and k, for s < t also at
     * [t][s]. */
    float qk[CHUNK][PITCH], kk[CHUNK][PITCH];
    float decay[CHUNK][PITCH]; /* [s][t] D, s <= t */
    union {
        chunk_slice slice[2];
        chunk_keys keys;
    };
    float keep[CHUNK], take[CHUNK], since[CHUNK]; /* since: A */
    float length[2][CHUNK];                       /* 1 / that of q, k */
    float dtake[2][CHUNK];
    float start[2][CHUNK], end[2][CHUNK]; /* terms of R of the states at the ends */
    float past[CHUNK], later[CHUNK];
    float sum[CHUNK_WARPS];
    double dkeep[CHUNK];
};

/* ---- rates and lengths ---- */

template <class T>
__device__ static void find_rates(const rnn_call<T> &c, const chunk_place &p,
                                  chunk_smem *s) {
    int t = (int)threadIdx.x % CHUNK, k = (int)threadIdx.x / CHUNK;
    bool there = t < p.n;

    if (k == 0)
        s->keep[t] = there ? c.rate[(p.row + t) * 2 * c.n_head + p.head] : 1.0f;
    else if (k == 1)
        s->take[t] = there ? c.rate[((p.row + t) * 2 + 1) * c.n_head + p.head] : 0.0f;
}

/* A warp has eight tokens. */
template <class T>
__device__ static void find_lengths(const rnn_call<T> &c, const chunk_place &p,
                                    chunk_smem *s) {
    for (int i = 0; i < 2 * CHUNK / CHUNK_WARPS; i++) {
        int t = (int)threadIdx.x / 32 * (CHUNK / CHUNK_WARPS) + i / 2;
        float x[2][4], r; /* ML_RNN_MOST_KEY */
        if (t >= p.n)
            return;
        rnn_load_row(x,
                     c.x + (p.row + t) * c.width + (i % 2 ? c.k_at : c.q_at) +
                         (int64_t)p.key * c.dk,
                     c.dk, c.wide);
        r = rnn_inverse_length(x, c.eps);
        if (threadIdx.x % 32 == 0)
            s->length[i % 2][t] = r;
    }
}

__device__ static void find_decays(chunk_smem *s) {
    int from = (int)threadIdx.x;
    float product = 1.0f;

    if (from < CHUNK) {
        s->decay[from][from] = 1.0f;
        for (int t = from + 1; t < CHUNK; t++)
            s->decay[from][t] = product *= s->keep[t];
    } else if (from == CHUNK) {
        for (int t = 0; t < CHUNK; t++)
            s->since[t] = product *= s->keep[t];
    }
}

/* ---- products of keys ---- */

/* Elements from .. from + PIECE - 1 of the rows of q and k, normalized for the delta rule;
 * BY_ELEMENT: [element][token]. */
template <bool BY_ELEMENT, class T>
__device__ static void load_keys(const rnn_call<T> &c, const chunk_place &p, chunk_smem *s,
                                 int from) {
    int lane = (int)threadIdx.x % 32, t = (int)threadIdx.x / 32 * 8 + lane / 4;
    const T *x = c.x + (p.row + t) * c.width + (int64_t)p.key * c.dk;
#pragma unroll
    for (int kind = 0; kind < 2; kind++) {
        float r = s->length[kind][t], scale = kind ? 1.0f : c.q_scale;
        float(*to)[PITCH] = kind ? s->keys.k : s->keys.q;
        rnn_raw<T> four[PIECE / 16];
#pragma unroll
        for (int n = 0; n < PIECE / 16; n++) {
            int i = from + 16 * n + lane % 4 * 4;
            four[n] =
                rnn_load4(x + (kind ? c.k_at : c.q_at) + i, t < p.n ? c.dk - i : 0, c.wide);
        }
#pragma unroll
        for (int n = 0; n < PIECE / 16; n++) {
            int i = 16 * n + lane % 4 * 4;
            float y[4];
#pragma unroll
            for (int e = 0; e < 4; e++) {
                y[e] = rnn_at(four[n], e);
                if (c.delta && t < p.n)
                    y[e] = y[e] * r * scale;
                if (BY_ELEMENT)
                    to[i + e][t] = y[e];
            }
            if (!BY_ELEMENT)
                ml_store(to[t] + i, y);
        }
    }
}

/* x[a][b] += p[a] q[b] */
__device__ static inline void add_pairs(float (&x)[4][4], const float (&p)[4],
                                        const float (&q)[4]) {
#pragma unroll
    for (int a = 0; a < 4; a++)
#pragma unroll
        for (int b = 0; b < 4; b++)
            x[a][b] = fmaf(p[a], q[b], x[a][b]);
}

/* k[s].q[t] and k[s].k[t] of all pairs. */
template <class T>
__device__ static void multiply_keys(const rnn_call<T> &c, const chunk_place &p,
                                     chunk_smem *s) {
    chunk_thread me = chunk_me();
    float qk[4][4] = {}, kk[4][4] = {};

    for (int from = 0; from < c.dk; from += PIECE) {
        __syncthreads();
        load_keys<true>(c, p, s, from);
        __syncthreads();
#pragma unroll 4
        for (int i = 0; i < PIECE; i++) {
            float first[4], q[4], k[4];
            ml_load(first, s->keys.k[i] + 4 * me.i);
            ml_load(q, s->keys.q[i] + 4 * me.t);
            ml_load(k, s->keys.k[i] + 4 * me.t);
            add_pairs(qk, first, q);
            add_pairs(kk, first, k);
        }
    }
#pragma unroll
    for (int a = 0; a < 4; a++) {
        ml_store(s->qk[4 * me.i + a] + 4 * me.t, qk[a]);
        ml_store(s->kk[4 * me.i + a] + 4 * me.t, kk[a]);
    }
}

/* ---- products of values ---- */

/* Of a thread's tokens and elements, by halves of a tile: S do, S de and dS u; then dq and dk. */
struct chunk_sums {
    float dout[2][4][4], de[2][4][4], u[2][4][4]; /* [half][token][element] */
};

/* Of pairs of tokens: u[s].do[t], u[s].de[t]. */
struct chunk_pairs {
    float dout[4][4], de[4][4];
};

/* A token's values of a slice, in registers; half of the threads have some. */
template <class T> struct value_fetch {
    rnn_raw<float> e, du;
    rnn_raw<T> dout;

    __device__ void load(const rnn_call<T> &c, const chunk_place &p, int from) {
        int t = (int)threadIdx.x / 2, j = from + (int)threadIdx.x % 2 * 4;
        int64_t at = ((p.row + t) * c.n_head + p.head) * c.dv + j;
        int n = t < p.n ? c.dv - j : 0;

        e = rnn_load4((const float *)c.e + at, n, c.wide);
        du = rnn_load4((const float *)c.du + at, n, c.wide);
        dout = rnn_load4(c.dout + at, n, c.wide);
    }

    /* Returns the values' part of the gradient of take. */
    __device__ float store(const rnn_call<T> &c, const chunk_smem *s,
                           chunk_slice *to) const {
        int t = (int)threadIdx.x / 2, j = (int)threadIdx.x % 2 * 4;
        float take = s->take[t], dtake = 0.0f;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            to->dout[j + i][t] = rnn_at(dout, i);
            to->u[j + i][t] = take * rnn_at(e, i);
            to->de[j + i][t] = c.delta ? take * rnn_at(du, i) : 0.0f;
            dtake = fmaf(rnn_at(du, i), rnn_at(e, i), dtake);
        }
        return dtake;
    }

    __device__ void put_dv(const rnn_call<T> &c, const chunk_place &p, const chunk_smem *s,
                           int from) const {
        int t = (int)threadIdx.x / 2, j = from + (int)threadIdx.x % 2 * 4;
        T *to = c.dx + (p.row + t) * c.width + c.v_at + (int64_t)p.head * c.dv + j;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float d = s->take[t] * rnn_at(du, i);
            if (t >= p.n || j + i >= c.dv)
                continue;
            if (c.skip)
                d = fmaf(c.skip[p.head], rnn_at(dout, i), d);
            to[i] = ml_as<T>(c.add_x ? ml_f32(to[i]) + d : d);
        }
    }
};

/* Starts copies of columns from .. from + SLICE - 1 of the states at the ends. */
template <class T>
__device__ static void load_states(const rnn_call<T> &c, const chunk_place &p,
                                   chunk_slice *to, int tile, int from) {
    int i = (int)threadIdx.x % (TILE / 4) * 4, j = (int)threadIdx.x / (TILE / 4);
    bool there = tile + i < c.dk && from + j < c.dv;
    int64_t at = (int64_t)(from + j) * c.key_pitch + tile + i, size = c.dv * c.key_pitch;

    ml_copy_async(to->s[j] + i,
                  c.mark + (p.before >= 0 && there ? p.before * size + at : 0),
                  p.before >= 0 && there);
    ml_copy_async(to->ds[j] + i,
                  c.dmark + (p.after >= 0 && there ? p.after * size + at : 0),
                  p.after >= 0 && there);
    ml_copy_commit();
}

/* PAIRS: also products of pairs of tokens. */
template <bool PAIRS>
__device__ static void multiply_slice(const chunk_slice &in, const chunk_thread &me,
                                      chunk_sums &x, chunk_pairs &pairs) {
#pragma unroll 2
    for (int j = 0; j < SLICE; j++) {
        float dout[4], de[4], u[4];
        ml_load(dout, in.dout[j] + 4 * me.t);
        ml_load(de, in.de[j] + 4 * me.t);
        ml_load(u, in.u[j] + 4 * me.t);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float s[4], ds[4];
            ml_load(s, in.s[j] + PIECE * h + 4 * me.i);
            ml_load(ds, in.ds[j] + PIECE * h + 4 * me.i);
            add_pairs(x.dout[h], dout, s);
            add_pairs(x.de[h], de, s);
            add_pairs(x.u[h], u, ds);
        }
        if (PAIRS) {
            float first[4];
            ml_load(first, in.u[j] + 4 * me.i);
            add_pairs(pairs.dout, first, dout);
            add_pairs(pairs.de, first, de);
        }
    }
}

/* This thread's part of the inner product of the states at the ends. */
__device__ static float multiply_states(const chunk_slice &in, float sum) {
    int i = (int)threadIdx.x % (TILE / 4) * 4, j = (int)threadIdx.x / (TILE / 4);
    float s[4], ds[4];

    ml_load(s, in.s[j] + i);
    ml_load(ds, in.ds[j] + i);
#pragma unroll
    for (int e = 0; e < 4; e++)
        sum = fmaf(s[e], ds[e], sum);
    return sum;
}

/* All columns, for a tile of the key's elements.  FIRST: of the first tile, with what does not
 * depend on it. */
template <bool FIRST, class T>
__device__ static void multiply_values(const rnn_call<T> &c, const chunk_place &p,
                                       chunk_smem *s, int tile, chunk_sums &x,
                                       chunk_pairs &pairs, float &ends) {
    bool loads = threadIdx.x < 2 * CHUNK;
    chunk_thread me = chunk_me();
    value_fetch<T> next;
    float dtake = 0.0f;

    x = {};
    __syncthreads();
    if (loads)
        next.load(c, p, 0);
    load_states(c, p, &s->slice[0], tile, 0);
    for (int from = 0, b = 0; from < c.dv; from += SLICE, b ^= 1) {
        if (loads) {
            dtake += next.store(c, s, &s->slice[b]);
            if (FIRST && c.dx)
                next.put_dv(c, p, s, from);
        }
        ml_copy_wait<0>();
        __syncthreads();
        if (from + SLICE < c.dv) {
            if (loads)
                next.load(c, p, from + SLICE);
            load_states(c, p, &s->slice[b ^ 1], tile, from + SLICE);
        }
        multiply_slice<FIRST>(s->slice[b], me, x, pairs);
        ends = multiply_states(s->slice[b], ends);
    }
    if (FIRST && loads)
        s->dtake[threadIdx.x % 2][threadIdx.x / 2] = dtake;
    __syncthreads();
}

/* ---- sums over pairs of tokens ---- */

/* Of each token t, the terms of the gradient of its decay for s < t and r >= t within the chunk.
 * kk has P.  A thread has a token s: the sums over r of D[t,r] P[s,r], t descending. */
__device__ static void sum_decays(chunk_smem *s) {
    int me = (int)threadIdx.x;

    if (me < CHUNK) {
        float sum = 0.0f, keep = 0.0f;
        for (int t = CHUNK - 1; t > me; t--) {
            sum = fmaf(keep, sum, s->kk[me][t]);
            s->kk[me][t] = s->decay[me][t - 1] * sum;
            keep = s->keep[t];
        }
    }
    __syncthreads();
    if (me < CHUNK) {
        double sum = 0.0;
        for (int first = 0; first < me; first++)
            sum += (double)s->kk[first][me];
        s->dkeep[me] = sum;
    }
    __syncthreads();
}

/* From products of keys and of values to the factors of rows of q and k, and the chunk's own terms
 * of the gradients of decays. */
__device__ static void join_pairs(chunk_smem *s, const chunk_pairs &x) {
    chunk_thread me = chunk_me();
    float l[4][4], m[4][4];
#pragma unroll
    for (int a = 0; a < 4; a++)
#pragma unroll
        for (int b = 0; b < 4; b++) {
            int first = 4 * me.i + a, t = 4 * me.t + b;
            float decay = s->decay[first][t];
            l[a][b] = decay * x.dout[a][b];
            m[a][b] = first < t ? decay * x.de[a][b] : 0.0f;
            s->kk[first][t] = s->qk[first][t] * x.dout[a][b] - s->kk[first][t] * x.de[a][b];
        }
    __syncthreads();
    sum_decays(s);
#pragma unroll
    for (int a = 0; a < 4; a++)
#pragma unroll
        for (int b = 0; b < 4; b++) {
            int first = 4 * me.i + a, t = 4 * me.t + b;
            if (first <= t) {
                s->qk[first][t] = s->qk[t][first] = l[a][b];
                s->kk[first][t] = s->kk[t][first] = m[a][b];
            }
        }
    __syncthreads();
}

/* ---- gradients of q and k ---- */

/* Terms of the gradients of decays that the states at the ends have, of a thread's tokens. */
struct chunk_ends {
    float start[4], end[4];
};

/* Of a half of a tile: x.dout becomes dq, x.de becomes dk, but for the chunk's own terms. */
__device__ static void join_states(const chunk_smem *s, const chunk_thread &me, int h,
                                   chunk_sums &x, chunk_ends &ends) {
#pragma unroll
    for (int b = 0; b < 4; b++) {
        int t = 4 * me.t + b;
        float q[4], k[4], since = s->since[t], left = s->decay[t][CHUNK - 1];
        ml_load(q, s->keys.q[t] + 4 * me.i);
        ml_load(k, s->keys.k[t] + 4 * me.i);
#pragma unroll
        for (int e = 0; e < 4; e++) {
            float dout = x.dout[h][b][e], de = x.de[h][b][e], u = x.u[h][b][e];
            ends.start[b] = fmaf(q[e], dout, fmaf(-k[e], de, ends.start[b]));
            ends.end[b] = fmaf(k[e], u, ends.end[b]);
            x.dout[h][b][e] = since * dout;
            x.de[h][b][e] = fmaf(left, u, -(since * de));
        }
    }
}

/* Adds the chunk's own terms. */
__device__ static void add_tokens(const chunk_smem *s, const chunk_thread &me,
                                  float (&dq)[4][4], float (&dk)[4][4]) {
#pragma unroll 2
    for (int at = 0; at < CHUNK; at++) {
        float l[4], m[4], q[4], k[4], early[4], late[4];
        ml_load(l, s->qk[at] + 4 * me.t);
        ml_load(m, s->kk[at] + 4 * me.t);
        ml_load(q, s->keys.q[at] + 4 * me.i);
        ml_load(k, s->keys.k[at] + 4 * me.i);
#pragma unroll
        for (int b = 0; b < 4; b++) {
            early[b] = at <= 4 * me.t + b ? l[b] : 0.0f;
            late[b] = at >= 4 * me.t + b ? l[b] : 0.0f;
            m[b] = -m[b];
        }
        add_pairs(dq, early, k);
        add_pairs(dk, late, q);
        add_pairs(dk, m, k);
    }
}

template <class T>
__device__ static void put_part(const rnn_call<T> &c, const chunk_place &p, float *part,
                                const float (&x)[4][4], int t, int i) {
#pragma unroll
    for (int b = 0; b < 4; b++) {
        float *to = part + ((p.row + t + b) * c.n_head + p.head) * c.dk + i;
        if (t + b >= p.n || i >= c.dk)
            continue;
        if (c.wide) {
            ml_store(to, x[b]);
            continue;
        }
#pragma unroll
        for (int e = 0; e < 4; e++)
            if (i + e < c.dk)
                to[e] = x[b][e];
    }
}

/* Finishes a tile of the key's elements. */
template <class T>
__device__ static void put_keys(const rnn_call<T> &c, const chunk_place &p, chunk_smem *s,
                                int tile, chunk_sums &x, chunk_ends &ends) {
    chunk_thread me = chunk_me();
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int from = tile + PIECE * h;
        if (from >= c.dk)
            break;
        load_keys<false>(c, p, s, from);
        __syncthreads();
        join_states(s, me, h, x, ends);
        add_tokens(s, me, x.dout[h], x.de[h]);
        put_part(c, p, c.dq_part, x.dout[h], 4 * me.t, from + 4 * me.i);
        put_part(c, p, c.dk_part, x.de[h], 4 * me.t, from + 4 * me.i);
        __syncthreads();
    }
}

/* ---- gradients of the rates ---- */

template <class T>
__device__ static void put_rate(const rnn_call<T> &c, int64_t row, int k, int head,
                                float d) {
    float *to = c.drate + (row * 2 + k) * c.n_head + head;
    *to = c.add_rate ? *to + d : d;
}

/* Sums of a token's terms over the threads that have its elements, in order. */
__device__ static void share_ends(chunk_smem *s, chunk_ends &x) {
    chunk_thread me = chunk_me();
#pragma unroll
    for (int b = 0; b < 4; b++) {
#pragma unroll
        for (int w = 1; w < 8; w <<= 1) {
            x.start[b] += __shfl_xor_sync(0xffffffffu, x.start[b], w);
            x.end[b] += __shfl_xor_sync(0xffffffffu, x.end[b], w);
        }
        if (me.i % 8 == 0) {
            s->start[me.i / 8][4 * me.t + b] = x.start[b];
            s->end[me.i / 8][4 * me.t + b] = x.end[b];
        }
    }
    __syncthreads();
}

/* The terms of the state at one end and the tokens: past[t] of those before t, later[t] of t and
 * those after it. */
__device__ static void scan_ends(chunk_smem *s) {
    float sum = 0.0f;

    if (threadIdx.x == 0) {
        for (int t = 0; t < CHUNK; t++) {
            s->past[t] = sum;
            sum = fmaf(s->keep[t], sum, s->end[0][t] + s->end[1][t]);
        }
    } else if (threadIdx.x == 32) {
        for (int t = CHUNK - 1; t >= 0; t--) {
            sum += s->start[0][t] + s->start[1][t];
            s->later[t] = sum;
            sum *= s->keep[t];
        }
    }
    __syncthreads();
}

/* `both`: the inner product of the states at the ends. */
template <class T>
__device__ static void put_rates(const rnn_call<T> &c, const chunk_place &p, chunk_smem *s,
                                 chunk_ends &ends, float both) {
    int t = (int)threadIdx.x;

    share_ends(s, ends);
    scan_ends(s);
    both = ml_block_sum<CHUNK_WARPS>(both, s->sum);
    if (t >= p.n)
        return;
    float since = t ? s->since[t - 1] : 1.0f, left = s->decay[t][CHUNK - 1];
    double d = s->dkeep[t] + (double)(left * s->past[t]) +
               (double)(since * fmaf(left, both, s->later[t]));
    put_rate(c, p.row + t, 0, p.head, (float)d);
    put_rate(c, p.row + t, 1, p.head, s->dtake[0][t] + s->dtake[1][t]);
}

template <class T>
__global__ void __launch_bounds__(CHUNK_THREADS, 1) chunk_kernel(rnn_call<T> c) {
    extern __shared__ __align__(16) char memory[];
    chunk_smem *s = (chunk_smem *)memory;
    chunk_sums x;
    chunk_pairs pairs = {};
    chunk_ends ends = {};
    chunk_place p;
    float both = 0.0f;

    if (!chunk_find(c, &p))
        return;
    find_rates(c, p, s);
    if (c.delta)
        find_lengths(c, p, s);
    __syncthreads();
    find_decays(s);
    multiply_keys(c, p, s);
    multiply_values<true>(c, p, s, 0, x, pairs, both);
    join_pairs(s, pairs);
    put_keys(c, p, s, 0, x, ends);
    for (int tile = TILE; tile < c.dk; tile += TILE) {
        multiply_values<false>(c, p, s, tile, x, pairs, both);
        put_keys(c, p, s, tile, x, ends);
    }
    if (c.drate)
        put_rates(c, p, s, ends, both);
}

template <class T> void rnn_chunks(ml_cuda_stream *s, const rnn_call<T> &c) {
    dim3 blocks((unsigned)(c.n / CHUNK + c.n_seq), (unsigned)c.n_head);

    ml_cuda_note(s,
                 cudaFuncSetAttribute(chunk_kernel<T>,
                                      cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      (int)sizeof(chunk_smem)),
                 "linear-rnn backward");
    chunk_kernel<T><<<blocks, CHUNK_THREADS, sizeof(chunk_smem), s->stream>>>(c);
    ml_cuda_launched(s, "linear-rnn backward");
}

template void rnn_chunks<float>(ml_cuda_stream *, const rnn_call<float> &);
template void rnn_chunks<bf16>(ml_cuda_stream *, const rnn_call<bf16> &);
