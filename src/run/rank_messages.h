/* rank_messages.h - the warnings of all ranks of a job, which rank 0 prints.
 *
 * Ranks that do the same work have the same to say.  Each keeps its warnings; when the
 * ranks meet, rank 0 collects them and prints each text once, with the ranks that have it.
 * While ranks do different work, rank 0 prints its own warnings at once.
 *
 * The process has one list.
 *
 * thread: keep may be called by any; the rest by the command's. */
#ifndef ML_RUN_RANK_MESSAGES_H
#define ML_RUN_RANK_MESSAGES_H

#include "comm/comm.h"

typedef void ml_rank_print(const char *line);

/* This process is a rank of a job of several; print is rank 0's. */
void ml_rank_messages_open(bool first, ml_rank_print *print);

/* True: the warning is kept, and printed when the ranks meet; false: the caller prints it. */
bool ml_rank_messages_keep(const char *line);

/* All ranks do the same work from now on, until they meet; rank 0 keeps its warnings, too. */
void ml_rank_messages_hold(void);

/* Collective; world NULL: one rank. */
ml_status ml_rank_messages_meet(ml_comm *world, ml_err *err);

/* Rank 0 prints what it has kept: the job ends without meeting again. */
void ml_rank_messages_flush(void);

#endif
