/* scheduler.c - the scheduler: admission, preemption, the batch of a step, its launch. */
#include "base/bug.h"
#include "base/clock.h"
#include "engine/engine_priv.h"

/* --- pages -------------------------------------------------------------------- */

void ml_engine_free_pages(ml_engine *e, ml_request *r) {
    ml_tree_close(e, r);
    while (r->n_page)
        ml_prefix_cache_unref(ml_pages_of(e, r), r->page[--r->n_page]);
    ml_state_slots_drop(ml_slots_of(e, r), r->slot);
    r->slot = ML_NO_SLOT;
    r->n_shared = r->n_kv = 0;
    r->mixed = false;
    e->group[r->group].full = false;
}

void ml_engine_preempt(ml_engine *e, ml_request *r) {
    ml_engine_free_pages(e, r);
    ml_list_remove(&e->running, r);
    ml_list_insert(&e->waiting, r);
    r->n_preempt++;
    e->stats.n_preempt++;
}

/* The tree has a root for each adapter. */
static int32_t parent_of(const ml_request *r, int32_t page) {
    return page ? r->page[page - 1] : ML_NO_PAGE - r->params.adapter_id;
}

/* Prefix cache match; the last token and rows that score prompts are always computed. */
static void match_prefix(ml_engine *e, ml_request *r) {
    int32_t limit = r->n_token - 1, next_score = r->prompt_from + r->n_prompt_scored;

    if (e->opts.no_prefix_cache)
        return;
    if (next_score < r->params.n_prompt && next_score - 1 < limit)
        limit = next_score - 1;
    while ((r->n_page + 1) * ML_PAGE <= limit) {
        int32_t at = ml_prefix_cache_find(ml_pages_of(e, r), parent_of(r, r->n_page),
                                          r->token + (size_t)r->n_page * ML_PAGE);
        if (at == ML_NO_PAGE)
            break;
        ml_prefix_cache_ref(ml_pages_of(e, r), at);
        r->page[r->n_page++] = at;
    }
    r->n_shared = r->n_page;
    r->n_kv = r->n_page * ML_PAGE;
}

void ml_engine_cache_pages(ml_engine *e, ml_request *r, int32_t n, bool settled) {
    if (e->opts.no_prefix_cache || r->mixed)
        return;
    while ((r->n_shared + 1) * ML_PAGE <= n) {
        int32_t k = r->n_shared, parent = parent_of(r, k);
        const int32_t *token = r->token + (size_t)k * ML_PAGE;
        int32_t theirs = ml_prefix_cache_find(ml_pages_of(e, r), parent, token);
        if (theirs != ML_NO_PAGE && !settled)
            return;
        if (theirs != ML_NO_PAGE) {
            ml_prefix_cache_ref(ml_pages_of(e, r), theirs);
            ml_prefix_cache_unref(ml_pages_of(e, r), r->page[k]);
            r->page[k] = theirs;
        } else {
            ml_prefix_cache_insert(ml_pages_of(e, r), r->page[k], parent, token);
        }
        r->n_shared++;
    }
}

bool ml_engine_alloc_pages(ml_engine *e, ml_request *r, int32_t n) {
    while (r->n_page < ml_kv_pages_for(n)) {
        int32_t page = ml_prefix_cache_alloc(ml_pages_of(e, r));
        if (page == ML_NO_PAGE)
            return false;
        r->page[r->n_page++] = page;
    }
    return true;
}

/* Allocates running requests' next pages, oldest first; preempts the youngest if short. */
static void grow(ml_engine *e) {
    ml_request *next;
    for (ml_request *r = e->running.first; r; r = next) {
        while (!ml_engine_alloc_pages(e, r, r->n_token) && ml_dp_youngest(e, r->group) != r)
            ml_engine_preempt(e, ml_dp_youngest(e, r->group));
        next = r->next;
        if (r->n_page < ml_kv_pages_for(r->n_token))
            ml_engine_preempt(e, r);
    }
}

/* --- admission ---------------------------------------------------------------- */

/* r or the next in the queue that its group may admit: while draining, only one that began. */
static ml_request *may_begin(const ml_engine *e, ml_request *r) {
    while (r && (e->group[r->group].full || (e->draining && !ml_has_begun(r))))
        r = r->next;
    return r;
}

bool ml_engine_may_admit(const ml_engine *e) {
    return may_begin(e, e->waiting.first);
}

/* LATER: after the step being scheduled, it can reuse a longer prefix; or the batch has as
 * many adapters as it may have. */
typedef enum admission { ADMITTED, LATER, FULL } admission;

