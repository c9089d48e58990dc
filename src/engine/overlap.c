/* overlap.c - overlap scheduling: the step after one whose draws are not known yet.
 *
 * While the device computes step N, the host schedules step N + 1.  If every running
 * request draws a token in step N, its next row is known except for the token id, which
 * step N + 1 reads from device memory (ML_DEVICE_TOKEN).  So the device never waits for the
 * host, and no token makes a round trip.  The host learns late which requests ended in step
 * N: their rows in step N + 1 are computed and discarded. */
#include "base/bug.h"
#include "engine/engine_priv.h"

/* Whether its draws depend on tokens that the host must know (penalties, masks), or return results
 * that the next draw would overwrite (top-n log-probs). */
static bool needs_host(const ml_request *r) {
    const ml_draw_opts *o = &r->params.draw;
    return o->repetition != 1.0f || o->frequency != 0.0f || o->presence != 0.0f ||
           r->params.n_top || r->params.n_also || r->params.support || r->matcher;
}

/* Whether its limits allow a token after the one being drawn; a stop may end it earlier. */
static bool continues(const ml_request *r) {
    return r->n_token + 1 < r->cap;
}

static bool records_routing(const ml_engine *e) {
    for (int i = 0; i < ML_N_ROUTING; i++)
        if (e->opts.routed[i])
            return true;
    return false;
}

/* Whether each group has pages for the next tokens of its requests. */
static bool has_pages(const ml_engine *e, const ml_inflight_step *now) {
    for (int32_t g = 0; g < e->n_group; g++) {
        int32_t n_page = 0;
        for (int32_t i = 0; i < now->n_entry; i++) {
            const ml_request *r = now->entry[i].r;
            if (r && r->group == g && continues(r))
                n_page += ml_kv_pages_for(r->n_token + 1) - r->n_page;
        }
        if (n_page > ml_prefix_cache_available(&e->group[g].prefix_cache))
            return false;
    }
    return true;
}

/* No waiting request could join, no prefill is unfinished, and there are pages for all. */
static bool can_overlap(const ml_engine *e, const ml_inflight_step *now) {
    int32_t n_row = 0, n_entry = 0;

    if (!e->be->async || e->opts.no_overlap || ml_draft_fits(e) ||
        ml_step_has_drafts(now) || records_routing(e) || e->opts.dump || e->opts.spans ||
        ml_engine_may_admit(e))
        return false;
    for (int32_t i = 0; i < now->n_entry; i++) {
        const ml_request *r = now->entry[i].r;
        if (!r)
            continue;
        n_entry++;
        if (!now->entry[i].draws || needs_host(r) || ml_state_is_copied(e, &now->entry[i]))
            return false;
        if (!continues(r))
            continue;
        n_row++;
    }
    return n_row && n_entry == e->running.n && has_pages(e, now);
}

bool ml_engine_schedule_overlapped(ml_engine *e, const ml_inflight_step *now) {
    const int32_t target = ML_TARGET_NONE;
    ml_inflight_step *next = e->step;
    int32_t draw = 0;

    if (!can_overlap(e, now))
        return false;
    ml_dp_clear(e);
    next->n_entry = 0;
    for (int32_t i = 0; i < now->n_entry; i++) {
        const ml_batch_entry *entry = &now->entry[i];
        ml_request *r = entry->r;
        draw += entry->n_score;
        if (r && continues(r)) {
            const int32_t token = ML_DEVICE_TOKEN(draw);
            ML_BUG_IF(!ml_engine_alloc_pages(e, r, r->n_token + 1));
            next->entry[next->n_entry++] = (ml_batch_entry){ .r = r,
                                                             .first = r->n_token,
                                                             .row = e->batch.rows.n_token,
                                                             .n_row = 1,
                                                             .draws = true,
                                                             .unknown = 1,
                                                             .expected = ML_NO_PAGE,
                                                             .backup = ML_NO_SLOT };
            ml_dp_add_rows(e, r, r->page, &token, &target, 1, r->n_token);
        }
        draw += entry->draws;
    }
    return true;
}
