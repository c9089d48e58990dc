/* compress.cu - COMPRESS: pools each window of rows into one, at its last row.
 *
 * A thread has a column of a window and reads the window's rows in order, in f64 as on the
 * CPU: the largest gate, the sum of exponentials, the weighted sum. */
#include "backend/cuda/common.cuh"

enum { THREADS = 128 };

template <class T> struct compress_call {
    const T *kv, *gate, *dy;
    const void *bias; /* [ratio, width] */
    T *y, *dkv, *dgate;
    float *kept;         /* [slot, n_entry, 2 width], or NULL */
    float *slope, *part; /* [n, width], [chunks, ratio, width] */
    const int32_t *pos, *start, *slot;
    int64_t n, width, d;
    int n_seq, ratio, n_entry; /* n_entry: rows of a window, with those of the one before */
    bool bias_bf16, add_kv, add_gate;
};

/* A window: its entries end with row `row` of the batch. */
struct compress_window {
    int64_t row;
    int first, pos;    /* the sequence's first row in the batch, and that row's position */
    const float *kept; /* rows of the sequence before the batch, or NULL */
    int k;             /* column of the output */
};

/* The sequence of a row: the last that starts at or before it. */
template <class T>
__device__ static compress_window window_of(const compress_call<T> &c, int64_t row, int k) {
    int low = 0, high = c.n_seq - 1;
    compress_window w;

    while (low < high) {
        int mid = (low + high + 1) / 2;
        if (c.start[mid] <= row)
            low = mid;
        else
            high = mid - 1;
    }
    w.row = row;
    w.first = c.start[low];
    w.pos = c.pos[w.first];
    w.kept = c.kept ? c.kept + (int64_t)c.slot[low] * c.n_entry * 2 * c.width : NULL;
    w.k = k;
    return w;
}

/* Entry i of a window. */
struct compress_entry {
    double kv, gate; /* gate: with its bias */
    int64_t at;      /* its place in kv and gate; -1: from the slot */
    bool there;
};

/* The column of entry i that counts for the window's column. */
template <class T>
__device__ static int64_t column_of(const compress_call<T> &c, int i, int k) {
    return i < c.n_entry - c.ratio ? k : c.width - c.d + k;
}

template <class T>
__device__ static compress_entry entry_of(const compress_call<T> &c,
                                          const compress_window &w, int i) {
    int64_t row = w.row - c.n_entry + 1 + i, column = column_of(c, i, w.k);
    int64_t pos = w.pos + row - w.first, bias = i % c.ratio * c.width + column;
    compress_entry e = { 0.0, 0.0, -1, pos >= 0 };

    if (!e.there)
        return e;
    if (row >= w.first) {
        e.at = row * c.width + column;
        e.kv = (double)ml_f32(c.kv[e.at]);
        e.gate = (double)ml_f32(c.gate[e.at]);
    } else {
        const float *kept = w.kept + pos % c.n_entry * 2 * c.width + column;
        e.kv = (double)kept[0];
        e.gate = (double)kept[c.width];
    }
    e.gate += (double)(c.bias_bf16 ? ml_f32(((const bf16 *)c.bias)[bias])
                                   : ((const float *)c.bias)[bias]);
    return e;
}

struct compress_pool {
    double top, sum, y;
};

template <class T>
__device__ static compress_pool pool(const compress_call<T> &c, const compress_window &w) {
    compress_pool p = { 0.0, 0.0, 0.0 };
    bool any = false;

    for (int i = 0; i < c.n_entry; i++) {
        compress_entry e = entry_of(c, w, i);
        if (e.there && (!any || e.gate > p.top)) {
            p.top = e.gate;
            any = true;
        }
    }
    for (int i = 0; i < c.n_entry; i++) {
        compress_entry e = entry_of(c, w, i);
        p.sum += e.there ? exp(e.gate - p.top) : 0.0;
    }
    for (int i = 0; i < c.n_entry; i++) {
        compress_entry e = entry_of(c, w, i);
        if (e.there)
            p.y += exp(e.gate - p.top) / p.sum * e.kv;
    }
    return p;
}

template <class T>
__device__ static bool ends_window(const compress_call<T> &c, int64_t row) {
    return c.pos[row] >= 0 && (c.pos[row] + 1) % c.ratio == 0;
}

template <class T> __global__ void compress_kernel(compress_call<T> c) {
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, row = i / c.d;

    if (row >= c.n)
        return;
    c.y[i] = ml_as<T>(0.0f);
    if (ends_window(c, row))
        c.y[i] = ml_as<T>((float)pool(c, window_of(c, row, (int)(i % c.d))).y);
}

/* Keeps the rows that later windows need. */
template <class T> __global__ void keep_kernel(compress_call<T> c) {
    int seq = (int)blockIdx.y, row = (int)blockIdx.x, from = c.start[seq];
    int n = c.start[seq + 1] - from, first = n > c.n_entry ? n - c.n_entry : 0;
    float *to;
    int pos;

    if (first + row >= n)
        return;
    row += from + first;
    pos = c.pos[row];
    if (pos < 0)
        return;
    to = c.kept + ((int64_t)c.slot[seq] * c.n_entry + pos % c.n_entry) * 2 * c.width;
    for (int64_t k = threadIdx.x; k < c.width; k += THREADS) {
        to[k] = ml_f32(c.kv[row * c.width + k]);
        to[c.width + k] = ml_f32(c.gate[row * c.width + k]);
    }
}

/* ---- backward: whole sequences ---- */

