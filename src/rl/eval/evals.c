#include "rl/eval/evals.h"

#include <stdio.h>
#include <string.h>

#include "base/utf8.h"
#include "rl/answers.h"
#include "rl/rollout/rollout_hooks.h"
#include "rl/record/sample_metrics.h"

/* Random number streams apart from those of training samples, which count from 0. */
#define FIRST_DRAW ((uint64_t)1 << 62)
#define SET_DRAWS ((uint64_t)1 << 40)

static ml_status ask_all(ml_gen_tasks *f, const ml_eval_set *set, uint64_t draw,
                         ml_gen_task **task, ml_err *err) {
    ml_status st = ML_OK;

    for (int64_t i = 0; i < set->dataset.rows.n && st == ML_OK; i++) {
        ml_group group = { .row = i,
                           .group_index = i,
                           .first_index = i * set->n_per_prompt,
                           .n_sample = set->n_per_prompt };
        st = ml_gen_tasks_start(f, task + group.first_index, &group,
                                draw + (uint64_t)group.first_index, err);
    }
    return st;
}

/* Adds the metrics of a set.  A missing reward counts as 0 and in none_reward_ratio. */
static ml_status report(const ml_evals *e, const ml_eval_set *set, ml_gen_task *const *task,
                        ml_metrics *out, ml_err *err) {
    int64_t n = set->dataset.rows.n * set->n_per_prompt;
    const ml_sample **s = ML_NEW(out->arena, const ml_sample *, n + 1);
    double sum = 0, none = 0, truncated = 0;
    char prefix[200];

    for (int64_t i = 0; i < n; i++) {
        s[i] = &task[i]->sample;
        sum += s[i]->reward;
        none += !s[i]->has_reward;
        truncated += s[i]->status == ML_SAMPLE_TRUNCATED;
    }
    snprintf(prefix, sizeof prefix, "eval/%s", set->name);
    ml_metrics_add(out, prefix, "", sum / (double)n);
    ml_metrics_add(out, prefix, "-none_reward_ratio", none / (double)n);
    ml_metrics_add(out, prefix, "-truncated_ratio", truncated / (double)n);
    snprintf(prefix, sizeof prefix, "eval/%s/", set->name);
    ml_metrics_parts(out, prefix, s, n);
    ml_metrics_lengths(out, prefix, s, n);
    snprintf(prefix, sizeof prefix, "eval/%s-", set->name);
    if (e->pass_rates)
        ml_metrics_pass_rate(out, prefix, s, n, set->n_per_prompt);
    return ml_metrics_run(e->metrics, out, s, n, -1, set->name, err);
}

/* Step-end callback, on the generator's thread. */
static void on_ended(void *tasks) {
    ml_gen_tasks_continue_turns(tasks);
}

/* The generation tasks of a set, until its answers have been processed. */
typedef struct asked_set {
    ml_arena arena;
    ml_gen_tasks tasks;
    ml_gen_task **task; /* [n] */
    int64_t n;
    bool asked;
} asked_set;

static void forget_set(asked_set *x) {
    if (!x->asked)
        return;
    ml_gen_tasks_release(&x->tasks);
    ml_arena_release(&x->arena);
}

static ml_status ask_set(const ml_evals *e, int32_t i, asked_set *x, ml_err *err) {
    const ml_eval_set *set = &e->set[i];
    ml_gen *gen = e->gen_ctx.gen;
    ml_gen_ctx gen_ctx = e->gen_ctx;
    ml_status st;

    *x = (asked_set){ .n = set->dataset.rows.n * set->n_per_prompt, .asked = true };
    ml_arena_init(&x->arena, "an evaluation's samples");
    x->task = ML_NEW(&x->arena, ml_gen_task *, x->n + 1);
    if (set->rewards)
        gen_ctx.rewards = set->rewards;
    if (set->turns)
        gen_ctx.turns = set->turns;
    ml_work_count_clear(gen_ctx.work_count);
    ml_gen_tasks_init(&x->tasks, &gen_ctx, &set->how, &set->dataset, &x->arena);
    gen->pause(gen); /* the caller owns the samples until all are submitted */
    gen->on_step_end(gen, on_ended, &x->tasks);
    st = ask_all(&x->tasks, set, FIRST_DRAW + (uint64_t)i * SET_DRAWS, x->task, err);
    ml_gen_tasks_done(&x->tasks);
    if (st != ML_OK)
        ml_gen_tasks_abort(&x->tasks, x->task, x->n);
    gen->resume(gen);
    ml_gen_tasks_wait(&x->tasks);
    gen->on_step_end(gen, NULL, NULL);
    return st;
}

