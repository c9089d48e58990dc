/* attn.cu - ATTN: writes keys and values to KV pages, then launches an attention kernel. */
#include "backend/cuda/attn/attn_codes.cuh"

enum {
    THREADS = 128,
    MANY_ROWS = 64, /* per sequence on average: wgmma pays */
    SUM_TEAM = 16,  /* threads that sum a row of a head */
    SUM_TEAMS = THREADS / SUM_TEAM,
    SUM_HEADS = 4
};

/* Pages of T.  V numbers per access; a value's padding (e .. dv - 1) becomes zero. */
template <class T, int V> __global__ void write_pages(attn_call<T> c) {
    int row = (int)blockIdx.x, seq = attn_seq_of(c.keys.seq_start, c.keys.n_seq, row);
    int key = c.keys.pos[row];
    const int32_t *page = c.keys.page + c.keys.page_start[seq];
    const T *k = c.k + (int64_t)row * c.n_kv * c.d, *v = c.v + (int64_t)row * c.n_kv * c.e;

    if (key < 0)
        return;
    for (int i = (int)threadIdx.x * V; i < c.n_kv * c.d; i += THREADS * V)
        *(ml_pack<T, V> *)(attn_key(c, page, i / c.d, key) + i % c.d) =
            *(const ml_pack<T, V> *)(k + i);
    for (int i = (int)threadIdx.x * V; c.vpage && i < c.n_kv * c.dv; i += THREADS * V) {
        int head = i / c.dv, e = i % c.dv;
        ml_pack<T, V> p = {};
        if (e < c.e)
            p = *(const ml_pack<T, V> *)(v + head * c.e + e);
        *(ml_pack<T, V> *)(attn_value(c, page, head, key) + e) = p;
    }
}

/* delta = rowsum(dO * O), and the LSE in log2 units, of each row and head: half a warp has
 * SUM_HEADS of them, and loads V numbers per access.  Sets the semaphores of dq to zero. */
template <class T, int V> __global__ void sum_rows(attn_call<T> c) {
    int lane = (int)threadIdx.x % SUM_TEAM;
    int64_t n = (int64_t)c.n_token * c.n_head;
    int64_t first = (int64_t)c.first_token * c.n_head +
                    (int64_t)blockIdx.x * SUM_TEAMS * SUM_HEADS + threadIdx.x / SUM_TEAM;
    float sum[SUM_HEADS] = {};

    for (int e = lane * V; e < c.e; e += SUM_TEAM * V)
#pragma unroll
        for (int h = 0; h < SUM_HEADS; h++) {
            int64_t i = first + h * SUM_TEAMS;
            float dout[V] = {}, o[V] = {};
            if (i < n) {
                ml_load(dout, c.dout + i * c.e + e);
                ml_load(o, c.o + i * c.e + e);
            }
#pragma unroll
            for (int k = 0; k < V; k++)
                sum[h] = fmaf(dout[k], o[k], sum[h]);
        }
#pragma unroll
    for (int h = 0; h < SUM_HEADS; h++) {
        int64_t i = first + h * SUM_TEAMS;
#pragma unroll
        for (int w = SUM_TEAM / 2; w; w >>= 1)
            sum[h] += __shfl_xor_sync(0xffffffffu, sum[h], w);
        if (lane == 0 && i < n) {
            c.delta[i] = sum[h];
            c.shift[i] = fmaf(c.stat[2 * i], ML_LOG2E, ml_log2(c.stat[2 * i + 1]));
            for (int64_t k = i; k < c.n_semaphore; k += n)
                c.dq_semaphore[k] = 0;
        }
    }
}

template <class T> void ml_attn_delta(ml_cuda_stream *s, const attn_call<T> &c) {
    unsigned blocks = ml_cuda_blocks((int64_t)(c.n_token - c.first_token) * c.n_head,
                                     SUM_TEAMS * SUM_HEADS);

    if (c.e % 8 == 0)
        sum_rows<T, 8><<<blocks, THREADS, 0, s->stream>>>(c);
    else
        sum_rows<T, 1><<<blocks, THREADS, 0, s->stream>>>(c);
    ml_cuda_launched(s, "attention backward");
}

