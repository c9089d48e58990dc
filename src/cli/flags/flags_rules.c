#include <math.h>
#include <string.h>

#include "cli/flags/flag.h"
#include "rl/builtins.h"

static bool is(const char *a, const char *b) {
    return a && b && strcmp(a, b) == 0;
}

static bool no_output(const ml_config *c) {
    return !c->score.output && !c->score.dry_run;
}

static bool output_is_input(const ml_config *c) {
    return is(c->score.output, c->score.input);
}

/* A backward pass needs the activations of a whole sequence in one batch. */
static bool grads_tokenwise(const ml_config *c) {
    return c->score.grads && c->score.batching == ML_BATCH_TOKENWISE;
}

static bool convert_onto_itself(const ml_config *c) {
    return is(c->hf_checkpoint, c->convert.save_hf);
}

static bool serve_template_unread(const ml_config *c) {
    return c->serve.no_tokenizer && (c->chat.chat_template || c->serve.tokenizer_path);
}

/* The words of --policy after ml_route_kind. */
static bool router_by_chance(const ml_config *c) {
    return c->router.policy == 4 || c->router.policy == 5;
}

static bool router_manual(const ml_config *c) {
    return c->router.policy == 6;
}

static bool no_end(const ml_config *c) {
    return !c->train.num_rollout && !c->train.num_epoch;
}

static bool interval_without_save(const ml_config *c) {
    return c->train.save_interval && !c->train.save;
}

static bool profile_without_save(const ml_config *c) {
    return c->log.profile && !c->train.save;
}

static bool batch_by_count(const ml_config *c) {
    return c->train.dynamic_batch && !c->train.dynamic;
}

static bool flops_by_count(const ml_config *c) {
    return c->train.by_flops && !c->train.dynamic;
}

static bool hf_without_save(const ml_config *c) {
    return c->train.save_hf && !c->train.save;
}

static bool hashes_without_save(const ml_config *c) {
    return (c->debug.determinism || c->debug.checksum) && !c->train.save;
}

static bool sentinel_without_save(const ml_config *c) {
    return c->debug.sentinel && !c->train.save;
}

static bool half_a_metric(const ml_config *c) {
    return (c->debug.metric != NULL) == isnan(c->debug.threshold);
}

static bool share_of_nothing(const ml_config *c) {
    return !isnan(c->debug.subsample) && !c->rollout.load_debug;
}

static bool padded_and_dynamic(const ml_config *c) {
    return is(c->train.qkv_format, "bshd") && c->train.dynamic;
}

static bool no_prompts(const ml_config *c) {
    return !c->train.prompt_data && !c->rollout.load_debug &&
           !c->extensions.path.makes_prompts;
}

static bool makes_and_reads(const ml_config *c) {
    return c->extensions.path.makes_prompts &&
           (c->train.prompt_data || !c->extensions.path.source);
}

static bool epochs_of_nothing(const ml_config *c) {
    return (c->rollout.load_debug || c->extensions.path.makes_prompts) &&
           !c->train.num_rollout;
}

static bool only_trains_on_nothing(const ml_config *c) {
    return c->rollout.train_only && !c->rollout.load_debug;
}

static bool evaluates_nothing(const ml_config *c) {
    return c->rollout.eval_interval && !c->rollout.eval_data.n && !c->rollout.eval_config;
}

static bool no_sets(const ml_config *c) {
    return !c->rollout.eval_data.n && !c->rollout.eval_config;
}

static bool sets_twice(const ml_config *c) {
    return c->rollout.eval_data.n && c->rollout.eval_config;
}

static bool group_reward_of_evals(const ml_config *c) {
    return c->reward.group && c->reward.custom_rm_path && !no_sets(c);
}

static bool under_sampling(const ml_config *c) {
    return c->rollout.over_sampling &&
           c->rollout.over_sampling < c->train.rollout_batch_size;
}

static bool two_halves(const ml_config *c) {
    return c->rollout.rollout_only && (c->rollout.train_only || c->rollout.load_debug);
}

