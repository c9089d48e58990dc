/* ops.h - the ops a model consists of, and the table a backend fills.
 *
 * The forward and backward of all ops share one signature, so that plans, checkop and
 * bench iterate over ops generically.  Shapes and dtypes are checked when a plan is
 * built; an op cannot fail at run time.  Forward writes out[].  Backward reads the saved
 * in[]/out[] and dout[], writes or adds to din[] (din_add selects), and adds to dw[] or, where
 * the backend can, writes it (dw_write).  Absent tensors have data == NULL, for example a din or
 * dw that is not needed.
 *
 * All forwards are batch-invariant: an output row depends only on its own inputs and the
 * weights, never on the other rows of the batch, the chunking of a prefill or the number
 * of threads.  docs/NUMERICS.md has the contract of each op. */
#ifndef ML_BACKEND_OPS_H
#define ML_BACKEND_OPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/str.h"
#include "tensor/device.h"
#include "tensor/tensor.h"

/* n: tokens of the batch (LINEAR, RMSNORM, ADD, GLU: rows of the input, which are n*k
 * between MOE_GATHER and MOE_COMBINE); H, K, N, I: widths; d: head size; E: experts; k:
 * selected experts or keys.
 *
 *  op           in                     w              out
 *  EMBED        -                      table [V,H]    x [n,H]
 *  LINEAR       x [n,K]                w [N,K] b [N]? y [n,N]
 *  RMSNORM      x [n,C]                w [width]?     y [n,C]      per group of `width`
 *  ROPE_TABLE   -                      -              cs [n,2,rot/2]  cosines, then sines
 *  ROPE         x [n,heads*d] cs       -              y [n,heads*d]
 *  ATTN         q [n,Hq*d] k [n,Hk*d] v [n,Hk*e]  sink [Hq]?
 *                                                     o [n,Hq*e] stat [n,Hq,2] kpage vpage?
 *  ADD          a b [n,H]              -              y [n,H]
 *  GLU          g u [n,I] (or gu [n,2I])  -           y [n,I]
 *  MOE_ROUTE    logits [n,E] expert f32 [n,k]?  bias [E]?  weight [n,k] expert i32 [n,k]
 *                                                     group
 *  MOE_GATHER   x [n,H] group          -              y [n*k,H]    sorted by expert, token
 *  MOE_LINEAR   x [n*k,K] group        w [E,N,K] b [E,N]?  y [n*k,N]
 *  MOE_COMBINE  y [n*k,H] weight? group -             x [n,H]      without weights: sums
 *  MOE_WEIGH    x [n*k,H] weight group -              y [n*k,H]    rows times their weights
 *  HEAD_LINEAR  x [n,h*K]              w [h,N,K]      y [n,h*N]    one weight per head
 *  CONCAT       a [n,h*A] b [n,h*B]    -              y [n,h*(A+B)]  per head
 *  SLICE        x [n,C]                -              y [n,W]      columns of x
 *  CONV         x [n,C]                w [C,taps] b [C]?  y [n,C] tail [slot,taps-1,C]
 *  DECAY        a [n,h] b [n,h]?       log speed, bias [h]  y [n,2,h]  keep, take
 *  LINEAR_RNN   qkv [n,W] decay [n,2,h]  skip [h]?    o [n,h*dv] state [slot,h,dk,dv+]
 *  ROW_GATE     g [n,1] x [n,H]        -              y [n,H]
 *  SCALE        x [n,H]                w [1]?         y [n,H]      w has no gradient
 *  MOE_SCALE    weight [n,k] expert    w [E]          y [n,k]      weight * w[expert]
 *  COL_SCALE    x [n,C]                w [C]          y [n,C]      columns times w
 *  TANH         x [n,C]                -              y [n,C]
 *  CUTOFF       x [n,C]                -              y [n,C]      relu(x - mean - std z)
 *  MATCH_RMS    x [n,H] like [n,H]     -              y [n,H]      x with the RMS of like
 *  HYPER_COEF   x [n,S+S+S*S]          scale [3] base [S+S+S*S]  c [n,S+S*(S+1)]
 *                                                     or, of a head: x [n,S] scale [1] base [S]
 *                                                     c [n,S]
 *  STREAM_MIX   x [n,S*H] y [n,H]? c [n,C]?  -        z [n,R*H]    sums of residual streams
 *  LAYERNORM    x [n,C]                w [C] b [C]    y [n,C]
 *  INDEX        q [n,h*d] k [n,d] weight [n,h]  -     chosen i32 [n,k] kpage [page,16/r,d]
 *  ATTN_CHOSEN  q [n,Hq*d] k [n,d] chosen  -          o [n,Hq*e] kpage [page,16,d]
 *               q [n,Hq*d] kc [n,2d] chosen?  sink [Hq]?  o kpage cpage [page,16/r,d]
 *  COMPRESS     kv gate [n,W]          bias [r,W]     c [n,d] kept [slot,s*r,2W]  W = s*d
 *  LMHEAD       x [n,H]                w [V,H]        logprob, entropy [n_loss]
 *                                                     stat [n_loss,2] logits [n_loss,V]?
 *                                                     or only logits
 *  GATHER_COLS  x [n,C]                -              y [ranks*n,C]  the ranks' x in order
 *  MERGE_COLS   x [ranks*n,C]          -              y [n,W]      columns of the ranks' x
 *  SPLIT_COLS   x [n,C]                -              y [m,C]      in blocks; or back
 *  GATHER_ROWS  x [m,C]                -              y [ranks*m,C]  the ranks' x in order
 *               x [rows of a DP group,C]  -           y [n,C]      (attr.dp)
 *  SWAP_ROWS    x [m,C] in blocks      -              y [ranks*m,W]  a block of each; or back
 *  ORDER_ROWS   x [ranks*m,C]          -              y [ranks*m,C]  rows in order; or back
 *  SEND_ROWS    x [n*k,H] group        -              y [m,H] group back  to their experts
 *  RETURN_ROWS  y [m,H]                -              x [n*k,H]    and home again
 *  LORA         x [n,K] y [n,N] group? -              z [n,N]      y + scale B (A x)
 *
 * group (i32 [E+1 + 2*n*k]): start of each expert's rows [E+1]; the permutation slot ->
 * token*k+rank [n*k]; its inverse token*k+rank -> slot [n*k].
 *
 * m: rows of all ranks of an expert group for this rank's experts; their tables `group`
 * and `back` have one expert per row (model/expert_rounds.h).
 *
 * chosen: key positions, ascending, padded with -1.  The values of ATTN_CHOSEN are the
 * first elements of its keys.
 *
 * r: rows that are compressed into one key; s: 1, or 2 for windows that overlap.  The
 * compressed key of a window is in the row that ends it, row p of a sequence with
 * (p + 1) % r == 0; other rows have none.  Key g is visible from its row on.  16/r is
 * rounded up (ml_page_keys).  kept: the last s*r rows of kv and gate of a sequence, row p
 * in place p % (s*r); state like tail.
 *
 * tail, state: recurrent state of a sequence in its state slot, read unless the
 * sequence's first position is 0, then updated; absent (whole sequences): not kept.  dv+:
 * dv rounded up to 16, in blocks of 64 columns [dk][64].
 *
 * kpage [page][Hk][d][16], vpage [page][Hk][16][e+], e+: e rounded up to 16: KV pages of
 * ML_PAGE keys.  ATTN first writes the rows' k and v to the pages, then reads all keys
 * from the pages.  In bf16 pages next to f32 activations, the keys of a head in a page
 * are panels of a matrix [16,d] and its values panels of a matrix [e+,16] (tensor.h).
 * Quantized pages (ML_KV_*): kpage [page][Hk] codes [d][16], scales f32 [16]; vpage [page][Hk]
 * codes [16][e+], scales f32 [16].  (CUDA: kpage [page][Hk][16][d], codes likewise:
 * attn_codes.cuh.)
 *
 * Context parallel (spec_context.h): n are the rows of a rank's pieces, m the most rows that
 * a rank of the group has; rows n .. m-1 are zero.  ATTN, INDEX and ATTN_CHOSEN then have
 * keys of whole sequences, [ranks*m,..] in order; CONV and LINEAR_RNN have whole sequences
 * and the columns of some heads.
 *
 * Data-parallel attention (spec_shard.h): some ops have the rows of one DP group (ml_rows.dp)
 * instead of all.
 *
 * LORA adds the adapter of each row (ml_rows.adapter, args.lora) to the output y of a linear
 * layer with input x: LINEAR, MOE_LINEAR with its group, or HEAD_LINEAR (attr.lora).
 *
 * Activations have the backend's dtype, KV pages of ATTN that dtype, bf16 or
 * ML_KV_*; cs, stat,
 * weight and all outputs of LMHEAD are always f32. */
