/* cuda.cu - the CUDA backend: memory, stream, op table, CUDA graphs. */
#include "backend/cuda/attn/attn.cuh"
#include "backend/cuda/fuse.cuh"
#include "backend/cuda/gemm/gemm.cuh"
#include "backend/cuda/gemm/gemm_fp8.cuh"
#include "backend/cuda/gemm/gemm_fp8_back.cuh"
#include "backend/cuda/gemm/lmhead.cuh"
#include "backend/cuda/moe/moe.cuh"
#include "backend/cuda/gemm/linear_f32_out.cuh"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    LEAST_MAJOR = 8, /* sm_80: bf16 tensor cores and cp.async */
    EARLY_MAJOR = 9, /* sm_90: PDL and bulk copies */
    WGMMA_MAJOR = 9  /* Hopper alone */
};

/* Memory that is allocated later: kernels' code and stacks, which the driver loads at
 * their first launch, and CUDA graphs.  Measured. */
static const size_t LATER = (size_t)32 << 20;

typedef struct cuda {
    ml_device dev;
    ml_cuda_stream stream;
    size_t peak;
} cuda;

/* ---- memory ---- */

/* Of all backends of the process, whose threads allocate. */
static size_t held_bytes, held_most;

/* The driver allocates large buffers in whole pages of the GPU. */
static size_t page_bytes(size_t bytes) {
    const size_t page = (size_t)2 << 20;
    return bytes < page / 2 ? bytes : (bytes + page - 1) / page * page;
}

