/* comm.h - the communicator: collectives and point-to-point messages between ranks.
 *
 * A communicator is a struct of functions that an implementation fills in; comm/self (one
 * rank) is the one in this tree.  Buffers are views of memory of the stream's device, and
 * work is ordered on the stream.  Every rank calls the same collectives in the same order;
 * a rank that has failed still enters `agree`, so that no rank waits for it.
 *
 * Each reduction names its order.  ML_REDUCE_TREE is a binary tree over ascending ranks:
 * its bits are a function of the inputs and the number of ranks alone.  ML_REDUCE_ANY is
 * the fastest order.  There is no default.
 *
 * thread: one owner per communicator. */
#ifndef ML_COMM_COMM_H
#define ML_COMM_COMM_H

#include <stdint.h>

#include "base/err.h"
#include "tensor/device.h"
#include "tensor/tensor.h"

typedef enum ml_reduce_op { ML_REDUCE_SUM, ML_REDUCE_MAX } ml_reduce_op;
typedef enum ml_reduce_order { ML_REDUCE_TREE, ML_REDUCE_ANY } ml_reduce_order;

typedef struct ml_reduce {
    ml_reduce_op op;
    ml_reduce_order order;
} ml_reduce;

typedef struct ml_comm ml_comm;

struct ml_comm {
    const char *name; /* "self" */
    int32_t rank, size;

    /* Like MPI_Comm_split: a communicator of the ranks with the same color, ordered by key,
     * then rank; color < 0: none for this rank (*out is NULL).  Closed by its own close. */
    ml_status (*split)(ml_comm *c, ml_comm **out, int32_t color, int32_t key, ml_err *err);
    void (*close)(ml_comm *c);

    ml_status (*barrier)(ml_comm *c, ml_stream *s, ml_err *err);
    ml_status (*bcast)(ml_comm *c, ml_stream *s, const ml_tensor *t, int32_t root,
                       ml_err *err);
    /* out: the ranks' `in`, concatenated in rank order. */
    ml_status (*allgather)(ml_comm *c, ml_stream *s, const ml_tensor *out,
                           const ml_tensor *in, ml_err *err);
    /* in: `size` parts of equal length; out: this rank's part, reduced. */
    ml_status (*reduce_scatter)(ml_comm *c, ml_stream *s, const ml_tensor *out,
                                const ml_tensor *in, ml_reduce how, ml_err *err);
    ml_status (*allreduce)(ml_comm *c, ml_stream *s, const ml_tensor *t, ml_reduce how,
                           ml_err *err); /* in place */
    /* Sends rows (dimension 0) to and from each rank, contiguous in rank order. */
    ml_status (*alltoallv)(ml_comm *c, ml_stream *s, const ml_tensor *out,
                           const int64_t *n_out, const ml_tensor *in, const int64_t *n_in,
                           ml_err *err); /* n_out, n_in: [size] */
    /* Both return when the buffer may be reused; sends and receives between two ranks match
     * in order. */
    ml_status (*send)(ml_comm *c, ml_stream *s, const ml_tensor *t, int32_t to,
                      ml_err *err);
    ml_status (*recv)(ml_comm *c, ml_stream *s, const ml_tensor *t, int32_t from,
                      ml_err *err);

    /* ML_OK if every rank passed ML_OK.  Otherwise a rank that failed gets its own status
     * back, its message unchanged, and the others get ML_EPEER with the failed rank. */
    ml_status (*agree)(ml_comm *c, ml_status mine, ml_err *err);
    /* Unblocks ranks that wait for this one: their pending calls return ML_EPEER. */
    void (*abort)(ml_comm *c);

    void *priv;
};

#endif
