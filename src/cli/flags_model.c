#include "cli/flag.h"

/* Two rows called dtype: what can be computed in is less than what can be stored. */
static const char *const compute_dtypes[] = { "auto", "f32", "bf16", NULL };
static const char *const store_dtypes[] = { "auto", "f32", "bf16", "f16", NULL };

const ml_flag ml_flags_model[] = {
    { .name = "hf-checkpoint",
      .type = ML_FLAG_PATH,
      ML_AT(hf_checkpoint),
      .value = "DIR",
      .required = true,
      .group = "model",
      .cmds = ML_CMD_ALL,
      .from = ML_FROM_MILES,
      .help = "Hugging Face checkpoint: config.json and safetensors files." },
    { .name = "dtype",
      .type = ML_FLAG_WORD,
      ML_AT(dtype),
      .def = "auto",
      .words = compute_dtypes,
      .group = "model",
      .cmds = ML_CMD_SCORE,
      .from = ML_FROM_SGLANG,
      .help = "Dtype of the weights in memory; auto: that of the checkpoint." },
    { .name = "dtype",
      .type = ML_FLAG_WORD,
      ML_AT(dtype),
      .def = "auto",
      .words = store_dtypes,
      .group = "model",
      .cmds = ML_CMD_CONVERT,
      .from = ML_FROM_SGLANG,
      .help = "Dtype of the weights written; auto: as they were." },
    { 0 },
};
