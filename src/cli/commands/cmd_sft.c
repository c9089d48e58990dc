/* miles sft: supervised fine-tuning on conversations. */
#include "cli/cli.h"
#include "cli/machine.h"
#include "cli/progress.h"
#include "cli/stop.h"
#include "run/debug.h"
#include "run/train_loop.h"

static ml_status train(ml_train_run *r, const ml_train_dumps *dumps, const ml_config *c,
                       ml_err *err) {
    ml_sft_rollout rollout;
    ml_train_debug debug = { 0 };
    ml_prompt_feed feed = ml_train_run_feed(r);
    ml_train_loop loop = { .run = r, .stop = ml_stop_on_signals() };
    ml_status st;

    loop.watch = ml_progress_watch(loop.stop, c->run.save);
    st = ml_train_start(r, &c->run, loop.watch.say, err);
    if (st == ML_OK)
        st = ml_flags_save(ML_CMD_SFT, c, r->saver ? r->opts.save : NULL,
                           r->snapshot ? r->opts.load : NULL, err);
    if (st != ML_OK) {
        ml_progress_end();
        return st;
    }
    ml_sft_rollout_init(&rollout, &feed, r->tokenizer, r->chat_template);
    loop.rollout = ml_rollout_sft(&rollout);
    st = ml_train_debug_open(&debug, &loop, dumps, &c->run, err);
    if (st == ML_OK)
        st = ml_train_loop_run(&loop, err);
    ml_progress_end();
    if (st == ML_OK)
        ml_stop_tell(&loop, c);
    ml_train_debug_close(&debug);
    ml_sft_rollout_release(&rollout);
    return st;
}

ml_status ml_cmd_sft(const ml_config *c, ml_err *err) {
    ml_run_opts opts = c->run;
    ml_train_dumps dumps = { 0 };
    ml_train_run run = { 0 };
    ml_arena arena;
    ml_status st = ml_train_debug_begin(&c->run, err);

    ml_arena_init(&arena, "options");
    if (st == ML_OK && c->run.debug.env_report)
        st = ml_machine_print(err);
    if (st == ML_OK)
        st = ml_run_opts_sft(&opts, &arena, err);
    if (st == ML_OK)
        st = ml_train_dumps_open(&dumps, &c->run, err);
    opts.trainer.dump_score = dumps.score;
    opts.trainer.dump_train = dumps.train;
    if (st == ML_OK)
        st = ml_train_run_open(&run, &opts, err);
    if (st == ML_OK)
        st = c->run.dry_run ? ml_train_show_memory(&run, ml_print_line, err)
                            : train(&run, &dumps, c, err);
    ml_train_run_close(&run);
    ml_train_dumps_close(&dumps);
    ml_arena_release(&arena);
    return st;
}