/* Copies the answers to `out`, because samples are freed with their tasks. */
static void keep_answers(const ml_evals *e, int32_t i, const asked_set *x,
                         ml_eval_scores *out) {
    ml_arena *a = out->metrics.arena;
    const ml_sample **list;
    ml_eval_answers *own, **last = &out->answers;

    if (!e->keep_answers)
        return;
    list = ML_NEW(a, const ml_sample *, x->n + 1);
    own = ML_NEW(a, ml_eval_answers, 1);
    for (int64_t k = 0; k < x->n; k++) {
        ml_sample *s = ML_NEW(a, ml_sample, 1), plain = x->task[k]->sample;
        memset(plain.routed, 0, sizeof plain.routed); /* large, and not recorded */
        ml_sample_copy(s, a, &plain);
        list[k] = s;
    }
    *own = (ml_eval_answers){ .set = e->set[i].name, .sample = list, .n = x->n };
    while (*last)
        last = &(*last)->next;
    *last = own;
}

static ml_status run_set(const ml_evals *e, int32_t i, ml_eval_scores *out, ml_err *err) {
    asked_set x;
    ml_status st = ask_set(e, i, &x, err);

    if (st == ML_OK)
        st = report(e, &e->set[i], x.task, &out->metrics, err);
    if (st == ML_OK)
        keep_answers(e, i, &x, out);
    forget_set(&x);
    return st;
}

/* --- evaluation by an extension ----------------------------------------------------- */

typedef struct own_eval {
    const ml_evals *evals;
    ml_metrics *metrics;
    asked_set *set; /* [evals->n] */
} own_eval;

static int host_ask(miles_eval_host *host, int64_t set, const miles_answers **out,
                    miles_error *err) {
    own_eval *own = host->ctx;
    asked_set *x = own->set + set;
    const ml_sample **s;
    ml_err why = { 0 };

    if (set < 0 || set >= own->evals->n || x->asked) {
        snprintf(err->text, sizeof err->text, "the set %lld %s", (long long)set,
                 set >= 0 && set < own->evals->n ? "was asked before" : "is not there");
        return 1;
    }
    if (ask_set(own->evals, (int32_t)set, x, &why) != ML_OK) {
        ml_str_copy(err->text, sizeof err->text, ml_str_of(why.msg));
        return 1;
    }
    s = ML_NEW(&x->arena, const ml_sample *, x->n + 1);
    for (int64_t i = 0; i < x->n; i++)
        s[i] = &x->task[i]->sample;
    *out = ml_answers_of(&x->arena, s, x->n, -1);
    return 0;
}

static void host_add(miles_eval_host *host, const char *name, double value) {
    ml_metrics_add(((own_eval *)host->ctx)->metrics, "", name, value);
}

static ml_status run_row(const ml_evals *e, ml_eval_scores *out, ml_err *err) {
    ml_arena *a = out->metrics.arena;
    const char **name = ML_NEW(a, const char *, e->n + 1);
    own_eval own = { e, &out->metrics, ML_NEW(a, asked_set, e->n + 1) };
    miles_eval_host host = { .size = sizeof host,
                             .ctx = &own,
                             .set = name,
                             .n_set = e->n,
                             .generate = host_ask,
                             .add_metric = host_add };
    miles_error why = { "" };
    int failed;

    for (int32_t i = 0; i < e->n; i++)
        name[i] = e->set[i].name;
    failed = e->ext->run(&host, &why);
    for (int32_t i = 0; i < e->n; i++) {
        if (!failed && own.set[i].asked)
            keep_answers(e, i, &own.set[i], out);
        forget_set(&own.set[i]);
    }
    return failed ? ml_extension_failed(&e->ext->base, &why, err) : ML_OK;
}

ml_status ml_evals_run(void *evals, ml_eval_scores *out, ml_err *err) {
    const ml_evals *e = evals;
    ml_status st = ML_OK;

    if (e->ext)
        return run_row(e, out, err);
    for (int32_t i = 0; i < e->n && st == ML_OK; i++)
        st = run_set(e, i, out, err);
    return st;
}
