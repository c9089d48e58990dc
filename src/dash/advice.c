#include "dash/advice.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

/* The thresholds of Miles' dashboard, where it has the rule. */
#define STALL_FACTOR 6.0
#define STALL_S 1800.0
#define ABORTED_SHARE 0.05
#define ABORTED_FROM 100
#define FLAT_SHARE 0.5
#define TRUNCATED_SHARE 0.25
#define LOW_MFU 0.15
#define WAIT_SHARE 0.7
#define NORM_FACTOR 10.0
#define KL_HIGH 0.1
#define MISMATCH_HIGH 0.1
enum { RECENT = 20, FLAT_ROLLOUTS = 10 };

typedef struct list {
    ml_advice *at;
    int n;
} list;

__attribute__((format(printf, 3, 4))) static void say(list *l, ml_advice_level level,
                                                      const char *fmt, ...) {
    va_list ap;

    if (l->n == ML_ADVICE_MOST)
        return;
    l->at[l->n].level = level;
    va_start(ap, fmt);
    vsnprintf(l->at[l->n++].text, sizeof l->at->text, fmt, ap);
    va_end(ap);
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double ml_series_median(const ml_series_set *s, const char *name, int64_t n,
                        double absent) {
    const ml_series *x = ml_series_find(s, name);
    double value[64];
    int64_t have = 0;

    for (int64_t i = x ? x->n : 0; i-- > 0 && have < n && have < 64;)
        if (isfinite(x->at[i].value))
            value[have++] = x->at[i].value;
    if (!have)
        return absent;
    qsort(value, (size_t)have, sizeof *value, by_value);
    return value[have / 2];
}

/* --- alarms ------------------------------------------------------------------------- */

static void check_stall(list *l, const ml_series_set *s, const ml_advice_facts *f) {
    double usual = ml_series_median(s, "perf/step_time", RECENT, 0);

    if (f->live && usual > 0 && f->silent_s > fmax(STALL_FACTOR * usual, STALL_S))
        say(l, ML_ADVICE_CRITICAL,
            "No phase has ended for %.0f minutes, %.0f times as long as a rollout usually "
            "takes "
            "(%.0f s): the run hangs or waits.  Look at the process, its engines and "
            "reward "
            "functions.",
            f->silent_s / 60, f->silent_s / usual, usual);
}

static void check_numbers(list *l, const ml_series_set *s) {
    static const char *const names[] = { "train/loss", "train/grad_norm" };

    for (int i = 0; i < 2; i++)
        if (isnan(ml_series_last(s, names[i], 0)))
            say(l, ML_ADVICE_CRITICAL,
                "%s is not a finite number in the last step: lower --lr, or check the "
                "rewards "
                "for infinities.",
                names[i]);
}

static void check_rewards(list *l, const ml_series_set *s, const ml_advice_facts *f) {
    const ml_series *x = ml_series_find(s, "rollout/raw_reward");
    bool flat = x && x->n >= FLAT_ROLLOUTS;

    for (int64_t i = 1; flat && i < FLAT_ROLLOUTS; i++)
        flat = x->at[x->n - 1 - i].value == x->at[x->n - 1].value;
    if (flat)
        say(l, ML_ADVICE_WARNING,
            "The mean reward was %g in each of the last %d rollouts: the reward does not "
            "tell "
            "answers apart.  Read some samples, and grade one with miles reward.",
            x->at[x->n - 1].value, (int)FLAT_ROLLOUTS);
    if (f->n_group && (double)f->n_flat_group / (double)f->n_group >= FLAT_SHARE)
        say(l, ML_ADVICE_WARNING,
            "In %lld of the %lld groups of the last rollout all samples have the same "
            "reward, "
            "so they teach nothing: use easier or harder prompts, more samples per prompt, "
            "or "
            "--dynamic-sampling-filter-path check_reward_nonzero_std.",
            (long long)f->n_flat_group, (long long)f->n_group);
    if (f->n_sample >= ABORTED_FROM &&
        (double)f->n_aborted / (double)f->n_sample >= ABORTED_SHARE)
        say(l, ML_ADVICE_WARNING,
            "%lld of the %lld samples of the last rollout were aborted: requests time out "
            "or "
            "engines fail.",
            (long long)f->n_aborted, (long long)f->n_sample);
}

static void check_lengths(list *l, const ml_series_set *s) {
    double cut = ml_series_last(s, "rollout/truncated_ratio",
                                ml_series_last(s, "rollout/truncated", 0));

    if (cut >= TRUNCATED_SHARE)
        say(l, ML_ADVICE_WARNING,
            "%.0f %% of the answers of the last rollout were cut off at the length limit: "
            "raise "
            "--rollout-max-response-len, or reward shorter answers.",
            100 * cut);
}

static void check_steps(list *l, const ml_series_set *s) {
    double norm = ml_series_last(s, "train/grad_norm", 0),
           usual = ml_series_median(s, "train/grad_norm", RECENT, 0),
           kl = fabs(ml_series_last(s, "train/ppo_kl", 0)),
           gap = ml_series_last(s, "train/train_rollout_logprob_abs_diff", 0);

    if (usual > 0 && norm > NORM_FACTOR * usual)
        say(l, ML_ADVICE_WARNING,
            "The gradient norm of the last step is %.3g, %.0f times the usual %.3g: if "
            "this "
            "repeats, lower --lr or --clip-grad.",
            norm, norm / usual, usual);
    if (kl > KL_HIGH)
        say(l, ML_ADVICE_WARNING,
            "train/ppo_kl is %.3g: the policy moves far within a rollout.  Lower --lr or "
            "the "
            "number of steps per rollout.",
            kl);
    if (gap > MISMATCH_HIGH)
        say(l, ML_ADVICE_WARNING,
            "Log-probs of training and rollout differ by %.3g on average: samples are "
            "stale or "
            "engines round differently.  Use --use-tis, or publish weights more often.",
            gap);
}

/* --- tuning ---------------------------------------------------------------------------- */

static void check_speed(list *l, const ml_series_set *s) {
    double step = ml_series_median(s, "perf/step_time", RECENT, 0),
           wait = ml_series_median(s, "perf/train_wait_time", RECENT, 0),
           mfu = ml_series_median(s, "perf/actor_train_mfu", RECENT, 1);

    if (mfu < LOW_MFU)
        say(l, ML_ADVICE_INFO,
            "Training uses %.1f %% of the GPU's peak (MFU): raise --max-tokens-per-gpu if "
            "memory "
            "allows.",
            100 * mfu);
    if (step > 0 && wait / step > WAIT_SHARE)
        say(l, ML_ADVICE_INFO,
            "%.0f %% of each rollout is spent waiting for samples: more engines, or miles "
            "train-async, which generates while it trains.",
            100 * wait / step);
}

int ml_advice_find(ml_advice out[ML_ADVICE_MOST], const ml_series_set *s,
                   const ml_advice_facts *facts) {
    list l = { out, 0 };

    check_stall(&l, s, facts);
    check_numbers(&l, s);
    check_rewards(&l, s, facts);
    check_lengths(&l, s);
    check_steps(&l, s);
    if (l.n == 0)
        check_speed(&l, s);
    return l.n;
}
