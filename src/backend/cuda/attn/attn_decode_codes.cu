/* attn_decode_codes.cu - attn_decode.cu for KV pages of codes: half the bytes, the same bits as
 * pages of bf16 with the numbers of the codes.
 *
 * Codes are copied to shared memory as they are, and dequantized in the registers of the mma
 * operands, each by one warp.  Keys have the order of such an operand in their page
 * (attn_codes.cuh).  A transposed load of values has two adjacent columns in each lane; so the
 * first 8 rows of an operand are the even columns of 16, and the others the odd ones.
 *
 * The softmax is divided, too: a warp has the weights of the keys whose scores it computed, and only
 * the largest score of a row and the weights pass through shared memory.  One warp adds the weights
 * of a row, in the order of attn_decode.cu.
 *
 * Scales of FP8 are powers of two, by which a sum of products may be multiplied afterwards: the same
 * bits.  So operands are the values of codes, a key's score is multiplied by its scale, and a value's
 * weight by the value's.  Weights are multiplied by BIAS, too, and the outputs divided by it, so that
 * no such product is subnormal.
 *
 * FP8 codes of keys become f16, which takes one instruction for two of them where bf16 takes four.
 * Queries are f16 then, too, times a power of two.  A row that f16 does not hold exactly keeps bf16:
 * products and sums are the same numbers either way. */
#include "backend/cuda/attn/attn_codes.cuh"
#include "backend/cuda/attn/attn_decode.cuh"

enum { STAGES = 2, MOST_SEQS = 65535 /* of a grid */ };

#define BIAS 0x1p40f

/* Whether scales are powers of two: a product with one is exact. */
template <int FORMAT> constexpr bool scales_exactly = FORMAT != ATTN_INT8;

/* The place of 16 codes of a row, from code e on: rows of a load are in different banks. */
template <int D> __device__ static int code_at(int row, int e) {
    if (D == 64)
        return row * 64 + ((e / 16 ^ row / 2) & 3) * 16;
    return row * 128 + ((e / 16 ^ row) & 7) * 16;
}

/* The pipeline of tiles, as in attn_decode.cu. */
template <int D> struct tiles {
    const int32_t *page;
    int32_t id, next_id; /* the warp's KV page of tile `at`, and of the next tile */
    int lo, hi;
    int at, n; /* the tile whose values are copied next: its first key, its stage */
    /* A lane's first 16 codes of a page, in page 0 and in a stage, and how far behind them its scales
     * are; of heads of D numbers. */
    const uint8_t *key, *value;
    int to, scales;
};

/* Heads of a sequence, whose pages are adjacent, are adjacent blocks. */
__device__ static int own_seq(void) {
    return (int)blockIdx.y;
}

__device__ static int own_head(void) {
    return (int)blockIdx.x;
}

template <int D> __device__ static int32_t page_of(const tiles<D> &t, int tile) {
    int first = tile + (int)threadIdx.x / 32 * ML_PAGE;
    return first <= t.hi && first + ML_PAGE > t.lo ? t.page[first / ML_PAGE] : 0;
}

/* Keys or values of a stage. */
struct stage {
    uint8_t *code;
    float *scale;
};

/* Starts the copies of a whole page of heads of D numbers. */
template <int D>
__device__ static void fetch_whole(const stage &to, const uint8_t *from,
                                   const tiles<D> &t) {
    const int at_once = 32 / (D / ATTN_UNIT);
    int lane = (int)threadIdx.x % 32;
    uint8_t *even = to.code + t.to, *odd = to.code + (t.to ^ 64);

#pragma unroll
    for (int i = 0; i < ML_PAGE; i += at_once)
        ml_copy_async((i % 8 ? odd : even) + i * D, from + i * D, true);
    if (lane < ML_PAGE / 4)
        ml_copy_async(to.scale + (int)threadIdx.x / 32 * ML_PAGE + 4 * lane,
                      from + t.scales, true);
}