/* Whether the adapter of a request is among those of the running ones, or may join them. */
static bool has_adapter_room(const ml_engine *e, const ml_request *r) {
    int32_t n = 0;

    for (const ml_request *x = e->running.first; e->opts.max_adapters && x; x = x->next) {
        const ml_request *y = e->running.first;
        if (x->params.adapter_id == r->params.adapter_id)
            return true;
        while (y->params.adapter_id != x->params.adapter_id)
            y = y->next;
        n += y == x;
    }
    return !e->opts.max_adapters || n < e->opts.max_adapters;
}

static admission admit(ml_engine *e, ml_request *r) {
    int32_t need, n_running = ml_dp_running(e, r->group);

    if (n_running >= ml_dp_share(e->spec, e->opts.max_running))
        return FULL;
    if (!has_adapter_room(e, r))
        return LATER;
    match_prefix(e, r);
    if (!ml_state_match(e, r)) {
        ml_engine_free_pages(e, r);
        return LATER;
    }
    /* One spare page per running request, lest this one is preempted at once. */
    need = ml_kv_pages_for(r->n_token) - r->n_page + n_running;
    if (n_running && ml_prefix_cache_available(ml_pages_of(e, r)) < need) {
        ml_engine_free_pages(e, r);
        return FULL;
    }
    ml_list_remove(&e->waiting, r);
    ml_list_insert(&e->running, r);
    ML_BUG_IF(!ml_engine_alloc_pages(e, r, r->n_token)); /* one context always fits */
    ml_state_begin(e, r);
    if (!ml_has_begun(r)) {
        r->queued_s = ml_clock_s() - r->submitted_s;
        r->n_cached = r->n_kv < r->params.n_prompt ? r->n_kv : r->params.n_prompt;
        e->stats.n_cached_token += r->n_cached;
        e->stats.n_prompt_token += r->params.n_prompt;
    }
    return ADMITTED;
}

/* --- the batch ---------------------------------------------------------------- */

/* A request's rows in this step: all that remain, within the step's budget.  The row before
 * each prompt token from next_score on has the logits that score it. */
static int32_t rows_of(const ml_engine *e, const ml_request *r) {
    int32_t n = r->n_token - r->n_kv;
    int32_t next_score = r->prompt_from + r->n_prompt_scored;

    if (n > 1 && n > e->chunk_left)
        n = e->chunk_left;
    n = ml_state_rows(e, r, n);
    if (next_score < r->params.n_prompt && next_score - 1 - r->n_kv + e->score_left < n)
        n = next_score - 1 - r->n_kv + e->score_left;
    return n;
}

static void add_rows(ml_engine *e, ml_batch_entry *entry, const int32_t *target) {
    const ml_request *r = entry->r;
    int32_t n = entry->n_row + entry->n_draft, each = ml_draft_flat(e, entry) ? 1 : n;

    entry->row = e->batch.rows.n_token;
    entry->draft_row = entry->row + entry->n_row;
    for (int32_t i = 0; i < n; i += each)
        ml_dp_add_rows(e, r, r->page, r->token + r->n_kv + i, target + i, each,
                       r->n_kv + i);
}

static void add_entry(ml_engine *e, ml_request *r, int32_t n) {
    ml_batch_entry *entry = &e->step->entry[e->step->n_entry++];
    int32_t next_score = r->prompt_from + r->n_prompt_scored, *target = e->target;

    *entry = (ml_batch_entry){ .r = r, .first = r->n_kv, .n_row = n, .backup = ML_NO_SLOT };
    for (int32_t i = 0; i < n; i++) {
        int32_t scored = r->n_kv + i + 1;
        bool score = scored >= next_score && scored < r->params.n_prompt;
        bool draw = scored == r->n_token && r->n_token < r->cap;
        target[i] = score || draw ? ML_TARGET_NONE : ML_TARGET_SKIP;
        entry->n_score += score;
        entry->draws = draw;
    }
    ml_engine_cache_pages(e, r, r->n_kv + n, false);
    if (entry->draws && e->opts.draft.n)
        ml_draft_propose(e, entry);
    for (int32_t i = 0; i < entry->n_draft; i++)
        target[n + i] = ML_TARGET_NONE;
    add_rows(e, entry, target);
    ml_tree_add_rows(e, entry);
    ml_state_schedule_rows(e, entry);
    e->score_left -= entry->n_score;
    if (r->n_token - r->n_kv > 1)
        e->chunk_left -= n;
}

