#include "rl/rollout/rollout_gen.h"

#include "base/log.h"
#include "rl/rollout/drop_reasons.h"

#define HOPELESS 100 /* fail after this many times the wanted groups if none was kept */

/* A requested group. */
typedef struct asked {
    ml_group group;
    ml_gen_task **task; /* [group.n_sample] */
    bool judged, kept;
    bool settled; /* every sample has a reward */
} asked;

/* A rollout while it is being generated. */
typedef struct batch {
    ml_gen_rollout *g;
    ml_gen_tasks tasks;
    ml_arena *arena;
    asked *asked; /* [n] ordered by number */
    int64_t n, cap, n_kept, n_pending;
    ml_drop_reasons drop_reasons;
    ml_status st; /* of failures on the generator's thread */
    ml_err *err;
} batch;

/* --- requesting groups -------------------------------------------------------- */

static int64_t wanted(const batch *r) {
    return r->g->run->opts.rollout_batch_size;
}

static void make_room(batch *r, int64_t more) {
    asked *bigger;

    if (r->n + more <= r->cap)
        return;
    r->cap = 2 * (r->n + more);
    bigger = ML_NEW(r->arena, asked, r->cap);
    for (int64_t i = 0; i < r->n; i++)
        bigger[i] = r->asked[i];
    r->asked = bigger;
}

static asked *new_group(batch *r, ml_group group) {
    asked *f = &r->asked[r->n++];

    *f = (asked){ .group = group, .task = ML_NEW(r->arena, ml_gen_task *, group.n_sample) };
    r->n_pending++;
    return f;
}

/* Continues groups of the partial buffer, at most *n; *n becomes their number. */
static ml_status resume_partial(batch *r, int64_t *n, ml_err *err) {
    int64_t most = *n;
    int32_t size = r->g->partial_buffer.n_per_group;
    ml_status st = ML_OK;

    if (r->g->buffer_filter)
        st = ml_partial_buffer_select(&r->g->partial_buffer, r->g->buffer_filter, &most,
                                      err);
    for (*n = 0; *n < most && st == ML_OK; ++*n) {
        const ml_sample *s = ml_partial_buffer_take(&r->g->partial_buffer);
        asked *f;
        if (!s)
            break;
        f = new_group(r, (ml_group){ s->row, s->group, s->index, size });
        st = ml_gen_tasks_resume(&r->tasks, f->task, s, size, r->g->mask_old, err);
    }
    return st;
}

static ml_status start_new(batch *r, int64_t n, ml_err *err) {
    ml_group *group = ML_NEW(r->arena, ml_group, n + 1);
    ml_status st = ML_OK;

    n = ml_data_source_get(r->g->run->source, group, n);
    for (int64_t i = 0; i < n && st == ML_OK; i++) {
        asked *f = new_group(r, group[i]);
        st = ml_gen_tasks_start(&r->tasks, f->task, &f->group,
                                (uint64_t)group[i].first_index, err);
    }
    return st;
}

/* Requests over_sampling groups at once, buffered ones first. */
static ml_status start_more(batch *r, ml_err *err) {
    int64_t n = r->g->over_sampling ? r->g->over_sampling : wanted(r), n_partial = n;
    ml_status st;

    make_room(r, n);
    st = resume_partial(r, &n_partial, err);
    if (st == ML_OK && n_partial < n)
        st = start_new(r, n - n_partial, err);
    if (st == ML_OK && r->n_pending == 0)
        st = ml_fail(err, ML_EFORMAT, "%s: there is no prompt in it",
                     r->g->run->opts.data.path);
    return st;
}

/* --- filtering ---------------------------------------------------------------- */

static bool has_ended(const asked *f) {
    for (int32_t i = 0; i < f->group.n_sample; i++)
        if (!f->task[i] || !f->task[i]->ended)
            return false;
    return true;
}

