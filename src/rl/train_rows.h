/* train_rows.h - samples as they are trained on: tokens for the trainer, rows for the edges.
 *
 * A sample that is to be removed, or has no mask, gets one here; truncated answers are trained
 * as others are.
 *
 * thread: any; nothing is kept. */
#ifndef ML_RL_TRAIN_ROWS_H
#define ML_RL_TRAIN_ROWS_H

#include "miles/plugin.h"
#include "rl/sample.h"
#include "train/micro.h"

typedef struct ml_train_rows {
    ml_train_sample *train; /* [n] */
    miles_sample *row;      /* [n] what the edges see; scores are filled in later */
    const miles_sample **view;
} ml_train_rows;

/* In the arena; tokens stay the samples'. */
ml_train_rows ml_train_rows_of(ml_arena *a, const ml_sample *const *sample, int32_t n);

/* f32 numbers as a column of a row. */
double *ml_train_rows_widen(ml_arena *a, const float *v, int32_t n);

#endif