static bool rounds_by_two(const ml_config *c) {
    return c->extensions.path.rollout && strchr(c->extensions.path.rollout, ':') &&
           (c->rollout.over_sampling || c->rollout.partial ||
            c->extensions.path.group_filter || c->extensions.path.samples_hook ||
            c->mode.fully);
}

/* The needs of a built-in estimator; 0 for one of the user's. */
static uint32_t wants_of(const char *estimator) {
    for (const miles_extension *const *r = ml_builtins; *r; r++)
        if ((*r)->kind == MILES_ADVANTAGE &&
            (is((*r)->name, estimator) || is((*r)->alias, estimator)))
            return ((const miles_advantage *)(const void *)*r)->needs;
    return 0;
}

/* Whether something besides the rewards of a group has a gradient. */
static bool has_other_gradient(const ml_config *c) {
    const ml_algo_opts *a = &c->algo;
    bool policy = is(a->loss_type, ml_loss_policy.base.name) ||
                  is(a->loss_type, ml_loss_cispo.base.name) ||
                  is(a->loss_type, ml_loss_cispo.base.alias);

    return !policy || a->custom_loss || a->disable_compute_advantages ||
           a->num.entropy_coef != 0.0 ||
           ((wants_of(a->advantage_estimator) & MILES_USES_KL) && a->num.kl_coef != 0.0) ||
           (a->num.use_kl_loss && a->num.kl_loss_coef != 0.0) ||
           (a->use_opd && a->opd_kl_coef != 0.0) || c->extensions.path.reward_post;
}

static bool lonely_answers(const ml_config *c) {
    return c->rollout.n_samples_per_prompt == 1 && !c->rollout.rollout_only &&
           !c->rollout.load_debug && !c->algo.disable_rewards_normalization &&
           (wants_of(c->algo.advantage_estimator) & MILES_CENTRE_REWARDS) &&
           !has_other_gradient(c);
}

static bool masked_turns(const ml_config *c) {
    return c->extensions.generate && c->rollout.mask_old;
}

#define NO_END "--num-rollout or --num-epoch is required"
#define PROFILE "--profile needs --save, the directory for the trace"
#define SAVE_HF "--save-hf needs --save, the directory for snapshots"
#define SETS_TWICE "--eval-config and --eval-prompt-data exclude each other: remove one"
#define INTERVAL "--save-interval needs --save, the directory for snapshots"

