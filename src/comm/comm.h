/* comm.h - ranks, and what they do together.
 *
 * A communicator is a struct of functions that an implementation fills: self (one rank)
 * is here; others stand behind the same door.  Buffers are views of memory of the stream's
 * device, and work is ordered on the stream.  Every rank calls the same collectives in the
 * same order; a rank that has failed still enters `agree`, so that nobody waits for it.
 *
 * Reductions name their order.  ML_REDUCE_TREE is a binary tree over ascending ranks: its
 * bits are a function of the inputs and the number of ranks alone.  ML_REDUCE_ANY is
 * whatever is fastest.  There is no default.
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

    /* A communicator of the ranks that give the same colour, ordered by key, then rank;
     * colour < 0: none for this rank (*out is NULL).  Closed by its own close. */
    ml_status (*split)(ml_comm *c, ml_comm **out, int32_t color, int32_t key, ml_err *err);
    void (*close)(ml_comm *c);

    ml_status (*barrier)(ml_comm *c, ml_stream *s, ml_err *err);
    ml_status (*bcast)(ml_comm *c, ml_stream *s, const ml_tensor *t, int32_t root,
                       ml_err *err);
    /* out: the ranks' `in` one after the other. */
    ml_status (*allgather)(ml_comm *c, ml_stream *s, const ml_tensor *out,
                           const ml_tensor *in, ml_err *err);
    /* in: `size` parts of equal length; out: this rank's part, reduced. */
    ml_status (*reduce_scatter)(ml_comm *c, ml_stream *s, const ml_tensor *out,
                                const ml_tensor *in, ml_reduce how, ml_err *err);
    ml_status (*allreduce)(ml_comm *c, ml_stream *s, const ml_tensor *t, ml_reduce how,
                           ml_err *err); /* in place */
    /* Rows (dimension 0) to and from each rank, in rank order without gaps. */
    ml_status (*alltoallv)(ml_comm *c, ml_stream *s, const ml_tensor *out,
                           const int64_t *n_out, const ml_tensor *in, const int64_t *n_in,
                           ml_err *err); /* n_out, n_in: [size] */
    /* Both return when the buffer may be used again; sends and receives of a pair of ranks
     * match in order. */
    ml_status (*send)(ml_comm *c, ml_stream *s, const ml_tensor *t, int32_t to,
                      ml_err *err);
    ml_status (*recv)(ml_comm *c, ml_stream *s, const ml_tensor *t, int32_t from,
                      ml_err *err);

    /* ML_OK when every rank gave ML_OK.  Otherwise a rank that failed gets its own status
     * back, its message untouched, and the others ML_EPEER with the failed rank's number. */
    ml_status (*agree)(ml_comm *c, ml_status mine, ml_err *err);
    /* Frees ranks that wait for this one: their pending calls end in ML_EPEER. */
    void (*abort)(ml_comm *c);

    void *priv;
};

#endif
