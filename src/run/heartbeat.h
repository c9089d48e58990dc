/* heartbeat.h - notices a rank that no longer runs, also while the others wait for rank 0
 * without a time limit.
 *
 * Ranks form a ring: a thread of each sends a beat to the next rank and awaits one from the
 * rank before it.  A beat that does not come within the deadline ends the job, and every
 * rank gets the name of the silent one (comm.h).  An owner that does not look at its
 * communicators meanwhile is ended by the thread: it may wait for an engine of the lost
 * rank, or in a function of an extension.
 *
 * thread: the owner's; the beats have a communicator and a thread of their own. */
#ifndef ML_RUN_HEARTBEAT_H
#define ML_RUN_HEARTBEAT_H

#include "run/run_ranks.h"

typedef struct ml_heartbeat ml_heartbeat;

typedef struct ml_heartbeat_opts {
    double every_s;    /* 0: a quarter of the deadline, 10 s at most */
    double deadline_s; /* of a wait for a beat; 0: no beats */
    double first_s;    /* added to the deadline of the first beat */
    /* Called by the thread when the job has failed and the owner has not closed the
     * heartbeats within grace_s (0: 10 s) after that; NULL: nothing is called. */
    void (*lost)(void *ud, const ml_err *why);
    void *ud;
    double grace_s;
} ml_heartbeat_opts;

/* As long as a rank may wait in training, unless the heartbeats have times of their own. */
ml_heartbeat_opts ml_heartbeat_times(const ml_place_opts *p);

/* Collective; the world has no time limit afterwards.  world NULL or of one rank, or a deadline of 0: *out is NULL. */
ml_status ml_heartbeat_open(ml_heartbeat **out, ml_comm *world, const ml_heartbeat_opts *o,
                            ml_err *err);
/* Returns when the neighbours have ended, too, or the job has failed.  NULL is allowed. */
void ml_heartbeat_close(ml_heartbeat *h);

#endif
