/* series.h - the metrics of a run as series, read from metrics.jsonl and timing.jsonl.
 *
 * A refresh reads the lines that the run has appended since the last one; a run that resumed
 * has replaced its files, which are then read from the start.
 *
 * thread: one owner. */
#ifndef ML_DASH_SERIES_H
#define ML_DASH_SERIES_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/arena.h"
#include "base/map.h"

typedef struct ml_point {
    int64_t rollout, step; /* step: of the optimizer; -1: the point is the rollout's */
    double value;          /* NaN: null in the file */
} ml_point;

typedef struct ml_series {
    const char *name;
    ml_point *at; /* [n], in the order of the file */
    int64_t n, cap;
    int file; /* the index of the file it comes from */
} ml_series;

enum { ML_SERIES_FILES = 2 };

typedef struct ml_series_set {
    struct {
        char *path;
        ino_t inode;
        off_t read; /* bytes that were read, whole lines */
    } file[ML_SERIES_FILES];
    ml_series *series; /* [n] in the order of first appearance */
    int64_t n, cap;
    int64_t last;     /* the newest rollout of metrics.jsonl; -1: none */
    int64_t revision; /* counts refreshes that found something new */
    ml_map index;     /* name to index */
    ml_arena arena;   /* names */
} ml_series_set;

void ml_series_open(ml_series_set *s, const char *dir);
void ml_series_close(ml_series_set *s);
void ml_series_refresh(ml_series_set *s);

/* NULL: there is none. */
const ml_series *ml_series_find(const ml_series_set *s, const char *name);
/* The newest value, or `absent`. */
double ml_series_last(const ml_series_set *s, const char *name, double absent);

/* Keeps the least and the greatest value of each stretch, so that peaks stay visible.  Writes
 * the indexes of at most n_most points, ascending, and returns their number. */
int64_t ml_series_thin(const ml_point *at, int64_t n, int64_t n_most, int64_t *index);

#endif
