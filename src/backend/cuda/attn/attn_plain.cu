/* attn_plain.cu - attention with a warp per row: f32, and heads that mma does not take.
 *
 * ATTN and ATTN_CHOSEN: LIST says that a row's keys are those of its token's list; CODED that
 * pages have codes. */
#include "backend/cuda/attn/attn_codes.cuh"

enum { THREADS = 128, WARPS = THREADS / 32, FEW = 256, ALL = ML_ATTN_MOST };

/* Copies a row to the warp's buffer in shared memory. */
template <class T> __device__ static void stage_row(float *to, const T *from, int d) {
    for (int e = (int)threadIdx.x % 32; e < d; e += 32)
        to[e] = ml_f32(from[e]);
    __syncwarp();
}

/* A row of a page of codes, whose numbers are rounded to T. */
template <class T> struct coded_row {
    const uint8_t *code;
    float scale;
    bool paired;
    int format;
};

template <class T> __device__ static float number(const T *row, int e) {
    return ml_f32(row[e]);
}

template <class T> __device__ static float number(const coded_row<T> &row, int e) {
    uint8_t code = row.code[attn_code_place(e, row.paired)];
    return ml_f32(ml_as<T>(attn_code_value(code, row.format) * row.scale));
}

template <class R> __device__ static float dot_with(const float *a, const R &b, int d) {
    float sum = 0.0f;
    for (int e = 0; e < d; e++)
        sum = fmaf(a[e], number(b, e), sum);
    return sum;
}

template <class T> __device__ static float score(const attn_call<T> &c, float dot) {
    float s = dot * c.scale;
    return c.softcap != 0.0f ? c.softcap * ml_tanh(s / c.softcap) : s;
}

template <class T, class A> __device__ static void put(T *to, A x, bool add) {
    *to = ml_as<T>((float)(add ? (A)ml_f32(*to) + x : x));
}

/* sum += w times a row; a lane has every 32nd column. */
template <class A, class R, int N>
__device__ static void add_row(A (&sum)[N], float w, const R &row, int d) {
    int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int e = 0; e < N; e++)
        if (lane + 32 * e < d)
            sum[e] = fma((A)w, (A)number(row, lane + 32 * e), sum[e]);
}

/* Stores a row of d numbers, or adds it. */
template <class T, class A, int N>
__device__ static void put_row(T *to, const A (&x)[N], int d, bool add) {
    int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int e = 0; e < N; e++)
        if (lane + 32 * e < d)
            put(to + lane + 32 * e, x[e], add);
}

/* The same for the gradient of a key or a value, from number `at` on; f32: of pieces. */
template <class T, int N>
__device__ static void put_key(T *to, int64_t at, const double (&x)[N], int d, bool add,
                               bool f32) {
    if (!to)
        return;
    if (f32)
        put_row((float *)to + at, x, d, add);
    else
        put_row(to + at, x, d, add);
}

/* A token's row of one head: the KV head it reads, and its keys first .. last. */
struct query {
    int head, first, last;
    attn_list list;
};

template <bool LIST, class T>
__device__ static query query_of(const attn_call<T> &c, int64_t i) {
    int token = (int)(i / c.n_head), pos = c.pos[token];
    query q = { (int)(i % c.n_head) / c.group };

    if (LIST) {
        q.list = attn_list_of(c, token);
        q.last = q.list.n - 1;
        return q;
    }
    q.list.page = c.page + c.page_start[attn_seq_of(c.seq_start, c.n_seq, token)];
    q.first = attn_first_key(c, pos);
    q.last = pos;
    return q;
}

/* Rows of T, or of codes. */
template <bool LIST, bool CODED> struct pages {
    template <class T>
    __device__ static const T *key(const attn_call<T> &c, const query &q, int i) {
        return LIST ? attn_list_key(c, q.list, i) : attn_key(c, q.list.page, q.head, i);
    }

    template <class T>
    __device__ static const T *value(const attn_call<T> &c, const query &q, int i) {
        return LIST ? attn_list_key(c, q.list, i) : attn_value(c, q.list.page, q.head, i);
    }
};

