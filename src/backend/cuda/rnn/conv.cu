/* conv.cu - CONV: the short causal convolution of recurrent layers, with its SiLU.
 *
 * A thread has V channels of a piece of rows and moves a window of the last rows through
 * registers.  A row's sums have one order whatever the piece. */
#include "backend/cuda/glu.cuh"

enum { THREADS = 128 };

template <class T> struct conv_call {
    T *y, *dx;
    const T *x, *dy;
    const void *w;
    const float *bias; /* or NULL */
    float *tail;       /* [slot, taps-1, width], or NULL */
    float *part;       /* [pieces, taps+1, width] sums of dw and dbias, or NULL */
    const int32_t *pos, *start, *slot;
    int64_t n_row, width;
    int n_seq, taps;
    bool w_bf16, add;
    decltype(ml_op_attr::conv) runs;
};

/* The row of the weights that belongs to a channel. */
template <class T> __device__ static int64_t weight_row(const conv_call<T> &c, int64_t at) {
    int i = 0;

    if (!c.runs.n_run)
        return at;
    for (; at >= c.runs.run[i].n; i++)
        at -= c.runs.run[i].n;
    return c.runs.run[i].at + at;
}

/* Weights of V channels; tap j of fewer than TAPS is at TAPS - taps + j. */
template <int V, int TAPS> struct conv_weights { float w[TAPS][V], bias[V]; };

template <class T, int V, int TAPS>
__device__ static void load_weights(conv_weights<V, TAPS> &o, const conv_call<T> &c,
                                    int64_t channel) {
#pragma unroll
    for (int k = 0; k < V; k++) {
        int64_t row = weight_row(c, channel + k), at = row * c.taps - (TAPS - c.taps);
#pragma unroll
        for (int j = 0; j < TAPS; j++)
            o.w[j][k] = j < TAPS - c.taps ? 0.0f
                        : c.w_bf16        ? ml_f32(((const bf16 *)c.w)[at + j])
                                          : ((const float *)c.w)[at + j];
        o.bias[k] = c.bias ? c.bias[row] : 0.0f;
    }
}

/* The value before the activation: an FMA chain over ascending taps, then the bias. */
template <class T, int V, int TAPS>
__device__ static float conv_sum(const conv_weights<V, TAPS> &w, const conv_call<T> &c,
                                 const float (&x)[TAPS][V], int k) {
    float sum = 0.0f;
#pragma unroll
    for (int j = 0; j < TAPS; j++)
        if (j >= TAPS - c.taps)
            sum = fmaf(w.w[j][k], x[j][k], sum);
    return c.bias ? sum + w.bias[k] : sum;
}

template <int V, int TAPS> __device__ static void shift(float (&x)[TAPS][V]) {
#pragma unroll
    for (int j = 0; j + 1 < TAPS; j++)
#pragma unroll
        for (int k = 0; k < V; k++)
            x[j][k] = x[j + 1][k];
}

template <int V> __device__ static void set_zero(float (&x)[V]) {
#pragma unroll
    for (int k = 0; k < V; k++)
        x[k] = 0.0f;
}

/* ---- forward ---- */

/* The rows before row `row` of a sequence: from the batch, from its tail, or zeros. */
template <class T, int V, int TAPS>
__device__ static void load_window(float (&x)[TAPS][V], const conv_call<T> &c, ml_piece p,
                                   int row, int64_t channel, const float *tail) {
#pragma unroll
    for (int j = 0; j + 1 < TAPS; j++) {
        int from = row + j - (TAPS - 1); /* of the sequence's rows here */
        set_zero(x[j]);
        if (from >= 0)
            ml_load(x[j], c.x + (p.first_row + from) * c.width + channel);
        else if (tail && from + c.taps - 1 >= 0)
            ml_load(x[j], tail + (from + c.taps - 1) * c.width);
    }
}

/* The piece with a sequence's first rows, which alone reads the tail, also replaces it. */
template <class T, int V, int TAPS>
__device__ static void store_tail(const conv_call<T> &c, ml_piece p, int64_t channel,
                                  float *tail, bool first) {
    float x[TAPS][V];

    load_window(x, c, p, p.rows, channel, first ? (const float *)NULL : tail);
#pragma unroll
    for (int j = 0; j + 1 < TAPS; j++)
        if (j >= TAPS - c.taps)
            ml_store(tail + (j - (TAPS - c.taps)) * c.width, x[j]);
}

