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
    CHUNK_THREADS = 128,
    CHUNK_WARPS = CHUNK_THREADS / 32,
    SLICE = 8,  /* columns of values at a time */
    PIECE = 64, /* elements of keys at a time */
    TILE = 128, /* elements of keys for which a thread has sums */
    BATCH = 8   /* loads of a loop that do not wait for each other */
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

/* A thread's tokens 4 t .. 4 t + 3 of each half of the chunk, and its elements of keys 4 i .. 4 i + 3
 * of each half of a tile; of pairs of tokens, the first is one of 4 i .. 4 i + 3.  A warp has 4 x 8
 * threads. */
struct chunk_thread {
    int t, i;
};

__device__ static inline chunk_thread chunk_me(void) {
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;

    return { warp / 2 * 4 + lane / 8, warp % 2 * 8 + lane % 8 };
}

/* The first of a thread's tokens of half g. */
__device__ static inline int token_at(const chunk_thread &me, int g) {
    return CHUNK / 2 * g + 4 * me.t;
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

/* A warp has the rows of 16 tokens. */
template <class T>
__device__ static void find_lengths(const rnn_call<T> &c, const chunk_place &p,
                                    chunk_smem *s) {
    const int ROWS = 2 * CHUNK / CHUNK_WARPS;

    for (int from = 0; from < ROWS; from += BATCH) {
        float x[BATCH][2][4]; /* ML_RNN_MOST_KEY */
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            int row = (int)threadIdx.x / 32 * ROWS + from + i, t = row / 2;
            rnn_load_row(x[i],
                         c.x + (p.row + t) * c.width + (row % 2 ? c.k_at : c.q_at) +
                             (int64_t)p.key * c.dk,
                         t < p.n ? c.dk : 0, c.wide);
        }
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            int row = (int)threadIdx.x / 32 * ROWS + from + i;
            float r = rnn_inverse_length(x[i], c.eps);
            if (threadIdx.x % 32 == 0)
                s->length[row % 2][row / 2] = r;
        }
    }
}

/* Products of decays after token `from`, up to each later token; since: from the start. */
__device__ static void find_decays(chunk_smem *s) {
    int from = (int)threadIdx.x < CHUNK ? (int)threadIdx.x : -1;
    float product = 1.0f, *to = from < 0 ? s->since : s->decay[from];

    if (threadIdx.x > CHUNK)
        return;
    for (int t = 0; t < CHUNK; t += BATCH) {
        float keep[BATCH];
#pragma unroll
        for (int i = 0; i < BATCH; i++)
            keep[i] = s->keep[t + i];
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            if (t + i > from)
                product *= keep[i];
            to[t + i] = product;
        }
    }
}

/* ---- products of keys ---- */

/* Elements from .. from + PIECE - 1 of the rows of q and k, normalized for the delta rule;
 * BY_ELEMENT: [element][token]. */
