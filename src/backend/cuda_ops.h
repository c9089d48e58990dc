/* cuda_ops.h - the ops of the CUDA backend and their scratch bytes.
 *
 * Plain C, included by its kernels and by the backend of sizes (sizes.h), so that the
 * memory of a run on a GPU can be planned where there is none. */
#ifndef ML_BACKEND_CUDA_OPS_H
#define ML_BACKEND_CUDA_OPS_H

#include "backend/ops.h"
#include "tensor/codes.h"

/* X(id, name): the op functions are ml_cuda_<name>_forward and _backward. */
#define ML_CUDA_OP_LIST(X)                                                                 \
    X(EMBED, embed)                                                                        \
    X(LINEAR, linear)                                                                      \
    X(RMSNORM, rmsnorm)                                                                    \
    X(ROPE_TABLE, rope_table)                                                              \
    X(ROPE, rope)                                                                          \
    X(ATTN, attn)                                                                          \
    X(ADD, add)                                                                            \
    X(GLU, glu)                                                                            \
    X(MOE_ROUTE, moe_route)                                                                \
    X(MOE_GATHER, moe_gather)                                                              \
    X(MOE_LINEAR, moe_linear)                                                              \
    X(MOE_COMBINE, moe_combine)                                                            \
    X(LMHEAD, lmhead)                                                                      \
    X(CONV, conv)                                                                          \
    X(DECAY, decay)                                                                        \
    X(LINEAR_RNN, linear_rnn)                                                              \
    X(COMPRESS, compress)                                                                  \
    X(INDEX, index)                                                                        \
    X(ATTN_CHOSEN, attn_chosen)                                                            \
    X(SLICE, slice)                                                                        \
    X(CONCAT, concat)                                                                      \
    X(SPLIT_COLS, split_cols)                                                              \
    X(ORDER_ROWS, order_rows)                                                              \
    X(TANH, tanh)                                                                          \
    X(SCALE, scale)                                                                        \
    X(COL_SCALE, col_scale)                                                                \
    X(MOE_SCALE, moe_scale)                                                                \
    X(ROW_GATE, row_gate)                                                                  \
    X(LAYERNORM, layernorm)                                                                \
    X(CUTOFF, cutoff)                                                                      \
    X(MATCH_RMS, match_rms)                                                                \
    X(MOE_WEIGH, moe_weigh)                                                                \
    X(HEAD_LINEAR, head_linear)                                                            \
    X(STREAM_MIX, stream_mix)                                                              \
    X(HYPER_COEF, hyper_coef)                                                              \
    X(LORA, lora)

enum {
    ML_JOINT_ROWS = 512,  /* LINEARs of so many rows and one input run as one GEMM */
    ML_JOINT_CALLS = 3,   /* at most: q, k and v */
    ML_BIAS_ROWS = 64,    /* rows of a partial sum of a bias's gradient */
    ML_F32_OUT_ROWS = 64, /* and of an f32 weight's (linear_f32_out.cu) */
    /* Rows of logits computed at a time: more of a small vocabulary, up to the numbers
     * of 2048 rows of Qwen3's. */
    ML_LOSS_CHUNK = 2048,
    ML_LOSS_CHUNK_MOST = 16384,
    ML_LOSS_NUMBERS = 2048 * 151936,
    ML_SPLIT = 8192,          /* columns of a split of logits */
    ML_SPLIT_STAT_BYTES = 12, /* ml_row_stat */
    ML_NORM_NARROW = 128,     /* width of a norm up to which a thread has one pack */
    ML_NORM_WIDE = 8192,      /* width that the registers of a block hold easily */
    ML_NORM_WIDEST = 32768,
    ML_COLUMN_ROWS = 64,  /* rows of a partial sum of columns */
    ML_NORM_CHUNKS = 264, /* two per SM of an H200 */
    ML_NORM_CHUNKS_NARROW = 396,
    ML_CONV_ROWS = 64, /* rows of a piece of CONV, and of a partial sum of its dw */
    ML_CONV_MOST_TAPS = 8,
    ML_DECAY_ROWS = 32, /* rows of a partial sum of DECAY's weights */
    ML_RNN_COLS = 64,   /* columns of a block of LINEAR_RNN */
    ML_RNN_MOST_KEY = 256,
    ML_RNN_CHUNK = 64,           /* tokens between the states that its backward stores */
    ML_RNN_SKIP_ROWS = 256,      /* rows of a partial sum of its skip weights */
    ML_COMPRESS_SUM_ROWS = 1024, /* rows of a partial sum of COMPRESS's bias */
    ML_LORA_FEW = 512,      /* rows of LORA up to which blocks divide a product's width */
    ML_LORA_PARTS = 16,     /* the most parts of it */
    ML_LORA_CHUNK = 1024,   /* rows of a part of its gradients */
    ML_CHOSEN_TOKENS = 256, /* ATTN_CHOSEN: tokens whose o is recomputed at a time */
    ML_ATTN_PAGE_BYTES = 256 << 20, /* ml_cuda_attn_pages */
    ML_DRAW_BATCH = 4096,           /* draws at a time */
    ML_DRAW_SPLIT_BYTES = 32        /* of a split, for one draw */
};

