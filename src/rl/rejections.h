/* rejections.h - how many groups were turned down, by reason.
 *
 * thread: one owner. */
#ifndef ML_RL_REJECTIONS_H
#define ML_RL_REJECTIONS_H

#include <stdint.h>

#include "rl/figures.h"

enum { ML_REASON_CAP = 40 };

typedef struct ml_rejection {
    char reason[ML_REASON_CAP];
    int64_t n;
} ml_rejection;

typedef struct ml_rejections {
    ml_arena *arena;
    ml_rejection *row; /* [n] */
    int n;
} ml_rejections;

void ml_rejections_count(ml_rejections *r, const char *reason);
/* rollout/dynamic_filter/drop_REASON. */
void ml_rejections_report(const ml_rejections *r, ml_figures *out);

#endif
