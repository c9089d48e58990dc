/* world.h - the communicator of the processes that mpirun or srun started. */
#ifndef ML_COMM_WORLD_H
#define ML_COMM_WORLD_H

#include "comm/comm.h"

/* comm/self, unless a launcher started this process as one of several ranks; then
 * libmiles_mpi.so is loaded, and all ranks must run the same build.  Called once, before any
 * child process is started: children are not ranks.  Closed by its close. */
ml_status ml_comm_world(ml_comm **out, ml_err *err);

/* ML_OK if all ranks pass the same text.  Otherwise rank 0 gets ML_EUSAGE with the rank and
 * the host that differ, the others ML_EPEER.  what: "build", "backend". */
ml_status ml_comm_same(ml_comm *c, const char *what, const char *mine, ml_err *err);

/* Whether this rank has waited for rank 0 in vain, which then cannot say so itself. */
bool ml_comm_first_silent(const ml_comm *world);

#endif