static inline size_t ml_cuda_align(size_t bytes) {
    return (bytes + 255) & ~(size_t)255;
}

static inline int ml_splits(int64_t n_vocab) {
    return (int)((n_vocab + ML_SPLIT - 1) / ML_SPLIT);
}

/* By the types of input and output: the weights' type is not known when a plan is made. */
static inline bool ml_cuda_linear_is_f32_out(const ml_op_args *a) {
    return a->in[0].dtype == ML_BF16 && a->out[0].dtype == ML_F32;
}

/* Of the backward GEMMs of LINEAR with f32 outputs: partial sums of weight gradients. */
static inline size_t ml_cuda_linear_product_scratch(const ml_op_args *a) {
    int64_t parts = (a->in[0].shape[0] + ML_F32_OUT_ROWS - 1) / ML_F32_OUT_ROWS;

    if (!ml_cuda_linear_is_f32_out(a))
        return 0;
    return ml_cuda_align((size_t)(parts * a->w[0].shape[0] * a->w[0].shape[1]) *
                         sizeof(float));
}

/* A quantized weight in bf16. */
static inline size_t ml_cuda_dense_bytes(const ml_op_args *a) {
    if (!ml_dtype_codes(a->w[0].dtype))
        return 0;
    return ml_cuda_align((size_t)ml_tensor_count(&a->w[0]) * ml_dtype_bytes(ML_BF16));
}

/* Inputs of a row of FP8 codes: whole groups of 128. */
static inline int64_t ml_cuda_fp8_width(int64_t k) {
    return (k + 127) / 128 * 128;
}

/* Rounded inputs (fp8.cuh): codes and the scale of each group, or bf16. */
static inline size_t ml_cuda_input_bytes(const ml_op_args *a) {
    int64_t rows = a->in[0].shape[0], k = a->in[0].shape[1], width = ml_cuda_fp8_width(k);
    size_t codes, values = ml_cuda_align((size_t)(rows * k) * ml_dtype_bytes(ML_BF16));

    if (!ml_dtype_rounds_inputs(a->w[0].dtype))
        return 0;
    codes = ml_cuda_align((size_t)(rows * width)) +
            ml_cuda_align((size_t)(rows * width / 128) * sizeof(float));
    return codes > values ? codes : values;
}

/* Whether a LINEAR's gradients are FP8 products (gemm_fp8_back.cu): of whole blocks of 128 x 128. */
static inline bool ml_cuda_linear_fp8_back(const ml_op_args *a) {
    const ml_tensor *w = &a->w[0];

    return a->grad_format != ML_GRAD_PLAIN && w->dtype == ML_FP8_BLOCKWISE &&
           w->shape[0] % 128 == 0 && w->shape[1] % 128 == 0;
}

/* Byte offsets of codes and their scales. */
typedef struct ml_fp8_place {
    size_t code, scale;
} ml_fp8_place;

enum { ML_FP8_TAIL = 16 }; /* rows of dx, of which cuBLASLt computes multiples */

/* Operands of these products: x by columns first, where the next LINEAR with this input finds it; the weight's
 * scales, and its transpose; dy by rows and by columns; the last rows of dy and of dx. */
typedef struct ml_fp8_back_scratch {
    ml_fp8_place x_cols, w, dy, dy_cols, tail;
    size_t w_scale, tail_dx, total;
} ml_fp8_back_scratch;

