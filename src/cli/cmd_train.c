/* miles train and train-async: reinforcement learning. */
#include <math.h>

#include "cli/cli.h"
#include "cli/keys.h"
#include "cli/progress.h"
#include "cli/stop.h"
#include "cli/train_debug.h"
#include "cli/train_mode.h"
#include "cli/train_opts.h"
#include "plugin/resolve.h"
#include "rl/rollout/rollout_hooks.h"

typedef struct train_job {
    const ml_config *config;
    ml_train_run run;
    ml_train_gen gen; /* zeros: no generation */
    ml_loop_extensions extensions;
    ml_rollout_hooks around; /* the rollout */
    ml_train_dumps dumps;
    ml_text shared; /* settings that a resumed run must share */
    const char *teacher_url[ML_TEACHERS];
    ml_secret teacher_key;
} train_job;

/* --- options ---------------------------------------------------------------- */

/* If the context is limited, a prompt must leave space for an answer. */
static int64_t max_prompt(const ml_config *c) {
    int64_t most = c->rollout.max_context ? c->rollout.max_context - 1 : 0;
    return c->rollout.max_prompt ? c->rollout.max_prompt : most;
}

static ml_status run_opts(train_job *j, ml_train_run_opts *out, ml_err *err) {
    const ml_config *c = j->config;
    ml_status st = ml_train_opts(out, c, c->rollout.n_samples_per_prompt, err);

    if (st == ML_OK)
        st = ml_loop_extensions_resolve(&j->extensions, &c->extensions.path, err);
    if (st == ML_OK)
        st = ml_recipe_resolve(&out->recipe, &c->algo, err);
    if (st != ML_OK)
        return st;
    st = ml_train_models(out, j->teacher_url, c, err);
    if (st == ML_OK)
        st = ml_key_find(&j->teacher_key, c->models.teacher_key, c->models.teacher_key_file,
                         "--opd-teacher-api-key", err);
    if (st != ML_OK)
        return st;
    out->teacher_key = ml_key_text(&j->teacher_key);
    out->recipe.scale_rewards &= c->rollout.n_samples_per_prompt > 1;
    out->trainer.temperature = c->rollout.temperature;
    out->data.max_prompt_len = max_prompt(c);
    out->data.label_key = c->rollout.label_key;
    out->data.metadata_key = c->rollout.metadata_key;
    out->data.apply_chat_template = c->rollout.apply_chat_template;
    out->needs_template = c->rollout.apply_chat_template;
    out->learns_nothing = c->rollout.rollout_only;
    out->no_trim = c->train.no_trim;
    out->source.select = j->extensions.source;
    out->data.make = c->rollout.load_debug ? NULL : j->extensions.prompts;
    out->data.seed = c->train.rollout_seed;
    out->hooks = &j->extensions.hooks;
    out->backend.n_thread = ml_train_gen_threads(c, false);
    out->second_set = ml_train_gen_own_set(c);
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

/* Wraps the rollout with the extensions that process its samples. */
static ml_rollout with_extensions(train_job *j, ml_rollout inner) {
    const ml_config *c = j->config;

    j->around =
        (ml_rollout_hooks){ .inner = inner,
                            .inject = { c->record.inject, c->record.inject_from,
                                        c->record.inject_least, j->run.spec.n_vocab },
                            .rescore = { c->debug.prefill ? j->gen.gen : NULL, "the engine",
                                         (float)c->rollout.temperature },
                            .post = j->extensions.reward_post,
                            .filter = j->extensions.sample_filter,
                            .metrics = j->extensions.metrics,
                            .hook = j->extensions.samples_hook };
    return ml_rollout_with_hooks(&j->around);
}

static ml_status replay(train_job *j, ml_train_loop *loop, ml_err *err) {
    double keep = j->config->debug.subsample;
    ml_replay_rollout rollout = { .template = j->config->rollout.load_debug,
                                  .keep = isnan(keep) ? 0 : keep,
                                  .n_vocab = j->run.spec.n_vocab };

    loop->rollout = with_extensions(j, ml_rollout_replay(&rollout));
    return ml_train_loop_run(loop, err);
}

static ml_status generate(train_job *j, ml_train_loop *loop, const ml_display *display,
                          ml_err *err) {
    ml_status st = ml_train_gen_start(&j->gen, j->config, err);

    if (st == ML_OK)
        st = ml_train_mode_enter(&j->gen, loop, display, j->config, err);
    if (st == ML_OK)
        loop->rollout = with_extensions(j, loop->rollout);
    if (st == ML_OK)
        st = ml_train_loop_run(loop, err);
    ml_train_mode_leave(&j->gen);
    return st;
}

static ml_status train(train_job *j, ml_err *err) {
    ml_train_loop loop = { .run = &j->run, .stop = ml_stop_on_signals() };
    ml_display display = ml_progress_open(loop.stop, j->config->train.save);
    ml_train_debug debug = { 0 };
    ml_status st;

    st = ml_train_start(&j->run, ML_CMD_TRAIN, j->config, err);
    if (st != ML_OK) {
        ml_progress_end();
        return st;
    }
    st = ml_train_debug_open(&debug, &loop, &display, &j->dumps, j->config, err);
    if (st == ML_OK)
        st = j->config->rollout.load_debug ? replay(j, &loop, err)
                                           : generate(j, &loop, &display, err);
    ml_progress_end();
    if (st == ML_OK)
        ml_stop_tell(&loop, j->config);
    ml_train_debug_close(&debug);
    return st;
}

static ml_status open_job(train_job *j, ml_err *err) {
    ml_train_run_opts opts;
    ml_status st = ml_train_debug_begin(j->config, err);

    if (st == ML_OK)
        st = ml_train_dumps_open(&j->dumps, j->config, err);
    if (st == ML_OK)
        st = run_opts(j, &opts, err);
    if (st != ML_OK)
        return st;
    opts.trainer.dump_score = j->dumps.score;
    opts.trainer.dump_train = j->dumps.train;
    st = ml_train_run_open(&j->run, &opts, err);
    if (st != ML_OK || j->config->rollout.load_debug)
        return st;
    st = ml_train_gen_open(&j->gen, j->config, &j->extensions, &j->run, err);
    j->gen.engine.dump = j->dumps.inference;
    j->gen.engine.spans = ml_train_run_ops(&j->run, ML_SPAN_OTHER);
    return st == ML_OK ? ml_train_gen_bytes(&j->gen, err) : st;
}

ml_status ml_cmd_train(const ml_config *c, ml_err *err) {
    train_job j = { .config = c };
    ml_status st = open_job(&j, err);

    if (st == ML_OK)
        st = c->train.dry_run ? ml_train_print_memory(&j.run, err) : train(&j, err);
    ml_train_gen_close(&j.gen);
    ml_train_run_close(&j.run);
    ml_train_dumps_close(&j.dumps);
    ml_text_release(&j.shared);
    return st;
}
