/* cpu.c - the CPU backend: its memory, its levels, its table of ops. */
#if defined(__x86_64__)
#include <cpuid.h>
#endif
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "backend/backend.h"
#include "backend/cpu/cpu_priv.h"
#include "backend/draw.h"
#include "base/bug.h"

/* ---- memory ---- */

/* Anonymous mappings: zeroed, aligned, and committed on first touch.  Large buffers
 * request huge pages: a step touches all of its memory, and with small pages part of its
 * time goes into TLB misses.  A refusal affects speed only.  Small buffers do not request
 * them: rounding up to a huge page would be a large overhead. */
enum { LARGE_PAGES_FROM = 64 << 20 }; /* bytes of a buffer */

static ml_status host_alloc(ml_device *d, ml_buf *out, size_t bytes, ml_mem_kind kind,
                            ml_err *err) {
    void *p;

    ML_BUG_IF(ml_mem_sealed());
    p = mmap(NULL, bytes ? bytes : 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
             -1, 0);
    if (p == MAP_FAILED)
        return ml_fail(
            err, ML_ENOMEM,
            "out of memory: cannot allocate %zu bytes (%.1f GiB) for %s: %s; use a smaller "
            "model, batch or context, or a machine with more memory",
            bytes, (double)bytes / 0x1p30, ml_mem_name(kind), strerror(errno));
    if (bytes >= LARGE_PAGES_FROM)
        (void)madvise(p, bytes, MADV_HUGEPAGE);
    *out = (ml_buf){ .dev = d, .ptr = p, .bytes = bytes, .kind = kind };
    return ML_OK;
}

static void host_free(ml_buf *b) {
    if (b->ptr)
        munmap(b->ptr, b->bytes ? b->bytes : 1);
    *b = (ml_buf){ 0 };
}

static void host_zero_sparse(ml_buf *b) {
    (void)madvise(b->ptr, b->bytes, MADV_NOHUGEPAGE);
    if (madvise(b->ptr, b->bytes, MADV_DONTNEED) != 0)
        memset(b->ptr, 0, b->bytes);
}

static void host_copy(ml_stream *s, void *dst, const void *src, size_t bytes) {
    (void)s;
    if (bytes)
        memcpy(dst, src, bytes);
}

/* Work is complete when its call returns. */
static ml_status host_sync(ml_stream *s, ml_err *err) {
    (void)s;
    (void)err;
    return ML_OK;
}

/* ---- levels ---- */

#if defined(__x86_64__)

static const ml_cpu_kern *const kerns[] = { &ml_cpu_kern_c, &ml_cpu_kern_avx2,
                                            &ml_cpu_kern_avx512 };

/* Clang's builtin does not know its name. */
static bool has_f16c(void) {
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

/* The builtin also checks that the system saves the wide registers (XGETBV). */
const char *const *ml_backend_cpu_levels(void) {
    static const char *const c[] = { "c", NULL };
    static const char *const avx2[] = { "c", "avx2", NULL };
    static const char *const avx512[] = { "c", "avx2", "avx512", NULL };

    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !has_f16c())
        return c;
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
        !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl"))
        return avx2;
    return avx512;
}

#elif defined(__aarch64__)

static const ml_cpu_kern *const kerns[] = { &ml_cpu_kern_c, &ml_cpu_kern_neon };

const char *const *ml_backend_cpu_levels(void) {
    static const char *const neon[] = { "c", "neon", NULL }; /* every AArch64 has NEON */
    return neon;
}

#else

static const ml_cpu_kern *const kerns[] = { &ml_cpu_kern_c };

const char *const *ml_backend_cpu_levels(void) {
    static const char *const c[] = { "c", NULL };
    return c;
}

#endif

/* Levels are a prefix of kerns: the lists above name them in that order. */
static ml_status find_level(const ml_cpu_kern **out, const char *level, ml_err *err) {
    const char *const *names = ml_backend_cpu_levels();
    char list[64] = "";
    int n = 0;

    for (; names[n]; n++) {
        if (level && strcmp(names[n], level) == 0) {
            *out = kerns[n];
            return ML_OK;
        }
        strcat(strcat(list, n ? ", " : ""), names[n]);
    }
    if (level)
        return ml_fail(err, ML_EUSAGE,
                       "this machine does not support CPU level \"%s\"; it supports %s",
                       level, list);
    *out = kerns[n - 1];
    return ML_OK;
}

/* ---- ops ---- */

int64_t ml_cpu_grain(int64_t cost) {
    const int64_t piece = 16384; /* elements: a few microseconds of work */
    return cost > 0 && cost < piece ? piece / cost : 1;
}

void ml_cpu_split(const ml_stream *s, const ml_op_args *a, int64_t n, int64_t cost,
                  ml_task *task) {
    ml_cpu_job job = { ml_cpu(s), a };
    ml_pool_run(job.s->pool, n, ml_cpu_grain(cost), task, &job);
}