template <> struct pages<false, true> {
    template <class T>
    __device__ static coded_row<T> key(const attn_call<T> &c, const query &q, int i) {
        attn_coded at = attn_coded_key(c, q.list.page, q.head, i);
        return { at.code, *at.scale, attn_is_paired(c.d), c.format };
    }

    template <class T>
    __device__ static coded_row<T> value(const attn_call<T> &c, const query &q, int i) {
        attn_coded at = attn_coded_value(c, q.list.page, q.head, i);
        return { at.code, *at.scale, !c.vcode && attn_is_paired(c.d), c.format };
    }
};

/* ---- forward ---- */

template <class T, int D, bool LIST, bool CODED>
__global__ void plain_forward(attn_call<T> c) {
    typedef pages<LIST, CODED> from;
    __shared__ float row[WARPS][D], weight[WARPS][ML_KTILE];
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    int64_t i = (int64_t)c.first_token * c.n_head + (int64_t)blockIdx.x * WARPS + warp;
    query q;
    float m = -INFINITY, l = 0.0f, after = 1.0f, acc[D / 32] = {};

    if (i >= (int64_t)c.n_token * c.n_head)
        return;
    q = query_of<LIST>(c, i);
    if (q.last < 0) /* padding */
        return;
    stage_row(row[warp], c.q + i * c.d, c.d);
    for (int tile = q.first / ML_KTILE * ML_KTILE; tile <= q.last; tile += ML_KTILE) {
        float s[2], old = m, p, keep;
        for (int k = 0; k < 2; k++) {
            int key = tile + lane + 32 * k;
            s[k] = key >= q.first && key <= q.last
                       ? score(c, dot_with(row[warp], from::key(c, q, key), c.d))
                       : -INFINITY;
        }
        m = ml_max(m, ml_warp_max(ml_max(s[0], s[1])));
        keep = ml_exp(old - m);
        for (int k = 0; k < 2; k++)
            weight[warp][lane + 32 * k] = s[k] = ml_exp(s[k] - m);
        p = ml_warp_sum(s[0] + s[1]);
        l = fmaf(l, keep, p);
        __syncwarp();
#pragma unroll
        for (int e = 0; e < D / 32; e++)
            acc[e] *= keep;
        for (int key = tile < q.first ? q.first : tile;
             key <= q.last && key < tile + ML_KTILE; key++)
            add_row(acc, weight[warp][key - tile], from::value(c, q, key), c.e);
        __syncwarp();
    }
    if (c.sink)
        after = attn_add_sink(c.sink[i % c.n_head], m, l);
#pragma unroll
    for (int e = 0; e < D / 32; e++)
        acc[e] = acc[e] * after / l;
    put_row(c.o + i * c.e, acc, c.e, false);
    if (lane == 0 && c.stat) {
        c.stat[2 * i] = m;
        c.stat[2 * i + 1] = l;
    }
}

template <int D, bool LIST, bool CODED, class T>
static void launch(ml_cuda_stream *s, const attn_call<T> &c) {
    unsigned blocks =
        ml_cuda_blocks((int64_t)(c.n_token - c.first_token) * c.n_head, WARPS);
    plain_forward<T, D, LIST, CODED><<<blocks, THREADS, 0, s->stream>>>(c);
    ml_cuda_launched(s, "attention");
}

template <class T> void ml_attn_plain(ml_cuda_stream *s, const attn_call<T> &c) {
    if (c.format)
        launch<ALL, false, true>(s, c);
    else if (c.d <= FEW && c.e <= FEW)
        launch<FEW, false, false>(s, c);
    else
        launch<ALL, false, false>(s, c);
}

template <class T> void ml_attn_plain_chosen(ml_cuda_stream *s, const attn_call<T> &c) {
    if (c.d <= FEW)
        launch<FEW, true, false>(s, c);
    else
        launch<ALL, true, false>(s, c);
}

/* ---- backward ---- */

