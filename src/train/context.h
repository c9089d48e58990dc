/* context.h - context parallel: which rows of a micro-batch a rank has.
 *
 * The ranks of a group divide each sequence.  Zigzag, as in Megatron: a sequence of n tokens
 * is cut into 2c pieces of ceil(n / 2c), the last ones shorter or empty; rank r has pieces r
 * and 2c-1-r, so that all ranks attend to about as many keys.  Contiguous (Miles'
 * --allgather-cp): the sequences of a micro-batch, one after the other, are cut into c
 * pieces.  Nothing is padded.
 *
 * thread: any; no state. */
#ifndef ML_TRAIN_CONTEXT_H
#define ML_TRAIN_CONTEXT_H

#include <stdbool.h>
#include <stdint.h>

typedef struct ml_context_opts {
    int32_t n_rank; /* 0: 1, sequences are not divided */
    int32_t rank;   /* this one's place in the group */
    bool contiguous;
    bool
        share; /* samples share the rows of their prefixes (prefix.h); not with several ranks */
} ml_context_opts;

/* Tokens first .. first+n-1 of a sequence. */
typedef struct ml_piece {
    int32_t seq, first, n;
} ml_piece;

/* The pieces of a rank, in the order of its rows; none is empty.  len: [n] lengths of the
 * sequences; out: [2n].  Returns how many. */
int32_t ml_context_pieces(ml_piece *out, const int32_t *len, int32_t n,
                          const ml_context_opts *o, int32_t rank);

#endif
