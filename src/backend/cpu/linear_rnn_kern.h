/* linear_rnn_kern.h - one token of the gated delta rule or of Mamba-2, for some columns
 * of a head's state.
 *
 * The columns of a state are independent, so a block of up to ML_LINEAR_RNN_COLS columns is
 * the unit of work.  Its state is [dk][n rounded up to 16]; the padding is 0. */
#ifndef ML_BACKEND_CPU_LINEAR_RNN_KERN_H
#define ML_BACKEND_CPU_LINEAR_RNN_KERN_H

#include <stdbool.h>
#include <stdint.h>

#define ML_LINEAR_RNN_COLS 64

/* A token: q and k [dk] of its head, v [n] of the block, and both rates of DECAY. */
typedef struct ml_linear_rnn_row {
    const float *q, *k, *v;
    float keep, take;
} ml_linear_rnn_row;

/* Gradients of a token: dv [n] is written, the others are added to. */
typedef struct ml_linear_rnn_grad {
    float *dq, *dk, *dv, *dkeep, *dtake;
} ml_linear_rnn_grad;

typedef struct ml_linear_rnn_kern {
    /* The recurrence, with S the state [dk][n]:
     *
     *     gated delta rule (`delta`)   S = keep S + k (take (v - keep S' k))'
     *     Mamba-2                      S = keep S + k (take v)'
     *
     * and o = S' q.  o [n] may be NULL.  `seen`, unless NULL, receives S' k of the old
     * state, padded. */
    void (*step)(float *o, float *seen, float *state, const ml_linear_rnn_row *x,
                 int64_t dk, int64_t n, bool delta);
    /* `state` is the state before the token.  On entry dstate is the gradient of the
     * state after the token, on return that of the state before it. */
    void (*back)(const ml_linear_rnn_grad *g, float *dstate, const float *state,
                 const float *seen, const float *dout, const ml_linear_rnn_row *x,
                 int64_t dk, int64_t n, bool delta);
} ml_linear_rnn_kern;

#endif
