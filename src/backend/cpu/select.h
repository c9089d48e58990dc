/* select.h - the most probable tokens of a row, without sorting the row.
 *
 * Tokens are ordered by their distance from the largest logit (sample_kern.h), of equal
 * ones the lower id first.  The bits of a distance ascend with it, so that the last token
 * to be kept is found by its bits from above, in three passes of counting: the time is
 * linear in the row whatever it holds.
 *
 * thread: each has its own. */
#ifndef ML_BACKEND_CPU_SELECT_H
#define ML_BACKEND_CPU_SELECT_H

#include "backend/cpu/cpu_priv.h"

/* Tokens and their distances, side by side, by ascending id unless sorted. */
typedef struct ml_select {
    const ml_cpu_kern *kern;
    float *d;    /* [n] */
    int32_t *id; /* [n] */
    int64_t n;
} ml_select;

/* All tokens of the row z; m is the largest z / temperature. */
void ml_select_all(ml_select *s, const float *z, int64_t n, float temperature, float m);

/* Keeps those of the first k tokens that have no more than the part p of the row's weight
 * before them. */
void ml_select_first(ml_select *s, int64_t k, float p);

/* Keeps tokens whose distance is at most d. */
void ml_select_near(ml_select *s, float d);

/* By distance, the lower id first of equals. */
void ml_select_sort(ml_select *s);

#endif
