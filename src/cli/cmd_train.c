/* miles train: reinforcement learning. */
#include "cli/cli.h"
#include "cli/stop.h"
#include "cli/train_opts.h"
#include "plugin/resolve.h"
#include "rl/train_loop.h"

typedef struct train_job {
    const ml_config *config;
    ml_train_run run;
    ml_text shared; /* what a resumed run must share */
} train_job;

/* --- options ---------------------------------------------------------------- */

static bool needs_reference(const ml_algo_opts *o) {
    return o->num.use_kl_loss || o->num.kl_coef != 0.0;
}

static ml_status run_opts(train_job *j, ml_train_run_opts *out, ml_err *err) {
    const ml_config *c = j->config;
    ml_status st = ml_train_opts(out, c, c->rollout.n_samples_per_prompt, err);

    if (st == ML_OK)
        st = ml_recipe_resolve(&out->recipe, &c->algo, err);
    if (st != ML_OK)
        return st;
    if (out->recipe.critic_loss)
        return ml_fail(err, ML_EUNSUP,
                       "--advantage-estimator %s needs a critic, which there is not yet: "
                       "use grpo, gspo or reinforce_plus_plus",
                       c->algo.advantage_estimator);
    out->recipe.scale_rewards &= c->rollout.n_samples_per_prompt > 1;
    if (needs_reference(&c->algo))
        out->ref_load = c->rollout.ref_load ? c->rollout.ref_load : c->hf_checkpoint;
    out->trainer.temperature = c->rollout.temperature;
    out->data.label_key = c->rollout.label_key;
    out->data.metadata_key = c->rollout.metadata_key;
    out->data.apply_chat_template = c->rollout.apply_chat_template;
    out->needs_template = c->rollout.apply_chat_template;
    if (c->rollout.load_debug)
        out->data.path = NULL;
    ml_text_printf(&j->shared, "{");
    ml_train_opts_text(&j->shared, out, c);
    ml_text_printf(&j->shared,
                   ", \"advantage_estimator\": \"%s\", \"loss_type\": \"%s\", "
                   "\"rollout_temperature\": %.17g}",
                   c->algo.advantage_estimator, c->algo.loss_type, c->rollout.temperature);
    out->config = (ml_str){ j->shared.ptr, j->shared.len };
    return ML_OK;
}

/* --- training --------------------------------------------------------------- */

static ml_status replay(train_job *j, ml_train_loop *loop, ml_err *err) {
    ml_replay_rollout rollout = { .template = j->config->rollout.load_debug };

    loop->rollout = ml_rollout_replay(&rollout);
    return ml_train_loop_run(loop, err);
}

static ml_status train(train_job *j, ml_err *err) {
    ml_train_loop loop = { .run = &j->run,
                           .record = j->config->rollout.save_debug,
                           .learn_nothing = j->config->rollout.rollout_only,
                           .stop = ml_stop_on_signals(),
                           .say = ml_train_say };
    ml_status st = ml_train_check_memory(&j->run, err);

    if (st == ML_OK)
        st = ml_train_run_start(&j->run, err);
    return st == ML_OK ? replay(j, &loop, err) : st;
}

ml_status ml_cmd_train(const ml_config *c, ml_err *err) {
    train_job j = { .config = c };
    ml_train_run_opts opts;
    ml_status st = run_opts(&j, &opts, err);

    if (st == ML_OK) {
        st = ml_train_run_open(&j.run, &opts, err);
        if (st == ML_OK)
            st = c->train.dry_run ? ml_train_print_memory(&j.run, err) : train(&j, err);
        ml_train_run_close(&j.run);
    }
    ml_text_release(&j.shared);
    return st;
}
