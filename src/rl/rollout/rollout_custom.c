#include "rl/rollout/rollout_custom.h"

#include <stdio.h>

#include "base/utf8.h"
#include "rl/answers.h"
#include "rl/rollout/prompt_results.h"

/* A rollout while the extension makes it. */
typedef struct making {
    const ml_custom_rollout *r;
    ml_arena *arena;
    ml_metrics *metrics;
    ml_group_set set; /* all groups that were requested, ordered by number */
    int64_t n_kept;   /* samples */
} making;

/* --- requesting groups -------------------------------------------------------- */

/* A request of the extension. */
typedef struct request {
    making *m;
    int64_t n; /* groups */
    ml_gen_group *first;
} request;

static ml_status start_groups(void *ud, ml_err *err) {
    request *q = ud;
    making *m = q->m;
    ml_group *id = ML_NEW(m->arena, ml_group, q->n + 1);
    ml_status st = ML_OK;

    if (ml_data_source_get(m->r->feed.source, id, q->n) != q->n)
        return ml_fail(err, ML_EFORMAT,
                       "%s has fewer than %lld prompts, which the rollout requested",
                       m->r->feed.dataset->opts.path, (long long)q->n);
    for (int64_t i = 0; i < q->n && st == ML_OK; i++) {
        ml_gen_group *g = ml_group_set_add(&m->set, id[i], m->arena);
        q->first = q->first ? q->first : g;
        st = ml_gen_group_start(g, (uint64_t)id[i].first_index, err);
    }
    return st;
}

static int ask(miles_rollout_host *host, int64_t n_group, const miles_answers **out,
               miles_error *err) {
    making *m = host->ctx;
    request q = { .m = m, .n = n_group };
    ml_group_list asked = { 0 };
    const ml_sample **s;
    ml_err why = { 0 };

    if (n_group < 1) {
        snprintf(err->text, sizeof err->text,
                 "the rollout requested %lld groups; expected at least 1",
                 (long long)n_group);
        return 1;
    }
    ml_work_count_clear(m->r->gen_ctx.work_count);
    if (ml_group_set_generate(&m->set, start_groups, &q, &why) != ML_OK) {
        ml_str_copy(err->text, sizeof err->text, ml_str_of(why.msg));
        return 1;
    }
    asked.first = q.first;
    s = ML_NEW(m->arena, const ml_sample *, n_group * m->r->feed.n_per_prompt + 1);
    *out =
        ml_answers_of(m->arena, s, ml_group_list_samples(&asked, false, s), host->rollout);
    return 0;
}

/* --- selecting groups --------------------------------------------------------- */

static int keep(miles_rollout_host *host, int64_t group, miles_error *err) {
    making *m = host->ctx;
    ml_gen_group *g = m->set.groups.first;

    while (g && g->id.group_index != group)
        g = g->next;
    if (!g || g->fate == ML_GROUP_KEPT) {
        snprintf(err->text, sizeof err->text, "group %lld was %s", (long long)group,
                 g ? "already kept" : "not requested in this rollout");
        return 1;
    }
    for (int32_t i = 0; i < g->id.n_sample; i++)
        if (!g->task[i]->sample.has_reward) {
            const ml_gen_task *x = g->task[i];
            ml_str_copy(err->text, sizeof err->text,
                        ml_str_of(ml_arena_printf(
                            m->arena,
                            "group %lld cannot be kept: its sample %lld has no reward: %s",
                            (long long)group, (long long)x->sample.index, x->why)));
            return 1;
        }
    g->fate = ML_GROUP_KEPT;
    m->n_kept += g->id.n_sample;
    return 0;
}

static void add(miles_rollout_host *host, const char *name, double value) {
    making *m = host->ctx;
    ml_metrics_add(m->metrics, "", name, value);
}

/* --- the rollout -------------------------------------------------------------- */

static ml_status collect(void *ud, int64_t rollout, ml_rollout_batch *out, ml_arena *a,
                         ml_err *err) {
    const ml_custom_rollout *r = ud;
    making m = { .r = r, .arena = a, .metrics = &out->metrics };
    miles_rollout_host host = { .size = sizeof host,
                                .ctx = &m,
                                .rollout = rollout,
                                .n_want = r->feed.batch,
                                .seed = (int64_t)r->how.seed,
                                .generate = ask,
                                .keep_group = keep,
                                .add_metric = add };
    miles_error why = { "" };
    ml_status st = ML_OK;

    ml_group_set_init(&m.set, &r->gen_ctx, &r->how, r->feed.dataset);
    if (r->ext->run(&host, &why) != 0)
        st = ml_extension_failed(&r->ext->base, &why, err);
    else if (m.n_kept == 0)
        st = ml_fail(err, ML_EFORMAT, "%s kept no group", r->ext->base.name);
    if (st == ML_OK) {
        out->sample = ML_NEW(a, const ml_sample *, m.n_kept + 1);
        out->n = ml_group_list_samples(&m.set.groups, true, out->sample);
        out->n_drawn = ml_group_list_drawn(&m.set.groups);
        ml_prompt_results_batch(r->feed.source, out);
        ml_prompt_results_report(r->feed.source, &out->metrics);
        ml_rollout_batch_report(out, r->feed.n_per_prompt, r->gen_ctx.turns != NULL);
    }
    ml_group_set_release(&m.set);
    return st;
}

ml_rollout ml_rollout_custom(ml_custom_rollout *r) {
    return (ml_rollout){ .collect = collect, .ud = r };
}