/* A sink takes weight from all keys and has no value: its dS is P (0 - delta).  A block per
 * head; the order of sums depends on the number of rows only. */
template <class T> __global__ void back_sinks(attn_call<T> c, float *dsink) {
    __shared__ float smem[THREADS / 32];
    int head = (int)blockIdx.x;
    float sum = 0.0f;

    for (int row = (int)threadIdx.x; row < c.n_token; row += THREADS) {
        int64_t at = (int64_t)row * c.n_head + head;
        float p = ml_exp(c.sink[head] - c.stat[2 * at]) * (1.0f / c.stat[2 * at + 1]);
        sum = fmaf(-p, c.delta[at], sum);
    }
    sum = ml_block_sum<THREADS / 32>(sum, smem);
    if (threadIdx.x == 0)
        dsink[head] += sum;
}

template <class T>
void ml_attn_sink_back(ml_cuda_stream *s, const attn_call<T> &c, float *dsink) {
    if (!dsink)
        return;
    back_sinks<T><<<(unsigned)c.n_head, THREADS, 0, s->stream>>>(c, dsink);
    ml_cuda_launched(s, "attention backward");
}

template void ml_attn_delta<float>(ml_cuda_stream *, const attn_call<float> &);
template void ml_attn_delta<bf16>(ml_cuda_stream *, const attn_call<bf16> &);
template void ml_attn_sink_back<float>(ml_cuda_stream *, const attn_call<float> &, float *);
template void ml_attn_sink_back<bf16>(ml_cuda_stream *, const attn_call<bf16> &, float *);

attn_key_rows ml_attn_key_rows(const ml_rows *rows) {
    const ml_rows *r = ml_key_rows(rows);

    return { r->pos,
             r->seq_start,
             r->page_start,
             r->page,
             rows->context ? rows->context->seq : NULL,
             r->n_token,
             r->n_seq };
}

void ml_attn_clear_keys(ml_cuda_stream *s, const ml_op_args *a, int in) {
    if (a->rows->context && a->din[in].data && !a->din_add[in])
        ml_cuda_note(
            s, cudaMemsetAsync(a->din[in].data, 0, ml_tensor_bytes(&a->din[in]), s->stream),
            "attention backward");
}

template <class T> static attn_call<T> open_call(const ml_op_args *a) {
    attn_call<T> c = {};

    c.q = (const T *)a->in[0].data;
    c.k = (const T *)a->in[1].data;
    c.v = (const T *)a->in[2].data;
    c.o = (T *)a->out[0].data;
    c.stat = (float *)a->out[1].data;
    if (ml_dtype_is_kv_codes(a->out[2].dtype)) {
        c.kcode = (uint8_t *)a->out[2].data;
        c.vcode = (uint8_t *)a->out[3].data;
        c.format = ATTN_E4M3 + (a->out[2].dtype - ML_KV_E4M3);
    } else {
        c.kpage = (T *)a->out[2].data;
        c.vpage = (T *)a->out[3].data;
    }
    c.pos = a->rows->pos;
    c.seq_start = a->rows->seq_start;
    c.page_start = a->rows->page_start;
    c.page = a->rows->page;
    c.prefix = a->rows->prefix;
    c.keys = ml_attn_key_rows(a->rows);
    c.n_token = a->rows->n_token;
    c.n_seq = a->rows->n_seq;
    c.separate = a->rows->separate;
    c.n_head = a->attr->attn.n_head;
    c.n_kv = a->attr->attn.n_kv;
    c.group = c.n_head / c.n_kv;
    c.group_mul =
        (uint32_t)((((uint64_t)1 << 32) + (uint64_t)c.group - 1) / (uint64_t)c.group);
    c.d = a->attr->attn.head_dim;
    c.e = a->attr->attn.value_dim;
    c.dv = (c.e + ML_LANES - 1) / ML_LANES * ML_LANES;
    c.window = a->attr->attn.window;
    c.chunk = a->attr->attn.chunk;
    c.sink = (const float *)a->w[0].data;
    c.scale = a->attr->attn.scale;
    c.softcap = a->attr->attn.softcap;
    return c;
}