/* Append new ops at the end: checkop seeds its random cases with the op's number. */
#define ML_OP_LIST(X)                                                                      \
    X(EMBED, "embed")                                                                      \
    X(LINEAR, "linear")                                                                    \
    X(RMSNORM, "rmsnorm")                                                                  \
    X(ROPE_TABLE, "rope-table")                                                            \
    X(ROPE, "rope")                                                                        \
    X(ATTN, "attn")                                                                        \
    X(ADD, "add")                                                                          \
    X(GLU, "glu")                                                                          \
    X(MOE_ROUTE, "moe-route")                                                              \
    X(MOE_GATHER, "moe-gather")                                                            \
    X(MOE_LINEAR, "moe-linear")                                                            \
    X(MOE_COMBINE, "moe-combine")                                                          \
    X(LMHEAD, "lmhead")                                                                    \
    X(SLICE, "slice")                                                                      \
    X(CONV, "conv")                                                                        \
    X(DECAY, "decay")                                                                      \
    X(LINEAR_RNN, "linear-rnn")                                                            \
    X(ROW_GATE, "row-gate")                                                                \
    X(HEAD_LINEAR, "head-linear")                                                          \
    X(CONCAT, "concat")                                                                    \
    X(SCALE, "scale")                                                                      \
    X(MOE_SCALE, "moe-scale")                                                              \
    X(LAYERNORM, "layernorm")                                                              \
    X(INDEX, "index")                                                                      \
    X(ATTN_CHOSEN, "attn-chosen")                                                          \
    X(MOE_WEIGH, "moe-weigh")                                                              \
    X(COL_SCALE, "col-scale")                                                              \
    X(TANH, "tanh")                                                                        \
    X(CUTOFF, "cutoff")                                                                    \
    X(MATCH_RMS, "match-rms")                                                              \
    X(STREAM_MIX, "stream-mix")                                                            \
    X(HYPER_COEF, "hyper-coef")                                                            \
    X(GATHER_COLS, "gather-cols")                                                          \
    X(MERGE_COLS, "merge-cols")                                                            \
    X(SPLIT_COLS, "split-cols")                                                            \
    X(GATHER_ROWS, "gather-rows")                                                          \
    X(SWAP_ROWS, "swap-rows")                                                              \
    X(ORDER_ROWS, "order-rows")                                                            \
    X(SEND_ROWS, "send-rows")                                                              \
    X(RETURN_ROWS, "return-rows")                                                          \
    X(COMPRESS, "compress")                                                                \
    X(LORA, "lora")

