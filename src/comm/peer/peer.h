/* peer.h - the communicator for device memory of ranks that share a host (CUDA IPC).
 *
 * Each rank has a stage in its device's memory, which the other ranks of the communicator
 * map.  A collective copies the data to the stage, waits for the others through a
 * communicator for host memory, and reads the others' stages directly: over NVLink where
 * the ranks have GPUs of their own, within the GPU's memory where they share one.
 *
 * Results are those of the host communicator, bit for bit.  Calls for host memory, waits
 * and failures are its business; so is everything between ranks on different hosts.
 *
 * thread: as in comm.h. */
#ifndef ML_COMM_PEER_PEER_H
#define ML_COMM_PEER_PEER_H

#include "comm/comm.h"

/* A communicator of the ranks of `host`, which it does not own and which has no other user
 * from then on.  A device without peer memory leaves all calls to `host`.  Collective. */
ml_status ml_comm_peer_open(ml_comm **out, ml_comm *host, ml_device *dev, ml_err *err);

/* Device memory of one communicator. */
size_t ml_comm_peer_bytes(void);

#endif