template <class T> __device__ static void add_to(T *x, int64_t at, float d, bool add) {
    if (x)
        x[at] = ml_as<T>(add ? ml_f32(x[at]) + d : d);
}

/* With weights p and pooled y: dkv = p dy, dgate = p (kv - y) dy.  An element of kv or gate
 * counts for one window only, so that it has one writer; before, all are 0. */
template <class T> __global__ void compress_back_kernel(compress_call<T> c) {
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, row = i / c.d;
    compress_window w;
    compress_pool p;
    double dy;

    if (row >= c.n || !ends_window(c, row))
        return;
    w = window_of(c, row, (int)(i % c.d));
    p = pool(c, w);
    dy = (double)ml_f32(c.dy[i]);
    for (int k = 0; k < c.n_entry; k++) {
        compress_entry e = entry_of(c, w, k);
        double weight;
        if (!e.there)
            continue;
        weight = exp(e.gate - p.top) / p.sum;
        add_to(c.dkv, e.at, (float)(weight * dy), c.add_kv);
        add_to(c.dgate, e.at, (float)(weight * (e.kv - p.y) * dy), c.add_gate);
        c.slope[e.at] = (float)(weight * (e.kv - p.y) * dy);
    }
}

/* Parts of dw [ratio, width]: the sum over the rows of a chunk, by their place in a
 * window. */
template <class T> __global__ void bias_kernel(compress_call<T> c) {
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, column = i % c.width;
    int place = (int)(i / c.width);
    int64_t from = (int64_t)blockIdx.y * ML_COMPRESS_SUM_ROWS;
    int64_t to = from + ML_COMPRESS_SUM_ROWS < c.n ? from + ML_COMPRESS_SUM_ROWS : c.n;
    float sum = 0.0f;

    if (place >= c.ratio)
        return;
    for (int64_t row = from; row < to; row++)
        if (c.pos[row] % c.ratio == place)
            sum += c.slope[row * c.width + column];
    c.part[(int64_t)blockIdx.y * c.ratio * c.width + i] = sum;
}

/* ---- launches ---- */

template <class T> static compress_call<T> compress_open(const ml_op_args *a, int64_t d) {
    compress_call<T> c = {};

    c.kv = (const T *)a->in[0].data;
    c.gate = (const T *)a->in[1].data;
    c.bias = a->w[0].data;
    c.bias_bf16 = a->w[0].dtype == ML_BF16;
    c.pos = a->rows->pos;
    c.start = a->rows->seq_start;
    c.slot = a->rows->slot;
    c.n_seq = a->rows->n_seq;
    c.n = a->in[0].shape[0];
    c.width = a->in[0].shape[1];
    c.d = d;
    c.ratio = a->attr->compress_ratio;
    c.n_entry = c.ratio * (int)(c.width / c.d);
    return c;
}

template <class T> static void compress_forward(ml_cuda_stream *s, const ml_op_args *a) {
    compress_call<T> c = compress_open<T>(a, a->out[0].shape[1]);

    c.y = (T *)a->out[0].data;
    c.kept = (float *)a->out[1].data;
    if (!c.n)
        return;
    compress_kernel<T><<<ml_cuda_blocks(c.n * c.d, THREADS), THREADS, 0, s->stream>>>(c);
    if (c.kept)
        keep_kernel<T>
            <<<dim3((unsigned)c.n_entry, (unsigned)c.n_seq), THREADS, 0, s->stream>>>(c);
    ml_cuda_launched(s, "compress");
}

static void set_zero(ml_cuda_stream *s, const ml_tensor *t, bool add) {
    if (t->data && !add)
        ml_cuda_note(s, cudaMemsetAsync(t->data, 0, ml_tensor_bytes(t), s->stream),
                     "compress backward");
}

template <class T> static void compress_backward(ml_cuda_stream *s, const ml_op_args *a) {
    compress_call<T> c = compress_open<T>(a, a->dout[0].shape[1]);
    ml_compress_scratch at = ml_cuda_compress_scratch(a);
    unsigned chunks = ml_cuda_blocks(c.n, ML_COMPRESS_SUM_ROWS);
    int64_t n_bias = c.ratio * c.width;

    if (!c.n)
        return;
    c.dy = (const T *)a->dout[0].data;
    c.dkv = (T *)a->din[0].data;
    c.dgate = (T *)a->din[1].data;
    c.add_kv = a->din_add[0];
    c.add_gate = a->din_add[1];
    c.slope = (float *)a->scratch;
    c.part = (float *)((char *)a->scratch + at.part);
    set_zero(s, &a->din[0], c.add_kv);
    set_zero(s, &a->din[1], c.add_gate);
    ml_cuda_note(s, cudaMemsetAsync(c.slope, 0, at.part, s->stream), "compress backward");
    compress_back_kernel<T>
        <<<ml_cuda_blocks(c.n * c.d, THREADS), THREADS, 0, s->stream>>>(c);
    if (a->dw[0].data) {
        bias_kernel<T>
            <<<dim3(ml_cuda_blocks(n_bias, THREADS), chunks), THREADS, 0, s->stream>>>(c);
        ml_cuda_add_parts(s, (float *)a->dw[0].data, c.part, (int)chunks, n_bias);
    }
    ml_cuda_launched(s, "compress backward");
}

void ml_cuda_compress_forward(ml_stream *s, const ml_op_args *a) {
    ML_CUDA_TYPED(a->in[0].dtype, compress_forward<T>(ml_cuda(s), a));
}

void ml_cuda_compress_backward(ml_stream *s, const ml_op_args *a) {
    ML_CUDA_TYPED(a->in[0].dtype, compress_backward<T>(ml_cuda(s), a));
}
