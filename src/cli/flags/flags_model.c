#include "cli/flags/flag_rows.h"

#define SERVING (ML_CMD_BENCH_ENGINE | ML_CMD_SERVE | ML_CMD_TINKER)
#define TRAINING (ML_CMD_SFT | ML_CMD_TRAIN | ML_CMD_EVAL)
#define READING                                                                            \
    (ML_CMD_SCORE | ML_CMD_CONVERT | ML_CMD_TOKENIZE | ML_CMD_CHAT_TEMPLATE | TRAINING)

/* Several flags called dtype: fewer dtypes can be computed in than stored. */
static const char *const compute_dtypes[] = { "auto", "f32", "bf16", NULL };
/* In the order of ml_weight_dtype. */
static const char *const quantizations[] = { "none", "checkpoint", "fp8", "int8",
                                             "int4", "int4-g128",  "nf4", NULL };
static const char *const rollout_quantizations[] = { "none",      "fp8", "int8", "int4",
                                                     "int4-g128", "nf4", "auto", NULL };
static const char *const fake_quantizations[] = {
    "none", "int4", "int4-g128", "int4-f32-scale", "int4-g128-f32-scale", NULL
};
static const char *const kv_dtypes[] = { "auto",     "bf16", "bfloat16", "fp8_e4m3",
                                         "fp8_e5m2", "int8", NULL };
static const char *const load_formats[] = { "auto", "dummy", NULL };
static const char *const store_dtypes[] = { "auto",  "f32",       "bf16",      "f16",
                                            "fp8",   "fp8-ue8m0", "fp8-row",   "fp8-tensor",
                                            "mxfp8", "int4",      "int4-g128", "mxfp4",
                                            "nvfp4", "q8_0",      NULL };

#define QUANTIZATIONS                                                                      \
    "Keep the weights of linear layers quantized in memory, and dequantize them inside "   \
    "the kernels.  checkpoint: the codes and scales of a quantized checkpoint, "           \
    "where it has FP8, INT8, INT4 or MXFP4 without zero points; others quantize when "     \
    "loading: e4m3 in blocks of 128x128 (fp8), groups of 128 (int8, int4-g128), 32 "       \
    "(int4) or 64 (nf4) inputs.  See docs/LORA.md."

