/* expert_rounds.h - which rows travel between the ranks of an expert group.
 *
 * Each rank has some of the experts and rows (slots, see `group` in backend/ops.h) for all of
 * them, sorted by expert, then token.  The rows for the experts of a rank are ordered by
 * (expert, rank they come from, token).  That order is cut into rounds of as many rows as
 * the rank has room for, so that any number of rows fits, and none is dropped: in a round,
 * the rows from one rank are consecutive slots of it.  All ranks know all counts, and
 * compute the same rounds.
 *
 * thread: any; no state. */
#ifndef ML_MODEL_EXPERT_ROUNDS_H
#define ML_MODEL_EXPERT_ROUNDS_H

#include <stdint.h>

/* What one rank tells the others: a row of a table. */
typedef struct ml_expert_rows {
    int32_t n_rank, n_expert;
    const int32_t *row; /* [n_rank][1 + n_expert] rows it has room for, at least 1; then how
                           many rows it has for each expert */
} ml_expert_rows;

/* The first expert of a rank; of rank n_rank: n_expert.  A rank may have none. */
int32_t ml_expert_first(int32_t n_expert, int32_t n_rank, int32_t rank);

int32_t ml_expert_rounds(const ml_expert_rows *x); /* of the rank that needs most */

typedef struct ml_slot_run {
    int64_t at, n;
} ml_slot_run;

/* The slots of rank `from` that it sends to rank `to` in a round. */
ml_slot_run ml_expert_run(const ml_expert_rows *x, int32_t from, int32_t to, int32_t round);

/* The rows that rank `to` gets in a round, and the permutation of them: they arrive in the
 * order of (rank, expert, token), and are computed in that of (expert, rank, token).  Both
 * tables [experts of the rank + 1 + 2 * rows] have the format of `group` with one expert
 * per token; `back` is the inverse of `group`.  next [n_rank] is scratch. */
int64_t ml_expert_received(const ml_expert_rows *x, int32_t to, int32_t round);
void ml_expert_tables(int32_t *group, int32_t *back, int64_t *next, const ml_expert_rows *x,
                      int32_t to, int32_t round);

#endif
