/* lmhead.cu - LMHEAD: log-probabilities of given ids, a chunk of loss rows at a time.
 *
 * A chunk's rows are gathered, one GEMM computes its logits in f32, and blocks reduce
 * its rows.  If the caller wants all logits kept, the GEMM writes them to the caller's
 * memory, and backward reads them instead of recomputing them.  Backward turns a
 * chunk's logits into their gradients in the stored type; two GEMMs compute dx and dw
 * from those.
 *
 * Sampling supports come from the host, as a bit of each logit, and their log-probs and
 * statistics return there. */
#include "backend/cuda/gemm/gemm.cuh"
#include "backend/cuda/gemm/lmhead.cuh"

#include <stdlib.h>

extern "C" {
#include "backend/support.h"
}

enum { COPY_THREADS = 128, ROW_THREADS = 512 };

struct lmhead_call {
    const int32_t *row, *id; /* of the chunk's loss rows */
    float *z;                /* [rows, vocab] */
    float *logprob, *entropy, *stat;
    ml_row_stat *part; /* [rows, splits] */
    int splits;
    const float *dlogprob, *dentropy;
    int64_t vocab;
    float temperature, softcap;
    /* Of the rows' sampling supports; NULL: none. */
    uint32_t *bits; /* [rows, words] */
    int64_t words;
    float *over, *over_stat, *dover; /* [rows], [rows, 2], [rows] */
};

/* ---- scratch: gathered rows, logits, their gradients, gradients of the rows ---- */

static int64_t rows_from(const ml_op_args *a, int64_t first) {
    int64_t left = a->rows->n_loss - first, most = ml_cuda_loss_chunk(a);
    return left < most ? left : most;
}

typedef struct lmhead_scratch {
    void *x, *dx, *dz;
    float *z;
    ml_row_stat *part;
    uint32_t *bits;
    float *over;
} lmhead_scratch;

static lmhead_scratch scratch_of(const ml_op_args *a, bool backward) {
    ml_lmhead_scratch size = ml_cuda_lmhead_scratch(a, backward);
    unsigned char *p = (unsigned char *)a->scratch;
    lmhead_scratch r;

    r.x = p;
    r.dx = p + size.x;
    r.dz = p + (backward ? 2 : 1) * size.x;
    r.z = (float *)((unsigned char *)r.dz + size.dz);
    r.part = (ml_row_stat *)((unsigned char *)r.z + size.z);
    r.bits = (uint32_t *)((unsigned char *)r.part + size.stat);
    r.over = (float *)((unsigned char *)r.bits + size.bits);
    return r;
}

/* ---- rows ---- */

/* A thread has V numbers of a row. */
template <class T, int V>
__global__ void gather_kernel(T *to, const T *from, const int32_t *row, int64_t width) {
    int64_t i = ((int64_t)blockIdx.y * COPY_THREADS + threadIdx.x) * V;

    if (i < width)
        *(ml_pack<T, V> *)(to + blockIdx.x * width + i) =
            *(const ml_pack<T, V> *)(from + row[blockIdx.x] * width + i);
}

/* Adds: dx was zeroed, or accumulates.  Rows without a loss have no gradient. */
template <class T>
__global__ void scatter_kernel(T *to, const T *from, const int32_t *row, int64_t width) {
    for (int64_t i = threadIdx.x; i < width; i += COPY_THREADS) {
        T *at = to + row[blockIdx.x] * width + i;
        *at = ml_as<T>(ml_f32(*at) + ml_f32(from[blockIdx.x * width + i]));
    }
}

__global__ static void softcap_kernel(float *z, int64_t n, float cap) {
    int64_t i = (int64_t)blockIdx.x * 256 + threadIdx.x;
    if (i < n)
        z[i] = cap * ml_tanh(z[i] / cap);
}

__global__ static void __launch_bounds__(ML_SPLIT_THREADS, 4) splits_kernel(lmhead_call c) {
    __shared__ float scratch[ML_SPLIT_THREADS / 32];
    int64_t first = (int64_t)blockIdx.x * ML_SPLIT, left = c.vocab - first;
    ml_row_stat r =
        ml_split_stat(c.z + blockIdx.y * c.vocab + first, left < ML_SPLIT ? left : ML_SPLIT,
                      c.temperature, scratch);
    if (threadIdx.x == 0)
        c.part[blockIdx.y * c.splits + blockIdx.x] = r;
}

/* A thread per row. */
__global__ static void rows_kernel(lmhead_call c, int64_t n) {
    int64_t i = (int64_t)blockIdx.x * 32 + threadIdx.x;
    ml_row_stat r;
    int32_t id;

    if (i >= n)
        return;
    r = ml_row_merge(c.part + i * c.splits, c.splits);
    id = c.id[i];
    c.logprob[i] = id < 0 ? 0.0f : ml_row_logprob(r, c.z[i * c.vocab + id], c.temperature);
    c.entropy[i] = ml_row_entropy(r);
    c.stat[2 * i] = r.m;
    c.stat[2 * i + 1] = r.l;
}

