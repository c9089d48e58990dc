#include "rl/loop/console.h"

#include <math.h>
#include <stdio.h>

#include "rl/eval/eval_table.h"
#include "rl/eval/evals.h"
#include "rl/loop/iteration.h"
#include "rl/loop/startup_summary.h"
#include "train/memory.h"

/* --- lines ------------------------------------------------------------------ */

/* Appends a metric, if there is one of this name. */
static void tell(ml_text *t, const ml_metrics *f, const char *name, const char *format) {
    double x = ml_metrics_get(f, name, (double)NAN);
    if (!isnan(x))
        ml_text_printf(t, format, x);
}

static void tell_rollout(ml_text *t, const ml_iteration *r) {
    const ml_metrics *f = &r->result.rollout;

    tell(t, f, "rollout/raw_reward", ", reward %.4f");
    if (r->batch.n_drawn) {
        tell(t, f, "rollout/response_lengths", ", length %.1f");
        ml_text_printf(t, ", truncated %.0f%%",
                       100 * ml_metrics_get(f, "rollout/truncated", 0));
    }
    if (r->result.n_token > r->result.n_stale && !isnan(r->result.max_diff))
        ml_text_printf(t, ", forward_logp_max_diff %g", r->result.max_diff);
    if (r->result.n_stale && !isnan(ml_metrics_get(f, "rollout/raw_reward", (double)NAN)))
        ml_text_printf(t, ", %lld stale tokens", (long long)r->result.n_stale);
}

static void tell_times(ml_text *t, const ml_iteration *r) {
    double rollout_s = ml_iteration_seconds(r);

    if (r->batch.n_drawn)
        ml_text_printf(t, ", rollout %.2f s at %.0f tokens/s", rollout_s,
                       ml_rate(r->batch.n_drawn, rollout_s));
    ml_text_printf(t, ", training %.2f s at %.0f tokens/s, memory %.0f MB",
                   r->result.score_s + r->result.train_s,
                   ml_rate(ml_iteration_tokens(r), r->result.train_s),
                   (double)ml_memory_resident() / 1e6);
}

static void tell_step(ml_text *t, const ml_iteration *r, int32_t k) {
    const ml_step_metrics *done = &r->result.step[k];

    ml_text_printf(t, "rollout %lld, step %lld", (long long)r->rollout,
                   (long long)r->result.first_step + k);
    if (done->has_step)
        ml_text_printf(t, ": loss %.6f", done->step.loss);
    if (done->has_critic)
        ml_text_printf(t, "%s critic loss %.6f", done->has_step ? "," : ":",
                       done->critic.loss);
    if (k == 0)
        tell_rollout(t, r);
    tell(t, &done->metrics, "train/ppo_kl", ", ppo_kl %.3g");
    tell(t, &done->metrics, "train/kl_loss", ", kl %.3g");
    tell(t, &done->metrics, "train/entropy_loss", ", entropy %.4f");
    if (done->has_step)
        ml_text_printf(t, ", grad norm %.4f, lr %.3g", done->step.grad_norm, done->step.lr);
    if (k == 0)
        tell_times(t, r);
}

/* --- short lines, for a terminal --------------------------------------------- */

static void tell_rollout_short(ml_text *t, const ml_iteration *r) {
    const ml_metrics *f = &r->result.rollout;

    tell(t, f, "rollout/raw_reward", "  reward %.3f");
    if (!r->batch.n_drawn)
        return;
    tell(t, f, "rollout/response_lengths", "  len %.0f");
    ml_text_printf(t, "  trunc %.0f%%", 100 * ml_metrics_get(f, "rollout/truncated", 0));
    if (!isnan(r->result.max_diff))
        ml_text_printf(t, "  |dlogp| %g", r->result.max_diff);
}

