/* memory.h - what a training run will take, known before it takes anything.
 *
 * Every weight set that the command line implies, gradients, optimizer state, activations
 * and copies, each a row; a run that does not fit is refused before its first step, with
 * what to change.
 *
 * thread: any. */
#ifndef ML_TRAIN_MEMORY_H
#define ML_TRAIN_MEMORY_H

#include "train/trainer.h"

typedef struct ml_memory_ask {
    const ml_spec *spec;
    ml_backend *be;
    size_t weight_bytes;    /* of one set */
    bool bf16;              /* it holds bf16 weights */
    const char *const *set; /* names of the sets, "actor" first; NULL at the end */
    const ml_spec *critic;  /* trained by a trainer of its own; NULL: there is none */
    size_t critic_bytes;    /* of its weights */
    ml_trainer_opts opts;
    int64_t longest; /* tokens of the longest sample; 0: not known */
    bool scores;     /* samples are also scored without a step */
    bool async_save; /* snapshots are written from a copy */
    bool saves_ref;  /* a set more is part of them */
    size_t
        base_bytes; /* the program, or what a device needs for itself: before any of this */
    size_t engine_bytes; /* what generation takes of the same memory, beside */
    size_t kv_bytes;     /* keys and values */
    bool in_turns; /* which have it while training has none, and the other way round */
} ml_memory_ask;

enum { ML_MEMORY_ROWS = 32 };

typedef struct ml_memory {
    struct {
        const char *what;
        size_t bytes;
    } row[ML_MEMORY_ROWS];
    int n;
    size_t total;
    size_t trainer;  /* of all rows, what is taken for training alone */
    size_t in_turns; /* what is less, since two have it in turns */
    size_t on_disk;  /* optimizer state in a file, not part of the total */
    size_t
        on_host; /* of another device's run: what stays in the program's own memory, too */
} ml_memory;

ml_status ml_memory_plan(ml_memory *out, const ml_memory_ask *ask, ml_err *err);

/* A line per row, and the total. */
void ml_memory_text(ml_text *out, const ml_memory *m);

/* What may still be taken of the device's memory; of the CPU's, see host_memory.h. */
size_t ml_memory_available(const ml_backend *be);

/* What the process has taken. */
size_t ml_memory_resident(void);

/* Of the memory that models are computed in: what is taken before there is one, and the most that
 * was ever taken.  Of a device, what it needs for itself is part of both. */
size_t ml_memory_base(const ml_backend *be);
size_t ml_memory_peak(const ml_backend *be);

/* ML_ENOMEM when the plan is larger; names the flag that would make it fit. */
ml_status ml_memory_check(const ml_memory_ask *ask, size_t available, ml_err *err);

#endif
