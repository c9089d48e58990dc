/* timeline.h - what was done when, gathered on several threads until somebody takes it.
 *
 * Of each track so many are kept; those beyond are counted, so that who takes them can say so.
 *
 * thread: any. */
#ifndef ML_BASE_TIMELINE_H
#define ML_BASE_TIMELINE_H

#include <stdint.h>

#include "base/arena.h"

/* Rows of a picture: spans of one track may lie in each other, but not overlap. */
typedef enum ml_track {
    ML_TRACK_LOOP,
    ML_TRACK_TRAIN,
    ML_TRACK_ROLLOUT,
    ML_TRACKS
} ml_track;

typedef struct ml_time_span {
    const char *name; /* outlives them all */
    ml_track track;
    int32_t layer; /* of a model; -1: none */
    double begin_s, end_s;
} ml_time_span;

typedef struct ml_timeline ml_timeline;

ml_timeline *ml_timeline_new(int64_t most); /* of each track; NULL: no memory */
void ml_timeline_free(ml_timeline *s);      /* NULL is fine */

void ml_timeline_add(ml_timeline *s, const ml_time_span *span, int64_t n);

/* All of them, in the arena, and how many of each track were left out; then there are none. */
typedef struct ml_timeline_taken {
    const ml_time_span *span;
    int64_t n, left_out[ML_TRACKS];
} ml_timeline_taken;

ml_timeline_taken ml_timeline_take(ml_timeline *s, ml_arena *a);

#endif
