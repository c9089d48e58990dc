/* backend.h - the door to a kind of hardware: its device, its ops, one stream.
 *
 * "cpu" always works.  Its kernels exist at levels (c, then neon or avx2 and avx512)
 * that give the same bits; the best one the machine has is taken unless a lower one is
 * named.  Other backends are shared objects that fill the same struct. */
#ifndef ML_BACKEND_BACKEND_H
#define ML_BACKEND_BACKEND_H

#include "backend/ops.h"
#include "backend/optim.h"

typedef struct ml_backend {
    const char *name;  /* "cpu" */
    const char *level; /* "c", "neon", "avx2", "avx512" */
    ml_device *dev;
    ml_stream *stream;
    const ml_ops *ops;
    const ml_optim_ops *optim;
    int n_thread;
    void *priv;
} ml_backend;

/* level NULL: the best.  ML_EUSAGE names the levels this machine has. */
ml_status ml_backend_cpu_open(ml_backend *out, int n_thread, const char *level,
                              ml_err *err);
void ml_backend_close(ml_backend *b);

/* Levels this machine can run, lowest first, NULL at the end. */
const char *const *ml_backend_cpu_levels(void);

#endif