template <class T, int V, int TAPS> __global__ void conv_kernel(conv_call<T> c) {
    ml_piece p = ml_find_piece(c.start, c.n_seq, 1, ML_CONV_ROWS, (int)blockIdx.y);
    int64_t channel = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * V;
    int row = p.index * ML_CONV_ROWS, end = min(row + ML_CONV_ROWS, p.rows), pos;
    float x[TAPS][V], y[V], *tail;
    conv_weights<V, TAPS> w;

    if (p.index < 0 || channel >= c.width)
        return;
    pos = c.pos[p.first_row];
    if (pos < 0) { /* a padding row */
        set_zero(y);
        ml_store(c.y + p.first_row * c.width + channel, y);
        return;
    }
    tail = c.tail ? c.tail + (int64_t)c.slot[p.owner] * (c.taps - 1) * c.width + channel
                  : NULL;
    load_weights(w, c, channel);
    load_window(x, c, p, row, channel, pos ? tail : (const float *)NULL);
    if (tail && row == 0)
        store_tail<T, V, TAPS>(c, p, channel, tail, pos == 0);
    for (; row < end; row++) {
        ml_load(x[TAPS - 1], c.x + (p.first_row + row) * c.width + channel);
#pragma unroll
        for (int k = 0; k < V; k++)
            y[k] = ml_gate_of(conv_sum(w, c, x, k), 1.0f, ML_ACT_SILU, 0.0f).act;
        ml_store(c.y + (p.first_row + row) * c.width + channel, y);
        shift(x);
    }
}

/* ---- backward: whole sequences, in pieces of the batch's rows ---- */

/* Gradient of the value before the activation, at row t of the batch; the window then ends
 * with row t.  Rows t .. of the piece come in order. */
template <class T, int V, int TAPS>
__device__ static void slope_at(float (&d)[V], float (&x)[TAPS][V],
                                const conv_weights<V, TAPS> &w, const conv_call<T> &c,
                                int64_t t, int64_t channel) {
    int pos = c.pos[t];
    float dy[V];

#pragma unroll
    for (int j = 0; j + 1 < TAPS; j++)
        if (pos + j - (TAPS - 1) < 0) /* before the sequence */
            set_zero(x[j]);
    ml_load(x[TAPS - 1], c.x + t * c.width + channel);
    ml_load(dy, c.dy + t * c.width + channel);
#pragma unroll
    for (int k = 0; k < V; k++)
        d[k] = dy[k] * ml_gate_of(conv_sum(w, c, x, k), 1.0f, ML_ACT_SILU, 0.0f).slope;
}

template <class T, int V, int TAPS>
__device__ static void put_dx(const conv_call<T> &c, const conv_weights<V, TAPS> &w,
                              const float (&d)[TAPS][V], int64_t t, int64_t channel) {
    T *to = c.dx + t * c.width + channel;
    float sum[V], old[V];

    set_zero(sum);
    set_zero(old);
    if (c.add)
        ml_load(old, to);
#pragma unroll
    for (int k = 0; k < V; k++) {
#pragma unroll
        for (int i = 0; i < TAPS; i++)
            if (i < c.taps)
                sum[k] = fmaf(w.w[TAPS - 1 - i][k], d[i][k], sum[k]);
        sum[k] = c.add ? old[k] + sum[k] : sum[k];
    }
    ml_store(to, sum);
}

/* The gradients of rows t .., without those of other sequences. */
template <class T, int V, int TAPS>
__device__ static void only_mine(float (&o)[TAPS][V], const conv_call<T> &c,
                                 const float (&d)[TAPS][V], int64_t t) {
#pragma unroll
    for (int i = 0; i < TAPS; i++) {
        bool mine = t + i < c.n_row && c.pos[t + i] == c.pos[t] + i;
#pragma unroll
        for (int k = 0; k < V; k++)
            o[i][k] = mine ? d[i][k] : 0.0f;
    }
}

template <int V, int TAPS> struct conv_sums { float dw[TAPS][V], db[V]; };

template <int V, int TAPS>
__device__ static void add_weights(conv_sums<V, TAPS> &s, const float (&d)[V],
                                   const float (&x)[TAPS][V]) {
#pragma unroll
    for (int k = 0; k < V; k++) {
#pragma unroll
        for (int j = 0; j < TAPS; j++)
            s.dw[j][k] = fmaf(d[k], x[j][k], s.dw[j][k]);
        s.db[k] += d[k];
    }
}

template <class T, int V, int TAPS>
__device__ static void put_part(const conv_call<T> &c, const conv_sums<V, TAPS> &s,
                                int64_t channel) {
    float *to = c.part + (int64_t)blockIdx.y * (c.taps + 1) * c.width + channel;
#pragma unroll
    for (int j = 0; j < TAPS; j++)
        if (j >= TAPS - c.taps)
            ml_store(to + (j - (TAPS - c.taps)) * c.width, s.dw[j]);
    ml_store(to + c.taps * c.width, s.db);
}

template <class T, int V, int TAPS> __global__ void conv_back_kernel(conv_call<T> c) {
    int64_t channel = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * V;
    int64_t from = (int64_t)blockIdx.y * ML_CONV_ROWS;
    int64_t to = from + ML_CONV_ROWS < c.n_row ? from + ML_CONV_ROWS : c.n_row;
    float x[TAPS][V], d[TAPS][V] = {}, mine[TAPS][V];
    conv_sums<V, TAPS> sums = {};
    conv_weights<V, TAPS> w;

    if (channel >= c.width)
        return;
    load_weights(w, c, channel);
#pragma unroll
    for (int j = 0; j + 1 < TAPS; j++) {
        int64_t row = from + j - (TAPS - 1);
        set_zero(x[j]);
        if (row >= 0)
            ml_load(x[j], c.x + row * c.width + channel);
    }
    /* d[i] is of row t + i: complete for dx of row t once row t + TAPS - 1 is computed. */
    for (int64_t t = from - (TAPS - 1), next = from; t < to; t++, next++) {
        set_zero(d[TAPS - 1]);
        if (next < c.n_row)
            slope_at(d[TAPS - 1], x, w, c, next, channel);
        if (next < to)
            add_weights(sums, d[TAPS - 1], x);
        if (t >= from && c.dx) {
            only_mine(mine, c, d, t);
            put_dx(c, w, mine, t, channel);
        }
        shift(x);
        shift(d);
    }
    if (c.part)
        put_part(c, sums, channel);
}

