#include "engine/state_slots.h"

#include "base/bug.h"
#include "engine/prefix_cache.h"

void ml_state_slots_init(ml_state_slots *s, ml_arena *a, int32_t n, int32_t n_page) {
    *s = (ml_state_slots){ .n = n,
                           .free = ML_NEW(a, int32_t, n),
                           .page = ML_NEW(a, int32_t, n),
                           .used = ML_NEW(a, uint64_t, n),
                           .of_page = ML_NEW(a, int32_t, n_page),
                           .expected = ML_NEW(a, bool, n_page) };
    for (int32_t i = 0; i < n_page; i++)
        s->of_page[i] = ML_NO_SLOT;
    for (int32_t i = n - 1; i >= 0; i--)
        ml_state_slots_drop(s, i);
}

/* A linear search: with a few dozen slots it is cheaper than keeping an LRU list. */
static int32_t oldest_copy(const ml_state_slots *s) {
    int32_t best = ML_NO_SLOT;
    for (int32_t i = 0; i < s->n; i++)
        if (s->page[i] != ML_NO_PAGE && (best == ML_NO_SLOT || s->used[i] < s->used[best]))
            best = i;
    return best;
}

int32_t ml_state_slots_take(ml_state_slots *s) {
    if (!s->n_free) {
        int32_t old = oldest_copy(s);
        if (old == ML_NO_SLOT)
            return ML_NO_SLOT;
        ml_state_slots_leave(s, s->page[old]);
    }
    return s->free[--s->n_free];
}

void ml_state_slots_drop(ml_state_slots *s, int32_t slot) {
    if (slot == ML_NO_SLOT)
        return;
    s->page[slot] = ML_NO_PAGE;
    s->free[s->n_free++] = slot;
}

void ml_state_slots_keep(ml_state_slots *s, int32_t slot, int32_t page) {
    ML_BUG_IF(s->of_page[page] != ML_NO_SLOT);
    s->of_page[page] = slot;
    s->page[slot] = page;
    s->used[slot] = ++s->clock;
}

int32_t ml_state_slots_of_page(ml_state_slots *s, int32_t page, bool use) {
    int32_t slot = s->of_page[page];
    if (use && slot != ML_NO_SLOT)
        s->used[slot] = ++s->clock;
    return slot;
}

void ml_state_slots_leave(ml_state_slots *s, int32_t page) {
    ml_state_slots_drop(s, s->of_page[page]);
    s->of_page[page] = ML_NO_SLOT;
}
