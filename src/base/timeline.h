/* timeline.h - collects time spans from several threads.
 *
 * Each track keeps a limited number of spans; further ones are only counted, so that the
 * reader can report them.
 *
 * thread: any. */
#ifndef ML_BASE_TIMELINE_H
#define ML_BASE_TIMELINE_H

#include <stdint.h>

#include "base/arena.h"

/* Tracks of the trace: spans of one track may nest, but not overlap. */
typedef enum ml_track {
    ML_TRACK_LOOP,
    ML_TRACK_TRAIN,
    ML_TRACK_ROLLOUT,
    ML_TRACK_COMM, /* waits for other ranks */
    ML_TRACKS
} ml_track;

typedef struct ml_time_span {
    const char *name; /* must outlive the timeline */
    ml_track track;
    int32_t layer; /* of a model; -1: none */
    double begin_s, end_s;
    const char *group; /* of ranks; NULL: none.  Must outlive the timeline */
} ml_time_span;

typedef struct ml_timeline ml_timeline;

ml_timeline *ml_timeline_new(int64_t most); /* spans per track; NULL: no memory */
void ml_timeline_free(ml_timeline *s);      /* NULL is allowed */

void ml_timeline_add(ml_timeline *s, const ml_time_span *span, int64_t n);

/* All spans, in the arena, and how many of each track were dropped; the timeline is then
 * empty. */
typedef struct ml_timeline_taken {
    const ml_time_span *span;
    int64_t n, left_out[ML_TRACKS];
} ml_timeline_taken;

ml_timeline_taken ml_timeline_take(ml_timeline *s, ml_arena *a);

#endif
