#include "rl/loop/iteration.h"

#include <math.h>

#include "base/clock.h"
#include "rl/eval/eval_table.h"

void ml_iteration_begin(ml_iteration *r, int64_t rollout) {
    *r = (ml_iteration){ .rollout = rollout, .began_s = ml_clock_s() };
    ml_arena_init(&r->arena, "a round");
    ml_metrics_init(&r->batch.metrics, &r->arena);
    ml_metrics_init(&r->result.rollout, &r->arena);
}

void ml_stage_begin(ml_iteration *r, ml_stage stage) {
    r->stage[stage].begin_s = r->stage[stage].end_s = ml_clock_s();
}

void ml_stage_end(ml_iteration *r, ml_stage stage) {
    r->stage[stage].end_s = ml_clock_s();
}

/* --- times ------------------------------------------------------------------ */

static double seconds(const ml_iteration *r, ml_stage stage) {
    return r->stage[stage].end_s - r->stage[stage].begin_s;
}

/* Seconds of generation, which may have run in the background. */
static double rollout_seconds(const ml_iteration *r) {
    return r->batch.made_s > 0 ? r->batch.made_s : seconds(r, ML_STAGE_ROLLOUT);
}

static int64_t trained_tokens(const ml_iteration *r) {
    int64_t n = 0;
    for (int32_t k = 0; k < r->result.n_step; k++)
        n += r->result.step[k].step.n_token + r->result.step[k].critic.n_token;
    return n;
}

static double rate(int64_t n, double s) {
    return s > 0 ? (double)n / s : 0.0;
}

static void log_times(const ml_iteration *r, ml_run_log *log, double end_s) {
    double rollout_s = rollout_seconds(r),
           flops = log->flop_per_token * rate(trained_tokens(r), r->result.train_s);
    const struct {
        const char *name;
        double value;
    } row[] = { { "rollout_time", rollout_s },
                { "train_wait_time",
                  seconds(r, ML_STAGE_ROLLOUT) + seconds(r, ML_STAGE_REST) },
                { "engine_time", r->batch.engine_s },
                { "log_probs_time", r->result.score_s },
                { "actor_train_time", r->result.train_s },
                { "save_model_time", seconds(r, ML_STAGE_SAVE) },
                { "update_weights_time", seconds(r, ML_STAGE_PUBLISH) },
                { "eval_time", seconds(r, ML_STAGE_EVAL) },
                { "step_time", end_s - r->began_s },
                { "rollout_tok_per_s", rate(r->batch.n_drawn, rollout_s) },
                { "actor_train_tok_per_s", rate(trained_tokens(r), r->result.train_s) },
                { "resident_bytes", (double)ml_memory_resident() } };
    ml_metrics times;
    ml_arena a;

    ml_arena_init(&a, "times of a round"); /* the iteration's arena may be in use */
    ml_metrics_init(&times, &a);
    for (size_t i = 0; i < sizeof row / sizeof *row; i++)
        ml_metrics_add(&times, "perf/", row[i].name, row[i].value);
    if (log->flop_per_token > 0)
        ml_metrics_add(&times, "perf/", "actor_train_tflops", flops / 1e12);
    if (log->peak_flops > 0)
        ml_metrics_add(&times, "perf/", "actor_train_mfu", flops / log->peak_flops);
    ml_run_log_timing(log, r->rollout, &times);
    ml_arena_release(&a);
}

static void log_spans(const ml_iteration *r, ml_run_log *log, double end_s) {
    static const char *const names[ML_N_STAGE] = { "rollout", "learn",          "save",
                                                   "rest",    "update_weights", "eval" };
    double learn_s = r->stage[ML_STAGE_LEARN].begin_s,
           score_s = learn_s + r->result.score_s;

    ml_run_log_span(log, r->rollout, ML_SPAN_OTHER, "round", r->began_s, end_s);
    for (int i = 0; i < ML_N_STAGE; i++)
        if (r->stage[i].end_s > r->stage[i].begin_s)
            ml_run_log_span(log, r->rollout, ML_SPAN_OTHER, names[i], r->stage[i].begin_s,
                            r->stage[i].end_s);
    if (r->result.score_s > 0)
        ml_run_log_span(log, r->rollout, ML_SPAN_LOG_PROBS, "log_probs", learn_s, score_s);
    if (r->result.train_s > 0)
        ml_run_log_span(log, r->rollout, ML_SPAN_TRAIN, "actor_train", score_s,
                        score_s + r->result.train_s);
}