#define ML_OP_ENUM(id, name) ML_OP_##id,
typedef enum ml_op_id { ML_OP_LIST(ML_OP_ENUM) ML_OP_COUNT } ml_op_id;
#undef ML_OP_ENUM

/* Selections a model makes during a forward, which can be recorded and replayed (routing
 * replay). */
typedef enum ml_routing_kind {
    ML_ROUTING_EXPERTS, /* output `expert` of MOE_ROUTE */
    ML_ROUTING_KEYS,    /* output `chosen` of INDEX */
    ML_N_ROUTING
} ml_routing_kind;

#define ML_OP_IN 3
#define ML_OP_OUT 4
#define ML_OP_W 2

#define ML_PAGE 16    /* keys per KV page */
#define ML_KTILE 64   /* keys per softmax tile; tiles start at absolute multiples of it */
#define ML_VTILE 1024 /* vocabulary columns per LM-head tile, at absolute multiples */

#define ML_SLICE_PARTS 3
#define ML_COMPRESS_ROWS 128 /* rows of a compressed key at most */
#define ML_STREAMS 8         /* residual streams at most */
#define ML_CONV_RUNS 3

/* relu(x) x, a GLU of x with itself, is the squared ReLU. */
typedef enum ml_act {
    ML_ACT_SILU,
    ML_ACT_GELU_TANH,
    ML_ACT_SIGMOID,
    ML_ACT_RELU,
    ML_ACT_CLAMPED, /* gpt-oss: both inputs are clamped at 7, and 1 is added to u */
    ML_ACT_COUNT
} ml_act;