/* Admits a group's waiting requests in the order of arrival while its prefill budget lasts. */
static void admit_waiting(ml_engine *e, int32_t group) {
    ml_request *r = may_begin(e, e->waiting.first), *next;
    int32_t n;

    for (; r && e->chunk_left > 0; r = next) {
        admission a;
        next = may_begin(e, r->next);
        if (r->group != group)
            continue;
        a = admit(e, r);
        e->group[group].full = a == FULL;
        if (a == FULL)
            return;
        if (a == ADMITTED && (n = rows_of(e, r)) > 0)
            add_entry(e, r, n);
    }
}

/* Decoding requests first, then running prefills in the order of arrival, then new ones. */
static void fill_group(ml_engine *e, int32_t group) {
    ml_request *r;
    int32_t n;

    e->group[group].full = false;
    e->chunk_left = ml_dp_share(e->spec, e->opts.chunk);
    for (r = e->running.first; r; r = r->next)
        if (r->group == group && r->n_token - r->n_kv == 1)
            add_entry(e, r, 1);
    for (r = e->running.first; r; r = r->next)
        if (r->group == group && r->n_token - r->n_kv > 1 && (n = rows_of(e, r)) > 0)
            add_entry(e, r, n);
    admit_waiting(e, group);
}

static void fill_batch(ml_engine *e) {
    ml_dp_clear(e);
    e->step->n_entry = 0;
    e->score_left = e->batch.caps.n_loss - e->opts.max_running - ml_draft_room(&e->opts);
    ml_draft_begin_step(e);
    for (int32_t group = 0; group < e->n_group; group++)
        fill_group(e, group);
}

/* --- the draws ---------------------------------------------------------------- */

static void score_at(const ml_request *r, const ml_scores *s, int32_t i, ml_draw *d) {
    d->top_id = s->top_id + (size_t)i * (size_t)r->params.n_top;
    d->top_logprob = s->top_logprob + (size_t)i * (size_t)r->params.n_top;
    d->also_logprob = s->also_logprob + (size_t)i * (size_t)r->params.n_also;
    if (r->params.also_each)
        d->also += (size_t)i * (size_t)r->params.n_also;
}

/* The draw of the token after the first n, from row `loss` of the logits. */
static ml_draw draw_of(const ml_engine *e, const ml_request *r, int32_t n, int32_t loss) {
    return (ml_draw){ .logits =
                          ml_plan_logits(e->plan) + (size_t)loss * (size_t)e->spec->n_vocab,
                      .opts = &r->params.draw,
                      .history = r->token,
                      .n_history = n,
                      .n_prompt = r->params.n_prompt,
                      .given = -1,
                      .n_top = r->params.n_top,
                      .also = r->params.also,
                      .n_also = r->params.n_also };
}

/* The draw of a request's next token, or of one after draft tokens, which a request with a
 * grammar does not have.  k: the place of its results. */
static ml_draw next_draw(const ml_engine *e, ml_request *r, int32_t n, int32_t k,
                         int32_t loss) {
    ml_draw d = draw_of(e, r, n, loss);
    bool ends = r->matcher && ml_request_mask(r);

    if (r->matcher && !r->unmatched[0])
        d.allowed = r->mask;
    if (n - r->params.n_prompt < r->params.min_new && !ends) {
        d.ban = r->end_id;
        d.n_ban = r->n_end;
    }
    score_at(r, &r->answer, k, &d);
    if (r->params.support)
        d.support = r->answer.support + (size_t)k * r->answer.support_room;
    return d;
}

/* The draws after the draft tokens of branches; their results follow those of the entry's
 * own rows. */
static void prepare_branches(ml_engine *e, const ml_batch_entry *entry) {
    ml_inflight_step *f = e->step;
    ml_request *r = entry->r;
    int32_t place = 1 + entry->n_draft;

    for (int32_t i = 0; entry->n_tree_row && i < r->n_branch; i++)
        for (int32_t k = 1; k <= r->branch[i].n_draft; k++, f->n_draw++) {
            f->draw[f->n_draw] = next_draw(e, r, r->n_token + k, place++, f->n_draw);
            f->draw[f->n_draw].history = r->branch[i].token;
        }
}

static void prepare_draws(ml_engine *e) {
    ml_inflight_step *f = e->step;
    ml_draw *d = f->draw;

    f->n_draw = 0;
    for (int32_t i = 0; i < f->n_entry; i++) {
        const ml_batch_entry *entry = &f->entry[i];
        ml_request *r = entry->r;
        int32_t n = r->n_token + entry->unknown;
        for (int32_t k = 0; k < entry->n_score; k++, f->n_draw++) {
            int32_t at = r->n_prompt_scored + k;
            d[f->n_draw] = draw_of(e, r, n, f->n_draw);
            d[f->n_draw].given = r->token[r->prompt_from + at];
            score_at(r, &r->prompt, at, &d[f->n_draw]);
        }
        for (int32_t k = 0; entry->draws && k <= entry->n_draft; k++, n++) {
            d[f->n_draw] = next_draw(e, r, n, k, f->n_draw);
            f->n_draw++;
        }
        prepare_branches(e, entry);
    }
    ML_BUG_IF(f->n_draw != e->batch.rows.n_loss);
}

