/* copies.cu - ops that copy: SLICE, CONCAT, and around the collectives of a plan MERGE_COLS
 * (the columns of several ranks' rows in the order of the whole row), SPLIT_COLS (rows as
 * blocks of columns) and ORDER_ROWS (a permutation of rows). */
#include "backend/cuda/fuse.cuh"

enum { THREADS = 256, RUNS = 64 };

/* Copies V numbers, or adds them. */
template <class T, int V> __device__ static void put(T *to, const T *from, bool add) {
    float x[V], old[V];

    if (!add) {
        *(ml_pack<T, V> *)to = *(const ml_pack<T, V> *)from;
        return;
    }
    ml_load(x, from);
    ml_load(old, to);
#pragma unroll
    for (int k = 0; k < V; k++)
        x[k] += old[k];
    ml_store(to, x);
}

/* A gradient that was added up in f32. */
__device__ static void put_one(bf16 *to, const float *from, bool add) {
    *to = ml_as<bf16>(add ? ml_f32(*to) + *from : *from);
}

template <class T> __device__ static void put_one(T *to, const T *from, bool add) {
    put<T, 1>(to, from, add);
}

template <class T, int V> __device__ static void put_zeros(T *to) {
    float zero[V] = {};
    ml_store(to, zero);
}

/* ---- columns of wider rows ---- */

/* A thread has 16 bytes. */
__global__ static void put_columns_kernel(uint4 *to, const uint4 *from, unsigned count,
                                          unsigned width, unsigned ld) {
    unsigned i = blockIdx.x * THREADS + threadIdx.x;

    if (i < count)
        to[(int64_t)(i / width) * ld + i % width] = from[i];
}

void ml_cuda_put_columns(ml_cuda_stream *s, bf16 *to, int64_t ld, const ml_tensor *from) {
    const int64_t wide = ml_wide<bf16>::n, count = ml_tensor_count(from) / wide;

    put_columns_kernel<<<ml_cuda_blocks(count, THREADS), THREADS, 0, s->stream>>>(
        (uint4 *)to, (const uint4 *)from->data, (unsigned)count,
        (unsigned)(from->shape[1] / wide), (unsigned)(ld / wide));
    ml_cuda_launched(s, "a copy to columns");
}

/* ---- slice ---- */

template <class T> struct slice_call {
    T *to;
    const T *from;
    int64_t rows, width, cut; /* width of whole rows; of sliced ones */
    int64_t group;
    int n_group, n_part;
    struct {
        int64_t at, width;
    } part[ML_SLICE_PARTS];
    bool add;
};

/* The column of a whole row from which a column of the slice is taken. */
template <class T>
__device__ static int64_t whole_column(const slice_call<T> &c, int64_t col) {
    int p = 0;

    while (col >= c.n_group * c.part[p].width)
        col -= c.n_group * c.part[p++].width;
    return col / c.part[p].width * c.group + c.part[p].at + col % c.part[p].width;
}

/* The column of the slice that a column of a whole row becomes; -1: none. */
template <class T>
__device__ static int64_t sliced_column(const slice_call<T> &c, int64_t col) {
    int64_t group = col / c.group, in = col % c.group, base = 0;

    for (int p = 0; p < c.n_part && group < c.n_group; p++) {
        int64_t off = in - c.part[p].at;
        if (off >= 0 && off < c.part[p].width)
            return base + group * c.part[p].width + off;
        base += c.n_group * c.part[p].width;
    }
    return -1;
}

template <class T, int V> __global__ void slice_kernel(slice_call<T> c) {
    int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * V, row = i / c.cut;

    if (i < c.rows * c.cut)
        put<T, V>(c.to + i, c.from + row * c.width + whole_column(c, i % c.cut), false);
}

template <class T, int V> __global__ void slice_back_kernel(slice_call<T> c) {
    int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * V, at;

    if (i >= c.rows * c.width)
        return;
    at = sliced_column(c, i % c.width);
    if (at >= 0)
        put<T, V>(c.to + i, c.from + i / c.width * c.cut + at, c.add);
    else if (!c.add)
        put_zeros<T, V>(c.to + i);
}

/* Whether V columns next to each other stay so. */
template <class T> static bool slice_is_wide(const slice_call<T> &c, int64_t v) {
    bool wide = c.width % v == 0 && c.group % v == 0;

    for (int p = 0; p < c.n_part; p++)
        wide = wide && c.part[p].at % v == 0 && c.part[p].width % v == 0;
    return wide;
}

template <class T, int V>
static void slice_launch(ml_stream *s, const slice_call<T> &c, bool back) {
    int64_t n = c.rows * (back ? c.width : c.cut);
    unsigned blocks = ml_cuda_blocks(n, THREADS * V);

    if (n == 0)
        return;
    if (back)
        slice_back_kernel<T, V><<<blocks, THREADS, 0, ml_cuda(s)->stream>>>(c);
    else
        slice_kernel<T, V><<<blocks, THREADS, 0, ml_cuda(s)->stream>>>(c);
    ml_cuda_launched(ml_cuda(s), "slice");
}