/* Rotary frequencies: angle = (float)position * freq[i], one f32 product. */
typedef struct ml_rope {
    int32_t dim;       /* rotated part of a head: 2 * number of frequencies */
    const float *freq; /* [dim/2] */
    float scale;       /* factor of both cosine and sine (YaRN) */
    /* Attention temperature (Llama 4): a further factor that grows with the position,
     * 1 + temper log(1 + floor((position + 1) / temper_step)); temper_step 0: none. */
    float temper, temper_step;
    int32_t stride; /* positions are rounded down to its multiples; 0: they are not */
} ml_rope;

/* n columns, from column `from` of a rank's rows to column `to` of the merged rows
 * (SPLIT_COLS: from column `from` of a row to column `to` of block `rank`). */
typedef struct ml_col_run {
    int32_t rank;
    int64_t from, to, n;
} ml_col_run;

/* Scalar attributes of an op; each op reads the group of its name. */
typedef struct ml_op_attr {
    float embed_scale; /* EMBED: 1: none */
    struct {
        float eps;
        int32_t width;
        bool plus_one; /* weight is stored as w - 1 */
    } norm;
    struct {
        const ml_rope *rope; /* ROPE_TABLE */
        int32_t head_dim, dim;
        bool interleaved; /* pairs (0,1) (2,3).. instead of (0,dim/2) (1,dim/2+1).. */
        int32_t at;       /* the first rotated element of a head */
        bool inverse;     /* rotates by the negative angles */
    } rope;
    struct {
        int32_t n_head, n_kv, head_dim;
        int32_t value_dim; /* head size of v and o; vpage absent: v is a prefix of k */
        int32_t window; /* sliding window: keys a row attends to, itself included; 0: all */
        /* A row attends to keys from the last multiple of `chunk` on, itself a multiple of
         * ML_PAGE; 0: from 0 on.  Not together with a window. */
        int32_t chunk;
        /* ATTN_CHOSEN: `chosen` (absent: all) are compressed keys of `ratio` rows each, and
         * a row attends to them and to its window; 0: chosen are the keys of rows. */
        int32_t ratio;
        float scale, softcap; /* softcap 0: none */
    } attn;                   /* ATTN_CHOSEN: n_kv 1, no softcap, a window with `ratio` */
    struct {
        int32_t n_head, head_dim, top_k;
        int32_t ratio;             /* rows of a key; 0: 1 */
        float scale, weight_scale; /* factors of the q.k products, of the weights */
    } index;
    int32_t n_head; /* HEAD_LINEAR, CONCAT */
    struct {
        ml_act act;
        bool fused; /* one input, gate half first; then never in place */
        float
            limit; /* SILU: g is clamped to at most limit, u to -limit .. limit; 0: none */
    } glu;
    struct {
        int32_t n_expert, top_k;
        int32_t n_group, top_group; /* only the best top_group groups are used; 0: all */
        bool sigmoid;               /* scores are sigmoids of the logits, not a softmax */
        bool sqrt_softplus;         /* scores are sqrt(log(1 + e^logit)) */
        bool renorm;                /* selected weights are divided by their sum */
        float scale;                /* factor of the weights, applied last */
    } moe;
    struct {           /* SLICE: part by part, in each part the groups of a row in order */
        int64_t group; /* columns per group */
        int32_t n_group, n_part;
        struct {
            int64_t at, width; /* offset and width within a group */
        } part[ML_SLICE_PARTS];
    } slice;
    int32_t compress_ratio; /* COMPRESS: rows of a window */
    float min_step;         /* DECAY: lower bound of the step size */
    float scale;            /* SCALE without a weight: the factor */
    float cutoff;           /* CUTOFF: z, standard deviations above the mean */
    float match_eps; /* MATCH_RMS: lower bound of the mean square that is divided by */
    /* STREAM_MIX: stream r of z is the sum of (base[r][s] + c[r][s]) x_s over the S
     * streams of x, plus (base[r][S] + c[r][S]) y.  A row of c has only the columns of x
     * (`streams`), of y (`extra`), or both, of each r in turn. */
    struct {
        int32_t n_in, n_out; /* S, R */
        bool streams, extra;
        const float *base; /* [n_out, n_in + 1] */
    } mix;
    /* HYPER_COEF: c has the coefficients that join S streams into the input of a layer,
     * then those of a STREAM_MIX of the streams and its output. */
    struct {
        int32_t n_stream, n_iter; /* n_iter: Sinkhorn iterations */
        float eps;
        bool head; /* only the first S */
    } hyper;
    struct {
        int32_t n_key, n_head, key_dim, value_dim; /* head h has key h / (n_head / n_key) */
        int64_t q_at, k_at, v_at;                  /* column offsets in a row */
        bool delta; /* gated delta rule on L2-normalized q and k; false: Mamba-2 */
        float norm_eps;
        int32_t first_head; /* the skip weight of the first head */
    } linear_rnn;
    struct { /* CONV: the channels of these rows of the weights, run after run; 0: all */
        int32_t n_run;
        struct {
            int64_t at, n;
        } run[ML_CONV_RUNS];
    } conv;
    float logit_softcap; /* LMHEAD: 0: none */
    bool dp; /* GATHER_COLS: of the ranks of a DP group; GATHER_ROWS: of the DP groups */
    struct { /* MERGE_COLS: the runs cover each column of the output once */
        const ml_col_run *run;
        int32_t n_run, n_rank;
    } merge;
    /* SPLIT_COLS, SWAP_ROWS: blocks of `width` columns, one after the other, each
     * [m,width]; the runs cover each column once.  ORDER_ROWS: `back` alone. */
    struct {
        const ml_col_run *run;
        const int64_t *width; /* [n_block] */
        int32_t n_run, n_block;
        bool back; /* the inverse: y [n,C] of x [m,C]; y [m,C] of x [ranks*m,W] */
    } split;
    struct {
        int32_t site;        /* index into an adapter's ml_lora_site */
        int32_t max_rank;    /* of all adapters, for scratch memory */
        int32_t n_head;      /* of a HEAD_LINEAR; otherwise 1.  MoE: attr.moe */
        int32_t first_group; /* MoE: the first expert's number among those of all ranks */
        bool transposed;     /* y + scale A^T (B^T x), head by head: an absorbed weight */
        float dropout;       /* probability, where rows have a key; not if transposed */
    } lora;
} ml_op_attr;