static inline ml_fp8_place ml_cuda_fp8_place(size_t *at, int64_t codes, int64_t scales) {
    ml_fp8_place p;

    p.code = *at;
    p.scale = p.code + ml_cuda_align((size_t)codes);
    *at = p.scale + ml_cuda_align((size_t)scales * sizeof(float));
    return p;
}

static inline ml_fp8_back_scratch ml_cuda_fp8_back_scratch(const ml_op_args *a) {
    int64_t rows = a->in[0].shape[0], padded = ml_cuda_fp8_width(rows);
    int64_t n = a->w[0].shape[0], k = a->w[0].shape[1];
    ml_fp8_back_scratch s;

    s.total = 0;
    s.x_cols = ml_cuda_fp8_place(&s.total, padded * k, padded * k / 128);
    s.w_scale = s.total;
    s.total += ml_cuda_align((size_t)(n / 128 * (k / 128)) * sizeof(float));
    s.w = ml_cuda_fp8_place(&s.total, n * k, k / 128 * ((n / 128 + 3) / 4 * 4));
    s.dy = ml_cuda_fp8_place(&s.total, rows * n, rows * n / 128);
    s.dy_cols = ml_cuda_fp8_place(&s.total, padded * n, padded * n / 128);
    s.tail = ml_cuda_fp8_place(&s.total, ML_FP8_TAIL * n, ML_FP8_TAIL * n / 128);
    s.tail_dx = s.total;
    s.total += ml_cuda_align((size_t)(ML_FP8_TAIL * k) * ml_dtype_bytes(ML_BF16));
    if (s.total < ml_cuda_dense_bytes(a)) /* should cuBLASLt not have them */
        s.total = ml_cuda_dense_bytes(a);
    return s;
}

/* A plan asks for the scratch memory of LINEARs whose backward is one piece of work as that of a call with all
 * their outputs, and the output of one. */
static inline bool ml_cuda_linear_is_joint(const ml_op_args *a) {
    return a->w[0].shape[0] > a->out[0].shape[1];
}

/* Then the gradients of all outputs are in scratch memory (linear_joint_back.cuh), after the partial sums of a norm
 * of heads: the kernel of its backward writes some of them. */
static inline size_t ml_cuda_joint_back_at(void) {
    return ml_cuda_align((size_t)ML_NORM_CHUNKS_NARROW * ML_NORM_NARROW * sizeof(float));
}

/* Whatever type a plan has for the weights: rollouts may read them in codes, and training in bf16. */
static inline size_t ml_cuda_joint_back_scratch(const ml_op_args *a) {
    if (!ml_cuda_linear_is_joint(a) || a->in[0].dtype != ML_BF16)
        return 0;
    return ml_cuda_joint_back_at() +
           (size_t)(a->in[0].shape[0] * a->w[0].shape[0]) * ml_dtype_bytes(ML_BF16);
}

/* Backward: where the partial sums of the bias are, after all else. */
static inline size_t ml_cuda_linear_bias_at(const ml_op_args *a) {
    if (ml_cuda_linear_fp8_back(a))
        return ml_cuda_fp8_back_scratch(a).total;
    return ml_cuda_dense_bytes(a) + ml_cuda_linear_product_scratch(a);
}

/* Forward: the weight is first, then the rounded inputs. */
static inline size_t ml_cuda_linear_scratch(const ml_op_args *a, bool backward) {
    int64_t rows = a->in[0].shape[0], n = a->w[0].shape[0];
    int64_t parts = (rows + ML_BIAS_ROWS - 1) / ML_BIAS_ROWS;
    size_t joint = ml_cuda_joint_back_scratch(a), single;

    if (!backward) /* for three LINEARs of its size as one GEMM */
        return ml_cuda_dense_bytes(a) + ml_cuda_input_bytes(a) +
               (size_t)((rows < ML_JOINT_ROWS ? rows : ML_JOINT_ROWS) * ML_JOINT_CALLS *
                        n) *
                   ml_dtype_bytes(a->out[0].dtype);
    single = ml_cuda_linear_bias_at(a) + (size_t)(parts * n) * sizeof(float);
    return joint > single ? joint : single;
}

/* LMHEAD: gathered rows (twice in backward: their gradients), gradients of the logits,
 * logits, statistics of their splits; a bit of each logit, whether it is in the row's sampling
 * support, and four numbers of each row. */
