/* attn.cuh - shared declarations of the attention kernels.
 *
 * All are FlashAttention: an online softmax over tiles of keys, and a backward that
 * recomputes the scores from the logsumexp (LSE) of each row.  Keys and values are read
 * from KV pages (kpage [page][Hk][16][d], vpage [page][Hk][16][dv]) in tiles of
 * ML_KTILE keys at absolute positions.  The query heads that share a KV head (GQA) are
 * adjacent rows: row r of a sequence is token r / group, head r % group of the KV head.
 * So decode, prefill in chunks of any size and training have one order of sums.
 *
 * ATTN_CHOSEN is the same with a list of keys for each token, in tiles of ML_KTILE of its
 * entries. */
#ifndef ML_BACKEND_CUDA_ATTN_ATTN_CUH
#define ML_BACKEND_CUDA_ATTN_ATTN_CUH

#include "backend/cuda/common.cuh"
#include "backend/cuda/fp8/fp8_out.cuh"

enum { ML_ATTN_MOST = 640 };

/* Of the codes in KV pages (attn_codes.cuh). */
enum { ATTN_NO_CODES, ATTN_E4M3, ATTN_E5M2, ATTN_INT8 };

/* The rows that k and v have: those of the batch, or with context parallelism those of the
 * sequences of which the batch has pieces. */
struct attn_key_rows {
    const int32_t *pos, *seq_start, *page_start, *page;
    const int32_t
        *piece; /* [n_seq of the batch] the sequence of each piece, ascending; or NULL */
    int n, n_seq;
};

template <class T> struct attn_call {
    const T *q, *k, *v;     /* of the rows of the batch, and of the rows of keys */
    T *o, *kpage, *vpage;   /* vpage NULL: a value is the first numbers of its key */
    ml_fp8_out codes;       /* of o, which may be NULL then: ml_cuda_attn_writes_codes */
    uint8_t *kcode, *vcode; /* instead, if pages have codes */
    int format;             /* of these, or ATTN_NO_CODES */
    float *stat; /* [n_token, n_head, 2] row max m, and sum of exp(score - m); or NULL */
    const float *sink; /* [n_head] or NULL: one more score of each row, without a value */
    const int32_t *pos, *seq_start, *page_start, *page;
    const int32_t *prefix; /* as in ml_rows; backward, training */
    int n_token, n_seq;
    bool separate; /* as in ml_rows */
    attn_key_rows keys;
    int n_head, n_kv, group, d, dv, window; /* dv: a value's width in its page */
    int e;                                  /* size of a value; d in most kernels */
    int chunk;
    uint32_t group_mul; /* 2^32 / group, rounded up: see attn_token */
    float scale, softcap;
    /* backward */
    const T *dout;
    float *shift; /* [n_token, n_head] LSE in log2 units: P = 2^(score log2(e) - shift) */
    float *delta; /* [n_token, n_head] rowsum(dO * O) */
    T *dq, *dk, *dv_out; /* with keys.piece, dk and dv_out are f32 */
    bool add_q, add_k, add_v;
    float *dq_sums;         /* of attn_once_wgmma_back.cu; NULL: not used */
    unsigned *dq_semaphore; /* how many blocks have added to each tile of them; zeros */
    int n_semaphore;
    /* ATTN_CHOSEN */
    const int32_t *chosen; /* [n_token, n_chosen] or NULL: all */
    int n_chosen, ratio;   /* ratio: rows of a compressed key; 0: there are none */
    T *cpage;              /* compressed keys */
    int first_token;       /* forward, and delta: of those that are processed */
};

/* The sequence of a row of the batch. */
__device__ static inline int attn_seq_of(const int32_t *seq_start, int n_seq, int row) {
    int lo = 0, hi = n_seq;
    while (hi - lo > 1) {
        int mid = (lo + hi) / 2;
        if (seq_start[mid] <= row)
            lo = mid;
        else
            hi = mid;
    }
    return lo;
}

/* row / group without a division; rows are far below 2^32 / group. */
template <class T> __device__ static inline int attn_token(const attn_call<T> &c, int row) {
    return c.group == 1 ? row : (int)__umulhi((uint32_t)row, c.group_mul);
}