/* Of a page of any heads; keys outside lo .. hi become zero. */
template <int D>
__device__ static void fetch_part(const stage &to, uint8_t *pages, int32_t id, int width,
                                  const tiles<D> &t, const attn_call<bf16> &c, int tile) {
    const int per_row = D / ATTN_UNIT, at_once = 32 / per_row;
    int lane = (int)threadIdx.x % 32, row = lane / per_row, e = lane % per_row * ATTN_UNIT;
    int own = (int)threadIdx.x / 32 * ML_PAGE, first = tile + own;
    attn_coded page = attn_coded_at(pages, id, own_head(), c.n_kv, 0, width);

    for (int i = 0; i < ML_PAGE; i += at_once) {
        int key = first + row + i;
        bool there = key >= t.lo && key <= t.hi && e < c.d;
        ml_copy_async(to.code + code_at<D>(own + row + i, e),
                      there ? page.code + (row + i) * width + e : pages, there);
    }
    if (lane < ML_PAGE) {
        bool there = first + lane >= t.lo && first + lane <= t.hi;
        ml_copy_async4(to.scale + own + lane, there ? (void *)(page.scale + lane) : pages,
                       there);
    }
}

template <int D, bool VALUES>
__device__ static void fetch_page(const stage &to, int32_t id, const tiles<D> &t,
                                  const attn_call<bf16> &c, int tile) {
    int64_t at = (int64_t)id * (c.n_kv * (ML_PAGE * (D + ML_KV_SCALE_BYTES)));

    if (c.d == D && tile >= t.lo && tile + ML_KTILE - 1 <= t.hi)
        fetch_whole(to, (VALUES ? t.value : t.key) + at, t);
    else if (tile <= t.hi)
        fetch_part(to, VALUES ? c.vcode : c.kcode, id, VALUES ? c.dv : c.d, t, c, tile);
}

/* The weights of a row as mma operands: of lane % 4, all steps of 16 keys, two words each. */
struct row_weights {
    uint32_t word[4][ML_KTILE / 16][2];
    uint32_t unused[4]; /* rows begin in different banks */
};

/* Shared memory: the queries; largest scores of a tile's rows among each warp's keys, of this tile
 * and the next; weights of this tile in f32, and as operands; stages of codes of keys, of values;
 * their scales. */
template <int D, int R> struct coded_smem {
    bf16 rows[DECODE_ROWS * attn_tile<D>::ld];
    float top[2][ATTN_WARPS][R * 8];
    float weight[R * 8][DECODE_LD];
    row_weights operand[R * 8];
    uint8_t key[STAGES][ML_KTILE * D], value[STAGES][ML_KTILE * D];
    float key_scale[STAGES][ML_KTILE], value_scale[STAGES][ML_KTILE];
};

__device__ static int next_stage(int n) {
    return n + 1 < STAGES ? n + 1 : 0;
}

template <int D, int R>
__device__ static void prefetch(tiles<D> &t, coded_smem<D, R> &smem,
                                const attn_call<bf16> &c) {
    int next = next_stage(t.n);

    fetch_page<D, false>({ smem.key[next], smem.key_scale[next] }, t.next_id, t, c,
                         t.at + ML_KTILE);
    fetch_page<D, true>({ smem.value[t.n], smem.value_scale[t.n] }, t.id, t, c, t.at);
    ml_copy_commit();
    t.id = t.next_id;
    t.at += ML_KTILE;
    t.n = next;
    t.next_id = page_of(t, t.at + ML_KTILE);
}

template <int D>
__device__ static void open_tiles(tiles<D> &t, const attn_call<bf16> &c, int seq) {
    int lane = (int)threadIdx.x % 32, row = lane / (D / ATTN_UNIT);
    int e = lane % (D / ATTN_UNIT) * ATTN_UNIT;
    int64_t head = own_head() * (int64_t)(ML_PAGE * D);

    t.page = c.page + c.page_start[seq];
    t.lo = attn_first_key(c, t.hi);
    t.at = t.lo / ML_KTILE * ML_KTILE;
    t.n = 0;
    t.id = page_of(t, t.at);
    t.next_id = page_of(t, t.at + ML_KTILE);
    t.key = c.kcode + head + row * D + e;
    t.value = c.vcode + head + row * D + e;
    t.to = code_at<D>((int)threadIdx.x / 32 * ML_PAGE + row, e);
    t.scales = (c.n_kv - own_head()) * ML_PAGE * D +
               own_head() * ML_PAGE * ML_KV_SCALE_BYTES + lane * 16 - (row * D + e);
}

