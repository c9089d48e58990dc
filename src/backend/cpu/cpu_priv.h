/* cpu_priv.h - declarations shared by the files of the CPU backend.
 *
 * An op function splits its outputs among the pool's threads and calls the kernels of the
 * stream's level.  It does not allocate: working memory is a->scratch. */
#ifndef ML_BACKEND_CPU_CPU_PRIV_H
#define ML_BACKEND_CPU_CPU_PRIV_H

#include "backend/cpu/kern.h"
#include "backend/ops.h"
#include "backend/optim.h"
#include "base/pool.h"

typedef struct ml_cpu_stream {
    ml_stream base; /* first: an ml_stream * of this backend is an ml_cpu_stream * */
    ml_pool *pool;
    const ml_cpu_kern *kern;
    const ml_tensor *next; /* the weight of the following product; NULL: not known */
} ml_cpu_stream;

static inline const ml_cpu_stream *ml_cpu(const ml_stream *s) {
    return (const ml_cpu_stream *)s;
}

/* One forward and one backward per op, and a scratch function where an op needs scratch. */
#define ML_CPU_OP(name)                                                                    \
    void ml_cpu_##name##_forward(ml_stream *s, const ml_op_args *a);                       \
    void ml_cpu_##name##_backward(ml_stream *s, const ml_op_args *a);

ML_CPU_OP(embed)       /* embed.c */
ML_CPU_OP(linear)      /* linear.c */
ML_CPU_OP(rmsnorm)     /* norm.c */
ML_CPU_OP(rope_table)  /* rope.c; backward is a no-op */
ML_CPU_OP(rope)        /* rope.c */
ML_CPU_OP(attn)        /* attn.c */
ML_CPU_OP(add)         /* elementwise.c */
ML_CPU_OP(glu)         /* elementwise.c */
ML_CPU_OP(moe_route)   /* moe.c */
ML_CPU_OP(moe_gather)  /* moe.c */
ML_CPU_OP(moe_linear)  /* linear.c */
ML_CPU_OP(moe_combine) /* moe.c */
ML_CPU_OP(slice)       /* slice.c */
ML_CPU_OP(conv)        /* conv.c */
ML_CPU_OP(decay)       /* decay.c */
ML_CPU_OP(linear_rnn)  /* linear_rnn.c */
ML_CPU_OP(row_gate)    /* row_gate.c */
ML_CPU_OP(head_linear) /* linear.c */
ML_CPU_OP(concat)      /* concat.c */
ML_CPU_OP(scale)       /* scale.c */
ML_CPU_OP(moe_scale)   /* scale.c */
ML_CPU_OP(layernorm)   /* layernorm.c */
ML_CPU_OP(index)       /* index.c; backward is a no-op */
ML_CPU_OP(attn_chosen) /* attn_chosen.c */
ML_CPU_OP(moe_weigh)   /* moe.c */
ML_CPU_OP(col_scale)   /* scale.c */
ML_CPU_OP(tanh)        /* row_act.c */
ML_CPU_OP(cutoff)      /* row_act.c */
ML_CPU_OP(match_rms)   /* streams.c */
ML_CPU_OP(stream_mix)  /* streams.c */
ML_CPU_OP(hyper_coef)  /* hyper.c */
ML_CPU_OP(compress)    /* compress.c */
ML_CPU_OP(lmhead)      /* lmhead.c */
ML_CPU_OP(split_cols)  /* merge.c */
ML_CPU_OP(order_rows)  /* merge.c */
ML_CPU_OP(lora)        /* low_rank.c */
#undef ML_CPU_OP
void ml_cpu_merge_cols_forward(ml_stream *s, const ml_op_args *a); /* merge.c */

/* ml_ops.together: linear.c */
int ml_cpu_linear_together(ml_stream *s, const ml_op_call *call, int n);

extern const ml_optim_ops ml_cpu_optim; /* optim.c */
/* muon.c: ml_optim_ops.muon, without rounding the weights. */
void ml_cpu_muon(ml_stream *s, const ml_optim_param *p, const ml_tensor *shape,
                 const ml_muon *o, void *scratch);
size_t ml_cpu_muon_scratch(ml_stream *s, const ml_tensor *shape);
/* adafactor.c: the same of ml_optim_ops.adafactor. */
void ml_cpu_adafactor(ml_stream *s, const ml_optim_param *p, const ml_tensor *shape,
                      const ml_adafactor *o, void *scratch);
size_t ml_cpu_adafactor_scratch(ml_stream *s, const ml_tensor *shape);

/* Task data of an op that needs its arguments only. */
typedef struct ml_cpu_job {
    const ml_cpu_stream *s;
    const ml_op_args *a;
} ml_cpu_job;

/* Grain size: number of indices per task, when one index touches `cost` elements. */
int64_t ml_cpu_grain(int64_t cost);

/* Runs task over [0, n) with an ml_cpu_job, in chunks of ml_cpu_grain(cost). */
void ml_cpu_split(const ml_stream *s, const ml_op_args *a, int64_t n, int64_t cost,
                  ml_task *task);

/* Keys of in[1] and the KV pages [page, ml_page_keys(ratio), width] that they belong to. */
typedef struct ml_cpu_keys {
    const ml_tensor *page;
    int64_t at, width; /* columns of in[1] */
    int32_t ratio;     /* rows of a key, which is in the last of them */
} ml_cpu_keys;
/* Writes each row's key to its slot in its KV page. */
void ml_cpu_write_keys(const ml_stream *s, const ml_op_args *a, ml_cpu_keys k);
/* The sequence that a row belongs to. */
int32_t ml_cpu_seq_of(const ml_rows *rows, int64_t row);

typedef size_t ml_cpu_scratch_fn(const ml_cpu_stream *s, const ml_op_args *a,
                                 bool backward);
ml_cpu_scratch_fn ml_cpu_linear_scratch, ml_cpu_moe_linear_scratch, ml_cpu_rmsnorm_scratch,
    ml_cpu_attn_scratch, ml_cpu_moe_route_scratch, ml_cpu_linear_rnn_scratch,
    ml_cpu_lmhead_scratch, ml_cpu_layernorm_scratch, ml_cpu_index_scratch,
    ml_cpu_attn_chosen_scratch, ml_cpu_col_scale_scratch, ml_cpu_hyper_coef_scratch,
    ml_cpu_lora_scratch;

#endif
