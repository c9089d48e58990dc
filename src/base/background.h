/* background.h - one function in the background.
 *
 * thread: started and waited for by one owner; what the function touches is its own until
 * the wait returns. */
#ifndef ML_BASE_BACKGROUND_H
#define ML_BASE_BACKGROUND_H

#include <pthread.h>
#include <stdbool.h>

#include "base/err.h"

typedef ml_status ml_background_fn(void *ud, ml_err *err);

typedef struct ml_background {
    pthread_t thread;
    ml_background_fn *fn;
    void *ud;
    bool running;
    ml_status st;
    ml_err err;
} ml_background;

/* It must lie still until it was waited for. */
ml_status ml_background_start(ml_background *j, ml_background_fn *fn, void *ud,
                              ml_err *err);
/* What the function returned; ML_OK when nothing was started. */
ml_status ml_background_wait(ml_background *j, ml_err *err);

#endif