/* Two adjacent codes as a pair of bf16 or, of FP8, of f16; without a scale that is a power of two. */
template <int FORMAT, int HALF, bool F16>
__device__ static uint32_t widen_pair(uint32_t w, float scale) {
    if constexpr (F16) {
        return attn_code_halves<FORMAT, HALF>(w);
    } else if constexpr (!scales_exactly<FORMAT>) {
        return attn_widen2<FORMAT, HALF>(w, scale);
    } else {
        float2 v = attn_code_values<FORMAT, HALF>(w);
        return ml_pack2(v.x, v.y);
    }
}

/* ---- scores ---- */

/* Second operands of the queries, in bf16 or f16. */
template <int D, int R> struct query_operands {
    uint32_t q[D / 16][R][2];
    bool half;           /* f16, times a power of two for each row */
    float unscale[R][2]; /* its inverse, of rows 8 r + lane % 4 * 2 and the next */
};

/* Two numbers of bf16, times a power of two, as f16; false if they are not exact. */
__device__ static bool halve(uint32_t &w, float scale) {
    float x = __uint_as_float(w << 16) * scale;
    float y = __uint_as_float(w & 0xffff0000u) * scale;
    __half2 h = __floats2half2_rn(x, y);
    float2 back = __half22float2(h);

    w = *(uint32_t *)&h;
    return back.x == x && back.y == y;
}

/* The power of two that brings the largest number of the lanes' row to 2^14 .. 2^15, if it is
 * within 2^-60 .. 2^60 or 0; otherwise NaN, with which no number is exact. */
template <int D, int R>
__device__ static float scale_of_row(const uint32_t (&q)[D / 16][R][2], int r) {
    uint32_t most = 0, up;

#pragma unroll
    for (int k = 0; k < D / 16; k++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            uint32_t w = q[k][r][i];
            most = max(most, max(w << 16 & 0x7fff0000u, w & 0x7fff0000u));
        }
    most = max(most, __shfl_xor_sync(0xffffffffu, most, 1));
    most = max(most, __shfl_xor_sync(0xffffffffu, most, 2));
    up = most >> 23;
    if (most == 0)
        return 1.0f;
    return up < 127 - 60 || up > 127 + 60 ? NAN
                                          : __uint_as_float((2 * 127 + 14 - up) << 23);
}

template <int D, int R> __device__ static void halve_queries(query_operands<D, R> &x) {
    uint32_t h[D / 16][R][2];

    x.half = true;
#pragma unroll
    for (int r = 0; r < R; r++) {
        float scale = scale_of_row<D, R>(x.q, r), unscale = 1.0f / scale;
#pragma unroll
        for (int k = 0; k < D / 16; k++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                h[k][r][i] = x.q[k][r][i];
                x.half &= halve(h[k][r][i], scale);
            }
        x.unscale[r][0] = decode_of_row(unscale, 0);
        x.unscale[r][1] = decode_of_row(unscale, 1);
    }
    x.half = __all_sync(0xffffffffu, x.half);
    if (x.half) {
        memcpy(x.q, h, sizeof h);
        return;
    }
#pragma unroll
    for (int r = 0; r < R; r++)
        x.unscale[r][0] = x.unscale[r][1] = 1.0f;
}

template <int D, int R, int FORMAT>
__device__ static void open_queries(query_operands<D, R> &x, const bf16 *rows) {
    decode_queries<D, R>(x.q, rows);
    x.half = false;
    if (scales_exactly<FORMAT>)
        halve_queries<D, R>(x);
}

/* Codes of a warp's 16 keys.  A load has two mma steps of them. */
template <int D>
__device__ static void load_keys(uint32_t (&code)[D / 32][4], const uint8_t *keys) {
    int own = (int)threadIdx.x / 32 * DECODE_OWN, lane = (int)threadIdx.x % 32;

#pragma unroll
    for (int k = 0; k < D / 32; k++)
        ml_ldmatrix4(code[k], keys + code_at<D>(own + lane / 16 * 8 + lane % 8,
                                                k * 32 + lane / 8 % 2 * 16));
}

/* ml_mma of f16. */
__device__ static void mma_half(float (&c)[4], const uint32_t (&a)[4],
                                const uint32_t (&b)[2]) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* Sums over a warp's 16 keys, with operands of f16 or bf16. */
