/* index.cu - INDEX: selects the keys a row attends to (lightning indexer of DeepSeek-V3.2).
 *
 * A block has a row.  It computes the scores of its keys, some at a time, and appends those
 * above the threshold to a list in shared memory; when the list is full, a radix select
 * cuts it to the top_k best, the last of which is the new threshold.  The order of keys is
 * total (score, then position), so the selection depends on neither the order in which
 * threads append nor on when the list is cut.  At last a bitonic sort by position.
 *
 * bf16 heads of up to 128 numbers, a multiple of 16, use tensor cores (mma): 16 heads times
 * 8 keys at a time, whose products are weighted and summed over heads in one order. */
#include "backend/cuda/mma.cuh"
#include "backend/cuda/attn/attn.cuh"

enum {
    THREADS = 256,
    WARPS = THREADS / 32,
    BINS = 256,
    MMA_D = 128, /* numbers of a head at most */
    MMA_LD = MMA_D + 8,
    MMA_TILES = THREADS / WARPS / 8, /* of 8 keys each, per warp */
    MOST_BYTES = 160 << 10           /* of shared memory, which all cards have */
};

/* Entries of a row's list. */
static int entries(int top_k) {
    return 2 * top_k + THREADS;
}

template <class T> struct index_call {
    const T *q, *weight, *kpage;
    const int32_t *given; /* NULL: the op selects */
    int32_t *chosen;
    const int32_t *pos, *seq_start, *page_start, *page;
    int n_seq, n_head, d, top_k, ratio, cap; /* cap: entries of the list */
    int q_bytes, padded;                     /* padded: n_head, to a multiple of 16 */
    float scale, weight_scale;
};

/* Shared memory: the list, the row's q, its weights, and numbers that threads share. */
struct index_smem {
    uint64_t *list;
    void *q;               /* float [n_head, d], or for mma bf16 [n_head, MMA_LD] */
    float *weight, *score; /* score: of the keys of a step, by mma */
    int *bin;              /* [BINS] */
    int *n; /* entries of the list; below: the radix select's digit and remainder */
    int *digit, *left;
    int *base; /* [WARPS] of a prefix sum */
};

/* q_bytes: a multiple of 16; so is n_head. */
__device__ static index_smem open_smem(unsigned char *smem, int cap, int q_bytes,
                                       int n_head) {
    index_smem m;

    m.q = smem;
    m.list = (uint64_t *)(smem + q_bytes);
    m.weight = (float *)(m.list + cap);
    m.score = m.weight + n_head;
    m.bin = (int *)(m.score + THREADS);
    m.n = m.bin + BINS;
    m.digit = m.n + 1;
    m.left = m.n + 2;
    m.base = m.n + 3;
    return m;
}

static int padded(int n) {
    return (n + ML_LANES - 1) / ML_LANES * ML_LANES;
}

static int q_bytes(int n_head, int d, bool mma) {
    return mma ? padded(n_head) * MMA_LD * (int)sizeof(bf16)
               : padded(n_head * d) * (int)sizeof(float);
}

static size_t smem_bytes(int top_k, int n_head, int d, bool mma) {
    return (size_t)entries(top_k) * sizeof(uint64_t) + (size_t)q_bytes(n_head, d, mma) +
           (size_t)(padded(n_head) + THREADS + BINS + 3 + WARPS) * sizeof(float);
}

/* A larger number is the better key: higher scores, of equal ones the earlier position.
 * Never 0.  NaN counts as -inf. */
__device__ static uint64_t rank_of(float score, int pos) {
    uint32_t bits;

    if (!(score == score))
        score = -INFINITY;
    bits = __float_as_uint(score + 0.0f); /* -0 becomes +0 */
    bits = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return (uint64_t)bits << 32 | (uint32_t)~pos;
}

__device__ static int pos_of(uint64_t rank) {
    return (int)~(uint32_t)rank;
}

