/* merge.cu - MERGE_COLS: the columns of several ranks' rows, in the order of the whole row. */
#include "backend/cuda/common.cuh"

enum { THREADS = 256, RUNS = 64 };

struct runs {
    ml_col_run run[RUNS];
};

template <class T>
__global__ static void merge_kernel(T *to, const T *from, int64_t to_width,
                                    int64_t from_width, runs x) {
    const ml_col_run r = x.run[blockIdx.y];
    const int64_t row = blockIdx.x, n_row = gridDim.x;

    to += row * to_width + r.to;
    from += (r.rank * n_row + row) * from_width + r.from;
    for (int64_t i = threadIdx.x; i < r.n; i += THREADS)
        to[i] = from[i];
}

template <class T> static void merge(ml_cuda_stream *s, const ml_op_args *a) {
    const int64_t to_width = a->out[0].shape[1], from_width = a->in[0].shape[1];

    for (int32_t first = 0; first < a->attr->merge.n_run; first += RUNS) {
        int32_t n =
            a->attr->merge.n_run - first < RUNS ? a->attr->merge.n_run - first : RUNS;
        runs x = {};
        for (int32_t i = 0; i < n; i++)
            x.run[i] = a->attr->merge.run[first + i];
        merge_kernel<<<dim3((unsigned)a->out[0].shape[0], (unsigned)n), THREADS, 0,
                       s->stream>>>((T *)a->out[0].data, (const T *)a->in[0].data, to_width,
                                    from_width, x);
        ml_cuda_launched(s, "MERGE_COLS");
    }
}

void ml_cuda_merge_cols_forward(ml_stream *stream, const ml_op_args *a) {
    ml_cuda_stream *s = ml_cuda(stream);

    if (a->out[0].shape[0] == 0)
        return;
    if (a->out[0].dtype == ML_F32)
        merge<float>(s, a);
    else
        merge<bf16>(s, a);
}