void ml_iteration_end(ml_iteration *r, ml_run_log *log) {
    double end_s = ml_clock_s();

    log_times(r, log, end_s);
    log_spans(r, log, end_s);
    ml_run_log_post(log, &r->arena);
}

/* --- lines ------------------------------------------------------------------ */

/* Appends a metric, if the step has it: ", kl 0.01". */
static void tell(ml_text *t, const ml_metrics *f, const char *name, const char *format) {
    double x = ml_metrics_get(f, name, (double)NAN);
    if (!isnan(x)) {
        ml_text_printf(t, ", ");
        ml_text_printf(t, format, x);
    }
}

static void tell_rollout(ml_text *t, const ml_iteration *r) {
    const ml_metrics *f = &r->result.rollout;

    tell(t, f, "rollout/raw_reward", "reward %.4f");
    if (r->batch.n_drawn) {
        tell(t, f, "rollout/response_lengths", "length %.1f");
        ml_text_printf(t, ", truncated %.0f%%",
                       100 * ml_metrics_get(f, "rollout/truncated", 0));
    }
    if (r->result.n_token > r->result.n_stale)
        ml_text_printf(t, ", forward_logp_max_diff %g", r->result.max_diff);
    if (r->result.n_stale && !isnan(ml_metrics_get(f, "rollout/raw_reward", (double)NAN)))
        ml_text_printf(t, ", %lld stale tokens", (long long)r->result.n_stale);
}

static void tell_times(ml_text *t, const ml_iteration *r) {
    double rollout_s = rollout_seconds(r);

    if (r->batch.n_drawn)
        ml_text_printf(t, ", rollout %.2f s at %.0f tokens/s", rollout_s,
                       rate(r->batch.n_drawn, rollout_s));
    ml_text_printf(t, ", training %.2f s at %.0f tokens/s, memory %.0f MB",
                   r->result.score_s + r->result.train_s,
                   rate(trained_tokens(r), r->result.train_s),
                   (double)ml_memory_resident() / 1e6);
}

static void tell_step(ml_text *t, const ml_iteration *r, int32_t k, int64_t step) {
    const ml_step_metrics *done = &r->result.step[k];

    ml_text_printf(t, "rollout %lld, step %lld", (long long)r->rollout,
                   (long long)step + k);
    if (done->has_step)
        ml_text_printf(t, ": loss %.6f", done->step.loss);
    if (done->has_critic)
        ml_text_printf(t, "%s critic loss %.6f", done->has_step ? "," : ":",
                       done->critic.loss);
    if (k == 0)
        tell_rollout(t, r);
    tell(t, &done->metrics, "train/ppo_kl", "ppo_kl %.3g");
    tell(t, &done->metrics, "train/kl_loss", "kl %.3g");
    tell(t, &done->metrics, "train/entropy_loss", "entropy %.4f");
    if (done->has_step)
        ml_text_printf(t, ", grad norm %.4f, lr %.3g", done->step.grad_norm, done->step.lr);
    if (k == 0)
        tell_times(t, r);
}

/* --- short lines, for a terminal --------------------------------------------- */

static void tell_short(ml_text *t, const ml_metrics *f, const char *name,
                       const char *format) {
    double x = ml_metrics_get(f, name, (double)NAN);
    if (!isnan(x)) {
        ml_text_printf(t, "  ");
        ml_text_printf(t, format, x);
    }
}

static void tell_round_short(ml_text *t, const ml_iteration *r) {
    const ml_metrics *f = &r->result.rollout;

    tell_short(t, f, "rollout/raw_reward", "reward %.3f");
    if (!r->batch.n_drawn)
        return;
    tell_short(t, f, "rollout/response_lengths", "len %.0f");
    ml_text_printf(t, "  cut %.0f%%  |dlogp| %g",
                   100 * ml_metrics_get(f, "rollout/truncated", 0), r->result.max_diff);
}

