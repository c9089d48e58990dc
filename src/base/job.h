/* job.h - one function in the background.
 *
 * thread: started and waited for by one owner; what the function touches is its own until
 * the wait returns. */
#ifndef ML_BASE_JOB_H
#define ML_BASE_JOB_H

#include <pthread.h>
#include <stdbool.h>

#include "base/err.h"

typedef ml_status ml_job_fn(void *ud, ml_err *err);

typedef struct ml_job {
    pthread_t thread;
    ml_job_fn *fn;
    void *ud;
    bool running;
    ml_status st;
    ml_err err;
} ml_job;

/* The job must lie still until it was waited for. */
ml_status ml_job_start(ml_job *j, ml_job_fn *fn, void *ud, ml_err *err);
/* What the function returned; ML_OK when nothing was started. */
ml_status ml_job_wait(ml_job *j, ml_err *err);

#endif
