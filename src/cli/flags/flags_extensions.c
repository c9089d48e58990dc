/* Extensions of the RL loop. */
#include "cli/flags/flag_rows.h"

#define TRAIN ML_CMD_TRAIN
#define GENERATES (ML_CMD_TRAIN | ML_CMD_EVAL)

/* In the order of ml_tool_format. */
static const char *const tool_formats[] = { "none",        "qwen25",     "llama3",
                                            "mistral",     "deepseekv3", "deepseekv31",
                                            "deepseekv32", "glm45",      "kimi_k2",
                                            "qwen3_coder", "minimax-m2", "pythonic",
                                            "gpt-oss",     NULL };

const ml_flag ml_flags_extensions[] = {
    { .name = "plugin",
      .type = ML_FLAG_PATH,
      ML_AT(run.extensions.plugin),
      .value = "FILE",
      .group = "extensions",
      .cmds = ML_CMD_LIST,
      .from = ML_FROM_OURS,
      .help = "Also list the extensions of this shared object." },
    { .name = "custom-generate-function-path",
      .type = ML_FLAG_TEXT,
      ML_AT(run.extensions.generate),
      .value = "PATH",
      .group = "extensions",
      .cmds = GENERATES,
      .help = "Python function that generates a sample, package.module.function; or an "
              "environment that replies to the model after each turn: ./env.py with a "
              "function turn(conversation), cmd:COMMAND for a program that answers JSON "
              "lines, ./my.so:name for a shared object, sandbox, calculator, or Miles' "
              "miles.rollout.generate_hub.multi_turn.generate." },
    { .name = "generate-max-turns",
      .type = ML_FLAG_I64,
      ML_AT(run.turns.max_turn),
      .def = "16",
      .min = 1,
      .max = 1e6,
      .group = "extensions",
      .cmds = GENERATES,
      .help = "Maximum number of model turns." },
    { .name = "generate-tool-call-parser",
      .type = ML_FLAG_WORD,
      ML_AT(run.turns.tools),
      .words = tool_formats,
      .def = "qwen25",
      .group = "extensions",
      .cmds = GENERATES,
      .help = "Format of tool calls in responses." },
    { .name = "generate-execute-tool-function-path",
      .type = ML_FLAG_TEXT,
      ML_AT(run.extensions.execute_tool),
      .value = "PATH",
      .group = "extensions",
      .cmds = GENERATES,
      .help = "Function that executes tool calls: ./tools.py with a function "
              "execute_tool(name, arguments), sandbox or calculator." },
    { .name = "rollout-function-path",
      .type = ML_FLAG_TEXT,
      ML_AT(run.extensions.path.rollout),
      .value = "PATH",
      .group = "extensions",
      .help =
          "Custom rollout function: selects the prompts, and which samples to train on: "
          "package.module.function, ./file.py:function or ./my.so:name.  The names of "
          "Miles' own functions select the built-in one." },
    { .name = "data-source-path",
      .type = ML_FLAG_TEXT,
      ML_AT(run.extensions.path.source),
      .value = "PATH",
      .group = "extensions",
      .help = "Custom data source: a Python class with Miles' get_samples, add_samples, "
              "save and load, package.module.Class or ./file.py:Class; or ./my.so:name, "
              "which selects the next prompt." },
    { .name = "buffer-filter-path",
      .type = ML_FLAG_TEXT,
      ML_AT(run.extensions.path.buffer_filter),
      .value = "PATH",
      .group = "extensions",
      .help = "--partial-rollout: selects the unfinished groups to continue: "
              "package.module.function, ./file.py:function or ./my.so:name." },
    { .name = "custom-reward-post-process-path",
      .type = ML_FLAG_TEXT,
      ML_AT(run.extensions.path.reward_post),
      .value = "PATH",
      .group = "extensions",
      .help = "Custom transformation of rewards, instead of normalisation within groups: "
              "package.module.function, ./file.py:function or ./my.so:name." },
    { .name = "rollout-sample-filter-path",
      .type = ML_FLAG_TEXT,
      ML_AT(run.extensions.path.sample_filter),
      .value = "PATH",
      .group = "extensions",
      .help = "Selects the samples of a rollout that are not trained on: "
              "package.module.function, ./file.py:function or ./my.so:name." },
    { .name = "rollout-all-samples-process-path",
      .type = ML_FLAG_TEXT,
      ML_AT(run.extensions.path.samples_hook),
      .value = "PATH",
      .group = "extensions",
      .help = "Called with all samples of a rollout, including dropped groups: "
              "package.module.function, ./file.py:function or ./my.so:name." },
    { .name = "custom-rollout-log-function-path",
      .type = ML_FLAG_TEXT,
      ML_AT(run.extensions.path.metrics),
      .value = "PATH",
      .group = "extensions",
      .help = "Adds metrics to a rollout: package.module.function, ./file.py:function or "
              "./my.so:name." },
    { .name = "custom-eval-rollout-log-function-path",
      .type = ML_FLAG_TEXT,
      ML_AT(run.extensions.path.eval_metrics),
      .value = "PATH",
      .group = "extensions",
      .cmds = GENERATES,
      .help = "Adds metrics to an evaluation: package.module.function, ./file.py:function "
              "or ./my.so:name." },
    { .name = "custom-megatron-init-path",
      .type = ML_FLAG_TEXT,
      ML_AT(run.extensions.path.after_init),
      .value = "PATH",
      .group = "extensions",
      .help = "Called before a run starts: package.module.function, ./file.py:function or "
              "./my.so:name." },
    { .name = "custom-megatron-before-log-prob-hook-path",
      .type = ML_FLAG_TEXT,
      ML_AT(run.extensions.path.before_log_prob),
      .value = "PATH",
      .group = "extensions",
      .help = "Called before each forward-only pass: package.module.function, "
              "./file.py:function or ./my.so:name." },
    { .name = "custom-megatron-before-train-step-hook-path",
      .type = ML_FLAG_TEXT,
      ML_AT(run.extensions.path.before_train_step),
      .value = "PATH",
      .group = "extensions",
      .help = "Called before each optimizer step: package.module.function, "
              "./file.py:function or ./my.so:name." },
    { .name = "custom-megatron-post-save-hook-path",
      .type = ML_FLAG_TEXT,
      ML_AT(run.extensions.path.after_save),
      .value = "PATH",
      .group = "extensions",
      .help = "Called after a snapshot has been written: package.module.function, "
              "./file.py:function or ./my.so:name." },
    { .name = "eval-function-path",
      .type = ML_FLAG_TEXT,
      ML_AT(run.extensions.path.eval),
      .value = "PATH",
      .group = "extensions",
      .cmds = GENERATES,
      .help = "Custom evaluation: selects the data sets and computes the metrics: "
              "package.module.function, ./file.py:function or ./my.so:name." },
    { .name = "custom-async-data-buffer-path",
      .type = ML_FLAG_TEXT,
      ML_AT(run.extensions.path.buffer),
      .value = "PATH",
      .group = "extensions",
      .help = "--fully-async: selects the queued groups for the next rollout, and those to "
              "drop: a Python class with Miles' put, get and get_metrics, "
              "package.module.Class or ./file.py:Class; or ./my.so:name." },
    { .name = "disable-rollout-global-dataset",
      .type = ML_FLAG_BOOL,
      ML_AT(run.extensions.path.makes_prompts),
      .group = "extensions",
      .help = "Do not read --prompt-data: --data-source-path creates the prompts." },
    { .name = "rollout-data-postprocess-path",
      .type = ML_FLAG_TEXT,
      ML_AT(run.extensions.path.data_ready),
      .value = "PATH",
      .group = "extensions",
      .help = "Called with the training data of a rollout, including log-probs and "
              "advantages, before its first step: package.module.function, "
              "./file.py:function or ./my.so:name." },
    { .name = "custom-update-weight-post-write-path",
      .type = ML_FLAG_TEXT,
      ML_AT(run.extensions.path.weights_written),
      .value = "PATH",
      .group = "extensions",
      .help = "Called after weights for remote engines are written and before the engines "
              "load them, for example to copy them: package.module.function, "
              "./file.py:function or ./my.so:name." },
    { .name = "custom-convert-samples-to-train-data-path",
      .type = ML_FLAG_TEXT,
      ML_AT(run.extensions.path.convert),
      .value = "PATH",
      .group = "extensions",
      .help = "Python function (args, samples) that returns the columns of the training "
              "data, instead of the samples with normalised rewards: "
              "package.module.function or ./file.py:function." },
    { .name = "generate-tool-specs-path",
      .type = ML_FLAG_TEXT,
      ML_AT(run.extensions.path.tool_specs),
      .value = "PATH",
      .group = "extensions",
      .cmds = GENERATES,
      .help = "Python list of the tools that prompts describe to the model, for rows "
              "without tools under --tool-key: package.module.NAME or ./file.py:NAME." },
    ML_NOOP("log-multi-turn", BOOL, MILES, TRAIN,
            "metrics of turns are always written when there is an environment"),
    { 0 },
};
