#include "cli/flags/flag.h"

static const char *const batchings[] = { "packed", "single", "tokenwise", NULL };

const ml_flag ml_flags_score[] = {
    { .name = "input",
      .type = ML_FLAG_PATH,
      ML_AT(score.input),
      .value = "FILE",
      .required = true,
      .group = "input and output",
      .help =
          "Safetensors file with the sequences: int32 tensors tokens.0, tokens.1, ..." },
    { .name = "output",
      .type = ML_FLAG_PATH,
      ML_AT(score.output),
      .value = "FILE",
      .group = "input and output",
      .help = "Safetensors file to write: logprobs.N of the next tokens of sequence N, and "
              "what the flags below add." },
    { .name = "logits",
      .type = ML_FLAG_BOOL,
      ML_AT(score.logits),
      .group = "input and output",
      .help = "Also write logits.N, of every position." },
    { .name = "grads",
      .type = ML_FLAG_BOOL,
      ML_AT(score.grads),
      .group = "input and output",
      .help = "Also write loss, the mean negative log-probability of all next tokens, and "
              "grad.NAME, its gradient with respect to each weight of the checkpoint." },
    { .name = "entropy",
      .type = ML_FLAG_BOOL,
      ML_AT(score.entropy),
      .group = "input and output",
      .help = "Also write entropy.N, the entropy at every position." },
    { .name = "mtp",
      .type = ML_FLAG_BOOL,
      ML_AT(score.mtp),
      .group = "input and output",
      .help = "Also run the multi-token prediction layer of the checkpoint: write "
              "mtp_logits.N, row p of which predicts token p + 2.  With --grads, write "
              "mtp_loss, its mean cross entropy, and grad.NAME of its weights, of "
              "--mtp-loss-scaling-factor times the loss.  prompt_len and loss_mask.N of "
              "the input select the rows as in training; by default all count." },
    { .name = "stats",
      .type = ML_FLAG_BOOL,
      ML_AT(score.stats),
      .group = "input and output",
      .help = "Print rows per op, time, speed and memory at the end." },
    { .name = "temperature",
      .type = ML_FLAG_F64,
      ML_AT(score.temperature),
      .def = "1",
      .min = 1e-6,
      .max = 1e6,
      .group = "scoring",
      .help = "Logits are divided by it before the softmax." },
    { .name = "batching",
      .type = ML_FLAG_WORD,
      ML_AT(score.batching),
      .def = "packed",
      .words = batchings,
      .group = "scoring",
      .help =
          "Pack many sequences into a batch (packed), one at a time (single), or one token "
          "at a time as in decoding (tokenwise).  The results are bit-identical." },
    { .name = "lora-adapter-path",
      .type = ML_FLAG_PATH,
      ML_AT(score.lora_adapter_path),
      .value = "DIR",
      .group = "adapters",
      .help = "Score with this LoRA adapter (adapter_config.json and "
              "adapter_model.safetensors, as PEFT writes them).  --grads then writes the "
              "gradients of its tensors instead of the model's." },
    { .name = "lora-paths",
      .type = ML_FLAG_LIST,
      ML_AT(score.lora_paths),
      .value = "NAME=DIR",
      .from = ML_FROM_SGLANG,
      .group = "adapters",
      .help =
          "Score a mix of adapters: the int32 scalar adapter.N of the input is the index "
          "of sequence N's adapter in this list, or -1 for the model alone.  --grads "
          "writes grad.NAME.TENSOR, of the mean over the next tokens of the adapter's "
          "sequences." },
    { .name = "dry-run",
      .type = ML_FLAG_BOOL,
      ML_AT(score.dry_run),
      .group = "scoring",
      .help = "Check all files, print the memory plan and exit." },
    { 0 },
};