/* --- the step ----------------------------------------------------------------- */

/* Launches the scheduled step on the device. */
static void begin(ml_engine *e) {
    ml_run run = { .weights = e->weights, .kv = &e->kv, .rows = &e->batch.rows };
    double forward = ml_clock_s(), sample;

    e->step->followed =
        e->draft.net.on && !ml_draft_fits(e) && !ml_step_has_drafts(e->step);
    ml_dp_count_rows(e);
    ml_routing_record_bind(&e->routing_record, &run);
    ml_plan_forward(e->plan, &run);
    ml_routing_record_store(&e->routing_record, &e->batch.rows);
    if (e->step->followed && !e->draft.net.spec.mtp)
        ml_draft_net_follow(e);
    sample = ml_clock_s();
    prepare_draws(e);
    e->be->ops->sample(e->be->stream, e->step->draw, e->step->n_draw, e->spec->n_vocab,
                       e->sample_scratch.ptr, e->drawn.ptr);
    if (e->step->followed && e->draft.net.spec.mtp)
        ml_draft_net_follow(e);
    e->stats.model_s += sample - forward;
    e->stats.sample_s += ml_clock_s() - sample;
}

static void record_draws(const ml_engine *e, double begin_s, double end_s) {
    if (e->opts.spans)
        ml_timeline_add(e->opts.spans,
                        &(ml_time_span){ .name = "draw",
                                         .track = ML_TRACK_ROLLOUT,
                                         .layer = -1,
                                         .begin_s = begin_s,
                                         .end_s = end_s },
                        1);
}

/* Waits for a step's draws and processes its outputs. */
static void complete_step(ml_engine *e, const ml_inflight_step *f) {
    const ml_draw *d = f->draw;
    double begin_s = ml_clock_s(), end_s;
    ml_err err;

    e->be->ops->sampled(e->be->stream, f->draw, f->n_draw);
    end_s = ml_clock_s();
    e->stats.sample_s += end_s - begin_s;
    e->stats.n_step++;
    record_draws(e, begin_s, end_s);
    if (ml_plan_check(e->plan, &err) != ML_OK) { /* the draws are of undefined logits */
        ml_engine_abort_all(e, err.msg);
        return;
    }
    for (int32_t i = 0; i < f->n_entry; i++) {
        ml_batch_entry *entry = &f->entry[i];
        const ml_draw *next =
            d + entry->n_score + entry->draws + entry->n_draft + entry->n_tree_draft;
        if (entry->r)
            ml_engine_process_output(e, entry, d);
        d = next;
    }
    if (!f->followed)
        ml_draft_net_run(e, f);
}

void ml_engine_complete_pending(ml_engine *e) {
    const ml_inflight_step *f = e->pending;

    e->pending = NULL;
    if (f)
        complete_step(e, f);
}

static ml_inflight_step *other(ml_engine *e, const ml_inflight_step *f) {
    return &e->inflight[f == &e->inflight[0]];
}

/* The two-slot overlap pipeline, call by call; e->step is the slot being scheduled:
 *   call  schedules and launches        waits for and processes  pending on return
 *   1     step 1 in [0], step 2 in [1]  step 1, while 2 runs     &inflight[1] (step 2)
 *   2     step 3 in [0]                 step 2, while 3 runs     &inflight[0] (step 3)
 *   3     none: a request may join      step 3                   NULL
 *   4     step 4 in [0], step 5 in [1]  step 4, while 5 runs     &inflight[1] (step 5) */
bool ml_engine_step(ml_engine *e) {
    double start = ml_clock_s();
    ml_inflight_step *now = e->pending;

    if (!e->has_kv)
        return false;
    if (!now) {
        now = e->step = &e->inflight[0];
        grow(e);
        fill_batch(e);
        if (!now->n_entry)
            return false;
        begin(e);
    }
    e->pending = NULL;
    e->step = other(e, now);
    if (ml_engine_schedule_overlapped(e, now)) {
        begin(e);
        e->pending = e->step;
        e->stats.n_overlapped++;
    }
    complete_step(e, now);
    e->stats.step_s += ml_clock_s() - start;
    return true;
}
