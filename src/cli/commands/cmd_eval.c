/* miles eval: the evaluations of miles train, without training. */
#include <stdio.h>
#include <unistd.h>

#include "cli/cli.h"
#include "run/assembly.h"
#include "rl/eval/eval_table.h"

/* Prints a table, or JSON for programs. */
static ml_status evaluate(ml_assembly *parts, const ml_config *c, ml_err *err) {
    ml_eval_scores scores = { 0 };
    ml_text out = { 0 };
    ml_status st;

    ml_metrics_init(&scores.metrics, &parts->arena);
    st = ml_assembly_start(parts, &c->run, err);
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

ml_status ml_cmd_eval(const ml_config *c, ml_err *err) {
    ml_run_opts opts = c->run;
    ml_assembly parts = { 0 };
    ml_loop_extensions extensions = { 0 };
    ml_train_run run = { 0 };
    ml_status st = ml_loop_extensions_resolve(&extensions, &c->run.extensions.path, err);

    opts.needs_tokenizer = opts.learns_nothing = true;
    opts.needs_template = opts.data.apply_chat_template;
    if (st == ML_OK)
        st = ml_train_run_open(&run, &opts, err);
    if (st == ML_OK)
        st = ml_assembly_open(&parts, &c->run, &extensions, &run, err);
    if (st == ML_OK)
        st = ml_train_run_start(&run, err);
    if (st == ML_OK)
        st = evaluate(&parts, c, err);
    ml_assembly_close(&parts);
    ml_train_run_close(&run);
    return st;
}
