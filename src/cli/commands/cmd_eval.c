/* miles eval: the evaluations of miles train, without training.  With several ranks, rank 0
 * evaluates on the engines of all. */
#include <stdio.h>
#include <unistd.h>

#include "cli/cli.h"
#include "run/assembly.h"
#include "run/heartbeat.h"
#include "run/rank_messages.h"
#include "rl/eval/eval_table.h"

/* Prints a table, or JSON for programs. */
static ml_status evaluate(ml_assembly *parts, const ml_run_opts *c, ml_err *err) {
    ml_eval_scores scores = { 0 };
    ml_text out = { 0 };
    ml_status st;

    ml_metrics_init(&scores.metrics, &parts->arena);
    st = ml_assembly_start(parts, c, err);
    if (!ml_run_ranks_first(&c->ranks))
        return st;
    if (st == ML_OK)
        st = ml_evals_run(&parts->evaluator.evals, &scores, err);
    if (st == ML_OK && isatty(STDOUT_FILENO) == 1) {
        ml_eval_table(&scores.metrics, ml_print_line);
    } else if (st == ML_OK) {
        ml_metrics_write(&out, &scores.metrics);
        printf("{%s}\n", out.ptr);
    }
    ml_text_release(&out);
    return st;
}

static ml_status run_evals(ml_run_opts *c, ml_err *err) {
    ml_assembly parts = { 0 };
    ml_loop_extensions extensions = { 0 };
    ml_train_run run = { 0 };
    ml_heartbeat_opts beats = ml_heartbeat_times(&c->place);
    ml_heartbeat *heartbeat = NULL;
    ml_run_opts opts;
    ml_status st;

    ml_run_ranks_place(c);
    st = ml_run_ranks_open(&c->ranks, c->ranks.world, &c->place, err);
    if (st == ML_OK)
        st = ml_run_ranks_check(&c->ranks, c, err);
    if (st == ML_OK)
        st = ml_heartbeat_open(&heartbeat, c->ranks.world, &beats, err);
    c->backend.n_thread = ml_run_ranks_threads(&c->ranks, c->backend.n_thread);
    opts = *c;
    opts.needs_tokenizer = opts.learns_nothing = true;
    opts.needs_template = opts.data.apply_chat_template;
    if (st == ML_OK)
        st = ml_loop_extensions_resolve(&extensions, &c->extensions.path, err);
    opts.data.tools = extensions.tools;
    if (st == ML_OK)
        st = ml_train_run_open(&run, &opts, err);
    if (st == ML_OK)
        st = ml_reward_models_open(c, err);
    if (st == ML_OK)
        st = ml_assembly_open(&parts, c, &extensions, &run, err);
    if (st == ML_OK)
        st = ml_train_run_start(&run, err);
    if (st == ML_OK)
        st = ml_rank_messages_meet(c->ranks.world, err);
    if (st == ML_OK)
        st = evaluate(&parts, c, err);
    st = ml_comm_agree(c->ranks.world, st, err);
    if (st == ML_OK)
        st = ml_rank_messages_meet(c->ranks.world, err);
    ml_assembly_close(&parts);
    ml_reward_models_close(&c->reward);
    ml_train_run_close(&run);
    ml_loop_extensions_close();
    ml_heartbeat_close(heartbeat);
    ml_run_ranks_close(&c->ranks);
    return st;
}

ml_status ml_cmd_eval(const ml_config *c, ml_err *err) {
    ml_run_opts opts = c->run;

    return run_evals(&opts, err);
}