static void hold(size_t bytes) {
    size_t now = __atomic_add_fetch(&held_bytes, bytes, __ATOMIC_RELAXED);
    size_t most = __atomic_load_n(&held_most, __ATOMIC_RELAXED);

    while (now > most && !__atomic_compare_exchange_n(&held_most, &most, now, true,
                                                      __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        continue;
}

static size_t held(void) {
    return __atomic_load_n(&held_bytes, __ATOMIC_RELAXED);
}

static size_t held_peak(void) {
    return __atomic_load_n(&held_most, __ATOMIC_RELAXED);
}

static size_t used(const ml_device *d) {
    size_t left = 0, all = 0;

    (void)d;
    return cudaMemGetInfo(&left, &all) == cudaSuccess ? all - left : 0;
}

static size_t peak(const ml_device *d) {
    size_t now = used(d), before = ((const cuda *)d)->peak;
    return now > before ? now : before;
}

static void *host_alloc(size_t bytes) {
    void *p = NULL;

    if (cudaMallocHost(&p, bytes) == cudaSuccess)
        return p;
    cudaGetLastError();
    return NULL;
}

static void host_free(void *p) {
    cudaFreeHost(p);
}

static ml_status device_alloc(ml_device *d, ml_buf *out, size_t bytes, ml_mem_kind kind,
                              ml_err *err) {
    cuda *c = (cuda *)d; /* the device is its first member */
    const ml_cuda_host *host = &c->stream.host;
    void *p = NULL;

    if (host->sealed())
        abort(); /* a bug: a step allocates */
    if (cudaMalloc(&p, bytes ? bytes : 1) != cudaSuccess) {
        cudaGetLastError();
        return ml_fail(err, ML_ENOMEM,
                       "out of GPU memory: cannot allocate %zu bytes (%.1f GiB) for %s; "
                       "use a smaller model, batch or context, or a GPU with more memory",
                       bytes, (double)bytes / 0x1p30, host->mem_name(kind));
    }
    ml_cuda_note(&c->stream, cudaMemsetAsync(p, 0, bytes, c->stream.stream), "zeros");
    ml_cuda_note(&c->stream, cudaStreamSynchronize(c->stream.stream), "zeros");
    c->peak = peak(d);
    hold(page_bytes(bytes));
    memset(out, 0, sizeof *out);
    out->dev = d;
    out->ptr = p;
    out->bytes = bytes;
    out->kind = kind;
    return ML_OK;
}

static void device_free(ml_buf *b) {
    if (b->ptr && cudaFree(b->ptr) == cudaSuccess)
        __atomic_sub_fetch(&held_bytes, page_bytes(b->bytes), __ATOMIC_RELAXED);
    memset(b, 0, sizeof *b);
}

static void copy_out(ml_stream *s, void *host, const void *src, size_t bytes) {
    ml_cuda_note(ml_cuda(s),
                 cudaMemcpyAsync(host, src, bytes, cudaMemcpyDefault, ml_cuda(s)->stream),
                 "a copy from the GPU");
    ml_cuda_note(ml_cuda(s), cudaStreamSynchronize(ml_cuda(s)->stream),
                 "a copy from the GPU");
}

static void copy_within(ml_stream *s, void *dst, const void *src, size_t bytes) {
    ml_cuda_note(
        ml_cuda(s),
        cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToDevice, ml_cuda(s)->stream),
        "a copy within the GPU");
}

static ml_status sync_stream(ml_stream *s, ml_err *err) {
    ml_cuda_stream *c = ml_cuda(s);
    cudaError_t e;

    ml_cuda_note(c, cudaStreamSynchronize(c->stream), "the GPU's work");
    e = c->error;
    c->error = cudaSuccess;
    if (e == cudaSuccess)
        return ML_OK;
    return ml_fail(err, ML_EIO, "the GPU failed in %s: %s", c->doing,
                   cudaGetErrorString(e));
}

static void *native(ml_stream *s) {
    return ml_cuda(s)->stream;
}

static size_t available(const ml_device *d) {
    size_t left = 0, all = 0;

    (void)d;
    return cudaMemGetInfo(&left, &all) == cudaSuccess ? left : 0;
}

/* ---- ops ---- */

static ml_status refuse(ml_err *err, const char *what, long long n) {
    return ml_fail(err, ML_EUNSUP,
                   "the CUDA backend has no kernel for %s %lld; use --device cpu", what, n);
}

/* Autotunes the GEMMs of a model's layers when its plan is made, for up to the plan's rows;
 * consecutive LINEARs also as one GEMM. */
static ml_status try_linear(ml_cuda_stream *s, const ml_op_args *a, ml_err *err) {
    int64_t rows = a->in[0].shape[0], n = a->w[0].shape[0], k = a->w[0].shape[1];
    ml_dtype in = a->in[0].dtype, out = a->out[0].dtype;
    ml_status st = ml_gemm_try(s, rows, n, k, in, out, err);

    if (s->joint.k != k || s->joint.calls == ML_JOINT_CALLS)
        s->joint.n = s->joint.calls = 0;
    s->joint.calls++;
    s->joint.n += n;
    s->joint.k = k;
    if (st == ML_OK && s->joint.n > n)
        st = ml_gemm_try(s, rows < ML_JOINT_ROWS ? rows : ML_JOINT_ROWS, s->joint.n, k, in,
                         out, err);
    return st;
}

static ml_status op_prepare(ml_stream *s, ml_op_id op, const ml_op_args *a, bool backward,
                            ml_err *err) {
    const ml_op_attr *attr = a->attr;
    const int64_t *w = a->w[0].shape;

    if ((op == ML_OP_ATTN || op == ML_OP_ATTN_CHOSEN) &&
        (attr->attn.head_dim > ML_ATTN_MOST || attr->attn.value_dim > ML_ATTN_MOST))
        return refuse(err, "a head size of", attr->attn.head_dim);
    if (op == ML_OP_ATTN && a->out[2].dtype != a->in[1].dtype &&
        !ml_dtype_is_kv_codes(a->out[2].dtype))
        return refuse(err, "keys in another type than activations, of size",
                      attr->attn.head_dim);
    if (ml_dtype_codes(a->w[0].dtype) && a->in[0].dtype != ML_BF16)
        return ml_fail(err, ML_EUNSUP,
                       "the CUDA backend has no products of %s weights and %s inputs; use "
                       "--device cpu",
                       ml_dtype_name(a->w[0].dtype), ml_dtype_name(a->in[0].dtype));
    if (op == ML_OP_INDEX && !ml_index_fits(attr, a->in[0].dtype))
        return refuse(err, "a selection of keys:", attr->index.top_k);
    if (op == ML_OP_MOE_ROUTE && attr->moe.n_expert > ML_MOE_EXPERTS)
        return refuse(err, "experts:", attr->moe.n_expert);
    if (op == ML_OP_MOE_ROUTE && attr->moe.top_k > ML_MOE_TOP)
        return refuse(err, "experts of a token:", attr->moe.top_k);
    if (op == ML_OP_MOE_ROUTE && attr->moe.n_group > ML_MOE_GROUPS)
        return refuse(err, "groups of experts:", attr->moe.n_group);
    if (op == ML_OP_RMSNORM &&
        attr->norm.width > (attr->norm.width % 8 ? ML_NORM_WIDE : ML_NORM_WIDEST))
        return refuse(err, "a norm over", attr->norm.width);
    if (op == ML_OP_LMHEAD && w[0] > (int64_t)ML_SPLITS * ML_SPLIT)
        return refuse(err, "a vocabulary of", (long long)w[0]);
    if (op == ML_OP_CONV && w[1] > ML_CONV_MOST_TAPS)
        return refuse(err, "a convolution over", (long long)w[1]);
    if (op == ML_OP_LINEAR_RNN && attr->linear_rnn.key_dim > ML_RNN_MOST_KEY)
        return refuse(err, "recurrent heads with keys of", attr->linear_rnn.key_dim);
    if (backward)
        return ML_OK;
    if (op == ML_OP_LINEAR && ml_fp8_takes(ml_cuda(s), a->w[0].dtype))
        return ml_gemm_fp8_try(ml_cuda(s), a->in[0].shape[0], w[0], w[1], err);
    if (op == ML_OP_LINEAR && !ml_cuda_linear_is_f32_out(a))
        return try_linear(ml_cuda(s), a, err);
    ml_cuda(s)->joint.n = ml_cuda(s)->joint.calls = 0;
    if (op == ML_OP_LMHEAD)
        return ml_gemm_try(ml_cuda(s), a->rows->n_loss, w[0], w[1], a->in[0].dtype, ML_F32,
                           err);
    return ML_OK;
}

static ml_ops table(void) {
    ml_ops o = {};

#define FILL(id, name)                                                                     \
    o.forward[ML_OP_##id] = ml_cuda_##name##_forward;                                      \
    o.backward[ML_OP_##id] = ml_cuda_##name##_backward;
    ML_CUDA_OP_LIST(FILL)
#undef FILL
    o.forward[ML_OP_MERGE_COLS] = ml_cuda_merge_cols_forward;
    o.writes_dw[ML_OP_LINEAR] = 1 | 2;
    o.writes_dw[ML_OP_MOE_LINEAR] = o.writes_dw[ML_OP_HEAD_LINEAR] =
        o.writes_dw[ML_OP_LMHEAD] = 1;
    o.scratch = ml_cuda_op_scratch;
    o.prepare = op_prepare;
    o.together = ml_cuda_together;
    o.together_back = ml_cuda_together_back;
    o.sample_scratch = ml_cuda_sample_scratch;
    o.sample = ml_cuda_sample;
    o.sampled = ml_cuda_sampled;
    return o;
}

static const ml_ops cuda_ops = table();

/* ---- replay: CUDA graphs ---- */

static bool begin_recording(ml_stream *s) {
    bool ok = cudaStreamBeginCapture(ml_cuda(s)->stream,
                                     cudaStreamCaptureModeThreadLocal) == cudaSuccess;
    if (!ok)
        cudaGetLastError();
    return ok;
}

static void *end_recording(ml_stream *s) {
    cudaGraph_t graph = NULL;
    cudaGraphExec_t work = NULL;

    if (cudaStreamEndCapture(ml_cuda(s)->stream, &graph) != cudaSuccess ||
        cudaGraphInstantiate(&work, graph, 0) != cudaSuccess) {
        cudaGetLastError();
        work = NULL;
    }
    if (graph)
        cudaGraphDestroy(graph);
    return work;
}

static void run_recording(ml_stream *s, void *work) {
    ml_cuda_note(ml_cuda(s), cudaGraphLaunch((cudaGraphExec_t)work, ml_cuda(s)->stream),
                 "a CUDA graph");
}

static void free_recording(void *work) {
    cudaGraphExecDestroy((cudaGraphExec_t)work);
}

static const ml_replay cuda_replay = { begin_recording, end_recording, run_recording,
                                       free_recording };

/* ---- open and close ---- */

static void cuda_close(ml_backend *b) {
    cuda *c = (cuda *)b->priv;

    ml_gemm_fp8_back_close(&c->stream);
    ml_gemm_fp8_close(&c->stream);
    ml_gemm_close(&c->stream);
    ml_cuda_sample_close(&c->stream);
    ml_cuda_staging_close(&c->stream);
    ml_cuda_marks_close(&c->stream);
    if (c->stream.stream)
        cudaStreamDestroy(c->stream.stream);
    if (c->stream.host.cpu.close)
        c->stream.host.cpu.close(&c->stream.host.cpu);
    free(c);
}

static ml_status check_card(cudaDeviceProp *p, ml_err *err) {
    int n = 0;
    cudaError_t e = cudaGetDeviceCount(&n);

    if (e != cudaSuccess || n == 0)
        return ml_fail(err, ML_EUNSUP, "no GPU for --device cuda: %s",
                       e == cudaSuccess ? "none was found" : cudaGetErrorString(e));
    e = cudaGetDeviceProperties(p, 0);
    if (e != cudaSuccess)
        return ml_fail(err, ML_EUNSUP, "cannot read the GPU's properties: %s",
                       cudaGetErrorString(e));
    if (p->major < LEAST_MAJOR)
        return ml_fail(
            err, ML_EUNSUP,
            "the GPU %s has compute capability %d.%d; --device cuda needs 8.0 or "
            "later",
            p->name, p->major, p->minor);
    return ML_OK;
}

/* Does this object have code for the GPU?  Checked before any kernel is launched. */
static ml_status check_code(const cudaDeviceProp *p, ml_err *err) {
    cudaFuncAttributes attributes;
    cudaError_t e = ml_gemm_probe(&attributes);

    if (e == cudaSuccess)
        return ML_OK;
    cudaGetLastError();
    return ml_fail(
        err, ML_EUNSUP,
        "libmiles_cuda.so was not built for the GPU %s (compute capability %d.%d): %s; "
        "build it with make CUDA_ARCH=%d%d%s",
        p->name, p->major, p->minor, cudaGetErrorString(e), p->major, p->minor,
        p->major == WGMMA_MAJOR ? "a" : "");
}

static void fill_device(ml_device *d) {
    d->name = "cuda";
    d->alloc = device_alloc;
    d->free = device_free;
    d->copy_in = ml_cuda_staged_copy;
    d->copy_out = copy_out;
    d->copy = copy_within;
    d->sync = sync_stream;
    d->available = available;
    d->used = used;
    d->peak = peak;
    d->held = held;
    d->held_peak = held_peak;
    d->host_alloc = host_alloc;
    d->host_free = host_free;
    d->native = native;
    d->peer = &ml_cuda_peer_memory;
    d->later = LATER;
}

static void fill_backend(ml_backend *b, cuda *c, bool f32) {
    memset(b, 0, sizeof *b);
    b->name = "cuda";
    b->level = c->stream.level;
    b->path = c->stream.wgmma   ? "Hopper's kernels (wgmma)"
              : c->stream.early ? "portable kernels (mma) with dependent launch"
                                : "portable kernels (mma)";
    b->act = f32 ? ML_F32 : ML_BF16;
    b->linear = ML_ROWS;
    b->dev = &c->dev;
    b->stream = &c->stream.base;
    b->ops = &cuda_ops;
    b->optim = &ml_cuda_optim;
    b->replay = &cuda_replay;
    b->marks = &ml_cuda_marks;
    b->async = true;
    b->bf16_adapters = !f32;
    b->fp8_grads = !f32 && c->stream.wgmma;
    b->n_thread = c->stream.host.cpu.n_thread;
    b->close = cuda_close;
    b->priv = c;
}

extern "C" __attribute__((visibility("default"))) ml_status
miles_cuda_open(ml_backend *out, const ml_cuda_host *host, bool f32, ml_err *err) {
    static unsigned opened;
    cudaDeviceProp card;
    ml_status st;
    cuda *c;

    if (host->stamp != ML_CUDA_STAMP)
        return ml_fail(err, ML_EUNSUP,
                       "libmiles_cuda.so does not match the program: run make");
    st = check_card(&card, err);
    if (st == ML_OK)
        st = check_code(&card, err);
    if (st != ML_OK)
        return st;
    c = (cuda *)calloc(1, sizeof *c);
    if (!c)
        return ml_fail(err, ML_ENOMEM, "out of memory for the CUDA backend");
    fill_device(&c->dev);
    memcpy(c->dev.uuid, &card.uuid, sizeof c->dev.uuid);
    c->stream.base.dev = &c->dev;
    c->stream.early = card.major >= EARLY_MAJOR;
    c->stream.wgmma = ML_WGMMA && card.major == WGMMA_MAJOR;
    c->stream.sms = (unsigned)card.multiProcessorCount;
    c->stream.number = __atomic_fetch_add(&opened, 1, __ATOMIC_RELAXED);
    snprintf(c->stream.level, sizeof c->stream.level, "sm%d%d", card.major, card.minor);
    fill_backend(out, c, f32);
    if (cudaStreamCreateWithFlags(&c->stream.stream, cudaStreamNonBlocking) != cudaSuccess)
        st = ml_fail(err, ML_EUNSUP, "cannot create a stream on the GPU %s", card.name);
    if (st == ML_OK)
        st = ml_gemm_open(&c->stream, err);
    if (st == ML_OK)
        st = ml_cuda_sample_open(&c->stream, err);
    if (st == ML_OK)
        st = ml_cuda_staging_open(&c->stream, err);
    if (st != ML_OK) {
        cuda_close(out); /* the caller still owns the CPU backend */
        memset(out, 0, sizeof *out);
        return st;
    }
    c->stream.host = *host;
    out->n_thread = host->cpu.n_thread;
    return ML_OK;
}
