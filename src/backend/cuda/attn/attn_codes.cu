/* attn_codes.cu - writes KV pages of codes, and reads whole ones. */
#include "backend/cuda/attn/attn_codes.cuh"

enum { THREADS = 128, WARPS = THREADS / 32 };

/* A row of a key or a value, by a warp: n numbers to codes, zeros up to `width`. */
template <class T>
__device__ static void write_row(const attn_coded &to, const T *from, int n, int width,
                                 bool paired, int format) {
    int lane = (int)threadIdx.x % 32;
    uint32_t most = 0;
    attn_scale s;

    for (int e = lane; e < n; e += 32)
        most = max(most, attn_magnitude(ml_f32(from[e])));
    s = attn_scale_of(__reduce_max_sync(0xffffffffu, most), format);
    for (int e = lane; e < width; e += 32)
        to.code[attn_code_place(e, paired)] =
            e < n ? attn_encode(ml_f32(from[e]), s, format) : 0;
    if (lane == 0)
        *to.scale = s.scale;
}

template <class T> __global__ void write_codes(attn_call<T> c) {
    int row = (int)blockIdx.x, seq = attn_seq_of(c.seq_start, c.n_seq, row);
    int pos = c.pos[row];
    const int32_t *page = c.page + c.page_start[seq];

    if (pos < 0)
        return;
    for (int h = (int)threadIdx.x / 32; h < c.n_kv; h += WARPS) {
        int64_t at = (int64_t)row * c.n_kv + h;
        write_row(attn_coded_key(c, page, h, pos), c.k + at * c.d, c.d, c.d,
                  attn_is_paired(c.d), c.format);
        if (c.vcode)
            write_row(attn_coded_value(c, page, h, pos), c.v + at * c.e, c.e, c.dv, false,
                      c.format);
    }
}

template <class T> void ml_attn_write_codes(ml_cuda_stream *s, const attn_call<T> &c) {
    write_codes<T><<<(unsigned)c.n_token, THREADS, 0, s->stream>>>(c);
    ml_cuda_launched(s, "KV cache");
}

/* A block has a head of a page. */
template <class T>
__global__ void widen_pages(T *to, uint8_t *pages, int width, bool paired, int format) {
    to += (int64_t)blockIdx.x * ML_PAGE * width;
    for (int i = (int)threadIdx.x; i < ML_PAGE * width; i += THREADS) {
        attn_coded row = attn_coded_at(pages, blockIdx.x, i / width, width);
        uint8_t code = row.code[attn_code_place(i % width, paired)];
        to[i] = ml_as<T>(attn_code_value(code, format) * *row.scale);
    }
}

template <class T>
void ml_attn_widen_pages(ml_cuda_stream *s, attn_call<T> &c, int64_t n_page,
                         void *scratch) {
    unsigned heads = (unsigned)(n_page * c.n_kv);

    c.kpage = (T *)scratch;
    widen_pages<T><<<heads, THREADS, 0, s->stream>>>(c.kpage, c.kcode, c.d,
                                                     attn_is_paired(c.d), c.format);
    if (c.vcode) {
        c.vpage = c.kpage + (int64_t)heads * ML_PAGE * c.d;
        widen_pages<T>
            <<<heads, THREADS, 0, s->stream>>>(c.vpage, c.vcode, c.dv, false, c.format);
    }
    ml_cuda_launched(s, "KV pages");
}

#define INSTANTIATE(T)                                                                     \
    template void ml_attn_write_codes<T>(ml_cuda_stream *, const attn_call<T> &);          \
    template void ml_attn_widen_pages<T>(ml_cuda_stream *, attn_call<T> &, int64_t, void *);
INSTANTIATE(float)
INSTANTIATE(bf16)
