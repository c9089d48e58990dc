/* linear_rnn.cuh - shared by the kernels of LINEAR_RNN.
 *
 * The recurrence runs token by token with the state in registers, so that decode, chunks
 * of a prefill and training pass through the same states.  A block has ML_RNN_COLS columns
 * of a head of a sequence, a warp 16 of them: lane l + 8g has the columns 4g .. 4g+3 and of
 * those the elements 32m + 4l + r, m < M, r < 4.  So a sum over a column is a chain over a
 * lane's elements and then a tree over eight lanes; its order depends on dk only.
 *
 * Tokens are processed in stages: while one is computed, the inputs of the next are
 * loaded into registers; then they go to shared memory, where q and k of the delta rule
 * are normalized.  The number of tokens of a stage changes no bits. */
#ifndef ML_BACKEND_CUDA_LINEAR_RNN_CUH
#define ML_BACKEND_CUDA_LINEAR_RNN_CUH

#include "backend/cuda/common.cuh"

enum { RNN_THREADS = 128, RNN_WARPS = RNN_THREADS / 32 };

/* Sums over the columns of a token's block: parts of R and of the gradient of take, and u.do. */
enum { RNN_R, RNN_DTAKE, RNN_UDO, RNN_STATS = ML_RNN_STATS };

template <class T> struct rnn_call {
    const T *x;        /* [n, width] */
    const float *rate; /* [n, 2, n_head] */
    const float *skip; /* [n_head], or NULL */
    float *state;      /* or NULL: not kept */
    T *o;              /* NULL: a pass that keeps `seen` alone */
    const int32_t *pos, *start, *slot;
    int64_t n, width, q_at, k_at, v_at;
    int n_seq, n_key, n_head, dk, dv, n_block;
    float eps, q_scale;
    bool delta, wide; /* wide: four numbers at a time */
    /* Backward. */
    const T *dout;
    T *dx;                       /* gradient of x, or NULL */
    float *drate;                /* or NULL */
    float *dskip;                /* or NULL */
    float *seen, *de;            /* [n, n_head, dv] */
    float *dq_part, *dk_part;    /* [n, n_head, n_block, dk] */
    float *stat;                 /* [n, n_head, n_block, RNN_STATS] */
    float *dot_part, *skip_part; /* [n, n_head], [chunks, n_head] */
    bool add_x, add_rate;
};

/* The columns of a block. */
struct rnn_place {
    int seq, head, key, block;
    int first, n_row; /* rows of the batch */
    int n_col;        /* of the block */
    int col;          /* a lane's first column, within the block */
    int l;            /* a lane's place in its group of eight */
};

template <class T> __device__ static rnn_place rnn_find(const rnn_call<T> &c) {
    int unit = (int)blockIdx.x, lane = (int)threadIdx.x % 32;
    rnn_place p;

    p.block = unit % c.n_block;
    p.head = unit / c.n_block % c.n_head;
    p.seq = unit / c.n_block / c.n_head;
    p.key = p.head / (c.n_head / c.n_key);
    p.first = c.start[p.seq];
    p.n_row = c.start[p.seq + 1] - p.first;
    p.n_col = min(ML_RNN_COLS, c.dv - p.block * ML_RNN_COLS);
    p.col = (int)threadIdx.x / 32 * 16 + lane / 8 * 4;
    p.l = lane % 8;
    return p;
}

/* ---- a stage of tokens ---- */

/* Four numbers as they are stored.  Nothing is done with them before they are used, so that
 * nothing waits for a load. */
template <class T> struct alignas(4 * sizeof(T)) rnn_raw { uint32_t w[sizeof(T)]; };

/* Of which the first n are there; the others are 0. */
template <bool WIDE, class T>
__device__ static inline rnn_raw<T> rnn_load_as(const T *from, int n) {
    rnn_raw<T> p = {};

    if constexpr (WIDE) {
        if (n > 0)
            p = *(const rnn_raw<T> *)from;
    } else {
#pragma unroll
        for (int r = 0; r < 4; r++)
            if (r < n && sizeof(T) == 2)
                p.w[r / 2] |= (uint32_t)((const uint16_t *)from)[r] << r % 2 * 16;
            else if (r < n)
                p.w[r] = ((const uint32_t *)from)[r];
    }
    return p;
}

template <class T> __device__ static inline float rnn_at(const rnn_raw<T> &p, int r) {
    if (sizeof(T) == 4)
        return __uint_as_float(p.w[r]);
    return __uint_as_float(r % 2 ? p.w[r / 2] & 0xffff0000u : p.w[r / 2] << 16);
}

