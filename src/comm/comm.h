/* comm.h - the communicator: collectives and point-to-point messages between ranks.
 *
 * A communicator is a struct of functions.  comm/self is the communicator of one rank;
 * comm/collectives.c implements the functions for several ranks over a link (comm/link.h), of
 * which there are two: comm/threads (the ranks are threads of one process) and comm/mpi.
 *
 * Buffers are views of memory of the stream's device, and work is ordered on the stream; a
 * stream of NULL says that the buffers are host memory.  Every rank calls the same
 * collectives in the same order, with the same sizes, dtypes and reductions.
 *
 * Each reduction names its order.  ML_REDUCE_TREE has defined bits, the same in every
 * implementation.  With x[r] the input of rank r,
 *
 *     tree(first, 1) = x[first]
 *     tree(first, n) = tree(first, m) + tree(first + m, n - m),  m the largest power of two
 *                                                                 below n
 *     result         = tree(0, size)
 *
 * element by element.  f32 adds in f32, one rounding per `+`; bf16 and f16 are widened to
 * f32, added in f32 and rounded once, at the end; i32 wraps around.  ML_REDUCE_MAX has the
 * same tree: the larger operand, the left one if they are equal, NaN if one is NaN.
 * ML_REDUCE_ANY is the fastest order.  There is no default.
 *
 * Failures are sticky and belong to the job, the communicator that was opened with all that
 * were split from it: when one rank passes an error to `agree`, aborts, or a wait exceeds
 * the deadline, the pending and all later calls of every rank of the job return ML_EPEER at
 * once (`failed` is set).  Code that cannot fail between two calls of `agree` may therefore
 * ignore the status of its collectives: the next `agree` returns it.
 *
 * thread: one owner per communicator; communicators of one job may belong to different
 * threads, but a rank splits in one thread at a time. */
#ifndef ML_COMM_COMM_H
#define ML_COMM_COMM_H

#include <stdbool.h>
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

enum { ML_MESSAGES = 64 };

/* A tensor that is sent to a rank or received from one. */
typedef struct ml_message {
    ml_tensor t;
    int32_t peer; /* another rank */
    bool send;
} ml_message;

struct ml_comm {
    const char *name; /* "self", "threads", "mpi" */
    int32_t rank, size;
    int32_t local_rank, local_size; /* among the ranks of the job on this host */
    bool failed; /* a call of this communicator has returned ML_EPEER: they all will */

    /* Set by the caller, with ml_comm_doing for what changes during a run.  A communicator of
     * one rank never waits and ignores them. */
    double deadline_s; /* a wait that takes longer fails; 0: none.  split copies it */
    const char *group; /* "world", "tp": which communicator this is, for messages */
    struct ml_timeline *spans; /* gets a span per exchange; NULL: none.  split copies it */

    /* Like MPI_Comm_split: a communicator of the ranks with the same color, ordered by key,
     * then rank; color < 0: none for this rank (*out is NULL).  Closed by its own close. */
    ml_status (*split)(ml_comm *c, ml_comm **out, int32_t color, int32_t key, ml_err *err);
    /* Of the communicator that was opened: this rank leaves the job, and ranks that wait for
     * it get ML_EPEER; communicators split from it are closed before. */
    void (*close)(ml_comm *c);

    ml_status (*barrier)(ml_comm *c, ml_stream *s, ml_err *err);
    ml_status (*bcast)(ml_comm *c, ml_stream *s, const ml_tensor *t, int32_t root,
                       ml_err *err);
    /* out: the ranks' `in`, concatenated in rank order.  `in` may be its place in out. */
    ml_status (*allgather)(ml_comm *c, ml_stream *s, const ml_tensor *out,
                           const ml_tensor *in, ml_err *err);
    /* in: `size` parts of equal length; out: this rank's part, reduced.  out may be its
     * place in `in`. */
    ml_status (*reduce_scatter)(ml_comm *c, ml_stream *s, const ml_tensor *out,
                                const ml_tensor *in, ml_reduce how, ml_err *err);
    ml_status (*allreduce)(ml_comm *c, ml_stream *s, const ml_tensor *t, ml_reduce how,
                           ml_err *err); /* in place */
    /* Sends rows (dimension 0) to and from each rank, contiguous in rank order.  The rows of
     * `out` and `in` have equal sizes; the buffers do not overlap. */
    ml_status (*alltoallv)(ml_comm *c, ml_stream *s, const ml_tensor *out,
                           const int64_t *n_out, const ml_tensor *in, const int64_t *n_in,
                           ml_err *err); /* n_out, n_in: [size] */
    /* Both return when the buffer may be reused; sends and receives between two ranks match
     * in order and have the same size, but may have memory of different kinds.  A send may
     * wait for its receive. */
    ml_status (*send)(ml_comm *c, ml_stream *s, const ml_tensor *t, int32_t to,
                      ml_err *err);
    ml_status (*recv)(ml_comm *c, ml_stream *s, const ml_tensor *t, int32_t from,
                      ml_err *err);
    /* Sends and receives, all of which are started before one is waited for: two ranks may
     * so send to each other.  At most ML_MESSAGES; buffers do not overlap. */
    ml_status (*exchange)(ml_comm *c, ml_stream *s, const ml_message *m, int32_t n,
                          ml_err *err);

    /* ML_OK if every rank passed ML_OK.  Otherwise a rank that failed gets its own status
     * back, its message unchanged, and the others get ML_EPEER with the failed rank and its
     * message.  A rank that passes an error does not wait. */
    ml_status (*agree)(ml_comm *c, ml_status mine, ml_err *err);
    /* Unblocks all ranks of the job: their pending calls return ML_EPEER. */
    void (*abort)(ml_comm *c);

    void *priv;

    /* Written by ml_comm_doing. */
    const char *what;
    int32_t layer;
};

/* What the caller is doing, for the message of a wait that fails: "forward" of layer 3; a
 * layer < 0: none; NULL: nothing.  The text is not copied. */
void ml_comm_doing(ml_comm *c, const char *what, int32_t layer);

/* Bytes of host memory as a tensor: for bcast, allgather, send and recv with a stream of
 * NULL. */
static inline ml_tensor ml_comm_bytes(const void *data, size_t bytes) {
    union {
        const void *in;
        void *out;
    } p = { data };

    return (ml_tensor){
        .data = p.out, .dtype = ML_U8, .n_dim = 1, .shape = { (int64_t)bytes }
    };
}

#endif