/* The k-th largest entry of the list (radix select, 8 bits at a time). */
__device__ static uint64_t kth_largest(const index_smem &m, int n, int k) {
    uint64_t prefix = 0, mask = 0;

    for (int shift = 56; shift >= 0; shift -= 8) {
        for (int i = (int)threadIdx.x; i < BINS; i += THREADS)
            m.bin[i] = 0;
        __syncthreads();
        for (int i = (int)threadIdx.x; i < n; i += THREADS)
            if ((m.list[i] & mask) == prefix)
                atomicAdd(&m.bin[(int)(m.list[i] >> shift & 255)], 1);
        __syncthreads();
        if (threadIdx.x == 0) {
            int at = BINS - 1, above = 0;
            while (at > 0 && above + m.bin[at] < k)
                above += m.bin[at--];
            *m.digit = at;
            *m.left = k - above;
        }
        __syncthreads();
        prefix |= (uint64_t)*m.digit << shift;
        mask |= (uint64_t)255 << shift;
        k = *m.left;
        __syncthreads();
    }
    return prefix;
}

/* The thread's place among those of the block for which `take` is true; *n: how many. */
__device__ static int place_of(const index_smem &m, bool take, int *n) {
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, before = 0;
    unsigned who = __ballot_sync(0xffffffffu, take);

    if (lane == 0)
        m.base[warp] = __popc(who);
    __syncthreads();
    *n = 0;
    for (int i = 0; i < WARPS; i++) {
        before += i < warp ? m.base[i] : 0;
        *n += m.base[i];
    }
    __syncthreads();
    return before + __popc(who & ((1u << lane) - 1));
}

/* Keeps the k best of the n entries; returns the last of them.  In place: an entry never
 * moves to a place that has not been read. */
__device__ static uint64_t cut(const index_smem &m, int n, int k) {
    uint64_t least = kth_largest(m, n, k);
    int to = 0;

    for (int first = 0; first < n; first += THREADS) {
        int i = first + (int)threadIdx.x, more, at;
        uint64_t x = i < n ? m.list[i] : 0;
        at = place_of(m, x >= least, &more); /* after it all threads have read */
        if (x >= least)
            m.list[to + at] = x;
        to += more;
    }
    __syncthreads();
    return least;
}

/* Sorts n integers at the list's place, padded to a power of two, ascending. */
__device__ static void sort(int *x, int n) {
    int size = 1;

    while (size < n)
        size *= 2;
    for (int i = n + (int)threadIdx.x; i < size; i += THREADS)
        x[i] = 0x7fffffff;
    __syncthreads();
    for (int run = 2; run <= size; run *= 2)
        for (int step = run / 2; step; step /= 2) {
            for (int i = (int)threadIdx.x; i < size; i += THREADS) {
                int j = i ^ step;
                bool up = (i & run) == 0;
                if (j > i && (x[i] > x[j]) == up) {
                    int swap = x[i];
                    x[i] = x[j];
                    x[j] = swap;
                }
            }
            __syncthreads();
        }
}

/* The score of a key: over heads in order, each a chain over the head's numbers. */
template <class T>
__device__ static float score_of(const index_call<T> &c, const index_smem &m,
                                 const T *key) {
    const float *q = (const float *)m.q;
    float sum = 0.0f;

    for (int h = 0; h < c.n_head; h++) {
        float dot = 0.0f;
        for (int i = 0; i < c.d; i++)
            dot = fmaf(q[h * c.d + i], ml_f32(key[i]), dot);
        dot *= c.scale;
        sum = fmaf(m.weight[h], dot > 0.0f ? dot : 0.0f, sum);
    }
    return sum;
}

/* B fragments of the warp's keys, read from their pages; keys from n_key on are zero. */
template <class T>
__device__ static void load_keys(uint32_t (&b)[MMA_TILES][MMA_D / 16][2],
                                 const index_call<T> &c, int first, int n_key,
                                 const int32_t *page) {
    int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < MMA_TILES; j++) {
        int key = first + j * 8 + lane / 4;
        const T *from = c.kpage;
        if (key < n_key)
            from += attn_slot(page, key, c.ratio) * c.d;
#pragma unroll
        for (int k = 0; k < MMA_D / 16; k++)
#pragma unroll
            for (int h = 0; h < 2; h++)
                b[j][k][h] = key < n_key && k * 16 < c.d
                                 ? *(const uint32_t *)(from + k * 16 + h * 8 + lane % 4 * 2)
                                 : 0;
    }
}

/* Scores of 256 keys from `first` on, to shared memory: 32 keys a warp, 16 heads at a time.
 * A lane sums over every eighth head, then eight lanes their sums. */