template <class T> __device__ static rnn_raw<T> rnn_load4(const T *from, int n, bool wide) {
    return wide ? rnn_load_as<true>(from, n) : rnn_load_as<false>(from, n);
}

/* 1 / the length of a row, of which a warp's lanes have the quads 32h + lane. */
template <int QUADS>
__device__ static float rnn_inverse_length(const float (&x)[QUADS][4], float eps) {
    float sum = 0.0f;
#pragma unroll
    for (int h = 0; h < QUADS; h++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            sum = fmaf(x[h][e], x[h][e], sum);
    return 1.0f / sqrtf(ml_warp_sum(sum) + eps);
}

/* What a pass reads of each token. */
enum rnn_pass {
    RNN_FORWARD, /* q, k, v, rates */
    RNN_BACK,    /* also the gradient of o, and `seen` */
    RNN_AGAIN    /* k, rates, the gradient of o, u and de, which RNN_BACK has saved */
};

/* In shared memory. */
template <int M, int TOKENS, rnn_pass PASS> struct alignas(16) rnn_stage {
    float q[PASS == RNN_AGAIN ? 1 : TOKENS]
           [PASS == RNN_AGAIN ? 4 : 32 * M]; /* AGAIN: unused */
    float k[TOKENS][32 * M];
    float v[TOKENS][ML_RNN_COLS]; /* RNN_AGAIN: de */
    float dout[PASS == RNN_FORWARD ? 1 : TOKENS][ML_RNN_COLS];
    float seen[PASS == RNN_FORWARD ? 1 : TOKENS][ML_RNN_COLS]; /* RNN_AGAIN: u */
    float qk[PASS == RNN_BACK ? TOKENS : 1];                   /* q.k */
    float rate[TOKENS][2];                                     /* keep, take */
};

/* The same in registers, shared by the threads of a block. */
template <class T, int M, int TOKENS, rnn_pass PASS> struct rnn_fetch {
    static const int KINDS = PASS == RNN_AGAIN ? 1 : 2;                   /* k; q and k */
    static const int ROWS = (KINDS * TOKENS + RNN_WARPS - 1) / RNN_WARPS; /* of a warp */
    static const int QUADS = (M + 3) / 4, FOURS = ML_RNN_COLS / 4;
    static const int VALUES = (TOKENS * FOURS + RNN_THREADS - 1) / RNN_THREADS;
    static const int SAVED = PASS == RNN_FORWARD ? 1 : VALUES;
    rnn_raw<T> qk[ROWS][QUADS], v[VALUES], dout[SAVED];
    rnn_raw<float> seen[SAVED], de[PASS == RNN_AGAIN ? VALUES : 1];
    float rate;

    /* Loads rows from .. from + TOKENS - 1 of the sequence. */
    __device__ void load(const rnn_call<T> &c, const rnn_place &p, int from) {
        if (c.wide)
            load_as<true>(c, p, from);
        else
            load_as<false>(c, p, from);
    }

    template <bool WIDE>
    __device__ void load_as(const rnn_call<T> &c, const rnn_place &p, int from) {
        int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;

        rate = 0.0f;
        if (threadIdx.x < 2 * TOKENS && from + (int)threadIdx.x / 2 < p.n_row)
            rate =
                c.rate[((int64_t)(p.first + from) * 2 + threadIdx.x) * c.n_head + p.head];
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            int row = warp * ROWS + i, t = from + row / KINDS;
            int n = row < KINDS * TOKENS && t < p.n_row ? c.dk - 4 * lane : 0;
            const T *x = c.x + (p.first + t) * c.width + (int64_t)p.key * c.dk +
                         ((row + 1) % KINDS ? c.q_at : c.k_at) + 4 * lane;
#pragma unroll
            for (int h = 0; h < QUADS; h++)
                qk[i][h] = rnn_load_as<WIDE>(x + 128 * h, n - 128 * h);
        }
#pragma unroll
        for (int i = 0; i < VALUES; i++)
            load_values<WIDE>(c, p, from, i);
    }

    template <bool WIDE>
    __device__ void load_values(const rnn_call<T> &c, const rnn_place &p, int from, int i) {
        int at = i * RNN_THREADS + (int)threadIdx.x, t = at / FOURS, col = at % FOURS * 4;
        int n = t < TOKENS && from + t < p.n_row ? p.n_col - col : 0;
        int64_t first = (int64_t)p.head * c.dv + p.block * ML_RNN_COLS + col;
        int64_t row = p.first + from + t, value = row * c.n_head * c.dv + first;

        if constexpr (PASS == RNN_AGAIN)
            de[i] = rnn_load_as<WIDE>((const float *)c.de + value, n);
        else
            v[i] = rnn_load_as<WIDE>(c.x + row * c.width + c.v_at + first, n);
        if constexpr (PASS != RNN_FORWARD) {
            dout[i] = rnn_load_as<WIDE>(c.dout + value, n);
            seen[i] = rnn_load_as<WIDE>((const float *)c.seen + value,
                                        PASS == RNN_AGAIN || c.delta ? n : 0);
        }
    }

    /* Puts them into shared memory; the barriers are the caller's. */
    __device__ void store(rnn_stage<M, TOKENS, PASS> &s, const rnn_call<T> &c) {
        int warp = (int)threadIdx.x / 32;
        float r[ROWS];

        inverse_lengths(r, c);
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            int row = warp * ROWS + i, t = row / KINDS;
            bool is_k = (row + 1) % KINDS == 0;
            if (row < KINDS * TOKENS)
                store_row(is_k ? s.k[t] : s.q[t], c, i, r[i], is_k ? 1.0f : c.q_scale);
        }
        if constexpr (PASS == RNN_BACK)
            store_products(s, c, r);
#pragma unroll
        for (int i = 0; i < VALUES; i++)
            store_values(s, i);
        if (threadIdx.x < 2 * TOKENS)
            s.rate[threadIdx.x / 2][threadIdx.x % 2] = rate;
    }

    /* Of all rows of a warp at once: the sums over lanes do not wait for each other. */
    __device__ void inverse_lengths(float (&r)[ROWS], const rnn_call<T> &c) {
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            r[i] = 0.0f;
#pragma unroll
            for (int h = 0; h < QUADS; h++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    r[i] = fmaf(rnn_at(qk[i][h], e), rnn_at(qk[i][h], e), r[i]);
        }
        if (!c.delta)
            return;
#pragma unroll
        for (int w = 16; w; w >>= 1)
#pragma unroll
            for (int i = 0; i < ROWS; i++)
                r[i] += __shfl_xor_sync(0xffffffffu, r[i], w);
#pragma unroll
        for (int i = 0; i < ROWS; i++)
            r[i] = 1.0f / sqrtf(r[i] + c.eps);
    }

    /* q.k of the warp's tokens, whose rows of q and k are neighbours. */
    __device__ void store_products(rnn_stage<M, TOKENS, PASS> &s, const rnn_call<T> &c,
                                   const float (&r)[ROWS]) {
#pragma unroll
        for (int i = 0; i < ROWS; i += 2) {
            int t = ((int)threadIdx.x / 32 * ROWS + i) / 2;
            float dot = 0.0f;
#pragma unroll
            for (int h = 0; h < QUADS; h++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    float q = rnn_at(qk[i][h], e), k = rnn_at(qk[i + 1][h], e);
                    dot = c.delta ? fmaf(q * r[i] * c.q_scale, k * r[i + 1], dot)
                                  : fmaf(q, k, dot);
                }
            dot = ml_warp_sum(dot);
            if (threadIdx.x % 32 == 0 && t < TOKENS)
                s.qk[t] = dot;
        }
    }

    __device__ void store_row(float *to, const rnn_call<T> &c, int i, float r,
                              float scale) {
        int lane = (int)threadIdx.x % 32;
#pragma unroll
        for (int h = 0; h < QUADS; h++) {
            float x[4];
#pragma unroll
            for (int e = 0; e < 4; e++) {
                x[e] = rnn_at(qk[i][h], e);
                x[e] = c.delta ? x[e] * r * scale : x[e];
            }
            if (128 * h + 4 * lane < 32 * M)
                ml_store(to + 128 * h + 4 * lane, x);
        }
    }

    __device__ void store_values(rnn_stage<M, TOKENS, PASS> &s, int i) {
        int at = i * RNN_THREADS + (int)threadIdx.x, t = at / FOURS, col = at % FOURS * 4;

        if (t >= TOKENS)
            return;
#pragma unroll
        for (int e = 0; e < 4; e++) {
            if constexpr (PASS == RNN_AGAIN)
                s.v[t][col + e] = rnn_at(de[i], e);
            else
                s.v[t][col + e] = rnn_at(v[i], e);
            if constexpr (PASS != RNN_FORWARD) {
                s.dout[t][col + e] = rnn_at(dout[i], e);
                s.seen[t][col + e] = rnn_at(seen[i], e);
            }
        }
    }
};

