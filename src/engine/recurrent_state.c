/* recurrent_state.c - when the state of recurrent layers is copied, and its reuse.
 *
 * Attention keeps the keys of every token; a recurrent layer has only the state after the
 * latest.  So a request can continue from a cached prefix only where the state was copied:
 * after the last page that a prompt fills, at the ends of prefill chunks, and every KEEP
 * tokens of an answer. */
#include "base/bug.h"
#include "engine/engine_priv.h"

enum { KEEP = 4 * ML_PAGE };

static bool keeps_state(const ml_engine *e) {
    return e->group->slots.n > 0;
}

static void copy_state(const ml_engine *e, const ml_request *r, int32_t to, int32_t from) {
    if (ml_is_own(e, r))
        ml_kv_copy_slot(&e->kv, e->spec, e->be, to, from);
}

bool ml_state_match(ml_engine *e, ml_request *r) {
    int32_t n = r->n_page;

    if (!keeps_state(e))
        return true;
    while (n &&
           ml_state_slots_of_page(ml_slots_of(e, r), r->page[n - 1], false) == ML_NO_SLOT)
        if (ml_slots_of(e, r)->expected[r->page[--n]])
            return false;
    while (r->n_page > n)
        ml_prefix_cache_unref(ml_pages_of(e, r), r->page[--r->n_page]);
    r->n_shared = n;
    r->n_kv = n * ML_PAGE;
    return true;
}

void ml_state_begin(ml_engine *e, ml_request *r) {
    int32_t from = ML_NO_SLOT;

    if (!keeps_state(e))
        return;
    if (r->n_kv)
        from =
            ml_state_slots_of_page(ml_slots_of(e, r), r->page[r->n_kv / ML_PAGE - 1], true);
    r->slot = ml_state_slots_take(ml_slots_of(e, r));
    ML_BUG_IF(r->slot == ML_NO_SLOT ||
              r->slot == from); /* one per running request, plus copies */
    if (r->n_kv)
        copy_state(e, r, r->slot, from);
}

int32_t ml_state_rows(const ml_engine *e, const ml_request *r, int32_t n) {
    int32_t end = r->n_kv + n, last = (r->n_token - 1) / ML_PAGE * ML_PAGE;

    if (!keeps_state(e) || e->opts.no_prefix_cache || r->mixed)
        return n;
    if (end == r->n_token) /* up to the last full page now, the rest in the next step */
        return last > r->n_kv ? last - r->n_kv : n;
    end = end / ML_PAGE * ML_PAGE;
    return end > r->n_kv ? end - r->n_kv : n;
}

/* Of the state after n tokens, at the end of some rows. */
static bool is_worth_keeping(int32_t n, int32_t n_row) {
    return n % (n_row > 1 ? ML_PAGE : KEEP) == 0;
}

bool ml_state_is_copied(const ml_engine *e, const ml_batch_entry *entry) {
    return keeps_state(e) && !e->opts.no_prefix_cache &&
           is_worth_keeping(entry->r->n_token, entry->n_row);
}

/* The page that ends at token n if the state after it should be copied, or ML_NO_PAGE. */
static int32_t page_to_keep(ml_engine *e, const ml_batch_entry *entry, int32_t n) {
    const ml_request *r = entry->r;

    if (!keeps_state(e) || !is_worth_keeping(n, entry->n_row) || r->n_shared * ML_PAGE != n)
        return ML_NO_PAGE;
    return ml_state_slots_of_page(ml_slots_of(e, r), r->page[n / ML_PAGE - 1], false) ==
                   ML_NO_SLOT
               ? r->page[n / ML_PAGE - 1]
               : ML_NO_PAGE;
}

void ml_state_schedule_rows(ml_engine *e, ml_batch_entry *entry) {
    entry->expected = ML_NO_PAGE;
    if (!keeps_state(e))
        return;
    if (!entry->n_draft)
        entry->expected = page_to_keep(e, entry, entry->r->n_kv + entry->n_row);
    if (entry->expected != ML_NO_PAGE)
        ml_slots_of(e, entry->r)->expected[entry->expected] = true;
}

bool ml_state_may_draft(ml_engine *e, ml_batch_entry *entry) {
    const ml_request *r = entry->r;

    if (!keeps_state(e))
        return true;
    if (page_to_keep(e, entry, r->n_kv + entry->n_row) != ML_NO_PAGE)
        return false;
    entry->backup = ml_state_slots_take(ml_slots_of(e, r));
    if (entry->backup == ML_NO_SLOT)
        return false;
    copy_state(e, r, entry->backup, r->slot);
    return true;
}

void ml_state_accept(ml_engine *e, const ml_batch_entry *entry) {
    if (entry->backup == ML_NO_SLOT)
        return;
    if (entry->n_right < entry->n_draft) {
        copy_state(e, entry->r, entry->r->slot, entry->backup);
        entry->r->n_kv = entry->first;
    }
    ml_state_slots_drop(ml_slots_of(e, entry->r), entry->backup);
}

void ml_state_finish(ml_engine *e, const ml_batch_entry *entry) {
    int32_t page, slot;

    if (entry->n_draft) /* it is not the state after n_kv tokens */
        return;
    page = page_to_keep(e, entry, entry->r->n_kv);
    if (entry->expected != ML_NO_PAGE)
        ml_slots_of(e, entry->r)->expected[entry->expected] = false;
    if (page == ML_NO_PAGE)
        return;
    slot = ml_state_slots_take(ml_slots_of(e, entry->r));
    if (slot == ML_NO_SLOT) /* all slots are running states */
        return;
    copy_state(e, entry->r, slot, entry->r->slot);
    ml_state_slots_keep(ml_slots_of(e, entry->r), slot, page);
}
