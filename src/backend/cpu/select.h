/* select.h - radix select: the most probable tokens of a row, without sorting the row.
 *
 * Tokens are ordered by their distance from the largest logit (draw_kern.h), ties by
 * ascending id.  Non-negative floats compare like their bit patterns, so a radix select
 * finds the last token to keep from the most significant digit down, in three counting
 * passes.  The time is linear in the row length, independent of the values.
 *
 * thread: each thread has its own ml_select. */
#ifndef ML_BACKEND_CPU_SELECT_H
#define ML_BACKEND_CPU_SELECT_H

#include "backend/cpu/cpu_priv.h"

/* Tokens with distance and weight (structure of arrays), by ascending id unless sorted. */
typedef struct ml_select {
    const ml_cpu_kern *kern;
    int32_t *id; /* [n] */
    float *d;    /* [n] distance */
    float *w;    /* [n] weight, once ml_select_weigh has been called */
    int64_t n;
    void *bins; /* ml_select_bins_bytes() */
} ml_select;

size_t ml_select_bins_bytes(void);

/* Selects all tokens of the row z; m is the largest z / temperature. */
void ml_select_all(ml_select *s, const float *z, int64_t n, float temperature, float m);

void ml_select_weigh(ml_select *s);

/* top-k and top-p: of the first k tokens, keeps those that are preceded by at most the
 * fraction p of the total weight.  With p below 1, call ml_select_weigh first. */
void ml_select_first(ml_select *s, int64_t k, float p);

/* min-p: keeps tokens whose distance is at most d. */
void ml_select_near(ml_select *s, float d);

/* Sorts by distance, ties by ascending id. */
void ml_select_sort(ml_select *s);

#endif
