/* drop_reasons.h - the number of dropped groups by reason.
 *
 * thread: one owner. */
#ifndef ML_RL_ROLLOUT_DROP_REASONS_H
#define ML_RL_ROLLOUT_DROP_REASONS_H

#include <stdint.h>

#include "rl/record/metrics.h"

enum { ML_REASON_CAP = 40 };

typedef struct ml_drop_reason {
    char reason[ML_REASON_CAP];
    int64_t n;
} ml_drop_reason;

typedef struct ml_drop_reasons {
    ml_arena *arena;
    ml_drop_reason *row; /* [n] */
    int n;
} ml_drop_reasons;

void ml_drop_reasons_count(ml_drop_reasons *r, const char *reason);
/* Adds the metrics rollout/dynamic_filter/drop_REASON. */
void ml_drop_reasons_report(const ml_drop_reasons *r, ml_metrics *out);

#endif
