/* mpi_door.h - the interface between the program and libmiles_mpi.so, the link over MPI.
 *
 * The shared object is built from the same tree, where MPI is installed, and links against
 * nothing of the program.  There is no compatibility between versions. */
#ifndef ML_COMM_MPI_DOOR_H
#define ML_COMM_MPI_DOOR_H

#include "comm/link.h"

#define ML_MPI_LIBRARY "libmiles_mpi.so"
#define ML_MPI_DOOR "miles_mpi_open" /* an ml_mpi_open_fn */

/* Sizes of the shared structs; they differ when the two sides were built from different
 * sources. */
#define ML_MPI_STAMP (sizeof(ml_link) + 4096 * (sizeof(ml_parcel) + 4096 * sizeof(ml_err)))

/* Initializes MPI: once in a process.  Waits until every rank of the job has called it. */
typedef ml_status ml_mpi_open_fn(ml_link **out, size_t stamp, ml_err *err);

#endif