static bool passes_filter(batch *r, const asked *f) {
    const ml_sample **s;
    char reason[ML_REASON_CAP];
    bool keep = false;

    if (!r->g->filter)
        return true;
    ml_rewards_wait(r->g->gen_ctx.rewards);
    s = ML_NEW(r->arena, const ml_sample *, f->group.n_sample);
    for (int32_t i = 0; i < f->group.n_sample; i++)
        s[i] = &f->task[i]->sample;
    r->st = ml_group_filter_run(r->g->filter, s, f->group.n_sample, &keep, reason, r->err);
    if (!keep && reason[0])
        ml_drop_reasons_count(&r->drop_reasons, reason);
    return keep && r->st == ML_OK;
}

static void judge(batch *r) {
    for (int64_t i = 0; i < r->n && r->st == ML_OK; i++) {
        asked *f = &r->asked[i];
        if (f->judged || !has_ended(f))
            continue;
        f->judged = true;
        r->n_pending--;
        f->kept = r->n_kept < wanted(r) && passes_filter(r, f);
        r->n_kept += f->kept;
    }
}

static void abort_rest(batch *r) {
    for (int64_t i = 0; i < r->n; i++)
        if (!r->asked[i].judged)
            ml_gen_tasks_abort(&r->tasks, r->asked[i].task, r->asked[i].group.n_sample);
    ml_gen_tasks_done(&r->tasks);
}

/* True if every sample was generated to its end and has a reward. */
static bool complete(batch *r, const asked *f) {
    for (int32_t i = 0; i < f->group.n_sample; i++) {
        const ml_gen_task *x = f->task[i];
        bool aborted = x->sample.status == ML_SAMPLE_ABORTED;
        if (!aborted && x->sample.has_reward)
            continue;
        ml_drop_reasons_count(&r->drop_reasons,
                              aborted ? "aborted" : ml_reward_outcome_name(x->outcome));
        ml_log(ML_LOG_WARN, "sample %lld has no reward, its group is dropped: %s",
               (long long)x->sample.index, x->why);
        return false;
    }
    return true;
}

/* When enough groups are kept, waits for their rewards and drops the groups in which one
 * is missing; these are replaced. */
static ml_status settle(batch *r, ml_err *err) {
    if (r->n_kept < wanted(r))
        return ML_OK;
    ml_rewards_wait(r->g->gen_ctx.rewards);
    for (int64_t i = 0; i < r->n; i++) {
        asked *f = &r->asked[i];
        if (!f->kept || f->settled)
            continue;
        f->kept = f->settled = complete(r, f);
        r->n_kept -= !f->kept;
    }
    if (r->n_kept == 0)
        return ml_fail(err, ML_EPEER,
                       "no group of the round has a reward for each of its samples; the "
                       "warnings above say why");
    return ML_OK;
}

/* Without this check, a filter that keeps nothing would make the rollout endless. */
static ml_status check_hope(const batch *r, ml_err *err) {
    int64_t n_judged = r->n - r->n_pending;

    if (r->n_kept > 0 || n_judged < HOPELESS * wanted(r))
        return ML_OK;
    return ml_fail(err, ML_EFORMAT,
                   "%s kept none of %lld groups: the reward of the first answer is %g; "
                   "are the answers cut off, or is the reward not what it should be?",
                   r->g->filter->base.name, (long long)n_judged,
                   r->asked[0].task[0]->sample.reward);
}

/* Called on the generator's thread, between steps. */
static void on_ended(void *ud) {
    batch *r = ud;

    ml_gen_tasks_continue_turns(&r->tasks);
    if (r->tasks.done)
        return;
    judge(r);
    if (r->st == ML_OK)
        r->st = atomic_load(&r->g->cancelled)
                    ? ml_fail(r->err, ML_EAGAIN, "the round was given up")
                    : settle(r, r->err);
    if (r->st == ML_OK)
        r->st = check_hope(r, r->err);
    while (r->st == ML_OK && r->n_kept < wanted(r) && r->n_pending < wanted(r) - r->n_kept)
        r->st = start_more(r, r->err);
    if (r->st != ML_OK || r->n_kept >= wanted(r))
        abort_rest(r);
}

/* --- the rollout -------------------------------------------------------------- */

