#include "rl/rollout/rollout_gen.h"

#include "rl/rollout/prompt_results.h"

/* A rollout while it is being generated. */
typedef struct batch {
    ml_gen_rollout *g;
    ml_group_set set;
    ml_arena *arena;
    /* [n_ended] all samples of these groups have ended, and they are undecided; ordered by
     * the step in which they ended, then by number */
    ml_gen_group *ended, **last_ended;
    int64_t n_ended, n_pending, n_kept; /* pending: undecided groups, with the ended ones */
    int64_t n_incomplete;               /* dropped because a sample has no reward */
    ml_drop_reasons reasons;
    ml_status st; /* of failures on the generator's thread */
    ml_err *err;
} batch;

/* --- starting groups ---------------------------------------------------------- */

static int64_t wanted(const batch *r) {
    return r->g->feed.batch;
}

static ml_gen_group *new_group(batch *r, ml_group id) {
    r->n_pending++;
    return ml_group_set_add(&r->set, id, r->arena);
}

/* Continues groups of the partial buffer, at most *n; *n becomes their number. */
static ml_status start_held(batch *r, int64_t *n, ml_err *err) {
    int64_t most = *n;
    int32_t size = r->g->partial_buffer.n_per_group;
    ml_status st = ML_OK;

    if (r->g->buffer_filter)
        st = ml_partial_buffer_select(&r->g->partial_buffer, r->g->buffer_filter, &most,
                                      err);
    for (*n = 0; *n < most && st == ML_OK; ++*n) {
        const ml_sample *s = ml_partial_buffer_take(&r->g->partial_buffer);
        if (!s)
            break;
        st = ml_gen_group_resume(
            new_group(r, (ml_group){ s->row, s->group, s->index, size }), s, r->g->mask_old,
            err);
    }
    return st;
}

static ml_status start_new(batch *r, int64_t n, ml_err *err) {
    ml_group *id = ML_NEW(r->arena, ml_group, n + 1);
    ml_status st = ML_OK;

    n = ml_data_source_get(r->g->feed.source, id, n);
    for (int64_t i = 0; i < n && st == ML_OK; i++)
        st = ml_gen_group_start(new_group(r, id[i]), (uint64_t)id[i].first_index, err);
    return st;
}

/* Starts over_sampling groups at once, buffered ones first.  As soon as there is a choice of
 * groups to keep, their order must not depend on timing. */
static ml_status start_more(void *ud, ml_err *err) {
    batch *r = ud;
    int64_t n = r->g->over_sampling ? r->g->over_sampling : wanted(r), n_held = n;
    ml_status st = start_held(r, &n_held, err);

    if (st == ML_OK && n_held < n)
        st = start_new(r, n - n_held, err);
    r->set.lockstep = r->g->filter || n < wanted(r) || r->set.groups.n > wanted(r);
    if (st == ML_OK && r->n_pending == 0)
        st = ml_fail(err, ML_EFORMAT, "%s contains no prompts",
                     r->g->feed.dataset->opts.path);
    return st;
}

/* --- deciding ----------------------------------------------------------------- */

static void find_ended(batch *r) {
    for (ml_gen_group *g = r->set.groups.first; g; g = g->next)
        if (!g->ended && ml_gen_group_state(g) >= ML_GROUP_GRADING) {
            g->ended = true;
            *r->last_ended = g;
            r->last_ended = &g->next_ended;
            r->n_ended++;
        }
}

/* Whether the decisions about the ended groups can change what the next step computes: it
 * may need more groups, if all of these are dropped, or none, if all of them are kept. */
static bool must_know(const batch *r) {
    return r->n_pending - r->n_ended < wanted(r) - r->n_kept ||
           r->n_kept + r->n_ended >= wanted(r);
}