__global__ static void __launch_bounds__(ML_SPLIT_THREADS)
    splits_over_kernel(lmhead_call c) {
    __shared__ float scratch[ML_SPLIT_THREADS / 32];
    int64_t first = (int64_t)blockIdx.x * ML_SPLIT, left = c.vocab - first;
    ml_row_stat r = ml_split_over(
        c.z + blockIdx.y * c.vocab + first, c.bits + blockIdx.y * c.words + first / 32,
        left < ML_SPLIT ? left : ML_SPLIT, c.temperature, scratch);
    if (threadIdx.x == 0)
        c.part[blockIdx.y * c.splits + blockIdx.x] = r;
}

__global__ static void rows_over_kernel(lmhead_call c, int64_t n) {
    int64_t i = (int64_t)blockIdx.x * 32 + threadIdx.x;
    ml_row_stat r;
    int32_t id;

    if (i >= n)
        return;
    r = ml_row_merge(c.part + i * c.splits, c.splits);
    id = c.id[i];
    c.over[i] = id < 0 ? 0.0f : ml_row_logprob(r, c.z[i * c.vocab + id], c.temperature);
    c.over_stat[2 * i] = r.m;
    c.over_stat[2 * i + 1] = r.l;
}

/* The gradient of a logit by the log-prob over the support of its row. */
struct over_grad {
    float m, inv_l, d;

    __device__ over_grad(const lmhead_call &c, int64_t row)
        : m(c.over_stat[2 * row]), inv_l(1.0f / c.over_stat[2 * row + 1]),
          d(c.id[row] < 0 ? 0.0f : c.dover[row]) {}

    __device__ float at(float z, float t, bool own) const {
        float p = ml_exp(ml_scaled(z, t) - m) * inv_l;
        return ml_scaled(fmaf(-p, d, own ? d : 0.0f), t);
    }
};

/* dz of a row, from its logits and the statistics of forward; V numbers per access. */
template <class T, int V, bool OVER>
__global__ void __launch_bounds__(ROW_THREADS) rows_back_kernel(lmhead_call c, T *dz) {
    const float *row = c.z + blockIdx.x * c.vocab;
    float m = c.stat[2 * blockIdx.x], l = c.stat[2 * blockIdx.x + 1], log_l = logf(l);
    float inv_l = 1.0f / l;
    int32_t id = c.id[blockIdx.x];
    float dlogprob = id < 0 ? 0.0f : c.dlogprob[blockIdx.x];
    float dentropy = c.dentropy ? c.dentropy[blockIdx.x] : 0.0f;
    float entropy = c.entropy[blockIdx.x];
    const uint32_t *bits = OVER ? c.bits + blockIdx.x * c.words : NULL;

    for (int64_t i = (int64_t)threadIdx.x * V; i < c.vocab; i += ROW_THREADS * V) {
        float z[V], ds[V];
        ml_load(z, row + i);
#pragma unroll
        for (int k = 0; k < V; k++) {
            float d = ml_scaled(z[k], c.temperature) - m, p = ml_exp(d) * inv_l;
            ds[k] = fmaf(-p, fmaf(dentropy, (d - log_l) + entropy, dlogprob),
                         i + k == id ? dlogprob : 0.0f);
            ds[k] = ml_scaled(ds[k], c.temperature);
            if constexpr (OVER)
                if (ml_in_support(bits, i + k))
                    ds[k] += over_grad(c, blockIdx.x).at(z[k], c.temperature, i + k == id);
            if (c.softcap != 0.0f) {
                float t = z[k] / c.softcap;
                ds[k] *= fmaf(-t, t, 1.0f);
            }
        }
        ml_store(dz + blockIdx.x * c.vocab + i, ds);
    }
}

/* ---- chunks ---- */

static lmhead_call chunk_at(const ml_op_args *a, const lmhead_scratch *scratch,
                            int64_t first) {
    float *kept = (float *)a->out[3].data;
    lmhead_call c = {};

    c.vocab = a->w[0].shape[0];
    c.row = a->rows->loss_row + first;
    c.id = a->rows->loss_id + first;
    c.z = kept ? kept + first * c.vocab : scratch->z;
    c.part = scratch->part;
    c.splits = ml_splits(c.vocab);
    c.logprob = a->out[0].data ? (float *)a->out[0].data + first : NULL;
    c.entropy = a->out[1].data ? (float *)a->out[1].data + first : NULL;
    c.stat = a->out[2].data ? (float *)a->out[2].data + 2 * first : NULL;
    c.temperature = a->rows->temperature;
    c.softcap = a->attr->logit_softcap;
    return c;
}