/* The matrices of an adapter at one linear layer with G groups: experts, heads, or 1. */
typedef struct ml_lora_site {
    ml_tensor a, b;   /* f32 [G,r,K] and [G,N,r], or [1,..]: shared by the groups; no data:
                         the adapter does not adapt this layer.  bf16: ml_lora_round */
    ml_tensor da, db; /* gradients, always [G,..]; no data: not computed */
    float scale;
} ml_lora_site;

/* The adapters of a run. */
typedef struct ml_lora_table {
    const ml_lora_site *const *adapter; /* [n_adapter], each [sites of the model] */
    int32_t n_adapter;
    bool all;         /* rows without an index have adapter 0: the one being trained */
    uint64_t version; /* differs after an adapter was put into a slot, or removed: replayed
                         work refers to the matrices of its time */
} ml_lora_table;

/* As an id: the token of the i-th draw, which only the device needs to know. */
#define ML_DEVICE_TOKEN(i) (-1 - (i))

static inline int32_t ml_row_id(const int32_t *id, const int32_t *drawn, int64_t row) {
    return id[row] >= 0 ? id[row] : drawn[-1 - id[row]];
}

/* The ragged batch as ops read it, with its arrays in device memory.  The rows of a
 * sequence are contiguous, at consecutive ascending positions; its keys 0 .. first
 * position - 1 are already in its KV pages, or are those of its prefix. */
