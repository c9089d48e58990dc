/* advice.h - rules that tell what is wrong with a run, or what to tune, from its metrics.
 *
 * Alarms come first.  Tuning is advised only for a run without one: low utilisation of a run
 * in trouble is a symptom.
 *
 * thread: one owner. */
#ifndef ML_DASH_ADVICE_H
#define ML_DASH_ADVICE_H

#include "dash/series.h"

typedef enum ml_advice_level {
    ML_ADVICE_CRITICAL,
    ML_ADVICE_WARNING,
    ML_ADVICE_INFO
} ml_advice_level;

typedef struct ml_advice {
    ml_advice_level level;
    char text[400];
} ml_advice;

enum { ML_ADVICE_MOST = 16 };

/* What the metrics do not say. */
typedef struct ml_advice_facts {
    bool live;                     /* a process writes the run */
    double silent_s;               /* since the last phase ended; 0: not known */
    int64_t n_group, n_flat_group; /* of the last rollout; flat: all rewards are equal */
    int64_t n_sample, n_aborted;   /* of the last rollout */
} ml_advice_facts;

/* Returns their number. */
int ml_advice_find(ml_advice out[ML_ADVICE_MOST], const ml_series_set *s,
                   const ml_advice_facts *facts);

/* The median of the last n values, or `absent`. */
double ml_series_median(const ml_series_set *s, const char *name, int64_t n, double absent);

#endif
