/* device_priv.h - the two transports of a device communicator. */
#ifndef ML_COMM_DEVICE_DEVICE_PRIV_H
#define ML_COMM_DEVICE_DEVICE_PRIV_H

#include "comm/device/device_comm.h"

typedef struct ml_device_team ml_device_team;

/* Functions as in comm.h, for tensors of the device. */
typedef struct ml_device_transport {
    const char *name;
    ml_status (*bcast)(ml_device_team *t, ml_stream *s, const ml_tensor *x, int32_t root,
                       ml_err *err);
    ml_status (*allgather)(ml_device_team *t, ml_stream *s, const ml_tensor *out,
                           const ml_tensor *in, ml_err *err);
    ml_status (*reduce_scatter)(ml_device_team *t, ml_stream *s, const ml_tensor *out,
                                const ml_tensor *in, ml_reduce how, ml_err *err);
    ml_status (*allreduce)(ml_device_team *t, ml_stream *s, const ml_tensor *x,
                           ml_reduce how, ml_err *err);
    ml_status (*alltoallv)(ml_device_team *t, ml_stream *s, const ml_tensor *out,
                           const int64_t *n_out, const ml_tensor *in, const int64_t *n_in,
                           ml_err *err);
    ml_status (*exchange)(ml_device_team *t, ml_stream *s, const ml_message *m, int32_t n,
                          ml_err *err);
    void (*close)(ml_device_team *t);
} ml_device_transport;

struct ml_device_team {
    ml_comm c;
    ml_comm *host; /* the same ranks */
    ml_device *dev;
    const ml_device_transport *transport; /* NULL: everything is staged through the host */
    ml_buf stage;
    void *state; /* the transport's */
};

/* Each sets `transport` if all ranks can use it; ML_OK with none set: they cannot.  Collective. */
ml_status ml_device_peer_open(ml_device_team *t, ml_err *err);
ml_status ml_device_nccl_open(ml_device_team *t, ml_err *err);

/* Bytes of the stage. */
size_t ml_device_peer_bytes(void);
size_t ml_device_nccl_bytes(void);

/* Bytes of a row (dimension 0). */
size_t ml_device_row_bytes(const ml_tensor *x);
/* Copies within the device, unless both are one place. */
void ml_device_copy(ml_stream *s, void *to, const void *from, size_t bytes);

#endif
