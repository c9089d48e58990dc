/* backend.h - the door to a kind of hardware: its device, its ops, one stream.
 *
 * "cpu" always works.  Its kernels exist at levels (c, then neon or avx2 and avx512)
 * that give the same bits; the best one the machine has is taken unless a lower one is
 * named.  "cuda" is a shared object, loaded when it is asked for, that fills the same
 * struct; it stands beside the program, and the program knows nothing of CUDA.
 *
 * A backend says how it wants a model laid out: what activations are stored as, and how
 * matrices of linear layers lie.  Whoever allocates asks it; no op converts. */
#ifndef ML_BACKEND_BACKEND_H
#define ML_BACKEND_BACKEND_H

#include "backend/ops.h"
#include "backend/optim.h"

/* Work that comes again with the same shapes and places: recorded once, then given to the device
 * as one piece, which saves the time of its launches. */
typedef struct ml_replay {
    bool (*begin)(ml_stream *s); /* from here on work is recorded, not done */
    void *(*end)(ml_stream *s);  /* what was recorded; NULL: it could not be */
    void (*run)(ml_stream *s, void *recording);
    void (*free)(void *recording);
} ml_replay;

/* When the device reached places in its work. */
enum { ML_MARKS = 2049 }; /* between two readings */
typedef struct ml_marks {
    void (*mark)(ml_stream *s, int32_t i); /* 0, 1, ... one after the other */
    /* Waits for the first n; at_s[i] is when mark i was reached, by ml_clock_s. */
    void (*read)(ml_stream *s, double *at_s, int32_t n);
} ml_marks;

typedef struct ml_backend {
    const char *name;  /* "cpu", "cuda" */
    const char *level; /* "c", "neon", "avx2", "avx512"; of a GPU "sm90" */
    ml_dtype act;      /* of activations: f32 or bf16 */
    ml_layout linear;  /* of linear weights */
    ml_device *dev;
    ml_stream *stream;
    const ml_ops *ops;
    const ml_optim_ops *optim;
    const ml_replay *replay; /* NULL: work is always launched */
    const ml_marks *marks;   /* NULL: work is done when its call returns */
    bool async;              /* work goes on while the host puts the next together */
    int n_thread;
    void (*close)(struct ml_backend *b);
    void *priv;
} ml_backend;

/* How a run computes, as the command line has it. */
typedef struct ml_backend_opts {
    const char *device;    /* "cpu", "cuda"; NULL: cuda where there is one */
    const char *cpu_level; /* NULL: the best */
    int n_thread;
    bool f32; /* a GPU computes in f32: slow, for comparisons; the CPU always does */
} ml_backend_opts;

/* ML_EUNSUP says why a device cannot be had. */
ml_status ml_backend_open(ml_backend *out, const ml_backend_opts *o, ml_err *err);

/* level NULL: the best.  ML_EUSAGE names the levels this machine has. */
ml_status ml_backend_cpu_open(ml_backend *out, int n_thread, const char *level,
                              ml_err *err);
void ml_backend_close(ml_backend *b);

/* Levels this machine can run, lowest first, NULL at the end. */
const char *const *ml_backend_cpu_levels(void);

#endif