static size_t op_scratch(const ml_stream *s, ml_op_id op, const ml_op_args *a,
                         bool backward) {
    static ml_cpu_scratch_fn *const fn[ML_OP_COUNT] = {
        [ML_OP_LINEAR] = ml_cpu_linear_scratch,
        [ML_OP_RMSNORM] = ml_cpu_rmsnorm_scratch,
        [ML_OP_ATTN] = ml_cpu_attn_scratch,
        [ML_OP_MOE_ROUTE] = ml_cpu_moe_route_scratch,
        [ML_OP_MOE_LINEAR] = ml_cpu_moe_linear_scratch,
        [ML_OP_LINEAR_RNN] = ml_cpu_linear_rnn_scratch,
        [ML_OP_HEAD_LINEAR] = ml_cpu_moe_linear_scratch,
        [ML_OP_LAYERNORM] = ml_cpu_layernorm_scratch,
        [ML_OP_INDEX] = ml_cpu_index_scratch,
        [ML_OP_ATTN_CHOSEN] = ml_cpu_attn_chosen_scratch,
        [ML_OP_COL_SCALE] = ml_cpu_col_scale_scratch,
        [ML_OP_HYPER_COEF] = ml_cpu_hyper_coef_scratch,
        [ML_OP_LMHEAD] = ml_cpu_lmhead_scratch,
        [ML_OP_LORA] = ml_cpu_lora_scratch,
    };
    return fn[op] ? fn[op](ml_cpu(s), a, backward) : 0;
}

static const ml_ops cpu_ops = {
    .writes_dw = {
        [ML_OP_LINEAR] = 1,
        [ML_OP_MOE_LINEAR] = 1,
        [ML_OP_HEAD_LINEAR] = 1,
        [ML_OP_LMHEAD] = 1,
    },
    .forward = {
        [ML_OP_EMBED] = ml_cpu_embed_forward,
        [ML_OP_LINEAR] = ml_cpu_linear_forward,
        [ML_OP_RMSNORM] = ml_cpu_rmsnorm_forward,
        [ML_OP_ROPE_TABLE] = ml_cpu_rope_table_forward,
        [ML_OP_ROPE] = ml_cpu_rope_forward,
        [ML_OP_ATTN] = ml_cpu_attn_forward,
        [ML_OP_ADD] = ml_cpu_add_forward,
        [ML_OP_GLU] = ml_cpu_glu_forward,
        [ML_OP_MOE_ROUTE] = ml_cpu_moe_route_forward,
        [ML_OP_MOE_GATHER] = ml_cpu_moe_gather_forward,
        [ML_OP_MOE_LINEAR] = ml_cpu_moe_linear_forward,
        [ML_OP_MOE_COMBINE] = ml_cpu_moe_combine_forward,
        [ML_OP_SLICE] = ml_cpu_slice_forward,
        [ML_OP_CONV] = ml_cpu_conv_forward,
        [ML_OP_DECAY] = ml_cpu_decay_forward,
        [ML_OP_LINEAR_RNN] = ml_cpu_linear_rnn_forward,
        [ML_OP_ROW_GATE] = ml_cpu_row_gate_forward,
        [ML_OP_HEAD_LINEAR] = ml_cpu_head_linear_forward,
        [ML_OP_CONCAT] = ml_cpu_concat_forward,
        [ML_OP_SCALE] = ml_cpu_scale_forward,
        [ML_OP_MOE_SCALE] = ml_cpu_moe_scale_forward,
        [ML_OP_MOE_WEIGH] = ml_cpu_moe_weigh_forward,
        [ML_OP_LAYERNORM] = ml_cpu_layernorm_forward,
        [ML_OP_INDEX] = ml_cpu_index_forward,
        [ML_OP_ATTN_CHOSEN] = ml_cpu_attn_chosen_forward,
        [ML_OP_COL_SCALE] = ml_cpu_col_scale_forward,
        [ML_OP_TANH] = ml_cpu_tanh_forward,
        [ML_OP_CUTOFF] = ml_cpu_cutoff_forward,
        [ML_OP_MATCH_RMS] = ml_cpu_match_rms_forward,
        [ML_OP_STREAM_MIX] = ml_cpu_stream_mix_forward,
        [ML_OP_HYPER_COEF] = ml_cpu_hyper_coef_forward,
        [ML_OP_COMPRESS] = ml_cpu_compress_forward,
        [ML_OP_LMHEAD] = ml_cpu_lmhead_forward,
        [ML_OP_MERGE_COLS] = ml_cpu_merge_cols_forward,
        [ML_OP_SPLIT_COLS] = ml_cpu_split_cols_forward,
        [ML_OP_ORDER_ROWS] = ml_cpu_order_rows_forward,
        [ML_OP_LORA] = ml_cpu_lora_forward,
    },
    .backward = {
        [ML_OP_EMBED] = ml_cpu_embed_backward,
        [ML_OP_LINEAR] = ml_cpu_linear_backward,
        [ML_OP_RMSNORM] = ml_cpu_rmsnorm_backward,
        [ML_OP_ROPE_TABLE] = ml_cpu_rope_table_backward,
        [ML_OP_ROPE] = ml_cpu_rope_backward,
        [ML_OP_ATTN] = ml_cpu_attn_backward,
        [ML_OP_ADD] = ml_cpu_add_backward,
        [ML_OP_GLU] = ml_cpu_glu_backward,
        [ML_OP_MOE_ROUTE] = ml_cpu_moe_route_backward,
        [ML_OP_MOE_GATHER] = ml_cpu_moe_gather_backward,
        [ML_OP_MOE_LINEAR] = ml_cpu_moe_linear_backward,
        [ML_OP_MOE_COMBINE] = ml_cpu_moe_combine_backward,
        [ML_OP_SLICE] = ml_cpu_slice_backward,
        [ML_OP_CONV] = ml_cpu_conv_backward,
        [ML_OP_DECAY] = ml_cpu_decay_backward,
        [ML_OP_LINEAR_RNN] = ml_cpu_linear_rnn_backward,
        [ML_OP_ROW_GATE] = ml_cpu_row_gate_backward,
        [ML_OP_HEAD_LINEAR] = ml_cpu_head_linear_backward,
        [ML_OP_CONCAT] = ml_cpu_concat_backward,
        [ML_OP_SCALE] = ml_cpu_scale_backward,
        [ML_OP_MOE_SCALE] = ml_cpu_moe_scale_backward,
        [ML_OP_MOE_WEIGH] = ml_cpu_moe_weigh_backward,
        [ML_OP_LAYERNORM] = ml_cpu_layernorm_backward,
        [ML_OP_INDEX] = ml_cpu_index_backward,
        [ML_OP_ATTN_CHOSEN] = ml_cpu_attn_chosen_backward,
        [ML_OP_COL_SCALE] = ml_cpu_col_scale_backward,
        [ML_OP_TANH] = ml_cpu_tanh_backward,
        [ML_OP_CUTOFF] = ml_cpu_cutoff_backward,
        [ML_OP_MATCH_RMS] = ml_cpu_match_rms_backward,
        [ML_OP_STREAM_MIX] = ml_cpu_stream_mix_backward,
        [ML_OP_HYPER_COEF] = ml_cpu_hyper_coef_backward,
        [ML_OP_COMPRESS] = ml_cpu_compress_backward,
        [ML_OP_LMHEAD] = ml_cpu_lmhead_backward,
        [ML_OP_SPLIT_COLS] = ml_cpu_split_cols_backward,
        [ML_OP_ORDER_ROWS] = ml_cpu_order_rows_backward,
        [ML_OP_LORA] = ml_cpu_lora_backward,
    },
    .together = ml_cpu_linear_together,
    .scratch = op_scratch,
    .sample_scratch = ml_cpu_sample_scratch,
    .sample = ml_cpu_sample,
    .sampled = ml_cpu_sampled,
};

