/* miles eval: the evaluations of miles train, without training. */
#include <stdio.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/train_gen.h"
#include "cli/train_opts.h"
#include "rl/eval/eval_table.h"

static void print_line(const char *line) {
    puts(line);
}

/* Prints a table, or JSON for programs. */
static ml_status evaluate(ml_train_gen *t, const ml_config *c, ml_err *err) {
    ml_eval_scores scores = { 0 };
    ml_text out = { 0 };
    ml_status st;

    ml_metrics_init(&scores.metrics, &t->arena);
    st = ml_train_gen_start(t, c, err);
    if (st == ML_OK)
        st = ml_evals_run(&t->evals, &scores, err);
    if (st == ML_OK && isatty(STDOUT_FILENO) == 1) {
        ml_eval_table(&scores.metrics, print_line);
    } else if (st == ML_OK) {
        ml_metrics_write(&out, &scores.metrics);
        printf("{%s}\n", out.ptr);
    }
    ml_text_release(&out);
    return st;
}

ml_status ml_cmd_eval(const ml_config *c, ml_err *err) {
    ml_train_run_opts opts = {
        .hf_checkpoint = c->hf_checkpoint,
        .dtype = ml_train_dtype(c),
        .backend = ml_config_backend(c),
        .chat_template = c->chat.chat_template,
        .data = { .input_key = c->train.input_key,
                  .tool_key = c->train.tool_key,
                  .label_key = c->rollout.label_key,
                  .metadata_key = c->rollout.metadata_key,
                  .apply_chat_template = c->rollout.apply_chat_template,
                  .template_kwargs = c->train.template_kwargs },
        .needs_tokenizer = true,
        .needs_template = c->rollout.apply_chat_template,
        .learns_nothing = true,
    };
    ml_train_gen gen = { 0 };
    ml_loop_extensions extensions = { 0 };
    ml_train_run run = { 0 };
    ml_status st = ml_loop_extensions_resolve(&extensions, &c->extensions.path, err);

    if (st == ML_OK)
        st = ml_train_run_open(&run, &opts, err);
    if (st == ML_OK)
        st = ml_train_gen_open(&gen, c, &extensions, &run, err);
    if (st == ML_OK)
        st = ml_train_run_start(&run, err);
    if (st == ML_OK)
        st = evaluate(&gen, c, err);
    ml_train_gen_close(&gen);
    ml_train_run_close(&run);
    return st;
}
