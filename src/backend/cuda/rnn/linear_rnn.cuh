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

template <class T> struct rnn_call {
    const T *x;        /* [n, width] */
    const float *rate; /* [n, 2, n_head] */
    const float *skip; /* [n_head], or NULL */
    float *state;      /* or NULL: not kept */
    T *o;              /* NULL in backward */
    const int32_t *pos, *start, *slot;
    int64_t n, width, q_at, k_at, v_at;
    int n_seq, n_key, n_head, dk, dv, n_block;
    float eps, q_scale;
    bool delta, wide; /* wide: four numbers at a time */
    /* Backward. */
    const T *dout;
    T *dx;                    /* gradient of x, or NULL */
    float *drate;             /* or NULL */
    float *dskip;             /* or NULL */
    float *e, *du;            /* [n, n_head, dv] */
    float *mark, *dmark;      /* [n / ML_RNN_CHUNK, n_head, dv, key_pitch] */
    float *dq_part, *dk_part; /* [n, n_head, dk] */
    float *skip_part;         /* [chunks, n_head] */
    int64_t key_pitch;        /* dk rounded up to 4 */
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

/* Where the states between chunks `chunk` - 1 and `chunk` of a sequence are kept, whose first row is
 * `first`: a sequence of n rows has at most n / ML_RNN_CHUNK of them. */
__device__ static inline int64_t rnn_mark(int first, int chunk) {
    return first / ML_RNN_CHUNK + chunk - 1;
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

/* The same quads of a row of up to 128 QUADS numbers; 0 past its end. */
template <class T, int QUADS>
__device__ static void rnn_load_row(float (&o)[QUADS][4], const T *x, int dk, bool wide) {
    int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int h = 0; h < QUADS; h++) {
        rnn_raw<T> four = rnn_load4(x + 128 * h + 4 * lane, dk - 128 * h - 4 * lane, wide);
#pragma unroll
        for (int e = 0; e < 4; e++)
            o[h][e] = rnn_at(four, e);
    }
}

/* The rows that a recurrence adds to the state: v, or from the last token to the first the gradient
 * of o. */
template <class T> struct rnn_values {
    const T *row; /* of the batch's first token */
    int64_t stride;
};

/* In shared memory. */
template <int M, int TOKENS> struct alignas(16) rnn_stage {
    float q[TOKENS][32 * M], k[TOKENS][32 * M];
    float v[TOKENS][ML_RNN_COLS]; /* rnn_values */
    float rate[TOKENS][2];        /* keep, take */
};

/* The same in registers, shared by the threads of a block. */
template <class T, int M, int TOKENS> struct rnn_fetch {
    static const int ROWS = 2 * TOKENS / RNN_WARPS; /* of q and k, for a warp */
    static const int QUADS = (M + 3) / 4, FOURS = ML_RNN_COLS / 4;
    static const int VALUES = TOKENS * FOURS / RNN_THREADS;
    rnn_raw<T> qk[ROWS][QUADS], v[VALUES];
    float rate;

    /* Loads rows from .. from + TOKENS - 1 of the sequence. */
    __device__ void load(const rnn_call<T> &c, const rnn_place &p,
                         const rnn_values<T> &values, int from) {
        if (c.wide)
            load_as<true>(c, p, values, from);
        else
            load_as<false>(c, p, values, from);
    }

    template <bool WIDE>
    __device__ void load_as(const rnn_call<T> &c, const rnn_place &p,
                            const rnn_values<T> &values, int from) {
        int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;

        rate = 0.0f;
        if (threadIdx.x < 2 * TOKENS && from + (int)threadIdx.x / 2 < p.n_row)
            rate =
                c.rate[((int64_t)(p.first + from) * 2 + threadIdx.x) * c.n_head + p.head];
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            int row = warp * ROWS + i, t = from + row / 2;
            int n = t < p.n_row ? c.dk - 4 * lane : 0;
            const T *x = c.x + (p.first + t) * c.width + (int64_t)p.key * c.dk +
                         (row % 2 ? c.k_at : c.q_at) + 4 * lane;
#pragma unroll
            for (int h = 0; h < QUADS; h++)
                qk[i][h] = rnn_load_as<WIDE>(x + 128 * h, n - 128 * h);
        }
#pragma unroll
        for (int i = 0; i < VALUES; i++) {
            int at = i * RNN_THREADS + (int)threadIdx.x, t = at / FOURS;
            int col = at % FOURS * 4, n = from + t < p.n_row ? p.n_col - col : 0;
            v[i] =
                rnn_load_as<WIDE>(values.row + (p.first + from + t) * values.stride +
                                      (int64_t)p.head * c.dv + p.block * ML_RNN_COLS + col,
                                  n);
        }
    }

    /* Puts them into shared memory; the barriers are the caller's. */
    __device__ void store(rnn_stage<M, TOKENS> &s, const rnn_call<T> &c) {
        int warp = (int)threadIdx.x / 32;
        float r[ROWS];

        inverse_lengths(r, c);
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            int row = warp * ROWS + i, t = row / 2;
            store_row(row % 2 ? s.k[t] : s.q[t], c, i, r[i], row % 2 ? 1.0f : c.q_scale);
        }
#pragma unroll
        for (int i = 0; i < VALUES; i++) {
            int at = i * RNN_THREADS + (int)threadIdx.x;
#pragma unroll
            for (int e = 0; e < 4; e++)
                s.v[at / FOURS][at % FOURS * 4 + e] = rnn_at(v[i], e);
        }
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
    c.key_pitch = ml_cuda_rnn_key_pitch(a);
    if (a->w[0].data)
        c.skip = (const float *)a->w[0].data + a->attr->linear_rnn.first_head;
    return c;
}

/* Both recurrences of backward, which do not read each other: that of the states, and that of their
 * gradients from the last token to the first.  Of a token they keep e and du, and of the first token
 * of each chunk of a sequence but the first one both states before it.  linear_rnn.cu */
template <class T> void rnn_walk(ml_cuda_stream *s, const rnn_call<T> &c);

/* The gradients of the rates and of v, and the parts of dq and dk.  linear_rnn_chunk.cu */
template <class T> void rnn_chunks(ml_cuda_stream *s, const rnn_call<T> &c);

#endif
