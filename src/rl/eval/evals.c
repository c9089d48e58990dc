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

/* A set while it is being evaluated, until its answers have been processed. */
typedef struct asked_set {
    const ml_eval_set *of;
    ml_arena arena;
    ml_gen_ctx gen_ctx;
    ml_group_set groups;
    uint64_t draw;            /* random number stream of the first sample */
    const ml_sample **sample; /* [n] */
    int64_t n;
    bool asked;
} asked_set;

static void forget_set(asked_set *x) {
    if (!x->asked)
        return;
    ml_group_set_release(&x->groups);
    ml_arena_release(&x->arena);
}

static ml_status start_all(void *ud, ml_err *err) {
    asked_set *x = ud;
    int32_t size = x->of->n_per_prompt;
    ml_status st = ML_OK;

    for (int64_t i = 0; i < x->of->dataset.rows.n && st == ML_OK; i++) {
        ml_group id = {
            .row = i, .group_index = i, .first_index = i * size, .n_sample = size
        };
        st = ml_gen_group_start(ml_group_set_add(&x->groups, id, &x->arena),
                                x->draw + (uint64_t)id.first_index, err);
    }
    return st;
}

static ml_status ask_set(const ml_evals *e, int32_t i, asked_set *x, ml_err *err) {
    const ml_eval_set *set = &e->set[i];
    ml_status st;

    *x = (asked_set){ .of = set,
                      .gen_ctx = e->gen_ctx,
                      .draw = FIRST_DRAW + (uint64_t)i * SET_DRAWS,
                      .n = set->dataset.rows.n * set->n_per_prompt,
                      .asked = true };
    ml_arena_init(&x->arena, "an evaluation's samples");
    if (set->rewards)
        x->gen_ctx.rewards = set->rewards;
    if (set->turns || set->generate) {
        x->gen_ctx.turns = set->turns;
        x->gen_ctx.generate = set->generate;
    }
    x->gen_ctx.evaluates = true;
    ml_work_count_clear(x->gen_ctx.work_count);
    ml_group_set_init(&x->groups, &x->gen_ctx, &set->how, &set->dataset);
    st = ml_group_set_generate(&x->groups, start_all, x, err);
    x->sample = ML_NEW(&x->arena, const ml_sample *, x->n + 1);
    x->n = st == ML_OK ? ml_group_list_samples(&x->groups.groups, false, x->sample) : 0;
    return st;
}

/* Adds the metrics of a set.  A missing reward counts as 0 and in none_reward_ratio. */
static ml_status report(const ml_evals *e, const asked_set *x, ml_metrics *out,
                        ml_err *err) {
    const ml_eval_set *set = x->of;
    const ml_sample **s = x->sample;
    int64_t n = x->n;
    double sum = 0, none = 0, truncated = 0;
    char prefix[200];

    for (int64_t i = 0; i < n; i++) {
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
        ml_sample *s = ML_NEW(a, ml_sample, 1), plain = *x->sample[k];
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
        st = report(e, &x, &out->metrics, err);
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
    ml_err why = { 0 };

    if (set < 0 || set >= own->evals->n || x->asked) {
        snprintf(err->text, sizeof err->text, "evaluation set %lld %s", (long long)set,
                 set >= 0 && set < own->evals->n ? "was generated before"
                                                 : "does not exist");
        return 1;
    }
    if (ask_set(own->evals, (int32_t)set, x, &why) != ML_OK) {
        ml_str_copy(err->text, sizeof err->text, ml_str_of(why.msg));
        return 1;
    }
    *out = ml_answers_of(&x->arena, x->sample, x->n, -1);
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
                             .add_metric = host_add,
                             .rollout = e->rollout };
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

ml_status ml_evals_run(const ml_evals *e, ml_eval_scores *out, ml_err *err) {
    ml_status st = ML_OK;

    if (e->ext)
        return run_row(e, out, err);
    for (int32_t i = 0; i < e->n && st == ML_OK; i++)
        st = run_set(e, i, out, err);
    return st;
}

ml_status ml_evals_report(const ml_eval_scores *scores, int64_t rollout, ml_arena *a,
                          const ml_observers *to, ml_err *err) {
    return ml_observe(
        to,
        &(ml_loop_event){
            .kind = ML_ON_EVALUATED, .rollout = rollout, .scores = scores, .arena = a },
        err);
}

ml_status ml_evals_observe(const ml_evals *e, int64_t rollout, const ml_observers *to,
                           ml_err *err) {
    ml_evals own = *e;
    ml_eval_scores scores = { 0 };
    ml_arena a;
    ml_status st;

    ml_arena_init(&a, "an evaluation");
    ml_metrics_init(&scores.metrics, &a);
    own.rollout = rollout;
    st = ml_evals_run(&own, &scores, err);
    if (st == ML_OK)
        st = ml_evals_report(&scores, rollout, &a, to, err);
    ml_arena_release(&a);
    return st;
}
