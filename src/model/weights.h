/* weights.h - the parameters of a model in memory, packed as kernels read them.
 *
 * A set is one buffer with one tensor per parameter of the spec: matrices of linear
 * layers as the backend wants them, tables in rows, vectors always f32.  The file on disk is the
 * source, not the store: it is mapped, packed piece by piece, and let go.  Gradients
 * are a set of the same layout in f32.
 *
 * thread: loading and unpacking use the caller's pool; between them a set is read-only
 * until its one writer says otherwise. */
#ifndef ML_MODEL_WEIGHTS_H
#define ML_MODEL_WEIGHTS_H

#include "backend/backend.h"
#include "io/checkpoint.h"
#include "model/source.h"
#include "model/spec.h"

/* AUTO: as on disk, f16 widened to f32; on a GPU, its type of activations.  BF16 rounds every value to bf16 (vectors too, which
 * are then kept as f32). */
typedef enum ml_weight_dtype {
    ML_WEIGHT_AUTO,
    ML_WEIGHT_F32,
    ML_WEIGHT_BF16
} ml_weight_dtype;

typedef struct ml_weights {
    ml_buf buf;
    ml_tensor *t;   /* [spec->n_param], in the arena given at open */
    ml_backend *be; /* whose memory it is in; NULL: the program's own */
    int32_t n;
    uint64_t version;
} ml_weights;

/* What AUTO means on this backend. */
ml_weight_dtype ml_weights_dtype(const ml_backend *be, ml_weight_dtype dtype);

/* Bytes a set takes; the checkpoint is looked at for AUTO only (may be NULL otherwise). */
size_t ml_weights_bytes(const ml_spec *s, const ml_checkpoint *c, ml_weight_dtype dtype);

/* What keys and values are stored as beside such a set (ml_spec_keep_kv): bf16 where most of its
 * matrices' numbers are. */
ml_dtype ml_weights_kv_dtype(const ml_spec *s, const ml_checkpoint *c,
                             ml_weight_dtype dtype);

/* Checks, allocates, packs.  The head of a critic, where the checkpoint has
 * none, is made up: random weights of standard deviation 0.02, no bias. */
ml_status ml_weights_load(ml_weights *w, const ml_spec *s, const ml_checkpoint *c,
                          ml_weight_dtype dtype, ml_backend *be, ml_arena *a, ml_err *err);

/* Made-up numbers of a sensible size, the same for the same seed: for measuring without a
 * checkpoint.  AUTO is BF16. */
ml_status ml_weights_dummy(ml_weights *w, const ml_spec *s, ml_weight_dtype dtype,
                           uint64_t seed, ml_backend *be, ml_arena *a, ml_err *err);

/* Zeroed, f32, for gradients. */
ml_status ml_weights_zeros(ml_weights *w, const ml_spec *s, ml_backend *be, ml_arena *a,
                           ml_err *err);
void ml_weights_close(ml_weights *w);

/* Whether two sets of one spec are stored in the same way, tensor by tensor. */
bool ml_weights_alike(const ml_weights *a, const ml_weights *b);
/* A second set of the same layout, values and version. */
ml_status ml_weights_clone(ml_weights *out, const ml_weights *from, ml_backend *be,
                           ml_arena *a, ml_err *err);
/* The values and the version of a set of the same layout. */
ml_status ml_weights_copy(ml_weights *to, const ml_weights *from, ml_backend *be,
                          ml_err *err);

/* Rows [row, row+n) of member e of parameter i, row-major, as disk dtype `to` (f32, bf16 or
 * f16, rounded to nearest even).  A vector has one row. */
void ml_weights_unpack(const ml_weights *w, int32_t i, int32_t e, int64_t row, int64_t n,
                       ml_dtype to, void *out);

/* The way back: rows of f32, rounded to the tensor's type, into member e of parameter i. */
void ml_weights_pack(const ml_weights *w, int32_t i, int32_t e, int64_t row, int64_t n,
                     const float *in);

/* A parameter as a set of this type holds it, without data, where linear weights lie so. */
ml_tensor ml_weights_tensor(const ml_param *p, ml_dtype dtype, ml_layout linear);

#endif