/* dq.  A warp for each row and head; keys in ascending order. */
template <class T, int D, bool LIST> __global__ void plain_back_query(attn_call<T> c) {
    typedef pages<LIST, false> from;
    __shared__ float row[WARPS][D], out[WARPS][D], slope[WARPS][ML_KTILE];
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    int64_t i = (int64_t)blockIdx.x * WARPS + warp;
    query q;
    float m, inv_l, delta, acc[D / 32] = {};

    if (i >= (int64_t)c.n_token * c.n_head)
        return;
    q = query_of<LIST>(c, i);
    m = c.stat[2 * i];
    inv_l = 1.0f / c.stat[2 * i + 1];
    delta = c.delta[i];
    stage_row(row[warp], c.q + i * c.d, c.d);
    stage_row(out[warp], c.dout + i * c.e, c.e);
    if (LIST && q.last == 0 && !c.sink) /* the weight of a single key is 1: no gradient */
        q.last = -1;
    for (int tile = q.first / ML_KTILE * ML_KTILE; tile <= q.last; tile += ML_KTILE) {
        for (int key = tile + lane; key < tile + ML_KTILE; key += 32) {
            float s, dp, ds = 0.0f;
            if (key >= q.first && key <= q.last) {
                s = score(c, dot_with(row[warp], from::key(c, q, key), c.d));
                dp = dot_with(out[warp], from::value(c, q, key), c.e);
                ds = (ml_exp(s - m) * inv_l) * (dp - delta) * c.scale;
                if (c.softcap != 0.0f)
                    ds *= attn_cap_slope(s, c.softcap);
            }
            slope[warp][key - tile] = ds;
        }
        __syncwarp();
        for (int key = tile < q.first ? q.first : tile;
             key <= q.last && key < tile + ML_KTILE; key++)
            add_row(acc, slope[warp][key - tile], from::key(c, q, key), c.d);
        __syncwarp();
    }
    put_row(c.dq + i * c.d, acc, c.d, c.add_q);
}

/* A warp's dot product; every lane gets it. */
template <class T> __device__ static float warp_dot(const float *a, const T *b, int d) {
    float sum = 0.0f;
    for (int e = (int)threadIdx.x % 32; e < d; e += 32)
        sum = fmaf(a[e], ml_f32(b[e]), sum);
    return ml_warp_sum(sum);
}

/* P and dS of a key with row `at` of [n_token, n_head]. */
template <class T>
__device__ static void weigh(const attn_call<T> &c, const float *key, const float *value,
                             int64_t at, float &p, float &ds) {
    float s = score(c, warp_dot(key, c.q + at * c.d, c.d));
    float dp = warp_dot(value, c.dout + at * c.e, c.e);

    p = ml_exp(s - c.stat[2 * at]) * (1.0f / c.stat[2 * at + 1]);
    ds = p * (dp - c.delta[at]) * c.scale;
    if (c.softcap != 0.0f)
        ds *= attn_cap_slope(s, c.softcap);
}

/* dk, dv.  A warp for each key and KV head; ascending positions, then the group's heads.  Sums
 * are f64: ranks of context parallelism add sums of fewer positions to what one rank has. */
template <class T, int D> __global__ void plain_back_key(attn_call<T> c) {
    __shared__ float key_row[WARPS][D], value_row[WARPS][D];
    int warp = (int)threadIdx.x / 32;
    int64_t i = (int64_t)blockIdx.x * WARPS + warp;
    int row, head, seq, key;
    const int32_t *page;
    attn_reads by;
    double dk[D / 32] = {}, dv[D / 32] = {};

    if (i >= (int64_t)c.keys.n * c.n_kv)
        return;
    row = (int)(i / c.n_kv);
    head = (int)(i % c.n_kv);
    seq = attn_seq_of(c.keys.seq_start, c.keys.n_seq, row);
    page = c.keys.page + c.keys.page_start[seq];
    key = c.keys.pos[row];
    stage_row(key_row[warp], attn_key(c, page, head, key), c.d);
    stage_row(value_row[warp], attn_value(c, page, head, key), c.e);
    by = attn_readers(c, seq, c.keys.seq_start[seq], c.keys.piece != NULL);
    for (int t = by.first + attn_first_reader(c, by, row - c.keys.seq_start[seq]);
         t < by.first + by.n; t++)
        for (int g = attn_first_key(c, c.pos[t]) <= key ? 0 : c.group; g < c.group; g++) {
            int64_t at = (int64_t)t * c.n_head + head * c.group + g;
            float p, ds;
            weigh(c, key_row[warp], value_row[warp], at, p, ds);
            add_row(dk, ds, c.q + at * c.d, c.d);
            add_row(dv, p, c.dout + at * c.e, c.e);
        }
    put_key(c.dk, i * c.d, dk, c.d, c.add_k, by.pieces);
    put_key(c.dv_out, i * c.e, dv, c.e, c.add_v, by.pieces);
}

/* dk of ATTN_CHOSEN.  A warp for each key, of a row or compressed; the tokens that have it in
 * their list, ascending, then heads.  A row without a compressed key has zeros. */
