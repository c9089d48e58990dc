/* train_rows.h - samples in the form in which they are trained: tokens for the trainer,
 * structs for the extensions.
 *
 * A sample that is to be removed, or has no mask, gets a mask here; truncated answers are
 * trained like others.
 *
 * thread: any; no state. */
#ifndef ML_RL_LEARN_TRAIN_ROWS_H
#define ML_RL_LEARN_TRAIN_ROWS_H

#include "miles/plugin.h"
#include "rl/sample.h"
#include "train/micro.h"

typedef struct ml_train_rows {
    ml_train_sample *train; /* [n] */
    miles_sample *row;      /* [n] passed to extensions; scores are filled in later */
    const miles_sample **view;
} ml_train_rows;

/* Allocated in the arena; the tokens remain the samples'. */
ml_train_rows ml_train_rows_of(ml_arena *a, const ml_sample *const *sample, int32_t n);

/* Converts f32 numbers to doubles, for a field of miles_sample. */
double *ml_train_rows_widen(ml_arena *a, const float *v, int32_t n);

#endif
