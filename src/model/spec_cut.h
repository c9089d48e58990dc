/* spec_cut.h - how the columns of a value are dealt out to the ranks of a group.
 *
 * A deal gives every rank the same number of consecutive groups (heads, or single
 * columns).  Where the number does not divide, neighbours overlap: all ranks have the same
 * shapes, some compute a few columns twice, and the first rank that has a column is its
 * owner.  A cut names the parts of a row and the deal of each: a row of q, k and v has
 * three parts.
 *
 * thread: any; immutable. */
#ifndef ML_MODEL_SPEC_CUT_H
#define ML_MODEL_SPEC_CUT_H

#include "backend/ops.h"
#include "base/arena.h"

typedef struct ml_deal {
    int32_t n_group;      /* groups of all ranks */
    int32_t count;        /* groups of each rank */
    const int32_t *first; /* [n_rank] ascending */
} ml_deal;

enum { ML_CUT_PARTS = 5 };

typedef struct ml_cut {
    int32_t n;
    struct {
        int64_t at, width; /* in the whole row */
        const ml_deal *deal;
    } part[ML_CUT_PARTS]; /* by `at` */
} ml_cut;

/* n groups over the ranks, in multiples of `multiple` where there are enough. */
const ml_deal *ml_deal_even(ml_arena *a, int32_t n_rank, int64_t n, int64_t multiple);
/* Heads of which each n_head / n_key share a key: the keys of each rank and the heads that
 * it computes with them.  Ranks beyond the number of keys share one. */
typedef struct ml_head_deal {
    const ml_deal *head, *key;
} ml_head_deal;
ml_head_deal ml_deal_heads(ml_arena *a, int32_t n_rank, int32_t n_head, int32_t n_key);

/* A cut of one part, the row of this width; NULL (whole) if each rank gets all of it. */
const ml_cut *ml_cut_row(ml_arena *a, int64_t width, const ml_deal *deal);
/* The same for a copy of c. */
const ml_cut *ml_cut_copy(ml_arena *a, const ml_cut *c);
/* Adds a part, keeping their order; false: no room. */
bool ml_cut_add(ml_cut *c, int64_t at, int64_t width, const ml_deal *deal);

bool ml_cut_same(const ml_cut *a, const ml_cut *b, int32_t n_rank); /* either may be NULL */
/* Columns per group of part i. */
int64_t ml_cut_unit(const ml_cut *c, int i);
/* Columns of a rank: of one part; of the parts before part i (of all: i = n). */
int64_t ml_cut_part_width(const ml_cut *c, int i);
int64_t ml_cut_offset(const ml_cut *c, int i);
/* First column of part i of a rank, in the whole row. */
int64_t ml_cut_first(const ml_cut *c, int i, int32_t rank);
/* Whether the parts cover a row of this width without a gap. */
bool ml_cut_covers(const ml_cut *c, int64_t width);

/* The runs of columns that merge the ranks' rows to the whole one: each column from its
 * owner. */
const ml_col_run *ml_cut_runs(ml_arena *a, const ml_cut *c, int32_t n_rank, int32_t *n);

#endif
