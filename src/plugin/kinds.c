#include "plugin/kinds.h"

const ml_kind ml_kinds[] = {
    { MILES_SOURCE, "source", "data-source-path", sizeof(miles_source) },
    { MILES_ROLLOUT, "rollout", "rollout-function-path", sizeof(miles_rollout) },
    { MILES_PROMPTS, "prompts", "data-source-path with --disable-rollout-global-dataset",
      sizeof(miles_prompts) },
    { MILES_EVAL, "evaluation", "eval-function-path", sizeof(miles_eval) },
    { MILES_BUFFER, "buffer", "custom-async-data-buffer-path", sizeof(miles_buffer) },
    { MILES_GENERATE, "generate", "custom-generate-function-path", sizeof(miles_generate) },
    { MILES_REWARD, "reward", "rm-type, custom-rm-path", sizeof(miles_reward) },
    { MILES_GROUP_REWARD, "group reward", "custom-rm-path with --group-rm",
      sizeof(miles_group_reward) },
    { MILES_GROUP_FILTER, "group filter", "dynamic-sampling-filter-path",
      sizeof(miles_group_filter) },
    { MILES_BUFFER_FILTER, "buffer filter", "buffer-filter-path",
      sizeof(miles_buffer_filter) },
    { MILES_REWARD_POST, "reward post", "custom-reward-post-process-path",
      sizeof(miles_reward_post) },
    { MILES_SAMPLE_FILTER, "sample filter", "rollout-sample-filter-path",
      sizeof(miles_sample_filter) },
    { MILES_SAMPLES_HOOK, "samples hook", "rollout-all-samples-process-path",
      sizeof(miles_samples_hook) },
    { MILES_METRICS, "metrics", "custom-rollout-log-function-path", sizeof(miles_metrics) },
    { MILES_ADVANTAGE, "advantage", "advantage-estimator", sizeof(miles_advantage) },
    { MILES_CORRECTION, "correction", "custom-tis-function-path",
      sizeof(miles_correction) },
    { MILES_REDUCER, "reducer", "custom-pg-loss-reducer-function-path",
      sizeof(miles_reducer) },
    { MILES_LOSS, "loss", "loss-type, custom-loss-function-path", sizeof(miles_loss) },
    { MILES_HOOK, "hook", "custom-megatron-init-path and others", sizeof(miles_hook) },
    { 0 },
};

const ml_kind *ml_kind_of(int32_t kind) {
    for (const ml_kind *k = ml_kinds; k->name; k++)
        if ((int32_t)k->kind == kind)
            return k;
    return 0;
}