typedef struct ml_lmhead_scratch {
    size_t x, dz, z, stat, bits, over, total;
} ml_lmhead_scratch;

/* Words of the bits of a row. */
static inline int64_t ml_cuda_support_words(int64_t n_vocab) {
    return (n_vocab + 31) / 32;
}

static inline int64_t ml_cuda_loss_chunk(const ml_op_args *a) {
    int64_t fit = ML_LOSS_NUMBERS / a->w[0].shape[0] / ML_LOSS_CHUNK * ML_LOSS_CHUNK, most;

    fit = fit < ML_LOSS_CHUNK        ? ML_LOSS_CHUNK
          : fit > ML_LOSS_CHUNK_MOST ? ML_LOSS_CHUNK_MOST
                                     : fit;
    most = a->loss_rows ? a->loss_rows : fit;
    return a->rows->n_loss < most ? a->rows->n_loss : most;
}

static inline ml_lmhead_scratch ml_cuda_lmhead_scratch(const ml_op_args *a, bool backward) {
    int64_t n = ml_cuda_loss_chunk(a), vocab = a->w[0].shape[0], width = a->w[0].shape[1];
    size_t size = ml_dtype_bytes(a->in[0].dtype);
    ml_lmhead_scratch s;

    s.x = ml_cuda_align((size_t)(n * width) * size);
    s.dz = backward ? ml_cuda_align((size_t)(n * vocab) * size) : 0;
    s.z = ml_cuda_align((size_t)(n * vocab) * sizeof(float));
    s.stat = ml_cuda_align((size_t)(n * ml_splits(vocab)) * ML_SPLIT_STAT_BYTES);
    s.bits = ml_cuda_align((size_t)(n * ml_cuda_support_words(vocab)) * sizeof(uint32_t));
    s.over = (size_t)(4 * n) * sizeof(float);
    s.total = (backward ? 2 : 1) * s.x + s.dz + s.z + s.stat + s.bits + s.over;
    return s;
}

/* Partial sums of ml_cuda_column_sums. */
static inline size_t ml_cuda_column_scratch(const ml_tensor *x) {
    int64_t parts = (x->shape[0] + ML_COLUMN_ROWS - 1) / ML_COLUMN_ROWS;
    return (size_t)(parts * x->shape[1]) * sizeof(float);
}

/* LAYERNORM backward: mean and scale of each row, before the partial sums. */
static inline size_t ml_cuda_layernorm_stats(const ml_op_args *a) {
    return ml_cuda_align(2 * (size_t)a->in[0].shape[0] * sizeof(float));
}

/* LORA: a low-rank product of wide rows is the sum of up to ML_LORA_PARTS parts, of so many columns
 * each. */
static inline int64_t ml_cuda_lora_segment(int64_t width) {
    int64_t each = (width + ML_LORA_PARTS - 1) / ML_LORA_PARTS;
    return each <= 256 ? 256 : (each + 31) / 32 * 32;
}

static inline int64_t ml_cuda_lora_parts(int64_t width) {
    int64_t each = ml_cuda_lora_segment(width);
    return (width + each - 1) / each;
}

static inline bool ml_cuda_lora_on_tensor_cores(const ml_op_args *a) {
    int64_t n_head = a->attr->lora.n_head;
    return a->in[0].dtype == ML_BF16 && a->in[0].shape[1] / n_head % 8 == 0 &&
           a->in[1].shape[1] / n_head % 8 == 0;
}

/* On tensor cores, byte offsets: low-rank products and their gradients in bf16; the rows of an
 * adapter and their number for each expert; parts of a gradient; inputs after dropout.  Instead,
 * for few rows: parts of the low-rank products of three layers, after what
 * ml_cuda_linear_scratch has for their outputs. */
typedef struct ml_lora_scratch {
    int64_t ld; /* numbers of a row of low: the rank, padded */
    size_t dlow, list, part, kept, decode, total;
} ml_lora_scratch;