/* ---- a lane's part of the state ---- */

template <int M> struct rnn_state { float s[M][4][4]; }; /* [m][r][column] */

template <int M> __device__ static void rnn_zero(rnn_state<M> &s) {
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int r = 0; r < 4; r++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                s.s[m][r][j] = 0.0f;
}

/* A lane's elements of a row of q or k. */
template <int M> __device__ static void rnn_row(float (&o)[M][4], const float *row, int l) {
#pragma unroll
    for (int m = 0; m < M; m++)
        ml_load(o[m], row + 32 * m + 4 * l);
}

__device__ static inline void rnn_four(float (&o)[4], const float *row, int col) {
    ml_load(o, row + col);
}

/* out[j] += the sum of row[i] s[i][j] over a lane's elements, in order. */
template <int M>
__device__ static void rnn_dot(float (&out)[4], const float (&row)[M][4],
                               const rnn_state<M> &s) {
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int r = 0; r < 4; r++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                out[j] = fmaf(row[m][r], s.s[m][r][j], out[j]);
}

template <int M> __device__ static void rnn_scale(rnn_state<M> &s, float f) {
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int r = 0; r < 4; r++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                s.s[m][r][j] = f * s.s[m][r][j];
}

/* s[i][j] += row[i] u[j]. */
template <int M>
__device__ static void rnn_outer(rnn_state<M> &s, const float (&row)[M][4],
                                 const float (&u)[4]) {
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int r = 0; r < 4; r++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                s.s[m][r][j] = fmaf(row[m][r], u[j], s.s[m][r][j]);
}