/* ---- sampling supports ---- */

/* The bits of n rows in host memory, or NULL. */
static uint32_t *support_bits(const ml_support_rows *from, int64_t first, int64_t n,
                              const lmhead_call *c) {
    uint32_t *bits = (uint32_t *)malloc((size_t)(n * c->words) * sizeof *bits);

    for (int64_t i = 0; bits && i < n; i++) {
        ml_support_reader r = ml_support_read(from->of[first + i]);
        ml_support_next(&r, bits + i * c->words, c->vocab);
    }
    return bits;
}

/* Copies the supports of a chunk to the device, for backward with statistics and
 * gradients. */
static void send_supports(ml_stream *s, const ml_op_args *a, const lmhead_scratch *scratch,
                          int64_t first, int64_t n, bool backward, lmhead_call *c) {
    const ml_support_rows *from = a->rows->support;
    uint32_t *bits;

    if (!from)
        return;
    c->words = ml_cuda_support_words(c->vocab);
    c->bits = scratch->bits;
    c->over = scratch->over;
    c->over_stat = c->over + n;
    c->dover = c->over_stat + 2 * n;
    bits = support_bits(from, first, n, c);
    if (!bits) {
        ml_cuda_note(ml_cuda(s), cudaErrorMemoryAllocation, "sampling supports");
        return;
    }
    ml_cuda_staged_copy(s, c->bits, bits, (size_t)(n * c->words) * sizeof *bits);
    free(bits);
    if (backward) {
        ml_cuda_staged_copy(s, c->over_stat, from->stat + 2 * first,
                            (size_t)(2 * n) * sizeof(float));
        ml_cuda_staged_copy(s, c->dover, from->dlogprob + first, (size_t)n * sizeof(float));
    }
}

/* Log-probs over the supports.  Copies to pageable memory return when they are done. */
static void over_supports(ml_stream *s, const ml_op_args *a, const lmhead_call &c,
                          int64_t first, int64_t n) {
    const ml_support_rows *to = a->rows->support;
    cudaStream_t stream = ml_cuda(s)->stream;

    if (!to)
        return;
    splits_over_kernel<<<dim3((unsigned)c.splits, (unsigned)n), ML_SPLIT_THREADS, 0,
                         stream>>>(c);
    rows_over_kernel<<<ml_cuda_blocks(n, 32), 32, 0, stream>>>(c, n);
    ml_cuda_launched(ml_cuda(s), "log-probabilities over supports");
    ml_cuda_note(ml_cuda(s),
                 cudaMemcpyAsync(to->logprob + first, c.over, (size_t)n * sizeof(float),
                                 cudaMemcpyDeviceToHost, stream),
                 "log-probabilities over supports");
    ml_cuda_note(ml_cuda(s),
                 cudaMemcpyAsync(to->stat + 2 * first, c.over_stat,
                                 (size_t)(2 * n) * sizeof(float), cudaMemcpyDeviceToHost,
                                 stream),
                 "log-probabilities over supports");
}

template <class T, int V>
static void gather_by(ml_cuda_stream *s, const ml_tensor *in, void *x, const lmhead_call *c,
                      int64_t n) {
    int64_t width = in->shape[1];

    gather_kernel<T, V>
        <<<dim3((unsigned)n, ml_cuda_blocks(width, COPY_THREADS * V)), COPY_THREADS, 0,
           s->stream>>>((T *)x, (const T *)in->data, c->row, width);
    ml_cuda_launched(s, "loss rows");
}

static void gather(ml_stream *s, const ml_op_args *a, void *x, const lmhead_call *c,
                   int64_t n) {
    const ml_tensor *in = &a->in[0];

    ML_CUDA_TYPED(in->dtype, {
        if (in->shape[1] % ml_wide<T>::n == 0)
            gather_by<T, ml_wide<T>::n>(ml_cuda(s), in, x, c, n);
        else
            gather_by<T, 1>(ml_cuda(s), in, x, c, n);
    });
}

static void logits(ml_stream *s, const ml_op_args *a, const void *x, const lmhead_call *c,
                   int64_t n) {
    const ml_tensor *w = &a->w[0];
    ml_gemm g = ml_gemm_shape(n, w->shape[0], w->shape[1], false, false);

    g.a = x;
    g.b = w->data;
    g.c = c->z;
    g.in = w->dtype;
    g.out = ML_F32;
    ml_gemm_rows(ml_cuda(s), &g);
    if (c->softcap != 0.0f)
        softcap_kernel<<<ml_cuda_blocks(n * c->vocab, 256), 256, 0, ml_cuda(s)->stream>>>(
            c->z, n * c->vocab, c->softcap);
    ml_cuda_launched(ml_cuda(s), "logits");
}