template <class T, int D>
__global__ void plain_back_listed(attn_call<T> c, bool compressed) {
    __shared__ float row[WARPS][D];
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    int at_key = (int)blockIdx.x * WARPS + warp, ratio = compressed ? c.ratio : 1;
    int seq, pos, key, begin, end;
    attn_reads by;
    double dk[D / 32] = {};

    if (at_key >= c.keys.n)
        return;
    seq = attn_seq_of(c.keys.seq_start, c.keys.n_seq, at_key);
    pos = c.keys.pos[at_key];
    key = (pos + 1) / ratio - 1;
    by = attn_readers(c, seq, c.keys.seq_start[seq], c.keys.piece != NULL);
    begin = by.first + attn_first_reader(c, by, at_key - c.keys.seq_start[seq]);
    end = (pos + 1) % ratio == 0 ? by.first + by.n : begin;
    if (begin < end)
        stage_row(row[warp],
                  (compressed ? c.cpage : c.kpage) +
                      attn_slot(c.keys.page + c.keys.page_start[seq], key, ratio) * c.d,
                  c.d);
    for (int first = begin; first < end; first += 32) {
        bool lists = first + lane < end && attn_lists(c, first + lane, key, compressed);
        for (unsigned left = __ballot_sync(0xffffffffu, lists); left; left &= left - 1)
            for (int h = 0; h < c.n_head; h++) {
                int64_t at = (int64_t)(first + __ffs((int)left) - 1) * c.n_head + h;
                float p, ds;
                weigh(c, row[warp], row[warp], at, p, ds);
                add_row(dk, ds, c.q + at * c.d, c.d);
                add_row(dk, p, c.dout + at * c.e, c.e);
            }
    }
    put_key(c.dk, (int64_t)at_key * (c.ratio ? 2 : 1) * c.d + (compressed ? c.d : 0), dk,
            c.d, c.add_k, by.pieces);
}

template <int D, class T>
static void launch_back(ml_cuda_stream *s, const attn_call<T> &c) {
    unsigned queries = ml_cuda_blocks((int64_t)c.n_token * c.n_head, WARPS);
    unsigned keys = ml_cuda_blocks((int64_t)c.keys.n * c.n_kv, WARPS);

    if (c.dq)
        plain_back_query<T, D, false><<<queries, THREADS, 0, s->stream>>>(c);
    if (c.dk || c.dv_out)
        plain_back_key<T, D><<<keys, THREADS, 0, s->stream>>>(c);
    ml_cuda_launched(s, "attention backward");
}

template <int D, class T>
static void launch_chosen_back(ml_cuda_stream *s, const attn_call<T> &c) {
    unsigned queries = ml_cuda_blocks((int64_t)c.n_token * c.n_head, WARPS);
    unsigned keys = ml_cuda_blocks(c.keys.n, WARPS);

    if (c.dq)
        plain_back_query<T, D, true><<<queries, THREADS, 0, s->stream>>>(c);
    if (c.dk)
        plain_back_listed<T, D><<<keys, THREADS, 0, s->stream>>>(c, false);
    if (c.dk && c.ratio)
        plain_back_listed<T, D><<<keys, THREADS, 0, s->stream>>>(c, true);
    ml_cuda_launched(s, "attention backward");
}

template <class T> void ml_attn_plain_back(ml_cuda_stream *s, const attn_call<T> &c) {
    if (c.d <= FEW && c.e <= FEW)
        launch_back<FEW>(s, c);
    else
        launch_back<ALL>(s, c);
}

template <class T>
void ml_attn_plain_chosen_back(ml_cuda_stream *s, const attn_call<T> &c) {
    if (c.d <= FEW)
        launch_chosen_back<FEW>(s, c);
    else
        launch_chosen_back<ALL>(s, c);
}

#define INSTANTIATE(T)                                                                     \
    template void ml_attn_plain<T>(ml_cuda_stream *, const attn_call<T> &);                \
    template void ml_attn_plain_back<T>(ml_cuda_stream *, const attn_call<T> &);           \
    template void ml_attn_plain_chosen<T>(ml_cuda_stream *, const attn_call<T> &);         \
    template void ml_attn_plain_chosen_back<T>(ml_cuda_stream *, const attn_call<T> &);
INSTANTIATE(float)
INSTANTIATE(bf16)
