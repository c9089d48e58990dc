/* rank_group.h - what keeps the ranks of an engine in lock step.
 *
 * Every rank of a tensor-parallel engine has the same requests, KV pages and schedule: they
 * are functions of what was asked and of the steps, not of clocks.  So the first rank tells
 * the others only what is new before a step: requests, aborts, commands (an order).  All
 * ranks have whole rows of logits and draw for themselves: the draws are the same, no rank
 * waits for another's, and on a GPU the tokens stay where the next step reads them.  Each
 * order carries a hash of the first rank's state (requests, pages, draws), which the others
 * compare with theirs.
 *
 * thread: the engine's. */
#ifndef ML_GEN_RANK_GROUP_H
#define ML_GEN_RANK_GROUP_H

#include "comm/comm.h"
#include "engine/request.h"

typedef struct ml_rank_group {
    ml_comm *orders;   /* without a deadline: an idle engine gets none */
    double deadline_s; /* of ranks that have an order, to meet */
    ml_text order;     /* being written, or received */
    size_t at;         /* of the next item to read */
} ml_rank_group;

/* comm NULL, or of one rank: there is no group, and only close may be called. */
ml_status ml_rank_group_open(ml_rank_group *g, ml_comm *comm, ml_err *err);
void ml_rank_group_close(ml_rank_group *g);
static inline bool ml_rank_group_leads(const ml_rank_group *g) {
    return g->orders && g->orders->rank == 0;
}
static inline bool ml_rank_group_follows(const ml_rank_group *g) {
    return g->orders && g->orders->rank > 0;
}

/* The first rank writes an order and sends it to the others, which read it. */
void ml_rank_group_put(ml_rank_group *g, const void *item, size_t bytes);
void ml_rank_group_put_int(ml_rank_group *g, int64_t x);
void ml_rank_group_put_request(ml_rank_group *g, const ml_request *r);
ml_status ml_rank_group_send(ml_rank_group *g, ml_err *err);

ml_status ml_rank_group_receive(ml_rank_group *g, ml_err *err);
/* The next item, of any size up to the end of the order; valid until the next receive. */
const void *ml_rank_group_get(ml_rank_group *g, size_t bytes);
int64_t ml_rank_group_get_int(ml_rank_group *g);
/* Creates the request, with its ticket. */
ml_status ml_rank_group_get_request(ml_rank_group *g, ml_request **out,
                                    const ml_engine_opts *opts, int64_t n_vocab,
                                    ml_err *err);

/* Returns when all ranks have come to this point of an order. */
ml_status ml_rank_group_meet(ml_rank_group *g, ml_err *err);

/* ML_OK if all ranks pass ML_OK.  Otherwise a rank that failed gets its own error, the
 * others get ML_EPEER with the number and the message of the first that failed.  Unlike ml_comm.agree it leaves the group as it was: a file may be missing. */
ml_status ml_rank_group_agree(ml_rank_group *g, ml_status mine, ml_err *err);

#endif
