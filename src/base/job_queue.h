/* job_queue.h - threads that run jobs in the order in which they were posted.
 *
 * A job is a struct whose first member is an ml_job.  It belongs to the queue from post
 * until its run function is called, and from then on to that function.
 *
 * thread: post from any thread; open and close from one. */
#ifndef ML_BASE_JOB_QUEUE_H
#define ML_BASE_JOB_QUEUE_H

#include <stdint.h>

#include "base/err.h"

typedef struct ml_job {
    struct ml_job *next;
} ml_job;

/* thread: the index of the thread that runs the job. */
typedef void ml_job_fn(void *ud, int64_t thread, ml_job *job);

typedef struct ml_job_queue ml_job_queue;

ml_status ml_job_queue_open(ml_job_queue **out, int64_t n_thread, ml_job_fn *run, void *ud,
                            ml_err *err);
/* Runs all posted jobs, then returns.  NULL is allowed. */
void ml_job_queue_close(ml_job_queue *q);

void ml_job_queue_post(ml_job_queue *q, ml_job *job);

#endif
