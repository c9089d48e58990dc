#include "rl/rollout/rollout_custom.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/utf8.h"
#include "rl/answers.h"

/* A requested group. */
typedef struct asked {
    struct asked *next;
    ml_gen_task **task; /* [n] */
    int32_t n;
    bool kept;
} asked;

/* A rollout while the extension makes it. */
typedef struct making {
    const ml_custom_rollout *r;
    ml_arena *arena;
    ml_metrics *metrics;
    asked *first, **last;
    int64_t n_kept, n_drawn; /* samples; tokens */
} making;

/* --- requesting groups -------------------------------------------------------- */

/* Called on the generator's thread, between steps. */
static void on_ended(void *tasks) {
    ml_gen_tasks_continue_turns(tasks);
}

static ml_status start_groups(making *m, ml_gen_tasks *f, int64_t n, const ml_sample ***out,
                              int64_t *n_out, ml_err *err) {
    ml_group *group = ML_NEW(m->arena, ml_group, n + 1);
    int64_t n_got = ml_data_source_get(m->r->run->source, group, n);
    const ml_sample **s = ML_NEW(m->arena, const ml_sample *,
                                 n * m->r->run->opts.source.n_samples_per_prompt + 1);
    ml_status st = n_got == n
                       ? ML_OK
                       : ml_fail(err, ML_EFORMAT, "%s has no %lld prompts for a round",
                                 m->r->run->opts.data.path, (long long)n);

    *out = s;
    for (int64_t i = 0; i < n && st == ML_OK; i++) {
        asked *g = ML_NEW(m->arena, asked, 1);
        *g = (asked){ .task = ML_NEW(m->arena, ml_gen_task *, group[i].n_sample),
                      .n = group[i].n_sample };
        *m->last = g;
        m->last = &g->next;
        st = ml_gen_tasks_start(f, g->task, &group[i], (uint64_t)group[i].first_index, err);
        for (int32_t k = 0; k < g->n && st == ML_OK; k++)
            s[(*n_out)++] = &g->task[k]->sample;
    }
    return st;
}

static void abort_all(making *m, ml_gen_tasks *f) {
    for (asked *g = m->first; g; g = g->next)
        ml_gen_tasks_abort(f, g->task, g->n);
}

/* The generator is paused while groups are submitted: the step in which they are first
 * scheduled must not depend on timing. */
static ml_status answer(making *m, int64_t n, const ml_sample ***out, int64_t *n_out,
                        ml_err *err) {
    ml_gen *gen = m->r->gen_ctx.gen;
    ml_gen_tasks f;
    ml_status st;

    ml_work_count_clear(m->r->gen_ctx.work_count);
    ml_gen_tasks_init(&f, &m->r->gen_ctx, &m->r->how, &m->r->run->dataset, m->arena);
    gen->pause(gen);
    gen->on_step_end(gen, on_ended, &f);
    st = start_groups(m, &f, n, out, n_out, err);
    ml_gen_tasks_done(&f);
    if (st != ML_OK)
        abort_all(m, &f);
    gen->resume(gen);
    ml_gen_tasks_wait(&f);
    gen->on_step_end(gen, NULL, NULL);
    m->n_drawn += f.n_drawn;
    ml_gen_tasks_release(&f);
    return st;
}

static int ask(miles_rollout_host *host, int64_t n_group, const miles_answers **out,
               miles_error *err) {
    making *m = host->ctx;
    const ml_sample **s = NULL;
    int64_t n = 0;
    ml_err why = { 0 };

    if (n_group < 1) {
        snprintf(err->text, sizeof err->text, "a rollout asked for %lld groups",
                 (long long)n_group);
        return 1;
    }
    if (answer(m, n_group, &s, &n, &why) != ML_OK) {
        ml_str_copy(err->text, sizeof err->text, ml_str_of(why.msg));
        return 1;
    }
    *out = ml_answers_of(m->arena, s, n, host->rollout);
    return 0;
}

/* --- selecting groups --------------------------------------------------------- */

static int keep(miles_rollout_host *host, int64_t group, miles_error *err) {
    making *m = host->ctx;
    asked *g = m->first;

    while (g && g->task[0]->sample.group != group)
        g = g->next;
    if (!g || g->kept) {
        snprintf(err->text, sizeof err->text, "group %lld was %s", (long long)group,
                 g ? "kept before" : "not asked for in this round");
        return 1;
    }
    for (int32_t i = 0; i < g->n; i++)
        if (!g->task[i]->sample.has_reward) {
            const ml_gen_task *x = g->task[i];
            ml_str_copy(
                err->text, sizeof err->text,
                ml_str_of(ml_arena_printf(
                    m->arena, "group %lld was kept, and its sample %lld has no reward: %s",
                    (long long)group, (long long)x->sample.index, x->why)));
            return 1;
        }
    g->kept = true;
    m->n_kept += g->n;
    return 0;
}

static void add(miles_rollout_host *host, const char *name, double value) {
    making *m = host->ctx;
    ml_metrics_add(m->metrics, "", name, value);
}

/* --- the rollout -------------------------------------------------------------- */

/* Groups are ordered by number, which is the order of the requests. */
static void gather(making *m, ml_rollout_batch *out) {
    out->sample = ML_NEW(m->arena, const ml_sample *, m->n_kept + 1);
    for (const asked *g = m->first; g; g = g->next)
        for (int32_t i = 0; g->kept && i < g->n; i++)
            out->sample[out->n++] = &g->task[i]->sample;
    out->n_drawn = m->n_drawn;
}

static ml_status collect(void *ud, int64_t rollout, ml_rollout_batch *out, ml_arena *a,
                         ml_err *err) {
    const ml_custom_rollout *r = ud;
    const ml_train_run_opts *o = &r->run->opts;
    making m = { .r = r, .arena = a, .metrics = &out->metrics };
    miles_rollout_host host = { .size = sizeof host,
                                .ctx = &m,
                                .rollout = rollout,
                                .n_want = o->rollout_batch_size,
                                .seed = o->source.seed,
                                .generate = ask,
                                .keep_group = keep,
                                .add_metric = add };
    miles_error why = { "" };

    m.last = &m.first;
    if (r->ext->run(&host, &why) != 0)
        return ml_extension_failed(&r->ext->base, &why, err);
    if (m.n_kept == 0)
        return ml_fail(err, ML_EFORMAT, "%s kept no group", r->ext->base.name);
    gather(&m, out);
    ml_rollout_batch_report(out, o->source.n_samples_per_prompt, r->gen_ctx.turns != NULL);
    return ML_OK;
}

ml_rollout ml_rollout_custom(ml_custom_rollout *r) {
    return (ml_rollout){ .collect = collect, .ud = r };
}
