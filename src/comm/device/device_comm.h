/* device_comm.h - the communicator for tensors of GPUs.
 *
 * It stands before a communicator for host memory with the same ranks.  GPU tensors travel
 * by one of two transports, chosen for each communicator when the device is attached:
 *
 *     peer   all ranks are on one host: each rank has a stage in its GPU's memory, which the
 *            others map (CUDA IPC) and read directly, over NVLink or within one GPU
 *     nccl   every rank has a GPU of its own: NCCL's messages
 *
 * Where neither is possible, and for small tensors, they are staged through host memory.
 * NCCL moves bytes only; sums are the tree of comm.h, computed by our own kernel, so that
 * results have the same bits whichever transport is taken.  Calls for host memory, waits, errors
 * and failures are the host communicator's.
 *
 * thread: as in comm.h. */
#ifndef ML_COMM_DEVICE_DEVICE_COMM_H
#define ML_COMM_DEVICE_DEVICE_COMM_H

#include "comm/comm.h"

/* A communicator of the ranks of `host`, which has no other user from then on and is closed
 * with it.  Until a stream is attached, everything goes through `host`. */
ml_comm *ml_comm_device(ml_comm *host);

/* Tensors of this stream's device use a transport of their own from now on.  Detach before the
 * device is closed.  Collective. */
ml_status ml_comm_device_attach(ml_comm *c, ml_stream *s, ml_err *err);
/* Goes through the host again; nothing of the device is in use afterwards.  Collective. */
void ml_comm_device_detach(ml_comm *c);

/* Device memory of one communicator, at most. */
size_t ml_comm_device_bytes(void);

#endif