typedef struct ml_rows {
    int32_t n_token, n_seq, n_loss;
    const int32_t *id;         /* [n_token]; ML_DEVICE_TOKEN(i): the id is drawn[i] */
    const int32_t *drawn;      /* tokens drawn by the sampler; NULL: no id refers to them */
    const int32_t *pos;        /* [n_token]; -1: padding row of a captured graph */
    const int32_t *seq_start;  /* [n_seq+1] first row of each sequence */
    const int32_t *page_start; /* [n_seq+1] first entry of each sequence in `page` */
    const int32_t *page; /* page ids; entry i of a sequence holds keys 16i .. 16i+15 */
    int32_t n_page;      /* entries of `page`, where they are in device memory */
    /* Of the first sequences that have one row each, as in decode: their number and their entries of
     * `page`.  0: not counted. */
    int32_t n_single, single_page;
    /* Each sequence has one row, which attends to no key of another row of the batch.  Draft tokens of a
     * request do: they may be sequences that share its pages.  false: it is not known. */
    bool separate;
    const int32_t *slot; /* [n_seq] state slot of each sequence */
    /* [n_seq] Shared prefixes, of ATTN: the earlier sequence that this one continues, whose keys, and
     * those of its own prefix, are the keys of this one up to its first position; -1: none.
     * Sequences are in preorder of these trees.  NULL: no sequence has a prefix. */
    const int32_t *prefix;
    const int32_t *loss_row; /* [n_loss] ascending rows whose logits are computed */
    const int32_t *loss_id;  /* [n_loss] the token scored at that row, or -1: none */
    const int32_t
        *adapter; /* [n_token] adapter of each row, or -1; NULL: see ml_lora_table */
    const int32_t *by_adapter; /* ml_rows_by_adapter of these; NULL: not computed */
    /* [n_token] LORA drops inputs of adapters by these random numbers; NULL: it drops none */
    const uint64_t *dropout_key;
    float temperature;                     /* logits are divided by it */
    const struct ml_support_rows *support; /* LMHEAD; NULL: none */
    /* Context parallel: the sequences are pieces of others, whose KV pages they have; NULL:
     * they are not. */
    const struct ml_context_rows *context;
    /* Data-parallel attention: the rows are those of all DP groups; NULL: it is not used. */
    const struct ml_dp_rows *dp;
} ml_rows;

/* Counts the first sequences of one row; `at` has their arrays in host memory. */
static inline void ml_rows_count_single(ml_rows *r, const ml_rows *at) {
    int32_t n = 0;

    if (!at->prefix && !at->context)
        while (n < at->n_seq && at->seq_start[n + 1] == n + 1)
            n++;
    r->n_single = n;
    r->single_page = n ? at->page_start[n] : 0;
}

/* Whether sequence i attends to the key of sequence j, of one row each. */
static inline bool ml_rows_attend(const ml_rows *at, int32_t i, int32_t j) {
    int32_t page = at->pos[j] / ML_PAGE;

    return at->pos[j] < at->pos[i] &&
           at->page[at->page_start[i] + page] == at->page[at->page_start[j] + page];
}

/* Sets `separate` of up to so many rows; `at` has the arrays in host memory. */
enum { ML_SEPARATE_ROWS = 16 };

static inline void ml_rows_find_separate(ml_rows *r, const ml_rows *at) {
    r->separate = !at->prefix && !at->context && at->n_token == at->n_seq &&
                  at->n_seq <= ML_SEPARATE_ROWS;
    for (int32_t i = 0; r->separate && i < at->n_seq * at->n_seq; i++)
        r->separate = !ml_rows_attend(at, i / at->n_seq, i % at->n_seq);
}

/* The rows of each adapter, ascending: list 0 has the rows without one, list a + 1 those of adapter
 * a.  First [ML_ADAPTER_LISTS + 1] numbers, where each list begins and ends, then [n] rows. */
enum { ML_ADAPTER_LISTS = 65 };

