/* weights.h - the parameters of a model in memory, packed for the kernels.
 *
 * A set is one buffer with one tensor per parameter of the spec: matrices of linear
 * layers in the backend's layout, embedding tables row-major, vectors always f32.  Quantized
 * matrices (weights_codes.h) are whole: ranks do not divide them.  The
 * file on disk is only the source: it is mapped, packed piece by piece, and its pages are
 * released.  Gradients are a set of the same layout in f32.
 *
 * A rank may have a part of each parameter only (shard_map.h): a range of the packed
 * tensor.  Its tensor then is the members in the range, if they are whole, or their rows as
 * a matrix (ml_shard_view); parameters without elements have no data.
 *
 * thread: loading and unpacking use the caller's pool; otherwise a set is read-only
 * except for its single writer. */
#ifndef ML_MODEL_WEIGHTS_H
#define ML_MODEL_WEIGHTS_H

#include "backend/backend.h"
#include "io/checkpoint.h"
#include "model/shard_map.h"
#include "model/source.h"
#include "model/spec.h"

/* AUTO: as on disk, f16 widened to f32; on a GPU, its dtype of activations.  BF16 rounds
 * every value to bf16 (vectors too, which are then stored as f32).  The others quantize
 * linear layers (ml_param.linear; tensor/codes.h) and are AUTO for the rest: STORED keeps the
 * codes and scales of a quantized checkpoint. */
typedef enum ml_weight_dtype {
    ML_WEIGHT_AUTO,
    ML_WEIGHT_F32,
    ML_WEIGHT_BF16,
    ML_WEIGHT_STORED,
    ML_WEIGHT_FP8,
    ML_WEIGHT_INT8,
    ML_WEIGHT_INT4,
    ML_WEIGHT_INT4_G128,
    ML_WEIGHT_NF4,
    ML_WEIGHT_FP8_BLOCKWISE, /* inputs of these layers are rounded, too */
    ML_WEIGHT_QAT,           /* INT4 where ml_param.qat */
    ML_WEIGHT_QAT_G128,
    ML_WEIGHT_QAT_F32_SCALE, /* bf16, with the values of ml_quant_fake_int4 */
    ML_WEIGHT_QAT_G128_F32_SCALE,
    ML_WEIGHT_MXFP8 /* inputs of these layers are rounded, too */
} ml_weight_dtype;

typedef struct ml_weights {
    ml_buf buf;
    ml_tensor *t;   /* [spec->n_param], in the arena given at open */
    ml_backend *be; /* owner of the memory; NULL: host memory */
    int32_t n;
    ml_weight_dtype
        dtype; /* by which its linear layers are quantized; AUTO: they are not */
    uint64_t version;
    const ml_shard_range *range; /* [n] the part of each parameter; NULL: all.  Not owned */
    const ml_lora_table *lora;   /* adapters on top of it; NULL: none.  Not owned */
} ml_weights;

const char *ml_weight_dtype_name(ml_weight_dtype t); /* as the flags have it */

/* Resolves AUTO for this backend. */
ml_weight_dtype ml_weights_dtype(const ml_backend *be, ml_weight_dtype dtype);

/* The dtype in which a set stores a parameter. */
ml_dtype ml_weights_param_dtype(const ml_param *p, const ml_checkpoint *c,
                                ml_weight_dtype want);

/* Bytes of a set; the checkpoint is read for AUTO only (may be NULL otherwise). */
size_t ml_weights_bytes(const ml_spec *s, const ml_checkpoint *c, ml_weight_dtype dtype);
/* Of a set with these parts; NULL: all. */
size_t ml_weights_part_bytes(const ml_spec *s, const ml_checkpoint *c,
                             ml_weight_dtype dtype, const ml_shard_range *range);

/* The dtype of the KV cache for such a set (ml_spec_keep_kv): bf16 if most of its matrix
 * elements are bf16. */
ml_dtype ml_weights_kv_dtype(const ml_spec *s, const ml_checkpoint *c,
                             ml_weight_dtype dtype);

/* Sets the dtype of the KV cache: `want`, or with ML_F32 that of such a set. */
ml_status ml_weights_keep_kv(ml_spec *s, const ml_checkpoint *c, ml_weight_dtype dtype,
                             ml_dtype want, ml_err *err);
/* Marks the parameters that such a set has quantized (ml_param.codes), for plans. */
void ml_weights_mark_codes(ml_spec *s, const ml_checkpoint *c, ml_weight_dtype dtype);

/* Checks, allocates, packs.  If the checkpoint has no critic head, it is initialized:
 * random weights of standard deviation 0.02, zero bias. */
