/* moves.h - copies weights from one layout over ranks to another.
 *
 * The ranks that train have the whole model between them, each a range of every packed
 * parameter (shard_map.h), or all of it.  The ranks of an engine have the rows that their
 * spec was cut to (spec_shard.h).  Which rows go from where to where is computed from these
 * two descriptions alone, by every rank for itself: nothing is negotiated.  Rows travel as
 * bytes, so the receiver has the bits of the sender.
 *
 * A rank takes what it has itself, and the rest from the rank that sends the least.  Moves
 * are done in buckets, in each of which no rank sends or receives more than a given size.
 *
 * thread: one owner; the plan is immutable. */
#ifndef ML_MODEL_MOVES_H
#define ML_MODEL_MOVES_H

#include "comm/comm.h"
#include "model/shard_map.h"
#include "model/weights.h"

/* Consecutive rows of one member of a parameter; of a vector, elements. */
typedef struct ml_move {
    int32_t from, to;            /* ranks */
    int32_t param, into;         /* in the whole spec, and in the receiver's */
    int32_t member, into_member; /* likewise */
    int32_t bucket;
    int64_t row, into_row, n;
} ml_move;

typedef struct ml_moves_opts {
    const ml_spec *whole;
    ml_layout linear;      /* of linear weights, on all ranks */
    const ml_dtype *dtype; /* [whole->n_param] */
    int32_t n_rank, rank;  /* rank: this one */
    /* [n_rank][whole->n_param] what each rank has of every parameter; NULL: nothing. */
    const ml_shard_range *const *from;
    const ml_spec *const *to; /* [n_rank] what each rank gets; NULL: nothing */
    size_t bucket_bytes;
    /* Parameters that a rank already has in one piece are not moved: the receiver's set
     * uses the sender's memory. */
    bool in_place;
} ml_moves_opts;

typedef struct ml_moves {
    ml_moves_opts opts; /* its arrays must outlive the plan */
    ml_move *move;      /* [n] those of this rank, in the order of all ranks */
    int64_t n;
    int32_t n_bucket;
    size_t stage_bytes; /* of the buffers that a run allocates */
    size_t total_bytes; /* that all ranks send to others */
} ml_moves;

void ml_moves_plan(ml_moves *out, const ml_moves_opts *o);
void ml_moves_close(ml_moves *m); /* zeros are allowed */

/* Collective over the ranks of the plan; comm NULL: one rank.  from: this rank's weights, or
 * NULL if it has none; to likewise.  The version is not copied. */
ml_status ml_moves_run(const ml_moves *m, ml_comm *comm, const ml_weights *from,
                       const ml_weights *to, ml_err *err);

/* Overwrites every row that this rank receives. */
void ml_moves_spoil(const ml_moves *m, const ml_weights *to);
/* Compares what was received with what the senders have, by checksums.  ML_EFORMAT: names
 * the parameter that differs.  Collective. */
ml_status ml_moves_check(const ml_moves *m, ml_comm *comm, const ml_weights *from,
                         const ml_weights *to, ml_err *err);

/* The parameter of the whole spec of which parameter i of a cut spec is a part. */
int32_t ml_cut_source(const ml_spec *whole, const ml_spec *cut, int32_t i);

/* The set that this rank receives: zeros, where it has memory of its own.  have: the set
 * that the rank has, of which parameters are views if the options say so; otherwise it may
 * be NULL. */
ml_status ml_moves_receiver(ml_weights *out, const ml_moves_opts *o, const ml_weights *have,
                            ml_backend *be, ml_arena *a, ml_err *err);
/* The bytes that it allocates. */
size_t ml_moves_receiver_bytes(const ml_moves_opts *o);

#endif