static void forward(ml_cuda_stream *s, const attn_call<float> &c, const ml_op_args *) {
    ml_attn_plain<float>(s, c);
}

#if ML_WGMMA
/* Many rows read pages of codes as bf16; false: there are too many pages.  first_page: of the call's
 * sequences in the batch's page table. */
static bool forward_wgmma(ml_cuda_stream *s, attn_call<bf16> c, const ml_op_args *a,
                          int first_page) {
    if (!s->wgmma || (int64_t)c.n_token * c.group < (int64_t)MANY_ROWS * c.n_seq)
        return false;
    if (c.format) {
        ml_attn_scratch at = ml_cuda_attn_pages(a, false);
        int n_page = a->rows->n_page - first_page;
        if (at.n_page < n_page || c.n_token == c.n_seq) /* or it is recorded */
            return false;
        at.n_page = n_page;
        ml_attn_widen_batch(s, c, at, a->scratch, first_page);
    }
    ml_attn_wgmma(s, c);
    return true;
}
#else
static bool forward_wgmma(ml_cuda_stream *, const attn_call<bf16> &, const ml_op_args *,
                          int) {
    return false;
}
#endif

static bool decodes(const attn_call<bf16> &c) {
    return ml_attn_decode_codes_supports(c) || ml_attn_decode_supports(c);
}

static void decode(ml_cuda_stream *s, const attn_call<bf16> &c) {
    if (c.format)
        ml_attn_decode_codes(s, c);
    else
        ml_attn_decode(s, c);
}

/* Of a batch that prefills, too, the first sequences decode: they have the kernel of decode, and only
 * the pages of the others become bf16. */
static void forward_narrow(ml_cuda_stream *s, attn_call<bf16> c, const ml_op_args *a) {
    attn_call<bf16> first = c;
    int first_page = 0;

    first.n_token = first.n_seq = a->rows->n_single;
    if (first.n_seq > 0 && decodes(first)) {
        decode(s, first);
        c.seq_start += first.n_seq;
        c.page_start += first.n_seq;
        c.n_seq -= first.n_seq;
        c.n_token -= first.n_seq;
        first_page = a->rows->single_page;
    }
    if (!forward_wgmma(s, c, a, first_page))
        ml_attn_mma(s, c);
}

static void forward(ml_cuda_stream *s, const attn_call<bf16> &c, const ml_op_args *a) {
    if (!ml_cuda_attn_is_narrow(a) && ml_attn_wide_supports(c))
        ml_attn_wide(s, c);
    else if (!ml_cuda_attn_is_narrow(a))
        ml_attn_plain<bf16>(s, c);
    else if (decodes(c))
        decode(s, c);
    else
        forward_narrow(s, c, a);
}

attn_call<bf16> ml_attn_call(const ml_op_args *a) {
    return open_call<bf16>(a);
}

bool ml_cuda_attn_writes_codes(const ml_op_args *a) {
    const attn_call<bf16> c = open_call<bf16>(a);

    return c.d == ML_FP8_GROUP && c.e == ML_FP8_GROUP && ml_cuda_attn_is_narrow(a) &&
           decodes(c);
}

void ml_cuda_attn_read(ml_cuda_stream *s, const ml_op_args *a, const ml_fp8_out &codes) {
    attn_call<bf16> c = open_call<bf16>(a);

    c.codes = codes;
    if (c.n_token > 0)
        forward(s, c, a);
}

