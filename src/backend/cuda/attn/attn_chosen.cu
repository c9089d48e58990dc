/* attn_chosen.cu - ATTN_CHOSEN: sparse attention of each token to the keys of its list.
 *
 * All query heads share one key, whose first numbers are the value (MQA).  Nothing but the
 * pages is kept for backward: it recomputes o, for some tokens at a time, and with it LSE
 * and delta of each row; from there on it is that of ATTN. */
#include "backend/cuda/attn/attn.cuh"

enum { THREADS = 128 };

/* ---- keys in pages ---- */

struct key_writer {
    attn_keys keys;
    const int32_t *pos, *seq_start, *page_start, *page;
    int n_seq;
};

template <class T> __global__ void write_keys(key_writer w) {
    int row = (int)blockIdx.x, n_key = w.pos[row] + 1, ratio = w.keys.ratio;
    const int32_t *page;
    const T *from = (const T *)w.keys.k + (int64_t)row * w.keys.step;
    T *to = (T *)w.keys.page;

    if (n_key <= 0 || n_key % ratio != 0)
        return;
    page = w.page + w.page_start[attn_seq_of(w.seq_start, w.n_seq, row)];
    to += attn_slot(page, n_key / ratio - 1, ratio) * w.keys.width;
    for (int i = (int)threadIdx.x; i < w.keys.width; i += THREADS)
        to[i] = from[i];
}

void ml_attn_write_keys(ml_cuda_stream *s, const attn_keys *keys, ml_dtype dtype) {
    const ml_rows *r = ml_key_rows(keys->rows);
    key_writer w = { *keys, r->pos, r->seq_start, r->page_start, r->page, r->n_seq };

    if (dtype == ML_BF16)
        write_keys<bf16><<<(unsigned)r->n_token, THREADS, 0, s->stream>>>(w);
    else
        write_keys<float><<<(unsigned)r->n_token, THREADS, 0, s->stream>>>(w);
    ml_cuda_launched(s, "KV cache");
}

/* ---- the op ---- */

template <class T> static attn_call<T> open_call(const ml_op_args *a) {
    attn_call<T> c = {};

    c.q = (const T *)a->in[0].data;
    c.chosen = (const int32_t *)a->in[2].data;
    c.n_chosen = c.chosen ? (int)a->in[2].shape[1] : 0;
    c.o = (T *)a->out[0].data;
    c.kpage = (T *)a->out[1].data;
    c.cpage = (T *)a->out[2].data;
    c.sink = (const float *)a->w[0].data;
    c.pos = a->rows->pos;
    c.seq_start = a->rows->seq_start;
    c.page_start = a->rows->page_start;
    c.page = a->rows->page;
    c.n_token = a->rows->n_token;
    c.n_seq = a->rows->n_seq;
    c.keys = ml_attn_key_rows(a->rows);
    c.n_head = c.group = a->attr->attn.n_head;
    c.n_kv = 1;
    c.group_mul =
        (uint32_t)((((uint64_t)1 << 32) + (uint64_t)c.group - 1) / (uint64_t)c.group);
    c.d = a->attr->attn.head_dim;
    c.e = a->attr->attn.value_dim;
    c.window = a->attr->attn.window;
    c.ratio = a->attr->attn.ratio;
    c.scale = a->attr->attn.scale;
    return c;
}

static void read_keys(ml_cuda_stream *s, const attn_call<float> &c) {
    ml_attn_plain_chosen(s, c);
}

static void read_keys(ml_cuda_stream *s, const attn_call<bf16> &c) {
    if (ml_attn_wide_supports(c))
        ml_attn_wide_chosen(s, c);
    else
        ml_attn_plain_chosen(s, c);
}

template <class T> static void chosen_forward(ml_stream *s, const ml_op_args *a) {
    attn_call<T> c = open_call<T>(a);
    attn_keys keys = { a->rows, a->in[1].data, c.kpage, c.d, (int)a->in[1].shape[1], 1 };

    if (c.n_token == 0)
        return;
    ml_attn_write_keys(ml_cuda(s), &keys, a->in[1].dtype);
    if (c.ratio) {
        keys.k = (const T *)keys.k + c.d;
        keys.page = c.cpage;
        keys.ratio = c.ratio;
        ml_attn_write_keys(ml_cuda(s), &keys, a->in[1].dtype);
    }
    read_keys(ml_cuda(s), c);
}

void ml_cuda_attn_chosen_forward(ml_stream *s, const ml_op_args *a) {
    ML_CUDA_TYPED(a->in[0].dtype, chosen_forward<T>(s, a));
}

/* Recomputes o, for ML_CHOSEN_TOKENS at a time: stat, delta and shift of each row. */
template <class T> static void recompute(ml_cuda_stream *s, attn_call<T> c, T *o) {
    int n_token = c.n_token;
    int64_t width = (int64_t)c.n_head * c.e;

    for (int first = 0; first < n_token; first += ML_CHOSEN_TOKENS) {
        int end = first + ML_CHOSEN_TOKENS;
        c.first_token = first;
        c.n_token = end < n_token ? end : n_token;
        c.o = o - first * width; /* row `first` is the first there */
        read_keys(s, c);
        ml_attn_delta(s, c);
    }
}

static void backward(ml_cuda_stream *s, const attn_call<float> &c) {
    ml_attn_plain_chosen_back(s, c);
}

static void backward(ml_cuda_stream *s, const attn_call<bf16> &c) {
    if (ml_attn_wide_supports(c))
        ml_attn_wide_chosen_back(s, c);
    else
        ml_attn_plain_chosen_back(s, c);
}

template <class T> static void chosen_backward(ml_stream *s, const ml_op_args *a) {
    attn_call<T> c = open_call<T>(a);
    int64_t n = (int64_t)c.n_token * c.n_head;

    ml_attn_clear_keys(ml_cuda(s), a, 1);
    if (c.n_token == 0)
        return;
    c.dout = (const T *)a->dout[0].data;
    c.stat = (float *)a->scratch;
    c.delta = c.stat + 2 * n;
    c.shift = c.delta + n;
    c.dq = (T *)a->din[0].data;
    c.dk = (T *)a->din[1].data;
    c.add_q = a->din_add[0];
    c.add_k = a->din_add[1];
    recompute(ml_cuda(s), c,
              (T *)((char *)a->scratch + ml_cuda_align((size_t)(4 * n) * sizeof(float))));
    ml_attn_sink_back(ml_cuda(s), c, (float *)a->dw[0].data);
    backward(ml_cuda(s), c);
}

void ml_cuda_attn_chosen_backward(ml_stream *s, const ml_op_args *a) {
    ML_CUDA_TYPED(a->in[0].dtype, chosen_backward<T>(s, a));
}
