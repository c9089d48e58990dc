/* miles train and train-async: reinforcement learning.  miles sft: supervised fine-tuning on
 * conversations, by the same loop. */
#include "cli/cli.h"
#include "cli/machine.h"
#include "cli/progress.h"
#include "cli/stop.h"
#include "run/assembly.h"
#include "run/debug.h"

typedef struct train_job {
    const ml_config *config;
    ml_cmd cmd;
    ml_arena arena; /* of options */
    ml_loop_extensions extensions;
    ml_train_dumps dumps;
    ml_train_run run;
    ml_assembly parts;
} train_job;

static ml_status open_job(train_job *j, ml_err *err) {
    const ml_run_opts *c = &j->config->run;
    bool sft = j->cmd == ML_CMD_SFT;
    ml_run_opts opts = *c;
    ml_status st = ML_OK;

    if (c->debug.env_vars)
        st = ml_train_set_variables(c->debug.env_vars, err);
    if (st == ML_OK && c->debug.env_report)
        st = ml_machine_print(err);
    if (st == ML_OK)
        st = ml_train_dumps_open(&j->dumps, c, err);
    if (st == ML_OK)
        st = sft ? ml_run_opts_sft(&opts, &j->arena, err)
                 : ml_run_opts_train(&opts, &j->arena, &j->extensions, err);
    if (st != ML_OK)
        return st;
    opts.trainer.dump_score = j->dumps.score;
    opts.trainer.dump_train = j->dumps.train;
    st = ml_train_run_open(&j->run, &opts, err);
    if (st == ML_OK)
        st = ml_assembly_open(&j->parts, c, sft ? NULL : &j->extensions, &j->run, err);
    j->parts.generator.engine.dump = j->dumps.inference;
    j->parts.generator.engine.spans = ml_train_run_ops(&j->run, ML_SPAN_OTHER);
    return st;
}

static ml_status run_loop(train_job *j, ml_train_loop *loop, const ml_display *display,
                          ml_err *err) {
    const ml_run_opts *c = &j->config->run;
    ml_train_debug debug = { 0 };
    ml_status st = ml_train_debug_open(&debug, loop, display, &j->dumps, c, err);

    if (st == ML_OK)
        st = ml_assembly_start(&j->parts, c, err);
    if (st == ML_OK)
        st = ml_assembly_join(&j->parts, loop, display, c, err);
    if (st == ML_OK)
        st = ml_train_loop_run(loop, err);
    ml_rollouts_stop(&j->parts.rollouts);
    ml_train_debug_close(&debug);
    return st;
}

static ml_status train(train_job *j, ml_err *err) {
    ml_train_loop loop = { .run = &j->run, .stop = ml_stop_on_signals() };
    ml_display display = ml_progress_open(loop.stop, j->config->run.save);
    ml_status st = ml_train_start(&j->run, &j->config->run, display.say, err);

    if (st == ML_OK)
        st = ml_flags_save(j->cmd, j->config, j->run.saver ? j->run.opts.save : NULL,
                           j->run.snapshot ? j->run.opts.load : NULL, err);
    if (st == ML_OK)
        st = run_loop(j, &loop, &display, err);
    ml_progress_end();
    if (st == ML_OK)
        ml_stop_tell(&loop, j->config);
    return st;
}

static ml_status run_command(const ml_config *c, ml_cmd cmd, ml_err *err) {
    train_job j = { .config = c, .cmd = cmd };
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

ml_status ml_cmd_train(const ml_config *c, ml_err *err) {
    return run_command(c, ML_CMD_TRAIN, err);
}

ml_status ml_cmd_sft(const ml_config *c, ml_err *err) {
    return run_command(c, ML_CMD_SFT, err);
}