/* false: there are more adapters. */
static inline bool ml_rows_by_adapter(int32_t *out, const int32_t *adapter, int32_t n) {
    int32_t *row = out + ML_ADAPTER_LISTS + 1, at[ML_ADAPTER_LISTS];

    for (int32_t i = 0; i <= ML_ADAPTER_LISTS; i++)
        out[i] = 0;
    for (int32_t i = 0; i < n; i++) {
        if (adapter[i] >= ML_ADAPTER_LISTS - 1)
            return false;
        out[adapter[i] + 2]++;
    }
    for (int32_t i = 0; i < ML_ADAPTER_LISTS; i++) {
        at[i] = out[i];
        out[i + 1] += out[i];
    }
    for (int32_t i = 0; i < n; i++)
        row[at[adapter[i] + 1]++] = i;
    return true;
}

/* Data-parallel attention: the rows of each group of ranks that has the KV pages of some
 * sequences.  Rows of a group are contiguous. */
typedef struct ml_dp_rows {
    ml_rows rows;         /* of this rank's group, its row 0 being row start[group] */
    const int32_t *start; /* [n_group+1] in host memory */
    int32_t n_group, group;
} ml_dp_rows;

/* Sampling supports of loss rows (support.h), in host memory.  LMHEAD computes the
 * log-prob over the support in addition to that over the vocabulary; without a gradient of the
 * former, those of rows are the same. */
typedef struct ml_support_rows {
    const ml_str *of;      /* [n_loss] */
    float *logprob;        /* [n_loss] forward writes it */
    float *stat;           /* [n_loss][2] forward writes it, for backward */
    const float *dlogprob; /* [n_loss] backward: the gradient by `logprob` */
} ml_support_rows;

/* The ranks of a context-parallel group have pieces of the same sequences. */
typedef struct ml_context_rows {
    ml_rows whole;      /* the sequences, from position 0 on, and their KV pages */
    const int32_t *seq; /* [pieces] the sequence of each piece of this rank */
    const int32_t
        *order; /* [n_rank*n_share] a permutation: row i of `whole` is row order[i]
                             of the ranks' rows, of which each rank has n_share */
    int32_t n_rank, n_share;
} ml_context_rows;

/* Keys in a page that are compressed from `ratio` rows each, at most. */
static inline int32_t ml_page_keys(int32_t ratio) {
    return (ML_PAGE + ratio - 1) / ratio;
}

/* The place of key g of a sequence with these pages. */
static inline int64_t ml_page_slot(const int32_t *page, int32_t g, int32_t ratio) {
    int64_t at = ((int64_t)g * ratio + ratio - 1) / ML_PAGE;
    return (int64_t)page[at] * ml_page_keys(ratio) + g - at * ML_PAGE / ratio;
}

/* The rows whose keys an attention op is given. */
static inline const ml_rows *ml_key_rows(const ml_rows *r) {
    return r->context ? &r->context->whole : r;
}

/* How backward of LINEAR rounds gradients, and the other operands of their products. */
typedef enum ml_grad_format {
    ML_GRAD_PLAIN, /* it does not */
    ML_GRAD_E4M3,  /* FP8, if the weight is ML_FP8_BLOCKWISE */
    ML_GRAD_E5M2   /* the same, with gradients in e5m2 */
} ml_grad_format;

typedef struct ml_op_args {
    const ml_op_attr *attr;
    const ml_rows *rows;
    ml_tensor in[ML_OP_IN], out[ML_OP_OUT], w[ML_OP_W];
    ml_tensor din[ML_OP_IN], dout[ML_OP_OUT], dw[ML_OP_W]; /* dw: f32, layout of w */
    bool din_add[ML_OP_IN]; /* true: add to din; false: write it */
    bool dw_write[ML_OP_W]; /* true: write all of dw; only where ml_ops.writes_dw has it */
    /* Forward of an op that selects (routing replay): i32 [n,k], the selection to use,
     * except in rows that begin with -1.  Absent: the op selects.  It may alias the
     * output the selection is written to. */
    ml_tensor given;
    const ml_lora_table *lora; /* LORA: the adapters; NULL: none */
    int32_t loss_rows; /* LMHEAD: rows processed at a time; 0: the backend decides */
    ml_grad_format grad_format;
    void *scratch; /* at least ml_ops.scratch() bytes, aligned to 64 */
} ml_op_args;

