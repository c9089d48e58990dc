/* follow.c - the step behind one whose draws are not known yet.
 *
 * While a device computes, the host puts together what comes next: where every request that runs
 * has drawn a token, its next row is known but for the token, and that lies in the device's memory
 * by the time it is read.  So the device never waits for the host, nor a token for a trip there
 * and back.  What the host learns late is who has ended: such a row was computed for nobody. */
#include "base/bug.h"
#include "engine/engine_priv.h"

/* Does a draw of it wait for tokens that the host must see, or are there results of one draw that
 * the next would overwrite? */
static bool needs_host(const ml_request *r) {
    const ml_draw_opts *o = &r->ask.draw;
    return o->repetition != 1.0f || o->frequency != 0.0f || o->presence != 0.0f ||
           r->ask.n_top || r->ask.n_also;
}

/* Does it go on behind the token being drawn, as far as can be said now? */
static bool goes_on(const ml_request *r) {
    return r->n_token + 1 < r->cap;
}

static bool keeps_routes(const ml_engine *e) {
    for (int i = 0; i < ML_ROUTES; i++)
        if (e->opts.routed[i])
            return true;
    return false;
}

/* Nobody waits who could join, nobody is in the middle of a prompt, and there are pages for all. */
static bool may_follow(const ml_engine *e, const ml_flight *now) {
    int32_t n_page = 0, n_row = 0, n_lane = 0;

    if (!e->be->ahead || e->opts.no_ahead || e->slots.n || keeps_routes(e) ||
        e->opts.dump || e->opts.spans || ml_engine_may_admit(e))
        return false;
    for (int32_t i = 0; i < now->n_lane; i++) {
        const ml_request *r = now->lane[i].r;
        if (!r)
            continue;
        n_lane++;
        if (!now->lane[i].draws || needs_host(r))
            return false;
        if (!goes_on(r))
            continue;
        n_row++;
        n_page += ml_pages_for(r->n_token + 1) - r->n_page;
    }
    return n_row && n_lane == e->running.n && n_page <= ml_pages_available(&e->pages);
}

bool ml_engine_follow(ml_engine *e, const ml_flight *now) {
    const int32_t target = ML_TARGET_NONE;
    ml_flight *next = e->step;
    int32_t draw = 0;

    if (!may_follow(e, now))
        return false;
    ml_batch_clear(&e->batch);
    next->n_lane = 0;
    for (int32_t i = 0; i < now->n_lane; i++) {
        const ml_lane *lane = &now->lane[i];
        ml_request *r = lane->r;
        draw += lane->n_score;
        if (r && goes_on(r)) {
            const int32_t token = ML_DRAWN(draw);
            ML_BUG_IF(!ml_engine_take_pages(e, r, r->n_token + 1));
            ml_batch_add(&e->batch, &token, &target, 1, r->n_token, r->page);
            next->lane[next->n_lane++] = (ml_lane){
                .r = r, .n_row = 1, .draws = true, .unknown = 1, .expected = ML_NO_PAGE
            };
        }
        draw += lane->draws;
    }
    return true;
}