#define KV_DTYPES                                                                          \
    "Dtype of the KV cache; auto: that of the weights.  The formats of 8 bits have a "     \
    "scale for each token and KV head."

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
      ML_AT(dtype),
      .def = "auto",
      .words = compute_dtypes,
      .group = "model",
      .cmds = ML_CMD_SCORE | SERVING,
      .from = ML_FROM_SGLANG,
      .help = "Dtype of weights and KV cache in memory; auto: that of the checkpoint." },
    { .name = "dtype",
      .type = ML_FLAG_WORD,
      ML_AT(dtype),
      .def = "auto",
      .words = compute_dtypes,
      .group = "model",
      .cmds = TRAINING,
      .from = ML_FROM_SGLANG,
      .help = "Dtype of weights and KV cache in memory; auto: that of the checkpoint.  "
              "With bf16 weights the optimizer keeps f32 master weights." },
    { .name = "kv-cache-dtype",
      .type = ML_FLAG_WORD,
      ML_AT(kv_cache),
      .def = "auto",
      .words = kv_dtypes,
      .group = "model",
      .cmds = ML_CMD_SCORE | SERVING,
      .from = ML_FROM_SGLANG,
      .help = KV_DTYPES },
    { .name = "sglang-kv-cache-dtype",
      .type = ML_FLAG_WORD,
      ML_AT(kv_cache),
      .def = "auto",
      .words = kv_dtypes,
      .group = "model",
      .cmds = TRAINING,
      .from = ML_FROM_SGLANG,
      .help = KV_DTYPES "  Training attends to the same keys and values as rollouts, so "
                        "that log-probs stay equal." },
    { .name = "quantization",
      .type = ML_FLAG_WORD,
      ML_AT(quantization),
      .def = "none",
      .words = quantizations,
      .group = "model",
      .cmds = ML_CMD_SCORE | SERVING,
      .from = ML_FROM_SGLANG,
      .help = QUANTIZATIONS },
    { .name = "base-quantization",
      .type = ML_FLAG_WORD,
      ML_AT(quantization),
      .def = "none",
      .words = quantizations,
      .group = "model",
      .cmds = TRAINING,
      .from = ML_FROM_OURS,
      .help = QUANTIZATIONS "  Training needs --lora-rank (QLoRA)." },
    { .name = "rollout-quantization",
      .type = ML_FLAG_WORD,
      ML_AT(rollout_quantization),
      .def = "auto",
      .words = rollout_quantizations,
      .group = "model",
      .cmds = ML_CMD_TRAIN,
      .from = ML_FROM_OURS,
      .help =
          "Generate with a copy of the weights whose linear layers are quantized at each "
          "publication, and train in the dtype of the weights.  The log-probs of "
          "rollouts then differ from those of training: forward_logp_max_diff is "
          "reported, and --use-tis corrects for it.  auto: fp8 if --hf-checkpoint has FP8 "
          "weights, unless other flags exclude it." },
    { .name = "fp8-format",
      .type = ML_FLAG_TEXT,
      ML_AT(fp8_format),
      .value = "NAME",
      .group = "model",
      .cmds = ML_CMD_SFT | ML_CMD_TRAIN,
      .from = ML_FROM_MEGATRON,
      .help =
          "e4m3: the linear layers multiply FP8 weights with inputs that are rounded to "
          "FP8, in rollouts and in the forward passes of training; backward passes are not "
          "rounded without --fp8-backward, whose gradients are e4m3, too.  hybrid: the "
          "same "
          "with gradients in e5m2.  Needs --fp8-recipe." },
    { .name = "fp8-recipe",
      .type = ML_FLAG_TEXT,
      ML_AT(fp8_recipe),
      .value = "NAME",
      .group = "model",
      .cmds = ML_CMD_SFT | ML_CMD_TRAIN,
      .from = ML_FROM_MEGATRON,
      .help =
          "Scales of --fp8-format.  blockwise: in f32, for blocks of 128x128 weights and "
          "groups of 128 inputs; mxfp8: powers of two, for groups of 32 weights and "
          "inputs." },
    { .name = "fp8-backward",
      .type = ML_FLAG_BOOL,
      ML_AT(fp8_backward),
      .group = "model",
      .cmds = ML_CMD_SFT | ML_CMD_TRAIN,
      .from = ML_FROM_OURS,
      .help = "Compute the gradients of linear layers as FP8 products, too, where both "
              "widths are multiples of 128: gradients in groups of 128 outputs or tokens, "
              "inputs in blocks of 128x128.  Needs --fp8-format, --fp8-recipe blockwise "
              "and a GPU with wgmma (Hopper)." },
    { .name = "first-last-layers-bf16",
      .type = ML_FLAG_BOOL,
      ML_AT(run.high_precision.ends),
      .group = "model",
      .cmds = ML_CMD_SFT | ML_CMD_TRAIN,
      .from = ML_FROM_MEGATRON,
      .help = "Do not quantize the first and the last decoder layers (--fp8-format, "
              "--fake-quantization, --rollout-quantization)." },
    { .name = "num-layers-at-start-in-bf16",
      .type = ML_FLAG_I64,
      ML_AT(run.high_precision.first),
      .value = "N",
      .def = "1",
      .min = 0,
      .max = 100000,
      .group = "model",
      .cmds = ML_CMD_SFT | ML_CMD_TRAIN,
      .from = ML_FROM_MEGATRON,
      .help = "Number of first layers, with --first-last-layers-bf16." },
    { .name = "num-layers-at-end-in-bf16",
      .type = ML_FLAG_I64,
      ML_AT(run.high_precision.last),
      .value = "N",
      .def = "1",
      .min = 0,
      .max = 100000,
      .group = "model",
      .cmds = ML_CMD_SFT | ML_CMD_TRAIN,
      .from = ML_FROM_MEGATRON,
      .help = "Number of last layers, with --first-last-layers-bf16." },
    { .name = "extra-high-precision-layers-hf",
      .type = ML_FLAG_LIST,
      ML_AT(run.high_precision.names),
      .value = "TEXT",
      .group = "model",
      .cmds = ML_CMD_SFT | ML_CMD_TRAIN,
      .from = ML_FROM_MILES,
      .help =
          "Do not quantize linear layers whose tensors have one of these texts in their "
          "names in the checkpoint." },
    { .name = "extra-high-precision-layers-megatron",
      .type = ML_FLAG_LIST,
      ML_AT(run.high_precision.megatron_names),
      .value = "TEXT",
      .group = "model",
      .cmds = ML_CMD_SFT | ML_CMD_TRAIN,
      .from = ML_FROM_MILES,
      .help = "The same layers under Megatron's names.  Needs "
              "--extra-high-precision-layers-hf, whose names decide." },
    { .name = "fake-quantization",
      .type = ML_FLAG_WORD,
      ML_AT(fake_quantization),
      .def = "none",
      .words = fake_quantizations,
      .group = "model",
      .cmds = ML_CMD_SFT | ML_CMD_TRAIN,
      .from = ML_FROM_OURS,
      .help =
          "Quantization-aware training: forward and backward passes and rollouts read "
          "the experts, or without experts the linear layers, as INT4 in groups of 32 "
          "(int4) or 128 (int4-g128) inputs with the values that an exported checkpoint "
          "has; the gradients are applied to the weights (straight-through).  Also "
          "OPEN_TRAINING_INT4_FAKE_QAT_FLAG=1 with OPEN_TRAINING_INT4_GROUP_SIZE.  "
          "int4-f32-scale, int4-g128-f32-scale: bf16 with the values that Miles trains "
          "with, whose scales are f32; an exported checkpoint has others." },
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
