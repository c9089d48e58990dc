/* figures.h - named numbers of a step, in the order they were found.
 *
 * thread: one owner. */
#ifndef ML_RL_METRICS_H
#define ML_RL_METRICS_H

#include "base/arena.h"
#include "base/str.h"

typedef struct ml_metric {
    const char *name;
    double value;
    struct ml_metric *next;
} ml_metric;

typedef struct ml_metrics {
    ml_arena *arena; /* names and rows live there */
    ml_metric *first, **last;
} ml_metrics;

void ml_metrics_init(ml_metrics *f, ml_arena *a);
/* The name may be put together: prefix, then name. */
void ml_metrics_add(ml_metrics *f, const char *prefix, const char *name, double value);
/* The last value of that name, or `absent`. */
double ml_metrics_get(const ml_metrics *f, const char *name, double absent);
/* Appends "name": value pairs with commas between; what is not finite is null. */
void ml_metrics_write(ml_text *out, const ml_metrics *f);

#endif