template <class T>
static void slice(ml_stream *s, const ml_op_attr *attr, const ml_tensor *to,
                  const ml_tensor *from, bool back, bool add) {
    slice_call<T> c = {};

    c.to = (T *)to->data;
    c.from = (const T *)from->data;
    c.rows = to->shape[0];
    c.width = (back ? to : from)->shape[1];
    c.cut = (back ? from : to)->shape[1];
    c.group = attr->slice.group;
    c.n_group = attr->slice.n_group;
    c.n_part = attr->slice.n_part;
    for (int p = 0; p < c.n_part; p++)
        c.part[p] = { attr->slice.part[p].at, attr->slice.part[p].width };
    c.add = add;
    if (slice_is_wide(c, ml_wide<T>::n))
        slice_launch<T, ml_wide<T>::n>(s, c, back);
    else
        slice_launch<T, 1>(s, c, back);
}

void ml_cuda_slice_forward(ml_stream *s, const ml_op_args *a) {
    ML_CUDA_TYPED(a->out[0].dtype,
                  slice<T>(s, a->attr, &a->out[0], &a->in[0], false, false));
}

void ml_cuda_slice_backward(ml_stream *s, const ml_op_args *a) {
    if (a->din[0].data)
        ML_CUDA_TYPED(a->dout[0].dtype,
                      slice<T>(s, a->attr, &a->din[0], &a->dout[0], true, a->din_add[0]));
}

/* ---- concat ---- */

/* Pieces of n numbers, between memory with one every `to_step` and one every `from_step`. */
template <class T> struct piece_call {
    T *to;
    const T *from;
    int64_t pieces, n, to_step, from_step;
    bool add;
};

template <class T, int V> __global__ void piece_kernel(piece_call<T> c) {
    int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * V;

    if (i < c.pieces * c.n)
        put<T, V>(c.to + i / c.n * c.to_step + i % c.n,
                  c.from + i / c.n * c.from_step + i % c.n, c.add);
}

template <class T, int V> static void piece_launch(ml_stream *s, const piece_call<T> &c) {
    if (c.pieces * c.n == 0)
        return;
    piece_kernel<T, V>
        <<<ml_cuda_blocks(c.pieces * c.n, THREADS * V), THREADS, 0, ml_cuda(s)->stream>>>(
            c);
    ml_cuda_launched(ml_cuda(s), "concat");
}

template <class T> static void copy_pieces(ml_stream *s, const piece_call<T> &c) {
    const int V = ml_wide<T>::n;
    bool aligned = (uintptr_t)c.to % 16 == 0 && (uintptr_t)c.from % 16 == 0;

    if (aligned && c.n % V == 0 && c.to_step % V == 0 && c.from_step % V == 0)
        piece_launch<T, V>(s, c);
    else
        piece_launch<T, 1>(s, c);
}

/* Input k is columns at .. at + n - 1 of each head. */
template <class T> static void concat(ml_stream *s, const ml_op_args *a, bool back) {
    int64_t h = a->attr->n_head, all = (back ? a->dout : a->out)[0].shape[1] / h, at = 0;

    for (int k = 0; k < 2; k++) {
        int64_t n = a->in[k].shape[1] / h, pieces = a->in[k].shape[0] * h;
        piece_call<T> c = {};
        if (back)
            c = { (T *)a->din[k].data, (const T *)a->dout[0].data + at, pieces, n, n, all,
                  a->din_add[k] };
        else
            c = {
                (T *)a->out[0].data + at, (const T *)a->in[k].data, pieces, n, all, n, false
            };
        if (!back || a->din[k].data)
            copy_pieces(s, c);
        at += n;
    }
}

void ml_cuda_concat_forward(ml_stream *s, const ml_op_args *a) {
    ML_CUDA_TYPED(a->out[0].dtype, concat<T>(s, a, false));
}

void ml_cuda_concat_backward(ml_stream *s, const ml_op_args *a) {
    ML_CUDA_TYPED(a->dout[0].dtype, concat<T>(s, a, true));
}

/* ---- runs of columns ---- */

/* Run r of n columns: row t goes from from + t * from_step to to + t * to_step. */
struct run {
    int64_t to, from, n, to_step, from_step;
};

struct runs {
    run at[RUNS];
};

/* Rows from n_from on are zeros. */
template <class T, class F>
__global__ static void runs_kernel(T *to, const F *from, int64_t n_from, bool add, runs x) {
    const run r = x.at[blockIdx.y];
    const int64_t row = blockIdx.x;

    to += r.to + row * r.to_step;
    from += r.from + row * r.from_step;
    for (int64_t i = threadIdx.x; i < r.n; i += THREADS)
        if (row < n_from)
            put_one(to + i, from + i, add);
        else if (!add)
            to[i] = ml_as<T>(0.0f);
}