/* Sums over the eight lanes of a column; all of them get it. */
__device__ static inline void rnn_sum_lanes(float (&x)[4]) {
#pragma unroll
    for (int w = 1; w < 8; w <<= 1)
#pragma unroll
        for (int j = 0; j < 4; j++)
            x[j] += __shfl_xor_sync(0xffffffffu, x[j], w);
}

/* The update of a token: e = v - keep seen (delta), u = take e. */
struct rnn_update {
    float e[4], u[4];
};

__device__ static inline rnn_update rnn_take(const float (&v)[4], const float (&seen)[4],
                                             float keep, float take, bool delta) {
    rnn_update r;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        r.e[j] = delta ? fmaf(-keep, seen[j], v[j]) : v[j];
        r.u[j] = take * r.e[j];
    }
    return r;
}

/* Calls LAUNCH with M for a key size of up to ML_RNN_MOST_KEY. */
#define RNN_SIZED(dk_, ...)                                                                \
    do {                                                                                   \
        if ((dk_) <= 32) {                                                                 \
            const int M = 1;                                                               \
            __VA_ARGS__;                                                                   \
        } else if ((dk_) <= 128) {                                                         \
            const int M = 4;                                                               \
            __VA_ARGS__;                                                                   \
        } else {                                                                           \
            const int M = 8;                                                               \
            __VA_ARGS__;                                                                   \
        }                                                                                  \
    } while (0)

template <class T> static rnn_call<T> rnn_open(const ml_op_args *a) {
    rnn_call<T> c = {};
    int64_t at;

    c.x = (const T *)a->in[0].data;
    c.rate = (const float *)a->in[1].data;
    c.pos = a->rows->pos;
    c.start = a->rows->seq_start;
    c.slot = a->rows->slot;
    c.n_seq = a->rows->n_seq;
    c.n = a->rows->n_token; /* context parallel: the tensors have rows without a token */
    c.width = a->in[0].shape[1];
    c.n_key = a->attr->linear_rnn.n_key;
    c.n_head = a->attr->linear_rnn.n_head;
    c.dk = a->attr->linear_rnn.key_dim;
    c.dv = a->attr->linear_rnn.value_dim;
    c.n_block = (int)ml_cuda_rnn_blocks(a);
    c.q_at = a->attr->linear_rnn.q_at;
    c.k_at = a->attr->linear_rnn.k_at;
    c.v_at = a->attr->linear_rnn.v_at;
    at = c.q_at | c.k_at | c.v_at | c.width | c.dk | c.dv;
    c.wide = at % 4 == 0;
    c.eps = a->attr->linear_rnn.norm_eps;
    c.q_scale = 1.0f / sqrtf((float)c.dk);
    c.delta = a->attr->linear_rnn.delta;
    if (a->w[0].data)
        c.skip = (const float *)a->w[0].data + a->attr->linear_rnn.first_head;
    return c;
}

/* The states of whole sequences, of which only `seen` is kept.  linear_rnn.cu */
template <class T> void rnn_walk(ml_cuda_stream *s, const rnn_call<T> &c);

#endif
