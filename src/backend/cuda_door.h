/* cuda_door.h - the interface between the program and libmiles_cuda.so.
 *
 * The shared object is built from the same tree; it is not a plugin.  Both sides check
 * that they agree on the shared structs, and there is no compatibility between versions.
 * It does not link against the program; it receives the functions it needs in
 * ml_cuda_host. */
#ifndef ML_BACKEND_CUDA_DOOR_H
#define ML_BACKEND_CUDA_DOOR_H

#include "backend/backend.h"
#include "backend/draw.h"

#define ML_CUDA_LIBRARY "libmiles_cuda.so"
#define ML_CUDA_DOOR "miles_cuda_open" /* an ml_cuda_open_fn */

/* Sizes of the shared structs; they differ when the two sides were built from different
 * sources. */
#define ML_CUDA_STAMP                                                                      \
    (sizeof(ml_op_args) + 4096 * (sizeof(ml_ops) + 4096 * sizeof(ml_draw)) +               \
     sizeof(ml_backend) + sizeof(ml_op_attr) + sizeof(ml_device))

typedef struct ml_cuda_host {
    size_t stamp;         /* ML_CUDA_STAMP */
    ml_backend cpu;       /* draws the samples that the device's sampler does not support */
    bool (*sealed)(void); /* ml_mem_sealed */
    const char *(*mem_name)(ml_mem_kind k); /* ml_mem_name */
} ml_cuda_host;

/* On ML_OK the new backend owns the CPU backend and closes it.  f32: the reference mode. */
typedef ml_status ml_cuda_open_fn(ml_backend *out, const ml_cuda_host *host, bool f32,
                                  ml_err *err);

#endif
