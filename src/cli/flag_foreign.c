#include "cli/flag_foreign.h"

const ml_foreign_flag ml_foreign_flags[] = {
    { "learning-rate", { "lr" }, NULL },
    { "model-name-or-path", { "hf-checkpoint", "model-path" }, NULL },
    { "pretrained-model-name-or-path", { "hf-checkpoint", "model-path" }, NULL },
    { "num-generations", { "n-samples-per-prompt" }, NULL },
    { "num-generations-eval", { "n-samples-per-eval-prompt" }, NULL },
    { "max-completion-length", { "rollout-max-response-len" }, NULL },
    { "max-new-tokens", { "rollout-max-response-len" }, NULL },
    { "max-tokens", { "rollout-max-response-len" }, NULL },
    { "max-prompt-length", { "rollout-max-prompt-len" }, NULL },
    { "max-model-len", { "context-length", "rollout-max-context-len" }, NULL },
    { "max-seq-length", { "max-tokens-per-gpu" }, NULL },
    { "max-length", { "max-tokens-per-gpu" }, NULL },
    { "per-device-train-batch-size",
      { "rollout-batch-size" },
      "it counts the prompts of a round, and --micro-batch-size the samples of a "
      "micro-batch" },
    { "train-batch-size", { "global-batch-size" }, NULL },
    { "gradient-accumulation-steps",
      { "global-batch-size" },
      "it counts the samples of an optimizer step; micro-batches follow from it" },
    { "steps-per-generation", { "num-steps-per-rollout" }, NULL },
    { "generation-batch-size", { "rollout-batch-size" }, NULL },
    { "num-train-epochs", { "num-epoch" }, NULL },
    { "epochs", { "num-epoch" }, NULL },
    { "max-steps", { "num-rollout" }, "it counts rounds" },
    { "beta", { "kl-loss-coef" }, "it needs --use-kl-loss" },
    { "kl-beta", { "kl-loss-coef" }, "it needs --use-kl-loss" },
    { "epsilon", { "eps-clip" }, NULL },
    { "epsilon-high", { "eps-clip-high" }, NULL },
    { "cliprange", { "eps-clip" }, NULL },
    { "cliprange-value", { "value-clip" }, NULL },
    { "lam", { "lambd" }, NULL },
    { "temperature", { "rollout-temperature" }, NULL },
    { "top-p", { "rollout-top-p" }, NULL },
    { "top-k", { "rollout-top-k" }, NULL },
    { "reward-funcs", { "custom-rm-path" }, "a built-in grader is named by --rm-type" },
    { "reward-func", { "custom-rm-path" }, "a built-in grader is named by --rm-type" },
    { "reward-model-path",
      { "rm-url" },
      "--rm-type remote_rm asks a reward model behind a URL" },
    { "reward-model-name-or-path",
      { "rm-url" },
      "--rm-type remote_rm asks a reward model behind a URL" },
    { "ref-model", { "ref-load" }, NULL },
    { "sync-ref-model", { "ref-update-interval" }, NULL },
    { "ref-model-sync-steps", { "ref-update-interval" }, NULL },
    { "dataset-name", { "prompt-data", "eval-prompt-data" }, "it is a file of JSON lines" },
    { "dataset", { "prompt-data", "eval-prompt-data" }, "it is a file of JSON lines" },
    { "train-file", { "prompt-data" }, NULL },
    { "dataset-text-field", { "input-key" }, NULL },
    { "prompt-column", { "input-key" }, NULL },
    { "output-dir", { "save" }, NULL },
    { "output-path", { "save" }, NULL },
    { "save-steps", { "save-interval" }, NULL },
    { "save-total-limit", { "keep-last" }, NULL },
    { "eval-steps", { "eval-interval" }, NULL },
    { "resume-from-checkpoint", { "load" }, NULL },
    { "lr-scheduler-type", { "lr-decay-style" }, NULL },
    { "warmup-steps", { "lr-warmup-iters" }, NULL },
    { "warmup-ratio", { "lr-warmup-fraction" }, NULL },
    { "max-grad-norm", { "clip-grad" }, NULL },
    { "adam-epsilon", { "adam-eps" }, NULL },
    { "optim", { "optimizer" }, NULL },
    { "gradient-checkpointing", { "recompute-granularity" }, NULL },
    { "logging-dir", { "tensorboard-dir" }, NULL },
    { "torch-dtype", { "dtype" }, NULL },
    { "precision", { "dtype" }, NULL },
    { "packing", { "use-dynamic-batch-size" }, NULL },
    { "tokenizer", { "tokenizer-path" }, NULL },
    { "tokenizer-name-or-path", { "tokenizer-path" }, NULL },
    { "gpu-memory-utilization",
      { "mem-fraction-static", "sglang-mem-fraction-static" },
      NULL },
    { "vllm-gpu-memory-utilization", { "sglang-mem-fraction-static" }, NULL },
    { "max-num-seqs", { "max-running-requests", "sglang-max-running-requests" }, NULL },
    { "max-num-batched-tokens",
      { "chunked-prefill-size", "sglang-chunked-prefill-size" },
      NULL },
    { "max-batch-size", { "max-running-requests" }, NULL },
    { "tensor-parallel-size", { "tp-size", "tensor-model-parallel-size" }, NULL },
    { "vllm-tensor-parallel-size", { "tensor-model-parallel-size" }, NULL },
    { "data-parallel-size", { "dp-size" }, NULL },
    { "pipeline-parallel-size", { "pipeline-model-parallel-size" }, NULL },
    { "enable-prefix-caching",
      { "disable-radix-cache", "sglang-disable-radix-cache" },
      "the prefix cache is on by default" },
    { "enforce-eager", { "disable-cuda-graph", "sglang-disable-cuda-graph" }, NULL },
    { "seed", { "random-seed" }, NULL },
    { 0 },
};

static bool same(ml_str written, const char *name) {
    size_t i = 0;

    for (; i < written.len && name[i]; i++)
        if (written.ptr[i] != name[i] && !(written.ptr[i] == '_' && name[i] == '-'))
            return false;
    return i == written.len && !name[i];
}

const ml_foreign_flag *ml_foreign_find(ml_str name) {
    for (const ml_foreign_flag *f = ml_foreign_flags; f->name; f++)
        if (same(name, f->name))
            return f;
    return NULL;
}