/* Index in [n_token, n_head] of a row of a KV head; first_token: of its sequence. */
template <class T>
__device__ static inline int64_t attn_head_at(const attn_call<T> &c, int first_token,
                                              int head, int row) {
    int token = attn_token(c, row);
    return (int64_t)(first_token + token) * c.n_head + head * c.group +
           (row - token * c.group);
}

/* Address of a key, or of its value, in its KV page. */
template <class T>
__device__ static inline const T *attn_key(const attn_call<T> &c, const int32_t *page,
                                           int head, int key) {
    int64_t slot = ((int64_t)page[key / ML_PAGE] * c.n_kv + head) * ML_PAGE + key % ML_PAGE;
    return c.kpage + slot * c.d;
}

template <class T>
__device__ static inline const T *attn_value(const attn_call<T> &c, const int32_t *page,
                                             int head, int key) {
    int64_t slot = ((int64_t)page[key / ML_PAGE] * c.n_kv + head) * ML_PAGE + key % ML_PAGE;
    return c.vpage ? c.vpage + slot * c.dv : c.kpage + slot * c.d;
}

/* The first key that a row at `pos` attends to: sliding window, or chunk. */
template <class T>
__device__ static inline int attn_first_key(const attn_call<T> &c, int pos) {
    if (c.chunk)
        return pos - pos % c.chunk;
    return c.window && pos >= c.window ? pos - c.window + 1 : 0;
}

/* The token after the last of a sequence of n that attends to a key up to `key`. */
template <class T>
__device__ static inline int attn_end_token(const attn_call<T> &c, int key, int n) {
    int end = c.chunk ? (key / c.chunk + 1) * c.chunk : c.window ? key + c.window : n;
    return end < n ? end : n;
}

/* ---- keys of a sequence, in backward: key i is that of its row i ---- */

/* The rows of the batch that attend to the keys of a sequence: `first` and those behind it, readers
 * 0 .. n - 1.  They are its own, and those of the sequences that continue it, or one of these; with
 * context parallelism its pieces, which some kernels have instances for. */
struct attn_reads {
    int first, n;
    bool pieces;
};

/* The gradients of keys and values; with context parallelism ranks add up parts in f32. */
template <bool PIECES> struct attn_key_grad { typedef bf16 type; };
template <> struct attn_key_grad<true> { typedef float type; };

