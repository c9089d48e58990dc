/* slots.h - who has which slot for the state of recurrent layers.
 *
 * A slot is free, the running state of one request, or a copy of the state behind the
 * tokens of a page of the tree (and of its ancestors), from which any request that begins
 * with these tokens may go on.  Copies stay until their page leaves the tree or a slot is
 * wanted; the one unused for longest goes first.  A page whose copy the step being put
 * together will make is expected: requests that could go on from it wait for it.
 *
 * Everything is allocated at init; a model without recurrent layers has no slots.
 *
 * thread: the engine's owner. */
#ifndef ML_ENGINE_STATE_SLOTS_H
#define ML_ENGINE_STATE_SLOTS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"

#define ML_NO_SLOT (-1)

typedef struct ml_state_slots {
    int32_t n, n_free;
    int32_t *free;    /* stack, n_free deep, [n] */
    int32_t *page;    /* [n] the page a slot has the state behind, or ML_NO_PAGE */
    uint64_t *used;   /* [n] when a copy was made or last gone on from */
    int32_t *of_page; /* [n_page] the slot with the state behind a page, or ML_NO_SLOT */
    bool *expected;   /* [n_page] */
    uint64_t clock;
} ml_state_slots;

void ml_state_slots_init(ml_state_slots *s, ml_arena *a, int32_t n, int32_t n_page);

/* A slot for a running state or a copy, freed of an old copy if need be; ML_NO_SLOT: all are
 * running. */
int32_t ml_state_slots_take(ml_state_slots *s);
void ml_state_slots_drop(ml_state_slots *s, int32_t slot); /* ML_NO_SLOT is fine */

/* The slot, taken before, has the state behind a page that had none. */
void ml_state_slots_keep(ml_state_slots *s, int32_t slot, int32_t page);
/* The slot with the state behind a page, or ML_NO_SLOT; `use`: it is gone on from. */
int32_t ml_state_slots_behind(ml_state_slots *s, int32_t page, bool use);
/* The page leaves the tree. */
void ml_state_slots_leave(ml_state_slots *s, int32_t page);

#endif
