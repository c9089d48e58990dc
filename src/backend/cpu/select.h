/* select.h - the most probable tokens of a row, without sorting the row.
 *
 * Tokens are ordered by their distance from the largest logit (draw_kern.h), of equal
 * ones the lower id first.  The bits of a distance ascend with it, so that the last token
 * to be kept is found by its bits from above, in three rounds of counting: the time is
 * linear in the row whatever it holds.
 *
 * thread: each has its own. */
#ifndef ML_BACKEND_CPU_SELECT_H
#define ML_BACKEND_CPU_SELECT_H

#include "backend/cpu/cpu_priv.h"

/* Tokens with distance and weight, side by side, by ascending id unless sorted. */
typedef struct ml_select {
    const ml_cpu_kern *kern;
    int32_t *id; /* [n] */
    float *d;    /* [n] distance */
    float *w;    /* [n] weight, once ml_select_weigh has been called */
    int64_t n;
    void *bins; /* ml_select_bins_bytes() */
} ml_select;

size_t ml_select_bins_bytes(void);

/* All tokens of the row z; m is the largest z / temperature. */
void ml_select_all(ml_select *s, const float *z, int64_t n, float temperature, float m);

void ml_select_weigh(ml_select *s);

/* Keeps those of the first k tokens that have no more than the part p of the whole weight
 * before them.  With p below 1 the tokens must have been weighed. */
void ml_select_first(ml_select *s, int64_t k, float p);

/* Keeps tokens whose distance is at most d. */
void ml_select_near(ml_select *s, float d);

/* By distance, the lower id first of equals. */
void ml_select_sort(ml_select *s);

#endif
