#include "cli/flags/flag_rows.h"

#define SERVING (ML_CMD_BENCH_ENGINE | ML_CMD_SERVE)
#define TRAINING (ML_CMD_SFT | ML_CMD_TRAIN | ML_CMD_EVAL)
#define READING                                                                            \
    (ML_CMD_SCORE | ML_CMD_CONVERT | ML_CMD_TOKENIZE | ML_CMD_CHAT_TEMPLATE | TRAINING)

/* Several flags called dtype: fewer dtypes can be computed in than stored. */
static const char *const compute_dtypes[] = { "auto", "f32", "bf16", NULL };
static const char *const load_formats[] = { "auto", "dummy", NULL };
static const char *const store_dtypes[] = { "auto",  "f32",       "bf16",      "f16",
                                            "fp8",   "fp8-ue8m0", "fp8-row",   "fp8-tensor",
                                            "mxfp8", "int4",      "int4-g128", "mxfp4",
                                            "nvfp4", "q8_0",      NULL };

const ml_flag ml_flags_model[] = {
    { .name = "hf-checkpoint",
      .type = ML_FLAG_PATH,
      .model = true,
      ML_AT(run.hf_checkpoint),
      .value = "DIR",
      .required = true,
      .group = "model",
      .cmds = ML_CMD_SCORE | ML_CMD_CONVERT | ML_CMD_TOKENIZE | ML_CMD_CHAT_TEMPLATE,
      .from = ML_FROM_MILES,
      .help = "Hugging Face checkpoint: config.json and safetensors files or "
              "pytorch_model.bin; or a .gguf file." },
    { .name = "hf-checkpoint",
      .type = ML_FLAG_PATH,
      .model = true,
      ML_AT(run.hf_checkpoint),
      .value = "DIR",
      .required = true,
      .group = "model",
      .cmds = TRAINING,
      .from = ML_FROM_MILES,
      .help = "Hugging Face checkpoint to start from; exported checkpoints copy its names, "
              "dtypes and other files." },
    { .name = "model-path",
      .type = ML_FLAG_PATH,
      .model = true,
      ML_AT(run.hf_checkpoint),
      .value = "DIR",
      .required = true,
      .group = "model",
      .cmds = SERVING,
      .from = ML_FROM_SGLANG,
      .help = "Hugging Face checkpoint: config.json and safetensors files or "
              "pytorch_model.bin; or a .gguf file." },
    ML_SAME("hf-checkpoint", PATH, "DIR", MILES, SERVING, "model", "model-path"),
    ML_SAME("model", PATH, "DIR", SGLANG, SERVING, "model", "model-path"),
    ML_SAME("model-path", PATH, "DIR", SGLANG, READING, "model", "hf-checkpoint"),
    ML_SAME("model", PATH, "DIR", SGLANG, READING, "model", "hf-checkpoint"),
    { .name = "load-format",
      .type = ML_FLAG_WORD,
      ML_AT(load_format),
      .def = "auto",
      .words = load_formats,
      .group = "model",
      .cmds = ML_CMD_BENCH_ENGINE | ML_CMD_SERVE,
      .from = ML_FROM_SGLANG,
      .help = "auto: load the checkpoint's weights; dummy: random weights, needs "
              "config.json only." },
    { .name = "dtype",
      .type = ML_FLAG_WORD,
      ML_AT(run.dtype),
      .def = "auto",
      .words = compute_dtypes,
      .group = "model",
      .cmds = ML_CMD_SCORE | SERVING,
      .from = ML_FROM_SGLANG,
      .help = "Dtype of weights and KV cache in memory; auto: that of the checkpoint." },
    { .name = "dtype",
      .type = ML_FLAG_WORD,
      ML_AT(run.dtype),
      .def = "auto",
      .words = compute_dtypes,
      .group = "model",
      .cmds = TRAINING,
      .from = ML_FROM_SGLANG,
      .help = "Dtype of weights and KV cache in memory; auto: that of the checkpoint.  "
              "With bf16 weights the optimizer keeps f32 master weights." },
    { .name = "dtype",
      .type = ML_FLAG_WORD,
      ML_AT(convert.dtype),
      .def = "auto",
      .words = store_dtypes,
      .group = "model",
      .cmds = ML_CMD_CONVERT,
      .from = ML_FROM_SGLANG,
      .help =
          "Dtype of the written weights; auto: that of the input.  The others round the "
          "linear layers to nearest, with scales for blocks of 128x128 (fp8, "
          "fp8-ue8m0), rows, tensors, groups of 32 (mxfp8, int4, mxfp4), 128 "
          "(int4-g128) or 16 (nvfp4); int4 and nvfp4 only the experts of a model that "
          "has them." },
    { .name = "chat-template",
      .type = ML_FLAG_PATH,
      ML_AT(run.chat_template),
      .value = "FILE",
      .def_note =
          "the checkpoint's; if it has several, tool_use with tools, otherwise default",
      .group = "model",
      .cmds = ML_CMD_SERVE | ML_CMD_CHAT_TEMPLATE,
      .from = ML_FROM_SGLANG,
      .help =
          "File with a chat template, or the name of one of the checkpoint's templates." },
    ML_SAME("chat-template-path", PATH, "FILE", MILES, ML_CMD_SERVE | ML_CMD_CHAT_TEMPLATE,
            "model", "chat-template"),
    { .name = "chat-template-path",
      .type = ML_FLAG_PATH,
      ML_AT(run.chat_template),
      .value = "FILE",
      .def_note = "the checkpoint's",
      .group = "model",
      .cmds = TRAINING,
      .from = ML_FROM_MILES,
      .help = "Jinja file to use instead of the checkpoint's chat template." },
    ML_SAME("chat-template", PATH, "FILE", SGLANG, TRAINING, "model", "chat-template-path"),
    { 0 },
};