template <bool BY_ELEMENT, class T>
__device__ static void load_keys(const rnn_call<T> &c, const chunk_place &p, chunk_smem *s,
                                 int from) {
    int lane = (int)threadIdx.x % 32;
#pragma unroll 1
    for (int part = 0; part < 4; part++) { /* q, k of a half of the tokens */
        int t = (int)threadIdx.x / 32 * 8 + lane / 4 + CHUNK / 2 * (part / 2);
        bool is_k = part % 2;
        float r = s->length[is_k][t], scale = is_k ? 1.0f : c.q_scale;
        float(*to)[PITCH] = is_k ? s->keys.k : s->keys.q;
        const T *x =
            c.x + (p.row + t) * c.width + (is_k ? c.k_at : c.q_at) + (int64_t)p.key * c.dk;
        rnn_raw<T> four[PIECE / 16];
#pragma unroll
        for (int n = 0; n < PIECE / 16; n++) {
            int i = from + 16 * n + lane % 4 * 4;
            four[n] = rnn_load4(x + i, t < p.n ? c.dk - i : 0, c.wide);
        }
#pragma unroll
        for (int n = 0; n < PIECE / 16; n++) {
            int i = 16 * n + lane % 4 * 4;
            float y[4];
#pragma unroll
            for (int e = 0; e < 4; e++) {
                y[e] = rnn_at(four[n], e);
                if (c.delta)
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

/* Of pairs of tokens, by halves of the second: [half][first][second]. */
struct chunk_pairs {
    float dout[2][4][4], de[2][4][4]; /* u[s].do[t], u[s].de[t] */
};

/* k[s].q[t] and k[s].k[t] of all pairs. */
template <bool DELTA, class T>
__device__ static void multiply_keys(const rnn_call<T> &c, const chunk_place &p,
                                     chunk_smem *s) {
    chunk_thread me = chunk_me();
    float qk[2][4][4] = {}, kk[2][4][4] = {};

    for (int from = 0; from < c.dk; from += PIECE) {
        __syncthreads();
        load_keys<true>(c, p, s, from);
        __syncthreads();
#pragma unroll 4
        for (int i = 0; i < PIECE; i++) {
            float first[4];
            ml_load(first, s->keys.k[i] + 4 * me.i);
#pragma unroll
            for (int g = 0; g < 2; g++) {
                float q[4], k[4];
                ml_load(q, s->keys.q[i] + token_at(me, g));
                add_pairs(qk[g], first, q);
                if (!DELTA)
                    continue;
                ml_load(k, s->keys.k[i] + token_at(me, g));
                add_pairs(kk[g], first, k);
            }
        }
    }
#pragma unroll
    for (int g = 0; g < 2; g++)
#pragma unroll
        for (int a = 0; a < 4; a++) {
            ml_store(s->qk[4 * me.i + a] + token_at(me, g), qk[g][a]);
            ml_store(s->kk[4 * me.i + a] + token_at(me, g), kk[g][a]);
        }
}

/* ---- products of values ---- */

/* Of a thread's tokens and elements, by halves of the tile and of the chunk, [token][element]. */
struct chunk_tile {
    float x[2][2][4][4];
};

/* A token's values of a slice, in registers. */
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

    __device__ void store(const rnn_call<T> &c, const chunk_smem *s,
                          chunk_slice *to) const {
        int t = (int)threadIdx.x / 2, j = (int)threadIdx.x % 2 * 4;
        float take = s->take[t];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            to->dout[j + i][t] = rnn_at(dout, i);
            to->u[j + i][t] = take * rnn_at(e, i);
            if (c.delta)
                to->de[j + i][t] = take * rnn_at(du, i);
        }
    }

    /* The values' part of the gradient of take. */
    __device__ float dtake(void) const {
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < 4; i++)
            sum = fmaf(rnn_at(du, i), rnn_at(e, i), sum);
        return sum;
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

/* Starts copies of columns from .. from + SLICE - 1 of a state. */
template <class T>
__device__ static void load_state(const rnn_call<T> &c, float (*to)[TILE],
                                  const float *marks, int64_t mark, int tile, int from) {
    int i = (int)threadIdx.x % (TILE / 4) * 4;
#pragma unroll
    for (int n = 0; n < SLICE / CHUNK_WARPS; n++) {
        int j = (int)threadIdx.x / (TILE / 4) + CHUNK_WARPS * n;
        bool there = mark >= 0 && tile + i < c.dk && from + j < c.dv;
        int64_t at = (mark * c.dv + from + j) * c.key_pitch + tile + i;
        ml_copy_async(to[j] + i, marks + (there ? at : 0), there);
    }
}

/* What one pass over the columns of values computes for a tile of the key's elements. */
enum values_pass {
    PASS_FIRST, /* of the first tile: as PASS_AFTER, and pairs of tokens */
    PASS_AFTER, /* dS u, and the inner product of both states */
    PASS_STATE  /* S do, S de */
};

struct values_sums {
    chunk_tile dout, de, u; /* S do, S de, dS u; then dq, dk */
    float both;
};

/* x[half of the tile][half of the chunk] += token element */
__device__ static inline void add_tile(chunk_tile &o, const float (*row)[PITCH],
                                       const float (*state)[TILE], int j,
                                       const chunk_thread &me) {
    float s[2][4], t[4];
#pragma unroll
    for (int h = 0; h < 2; h++)
        ml_load(s[h], state[j] + PIECE * h + 4 * me.i);
#pragma unroll
    for (int g = 0; g < 2; g++) {
        ml_load(t, row[j] + token_at(me, g));
#pragma unroll
        for (int h = 0; h < 2; h++)
            add_pairs(o.x[h][g], t, s[h]);
    }
}

__device__ static inline void add_values(float (&x)[2][4][4], const float (*row)[PITCH],
                                         const float (&first)[4], int j,
                                         const chunk_thread &me) {
#pragma unroll
    for (int g = 0; g < 2; g++) {
        float t[4];
        ml_load(t, row[j] + token_at(me, g));
        add_pairs(x[g], first, t);
    }
}

template <values_pass PASS, bool DELTA>
__device__ static void multiply_slice(const chunk_slice &in, const chunk_thread &me,
                                      values_sums &x, chunk_pairs &pairs) {
#pragma unroll 2
    for (int j = 0; j < SLICE; j++) {
        if (PASS == PASS_STATE) {
            add_tile(x.dout, in.dout, in.s, j, me);
            if (DELTA)
                add_tile(x.de, in.de, in.s, j, me);
            continue;
        }
        add_tile(x.u, in.u, in.ds, j, me);
        if (PASS == PASS_FIRST) {
            float first[4];
            ml_load(first, in.u[j] + 4 * me.i);
            add_values(pairs.dout, in.dout, first, j, me);
            if (DELTA)
                add_values(pairs.de, in.de, first, j, me);
        }
    }
}

/* This thread's part of the inner product of the states at the ends. */
__device__ static float multiply_states(const chunk_slice &in, float sum) {
    int i = (int)threadIdx.x % (TILE / 4) * 4;
#pragma unroll
    for (int n = 0; n < SLICE / CHUNK_WARPS; n++) {
        int j = (int)threadIdx.x / (TILE / 4) + CHUNK_WARPS * n;
        float s[4], ds[4];
        ml_load(s, in.s[j] + i);
        ml_load(ds, in.ds[j] + i);
#pragma unroll
        for (int e = 0; e < 4; e++)
            sum = fmaf(s[e], ds[e], sum);
    }
    return sum;
}

template <values_pass PASS, class T>
__device__ static void load_states(const rnn_call<T> &c, const chunk_place &p,
                                   chunk_slice *to, int tile, int from) {
    load_state(c, to->s, c.mark, p.before, tile, from);
    if (PASS != PASS_STATE)
        load_state(c, to->ds, c.dmark, p.after, tile, from);
    ml_copy_commit();
}

template <values_pass PASS, bool DELTA, class T>
__device__ static void multiply_values(const rnn_call<T> &c, const chunk_place &p,
                                       chunk_smem *s, int tile, values_sums &x,
                                       chunk_pairs &pairs) {
    chunk_thread me = chunk_me();
    value_fetch<T> next;
    float dtake = 0.0f;

    __syncthreads();
    next.load(c, p, 0);
    load_states<PASS>(c, p, &s->slice[0], tile, 0);
    for (int from = 0, b = 0; from < c.dv; from += SLICE, b ^= 1) {
        next.store(c, s, &s->slice[b]);
        if (PASS == PASS_FIRST) {
            dtake += next.dtake();
            if (c.dx)
                next.put_dv(c, p, s, from);
        }
        ml_copy_wait<0>();
        __syncthreads();
        if (from + SLICE < c.dv) {
            next.load(c, p, from + SLICE);
            load_states<PASS>(c, p, &s->slice[b ^ 1], tile, from + SLICE);
        }
        multiply_slice<PASS, DELTA>(s->slice[b], me, x, pairs);
        if (PASS != PASS_STATE)
            x.both = multiply_states(s->slice[b], x.both);
    }
    if (PASS == PASS_FIRST)
        s->dtake[threadIdx.x % 2][threadIdx.x / 2] = dtake;
    __syncthreads();
}

/* ---- sums over pairs of tokens ---- */

/* Of each token t, the terms of the gradient of its decay for s < t and r >= t within the chunk.
 * kk has P.  A thread has a token s: the sums over r of D[t,r] P[s,r], t descending. */
__device__ static void sum_decays(chunk_smem *s) {
    int me = (int)threadIdx.x;

    if (me < CHUNK) { /* what it finds for t <= s is not read */
        float sum = 0.0f, keep = 0.0f;
        for (int top = CHUNK - BATCH; top + BATCH - 1 > me; top -= BATCH) {
            float x[BATCH], decay[BATCH], next[BATCH];
#pragma unroll
            for (int i = BATCH - 1; i >= 0; i--) {
                x[i] = s->kk[me][top + i];
                decay[i] = s->decay[me][max(top + i - 1, 0)];
                next[i] = s->keep[top + i];
            }
#pragma unroll
            for (int i = BATCH - 1; i >= 0; i--) {
                sum = fmaf(keep, sum, x[i]);
                s->kk[me][top + i] = decay[i] * sum;
                keep = next[i];
            }
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
template <bool DELTA> __device__ static void join_pairs(chunk_smem *s, chunk_pairs &x) {
    chunk_thread me = chunk_me();
#pragma unroll
    for (int at = 0; at < 32; at++) {
        int g = at / 16, a = at / 4 % 4, b = at % 4;
        int first = 4 * me.i + a, t = token_at(me, g) + b;
        float decay = s->decay[first][t], *dout = &x.dout[g][a][b], *de = &x.de[g][a][b];
        float pair = s->qk[first][t] * *dout;
        s->kk[first][t] = DELTA ? pair - s->kk[first][t] * *de : pair;
        *dout *= decay;
        *de = DELTA && first < t ? -decay * *de : 0.0f;
    }
    __syncthreads();
    sum_decays(s);
#pragma unroll
    for (int at = 0; at < 32; at++) {
        int g = at / 16, a = at / 4 % 4, b = at % 4;
        int first = 4 * me.i + a, t = token_at(me, g) + b;
        if (first <= t) {
            s->qk[first][t] = s->qk[t][first] = x.dout[g][a][b];
            s->kk[first][t] = s->kk[t][first] = x.de[g][a][b];
        }
    }
    __syncthreads();
}

/* ---- gradients of q and k ---- */

/* Terms of the gradients of decays that the states at the ends have, of a thread's tokens. */
struct chunk_ends {
    float start[2][4], end[2][4];
};

/* Of a half of a tile: x.dout becomes dq, x.de becomes dk, but for the chunk's own terms. */
__device__ static void join_states(const chunk_smem *s, const chunk_thread &me, int h,
                                   values_sums &x, chunk_ends &ends) {
#pragma unroll
    for (int at = 0; at < 8; at++) {
        int g = at / 4, b = at % 4, t = token_at(me, g) + b;
        float q[4], k[4], since = s->since[t], left = s->decay[t][CHUNK - 1];
        ml_load(q, s->keys.q[t] + 4 * me.i);
        ml_load(k, s->keys.k[t] + 4 * me.i);
#pragma unroll
        for (int e = 0; e < 4; e++) {
            float dout = x.dout.x[h][g][b][e], de = x.de.x[h][g][b][e];
            float u = x.u.x[h][g][b][e];
            ends.start[g][b] = fmaf(q[e], dout, fmaf(-k[e], de, ends.start[g][b]));
            ends.end[g][b] = fmaf(k[e], u, ends.end[g][b]);
            x.dout.x[h][g][b][e] = since * dout;
            x.de.x[h][g][b][e] = fmaf(left, u, -(since * de));
        }
    }
}

/* Adds the chunk's own terms. */
template <bool DELTA>
__device__ static void add_tokens(const chunk_smem *s, const chunk_thread &me,
                                  float (&dq)[2][4][4], float (&dk)[2][4][4]) {
#pragma unroll 2
    for (int at = 0; at < CHUNK; at++) {
        float q[4], k[4];
        ml_load(q, s->keys.q[at] + 4 * me.i);
        ml_load(k, s->keys.k[at] + 4 * me.i);
#pragma unroll
        for (int g = 0; g < 2; g++) {
            float l[4], m[4], early[4], late[4];
            ml_load(l, s->qk[at] + token_at(me, g));
#pragma unroll
            for (int b = 0; b < 4; b++) {
                early[b] = at <= token_at(me, g) + b ? l[b] : 0.0f;
                late[b] = at >= token_at(me, g) + b ? l[b] : 0.0f;
            }
            add_pairs(dq[g], early, k);
            add_pairs(dk[g], late, q);
            if (!DELTA)
                continue;
            ml_load(m, s->kk[at] + token_at(me, g));
            add_pairs(dk[g], m, k);
        }
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
template <bool DELTA, class T>
__device__ static void put_keys(const rnn_call<T> &c, const chunk_place &p, chunk_smem *s,
                                int tile, values_sums &x, chunk_ends &ends) {
    chunk_thread me = chunk_me();
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int from = tile + PIECE * h;
        if (from >= c.dk)
            break;
        load_keys<false>(c, p, s, from);
        __syncthreads();
        join_states(s, me, h, x, ends);
        add_tokens<DELTA>(s, me, x.dout.x[h], x.de.x[h]);
#pragma unroll
        for (int g = 0; g < 2; g++) {
            put_part(c, p, c.dq_part, x.dout.x[h][g], token_at(me, g), from + 4 * me.i);
            put_part(c, p, c.dk_part, x.de.x[h][g], token_at(me, g), from + 4 * me.i);
        }
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
    for (int at = 0; at < 8; at++) {
        int g = at / 4, b = at % 4;
#pragma unroll
        for (int w = 1; w < 8; w <<= 1) {
            x.start[g][b] += __shfl_xor_sync(0xffffffffu, x.start[g][b], w);
            x.end[g][b] += __shfl_xor_sync(0xffffffffu, x.end[g][b], w);
        }
        if (me.i % 8 == 0) {
            s->start[me.i / 8][token_at(me, g) + b] = x.start[g][b];
            s->end[me.i / 8][token_at(me, g) + b] = x.end[g][b];
        }
    }
    __syncthreads();
}

/* x[t] = the sum of its parts, and keep[t] times that of the token before it (FORWARD; written to the
 * token after it), or keep of the token after it times that one's. */
template <bool FORWARD>
__device__ static void scan(const chunk_smem *s, const float (*part)[CHUNK], float *x) {
    float sum = 0.0f;

    for (int from = 0; from < CHUNK; from += BATCH) {
        float one[BATCH], keep[BATCH];
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            int t = FORWARD ? from + i : CHUNK - 1 - from - i;
            one[i] = part[0][t] + part[1][t];
            keep[i] = s->keep[t];
        }
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            int t = FORWARD ? from + i : CHUNK - 1 - from - i;
            if (FORWARD)
                x[t] = sum;
            sum = FORWARD ? fmaf(keep[i], sum, one[i]) : sum + one[i];
            if (!FORWARD) {
                x[t] = sum;
                sum *= keep[i];
            }
        }
    }
}

/* The terms of the state at one end and the tokens: past[t] of those before t, later[t] of t and
 * those after it. */
__device__ static void scan_ends(chunk_smem *s) {
    if (threadIdx.x == 0)
        scan<true>(s, s->end, s->past);
    else if (threadIdx.x == 32)
        scan<false>(s, s->start, s->later);
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

template <bool DELTA, class T>
__global__ void __launch_bounds__(CHUNK_THREADS, 2) chunk_kernel(rnn_call<T> c) {
    extern __shared__ __align__(16) char memory[];
    chunk_smem *s = (chunk_smem *)memory;
    chunk_ends ends = {};
    values_sums x;
    chunk_place p;

    if (!chunk_find(c, &p))
        return;
    x.both = 0.0f;
    find_rates(c, p, s);
    if (DELTA)
        find_lengths(c, p, s);
    __syncthreads();
    find_decays(s);
    multiply_keys<DELTA>(c, p, s);
    for (int tile = 0; tile < c.dk; tile += TILE) {
        chunk_pairs pairs = {};
        x.u = {};
        if (tile) {
            multiply_values<PASS_AFTER, DELTA>(c, p, s, tile, x, pairs);
        } else {
            multiply_values<PASS_FIRST, DELTA>(c, p, s, tile, x, pairs);
            join_pairs<DELTA>(s, pairs);
        }
        x.dout = x.de = {};
        if (p.before >= 0)
            multiply_values<PASS_STATE, DELTA>(c, p, s, tile, x, pairs);
        put_keys<DELTA>(c, p, s, tile, x, ends);
    }
    if (c.drate)
        put_rates(c, p, s, ends, x.both);
}

template <bool DELTA, class T> static void launch(ml_cuda_stream *s, const rnn_call<T> &c) {
    dim3 blocks((unsigned)(c.n / CHUNK + c.n_seq), (unsigned)c.n_head);

    ml_cuda_note(s,
                 cudaFuncSetAttribute(chunk_kernel<DELTA, T>,
                                      cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      (int)sizeof(chunk_smem)),
                 "linear-rnn backward");
    chunk_kernel<DELTA, T><<<blocks, CHUNK_THREADS, sizeof(chunk_smem), s->stream>>>(c);
    ml_cuda_launched(s, "linear-rnn backward");
}

template <class T> void rnn_chunks(ml_cuda_stream *s, const rnn_call<T> &c) {
    if (c.delta)
        launch<true, T>(s, c);
    else
        launch<false, T>(s, c);
}

template void rnn_chunks<float>(ml_cuda_stream *, const rnn_call<float> &);
template void rnn_chunks<bf16>(ml_cuda_stream *, const rnn_call<bf16> &);
