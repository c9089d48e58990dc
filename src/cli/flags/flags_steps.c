/* How an engine runs its steps on a GPU.  The results are the same either way. */
#include "cli/flags/flag_rows.h"

#define STEP_ROWS(prefix, where, commands)                                                 \
    { .name = prefix "disable-overlap-schedule",                                           \
      .type = ML_FLAG_BOOL,                                                                \
      ML_AT(where.no_overlap),                                                             \
      .group = "engine",                                                                   \
      .cmds = commands,                                                                    \
      .from = ML_FROM_SGLANG,                                                              \
      .help = "Disable overlap scheduling on a GPU: each step waits for the tokens of "    \
              "the previous one." },                                                       \
        { .name = prefix "disable-cuda-graph",                                             \
          .type = ML_FLAG_BOOL,                                                            \
          ML_AT(where.no_record),                                                          \
          .group = "engine",                                                               \
          .cmds = commands,                                                                \
          .from = ML_FROM_SGLANG,                                                          \
          .help = "Do not use CUDA graphs for decode steps." },                            \
    {                                                                                      \
        .name = prefix "cuda-graph-max-bs", .type = ML_FLAG_I64, ML_AT(where.record_rows), \
        .value = "N", .def = "512", .min = 1, .max = 512, .group = "engine",               \
        .cmds = commands, .from = ML_FROM_SGLANG,                                          \
        .help = "Largest batch of a decode step that is captured as a CUDA graph."         \
    }

const ml_flag ml_flags_steps[] = {
    STEP_ROWS("", serve.steps, ML_CMD_SERVE),
    STEP_ROWS("", bench.steps, ML_CMD_BENCH_ENGINE),
    STEP_ROWS("sglang-", rollout.steps, ML_CMD_TRAIN | ML_CMD_EVAL),
    { 0 },
};
