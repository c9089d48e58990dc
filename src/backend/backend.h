/* backend.h - the interface to one kind of hardware: its device, its ops and one stream.
 *
 * "cpu" is always available.  Its kernels exist at several levels (c, then neon or avx2
 * and avx512) that compute the same bits; the backend selects the best level of the
 * machine unless the caller names a lower one.  "cuda" is a shared object that fills the
 * same struct.  It is loaded on demand from the program's directory; the program itself
 * does not depend on CUDA.
 *
 * A backend declares the dtype of activations and the layout of linear weights.  Code
 * that allocates tensors follows these declarations; no op converts. */
#ifndef ML_BACKEND_BACKEND_H
#define ML_BACKEND_BACKEND_H

#include "backend/ops.h"
#include "backend/optim.h"

/* CUDA graphs: a sequence of launches that repeats with the same shapes and addresses is
 * captured once and then launched as a whole, which saves the launch overhead. */
typedef struct ml_replay {
    bool (*begin)(ml_stream *s); /* starts capture: work is recorded, not run */
    void *(*end)(ml_stream *s);  /* the recording; NULL: capture failed */
    void (*run)(ml_stream *s, void *recording);
    void (*free)(void *recording);
} ml_replay;

/* Device timestamps (CUDA events). */
enum { ML_MARKS = 2049 }; /* at most, between two calls of read */
typedef struct ml_marks {
    void (*mark)(ml_stream *s, int32_t i); /* i = 0, 1, ... in order */
    /* Waits for the first n marks; at_s[i] is the time of mark i on ml_clock_s's clock. */
    void (*read)(ml_stream *s, double *at_s, int32_t n);
} ml_marks;

typedef struct ml_backend {
    const char *name;  /* "cpu", "cuda" */
    const char *level; /* "c", "neon", "avx2", "avx512"; on a GPU "sm90" */
    const char *path;  /* the kernels that a GPU gets, in words; NULL: level says it */
    ml_dtype act;      /* dtype of activations: f32 or bf16 */
    ml_layout linear;  /* layout of linear weights */
    ml_device *dev;
    ml_stream *stream;
    const ml_ops *ops;
    const ml_optim_ops *optim;
    const ml_replay *replay; /* NULL: no capture, each op is launched */
    const ml_marks *marks;   /* NULL: work is complete when its call returns */
    bool async;              /* the device computes while the host prepares the next work */
    bool bf16_adapters; /* LORA rounds adapters to bf16 where both widths of a layer are
                                multiples of 8, and reads rounded ones as well */
    bool fp8_grads;     /* LINEAR has gradients as FP8 products (ml_grad_format) */
    int n_thread;
    void (*close)(struct ml_backend *b);
    void *priv;
} ml_backend;

/* How a run computes; filled from the command line. */
typedef struct ml_backend_opts {
    const char *device;    /* "cpu", "cuda"; NULL: cuda if available */
    const char *cpu_level; /* NULL: the best one */
    int n_thread;
    bool f32; /* a GPU computes in f32: slow, for comparisons; the CPU always does */
} ml_backend_opts;

/* On ML_EUNSUP the message gives the reason why the device is not available. */
ml_status ml_backend_open(ml_backend *out, const ml_backend_opts *o, ml_err *err);

/* level NULL: the best one.  The message of ML_EUSAGE lists the levels of this machine. */
ml_status ml_backend_cpu_open(ml_backend *out, int n_thread, const char *level,
                              ml_err *err);
void ml_backend_close(ml_backend *b);

/* Levels this machine can run, lowest first, terminated by NULL. */
const char *const *ml_backend_cpu_levels(void);

#endif
