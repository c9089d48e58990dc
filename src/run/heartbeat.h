/* heartbeat.h - notices a rank that no longer runs, or whose loop does not go on, also while the
 * others wait for rank 0 without a time limit.
 *
 * A thread of each rank exchanges beats with all others.  One that does not come within the
 * deadline ends the job, and every rank gets the name of the silent one (comm.h).  A beat says
 * what the rank's loop waits for (comm/watch.h): a rank that waits for long says whom for, and
 * with stall_s ends the job.  An owner that does not look at its communicators meanwhile is
 * ended by the thread: it may wait for an engine of the lost rank, or in a function of an
 * extension.
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
    /* The job ends when a rank has been in no collective for so long, and another has waited
     * for it as long; 0: never. */
    double stall_s;
    /* Called by the thread with a line about a long wait of this rank: after 30 s, a quarter
     * of the deadline if that is less, and whenever it has doubled; NULL: nothing is called. */
    void (*say)(const char *line);
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
/* Returns when all ranks have ended, too, or the job has failed.  NULL is allowed. */
void ml_heartbeat_close(ml_heartbeat *h);

#endif
