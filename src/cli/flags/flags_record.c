/* Diagnostics that a run records, and compares with those of other runs. */
#include "cli/flags/flag_rows.h"

#define TRAIN (ML_CMD_SFT | ML_CMD_TRAIN)

/* The flag for the tensor dumps of one phase. */
#define DUMP(word, field, whose)                                                           \
    {                                                                                      \
        .name = word, .type = ML_FLAG_LIST, ML_AT(run.dump.field), .value = "KEY=VALUE",   \
        .group = "debugging", .cmds = TRAIN, .from = ML_FROM_MILES,                        \
        .help = "Dumps of " whose ": enable=0 or enable=1 overrides --dumper-enable; "     \
                "filter=PART selects tensors whose name contains PART."                    \
    }

/* In the order of ml_memory_view. */
static const char *const recorders[] = { "torch", "memray", NULL };

const ml_flag ml_flags_record[] = {
    { .name = "save-debug-train-data",
      .type = ML_FLAG_PATH,
      ML_AT(run.record.train),
      .value = "FILE",
      .group = "debugging",
      .help = "Write the training data of each rollout as zstd-compressed JSON lines: "
              "tokens, mask, log-probs of all models, advantages; {rollout_id} is replaced "
              "by its number." },
    { .name = "save-debug-event-data",
      .type = ML_FLAG_PATH,
      ML_AT(run.record.events),
      .value = "DIR",
      .group = "debugging",
      .help = "Append events to events.jsonl in DIR: steps, metrics, checksums of the "
              "trainer's and the engine's weights." },
    { .name = "enable-event-analyzer",
      .type = ML_FLAG_BOOL,
      ML_AT(run.record.analyse),
      .group = "debugging",
      .help = "Check events.jsonl at the end of the run: it fails if a weight version has "
              "two checksums, or if two rollouts trained on the same sample." },
    { .name = "enable-witness",
      .type = ML_FLAG_BOOL,
      ML_AT(run.record.coverage),
      .group = "debugging",
      .help = "Check that the gradient of every sample enters exactly one optimizer step; "
              "a violation ends the run." },
    { .name = "witness-buffer-size",
      .type = ML_FLAG_I64,
      ML_AT(run.record.coverage_rows),
      .def = "1048576",
      .min = 1,
      .max = 1e9,
      .group = "debugging",
      .help =
          "--enable-witness: number of samples to track; the oldest are evicted first." },
    { .name = "check-rematerialize-param-from-master-weight",
      .type = ML_FLAG_BOOL,
      ML_AT(run.record.masters),
      .group = "debugging",
      .help =
          "After each of the first two rollouts, compare bf16 weights with their f32 "
          "master weights; a weight that is not the rounded master weight ends the run." },
    { .name = "record-memory-history",
      .type = ML_FLAG_BOOL,
      ML_AT(run.record.memory),
      .group = "debugging",
      .from = ML_FROM_MEGATRON,
      .help = "Write a memory report at the end of each rollout." },
    { .name = "memory-snapshot-dir",
      .type = ML_FLAG_PATH,
      ML_AT(run.record.memory_dir),
      .value = "DIR",
      .def = ".",
      .group = "debugging",
      .help = "--record-memory-history: directory of memory_snapshot_rollout_N.json; other "
              "ranks than 0 write memory_snapshot_rollout_N_rank_R.json." },
    { .name = "memory-snapshot-num-steps",
      .type = ML_FLAG_I64,
      ML_AT(run.record.memory_rollouts),
      .min = 1,
      .max = 1e9,
      .def_note = "all",
      .group = "debugging",
      .help = "--record-memory-history: only the first N rollouts of this process." },
    { .name = "memory-recorder",
      .type = ML_FLAG_WORD,
      ML_AT(run.record.recorder),
      .words = recorders,
      .def = "torch",
      .group = "debugging",
      .help = "--record-memory-history: torch reports the buffers of weights, gradients, "
              "optimizer, activations and engine; memray reports what the kernel and "
              "malloc know of the process." },
    { .name = "dumper-enable",
      .type = ML_FLAG_BOOL,
      ML_AT(run.dump.enable),
      .group = "debugging",
      .help = "Write the output of every op as safetensors: in the engine, in forward-only "
              "passes, and in training, there with gradients." },
    { .name = "dumper-dir",
      .type = ML_FLAG_PATH,
      ML_AT(run.dump.dir),
      .value = "DIR",
      .def = "/tmp/dumper",
      .group = "debugging",
      .help = "Directory of the dumps: DIR/inference/rollout_3/000012.safetensors." },
    DUMP("dumper-inference", inference, "the engine"),
    DUMP("dumper-fwd-only", score, "forward-only passes"),
    DUMP("dumper-fwd-bwd", train, "training"),
    { .name = "ci-inject-rollout-data-path",
      .type = ML_FLAG_PATH,
      ML_AT(run.record.inject),
      .value = "FILE",
      .group = "debugging",
      .cmds = ML_CMD_TRAIN,
      .help = "Generate, compare with the rollout that --save-debug-rollout-data recorded, "
              "and train on the recorded one; {rollout_id} is replaced by its number." },
    { .name = "ci-inject-rollout-data-start-rollout-id",
      .type = ML_FLAG_I64,
      ML_AT(run.record.inject_from),
      .def = "0",
      .min = 0,
      .max = 1e9,
      .group = "debugging",
      .cmds = ML_CMD_TRAIN,
      .help = "--ci-inject-rollout-data-path: the first rollout to replace." },
    { .name = "ci-inject-rollout-data-min-match-ratio",
      .type = ML_FLAG_F64,
      ML_AT(run.record.inject_least),
      .def = "0.9",
      .min = 0,
      .max = 1,
      .group = "debugging",
      .cmds = ML_CMD_TRAIN,
      .help = "--ci-inject-rollout-data-path: minimum fraction of recorded samples whose "
              "tokens must have been generated again; a lower one ends the run." },
    { 0 },
};