static inline ml_lora_scratch ml_cuda_lora_mma_scratch(const ml_op_args *a) {
    int64_t n = a->in[0].shape[0], n_head = a->attr->lora.n_head;
    int64_t ld = (a->attr->lora.max_rank + 31) / 32 * 32;
    int64_t x = a->in[0].shape[1], y = a->in[1].shape[1], wide = x > y ? x : y;
    int64_t few = n < ML_LORA_FEW ? n : ML_LORA_FEW;
    int64_t parts = ml_cuda_lora_parts(x);
    int64_t chunks = (n + ML_LORA_CHUNK - 1) / ML_LORA_CHUNK;
    size_t low = ml_cuda_align((size_t)(n * n_head * ld) * sizeof(int16_t)), parts_end;
    ml_lora_scratch s;

    s.ld = ld;
    s.dlow = low;
    s.list = 2 * low;
    s.part = s.list + ml_cuda_align((size_t)(n + a->attr->moe.n_expert + 1) * 4);
    s.kept = s.part;
    if (n_head == 1)
        s.kept += ml_cuda_align((size_t)(chunks * wide * ld) * 4);
    s.total = s.kept;
    if (a->attr->lora.dropout > 0)
        s.total += ml_cuda_align((size_t)(n * x) * sizeof(int16_t));
    s.decode = ml_cuda_align((size_t)(few * 3 * y) * sizeof(int16_t));
    parts_end = s.decode + (size_t)(few * parts * 3 * ld) * sizeof(float);
    if (s.total < parts_end)
        s.total = parts_end;
    return s;
}

/* Else: the low-rank products and their gradients, the parts of one, and the inputs after
 * dropout. */
static inline size_t ml_cuda_lora_scratch(const ml_op_args *a) {
    int64_t low = (int64_t)a->attr->lora.n_head * a->attr->lora.max_rank;
    int64_t x = ml_cuda_lora_parts(a->in[0].shape[1]);
    int64_t y = ml_cuda_lora_parts(a->in[1].shape[1]);
    int64_t parts = a->attr->lora.n_head > 1 ? 0 : x > y ? x : y;
    int64_t kept = a->attr->lora.dropout > 0 ? a->in[0].shape[1] : 0;

    if (ml_cuda_lora_on_tensor_cores(a))
        return ml_cuda_lora_mma_scratch(a).total;
    return (size_t)(a->in[0].shape[0] * ((2 + parts) * low + kept)) * sizeof(float);
}

static inline int64_t ml_cuda_norm_chunks(int width) {
    return width <= ML_NORM_NARROW ? ML_NORM_CHUNKS_NARROW : ML_NORM_CHUNKS;
}

static inline int64_t ml_cuda_conv_pieces(int64_t n_row) {
    return (n_row + ML_CONV_ROWS - 1) / ML_CONV_ROWS;
}

/* Sums of dw and of dbias, of each piece of rows. */
static inline size_t ml_cuda_conv_scratch(const ml_op_args *a) {
    return (size_t)(ml_cuda_conv_pieces(a->in[0].shape[0]) * (a->w[0].shape[1] + 1) *
                    a->in[0].shape[1]) *
           sizeof(float);
}

static inline int64_t ml_cuda_decay_chunks(int64_t n_row) {
    return (n_row + ML_DECAY_ROWS - 1) / ML_DECAY_ROWS;
}

static inline size_t ml_cuda_decay_scratch(const ml_op_args *a) {
    return (size_t)(2 * ml_cuda_decay_chunks(a->in[0].shape[0]) * a->in[0].shape[1]) *
           sizeof(double);
}

/* Blocks of columns of a head of LINEAR_RNN. */
static inline int64_t ml_cuda_rnn_blocks(const ml_op_args *a) {
    return (a->attr->linear_rnn.value_dim + ML_RNN_COLS - 1) / ML_RNN_COLS;
}

static inline int64_t ml_cuda_rnn_key_pitch(const ml_op_args *a) {
    return (a->attr->linear_rnn.key_dim + 3) / 4 * 4;
}

/* Backward of LINEAR_RNN, byte offsets: per token and head, e and du [dv], and dq and dk
 * [key_dim]; states and their gradients between the chunks of sequences; parts of the skip
 * weights' gradients. */
typedef struct ml_rnn_scratch {
    size_t du, dq, dk, mark, dmark, skip, total;
} ml_rnn_scratch;