/* dw [channel, taps] and dbias [channel] get their sums over the pieces, in order. */
template <class T>
__global__ void conv_weight_kernel(conv_call<T> c, float *dw, float *db, int n_piece) {
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, row;
    int j = (int)(i / c.width);
    float sum = 0.0f, *to;

    if (j > c.taps)
        return;
    row = weight_row(c, i % c.width);
    to = j < c.taps ? dw : db;
    if (!to)
        return;
    for (int p = 0; p < n_piece; p++)
        sum += c.part[(int64_t)p * (c.taps + 1) * c.width + i];
    to[j < c.taps ? row * c.taps + j : row] += sum;
}

/* ---- launches ---- */

template <class T> static conv_call<T> conv_open(const ml_op_args *a) {
    conv_call<T> c = {};

    c.x = (const T *)a->in[0].data;
    c.w = a->w[0].data;
    c.w_bf16 = a->w[0].dtype == ML_BF16;
    c.bias = (const float *)a->w[1].data;
    c.pos = a->rows->pos;
    c.start = a->rows->seq_start;
    c.slot = a->rows->slot;
    c.n_seq = a->rows->n_seq;
    c.n_row =
        a->rows->n_token; /* context parallel: the tensors have rows without a token */
    c.width = a->in[0].shape[1];
    c.taps = (int)a->w[0].shape[1];
    c.runs = a->attr->conv;
    return c;
}

template <class T, int V, int TAPS>
static void conv_launch(ml_cuda_stream *s, const conv_call<T> &c, bool back) {
    unsigned pieces = (unsigned)(ml_cuda_conv_pieces(c.n_row) + (back ? 0 : c.n_seq));
    dim3 grid(ml_cuda_blocks(c.width, THREADS * V), pieces);

    if (back)
        conv_back_kernel<T, V, TAPS><<<grid, THREADS, 0, s->stream>>>(c);
    else
        conv_kernel<T, V, TAPS><<<grid, THREADS, 0, s->stream>>>(c);
    ml_cuda_launched(s, back ? "conv backward" : "conv");
}

/* Four channels of a thread where the width allows it. */
template <class T>
static void conv_run(ml_cuda_stream *s, const conv_call<T> &c, bool back) {
    bool few = c.taps <= 4, wide = c.width % 4 == 0;

    if (few && wide)
        conv_launch<T, 4, 4>(s, c, back);
    else if (few)
        conv_launch<T, 1, 4>(s, c, back);
    else if (wide)
        conv_launch<T, 4, ML_CONV_MOST_TAPS>(s, c, back);
    else
        conv_launch<T, 1, ML_CONV_MOST_TAPS>(s, c, back);
}

template <class T> static void conv_forward(ml_cuda_stream *s, const ml_op_args *a) {
    conv_call<T> c = conv_open<T>(a);

    c.y = (T *)a->out[0].data;
    c.tail = c.taps > 1 ? (float *)a->out[1].data : NULL;
    if (c.n_row && c.width) /* a context-parallel rank may have no heads */
        conv_run<T>(s, c, false);
}

template <class T> static void conv_backward(ml_cuda_stream *s, const ml_op_args *a) {
    conv_call<T> c = conv_open<T>(a);
    float *dw = (float *)a->dw[0].data, *db = (float *)a->dw[1].data;

    c.dy = (const T *)a->dout[0].data;
    c.dx = (T *)a->din[0].data;
    c.add = a->din_add[0];
    c.part = dw || db ? (float *)a->scratch : NULL;
    if (!c.n_row || !c.width || (!c.dx && !c.part))
        return;
    conv_run<T>(s, c, true);
    if (c.part) {
        conv_weight_kernel<T>
            <<<ml_cuda_blocks((c.taps + 1) * c.width, THREADS), THREADS, 0, s->stream>>>(
                c, dw, db, (int)ml_cuda_conv_pieces(c.n_row));
        ml_cuda_launched(s, "conv backward");
    }
}

void ml_cuda_conv_forward(ml_stream *s, const ml_op_args *a) {
    ML_CUDA_TYPED(a->in[0].dtype, conv_forward<T>(ml_cuda(s), a));
}

void ml_cuda_conv_backward(ml_stream *s, const ml_op_args *a) {
    ML_CUDA_TYPED(a->in[0].dtype, conv_backward<T>(ml_cuda(s), a));
}
