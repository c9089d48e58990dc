/* state_slots.h - allocation of slots for the state of recurrent layers.
 *
 * A slot is free, the running state of one request, or a copy of the state after the last
 * token of a page in the prefix cache, from which any request with that prefix can
 * continue.  A copy is kept until its page leaves the prefix cache or a slot is needed;
 * the least recently used copy is evicted first.  A page is `expected` while the step being
 * scheduled will make its copy: requests that could continue from it wait for that step.
 *
 * All memory is allocated at init; a model without recurrent layers has no slots.
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
    int32_t *free;    /* [n] stack of n_free slots */
    int32_t *page;    /* [n] the page whose copy a slot is, or ML_NO_PAGE */
    uint64_t *used;   /* [n] clock when a copy was made or last used */
    int32_t *of_page; /* [n_page] the slot with the copy of a page, or ML_NO_SLOT */
    bool *expected;   /* [n_page] */
    uint64_t clock;
} ml_state_slots;

void ml_state_slots_init(ml_state_slots *s, ml_arena *a, int32_t n, int32_t n_page);

/* Takes a slot for a running state or a copy, evicting the oldest copy if needed;
 * ML_NO_SLOT: all slots are running states. */
int32_t ml_state_slots_take(ml_state_slots *s);
void ml_state_slots_drop(ml_state_slots *s, int32_t slot); /* ML_NO_SLOT is allowed */

/* Registers a taken slot as the copy of a page that had none. */
void ml_state_slots_keep(ml_state_slots *s, int32_t slot, int32_t page);
/* The slot with the copy of a page, or ML_NO_SLOT; `use` marks it as used now. */
int32_t ml_state_slots_of_page(ml_state_slots *s, int32_t page, bool use);
/* The page leaves the prefix cache: frees its copy. */
void ml_state_slots_leave(ml_state_slots *s, int32_t page);

#endif
