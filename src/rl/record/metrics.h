/* metrics.h - named numbers of a rollout or train step, in the order of insertion.
 *
 * thread: one owner. */
#ifndef ML_RL_RECORD_METRICS_H
#define ML_RL_RECORD_METRICS_H

#include "base/arena.h"
#include "base/str.h"

typedef struct ml_metric {
    const char *name;
    double value;
    struct ml_metric *next;
} ml_metric;

typedef struct ml_metrics {
    ml_arena *arena; /* holds names and list entries */
    ml_metric *first, **last;
} ml_metrics;

void ml_metrics_init(ml_metrics *f, ml_arena *a);
/* Appends a metric; its name is prefix followed by name. */
void ml_metrics_add(ml_metrics *f, const char *prefix, const char *name, double value);
/* The last value with that name, or `absent`. */
double ml_metrics_get(const ml_metrics *f, const char *name, double absent);
/* Appends "name": value pairs, separated by commas; non-finite values become null. */
void ml_metrics_write(ml_text *out, const ml_metrics *f);

#endif
