/* recur_kern.h - one token through some columns of a recurrent head's state.
 *
 * Columns of a state do not see each other, so a block of up to ML_RECUR_COLS of them is the
 * unit of work; its state is [dk][n rounded up to 16], and what lies behind column n is 0. */
#ifndef ML_BACKEND_CPU_LINEAR_RNN_KERN_H
#define ML_BACKEND_CPU_LINEAR_RNN_KERN_H

#include <stdbool.h>
#include <stdint.h>

#define ML_RECUR_COLS 64

/* A token: q and k [dk] of its head, v [n] of the block, both rates. */
typedef struct ml_recur_row {
    const float *q, *k, *v;
    float keep, take;
} ml_recur_row;

/* Gradients of a token: dv [n] is written, the others are added to. */
typedef struct ml_recur_grad {
    float *dq, *dk, *dv, *dkeep, *dtake;
} ml_recur_grad;

typedef struct ml_recur_kern {
    /* state = keep state + k u', u = take (v - keep state' k), or take v without `delta`;
     * o = state' q.  o [n] may be NULL.  `seen` gets the old state' k, padded, unless NULL. */
    void (*step)(float *o, float *seen, float *state, const ml_recur_row *x, int64_t dk,
                 int64_t n, bool delta);
    /* `state` is the one before the token.  dstate is that of the state after it and becomes
     * that of the state before. */
    void (*back)(const ml_recur_grad *g, float *dstate, const float *state,
                 const float *seen, const float *dout, const ml_recur_row *x, int64_t dk,
                 int64_t n, bool delta);
} ml_recur_kern;

#endif