static void tell_times_short(ml_text *t, const ml_iteration *r) {
    double rollout_s = ml_iteration_seconds(r);

    if (r->batch.n_drawn)
        ml_text_printf(t, "  roll %.2fs %.0ft/s", rollout_s,
                       ml_rate(r->batch.n_drawn, rollout_s));
    ml_text_printf(t, "  train %.2fs %.0ft/s  %.0fMB",
                   r->result.score_s + r->result.train_s,
                   ml_rate(ml_iteration_tokens(r), r->result.train_s),
                   (double)ml_memory_resident() / 1e6);
}

static void tell_step_short(ml_text *t, const ml_iteration *r, int32_t k) {
    const ml_step_metrics *done = &r->result.step[k];

    ml_text_printf(t, "%5lld", (long long)r->result.first_step + k);
    if (k == 0)
        tell_rollout_short(t, r);
    if (done->has_step)
        ml_text_printf(t, "  loss %.4f", done->step.loss);
    tell(t, &done->metrics, "train/critic-loss", "  critic %.4f");
    tell(t, &done->metrics, "train/kl_loss", "  kl %.2g");
    tell(t, &done->metrics, "train/entropy_loss", "  ent %.3f");
    tell(t, &done->metrics, "train/grad_norm", "  grad %.3f");
    if (k == 0)
        tell_times_short(t, r);
}

/* --- events -------------------------------------------------------------------- */

static void say_text(const ml_console *c, ml_text *t) {
    c->display->say(t->ptr);
    ml_text_release(t);
}

static void show_batch(ml_console *c, const ml_iteration *r) {
    const ml_rollout_batch *h = &r->batch;
    char when[40];

    if (h->n && h->n_drawn && !c->summarized) {
        ml_startup_summary(
            h, ml_recipe_compares_rewards(c->recipe) && !h->sample[0]->has_shaped,
            c->display->say);
        c->summarized = true;
    } else if (h->n && c->print_every && r->rollout % c->print_every == 0) {
        snprintf(when, sizeof when, "rollout %lld", (long long)r->rollout);
        ml_show_sample(when, h->sample[0], c->display->say);
    }
}

static void show_step(const ml_console *c, const ml_iteration *r, int32_t k) {
    const ml_step_metrics *done = &r->result.step[k];
    ml_text t = { 0 };

    (c->display->compact ? tell_step_short : tell_step)(&t, r, k);
    if (done->has_step && !done->step.applied)
        ml_text_printf(&t, "; not applied: %s", done->step.bad);
    if (done->has_critic && !done->critic.applied)
        ml_text_printf(&t, "; not applied to the critic: %s", done->critic.bad);
    say_text(c, &t);
}

static void show_learned(const ml_console *c, const ml_iteration *r) {
    ml_text t = { 0 };

    for (int32_t k = 0; k < r->result.n_step; k++)
        show_step(c, r, k);
    if (r->result.n_step)
        return;
    ml_text_printf(&t, "rollout %lld: %lld samples, %lld tokens, %.2f s",
                   (long long)r->rollout, (long long)r->batch.n,
                   (long long)r->batch.n_drawn, ml_iteration_seconds(r));
    say_text(c, &t);
}

static void show_scores(const ml_console *c, const ml_loop_event *e) {
    ml_text t = { 0 };

    ml_text_printf(&t, "evaluation after rollout %lld:", (long long)e->rollout);
    say_text(c, &t);
    ml_eval_table(&e->scores->metrics, c->display->say);
}

ml_status ml_console_on(void *console, const ml_loop_event *e, ml_err *err) {
    ml_console *c = console;

    (void)err;
    if (e->kind == ML_ON_RUN_BEGIN && *e->what)
        c->display->say(e->what);
    if (e->kind == ML_ON_BATCH)
        show_batch(c, e->iteration);
    if (e->kind == ML_ON_LEARNED)
        show_learned(c, e->iteration);
    if (e->kind == ML_ON_EVALUATED)
        show_scores(c, e);
    return ML_OK;
}
