#include "base/timeline.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct ml_timeline {
    pthread_mutex_t lock;
    ml_time_span *span; /* [most * ML_TRACKS] */
    int64_t n, most, seen[ML_TRACKS];
};

ml_timeline *ml_timeline_new(int64_t most) {
    ml_timeline *s = calloc(1, sizeof *s);

    if (!s)
        return NULL;
    s->most = most;
    s->span = calloc((size_t)most * ML_TRACKS, sizeof *s->span);
    if (!s->span) {
        free(s);
        return NULL;
    }
    pthread_mutex_init(&s->lock, NULL);
    return s;
}

void ml_timeline_free(ml_timeline *s) {
    if (!s)
        return;
    pthread_mutex_destroy(&s->lock);
    free(s->span);
    free(s);
}

void ml_timeline_add(ml_timeline *s, const ml_time_span *span, int64_t n) {
    pthread_mutex_lock(&s->lock);
    for (int64_t i = 0; i < n; i++)
        if (s->seen[span[i].track]++ < s->most)
            s->span[s->n++] = span[i];
    pthread_mutex_unlock(&s->lock);
}

ml_timeline_taken ml_timeline_take(ml_timeline *s, ml_arena *a) {
    ml_timeline_taken t = { 0 };
    ml_time_span *span;

    pthread_mutex_lock(&s->lock);
    span = ML_NEW(a, ml_time_span, s->n + 1);
    memcpy(span, s->span, (size_t)s->n * sizeof *span);
    t.span = span;
    t.n = s->n;
    for (int i = 0; i < ML_TRACKS; i++)
        t.left_out[i] = s->seen[i] > s->most ? s->seen[i] - s->most : 0;
    s->n = 0;
    memset(s->seen, 0, sizeof s->seen);
    pthread_mutex_unlock(&s->lock);
    return t;
}
