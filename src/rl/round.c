#include "rl/round.h"

#include <math.h>

#include "base/clock.h"

void ml_round_begin(ml_round *r, int64_t rollout) {
    *r = (ml_round){ .rollout = rollout, .began_s = ml_clock_s() };
    ml_arena_init(&r->arena, "a round");
    ml_figures_init(&r->harvest.figures, &r->arena);
    ml_figures_init(&r->lesson.rollout, &r->arena);
}

static int64_t trained_tokens(const ml_round *r) {
    int64_t n = 0;
    for (int32_t k = 0; k < r->lesson.n_step; k++)
        n += r->lesson.step[k].step.n_token;
    return n;
}

static double rate(int64_t n, double seconds) {
    return seconds > 0 ? (double)n / seconds : 0.0;
}

void ml_round_end(ml_round *r, ml_run_log *log) {
    const struct {
        const char *name;
        double value;
    } row[] = { { "rollout_time", r->rollout_s },
                { "train_wait_time", r->wait_s },
                { "log_probs_time", r->lesson.score_s },
                { "actor_train_time", r->lesson.train_s },
                { "save_model_time", r->save_s },
                { "update_weights_time", r->weight_sync_s },
                { "eval_time", r->eval_s },
                { "step_time", ml_clock_s() - r->began_s },
                { "rollout_tok_per_s", rate(r->harvest.n_drawn, r->rollout_s) },
                { "actor_train_tok_per_s", rate(trained_tokens(r), r->lesson.train_s) },
                { "resident_bytes", (double)ml_memory_resident() } };
    ml_figures times;

    ml_figures_init(&times, &r->arena);
    for (size_t i = 0; i < sizeof row / sizeof *row; i++)
        ml_figures_add(&times, "perf/", row[i].name, row[i].value);
    ml_run_log_row(log->timing, r->rollout, "", &times);
    ml_arena_release(&r->arena);
}

/* What a figure is, where the step has it: ", kl 0.01". */
static void tell(ml_text *t, const ml_figures *f, const char *name, const char *format) {
    double x = ml_figures_get(f, name, (double)NAN);
    if (!isnan(x)) {
        ml_text_printf(t, ", ");
        ml_text_printf(t, format, x);
    }
}

static void tell_rollout(ml_text *t, const ml_round *r) {
    const ml_figures *f = &r->lesson.rollout;

    tell(t, f, "rollout/raw_reward", "reward %.4f");
    if (r->harvest.n_drawn) {
        tell(t, f, "rollout/response_lengths", "length %.1f");
        ml_text_printf(t, ", truncated %.0f%%",
                       100 * ml_figures_get(f, "rollout/truncated", 0));
    }
    if (r->lesson.n_token > r->lesson.n_stale)
        ml_text_printf(t, ", forward_logp_max_diff %g", r->lesson.max_diff);
    if (r->lesson.n_stale && !isnan(ml_figures_get(f, "rollout/raw_reward", (double)NAN)))
        ml_text_printf(t, ", %lld stale tokens", (long long)r->lesson.n_stale);
}

static void tell_times(ml_text *t, const ml_round *r) {
    if (r->harvest.n_drawn)
        ml_text_printf(t, ", rollout %.2f s at %.0f tokens/s", r->rollout_s,
                       rate(r->harvest.n_drawn, r->rollout_s));
    ml_text_printf(t, ", training %.2f s at %.0f tokens/s",
                   r->lesson.score_s + r->lesson.train_s,
                   rate(trained_tokens(r), r->lesson.train_s));
}

static void tell_step(ml_text *t, const ml_round *r, int32_t k, int64_t step) {
    const ml_learned *done = &r->lesson.step[k];

    ml_text_printf(t, "rollout %lld, step %lld: loss %.6f", (long long)r->rollout,
                   (long long)step + k, done->step.loss);
    if (k == 0)
        tell_rollout(t, r);
    tell(t, &done->figures, "train/ppo_kl", "ppo_kl %.3g");
    tell(t, &done->figures, "train/kl_loss", "kl %.3g");
    tell(t, &done->figures, "train/entropy_loss", "entropy %.4f");
    ml_text_printf(t, ", grad norm %.4f, lr %.3g", done->step.grad_norm, done->step.lr);
    if (k == 0)
        tell_times(t, r);
    if (!done->step.applied)
        ml_text_printf(t, "; not applied: %s", done->step.bad);
}

static void say_text(ml_text *t, void (*say)(const char *line)) {
    say(t->ptr);
    ml_text_release(t);
}

static void log_rollout(const ml_round *r, ml_run_log *log) {
    ml_figures all = r->harvest.figures;

    if (!all.first)
        all = r->lesson.rollout;
    else
        *all.last = r->lesson.rollout.first;
    ml_run_log_row(log->metrics, r->rollout, "", &all);
    if (r->harvest.figures.first)
        *r->harvest.figures.last = NULL;
}

void ml_round_report(const ml_round *r, ml_run_log *log, int64_t step,
                     void (*say)(const char *line)) {
    log_rollout(r, log);
    for (int32_t k = 0; k < r->lesson.n_step; k++) {
        char extra[60];
        ml_text t = { 0 };
        snprintf(extra, sizeof extra, ", \"step\": %lld", (long long)step + k);
        ml_run_log_row(log->metrics, r->rollout, extra, &r->lesson.step[k].figures);
        tell_step(&t, r, k, step);
        say_text(&t, say);
    }
    if (r->lesson.n_step == 0) {
        ml_text t = { 0 };
        ml_text_printf(&t, "rollout %lld: %lld samples, %lld tokens, %.2f s",
                       (long long)r->rollout, (long long)r->harvest.n,
                       (long long)r->harvest.n_drawn, r->rollout_s);
        say_text(&t, say);
    }
}

void ml_round_report_eval(const ml_figures *figures, ml_run_log *log, int64_t rollout,
                          void (*say)(const char *line)) {
    ml_text t = { 0 };

    ml_run_log_row(log->metrics, rollout, "", figures);
    ml_text_printf(&t, "evaluation after rollout %lld: ", (long long)rollout);
    ml_figures_write(&t, figures);
    say_text(&t, say);
}
