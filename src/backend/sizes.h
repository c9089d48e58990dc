/* sizes.h - a backend that knows sizes only: plans on it have the memory and the calls of
 * a GPU that need not be there.  Nothing can be allocated or computed on it.
 *
 * It has all ops, also those for which the CUDA backend has no kernel yet.
 *
 * thread: any. */
#ifndef ML_BACKEND_SIZES_H
#define ML_BACKEND_SIZES_H

#include "backend/backend.h"

typedef struct ml_sizes_opts {
    const char *kind;    /* of the GPU; outlives the backend */
    size_t memory_bytes; /* all of it */
    size_t base_bytes;   /* in use before a model is loaded */
    bool f32;            /* activations are f32, not bf16 */
} ml_sizes_opts;

ml_status ml_backend_sizes_open(ml_backend *out, const ml_sizes_opts *o, ml_err *err);

/* Whether the CUDA backend has kernels for an op. */
bool ml_cuda_has_op(ml_op_id op);

#endif