static void gather(batch *r, ml_rollout_batch *out) {
    int32_t n_per_prompt = r->g->run->opts.source.n_samples_per_prompt;

    out->sample = ML_NEW(r->arena, const ml_sample *, r->n_kept *n_per_prompt + 1);
    for (int64_t i = 0; i < r->n; i++)
        for (int32_t k = 0; r->asked[i].kept && k < r->asked[i].group.n_sample; k++)
            out->sample[out->n++] = &r->asked[i].task[k]->sample;
    out->n_drawn = r->tasks.n_drawn;
}

/* Lists all finished samples, kept or not. */
static void show_ended(batch *r, ml_rollout_batch *out) {
    int32_t n_per_prompt = r->g->run->opts.source.n_samples_per_prompt;
    uint8_t *kept = ML_NEW(r->arena, uint8_t, r->n * n_per_prompt + 1);

    out->ended = ML_NEW(r->arena, const ml_sample *, r->n *n_per_prompt + 1);
    for (int64_t i = 0; i < r->n; i++)
        for (int32_t k = 0; r->asked[i].judged && k < r->asked[i].group.n_sample; k++) {
            kept[out->n_ended] = r->asked[i].kept;
            out->ended[out->n_ended++] = &r->asked[i].task[k]->sample;
        }
    out->kept = kept;
}

/* Stores the groups not yet filtered in the partial buffer, for the next rollout. */
static void hold(batch *r) {
    int32_t size = r->g->partial_buffer.n_per_group;
    const ml_sample **s = ML_NEW(r->arena, const ml_sample *, r->n *size + 1);
    int64_t n = 0;

    for (int64_t i = 0; i < r->n; i++)
        for (int32_t k = 0; !r->asked[i].judged && k < size; k++)
            s[n++] = &r->asked[i].task[k]->sample;
    ml_partial_buffer_put(&r->g->partial_buffer, s, n / size);
}

/* The generator is paused while the first groups are submitted: the step in which they are
 * first scheduled must not depend on timing. */
static ml_status generate(batch *r, ml_err *err) {
    ml_gen *gen = r->g->gen_ctx.gen;
    ml_status st;

    gen->pause(gen);
    gen->on_step_end(gen, on_ended, r);
    st = start_more(r, err);
    if (st != ML_OK)
        abort_rest(r);
    gen->resume(gen);
    ml_gen_tasks_wait(&r->tasks);
    gen->on_step_end(gen, NULL, NULL);
    return st != ML_OK ? st : r->st;
}

/* Engine seconds so far. */
static double engine_seconds(ml_gen *gen) {
    ml_gen_stats now;

    gen->stats(gen, &now);
    return now.step_s;
}

static ml_status collect(void *ud, int64_t rollout, ml_rollout_batch *out, ml_arena *a,
                         ml_err *err) {
    ml_gen_rollout *g = ud;
    batch r = { .g = g, .arena = a, .drop_reasons = { .arena = a }, .err = err };
    ml_status st;

    (void)rollout;
    ml_work_count_clear(g->gen_ctx.work_count);
    out->engine_s = -engine_seconds(g->gen_ctx.gen);
    ml_gen_tasks_init(&r.tasks, &g->gen_ctx, &g->how, &g->run->dataset, a);
    st = generate(&r, err);
    out->engine_s += engine_seconds(g->gen_ctx.gen);
    if (st == ML_OK) {
        gather(&r, out);
        show_ended(&r, out);
        ml_drop_reasons_report(&r.drop_reasons, &out->metrics);
        ml_rollout_batch_report(out, g->run->opts.source.n_samples_per_prompt,
                                g->gen_ctx.turns != NULL);
        if (g->partial)
            hold(&r);
    }
    ml_gen_tasks_release(&r.tasks);
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
    ml_partial_buffer_bounds bounds = ml_partial_buffer_bounds_of(g->run, g->how.max_new);

    return ml_partial_buffer_load(&g->partial_buffer, state, &bounds, name, err);
}

ml_rollout ml_rollout_gen(ml_gen_rollout *g) {
    return (ml_rollout){
        .collect = collect, .cancel = cancel, .save = save, .load = load, .ud = g
    };
}
