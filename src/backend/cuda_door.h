/* cuda_door.h - what the program and libmiles_cuda.so say to each other.
 *
 * The shared object is built from the same tree and is no plugin: the two check that they
 * agree on the structs they share, and nothing is kept compatible.  It links against nothing
 * of the program; what it needs of it comes with the call. */
#ifndef ML_BACKEND_CUDA_DOOR_H
#define ML_BACKEND_CUDA_DOOR_H

#include "backend/backend.h"
#include "backend/draw.h"

#define ML_CUDA_DOOR "miles_cuda_open" /* an ml_cuda_open_fn */

/* Sizes of what crosses the door; they differ when the two were built from other sources. */
#define ML_CUDA_STAMP                                                                      \
    (sizeof(ml_op_args) + 4096 * (sizeof(ml_ops) + 4096 * sizeof(ml_draw)) +               \
     sizeof(ml_backend) + sizeof(ml_op_attr) + sizeof(ml_device))

typedef struct ml_cuda_host {
    size_t stamp;                           /* ML_CUDA_STAMP */
    ml_backend cpu;                         /* draws what the device's sampler does not */
    bool (*sealed)(void);                   /* ml_mem_sealed */
    const char *(*mem_name)(ml_mem_kind k); /* ml_mem_name */
} ml_cuda_host;

/* On ML_OK the CPU backend is the new one's, which closes it.  f32: the reference mode. */
typedef ml_status ml_cuda_open_fn(ml_backend *out, const ml_cuda_host *host, bool f32,
                                  ml_err *err);

#endif
