#include "cli/flags/flag.h"

const ml_flag ml_flags_convert[] = {
    { .name = "save-hf",
      .type = ML_FLAG_PATH,
      ML_AT(convert.save_hf),
      .value = "DIR",
      .required = true,
      .group = "output",
      .help = "Directory to write the checkpoint to; created if it does not exist." },
    { .name = "max-shard-size",
      .type = ML_FLAG_BYTES,
      ML_AT(convert.max_shard_bytes),
      .def_note = "sharding of the input",
      .min = 1,
      .max = 0x1p53,
      .group = "output",
      .from = ML_FROM_OURS,
      .help = "Start a new safetensors file before the current one exceeds this size." },
    { 0 },
};
