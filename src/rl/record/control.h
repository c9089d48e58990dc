/* control.h - requests to a run while it runs, and the record of those it has carried out.
 *
 *     DIR/control.requests  lines that a dashboard appends; the run removes it when it starts
 *     DIR/control.jsonl     a row per request that the run has carried out, with its rollout
 *
 * A change of the learning rate changes the bytes of a run.  The record makes them repeatable:
 * a run that resumes carries such rows out again, at the same rollouts, so that the same
 * flags, seed and control.jsonl give the same bytes.  Other requests change no bytes and are
 * not repeated.
 *
 * thread: one owner. */
#ifndef ML_RL_RECORD_CONTROL_H
#define ML_RL_RECORD_CONTROL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/err.h"
#include "base/str.h"

typedef enum ml_control_action {
    ML_CONTROL_PAUSE, /* before the next rollout */
    ML_CONTROL_RESUME,
    ML_CONTROL_SAVE, /* a snapshot after this rollout */
    ML_CONTROL_STOP, /* and end the run */
    ML_CONTROL_LR,   /* the value of --lr, from the next rollout on */
    ML_N_CONTROL
} ml_control_action;

const char *ml_control_name(ml_control_action a);
bool ml_control_find(ml_control_action *out, ml_str name);

/* Adds a request; value: of ML_CONTROL_LR.  ML_EUSAGE if the value is not a learning rate. */
ml_status ml_control_request(const char *dir, ml_control_action a, double value,
                             ml_err *err);

/* What the loop shall do; plain data, so that ranks can share it. */
typedef struct ml_control_orders {
    double lr; /* 0: as the flags say */
    bool paused, save, stop;
} ml_control_orders;

typedef struct ml_control ml_control;

/* `rollout` is the first one of this process; a run that continues one of another directory,
 * `from`, copies its record. */
ml_status ml_control_open(ml_control **out, const char *dir, const char *from,
                          int64_t rollout, ml_err *err);
void ml_control_close(ml_control *c); /* NULL is allowed */

/* Reads new requests and records them.  begins: the rollout has not begun, so that the
 * learning rate may change.  Clears nothing that an earlier call has set, but paused. */
ml_status ml_control_poll(ml_control *c, int64_t rollout, bool begins,
                          ml_control_orders *orders, ml_err *err);

#endif