void ml_cuda_lmhead_forward(ml_stream *s, const ml_op_args *a) {
    lmhead_scratch scratch = scratch_of(a, false);

    for (int64_t first = 0, n; first < a->rows->n_loss; first += n) {
        n = rows_from(a, first);
        lmhead_call c = chunk_at(a, &scratch, first);
        send_supports(s, a, &scratch, first, n, false, &c);
        gather(s, a, scratch.x, &c, n);
        logits(s, a, scratch.x, &c, n);
        if (!c.logprob)
            continue;
        splits_kernel<<<dim3((unsigned)c.splits, (unsigned)n), ML_SPLIT_THREADS, 0,
                        ml_cuda(s)->stream>>>(c);
        rows_kernel<<<ml_cuda_blocks(n, 32), 32, 0, ml_cuda(s)->stream>>>(c, n);
        ml_cuda_launched(ml_cuda(s), "log-probabilities");
        over_supports(s, a, c, first, n);
    }
}

template <class T, bool OVER>
static void back_rows_of(ml_stream *s, const lmhead_call &c, T *dz, int64_t n) {
    cudaStream_t stream = ml_cuda(s)->stream;

    if (c.vocab % 4 == 0)
        rows_back_kernel<T, 4, OVER><<<(unsigned)n, ROW_THREADS, 0, stream>>>(c, dz);
    else
        rows_back_kernel<T, 1, OVER><<<(unsigned)n, ROW_THREADS, 0, stream>>>(c, dz);
}

template <class T>
static void back_logits(ml_stream *s, const lmhead_call &c, T *dz, int64_t n) {
    if (c.bits)
        back_rows_of<T, true>(s, c, dz, n);
    else
        back_rows_of<T, false>(s, c, dz, n);
    ml_cuda_launched(ml_cuda(s), "gradients of logits");
}

/* dx [n, width] = dz [n, vocab] w, scattered to the loss rows. */
static void back_rows(ml_stream *s, const ml_op_args *a, const lmhead_scratch *scratch,
                      const lmhead_call *c, int64_t n) {
    const ml_tensor *w = &a->w[0], *dx = &a->din[0];
    ml_gemm g = ml_gemm_shape(n, w->shape[1], w->shape[0], false, true);

    g.a = scratch->dz;
    g.b = w->data;
    g.c = scratch->dx;
    g.in = w->dtype;
    g.out = dx->dtype;
    ml_gemm_any(ml_cuda(s), &g);
    ML_CUDA_TYPED(dx->dtype,
                  scatter_kernel<T><<<(unsigned)n, COPY_THREADS, 0, ml_cuda(s)->stream>>>(
                      (T *)dx->data, (const T *)scratch->dx, c->row, g.n));
    ml_cuda_launched(ml_cuda(s), "gradients of loss rows");
}

/* dw [vocab, width] (+)= dz' x. */
static void back_weight(ml_stream *s, const ml_op_args *a, const lmhead_scratch *scratch,
                        int64_t n, bool add) {
    const ml_tensor *w = &a->w[0];
    ml_gemm g = ml_gemm_shape(w->shape[0], w->shape[1], n, true, true);

    g.a = scratch->dz;
    g.b = scratch->x;
    g.c = a->dw[0].data;
    g.in = w->dtype;
    g.out = ML_F32;
    g.add = add;
    ml_gemm_any(ml_cuda(s), &g);
}

void ml_cuda_lmhead_backward(ml_stream *s, const ml_op_args *a) {
    lmhead_scratch scratch = scratch_of(a, true);

    if (a->din[0].data && !a->din_add[0])
        ml_cuda_note(ml_cuda(s),
                     cudaMemsetAsync(a->din[0].data, 0, ml_tensor_bytes(&a->din[0]),
                                     ml_cuda(s)->stream),
                     "LM head backward");
    if (a->dw[0].data && a->dw_write[0] && a->rows->n_loss == 0)
        ml_cuda_zero_dw(ml_cuda(s), a, 0);
    for (int64_t first = 0, n; first < a->rows->n_loss; first += n) {
        n = rows_from(a, first);
        lmhead_call c = chunk_at(a, &scratch, first);
        c.dlogprob = (const float *)a->dout[0].data + first;
        c.dentropy = a->dout[1].data ? (const float *)a->dout[1].data + first : NULL;
        send_supports(s, a, &scratch, first, n, true, &c);
        gather(s, a, scratch.x, &c, n);
        if (!a->out[3].data)
            logits(s, a, scratch.x, &c, n);
        ML_CUDA_TYPED(a->in[0].dtype, back_logits<T>(s, c, (T *)scratch.dz, n));
        if (a->din[0].data)
            back_rows(s, a, &scratch, &c, n);
        if (a->dw[0].data)
            back_weight(s, a, &scratch, n, first > 0 || !a->dw_write[0]);
    }
}