/* Copies n_row rows of all runs; next fills run i. */
template <class T, class F, class NEXT>
static void copy_runs(ml_stream *s, const ml_tensor *to, const ml_tensor *from,
                      int64_t n_row, int64_t n_from, int32_t n_run, bool add, NEXT next) {
    for (int32_t first = 0; n_row && first < n_run; first += RUNS) {
        int32_t n = n_run - first < RUNS ? n_run - first : RUNS;
        runs x = {};
        for (int32_t i = 0; i < n; i++)
            x.at[i] = next(first + i);
        runs_kernel<<<dim3((unsigned)n_row, (unsigned)n), THREADS, 0, ml_cuda(s)->stream>>>(
            (T *)to->data, (const F *)from->data, n_from, add, x);
        ml_cuda_launched(ml_cuda(s), "columns");
    }
}

template <class T> static void merge(ml_stream *s, const ml_op_args *a) {
    const ml_tensor *to = &a->out[0], *from = &a->in[0];
    int64_t n = to->shape[0], to_width = to->shape[1], from_width = from->shape[1];

    copy_runs<T, T>(s, to, from, n, n, a->attr->merge.n_run, false, [=](int32_t i) -> run {
        const ml_col_run *r = &a->attr->merge.run[i];
        return { r->to, r->rank * n * from_width + r->from, r->n, to_width, from_width };
    });
}

void ml_cuda_merge_cols_forward(ml_stream *s, const ml_op_args *a) {
    ML_CUDA_TYPED(a->out[0].dtype, merge<T>(s, a));
}

/* The offset of a block, [m, width] each. */
static int64_t block_at(const ml_op_attr *attr, int32_t block, int64_t m) {
    int64_t at = 0;

    for (int32_t i = 0; i < block; i++)
        at += attr->split.width[i] * m;
    return at;
}

/* From rows [n, C] to blocks of m rows, or back (join). */
template <class T, class F>
static void split(ml_stream *s, const ml_op_attr *attr, const ml_tensor *to,
                  const ml_tensor *from, bool join, bool add) {
    const ml_tensor *rows = join ? to : from, *blocks = join ? from : to;
    int64_t n = rows->shape[0], m = blocks->shape[0], width = rows->shape[1];

    copy_runs<T, F>(s, to, from, join ? n : m, n, attr->split.n_run, add,
                    [=](int32_t i) -> run {
                        const ml_col_run *r = &attr->split.run[i];
                        int64_t step = attr->split.width[r->rank];
                        int64_t at = block_at(attr, r->rank, m) + r->to;
                        if (join)
                            return { r->from, at, r->n, width, step };
                        return { at, r->from, r->n, step, width };
                    });
}

void ml_cuda_split_cols_forward(ml_stream *s, const ml_op_args *a) {
    ML_CUDA_TYPED(a->out[0].dtype, split<T, T>(s, a->attr, &a->out[0], &a->in[0],
                                               a->attr->split.back, false));
}

void ml_cuda_split_cols_backward(ml_stream *s, const ml_op_args *a) {
    const ml_tensor *to = &a->din[0], *from = &a->dout[0];
    bool join = !a->attr->split.back;

    if (!to->data)
        return;
    if (to->dtype == ML_BF16 && from->dtype == ML_F32)
        split<bf16, float>(s, a->attr, to, from, join, a->din_add[0]);
    else
        ML_CUDA_TYPED(to->dtype, split<T, T>(s, a->attr, to, from, join, a->din_add[0]));
}

/* ---- order-rows ---- */

template <class T>
__global__ static void order_kernel(T *to, const T *from, const int32_t *order,
                                    int64_t width, bool back, bool add) {
    int64_t i = blockIdx.x, other = order[i];

    to += (back ? other : i) * width;
    from += (back ? i : other) * width;
    for (int64_t k = threadIdx.x; k < width; k += THREADS)
        put<T, 1>(to + k, from + k, add);
}

static void order(ml_stream *s, const ml_op_args *a, const ml_tensor *to,
                  const ml_tensor *from, bool back, bool add) {
    if (to->shape[0] == 0)
        return;
    ML_CUDA_TYPED(to->dtype, order_kernel<T>
                  <<<(unsigned)to->shape[0], THREADS, 0, ml_cuda(s)->stream>>>(
                      (T *)to->data, (const T *)from->data, a->rows->context->order,
                      to->shape[1], back, add));
    ml_cuda_launched(ml_cuda(s), "order-rows");
}

void ml_cuda_order_rows_forward(ml_stream *s, const ml_op_args *a) {
    order(s, a, &a->out[0], &a->in[0], a->attr->split.back, false);
}

void ml_cuda_order_rows_backward(ml_stream *s, const ml_op_args *a) {
    if (a->din[0].data)
        order(s, a, &a->din[0], &a->dout[0], !a->attr->split.back, a->din_add[0]);
}

/* ---- gradients of weights ---- */

void ml_cuda_zero_dw(ml_cuda_stream *s, const ml_op_args *a, int k) {
    ml_cuda_note(s,
                 cudaMemsetAsync(a->dw[k].data, 0, ml_tensor_bytes(&a->dw[k]), s->stream),
                 "zeroing a gradient");
}
