/* threads.h - ranks that are threads of one process: for tests of what runs over ranks. */
#ifndef ML_COMM_THREADS_THREADS_H
#define ML_COMM_THREADS_THREADS_H

#include "comm/comm.h"

/* out: [n], the communicator of each rank, for the thread that is this rank.  Each is closed
 * once; the last close frees what they share. */
ml_status ml_comm_threads_open(ml_comm **out, int32_t n, ml_err *err);

#endif
