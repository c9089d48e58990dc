/* recorder.h - writes the data of each rollout to files.
 *
 * thread: the loop's. */
#ifndef ML_RL_LOOP_RECORDER_H
#define ML_RL_LOOP_RECORDER_H

#include "rl/observer.h"

/* Path templates (round_path.h); NULL: not written. */
typedef struct ml_recorder {
    const char *rollout;    /* the rollout batch, for ml_rollout_replay */
    const char *trajectory; /* the rollout batch as text */
    const char *train;      /* the training data as the trainer sees it: a line of JSON per
                               sample, in zstd */
} ml_recorder;

/* An observer, see observer.h. */
ml_status ml_recorder_on(void *recorder, const ml_loop_event *e, ml_err *err);

#endif