template <class T>
__device__ static void score_keys(const index_call<T> &c, const index_smem &m, int first,
                                  int n_key, const int32_t *page) {
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    int own = warp * MMA_TILES * 8;
    uint32_t b[MMA_TILES][MMA_D / 16][2];
    float sum[MMA_TILES][2] = {};

    load_keys(b, c, first + own, n_key, page);
    for (int head = 0; head < c.padded; head += 16) {
        float s[MMA_TILES][4] = {};
#pragma unroll
        for (int k = 0; k < MMA_D / 16; k++) {
            uint32_t a[4];
            ml_ldmatrix4(a, (const bf16 *)m.q + (head + lane % 16) * MMA_LD + k * 16 +
                                lane / 16 * 8);
#pragma unroll
            for (int j = 0; j < MMA_TILES; j++)
                ml_mma(s[j], a, b[j][k][0], b[j][k][1]);
        }
#pragma unroll
        for (int j = 0; j < MMA_TILES; j++)
#pragma unroll
            for (int k = 0; k < 4; k++) {
                float x = s[j][k] * c.scale;
                sum[j][k % 2] = fmaf(m.weight[head + lane / 4 + k / 2 * 8],
                                     x > 0.0f ? x : 0.0f, sum[j][k % 2]);
            }
    }
#pragma unroll
    for (int j = 0; j < MMA_TILES; j++)
#pragma unroll
        for (int k = 0; k < 2; k++) {
            float x = sum[j][k];
            for (int w = 4; w < 32; w *= 2)
                x += __shfl_xor_sync(0xffffffffu, x, w);
            if (lane < 4)
                m.score[own + j * 8 + lane * 2 + k] = x;
        }
    __syncthreads();
}

/* The row's queries and weights, to shared memory; zeros where there are none. */
template <class T, bool MMA>
__device__ static void load_row(const index_call<T> &c, const index_smem &m, int row) {
    const T *q = c.q + (int64_t)row * c.n_head * c.d;

    for (int i = (int)threadIdx.x; MMA && i < c.padded * MMA_D; i += THREADS) {
        int h = i / MMA_D, e = i % MMA_D;
        ((T *)m.q)[h * MMA_LD + e] =
            h < c.n_head && e < c.d ? q[h * c.d + e] : ml_as<T>(0.0f);
    }
    for (int i = (int)threadIdx.x; !MMA && i < c.n_head * c.d; i += THREADS)
        ((float *)m.q)[i] = ml_f32(q[i]);
    for (int i = (int)threadIdx.x; i < c.padded; i += THREADS)
        m.weight[i] = i < c.n_head
                          ? ml_f32(c.weight[(int64_t)row * c.n_head + i]) * c.weight_scale
                          : 0.0f;
    __syncthreads();
}

/* Leaves the top_k best of n_key keys in the list. */
template <class T, bool MMA>
__device__ static void choose_keys(const index_call<T> &c, const index_smem &m, int row,
                                   int n_key, const int32_t *page) {
    uint64_t least = 0;
    int n = 0;

    load_row<T, MMA>(c, m, row);
    for (int first = 0; first < n_key; first += THREADS) {
        int key = first + (int)threadIdx.x, more, at;
        uint64_t rank = 0;
        if (MMA)
            score_keys(c, m, first, n_key, page);
        if (key < n_key)
            rank =
                rank_of(MMA ? m.score[threadIdx.x]
                            : score_of(c, m, c.kpage + attn_slot(page, key, c.ratio) * c.d),
                        key);
        at = place_of(m, rank > least, &more);
        if (rank > least)
            m.list[n + at] = rank;
        n += more;
        __syncthreads();
        if (n > c.cap - THREADS || (first + THREADS >= n_key && n > c.top_k)) {
            least = cut(m, n, c.top_k);
            n = c.top_k;
        }
    }
}

/* The positions in the list, in place: the first n_key are read before they are written. */
__device__ static void to_positions(const index_smem &m, int n) {
    int *to = (int *)m.list;

    for (int first = 0; first < n; first += THREADS) {
        int i = first + (int)threadIdx.x, pos = i < n ? pos_of(m.list[i]) : 0;
        __syncthreads();
        if (i < n)
            to[i] = pos;
        __syncthreads();
    }
}