/* Decides about a group that is DONE; drops are counted. */
static void decide_one(batch *r, ml_gen_group *g) {
    char reason[ML_REASON_CAP];

    r->st = ml_gen_group_decide(g, r->g->filter, reason, r->err);
    if (g->fate != ML_GROUP_KEPT && reason[0])
        ml_drop_reasons_count(&r->reasons, reason);
    r->n_incomplete += g->fate == ML_GROUP_ABORTED || g->fate == ML_GROUP_NO_REWARD;
    if (r->st == ML_OK)
        r->st = ml_group_set_count(&r->set, g, wanted(r), r->err);
}

/* Decides about ended groups in their order.  Without a filter a group is kept as soon as it
 * has ended, and its rewards are looked at when enough are kept (settle).  A filter needs
 * the rewards; the next step begins without them unless they can change what it computes. */
static void judge(batch *r) {
    ml_gen_group *g;

    find_ended(r);
    while ((g = r->ended) != NULL && r->st == ML_OK) {
        if (r->n_kept >= wanted(r)) {
            g->fate = ML_GROUP_SURPLUS;
        } else if (!r->g->filter) {
            g->fate = ML_GROUP_KEPT;
        } else {
            if (ml_gen_group_state(g) != ML_GROUP_DONE && !must_know(r))
                return;
            ml_gen_group_wait(g);
            decide_one(r, g);
        }
        r->ended = g->next_ended;
        if (!r->ended)
            r->last_ended = &r->ended;
        r->n_ended--;
        r->n_pending--;
        r->n_kept += g->fate == ML_GROUP_KEPT;
    }
}

static bool all_graded(batch *r) {
    for (ml_gen_group *g = r->set.groups.first; g; g = g->next)
        if (g->fate == ML_GROUP_KEPT && ml_gen_group_state(g) != ML_GROUP_DONE)
            return false;
    return true;
}

/* When enough groups are kept, drops those without a reward for each sample; they are
 * replaced.  In lockstep, surplus groups must not go on while rewards are computed.
 * Otherwise nothing is left to generate, and the generator's thread stays free for its other
 * work: requests of others, engines that join the run.  False: rewards are missing; the
 * policy is called again when they are there. */
static bool settle(batch *r) {
    if (r->n_kept >= wanted(r) && !r->g->filter) {
        if (!r->set.lockstep && !all_graded(r))
            return false;
        for (ml_gen_group *g = r->set.groups.first; g && r->st == ML_OK; g = g->next) {
            if (g->fate != ML_GROUP_KEPT)
                continue;
            ml_gen_group_wait(g);
            decide_one(r, g);
            r->n_kept -= g->fate != ML_GROUP_KEPT;
        }
    }
    if (r->st == ML_OK && r->n_kept == 0 && r->n_incomplete >= wanted(r))
        r->st = ml_fail(r->err, ML_EPEER,
                        "no group of the rollout has a reward for each of its samples; see "
                        "the warnings above");
    return true;
}

/* The policy, on the generator's thread, between steps. */
static void decide(void *ud) {
    batch *r = ud;

    judge(r);
    if (r->st == ML_OK && atomic_load(&r->g->cancelled))
        r->st = ml_fail(r->err, ML_EAGAIN, "the rollout was cancelled");
    if (r->st == ML_OK && !settle(r))
        return;
    while (r->st == ML_OK && r->n_kept < wanted(r) && r->n_pending < wanted(r) - r->n_kept)
        r->st = start_more(r, r->err);
    if (r->st != ML_OK || r->n_kept >= wanted(r))
        ml_group_set_close(&r->set);
}

/* --- the rollout -------------------------------------------------------------- */

static const ml_sample **new_list(const batch *r) {
    int32_t size = r->g->feed.n_per_prompt;

    return ML_NEW(r->arena, const ml_sample *, r->set.groups.n *size + 1);
}

