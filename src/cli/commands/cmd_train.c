/* miles train and train-async: reinforcement learning. */
#include <math.h>

#include "cli/cli.h"
#include "cli/machine.h"
#include "cli/progress.h"
#include "cli/stop.h"
#include "run/debug.h"
#include "run/assembly.h"
#include "run/opts.h"
#include "rl/rollout/rollout_hooks.h"

typedef struct train_job {
    const ml_config *config;
    ml_arena arena;
    ml_train_run run;
    ml_assembly parts; /* zeros: no generation */
    ml_loop_extensions extensions;
    ml_rollout_hooks around; /* the rollout */
    ml_train_dumps dumps;
} train_job;

/* Wraps the rollout with the extensions that process its samples. */
static ml_rollout with_extensions(train_job *j, ml_rollout inner) {
    const ml_config *c = j->config;

    j->around = (ml_rollout_hooks){
        .inner = inner,
        .inject = { c->run.record.inject, c->run.record.inject_from,
                    c->run.record.inject_least, j->run.spec.n_vocab },
        .rescore = { c->run.debug.prefill ? j->parts.generator.gen : NULL, "the engine",
                     (float)c->run.rollout.temperature },
        .post = j->extensions.reward_post,
        .filter = j->extensions.sample_filter,
        .metrics = j->extensions.metrics,
        .hook = j->extensions.samples_hook
    };
    return ml_rollout_with_hooks(&j->around);
}

static ml_status replay(train_job *j, ml_train_loop *loop, ml_err *err) {
    double keep = j->config->run.debug.subsample;
    ml_replay_rollout rollout = { .template = j->config->run.rollout.load_debug,
                                  .keep = isnan(keep) ? 0 : keep,
                                  .n_vocab = j->run.spec.n_vocab };

    loop->rollout = with_extensions(j, ml_rollout_replay(&rollout));
    return ml_train_loop_run(loop, err);
}

static ml_status generate(train_job *j, ml_train_loop *loop, ml_err *err) {
    ml_status st = ml_assembly_start(&j->parts, &j->config->run, err);

    if (st == ML_OK)
        st = ml_assembly_join(&j->parts, loop, &j->config->run, err);
    if (st == ML_OK)
        loop->rollout = with_extensions(j, loop->rollout);
    if (st == ML_OK)
        st = ml_train_loop_run(loop, err);
    ml_rollouts_stop(&j->parts.rollouts);
    return st;
}

static ml_status train(train_job *j, ml_err *err) {
    ml_train_loop loop = { .run = &j->run, .stop = ml_stop_on_signals() };
    ml_train_debug debug = { 0 };
    ml_status st;

    loop.watch = ml_progress_watch(loop.stop, j->config->run.save);
    st = ml_train_start(&j->run, &j->config->run, loop.watch.say, err);
    if (st == ML_OK)
        st = ml_flags_save(ML_CMD_TRAIN, j->config, j->run.saver ? j->run.opts.save : NULL,
                           j->run.snapshot ? j->run.opts.load : NULL, err);
    if (st != ML_OK) {
        ml_progress_end();
        return st;
    }
    st = ml_train_debug_open(&debug, &loop, &j->dumps, &j->config->run, err);
    if (st == ML_OK)
        st = j->config->run.rollout.load_debug ? replay(j, &loop, err)
                                               : generate(j, &loop, err);
    ml_progress_end();
    if (st == ML_OK)
        ml_stop_tell(&loop, j->config);
    ml_train_debug_close(&debug);
    return st;
}

static ml_status open_job(train_job *j, ml_err *err) {
    ml_run_opts opts = j->config->run;
    ml_status st = ml_train_debug_begin(&j->config->run, err);

    if (st == ML_OK && j->config->run.debug.env_report)
        st = ml_machine_print(err);
    if (st == ML_OK)
        st = ml_train_dumps_open(&j->dumps, &j->config->run, err);
    if (st == ML_OK)
        st = ml_run_opts_train(&opts, &j->arena, &j->extensions, err);
    opts.backend.n_thread = ml_generator_threads(&opts, false);
    if (st != ML_OK)
        return st;
    opts.trainer.dump_score = j->dumps.score;
    opts.trainer.dump_train = j->dumps.train;
    st = ml_train_run_open(&j->run, &opts, err);
    if (st != ML_OK || j->config->run.rollout.load_debug)
        return st;
    st = ml_assembly_open(&j->parts, &j->config->run, &j->extensions, &j->run, err);
    j->parts.generator.engine.dump = j->dumps.inference;
    j->parts.generator.engine.spans = ml_train_run_ops(&j->run, ML_SPAN_OTHER);
    return st;
}

ml_status ml_cmd_train(const ml_config *c, ml_err *err) {
    train_job j = { .config = c };
    ml_status st;

    ml_arena_init(&j.arena, "options");
    st = open_job(&j, err);

    if (st == ML_OK)
        st = c->run.dry_run ? ml_train_show_memory(&j.run, ml_print_line, err)
                            : train(&j, err);
    ml_assembly_close(&j.parts);
    ml_train_run_close(&j.run);
    ml_train_dumps_close(&j.dumps);
    ml_arena_release(&j.arena);
    return st;
}
