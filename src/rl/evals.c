#include "rl/evals.h"

#include <stdio.h>

#include "rl/rollout_edges.h"
#include "rl/sample_figures.h"

/* Away from the samples of training, which count from 0. */
#define FIRST_DRAW ((uint64_t)1 << 62)
#define SET_DRAWS ((uint64_t)1 << 40)

static ml_status ask_all(ml_flights *f, const ml_eval_set *set, uint64_t draw,
                         ml_flight **flight, ml_err *err) {
    ml_status st = ML_OK;

    for (int64_t i = 0; i < set->dataset.rows.n && st == ML_OK; i++) {
        ml_group group = { .row = i,
                           .group_index = i,
                           .first_index = i * set->n_per_prompt,
                           .n_sample = set->n_per_prompt };
        st = ml_flights_start(f, flight + group.first_index, &group,
                              draw + (uint64_t)group.first_index, err);
    }
    return st;
}

/* What has no reward counts as 0, and is counted. */
static ml_status report(const ml_evals *e, const ml_eval_set *set, ml_flight *const *flight,
                        ml_figures *out, ml_err *err) {
    int64_t n = set->dataset.rows.n * set->n_per_prompt;
    const ml_sample **s = ML_NEW(out->arena, const ml_sample *, n + 1);
    double sum = 0, none = 0, truncated = 0;
    char prefix[200];

    for (int64_t i = 0; i < n; i++) {
        s[i] = &flight[i]->sample;
        sum += s[i]->reward;
        none += !s[i]->has_reward;
        truncated += s[i]->status == ML_SAMPLE_TRUNCATED;
    }
    snprintf(prefix, sizeof prefix, "eval/%s", set->name);
    ml_figures_add(out, prefix, "", sum / (double)n);
    ml_figures_add(out, prefix, "-none_reward_ratio", none / (double)n);
    ml_figures_add(out, prefix, "-truncated_ratio", truncated / (double)n);
    snprintf(prefix, sizeof prefix, "eval/%s/", set->name);
    ml_figures_lengths(out, prefix, s, n);
    snprintf(prefix, sizeof prefix, "eval/%s-", set->name);
    if (e->pass_rates)
        ml_figures_pass_rate(out, prefix, s, n, set->n_per_prompt);
    return ml_metrics_run(e->metrics, out, s, n, -1, set->name, err);
}

/* On the generator's thread, between steps. */
static void on_ended(void *flights) {
    ml_flights_go_on(flights);
}

static ml_status run_set(const ml_evals *e, int32_t i, ml_figures *out, ml_err *err) {
    const ml_eval_set *set = &e->set[i];
    ml_gen *gen = e->asker.gen;
    int64_t n = set->dataset.rows.n * set->n_per_prompt;
    ml_flight **flight;
    ml_asker asker = e->asker;
    ml_flights f;
    ml_arena a;
    ml_status st;

    ml_arena_init(&a, "an evaluation's samples");
    flight = ML_NEW(&a, ml_flight *, n + 1);
    if (set->rewards)
        asker.rewards = set->rewards;
    if (set->turns)
        asker.turns = set->turns;
    ml_flights_init(&f, &asker, &set->how, &set->dataset, &a);
    gen->pause(gen); /* samples are the caller's until all are asked for */
    gen->watch(gen, on_ended, &f);
    st = ask_all(&f, set, FIRST_DRAW + (uint64_t)i * SET_DRAWS, flight, err);
    ml_flights_done(&f);
    if (st != ML_OK)
        ml_flights_abort(&f, flight, n);
    gen->resume(gen);
    ml_flights_wait(&f);
    gen->watch(gen, NULL, NULL);
    if (st == ML_OK)
        st = report(e, set, flight, out, err);
    ml_flights_release(&f);
    ml_arena_release(&a);
    return st;
}

ml_status ml_evals_run(void *evals, ml_figures *out, ml_err *err) {
    const ml_evals *e = evals;
    ml_status st = ML_OK;

    for (int32_t i = 0; i < e->n && st == ML_OK; i++)
        st = run_set(e, i, out, err);
    return st;
}