static inline ml_rnn_scratch ml_cuda_rnn_scratch(const ml_op_args *a) {
    int64_t n = a->in[0].shape[0], heads = a->attr->linear_rnn.n_head;
    int64_t dv = a->attr->linear_rnn.value_dim;
    int64_t chunks = (n + ML_RNN_SKIP_ROWS - 1) / ML_RNN_SKIP_ROWS;
    size_t value = ml_cuda_align((size_t)(n * heads * dv) * sizeof(float));
    size_t key =
        ml_cuda_align((size_t)(n * heads * a->attr->linear_rnn.key_dim) * sizeof(float));
    size_t mark = ml_cuda_align(
        (size_t)(n / ML_RNN_CHUNK * heads * dv * ml_cuda_rnn_key_pitch(a)) * sizeof(float));
    ml_rnn_scratch s;

    s.du = value;
    s.dq = s.du + value;
    s.dk = s.dq + key;
    s.mark = s.dk + key;
    s.dmark = s.mark + mark;
    s.skip = s.dmark + mark;
    s.total = s.skip + (size_t)(chunks * heads) * sizeof(float);
    return s;
}

/* Backward of COMPRESS: the f32 gradient of every gate, then parts of the bias's. */
typedef struct ml_compress_scratch {
    size_t part, total;
} ml_compress_scratch;

static inline ml_compress_scratch ml_cuda_compress_scratch(const ml_op_args *a) {
    int64_t n = a->in[0].shape[0], width = a->in[0].shape[1];
    int64_t chunks = (n + ML_COMPRESS_SUM_ROWS - 1) / ML_COMPRESS_SUM_ROWS;
    ml_compress_scratch s;

    s.part = ml_cuda_align((size_t)(n * width) * sizeof(float));
    s.total = s.part + (size_t)(chunks * a->attr->compress_ratio * width) * sizeof(float);
    return s;
}

/* LSE, delta and statistics of each row, then the recomputed o of some tokens. */
static inline size_t ml_cuda_attn_chosen_scratch(const ml_op_args *a) {
    size_t n = (size_t)a->in[0].shape[0], heads = (size_t)a->attr->attn.n_head;
    size_t some = n < ML_CHOSEN_TOKENS ? n : ML_CHOSEN_TOKENS;

    return ml_cuda_align(4 * n * heads * sizeof(float)) +
           some * heads * (size_t)a->attr->attn.value_dim * ml_dtype_bytes(a->in[0].dtype);
}

/* ATTN: heads of up to 128 numbers on tensor cores; depends on the model only. */
static inline bool ml_cuda_attn_is_narrow(const ml_op_args *a) {
    return a->in[0].dtype == ML_BF16 && a->attr->attn.head_dim % 8 == 0 &&
           a->attr->attn.head_dim <= 128 &&
           a->attr->attn.value_dim == a->attr->attn.head_dim && a->out[3].n_dim;
}

/* ATTN with KV pages of codes: pages in the type of activations, which backward reads.  Forward does
 * for many rows, where those of the batch are no more than ML_ATTN_PAGE_BYTES.  Byte offsets: a page
 * table of forward, keys, values. */
typedef struct ml_attn_scratch {
    int64_t n_page; /* all; of forward, those of the batch */
    size_t keys, values, total;
} ml_attn_scratch;

static inline ml_attn_scratch ml_cuda_attn_pages(const ml_op_args *a, bool backward) {
    int64_t e = a->attr->attn.value_dim, dv = (e + ML_LANES - 1) / ML_LANES * ML_LANES;
    size_t head = (size_t)(a->attr->attn.n_kv * ML_PAGE) * ml_dtype_bytes(a->in[0].dtype);
    size_t key = head * (size_t)a->attr->attn.head_dim;
    size_t value = a->out[3].n_dim ? head * (size_t)dv : 0;
    int64_t most = (int64_t)(ML_ATTN_PAGE_BYTES / (key + value));
    ml_attn_scratch s = { 0, 0, 0, 0 };

    if (!ml_dtype_is_kv_codes(a->out[2].dtype) || (!backward && !ml_cuda_attn_is_narrow(a)))
        return s;
    s.n_page = backward                 ? a->out[2].shape[0]
               : a->rows->n_page < most ? a->rows->n_page
                                        : most;
    s.keys = backward ? 0 : ml_cuda_align((size_t)s.n_page * sizeof(int32_t));
    s.values = s.keys + ml_cuda_align((size_t)s.n_page * key);
    s.total = s.values + ml_cuda_align((size_t)s.n_page * value);
    return s;
}