ml_status ml_weights_load(ml_weights *w, const ml_spec *s, const ml_checkpoint *c,
                          ml_weight_dtype dtype, ml_backend *be, ml_arena *a, ml_err *err);

/* The same for a part of each parameter, [n_param], which must outlive the set; NULL: all. */
ml_status ml_weights_load_part(ml_weights *w, const ml_spec *s, const ml_checkpoint *c,
                               ml_weight_dtype dtype, const ml_shard_range *range,
                               ml_backend *be, ml_arena *a, ml_err *err);

/* A set of this layout without values, for tensors that arrive one by one; c as above. */
ml_status ml_weights_new(ml_weights *w, const ml_spec *s, const ml_checkpoint *c,
                         ml_weight_dtype dtype, ml_backend *be, ml_arena *a, ml_err *err);
/* Packs tensors in memory into such a set; round_bf16: as ML_WEIGHT_BF16 does.  put: member
 * e of parameter i, or all its members if e is ML_NONE (model/source.h).  close waits for the
 * device. */
typedef struct ml_packer ml_packer;
ml_status ml_packer_open(ml_packer **out, const ml_weights *w, const ml_spec *s,
                         bool round_bf16, ml_err *err);
void ml_packer_put(ml_packer *k, int32_t i, int32_t e, const ml_st_tensor *t, bool part);
ml_status ml_packer_close(ml_packer *k, ml_err *err);

/* Random values of a realistic magnitude, reproducible from the seed: for benchmarks
 * without a checkpoint.  AUTO is BF16. */
ml_status ml_weights_dummy(ml_weights *w, const ml_spec *s, ml_weight_dtype dtype,
                           uint64_t seed, ml_backend *be, ml_arena *a, ml_err *err);

/* A zeroed f32 set, for gradients. */
ml_status ml_weights_zeros(ml_weights *w, const ml_spec *s, ml_backend *be, ml_arena *a,
                           ml_err *err);
ml_status ml_weights_zeros_part(ml_weights *w, const ml_spec *s,
                                const ml_shard_range *range, ml_backend *be, ml_arena *a,
                                ml_err *err);
void ml_weights_close(ml_weights *w);

/* Whether two sets of one spec have the same dtypes, layouts and parts. */
bool ml_weights_alike(const ml_weights *a, const ml_weights *b);
/* A second set with the same layout, values and version. */
ml_status ml_weights_clone(ml_weights *out, const ml_weights *from, ml_backend *be,
                           ml_arena *a, ml_err *err);
/* Copies the values and the version of a set of the same layout. */
ml_status ml_weights_copy(ml_weights *to, const ml_weights *from, ml_backend *be,
                          ml_err *err);

/* A quantized set of another one's values, whose parameters that are not quantized it shares:
 * it must be closed first.  dtype: from FP8 on. */
ml_status ml_weights_quantize(ml_weights *out, const ml_weights *from, const ml_spec *s,
                              ml_weight_dtype dtype, ml_backend *be, ml_arena *a,
                              ml_err *err);
size_t ml_weights_code_bytes(const ml_spec *s, ml_weight_dtype dtype); /* its own */
/* The values of `from` once more, after they have changed; and its version.  A set that does
 * not share parameters gets copies of them. */
ml_status ml_weights_requantize(ml_weights *to, const ml_weights *from, const ml_spec *s,
                                int32_t n_thread, ml_err *err);

/* Rows [row, row+n) of member e of parameter i, row-major, as disk dtype `to` (f32, bf16
 * or f16, rounded to nearest even).  A vector has one row.  Of a part, e and row count the
 * members and rows of its tensor. */
void ml_weights_unpack(const ml_weights *w, int32_t i, int32_t e, int64_t row, int64_t n,
                       ml_dtype to, void *out);

/* The inverse: f32 rows, rounded to the tensor's dtype, into member e of parameter i. */
void ml_weights_pack(const ml_weights *w, int32_t i, int32_t e, int64_t row, int64_t n,
                     const float *in);

/* The tensor of a parameter in a set of this dtype and linear layout, without data. */
ml_tensor ml_weights_tensor(const ml_param *p, ml_dtype dtype, ml_layout linear);
/* The tensor of a part of it. */
ml_tensor ml_weights_part(const ml_param *p, ml_dtype dtype, ml_layout linear,
                          ml_shard_range r);

/* The elements of parameter i that a set has; and a range of them as rows (ml_shard_view).
 */
ml_shard_range ml_weights_range(const ml_weights *w, int32_t i);
ml_tensor ml_weights_view(const ml_weights *w, int32_t i, ml_shard_range r);

#endif