template <class T> static void write_rows(ml_cuda_stream *s, const attn_call<T> &c) {
    if (c.format)
        ml_attn_write_codes<T>(s, c);
    else if (c.d % ml_wide<T>::n == 0 && c.e % ml_wide<T>::n == 0)
        write_pages<T, ml_wide<T>::n><<<(unsigned)c.keys.n, THREADS, 0, s->stream>>>(c);
    else
        write_pages<T, 1><<<(unsigned)c.keys.n, THREADS, 0, s->stream>>>(c);
    ml_cuda_launched(s, "KV cache");
}

template <class T> static void attn_forward(ml_stream *s, const ml_op_args *a) {
    attn_call<T> c = open_call<T>(a);

    if (c.n_token == 0) /* nothing reads the keys of others */
        return;
    write_rows(ml_cuda(s), c);
    forward(ml_cuda(s), c, a);
}

void ml_cuda_attn_forward(ml_stream *s, const ml_op_args *a) {
    ML_CUDA_TYPED(a->in[0].dtype, attn_forward<T>(s, a));
}

static void backward(ml_cuda_stream *s, const attn_call<float> &c, bool) {
    ml_attn_plain_back<float>(s, c);
}

static void backward(ml_cuda_stream *s, const attn_call<bf16> &c, bool mma) {
#if ML_WGMMA
    if (mma && s->wgmma) {
        if (c.dq_sums)
            ml_attn_back_once(s, c);
        else
            ml_attn_wgmma_back(s, c);
        return;
    }
#endif
    if (mma)
        ml_attn_mma_back(s, c);
    else if (ml_attn_wide_supports(c))
        ml_attn_wide_back(s, c);
    else
        ml_attn_plain_back<bf16>(s, c);
}

/* Room for the sums of dq, where one pass computes all gradients. */
static void place_dq_sums(const ml_cuda_stream *, attn_call<float> &,
                          const ml_attn_back_scratch &, char *) {}

static void place_dq_sums(const ml_cuda_stream *s, attn_call<bf16> &c,
                          const ml_attn_back_scratch &at, char *scratch) {
#if ML_WGMMA
    if (!s->wgmma || !at.n_semaphore || c.prefix)
        return;
    c.dq_sums = (float *)(scratch + at.sums);
    c.dq_semaphore = (unsigned *)(scratch + at.semaphores);
    c.n_semaphore = (int)at.n_semaphore;
#endif
}

template <class T> static void attn_backward(ml_stream *s, const ml_op_args *a) {
    attn_call<T> c = open_call<T>(a);
    ml_attn_scratch at = ml_cuda_attn_pages(a, true);
    ml_attn_back_scratch back = ml_cuda_attn_back_scratch(a);

    ml_attn_clear_keys(ml_cuda(s), a, 1);
    ml_attn_clear_keys(ml_cuda(s), a, 2);
    if (c.n_token == 0)
        return;
    if (c.format)
        ml_attn_widen_pages<T>(ml_cuda(s), c, at, a->scratch);
    c.dout = (const T *)a->dout[0].data;
    c.delta = (float *)((char *)a->scratch + back.delta);
    c.shift = c.delta + (int64_t)c.n_token * c.n_head;
    c.dq = (T *)a->din[0].data;
    c.dk = (T *)a->din[1].data;
    c.dv_out = (T *)a->din[2].data;
    c.add_q = a->din_add[0];
    c.add_k = a->din_add[1];
    c.add_v = a->din_add[2];
    place_dq_sums(ml_cuda(s), c, back, (char *)a->scratch);
    ml_attn_delta(ml_cuda(s), c);
    ml_attn_sink_back(ml_cuda(s), c, (float *)a->dw[0].data);
    backward(ml_cuda(s), c, ml_cuda_attn_is_narrow(a));
}

void ml_cuda_attn_backward(ml_stream *s, const ml_op_args *a) {
    ML_CUDA_TYPED(a->in[0].dtype, attn_backward<T>(s, a));
}
