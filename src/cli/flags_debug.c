/* Looking for faults in a run. */
#include "cli/flag_rows.h"

#define TRAIN (ML_CMD_SFT | ML_CMD_TRAIN)

#define DUMPER "tensors are not dumped; miles score writes logits and gradients"
#define MEMORY "--dry-run prints the memory plan, --profile where time goes"
#define WHOLE "--check-weight-update-equal compares all weights"
#define AUDIT "there are no ranks to audit; --debug-determinism writes hashes of every step"

const ml_flag ml_flags_debug[] = {
    ML_REFUSED("dumper-enable", BOOL, MILES, TRAIN, DUMPER),
    ML_REFUSED("dumper-dir", TEXT, MILES, TRAIN, DUMPER),
    ML_REFUSED("dumper-source-patcher-config-inference", TEXT, MILES, TRAIN, DUMPER),
    ML_REFUSED("dumper-source-patcher-config-train", TEXT, MILES, TRAIN, DUMPER),
    ML_REFUSED("dumper-inference", LIST, MILES, TRAIN, DUMPER),
    ML_REFUSED("dumper-fwd-only", LIST, MILES, TRAIN, DUMPER),
    ML_REFUSED("dumper-fwd-bwd", LIST, MILES, TRAIN, DUMPER),
    ML_REFUSED("record-memory-history", BOOL, MEGATRON, TRAIN, MEMORY),
    ML_REFUSED("use-pytorch-profiler", BOOL, MEGATRON, TRAIN, MEMORY),
    ML_REFUSED("memory-snapshot-dir", TEXT, MILES, TRAIN, MEMORY),
    ML_REFUSED("memory-snapshot-num-steps", TEXT, MILES, TRAIN, MEMORY),
    ML_REFUSED("memory-recorder", TEXT, MILES, TRAIN, MEMORY),
    ML_REFUSED("memory-snapshot-path", TEXT, MILES, TRAIN, MEMORY),
    ML_REFUSED("profile-target", LIST, MILES, TRAIN,
               "--profile writes every phase of every round"),
    ML_REFUSED("profile-step-start", TEXT, MEGATRON, TRAIN,
               "--profile writes every phase of every round"),
    ML_REFUSED("profile-step-end", TEXT, MEGATRON, TRAIN,
               "--profile writes every phase of every round"),
    ML_NOOP("check-weight-update-selector", TEXT, MILES, TRAIN, WHOLE),
    ML_NOOP("check-weight-update-skip-list", LIST, MILES, TRAIN, WHOLE),
    ML_NOOP("check-weight-update-allow-quant-error", BOOL, MILES, TRAIN,
            "weights are not quantised"),
    ML_REFUSED("check-lora-weight-equal", BOOL, MILES, TRAIN,
               "adapters are not trained yet; leave it out"),
    ML_REFUSED("enable-event-analyzer", BOOL, MILES, TRAIN, AUDIT),
    ML_REFUSED("enable-witness", BOOL, MILES, TRAIN, AUDIT),
    ML_REFUSED("witness-buffer-size", TEXT, MILES, TRAIN, AUDIT),
    ML_REFUSED("ci-ft-test-actions", TEXT, MILES, TRAIN, AUDIT),
    ML_REFUSED("ci-inject-rollout-data-path", TEXT, MILES, TRAIN,
               "use --load-debug-rollout-data"),
    ML_REFUSED("ci-inject-rollout-data-start-rollout-id", TEXT, MILES, TRAIN,
               "use --load-debug-rollout-data"),
    ML_REFUSED("ci-inject-rollout-data-min-match-ratio", TEXT, MILES, TRAIN,
               "use --load-debug-rollout-data"),
    { 0 },
};