template <class T, bool MMA>
__global__ void __launch_bounds__(THREADS) index_rows(index_call<T> c) {
    extern __shared__ __align__(16) unsigned char smem[];
    index_smem m = open_smem(smem, c.cap, c.q_bytes, c.padded);
    int row = (int)blockIdx.x, n = (c.pos[row] + 1) / c.ratio;
    const int32_t *given = c.given ? c.given + (int64_t)row * c.top_k : NULL;
    const int32_t *page = c.page + c.page_start[attn_seq_of(c.seq_start, c.n_seq, row)];
    int *sorted = (int *)m.list;
    bool all = n <= c.top_k;

    if (given && given[0] >= 0) {
        n = 0;
        for (int first = 0; first < c.top_k; first += THREADS) {
            int i = first + (int)threadIdx.x, more, at;
            int key = i < c.top_k ? given[i] : -1;
            at = place_of(m, key >= 0, &more);
            if (key >= 0)
                sorted[n + at] = key;
            n += more;
        }
        sort(sorted, n);
        all = false;
    } else if (!all) {
        choose_keys<T, MMA>(c, m, row, n, page);
        n = c.top_k;
        to_positions(m, n);
        sort(sorted, n);
    }
    __syncthreads();
    for (int i = (int)threadIdx.x; i < c.top_k; i += THREADS)
        c.chosen[(int64_t)row * c.top_k + i] = i >= n ? -1 : all ? i : sorted[i];
}

/* Depends on the model only. */
static bool takes_mma(const ml_op_attr *attr, ml_dtype dtype) {
    return dtype == ML_BF16 && attr->index.head_dim % 16 == 0 &&
           attr->index.head_dim <= MMA_D;
}

template <class T, bool MMA>
static void launch(ml_cuda_stream *s, index_call<T> c, int n_row) {
    size_t bytes = smem_bytes(c.top_k, c.n_head, c.d, MMA);

    c.cap = entries(c.top_k);
    c.padded = padded(c.n_head);
    c.q_bytes = q_bytes(c.n_head, c.d, MMA);
    ml_cuda_note(s,
                 cudaFuncSetAttribute(index_rows<T, MMA>,
                                      cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      (int)bytes),
                 "key selection");
    index_rows<T, MMA><<<(unsigned)n_row, THREADS, bytes, s->stream>>>(c);
    ml_cuda_launched(s, "key selection");
}

static void select_keys(ml_cuda_stream *s, const index_call<float> &c, int n_row, bool) {
    launch<float, false>(s, c, n_row);
}

static void select_keys(ml_cuda_stream *s, const index_call<bf16> &c, int n_row, bool mma) {
    if (mma)
        launch<bf16, true>(s, c, n_row);
    else
        launch<bf16, false>(s, c, n_row);
}

template <class T> static void index_forward(ml_stream *s, const ml_op_args *a) {
    index_call<T> c = {};
    attn_keys keys = { a->rows, a->in[1].data, a->out[1].data };

    if (a->rows->n_token == 0)
        return;
    c.q = (const T *)a->in[0].data;
    c.weight = (const T *)a->in[2].data;
    c.kpage = (const T *)a->out[1].data;
    c.given = (const int32_t *)a->given.data;
    c.chosen = (int32_t *)a->out[0].data;
    c.pos = a->rows->pos;
    c.seq_start = a->rows->seq_start;
    c.page_start = a->rows->page_start;
    c.page = a->rows->page;
    c.n_seq = a->rows->n_seq;
    c.n_head = a->attr->index.n_head;
    c.d = a->attr->index.head_dim;
    c.top_k = a->attr->index.top_k;
    c.ratio = a->attr->index.ratio ? a->attr->index.ratio : 1;
    c.scale = a->attr->index.scale;
    c.weight_scale = a->attr->index.weight_scale;
    keys.width = keys.step = c.d;
    keys.ratio = c.ratio;
    ml_attn_write_keys(ml_cuda(s), &keys, a->in[1].dtype);
    select_keys(ml_cuda(s), c, a->rows->n_token, takes_mma(a->attr, a->in[0].dtype));
}

void ml_cuda_index_forward(ml_stream *s, const ml_op_args *a) {
    ML_CUDA_TYPED(a->in[0].dtype, index_forward<T>(s, a));
}

void ml_cuda_index_backward(ml_stream *s, const ml_op_args *a) {
    (void)s;
    (void)a;
}

bool ml_index_fits(const ml_op_attr *attr, ml_dtype dtype) {
    return smem_bytes(attr->index.top_k, attr->index.n_head, attr->index.head_dim,
                      takes_mma(attr, dtype)) <= MOST_BYTES;
}
