/* attn_codes.cu - writes KV pages of codes, and reads whole ones. */
#include "backend/cuda/attn/attn_codes.cuh"

enum { THREADS = 128, WARPS = THREADS / 32, UNITS = 4 };

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
    int row = (int)blockIdx.x, seq = attn_seq_of(c.keys.seq_start, c.keys.n_seq, row);
    int pos = c.keys.pos[row];
    const int32_t *page = c.keys.page + c.keys.page_start[seq];

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
    write_codes<T><<<(unsigned)c.keys.n, THREADS, 0, s->stream>>>(c);
    ml_cuda_launched(s, "KV cache");
}

/* ---- whole pages ---- */

/* Pages of keys, or of values, and where their numbers go. */
template <class T> struct wide_pages {
    uint8_t *from;
    T *to;
    int width, n_kv;
    bool paired;

    /* Row i of all heads' rows of a page. */
    __device__ attn_coded row(int64_t page, int i) const {
        return attn_coded_at(from, page, i / ML_PAGE, n_kv, i % ML_PAGE, width);
    }
};

/* Whether a row of its sequence attends to a key of entry i of the page table. */
template <class T> __device__ static bool is_read(const attn_call<T> &c, int i) {
    int seq = attn_seq_of(c.page_start, c.n_seq, i);
    int key = (i - c.page_start[seq]) * ML_PAGE;

    return key <= c.pos[c.seq_start[seq + 1] - 1] &&
           key + ML_PAGE > attn_first_key(c, c.pos[c.seq_start[seq]]);
}

template <class T>
__device__ static void widen_numbers(T *to, int64_t page, const wide_pages<T> &p,
                                     int format) {
    for (int i = (int)threadIdx.x; i < p.n_kv * ML_PAGE * p.width; i += THREADS) {
        attn_coded row = p.row(page, i / p.width);
        uint8_t code = row.code[attn_code_place(i % p.width, p.paired)];
        to[i] = ml_as<T>(attn_code_value(code, format) * *row.scale);
    }
}

/* The same, 16 numbers at a time.  A thread loads UNITS of these before it writes any. */
__device__ static void widen_units(bf16 *to, int64_t page, const wide_pages<bf16> &p,
                                   int format) {
    const int per_row = (p.width + ATTN_UNIT - 1) / ATTN_UNIT;
    const int n = p.n_kv * ML_PAGE * per_row;

    for (int first = (int)threadIdx.x; first < n; first += UNITS * THREADS) {
        attn_unit u[UNITS];
#pragma unroll
        for (int j = 0; j < UNITS; j++) {
            int i = first + j * THREADS < n ? first + j * THREADS : first;
            u[j] =
                attn_load_unit(p.row(page, i / per_row), i % per_row * ATTN_UNIT, p.width);
        }
#pragma unroll
        for (int j = 0; j < UNITS; j++) {
            int i = first + j * THREADS, e = i % per_row * ATTN_UNIT;
            bf16 *at = to + (int64_t)(i / per_row) * p.width + e;
            uint4 x[2];
            if (i >= n)
                break;
            attn_widen_unit(x, u[j], p.paired, format);
            *(uint4 *)at = x[0];
            if (e + 8 < p.width)
                *(uint4 *)(at + 8) = x[1];
        }
    }
}

__device__ static void widen(float *to, int64_t page, const wide_pages<float> &p,
                             int format) {
    widen_numbers(to, page, p, format);
}

__device__ static void widen(bf16 *to, int64_t page, const wide_pages<bf16> &p,
                             int format) {
    if (p.width % 8 == 0)
        widen_units(to, page, p, format);
    else
        widen_numbers(to, page, p, format);
}

/* A block has keys or values of a page: of page i, or of entry first + i of the batch's page table, which gets a
 * table of its own. */
template <class T>
__global__ void widen_pages(attn_call<T> c, wide_pages<T> keys, wide_pages<T> values,
                            int32_t *table, int first) {
    wide_pages<T> p = keys;
    int i = (int)blockIdx.x;
    T *to;

    if (blockIdx.y)
        p = values;
    to = p.to + (int64_t)i * c.n_kv * ML_PAGE * p.width;
    if (table && threadIdx.x == 0 && blockIdx.y == 0)
        table[i] = i;
    if (!table)
        widen(to, i, p, c.format);
    else if (is_read(c, first + i))
        widen(to, c.page[first + i], p, c.format);
}

template <class T>
static void widen_all(ml_cuda_stream *s, attn_call<T> &c, const ml_attn_scratch &at,
                      void *scratch, int32_t *table, int first) {
    dim3 grid((unsigned)at.n_page, c.vcode ? 2u : 1u);
    wide_pages<T> k = { c.kcode, (T *)((char *)scratch + at.keys), c.d, c.n_kv,
                        attn_is_paired(c.d) };
    wide_pages<T> v = { c.vcode, (T *)((char *)scratch + at.values), c.dv, c.n_kv, false };

    widen_pages<T><<<grid, THREADS, 0, s->stream>>>(c, k, v, table, first);
    ml_cuda_launched(s, "KV pages");
    c.kpage = k.to;
    c.vpage = c.vcode ? v.to : NULL;
    c.kcode = c.vcode = NULL;
    c.format = ATTN_NO_CODES;
}

template <class T>
void ml_attn_widen_pages(ml_cuda_stream *s, attn_call<T> &c, const ml_attn_scratch &at,
                         void *scratch) {
    widen_all(s, c, at, scratch, NULL, 0);
}

void ml_attn_widen_batch(ml_cuda_stream *s, attn_call<bf16> &c, const ml_attn_scratch &at,
                         void *scratch, int first) {
    widen_all(s, c, at, scratch, (int32_t *)scratch, first);
    c.page = (const int32_t *)scratch - first; /* no entry before it is read */
}

#define INSTANTIATE(T)                                                                     \
    template void ml_attn_write_codes<T>(ml_cuda_stream *, const attn_call<T> &);          \
    template void ml_attn_widen_pages<T>(ml_cuda_stream *, attn_call<T> &,                 \
                                         const ml_attn_scratch &, void *);
INSTANTIATE(float)
INSTANTIATE(bf16)
