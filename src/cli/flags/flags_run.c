#include "cli/flags/flag.h"

#include "base/pool.h"

static const char *const levels[] = { "c", "neon", "avx2", "avx512", NULL };
static const char *const devices[] = { "cpu", "cuda", NULL };
static const char *const log_levels[] = { "warn", "info", "debug",
                                          NULL }; /* ml_log_level */

const ml_flag ml_flags_run[] = {
    { .name = "threads",
      .type = ML_FLAG_I64,
      ML_AT(run.backend.n_thread),
      .min = 1,
      .max = ML_POOL_MAX,
      .def_note = "the CPUs available to this process",
      .group = "running",
      .cmds = ML_CMD_ALL & ~(ML_CMD_BENCH_SERVE | ML_CMD_ROUTER | ML_CMD_INSPECT |
                             ML_CMD_DOCTOR | ML_CMD_DATA_SHOW | ML_CMD_DASHBOARD),
      .help = "Compute threads.  The results do not depend on it." },
    { .name = "cpu-level",
      .type = ML_FLAG_TEXT,
      ML_AT(run.backend.cpu_level),
      .words = levels,
      .def_note = "the best that this machine supports",
      .env = "MILES_CPU",
      .group = "running",
      .cmds = ML_CMD_SCORE | ML_CMD_BENCH_ENGINE | ML_CMD_SERVE | ML_CMD_TINKER |
              ML_CMD_SFT | ML_CMD_TRAIN | ML_CMD_EVAL,
      .help = "Instruction set of the CPU kernels.  The results do not depend on it." },
    { .name = "device",
      .type = ML_FLAG_TEXT,
      ML_AT(run.backend.device),
      .words = devices,
      .def_note = "cuda if there is a supported GPU, otherwise cpu",
      .env = "MILES_DEVICE",
      .group = "running",
      .cmds = ML_CMD_SCORE | ML_CMD_BENCH_ENGINE | ML_CMD_SERVE | ML_CMD_TINKER |
              ML_CMD_SFT | ML_CMD_TRAIN | ML_CMD_EVAL,
      .from = ML_FROM_SGLANG,
      .help = "Compute device.  cuda stores weights and activations in bf16 unless --dtype "
              "is f32; see docs/CUDA.md." },
    { .name = "log-level",
      .type = ML_FLAG_WORD,
      ML_AT(log_level),
      .words = log_levels,
      .def = "warn",
      .env = "MILES_LOG",
      .group = "running",
      .cmds = ML_CMD_ALL,
      .from = ML_FROM_SGLANG,
      .help = "Verbosity of the log on standard error." },
    { 0 },
};
