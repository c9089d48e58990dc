/* map.h - a hash map from text to index, in an arena.
 *
 * The value is an int64_t, usually the index of a row in the caller's table; keys are
 * never removed.  Keys are views and must outlive the map.
 *
 * thread: one thread while it grows; any number of readers after that. */
#ifndef ML_BASE_MAP_H
#define ML_BASE_MAP_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/str.h"

typedef struct ml_map_slot ml_map_slot;

typedef struct ml_map {
    ml_arena *arena;
    ml_map_slot *slot; /* [n_slot], a power of two */
    int64_t n_slot, n; /* n: number of keys */
} ml_map;

/* n_expected is the initial capacity; the map grows beyond it. */
void ml_map_init(ml_map *m, ml_arena *a, int64_t n_expected);

/* False, without a change, if the key exists already. */
bool ml_map_add(ml_map *m, ml_str key, int64_t value);

/* The key's value, or `absent`. */
int64_t ml_map_get(const ml_map *m, ml_str key, int64_t absent);

#endif
