/* ranks.h - runs a function as the ranks of a job, which are threads of this process. */
#ifndef ML_TESTS_SUPPORT_RANKS_H
#define ML_TESTS_SUPPORT_RANKS_H

#include "comm/comm.h"

typedef void ml_rank_fn(ml_comm *c, void *ud);

/* Calls fn in n threads, each with its communicator of n ranks, which is closed when fn
 * returns.  CHECK may be used in fn. */
void ml_ranks_run(int32_t n, ml_rank_fn *fn, void *ud);

#endif