/* ---- open and close ---- */

typedef struct cpu {
    ml_device dev;
    ml_cpu_stream stream;
} cpu;

static void cpu_close(ml_backend *b) {
    cpu *c = b->priv;
    ml_pool_free(c->stream.pool);
    free(c);
}

ml_status ml_backend_cpu_open(ml_backend *out, int n_thread, const char *level,
                              ml_err *err) {
    const ml_cpu_kern *kern = NULL;
    ml_pool *pool = NULL;
    ml_status rc;
    cpu *c;

    *out = (ml_backend){ 0 };
    rc = find_level(&kern, level, err);
    if (rc)
        return rc;
    rc = ml_pool_new(&pool, n_thread, err);
    if (rc)
        return rc;
    c = malloc(sizeof *c);
    if (!c) {
        ml_pool_free(pool);
        return ml_fail(err, ML_ENOMEM, "out of memory for the CPU backend");
    }
    c->dev = (ml_device){ .name = "cpu",
                          .host = true,
                          .alloc = host_alloc,
                          .free = host_free,
                          .zero_sparse = host_zero_sparse,
                          .copy_in = host_copy,
                          .copy_out = host_copy,
                          .copy = host_copy,
                          .sync = host_sync };
    c->stream = (ml_cpu_stream){ { &c->dev }, pool, kern };
    *out = (ml_backend){ .name = "cpu",
                         .level = kern->level,
                         .act = ML_F32,
                         .linear = ML_PANELS,
                         .dev = &c->dev,
                         .stream = &c->stream.base,
                         .ops = &cpu_ops,
                         .optim = &ml_cpu_optim,
                         .n_thread = n_thread,
                         .close = cpu_close,
                         .priv = c };
    return ML_OK;
}
