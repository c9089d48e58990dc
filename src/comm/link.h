/* link.h - what carries messages between the ranks of a job: the part of a communicator
 * that differs between threads and MPI.  comm/collectives.c makes communicators of it.
 *
 * A link is one rank's end.  It delivers messages from rank to rank, in order for each
 * pair of ranks and tag, and news of a rank that failed or left to every wait of every rank.
 *
 * thread: `exchange` may be called by several threads with different tags. */
#ifndef ML_COMM_LINK_H
#define ML_COMM_LINK_H

#include <stdatomic.h>

#include "comm/comm.h"

typedef struct ml_parcel {
    void *data;
    size_t bytes;
    int32_t peer; /* a rank of the job, not of the communicator; never this rank */
    bool send;
    atomic_bool done; /* heartbeats look at it */
} ml_parcel;

typedef struct ml_link ml_link;
typedef struct ml_watch ml_watch;

struct ml_link {
    const char *name;
    int32_t rank, size;
    int32_t local_rank, local_size; /* as in comm.h */
    int32_t last_tag;               /* of the communicators that this rank has been in */
    const char *const *host;        /* [size]; NULL: all ranks are on one host */
    atomic_bool first_silent;       /* rank 0 did not answer in time */
    ml_watch *watch;                /* of ml_comm_of_link */

    /* Starts all parcels and returns when they are done.  ML_EAGAIN: the time is up
     * (deadline_s, 0: none); the parcels that are not done say which ranks were silent.
     * ML_EPEER, with a message: a rank failed, or one that is waited for left.  The code in
     * the message is that of `tell`, or ML_EAGAIN: one that is waited for left.  After a
     * failure the link no longer touches the parcels' data. */
    ml_status (*exchange)(ml_link *l, int32_t tag, ml_parcel *p, int32_t n,
                          double deadline_s, ml_err *err);
    /* Tells every rank why the job fails, as the message of their ML_EPEER, without waiting
     * for them.  The first of a job counts.  Code ML_EAGAIN: a rank does not answer. */
    void (*tell)(ml_link *l, const ml_err *why);
    void (*close)(ml_link *l); /* leaves the job; frees the link */
};

/* The communicator of all ranks of the link, which it then owns. */
ml_comm *ml_comm_of_link(ml_link *l);

#endif
