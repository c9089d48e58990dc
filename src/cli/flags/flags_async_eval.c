/* Asynchronous evaluations, on their own engines. */
#include "cli/flags/flag_rows.h"

#define GROUP "asynchronous evaluation"

/* In the order of ml_config's async_eval.overflow. */
static const char *const policies[] = { "backpressure", "skip", NULL };

const ml_flag ml_flags_async_eval[] = {
    { .name = "eval-num-gpus",
      .type = ML_FLAG_I64,
      ML_AT(run.eval_gpus),
      .def = "0",
      .min = 0,
      .max = 1024,
      .group = GROUP,
      .help = "Evaluate concurrently with training, on miles serve processes that the run "
              "starts, with N threads in total.  0: evaluate between rollouts." },
    { .name = "eval-num-gpus-per-engine",
      .type = ML_FLAG_I64,
      ML_AT(run.eval_gpus_per_engine),
      .def = "1",
      .min = 1,
      .max = 1024,
      .group = GROUP,
      .help = "Threads per evaluation process." },
    { .name = "eval-hf-dir",
      .type = ML_FLAG_PATH,
      ML_AT(run.eval_queue.dir),
      .value = "DIR",
      .def_note = "eval_snapshots in the directory of --save",
      .group = GROUP,
      .help =
          "Directory of the weights to evaluate: DIR/step_19, a Hugging Face checkpoint." },
    { .name = "eval-max-in-flight",
      .type = ML_FLAG_I64,
      ML_AT(run.eval_queue.max_in_flight),
      .def = "2",
      .min = 1,
      .max = 1000,
      .group = GROUP,
      .help = "Maximum number of evaluations in flight.  Their metrics are written when "
              "the next evaluation needs a slot, when the run is saved, or at its end." },
    { .name = "eval-overflow-policy",
      .type = ML_FLAG_WORD,
      ML_AT(run.eval_queue.skip),
      .words = policies,
      .def = "backpressure",
      .group = GROUP,
      .help = "When --eval-max-in-flight is reached: wait for the oldest evaluation, or "
              "skip the new one and write eval/skipped_busy; the metrics of a run then "
              "depend on timing." },
    { .name = "eval-keep-snapshots",
      .type = ML_FLAG_I64,
      ML_AT(run.eval_queue.keep),
      .def = "2",
      .min = 0,
      .max = 1e6,
      .group = GROUP,
      .help = "Number of evaluated snapshots to keep in --eval-hf-dir." },
    { 0 },
};