/* Whether attention's backward may be one pass (attn_once_wgmma_back.cu): 64 rows of a KV head are whole tokens. */
static inline bool ml_cuda_attn_back_once(const ml_op_args *a) {
    return ml_cuda_attn_is_narrow(a) && a->attr->attn.head_dim == 128 &&
           64 % (a->attr->attn.n_head / a->attr->attn.n_kv) == 0;
}

/* After these pages, backward has delta and LSE of each row, and in one pass sums of dq in f32, with a semaphore for
 * each tile of 64 rows of a KV head.  Byte offsets. */
typedef struct ml_attn_back_scratch {
    int64_t n_semaphore;
    size_t delta, semaphores, sums, total;
} ml_attn_back_scratch;

static inline ml_attn_back_scratch ml_cuda_attn_back_scratch(const ml_op_args *a) {
    size_t heads = (size_t)(a->in[0].shape[0] * a->attr->attn.n_head);
    bool once = ml_cuda_attn_back_once(a);
    ml_attn_back_scratch s = { 0, 0, 0, 0, 0 };

    s.n_semaphore =
        once ? (int64_t)heads / 64 + (ml_key_rows(a->rows)->n_seq + 1) * a->attr->attn.n_kv
             : 0;
    s.delta = ml_cuda_attn_pages(a, true).total;
    s.semaphores = s.delta + ml_cuda_align(2 * heads * sizeof(float));
    s.sums = s.semaphores + ml_cuda_align((size_t)s.n_semaphore * sizeof(uint32_t));
    s.total = s.sums + (once ? heads * 128 * sizeof(float) : 0);
    return s;
}

static inline size_t ml_cuda_attn_scratch(const ml_op_args *a, bool backward) {
    return backward ? ml_cuda_attn_back_scratch(a).total
                    : ml_cuda_attn_pages(a, false).total;
}

static inline size_t ml_cuda_op_scratch(const ml_stream *s, ml_op_id op,
                                        const ml_op_args *a, bool backward) {
    int width = a->attr->norm.width;

    (void)s;
    switch (op) {
    case ML_OP_LINEAR: return ml_cuda_linear_scratch(a, backward);
    case ML_OP_MOE_LINEAR:
        return ml_cuda_dense_bytes(a) + (backward ? 0 : ml_cuda_input_bytes(a));
    case ML_OP_RMSNORM:
        return backward ? (size_t)ml_cuda_norm_chunks(width) * (size_t)width * sizeof(float)
                        : 0;
    case ML_OP_ATTN: return ml_cuda_attn_scratch(a, backward);
    case ML_OP_MOE_ROUTE:
        return backward ? 0 : (size_t)a->attr->moe.n_expert * sizeof(int32_t);
    case ML_OP_LMHEAD: return ml_cuda_lmhead_scratch(a, backward).total;
    case ML_OP_CONV: return backward ? ml_cuda_conv_scratch(a) : 0;
    case ML_OP_DECAY: return backward ? ml_cuda_decay_scratch(a) : 0;
    case ML_OP_LINEAR_RNN: return backward ? ml_cuda_rnn_scratch(a).total : 0;
    case ML_OP_COMPRESS: return backward ? ml_cuda_compress_scratch(a).total : 0;
    case ML_OP_ATTN_CHOSEN: return backward ? ml_cuda_attn_chosen_scratch(a) : 0;
    case ML_OP_COL_SCALE: return backward ? ml_cuda_column_scratch(&a->in[0]) : 0;
    case ML_OP_LAYERNORM:
        return backward ? ml_cuda_layernorm_stats(a) + ml_cuda_column_scratch(&a->in[0])
                        : 0;
    case ML_OP_HYPER_COEF:
        return backward ? (size_t)ml_tensor_count(&a->in[0]) * sizeof(float) : 0;
    case ML_OP_LORA: return ml_cuda_lora_scratch(a);
    default: return 0;
    }
}

/* Split results, and tokens drawn with filters, of one batch of draws. */
static inline size_t ml_cuda_sample_scratch(const ml_stream *s, int64_t n_vocab) {
    (void)s;
    return ML_DRAW_BATCH *
           (sizeof(int32_t) + (size_t)ml_splits(n_vocab) * ML_DRAW_SPLIT_BYTES);
}

#endif
