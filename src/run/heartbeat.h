/* heartbeat.h - notices a rank that no longer runs, also while the others wait for rank 0
 * without a time limit.
 *
 * Ranks form a ring: a thread of each sends a beat to the next rank and awaits one from the
 * rank before it.  A beat that does not come within the deadline ends the job, and every
 * rank gets the name of the silent one (comm.h).
 *
 * thread: the owner's; the beats have a communicator and a thread of their own. */
#ifndef ML_RUN_HEARTBEAT_H
#define ML_RUN_HEARTBEAT_H

#include "comm/comm.h"

typedef struct ml_heartbeat ml_heartbeat;

/* Collective.  world NULL or of one rank, or a deadline of 0: *out is NULL. */
ml_status ml_heartbeat_open(ml_heartbeat **out, ml_comm *world, double deadline_s,
                            ml_err *err);
/* Returns when the neighbours have ended, too, or the job has failed.  NULL is allowed. */
void ml_heartbeat_close(ml_heartbeat *h);

#endif