typedef void ml_op_fn(ml_stream *s, const ml_op_args *a);

/* A forward call of a plan, in an array with the calls that follow it. */
typedef struct ml_op_call {
    ml_op_id op;
    ml_op_args args;
    int32_t reader[ML_OP_OUT]; /* distance to the last call that reads out[i]; 0: none */
} ml_op_call;

/* What an op does with values whose columns are divided over the ranks of a
 * tensor-parallel group (model/spec_shard.h). */
typedef enum ml_op_cut {
    ML_CUT_NONE,    /* reads and writes whole rows */
    ML_CUT_COLUMNS, /* works column by column: cut_in and the output may be cut alike */
    ML_CUT_GROUPS,  /* works on groups of columns (heads), each of which stays whole */
    ML_CUT_HEADS,   /* works on heads, of which several may share a key */
    ML_CUT_OUTPUTS, /* a product: reads whole rows; its outputs are cut, with the weights */
} ml_op_cut;

/* Properties of an op that memory planning and sharding need. */
typedef struct ml_op_info {
    const char *name;
    unsigned save_in, save_out; /* bit i: backward reads in[i] / out[i] */
    unsigned in_place;          /* bit i: out[0] may alias in[i] */
    unsigned grad_in;           /* bit i: in[i] gets a gradient */
    ml_op_cut cut;
    unsigned cut_in; /* COLUMNS: bit i: in[i] has the columns of the output */
    bool comm;       /* a collective: the plan runs it (plan_comm.c), no backend does */
} ml_op_info;

extern const ml_op_info ml_op_infos[ML_OP_COUNT];

struct ml_draw;

typedef struct ml_ops {
    ml_op_fn *forward[ML_OP_COUNT], *backward[ML_OP_COUNT];
    unsigned writes_dw[ML_OP_COUNT]; /* bit k: backward reads dw_write[k]; else it adds */
    /* Op fusion: runs the first of n calls as one piece of work, with the same bits, and
     * returns how many calls it ran; 0: run the first call alone.  Outputs that only
     * these calls read need not be written.  NULL: no fusion. */
    int (*together)(ml_stream *s, const ml_op_call *call, int n);
    /* The same of backward, in the order in which the calls run; 0: run the first, or all LINEARs, one by one.
     * Either a GLU and then the two LINEARs whose outputs it reads; or ROPE of k and of q, and the RMSNORMs of k and
     * of q before these, offered with the LINEARs of v, k and q before them, and then without; or, with a
     * grad_format, n calls of LINEAR with one input.  LINEARs have the scratch memory of one call with all their
     * outputs (w[0] of all, out[0] of one), and may run as its products: dx, a sum over the outputs, then has other
     * last bits than parts that are added one by one.  NULL: no fusion. */
    int (*together_back)(ml_stream *s, const ml_op_call *call, int n);
    /* Scratch bytes for a call with these shapes (data pointers are not read). */
    size_t (*scratch)(const ml_stream *s, ml_op_id op, const ml_op_args *a, bool backward);
    /* Called once for each call of a plan, with its largest shapes: the backend rejects
     * calls it has no kernel for, and autotunes.  NULL: no preparation. */
    ml_status (*prepare)(ml_stream *s, ml_op_id op, const ml_op_args *a, bool backward,
                         ml_err *err);
    /* Sampling from rows of logits: see draw.h. */
    size_t (*sample_scratch)(const ml_stream *s, int64_t n_vocab);
    /* Starts n draws.  The tokens are also written to drawn [n] in device memory, where
     * later work on the stream reads them; NULL: not written. */
    void (*sample)(ml_stream *s, struct ml_draw *draw, int64_t n, int64_t n_vocab,
                   void *scratch, int32_t *drawn);
    /* Waits for the n draws that were started first and fills in their results; no other
     * pointer of a draw is read.  Two calls of sample may be in flight. */
    void (*sampled)(ml_stream *s, struct ml_draw *draw, int64_t n);
} ml_ops;

#endif