static void tell_times_short(ml_text *t, const ml_iteration *r) {
    double rollout_s = rollout_seconds(r);

    if (r->batch.n_drawn)
        ml_text_printf(t, "  roll %.2fs %.0ft/s", rollout_s,
                       rate(r->batch.n_drawn, rollout_s));
    ml_text_printf(
        t, "  train %.2fs %.0ft/s  %.0fMB", r->result.score_s + r->result.train_s,
        rate(trained_tokens(r), r->result.train_s), (double)ml_memory_resident() / 1e6);
}

static void tell_step_short(ml_text *t, const ml_iteration *r, int32_t k, int64_t step) {
    const ml_step_metrics *done = &r->result.step[k];

    ml_text_printf(t, "%5lld", (long long)step + k);
    if (k == 0)
        tell_round_short(t, r);
    if (done->has_step)
        ml_text_printf(t, "  loss %.4f", done->step.loss);
    tell_short(t, &done->metrics, "train/critic-loss", "critic %.4f");
    tell_short(t, &done->metrics, "train/kl_loss", "kl %.2g");
    tell_short(t, &done->metrics, "train/entropy_loss", "ent %.3f");
    tell_short(t, &done->metrics, "train/grad_norm", "grad %.3f");
    if (k == 0)
        tell_times_short(t, r);
}

/* --- reports ------------------------------------------------------------------ */

static void say_text(ml_text *t, const ml_watcher *to) {
    to->say(t->ptr);
    ml_text_release(t);
}

static void log_rollout(const ml_iteration *r, ml_run_log *log) {
    ml_metrics all = r->batch.metrics;

    if (!all.first)
        all = r->result.rollout;
    else
        *all.last = r->result.rollout.first;
    /* Samples without a reward come unchanged from the data set, so they are not logged. */
    ml_run_log_samples(log, r->rollout, r->batch.sample,
                       r->batch.n && r->batch.sample[0]->has_reward ? r->batch.n : 0);
    ml_run_log_metrics(log, r->rollout, -1, &all);
    if (r->batch.metrics.first)
        *r->batch.metrics.last = NULL;
}

static void report_step(const ml_iteration *r, ml_run_log *log, int32_t k, int64_t step,
                        const ml_watcher *to) {
    const ml_step_metrics *done = &r->result.step[k];
    ml_text t = { 0 };

    ml_run_log_metrics(log, r->rollout, step + k, &done->metrics);
    if (to->compact)
        tell_step_short(&t, r, k, step);
    else
        tell_step(&t, r, k, step);
    if (done->has_step && !done->step.applied)
        ml_text_printf(&t, "; not applied: %s", done->step.bad);
    if (done->has_critic && !done->critic.applied)
        ml_text_printf(&t, "; not applied to the critic: %s", done->critic.bad);
    say_text(&t, to);
}

void ml_iteration_report(const ml_iteration *r, ml_run_log *log, int64_t step,
                         const ml_watcher *to) {
    log_rollout(r, log);
    for (int32_t k = 0; k < r->result.n_step; k++)
        report_step(r, log, k, step, to);
    if (r->result.n_step == 0) {
        ml_text t = { 0 };
        ml_text_printf(&t, "rollout %lld: %lld samples, %lld tokens, %.2f s",
                       (long long)r->rollout, (long long)r->batch.n,
                       (long long)r->batch.n_drawn, rollout_seconds(r));
        say_text(&t, to);
    }
}

void ml_iteration_report_eval(const ml_metrics *metrics, ml_run_log *log, int64_t rollout,
                              const ml_watcher *to) {
    ml_text t = { 0 };

    ml_run_log_metrics(log, rollout, -1, metrics);
    ml_text_printf(&t, "evaluation after rollout %lld:", (long long)rollout);
    say_text(&t, to);
    ml_eval_table(metrics, to->say);
}