const ml_rule ml_rules[] = {
    { "sft-no-end", ML_CMD_SFT, no_end, NO_END },
    { "sft-interval", ML_CMD_SFT, interval_without_save, INTERVAL },
    { "profile", ML_CMD_SFT | ML_CMD_TRAIN, profile_without_save, PROFILE },
    { "hashes", ML_CMD_SFT | ML_CMD_TRAIN, hashes_without_save,
      "--debug-determinism needs --save, the directory for the hashes" },
    { "sentinel", ML_CMD_SFT | ML_CMD_TRAIN, sentinel_without_save,
      "--save-trigger-sentinel needs --save, the directory for snapshots" },
    { "metric", ML_CMD_SFT | ML_CMD_TRAIN, half_a_metric,
      "--ci-metric-checker-key and --ci-metric-checker-threshold need each other: give "
      "both" },
    { "qkv-format", ML_CMD_SFT | ML_CMD_TRAIN, padded_and_dynamic,
      "--qkv-format bshd uses --micro-batch-size: remove --use-dynamic-batch-size" },
    { "train-subsample", ML_CMD_TRAIN, share_of_nothing,
      "--load-debug-rollout-data-subsample needs --load-debug-rollout-data" },
    { "train-no-end", ML_CMD_TRAIN, no_end, NO_END },
    { "train-interval", ML_CMD_TRAIN, interval_without_save, INTERVAL },
    { "sft-save-hf", ML_CMD_SFT, hf_without_save, SAVE_HF },
    { "train-save-hf", ML_CMD_TRAIN, hf_without_save, SAVE_HF },
    { "train-one-step", ML_CMD_TRAIN, batch_by_count,
      "--use-dynamic-global-batch-size needs --use-dynamic-batch-size" },
    { "train-by-flops", ML_CMD_TRAIN, flops_by_count,
      "--balance-by-flops needs --use-dynamic-batch-size" },
    { "train-no-data", ML_CMD_TRAIN, no_prompts,
      "no prompts: give --prompt-data FILE, or --load-debug-rollout-data for recorded "
      "rollouts" },
    { "train-no-rounds", ML_CMD_TRAIN, epochs_of_nothing,
      "--num-epoch needs --prompt-data: with recorded rollouts or a custom data source, "
      "give --num-rollout" },
    { "train-makes-prompts", ML_CMD_TRAIN, makes_and_reads,
      "--disable-rollout-global-dataset needs --data-source-path ./my.so:name, and "
      "excludes --prompt-data" },
    { "train-only-what", ML_CMD_TRAIN, only_trains_on_nothing,
      "--debug-train-only needs --load-debug-rollout-data, the rollouts to train on" },
    { "train-eval-of-what", ML_CMD_TRAIN, evaluates_nothing,
      "--eval-interval needs --eval-prompt-data or --eval-config, the data sets" },
    { "eval-of-what", ML_CMD_EVAL, no_sets,
      "no evaluation data: give --eval-prompt-data NAME FILE, or --eval-config" },
    { "train-eval-twice", ML_CMD_TRAIN, sets_twice, SETS_TWICE },
    { "eval-twice", ML_CMD_EVAL, sets_twice, SETS_TWICE },
    { "train-group-evals", ML_CMD_TRAIN, group_reward_of_evals,
      "--group-rm does not work with evaluations, which have no groups: remove one of "
      "them" },
    { "train-over-sampling", ML_CMD_TRAIN, under_sampling,
      "--over-sampling-batch-size must be at least --rollout-batch-size" },
    { "train-two-halves", ML_CMD_TRAIN, two_halves,
      "--debug-rollout-only and --debug-train-only exclude each other: remove one" },
    { "train-rounds-by-two", ML_CMD_TRAIN, rounds_by_two,
      "a custom --rollout-function-path replaces the built-in rollout: remove "
      "--over-sampling-batch-size, --partial-rollout, --dynamic-sampling-filter-path, "
      "--rollout-all-samples-process-path and --fully-async" },
    { "train-lonely-answers", ML_CMD_TRAIN, lonely_answers,
      "--n-samples-per-prompt 1 (the default) gives zero advantages: this "
      "--advantage-estimator subtracts the group's mean reward.  Set "
      "--n-samples-per-prompt 8, another estimator (reinforce_plus_plus, ppo) or "
      "--disable-rewards-normalization" },
    { "train-masked-turns", ML_CMD_TRAIN, masked_turns,
      "--mask-offpolicy-in-partial-rollout does not work with "
      "--custom-generate-function-path: remove one of them" },
    { "score-output", ML_CMD_SCORE, no_output,
      "no output: give --output FILE, or --dry-run to print the memory plan" },
    { "score-in-place", ML_CMD_SCORE, output_is_input,
      "--output and --input are the same file: choose another output" },
    { "score-grads-batching", ML_CMD_SCORE, grads_tokenwise,
      "--grads needs whole sequences in a batch: use --batching packed or single" },
    { "convert-in-place", ML_CMD_CONVERT, convert_onto_itself,
      "--save-hf and the input checkpoint are the same directory: choose another one" },
    { "serve-no-tokenizer", ML_CMD_SERVE, serve_template_unread,
      "--skip-tokenizer-init excludes --tokenizer-path and --chat-template: remove one of "
      "them" },
    { "router-by-chance", ML_CMD_ROUTER, router_by_chance,
      "--policy random and power_of_two are not supported: use least_loaded, which "
      "compares the loads of all workers" },
    { "router-manual", ML_CMD_ROUTER, router_manual,
      "--policy manual is not supported: use consistent_hashing, which maps a routing key "
      "to a worker without a table" },
    { 0 },
};
