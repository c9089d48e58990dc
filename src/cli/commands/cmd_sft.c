/* miles sft: supervised fine-tuning on conversations. */
#include "cli/cli.h"
#include "cli/progress.h"
#include "cli/stop.h"
#include "cli/train_debug.h"
#include "cli/train_opts.h"
#include "rl/builtins.h"
#include "rl/loop/train_loop.h"

static ml_recipe recipe_of(const ml_config *c) {
    return (ml_recipe){ .num = { .size = sizeof(miles_algo),
                                 .calculate_per_token_loss = c->train.per_token },
                        .loss = &ml_loss_sft };
}

static ml_status train(ml_train_run *r, ml_train_dumps *dumps, const ml_config *c,
                       ml_err *err) {
    ml_sft_rollout rollout;
    ml_train_debug debug = { 0 };
    ml_train_loop loop = { .run = r, .stop = ml_stop_on_signals() };
    ml_display display = ml_progress_open(loop.stop, c->train.save);
    ml_status st;

    st = ml_train_start(r, ML_CMD_SFT, c, err);
    if (st != ML_OK) {
        ml_progress_end();
        return st;
    }
    ml_sft_rollout_init(&rollout, r);
    loop.rollout = ml_rollout_sft(&rollout);
    st = ml_train_debug_open(&debug, &loop, &display, dumps, c, err);
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
    ml_train_run_opts opts;
    ml_train_dumps dumps;
    ml_train_run run = { 0 };
    ml_text shared = { 0 };
    ml_status st = ml_train_debug_begin(c, err);

    if (st == ML_OK)
        st = ml_train_opts(&opts, c, 1, err);
    if (st != ML_OK)
        return st;
    st = ml_train_dumps_open(&dumps, c, err);
    opts.trainer.dump_score = dumps.score;
    opts.trainer.dump_train = dumps.train;
    opts.recipe = recipe_of(c);
    opts.needs_template = true;
    ml_text_printf(&shared, "{");
    ml_train_opts_text(&shared, &opts, c);
    ml_text_printf(&shared, "}");
    opts.config = (ml_str){ shared.ptr, shared.len };
    if (st == ML_OK)
        st = ml_train_run_open(&run, &opts, err);
    if (st == ML_OK)
        st = c->train.dry_run ? ml_train_print_memory(&run, err)
                              : train(&run, &dumps, c, err);
    ml_train_run_close(&run);
    ml_train_dumps_close(&dumps);
    ml_text_release(&shared);
    return st;
}