/* How many of n ascending numbers are below x. */
__device__ static inline int attn_count_below(const int32_t *at, int n, int x) {
    int lo = 0, hi = n;
    while (lo < hi) {
        int mid = (lo + hi) / 2;
        if (at[mid] < x)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

/* Of sequence seq, whose own rows begin with first_row unless the batch has pieces of it. */
template <class T>
__device__ static inline attn_reads attn_readers(const attn_call<T> &c, int seq,
                                                 int first_row, bool pieces) {
    int end = seq + 1;
    if (pieces) {
        first_row = c.seq_start[attn_count_below(c.keys.piece, c.n_seq, seq)];
        end = attn_count_below(c.keys.piece, c.n_seq, seq + 1);
    }
    if (c.prefix)
        while (end < c.n_seq && c.prefix[end] >= seq)
            end++;
    return { first_row, c.seq_start[end] - first_row, pieces };
}

/* The position of the sequence's key 0. */
template <class T>
__device__ static inline int attn_base(const attn_call<T> &c, int first_row) {
    return c.prefix ? c.pos[first_row] : 0;
}

/* The first and the last key that a reader attends to; behind a prefix, the last may be behind the
 * keys of the sequence. */
template <class T>
__device__ static inline int attn_first_read(const attn_call<T> &c, const attn_reads &r,
                                             int reader) {
    if (r.pieces)
        return attn_first_key(c, c.pos[r.first + reader]);
    if (!c.prefix)
        return attn_first_key(c, reader);
    return c.window ? attn_first_key(c, c.pos[r.first + reader]) - c.pos[r.first] : 0;
}

template <class T>
__device__ static inline int attn_last_read(const attn_call<T> &c, const attn_reads &r,
                                            int reader) {
    return r.pieces ? c.pos[r.first + reader] : reader;
}

/* The first reader that attends to a key from `key` on. */
template <class T>
__device__ static inline int attn_first_reader(const attn_call<T> &c, const attn_reads &r,
                                               int key) {
    return r.pieces ? attn_count_below(c.pos + r.first, r.n, key) : key;
}

/* The reader after the last that attends to a key up to `key`, of n keys. */
template <class T>
__device__ static inline int attn_end_reader(const attn_call<T> &c, const attn_reads &r,
                                             int key, int n) {
    if (r.pieces)
        return attn_count_below(c.pos + r.first, r.n, attn_end_token(c, key, n));
    return r.n > n ? r.n : attn_end_token(c, key, n);
}

/* Adds a sink to the max m and the sum l of a row; returns the factor of its sums of
 * values.  Kernels do it last: no tile of keys changes the order of sums. */
__device__ static inline float attn_add_sink(float sink, float &m, float &l) {
    float top = ml_max(m, sink), keep = ml_exp(m - top);
    l = fmaf(l, keep, ml_exp(sink - top));
    m = top;
    return keep;
}

/* The keys of a token in ATTN_CHOSEN: n, of which the first n_window are those of rows from
 * position `first` on. */
struct attn_list {
    const int32_t *page, *chosen;
    int first, n_window, n;
};

/* The place of key g of a sequence in pages of ml_page_keys(ratio) keys. */
__device__ static inline int64_t attn_slot(const int32_t *page, int g, int ratio) {
    int at = (g * ratio + ratio - 1) / ML_PAGE;
    return (int64_t)page[at] * ((ML_PAGE + ratio - 1) / ratio) + g - at * ML_PAGE / ratio;
}

template <class T>
__device__ static inline attn_list attn_list_of(const attn_call<T> &c, int token) {
    int pos = c.pos[token], lo = 0, hi = c.n_chosen;
    attn_list x = {};

    x.page = c.page + c.page_start[attn_seq_of(c.seq_start, c.n_seq, token)];
    if (c.ratio) {
        x.first = pos >= c.window ? pos - c.window + 1 : 0;
        x.n_window = pos - x.first + 1;
    }
    if (!c.chosen) {
        x.n = x.n_window + (pos + 1) / c.ratio;
        return x;
    }
    x.chosen = c.chosen + (int64_t)token * c.n_chosen;
    while (lo < hi) { /* the first -1 */
        int mid = (lo + hi) / 2;
        if (x.chosen[mid] >= 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    x.n = x.n_window + lo;
    return x;
}

/* Address of key i of a token's list; its first numbers are the value. */
template <class T>
__device__ static inline const T *attn_list_key(const attn_call<T> &c, const attn_list &x,
                                                int i) {
    bool compressed = c.ratio && i >= x.n_window;
    int key = i < x.n_window ? x.first + i
              : x.chosen     ? x.chosen[i - x.n_window]
                             : i - x.n_window;
    return (compressed ? c.cpage : c.kpage) +
           attn_slot(x.page, key, compressed ? c.ratio : 1) * c.d;
}

/* Whether a row key, or a compressed one, is in the list of a token after it. */
template <class T>
__device__ static inline bool attn_lists(const attn_call<T> &c, int token, int key,
                                         bool compressed) {
    const int32_t *chosen = c.chosen + (int64_t)token * c.n_chosen;
    int lo = 0, hi = c.n_chosen;

    if (c.ratio && !compressed)
        return key > c.pos[token] - c.window;
    if (!c.chosen)
        return true;
    while (lo < hi) { /* the first that is not below the key, or -1 */
        int mid = (lo + hi) / 2;
        if (chosen[mid] >= 0 && chosen[mid] < key)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < c.n_chosen && chosen[lo] == key;
}

/* Derivative of softcap, from a capped score. */
__device__ static inline float attn_cap_slope(float s, float cap) {
    float t = s / cap;
    return fmaf(-t, t, 1.0f);
}

/* attn.cu: ATTN, when its keys and values are in their KV pages already; for fused calls. */
attn_call<bf16> ml_attn_call(const ml_op_args *a);
void ml_cuda_attn_read(ml_cuda_stream *s, const ml_op_args *a, const ml_fp8_out &codes);
/* Whether it writes the FP8 codes of its output, too. */
bool ml_cuda_attn_writes_codes(const ml_op_args *a);

/* attn_mma.cu: bf16 heads of up to 128, in multiples of 8. */
void ml_attn_mma(ml_cuda_stream *s, const attn_call<bf16> &c);
/* attn_wgmma.cu: the same bits, faster for many rows; Hopper only. */
void ml_attn_wgmma(ml_cuda_stream *s, const attn_call<bf16> &c);
/* attn_wgmma_back.cu for Hopper, attn_mma_back.cu for other GPUs; attn_once_wgmma_back.cu for Hopper, too:
 * ml_cuda_attn_back_once, and no prefix. */
void ml_attn_back_once(ml_cuda_stream *s, const attn_call<bf16> &c);
void ml_attn_wgmma_back(ml_cuda_stream *s, const attn_call<bf16> &c);
void ml_attn_mma_back(ml_cuda_stream *s, const attn_call<bf16> &c);
/* attn_decode.cu: the same bits, for decode: one row per sequence. */
bool ml_attn_decode_supports(const attn_call<bf16> &c);
void ml_attn_decode(ml_cuda_stream *s, const attn_call<bf16> &c);
/* attn_wide.cu, attn_wide_back.cu: bf16 heads that the above do not take: of up to 512
 * numbers, or absorbed MLA and ATTN_CHOSEN (576 and 512). */
bool ml_attn_wide_supports(const attn_call<bf16> &c);
void ml_attn_wide(ml_cuda_stream *s, const attn_call<bf16> &c);
void ml_attn_wide_back(ml_cuda_stream *s, const attn_call<bf16> &c);
void ml_attn_wide_chosen(ml_cuda_stream *s, const attn_call<bf16> &c);
void ml_attn_wide_chosen_back(ml_cuda_stream *s, const attn_call<bf16> &c);
/* attn_mla_wgmma.cu: absorbed MLA and ATTN_CHOSEN, the same bits; Hopper only. */
void ml_attn_mla_wgmma(ml_cuda_stream *s, const attn_call<bf16> &c);
void ml_attn_mla_wgmma_chosen(ml_cuda_stream *s, const attn_call<bf16> &c);
/* attn_plain.cu: all types, heads of up to ML_ATTN_MOST numbers; slow. */
template <class T> void ml_attn_plain(ml_cuda_stream *s, const attn_call<T> &c);
template <class T> void ml_attn_plain_back(ml_cuda_stream *s, const attn_call<T> &c);
/* The same for ATTN_CHOSEN. */
template <class T> void ml_attn_plain_chosen(ml_cuda_stream *s, const attn_call<T> &c);
template <class T> void ml_attn_plain_chosen_back(ml_cuda_stream *s, const attn_call<T> &c);

/* attn.cu: delta and shift of the tokens from first_token on; the gradient of sinks. */
template <class T> void ml_attn_delta(ml_cuda_stream *s, const attn_call<T> &c);
template <class T>
void ml_attn_sink_back(ml_cuda_stream *s, const attn_call<T> &c, float *dsink);

/* Keys of ATTN_CHOSEN and INDEX, in pages of ml_page_keys(ratio) keys of `width` numbers;
 * the rows of k are `step` numbers apart. */
typedef struct attn_keys {
    const ml_rows *rows;
    const void *k;
    void *page;
    int width, step, ratio;
} attn_keys;

/* attn_chosen.cu: writes the rows' keys to their pages. */
void ml_attn_write_keys(ml_cuda_stream *s, const attn_keys *w, ml_dtype dtype);

/* attn.cu: the rows whose keys an op is given. */
attn_key_rows ml_attn_key_rows(const ml_rows *rows);
/* Zeros the gradient of keys, of which kernels write those that a row attends to, unless it is to be
 * added to. */
void ml_attn_clear_keys(ml_cuda_stream *s, const ml_op_args *a, int in);

/* index.cu: whether a row's list of keys fits into shared memory. */
bool ml_index_fits(const ml_op_attr *attr, ml_dtype dtype);

#endif