static void gather(batch *r, ml_rollout_batch *out) {
    uint8_t *kept;

    out->n = ml_group_list_kept(&r->set.groups, NULL);
    out->sample = ML_NEW(r->arena, const ml_sample *, out->n + 1);
    ml_group_list_kept(&r->set.groups, out->sample);
    out->n_drawn = ml_group_list_drawn(&r->set.groups);
    out->ended = new_list(r); /* kept or not */
    out->kept = kept =
        ML_NEW(r->arena, uint8_t, r->set.groups.n * r->g->feed.n_per_prompt + 1);
    for (const ml_gen_group *g = r->set.groups.first; g; g = g->next)
        for (int32_t k = 0; g->fate != ML_GROUP_UNDECIDED && k < g->id.n_sample; k++) {
            kept[out->n_ended] = g->fate == ML_GROUP_KEPT;
            out->ended[out->n_ended++] = &g->task[k]->sample;
        }
}

/* Stores the undecided groups in the partial buffer, for the next rollout. */
static void hold(batch *r) {
    const ml_sample **s = new_list(r);
    int64_t n = 0;

    for (const ml_gen_group *g = r->set.groups.first; g; g = g->next)
        for (int32_t k = 0; g->fate == ML_GROUP_UNDECIDED && k < g->id.n_sample; k++)
            s[n++] = &g->task[k]->sample;
    ml_partial_buffer_put(&r->g->partial_buffer, s, n / r->g->partial_buffer.n_per_group);
}

/* The batch's share of the engine's seconds and drafts: the difference of two calls. */
static void count_engine(ml_gen *gen, ml_rollout_batch *out, int sign) {
    ml_gen_stats now;

    gen->stats(gen, &now);
    if (sign < 0) {
        out->engine_s = 0;
        out->drafts.n_verify = out->drafts.n_draft = out->drafts.n_accepted = 0;
    }
    out->engine_s += sign * now.step_s;
    out->drafts.n_verify += sign * now.n_verify;
    out->drafts.n_draft += sign * now.n_draft;
    out->drafts.n_accepted += sign * now.n_accepted;
}

static ml_status collect(void *ud, int64_t rollout, ml_rollout_batch *out, ml_arena *a,
                         ml_err *err) {
    ml_gen_rollout *g = ud;
    batch r = { .g = g, .arena = a, .reasons = { .arena = a }, .err = err };
    ml_status st;

    (void)rollout;
    ml_work_count_clear(g->gen_ctx.work_count);
    count_engine(g->gen_ctx.gen, out, -1);
    ml_group_set_init(&r.set, &g->gen_ctx, &g->how, g->feed.dataset);
    r.set.decide = decide;
    r.set.ud = &r;
    r.last_ended = &r.ended;
    st = ml_group_set_generate(&r.set, start_more, &r, err);
    st = st == ML_OK ? r.st : st;
    count_engine(g->gen_ctx.gen, out, 1);
    if (st == ML_OK) {
        gather(&r, out);
        for (const ml_gen_group *x = r.set.groups.first; x; x = x->next)
            ml_prompt_results_group(g->feed.source, x);
        ml_prompt_results_report(g->feed.source, &out->metrics);
        ml_drop_reasons_report(&r.reasons, &out->metrics);
        ml_rollout_batch_report(out, g->feed.n_per_prompt, g->gen_ctx.turns != NULL);
        if (g->partial)
            hold(&r);
    }
    ml_group_set_release(&r.set);
    return st;
}

static void cancel(void *ud) {
    ml_gen_rollout *g = ud;
    ml_gen *gen = g->gen_ctx.gen;

    atomic_store(&g->cancelled, true);
    gen->abort_all(gen);
}

static void save(void *ud, ml_text *out) {
    const ml_gen_rollout *g = ud;

    if (!g->partial)
        return;
    ml_text_printf(out, "\"held\": ");
    ml_partial_buffer_save(&g->partial_buffer, NULL, 0, out);
}

static ml_status load(void *ud, ml_str state, const char *name, ml_err *err) {
    ml_gen_rollout *g = ud;
    ml_partial_buffer_bounds bounds = ml_partial_buffer_bounds_of(&g->feed, g->how.max_new);

    return ml_partial_buffer_load(&g->partial_buffer, state, &bounds, name, err);
}

ml_rollout ml_rollout_gen(ml_gen_rollout *g) {
    return (ml_rollout){
        .collect = collect, .cancel = cancel, .save = save, .load = load, .ud = g
    };
}
