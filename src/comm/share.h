/* share.h - what rank 0 knows or decides, given to all ranks of a communicator.
 *
 * All ranks call these in the same order.  A communicator of NULL is one rank.
 *
 * thread: the communicator's owner. */
#ifndef ML_COMM_SHARE_H
#define ML_COMM_SHARE_H

#include "base/str.h"
#include "comm/comm.h"

static inline bool ml_comm_is_first(const ml_comm *c) {
    return !c || c->rank == 0;
}

static inline int32_t ml_comm_size(const ml_comm *c) {
    return c ? c->size : 1;
}

/* On return, `data` has the bytes of rank 0. */
ml_status ml_comm_share(ml_comm *c, void *data, size_t bytes, ml_err *err);
/* The same for a text of any length; other ranks' text is replaced. */
ml_status ml_comm_share_text(ml_comm *c, ml_text *t, ml_err *err);
/* A text of any length from one rank to another; the receiver's is replaced. */
ml_status ml_comm_send_text(ml_comm *c, const ml_text *t, int32_t to, ml_err *err);
ml_status ml_comm_recv_text(ml_comm *c, ml_text *t, int32_t from, ml_err *err);
/* out: [size][bytes], the `in` of each rank in rank order. */
ml_status ml_comm_gather(ml_comm *c, void *out, const void *in, size_t bytes, ml_err *err);
/* Returns the status unless another rank failed; see `agree`. */
ml_status ml_comm_agree(ml_comm *c, ml_status mine, ml_err *err);
/* Returns when all ranks have called it. */
ml_status ml_comm_meet(ml_comm *c, ml_err *err);

/* "rank 3", "ranks 0-3, 7 and 9": the ranks r with is[r]. */
void ml_comm_put_ranks(ml_text *out, const bool *is, int32_t n);

#endif
