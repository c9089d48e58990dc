/* Numerics and storage: there is one way to compute, with defined bits. */
#include "cli/flags/flag_rows.h"

#define TRAIN (ML_CMD_SFT | ML_CMD_TRAIN)

static const char *const zeros[] = { "0", "0.0", NULL };
static const char *const all_of_it[] = { "1", "1.0", NULL };
static const char *const backends[] = { "megatron", "fsdp", NULL }; /* ml_train_backend */

static const char *const formats[] = { "thd", "bshd", NULL };
static const char *const f32[] = { "fp32", "float32", NULL };

const ml_flag ml_flags_numerics[] = {
    { .name = "qkv-format",
      .type = ML_FLAG_TEXT,
      ML_AT(qkv_format),
      .words = formats,
      .def = "thd",
      .group = "compatibility",
      .cmds = TRAIN,
      .from = ML_FROM_MILES,
      .help = "bshd: micro-batches of --micro-batch-size samples.  Neither format pads, "
              "and gradients are equal." },
    ML_FIXED("attention-dropout", MEGATRON, TRAIN, zeros, "Dropout is not supported."),
    ML_FIXED("hidden-dropout", MEGATRON, TRAIN, zeros, "Dropout is not supported."),
    ML_FIXED("moe-aux-loss-coeff", MEGATRON, TRAIN, zeros,
             "Training adds no load-balancing loss."),
    ML_FIXED("moe-router-bias-update-rate", MEGATRON, TRAIN, zeros,
             "Training does not change the router's bias."),
    { .name = "train-backend",
      .type = ML_FLAG_WORD,
      ML_AT(run.place.backend),
      .words = backends,
      .def = "megatron",
      .group = "ranks",
      .cmds = TRAIN,
      .from = ML_FROM_MILES,
      .help = "fsdp: all data parallel ranks divide the weights, and gather those of a "
              "layer when they need them.  megatron: tensor parallel ranks do.  Batches, "
              "optimizer and schedule are the same." },
    { .name = "use-routing-replay",
      .type = ML_FLAG_BOOL,
      ML_AT(run.rollout.routing_replay),
      .group = "numerics",
      .cmds = ML_CMD_TRAIN,
      .from = ML_FROM_MILES,
      .help =
          "Training reuses the experts that the forward pass for old log-probs selected." },
    { .name = "use-rollout-routing-replay",
      .type = ML_FLAG_BOOL,
      ML_AT(run.rollout.rollout_routing_replay),
      .group = "numerics",
      .cmds = ML_CMD_TRAIN,
      .from = ML_FROM_MILES,
      .help = "Training reuses the experts that the rollout selected.  This matters for "
              "tokens of older weights or of other engines; with the current weights, the "
              "selection is equal anyway." },
    ML_NOOP("use-routing-replay", BOOL, MILES, ML_CMD_SFT, "there is no rollout"),
    ML_NOOP("use-rollout-routing-replay", BOOL, MILES, ML_CMD_SFT, "there is no rollout"),
    { .name = "use-indexer-replay",
      .type = ML_FLAG_BOOL,
      ML_AT(run.rollout.indexer_replay),
      .group = "numerics",
      .cmds = ML_CMD_TRAIN,
      .from = ML_FROM_MILES,
      .help = "Training reuses the keys that the indexers selected in the forward pass for "
              "old log-probs." },
    { .name = "use-rollout-indexer-replay",
      .type = ML_FLAG_BOOL,
      ML_AT(run.rollout.rollout_indexer_replay),
      .group = "numerics",
      .cmds = ML_CMD_TRAIN,
      .from = ML_FROM_MILES,
      .help = "Training reuses the keys that the rollout's indexers selected." },
    ML_NOOP("use-indexer-replay", BOOL, MILES, ML_CMD_SFT, "there is no rollout"),
    ML_NOOP("use-rollout-indexer-replay", BOOL, MILES, ML_CMD_SFT, "there is no rollout"),
    ML_NOOP("bf16", BOOL, MEGATRON, TRAIN,
            "the dtype is that of the checkpoint, or of --dtype"),
    ML_REFUSED("fp16", BOOL, MEGATRON, TRAIN,
               "f16 compute is not supported; use --dtype bf16 or --dtype f32"),
    ML_FIXED("main-params-dtype", MEGATRON, TRAIN, f32, "Master weights are f32."),
    ML_FIXED("main-grads-dtype", MEGATRON, TRAIN, f32, "Gradients are f32."),
    { .name = "gradient-checkpointing",
      .type = ML_FLAG_BOOL,
      ML_AT(gradient_checkpointing),
      .group = "memory",
      .cmds = TRAIN,
      .from = ML_FROM_MILES,
      .help = "Same as --recompute-granularity full --recompute-method uniform "
              "--recompute-num-layers 1." },
    ML_SAME("warmup-ratio", F64, "X", MILES, TRAIN, "optimizer", "lr-warmup-fraction"),
    ML_FIXED("optimizer-offload-fraction", MEGATRON, TRAIN, all_of_it,
             "--optimizer-cpu-offload moves all of the optimizer state."),
    ML_NOOP("fsdp-cpu-backend", TEXT, MILES, TRAIN, "a run has one rank"),
    ML_NOOP("override-opt-param-scheduler", BOOL, MEGATRON, TRAIN,
            "a resumed run takes its schedule from its flags"),
    { 0 },
};
