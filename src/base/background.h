/* background.h - runs one function in the background.
 *
 * thread: one owner starts it and waits for it; until the wait returns, the function owns
 * the data it uses. */
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

/* The struct must not move until the wait returns. */
ml_status ml_background_start(ml_background *j, ml_background_fn *fn, void *ud,
                              ml_err *err);
/* The function's result; ML_OK if nothing was started. */
ml_status ml_background_wait(ml_background *j, ml_err *err);

#endif
