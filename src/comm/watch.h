/* watch.h - what each rank of a job waits for, so that a wait can say which rank the job waits
 * for in the end: A waits for B, B waits for C, and C is in no collective.
 *
 * Every communicator notes its waits in the watch of its link.  run/heartbeat.h takes this
 * rank's state from there, exchanges it with those of the others, and leaves them there.
 *
 * thread: any. */
#ifndef ML_COMM_WATCH_H
#define ML_COMM_WATCH_H

#include "base/str.h"
#include "comm/link.h"

/* A wait of this rank, on the stack of the function that waits. */
typedef struct ml_wait {
    const ml_comm *comm;
    const char *op;
    const ml_parcel *parcel; /* those that are not done are waited for */
    int32_t n_parcel;
    double since_s;
} ml_wait;

/* Fixed size: heartbeats carry it. */
typedef struct ml_rank_state {
    bool waits;     /* in a collective */
    int32_t awaits; /* a rank of the job, if it waits */
    double for_s;   /* how long it has waited, or has been in no collective */
    char call[120]; /* "allgather over tp (forward, layer 3)" */
    char stage[24]; /* of its loop; "": none */
} ml_rank_state;

ml_watch *ml_watch_new(int32_t n_rank);
void ml_watch_free(ml_watch *w);

void ml_watch_enter(ml_watch *w, const ml_wait *wait);
void ml_watch_leave(ml_watch *w, const ml_wait *wait);
/* The text is not copied. */
void ml_watch_stage(ml_watch *w, const char *stage);

/* This rank's state; those of all ranks, when they are known. */
void ml_watch_read(ml_watch *w, ml_rank_state *mine);
void ml_watch_learn(ml_watch *w, const ml_rank_state *all);
/* "; at the last heartbeat, 2 s ago, rank 1 waited ...": what a rank that does not answer was
 * doing; nothing if that is not known.  Returns the end of the chain, or the rank. */
int32_t ml_watch_explain(ml_watch *w, ml_text *out, int32_t rank);

/* "allgather over tp (forward, layer 3)" */
void ml_wait_put(ml_text *out, const ml_comm *c, const char *op);

/* The rank that is in no collective and that this one waits for, perhaps through others; -1:
 * they wait for each other. */
int32_t ml_rank_states_end(const ml_rank_state *all, int32_t n, int32_t rank);
/* The ranks on the way there, from this one on, and what each does. */
void ml_rank_states_put(ml_text *out, const ml_rank_state *all, int32_t n, int32_t rank);

/* --- of a communicator over a link (comm/collectives.c) --- */

ml_watch *ml_comm_watch(const ml_comm *c);
/* Another thread than the loop's waits in it and in those split from it: these waits are not
 * the rank's. */
void ml_comm_aside(ml_comm *c);
/* Ends the job because the rank does not go on.  Returns ML_EPEER. */
ml_status ml_comm_give_up(ml_comm *c, int32_t rank, const char *why, ml_err *err);

#endif