template <int D, int R, int FORMAT, bool HALF>
__device__ static void add_keys(float (&s)[R][4], const query_operands<D, R> &x,
                                const uint32_t (&code)[D / 32][4], float first,
                                float second) {
#pragma unroll
    for (int k = 0; k < D / 16; k++) {
        uint32_t w0 = code[k / 2][k % 2], w1 = code[k / 2][2 + k % 2];
        uint32_t a[4] = { widen_pair<FORMAT, 0, HALF>(w0, first),
                          widen_pair<FORMAT, 0, HALF>(w1, second),
                          widen_pair<FORMAT, 1, HALF>(w0, first),
                          widen_pair<FORMAT, 1, HALF>(w1, second) };
#pragma unroll
        for (int r = 0; r < R; r++)
            if (HALF)
                mma_half(s[r], a, x.q[k][r]);
            else
                ml_mma(s[r], a, x.q[k][r][0], x.q[k][r][1]);
    }
}

/* Scores of a warp's 16 keys, before scaling. */
template <int D, int R, int FORMAT>
__device__ static void coded_scores(float (&s)[R][4], const query_operands<D, R> &x,
                                    const uint8_t *keys, const float *scales) {
    int own = (int)threadIdx.x / 32 * DECODE_OWN, lane = (int)threadIdx.x % 32;
    float first = scales[own + lane / 4], second = scales[own + 8 + lane / 4];
    uint32_t code[D / 32][4];

#pragma unroll
    for (int r = 0; r < R; r++)
        s[r][0] = s[r][1] = s[r][2] = s[r][3] = 0.0f;
    load_keys<D>(code, keys);
    if constexpr (scales_exactly<FORMAT>) {
        if (x.half)
            add_keys<D, R, FORMAT, true>(s, x, code, first, second);
        else
            add_keys<D, R, FORMAT, false>(s, x, code, first, second);
#pragma unroll
        for (int r = 0; r < R; r++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                s[r][i] *= x.unscale[r][i % 2];
    } else {
        add_keys<D, R, FORMAT, false>(s, x, code, first, second);
    }
    if (scales_exactly<FORMAT>) {
#pragma unroll
        for (int r = 0; r < R; r++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                s[r][i] *= i < 2 ? first : second;
    }
}

/* ---- values ---- */

/* Codes of the warp's columns of the values: of keys 16 k .. 16 k + 7 in the first word of a
 * pair, of the next 8 in the second; a word has two columns of two keys. */
template <int D, int M>
__device__ static void load_values(uint32_t (&code)[4][M][2], const uint8_t *values) {
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;

#pragma unroll
    for (int i = 0; i < 2 * M; i++) { /* a load has two steps of keys, or 32 columns */
        uint32_t r[4];
        int row = M == 1 ? i * 32 + lane : i * 16 + lane % 16;
        int e = M == 1 ? warp * 16 : warp * 32 + lane / 16 * 16;
        ml_ldmatrix4_trans(r, values + code_at<D>(row, e));
#pragma unroll
        for (int k = 0; k < 4; k++)
            if (M == 1)
                code[2 * i + k / 2][0][k % 2] = r[k];
            else
                code[i][k / 2][k % 2] = r[k];
    }
}

/* The operands of the even and the odd columns: of two keys with their scales. */
template <int FORMAT>
__device__ static void widen_columns(uint32_t &even, uint32_t &odd, uint32_t code,
                                     float2 scale) {
    float2 a = attn_code_values<FORMAT, 0>(code), b = attn_code_values<FORMAT, 1>(code);

    if (scales_exactly<FORMAT>)
        scale = make_float2(1.0f, 1.0f);
    even = ml_pack2(a.x * scale.x, b.x * scale.y);
    odd = ml_pack2(a.y * scale.x, b.y * scale.y);
}

template <int R, int M, int FORMAT>
__device__ static void add_values(float (&acc)[R][M][4], const uint32_t (&w)[R][4][2],
                                  const uint32_t (&code)[4][M][2], const float *scales) {
    int lane = (int)threadIdx.x % 32;

#pragma unroll
    for (int k = 0; k < 4; k++) {
        float2 first = *(const float2 *)(scales + k * 16 + lane % 4 * 2);
        float2 second = *(const float2 *)(scales + k * 16 + 8 + lane % 4 * 2);
#pragma unroll
        for (int j = 0; j < M; j++) {
            uint32_t a[4];
            widen_columns<FORMAT>(a[0], a[1], code[k][j][0], first);
            widen_columns<FORMAT>(a[2], a[3], code[k][j][1], second);
#pragma unroll
            for (int r = 0; r < R; r++)
                ml_mma(acc[r][j], a, w[r][k][0], w[r][k][1]);
        }
    }
}

/* ---- softmax ---- */

/* Of the rows of a lane's scores and sums, 8 r + lane % 4 * 2 and the next. */
template <int R> struct pair_state {
    float m[R][2];
    float keep[R][2]; /* what a row's sums are multiplied by before a tile is added */
    float to_log2;
};

template <int R> __device__ static pair_state<R> open_softmax(const attn_call<bf16> &c) {
    pair_state<R> x = {};

    x.to_log2 = c.softcap != 0.0f ? ML_LOG2E : c.scale * ML_LOG2E;
#pragma unroll
    for (int r = 0; r < R; r++)
        x.m[r][0] = x.m[r][1] = -INFINITY;
    return x;
}

/* Softcap and mask of a lane's scores: element i is of key lane / 4 + i / 2 * 8 of the warp's 16. */
template <int R>
__device__ static void end_scores(float (&s)[R][4], int tile, int lo, int hi,
                                  const attn_call<bf16> &c) {
    int key = tile + (int)threadIdx.x / 32 * DECODE_OWN + (int)threadIdx.x % 32 / 4;

    if (c.softcap != 0.0f) {
#pragma unroll
        for (int r = 0; r < R; r++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                s[r][i] = c.softcap * ml_tanh(s[r][i] * c.scale / c.softcap);
    }
    if (tile < lo || tile + ML_KTILE - 1 > hi) {
#pragma unroll
        for (int r = 0; r < R; r++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (key + i / 2 * 8 > hi || key + i / 2 * 8 < lo)
                    s[r][i] = -INFINITY;
    }
}

/* The largest scores of the warp's keys. */
template <int R>
__device__ static void put_top(float (&top)[ATTN_WARPS][R * 8], const float (&s)[R][4]) {
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;

#pragma unroll
    for (int r = 0; r < R; r++) {
        float2 t = make_float2(fmaxf(s[r][0], s[r][2]), fmaxf(s[r][1], s[r][3]));
#pragma unroll
        for (int w = 4; w < 32; w <<= 1) {
            t.x = fmaxf(t.x, __shfl_xor_sync(0xffffffffu, t.x, w));
            t.y = fmaxf(t.y, __shfl_xor_sync(0xffffffffu, t.y, w));
        }
        if (lane < 4)
            *(float2 *)&top[warp][8 * r + lane * 2] = t;
    }
}

/* A row's largest score so far. */
template <int R>
__device__ static void raise_top(pair_state<R> &x, const float (&tops)[ATTN_WARPS][R * 8]) {
    int lane = (int)threadIdx.x % 32;

#pragma unroll
    for (int r = 0; r < R; r++) {
        float top[2] = { x.m[r][0], x.m[r][1] };
#pragma unroll
        for (int w = 0; w < ATTN_WARPS; w++) {
            float2 t = *(const float2 *)&tops[w][8 * r + lane % 4 * 2];
            top[0] = fmaxf(top[0], t.x);
            top[1] = fmaxf(top[1], t.y);
        }
#pragma unroll
        for (int i = 0; i < 2; i++) {
            x.keep[r][i] =
                top[i] == x.m[r][i] ? 1.0f : ml_exp2((x.m[r][i] - top[i]) * x.to_log2);
            x.m[r][i] = top[i];
        }
    }
}

/* Weights of the warp's keys: in f32, and as operands with the scales of the values, if these are
 * powers of two. */
template <int D, int R, int FORMAT>
__device__ static void put_weights(coded_smem<D, R> &smem, const float (&s)[R][4],
                                   const pair_state<R> &x, const float *scales) {
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    int own = warp * DECODE_OWN + lane / 4;
    float scale[2] = { scales[own] * BIAS, scales[own + 8] * BIAS };

#pragma unroll
    for (int r = 0; r < R; r++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int row = 8 * r + lane % 4 * 2 + i % 2;
            float top = x.m[r][i % 2], shift = top == -INFINITY ? 0.0f : top * x.to_log2;
            float p = ml_exp2(fmaf(s[r][i], x.to_log2, -shift));
            bf16 *to = (bf16 *)&smem.operand[row].word[lane / 8][warp][i / 2];
            smem.weight[row][own + i / 2 * 8] = p;
            to[lane / 4 % 2] = ml_as<bf16>(scales_exactly<FORMAT> ? p * scale[i / 2] : p);
        }
}

template <int D, int R>
__device__ static void get_weights(uint32_t (&w)[R][4][2], const coded_smem<D, R> &smem) {
    int lane = (int)threadIdx.x % 32;

#pragma unroll
    for (int r = 0; r < R; r++) {
        const uint4 *from = (const uint4 *)smem.operand[8 * r + lane / 4].word[lane % 4];
        *(uint4 *)w[r][0] = from[0];
        *(uint4 *)w[r][2] = from[1];
    }
}

/* Of a row lane / 4 + 8 r, what the lanes that have this row in a pair have. */
__device__ static float of_pair(const float (&x)[2]) {
    int row = (int)threadIdx.x % 32 / 4;
    float even = __shfl_sync(0xffffffffu, x[0], row / 2),
          odd = __shfl_sync(0xffffffffu, x[1], row / 2);

    return row % 2 ? odd : even;
}

/* Adds the weights of a tile to the sum of row lane / 4 + 8 r. */
template <int D, int R>
__device__ static void sum_weights(float (&l)[R], const coded_smem<D, R> &smem,
                                   const pair_state<R> &x) {
    int lane = (int)threadIdx.x % 32;

#pragma unroll
    for (int r = 0; r < R; r++) {
        const float *row = smem.weight[8 * r + lane / 4] + lane % 4 * 2;
        float sum = 0.0f;
        l[r] *= of_pair(x.keep[r]);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            float2 p = *(const float2 *)(row + j * 8);
            sum += p.x;
            sum += p.y;
        }
        l[r] += sum;
    }
}

/* Multiplies the sums of a lane's rows. */
template <int R, int M>
__device__ static void rescale(float (&acc)[R][M][4], const float (&by)[R][2]) {
#pragma unroll
    for (int r = 0; r < R; r++)
#pragma unroll
        for (int j = 0; j < M; j++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                acc[r][j][i] *= by[r][i % 2];
}

/* Largest scores and sums of the rows, as decode_close reads them.  sums: this warp has added the
 * weights. */
template <int D, int R>
__device__ static decode_state<R> close_softmax(coded_smem<D, R> &smem,
                                                const pair_state<R> &x, const float (&l)[R],
                                                bool sums) {
    int lane = (int)threadIdx.x % 32;
    float *from = smem.top[0][0];
    decode_state<R> all = {};

    static_assert(sizeof smem.top >= R * 32 * sizeof(float), "room of a warp's sums");
    __syncthreads(); /* largest scores are no longer read */
#pragma unroll
    for (int r = 0; r < R; r++)
        if (sums)
            from[32 * r + lane] = l[r];
    __syncthreads();
#pragma unroll
    for (int r = 0; r < R; r++) {
        all.m[r] = of_pair(x.m[r]);
        all.l[r] = from[32 * r + lane];
    }
    return all;
}

template <int R, int M> __device__ static void remove_bias(float (&acc)[R][M][4]) {
    float by[R][2];

#pragma unroll
    for (int r = 0; r < R; r++)
        by[r][0] = by[r][1] = 1.0f / BIAS;
    rescale<R, M>(acc, by);
}

template <int D, int R, int FORMAT>
__global__ void __launch_bounds__(ATTN_THREADS, R == 1 ? 4 : 3)
    decode_codes_forward(attn_call<bf16> c) {
    const int M = D / 16 / ATTN_WARPS; /* 16-column tiles per warp */
    extern __shared__ __align__(128) unsigned char smem_bytes[];
    coded_smem<D, R> &smem = *(coded_smem<D, R> *)smem_bytes;
    int seq = own_seq(), head = own_head();
    bool sums = threadIdx.x / 32 == (unsigned)(seq + head) % ATTN_WARPS; /* one warp */
    tiles<D> t;
    query_operands<D, R> q;
    float s[R][4], l[R] = {}, acc[R][M][4] = {};
    pair_state<R> x = open_softmax<R>(c);
    decode_state<R> end;

    ml_grid_release();
    t.hi = c.pos[seq]; /* no kernel of the step writes the batch: read before the wait */
    open_tiles(t, c, seq);
    ml_grid_wait();
    if (t.hi < 0) /* padding */
        return;
    attn_fetch_rows<D, DECODE_ROWS>(smem.rows, c.q, c, seq, head, 0, c.group);
    fetch_page<D, false>({ smem.key[0], smem.key_scale[0] }, t.id, t, c, t.at);
    ml_copy_commit();
    for (int n = 0; n < STAGES - 1; n++)
        prefetch(t, smem, c);
    ml_copy_wait<STAGES - 1>();
    __syncthreads();
    open_queries<D, R, FORMAT>(q, smem.rows);
    coded_scores<D, R, FORMAT>(s, q, smem.key[0], smem.key_scale[0]);
    end_scores<R>(s, t.lo / ML_KTILE * ML_KTILE, t.lo, t.hi, c);
    put_top<R>(smem.top[0], s);
    for (int tile = t.lo / ML_KTILE * ML_KTILE, n = 0, now = 0; tile <= t.hi;
         tile += ML_KTILE, n ^= 1) {
        uint32_t w[R][4][2], code[4][M][2];
        int next = next_stage(now);

        ml_copy_wait<STAGES - 2>();
        __syncthreads(); /* this tile's largest scores and values arrived; a stage is free */
        prefetch(t, smem, c);
        raise_top<R>(x, smem.top[n]);
        put_weights<D, R, FORMAT>(smem, s, x, smem.value_scale[now]);
        load_values<D, M>(code, smem.value[now]);
        coded_scores<D, R, FORMAT>(s, q, smem.key[next],
                                   smem.key_scale[next]); /* unused after the last */
        end_scores<R>(s, tile + ML_KTILE, t.lo, t.hi, c);
        put_top<R>(smem.top[n ^ 1], s);
        __syncthreads(); /* weights arrived */
        get_weights<D, R>(w, smem);
        rescale<R, M>(acc, x.keep);
        add_values<R, M, FORMAT>(acc, w, code, smem.value_scale[now]);
        if (sums)
            sum_weights<D, R>(l, smem, x);
        now = next;
    }
    if (scales_exactly<FORMAT>)
        remove_bias<R, M>(acc);
    end = close_softmax<D, R>(smem, x, l, sums);
    if (D == ML_FP8_GROUP && c.codes.code)
        decode_put_coded_rows<R, M, true>(end, acc, c, seq, head,
                                          *(float(*)[ATTN_WARPS][R * 8]) smem.weight);
    decode_put_rows<R, M, true>(end, acc, c, seq, head);
}

template <int D, int R, int FORMAT>
static void launch(ml_cuda_stream *s, const attn_call<bf16> &c) {
    const int bytes = (int)sizeof(coded_smem<D, R>);

    ml_cuda_note(s,
                 cudaFuncSetAttribute(decode_codes_forward<D, R, FORMAT>,
                                      cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
                 "attention");
    ml_cuda_launch(s, "attention", decode_codes_forward<D, R, FORMAT>,
                   dim3((unsigned)c.n_kv, (unsigned)c.n_seq), ATTN_THREADS, (size_t)bytes,
                   c);
}

template <int FORMAT> static void choose(ml_cuda_stream *s, const attn_call<bf16> &c) {
    if (c.d <= 64)
        c.group <= 8 ? launch<64, 1, FORMAT>(s, c) : launch<64, 2, FORMAT>(s, c);
    else
        c.group <= 8 ? launch<128, 1, FORMAT>(s, c) : launch<128, 2, FORMAT>(s, c);
}

bool ml_attn_decode_codes_supports(const attn_call<bf16> &c) {
    return c.format && attn_is_paired(c.d) && c.n_token == c.n_seq &&
           c.n_seq <= MOST_SEQS && c.group <= DECODE_ROWS;
}

void ml_attn_decode_codes(ml_cuda_stream *s, const attn_call<bf16> &c) {
    if (c.format == ATTN_E4M3)
        choose<ATTN_E4M3>(s, c);
    else if (c.format == ATTN_E5M2)
        choose<ATTN_E5M2>(s, c);
    else
        choose<ATTN_INT8>(s, c);
}
