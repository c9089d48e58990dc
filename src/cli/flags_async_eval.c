/* Asynchronous evaluations, on their own engines. */
#include "cli/flag_rows.h"

#define TRAIN ML_CMD_TRAIN
#define GROUP "evaluation meanwhile"

/* In the order of ml_config's async_eval.overflow. */
static const char *const policies[] = { "backpressure", "skip", NULL };

const ml_flag ml_flags_async_eval[] = {
    { .name = "eval-num-gpus",
      .type = ML_FLAG_I64,
      ML_AT(async_eval.n_gpu),
      .value = "N",
      .def = "0",
      .min = 0,
      .max = 1024,
      .group = GROUP,
      .cmds = TRAIN,
      .from = ML_FROM_MILES,
      .help =
          "Evaluate while training goes on, by miles serve processes that the run starts "
          "for it, with N threads in all.  0: between two rounds." },
    { .name = "eval-num-gpus-per-engine",
      .type = ML_FLAG_I64,
      ML_AT(async_eval.per_engine),
      .value = "N",
      .def = "1",
      .min = 1,
      .max = 1024,
      .group = GROUP,
      .cmds = TRAIN,
      .from = ML_FROM_MILES,
      .help = "Threads of each of these processes." },
    { .name = "eval-hf-dir",
      .type = ML_FLAG_PATH,
      ML_AT(async_eval.dir),
      .value = "DIR",
      .def_note = "eval_snapshots in the directory of --save",
      .group = GROUP,
      .cmds = TRAIN,
      .from = ML_FROM_MILES,
      .help =
          "Where weights wait to be evaluated: DIR/step_19, a Hugging Face checkpoint." },
    { .name = "eval-max-in-flight",
      .type = ML_FLAG_I64,
      ML_AT(async_eval.max_in_flight),
      .value = "N",
      .def = "2",
      .min = 1,
      .max = 1000,
      .group = GROUP,
      .cmds = TRAIN,
      .from = ML_FROM_MILES,
      .help = "Evaluations that may be under way.  Their figures are written when the next "
              "one needs room, when the run is saved, or at its end." },
    { .name = "eval-overflow-policy",
      .type = ML_FLAG_WORD,
      ML_AT(async_eval.overflow),
      .words = policies,
      .def = "backpressure",
      .group = GROUP,
      .cmds = TRAIN,
      .from = ML_FROM_MILES,
      .help = "When there is no room: wait for the oldest, or leave one out and write "
              "eval/skipped_busy; what a run writes then depends on the clock." },
    { .name = "eval-keep-snapshots",
      .type = ML_FLAG_I64,
      ML_AT(async_eval.keep),
      .value = "N",
      .def = "2",
      .min = 0,
      .max = 1e6,
      .group = GROUP,
      .cmds = TRAIN,
      .from = ML_FROM_MILES,
      .help = "Snapshots of --eval-hf-dir that stay when they have been evaluated." },
    { 0 },
};
