#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/flags/flag.h"
#include "rl/builtins.h"
#include "run/debug.h"

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
static bool two_adapter_flags(const ml_config *c) {
    return c->score.lora_adapter_path && c->score.lora_paths.n;
}

/* Linear layers in fewer bits, others in the checkpoint's dtype. */
static bool quantized_dtype(const ml_config *c) {
    return c->quantization && c->dtype != ML_WEIGHT_AUTO;
}

static bool quantized_ranks(const ml_config *c) {
    return c->quantization && (c->serve.tp > 1 || c->bench.tp > 1);
}

static bool quantized_grads(const ml_config *c) {
    return c->quantization && c->score.grads && !c->score.lora_adapter_path &&
           !c->score.lora_paths.n;
}

static bool grads_tokenwise(const ml_config *c) {
    return c->score.grads && c->score.batching == ML_BATCH_TOKENWISE;
}

static bool mtp_elsewhere(const ml_config *c) {
    return c->score.mtp && (c->score.batching == ML_BATCH_TOKENWISE ||
                            c->score.lora_adapter_path || c->score.lora_paths.n);
}

static bool convert_onto_itself(const ml_config *c) {
    return is(c->run.hf_checkpoint, c->convert.save_hf);
}

static bool serve_replicas(const ml_config *c) {
    return c->serve.dp > 1 && !c->serve.dp_attention;
}

static bool serve_dp_uneven(const ml_config *c) {
    return c->serve.dp > 1 && c->serve.tp % c->serve.dp != 0;
}

static bool serve_template_unread(const ml_config *c) {
    return c->serve.no_tokenizer && (c->run.chat_template || c->serve.tokenizer_path);
}

/* The words of --policy after ml_route_kind. */
static bool router_by_chance(const ml_config *c) {
    return c->router.route.kind == 4 || c->router.route.kind == 5;
}

static bool router_manual(const ml_config *c) {
    return c->router.route.kind == 6;
}

static bool no_end(const ml_config *c) {
    return !c->run.num_rollout && !c->run.num_epoch && !c->run.multi_lora.n_slot;
}

static bool interval_without_save(const ml_config *c) {
    return c->run.save_interval && !c->run.save;
}

static bool profile_without_save(const ml_config *c) {
    return c->run.log.profile && !c->run.save;
}

static bool batch_by_count(const ml_config *c) {
    return c->run.trainer.batch.one_step && !c->run.trainer.batch.dynamic;
}

static bool flops_by_count(const ml_config *c) {
    return c->run.trainer.batch.by_flops && !c->run.trainer.batch.dynamic;
}

static bool hf_without_save(const ml_config *c) {
    return c->run.saver.hf && !c->run.save;
}

static bool hashes_without_save(const ml_config *c) {
    return (c->run.debug.determinism || c->run.debug.checksum) && !c->run.save;
}

static bool sentinel_without_save(const ml_config *c) {
    return c->run.debug.sentinel && !c->run.save;
}

static bool half_a_metric(const ml_config *c) {
    return (c->run.invariants.metric != NULL) == isnan(c->run.invariants.threshold);
}

static bool share_of_nothing(const ml_config *c) {
    return !isnan(c->run.debug.subsample) && !c->run.rollout.load_debug;
}

static bool ends_in(const char *s, const char *end) {
    size_t n = strlen(s), k = strlen(end);
    return n >= k && strcmp(s + n - k, end) == 0;
}

static bool other_recording(const ml_config *c) {
    const char *path = c->run.rollout.save_debug;
    return path && !ends_in(path, ".zst") && !ends_in(path, ".pt");
}

static bool padded_and_dynamic(const ml_config *c) {
    return is(c->qkv_format, "bshd") && c->run.trainer.batch.dynamic;
}

static bool no_prompts(const ml_config *c) {
    return !c->run.data.path && !c->run.rollout.load_debug &&
           !c->run.extensions.path.makes_prompts && !c->run.multi_lora.n_slot;
}

static bool makes_and_reads(const ml_config *c) {
    return c->run.extensions.path.makes_prompts &&
           (c->run.data.path || !c->run.extensions.path.source);
}

static bool epochs_of_nothing(const ml_config *c) {
    return (c->run.rollout.load_debug || c->run.extensions.path.makes_prompts) &&
           !c->run.num_rollout;
}

static bool only_trains_on_nothing(const ml_config *c) {
    return c->run.rollout.train_only && !c->run.rollout.load_debug;
}

static bool evaluates_nothing(const ml_config *c) {
    return c->run.rollout.eval_interval && !c->run.rollout.eval_data.n &&
           !c->run.rollout.eval_config;
}

static bool no_sets(const ml_config *c) {
    return !c->run.rollout.eval_data.n && !c->run.rollout.eval_config;
}

static bool sets_twice(const ml_config *c) {
    return c->run.rollout.eval_data.n && c->run.rollout.eval_config;
}

static bool group_reward_of_evals(const ml_config *c) {
    return c->run.reward.group && c->run.custom_rm_path && !no_sets(c);
}

static bool under_sampling(const ml_config *c) {
    return c->run.rollout.over_sampling &&
           c->run.rollout.over_sampling < c->run.rollout_batch_size;
}

static bool two_halves(const ml_config *c) {
    return c->run.rollout.rollout_only &&
           (c->run.rollout.train_only || c->run.rollout.load_debug);
}

static bool rounds_by_two(const ml_config *c) {
    return c->run.extensions.path.rollout && strchr(c->run.extensions.path.rollout, ':') &&
           (c->run.rollout.over_sampling || c->run.rollout.partial ||
            c->run.extensions.path.group_filter || c->run.extensions.path.samples_hook ||
            c->run.mode.fully);
}

/* The needs of a built-in estimator; 0 for one of the user's. */
static uint32_t wants_of(const char *estimator) {
    for (const miles_extension *const *r = ml_builtins; *r; r++)
        if ((*r)->kind == MILES_ADVANTAGE &&
            (is((*r)->name, estimator) || is((*r)->alias, estimator)))
            return ((const miles_advantage *)(const void *)*r)->needs;
    return 0;
}

static bool is_flat_loss(const char *name) {
    for (const miles_extension *const *r = ml_builtins; *r; r++)
        if ((*r)->kind == MILES_LOSS && (is((*r)->name, name) || is((*r)->alias, name)))
            return ml_loss_is_flat((const miles_loss *)(const void *)*r);
    return false;
}

/* Whether something besides the rewards of a group has a gradient. */
static bool has_other_gradient(const ml_config *c) {
    const ml_algo_opts *a = &c->run.algo;

    return !is_flat_loss(a->loss_type) || a->custom_loss || a->disable_compute_advantages ||
           a->num.entropy_coef != 0.0 ||
           ((wants_of(a->advantage_estimator) & MILES_USES_KL) && a->num.kl_coef != 0.0) ||
           (a->num.use_kl_loss && a->num.kl_loss_coef != 0.0) ||
           (a->use_opd && a->opd_kl_coef != 0.0) || c->run.extensions.path.reward_post;
}

static bool lonely_answers(const ml_config *c) {
    return c->run.source.n_samples_per_prompt == 1 && !c->run.rollout.rollout_only &&
           !c->run.rollout.load_debug && !c->run.algo.disable_rewards_normalization &&
           (wants_of(c->run.algo.advantage_estimator) & MILES_CENTRE_REWARDS) &&
           !has_other_gradient(c);
}

static bool masked_turns(const ml_config *c) {
    return c->run.extensions.generate && c->run.rollout.mask_old;
}

/* --- algorithms ------------------------------------------------------------------- */

static bool two_kls(const ml_config *c) {
    return c->run.algo.num.kl_coef != 0.0 && c->run.algo.num.kl_loss_coef != 0.0;
}

static bool unwhitened(const ml_config *c) {
    return !c->run.algo.disable_compute_advantages && !c->run.algo.normalize_advantages &&
           (wants_of(c->run.algo.advantage_estimator) & MILES_WHITEN);
}

static bool critic_with_penalty(const ml_config *c) {
    return c->run.algo.num.kl_coef != 0.0 &&
           (wants_of(c->run.algo.advantage_estimator) & MILES_NEEDS_VALUES);
}

static bool tis_on_itself(const ml_config *c) {
    return c->run.algo.num.use_rollout_logprobs && c->run.algo.num.use_tis;
}

static bool mismatch_of_what(const ml_config *c) {
    return c->run.algo.get_mismatch_metrics && !c->run.algo.custom_tis;
}

static bool overlong_of_what(const ml_config *c) {
    return c->run.shaping.overlong_buffer > c->run.rollout.max_response;
}

static bool two_judges(const ml_config *c) {
    return c->run.reward.judge.model_path && c->run.reward.judge.url;
}

static bool selects_nothing(const ml_config *c) {
    return ml_curriculum_wanted(&c->run.source.curriculum) && !c->run.data.path;
}

static bool sampling_unused(const ml_config *c) {
    const ml_curriculum_opts *o = &c->run.source.curriculum;

    return (o->difficulty_key && o->order != ML_PROMPTS_DIFFICULTY) ||
           (o->pass_rate_key && o->order == ML_PROMPTS_IN_SEQUENCE);
}

static bool uneven_weights(const ml_config *c) {
    const ml_string_list *words = &c->run.shaping.weights;
    bool bad = words->n && words->n != c->run.shaping.keys.n;

    for (int i = 0; i < words->n && !bad; i++) {
        char *end;
        bad = !isfinite(strtod(words->word[i], &end)) || *end || end == words->word[i];
    }
    return bad || (c->run.shaping.keys.n && c->run.extensions.path.reward_post);
}

static bool subsets_of_more(const ml_config *c) {
    return is(c->run.algo.advantage_estimator, "pass_at_k") && !c->run.rollout.load_debug &&
           c->run.algo.num.pass_at_k > ml_run_per_prompt(&c->run);
}

static bool weak_dual_clip(const ml_config *c) {
    return c->run.algo.num.eps_clip_c <= 1.0; /* false for NaN (no dual clip) */
}

static bool custom_without_path(const ml_config *c) {
    return is(c->run.algo.loss_type, "custom_loss") != (c->run.algo.custom_loss != NULL);
}

static bool no_old_policy(const ml_config *c) {
    return c->run.algo.skip_actor_forward_only &&
           (c->run.algo.use_opd || c->run.algo.num.kl_coef != 0.0);
}

/* --- batches and words of lists ---------------------------------------------------- */

static bool two_batch_sizes(const ml_config *c) {
    return c->run.trainer.batch.global_batch_size &&
           c->run.trainer.batch.global_batch_size != ml_run_batch_size(&c->run);
}

static bool batch_of_more(const ml_config *c) {
    int64_t all = c->run.rollout_batch_size * ml_run_per_prompt(&c->run);
    int64_t batch = ml_run_batch_size(&c->run);
    return all && (batch > all || batch < 1);
}

static bool half_a_set(const ml_config *c) {
    return c->run.rollout.eval_data.n > 1 && c->run.rollout.eval_data.n % 2;
}

static bool no_token_id(const ml_config *c) {
    const ml_string_list *ids = &c->run.rollout.stop_ids;

    for (int i = 0; i < ids->n; i++) {
        char *end;
        long x = strtol(ids->word[i], &end, 10);
        if (*end || end == ids->word[i] || x < 0 || x > INT32_MAX)
            return true;
    }
    return false;
}

static bool no_url(const ml_config *c) {
    const ml_string_list *urls = &c->run.teacher_urls;

    for (int i = 0; i < urls->n; i++)
        if (!*ml_teacher_url(urls->word[i]) || *urls->word[i] == '=')
            return true;
    return false;
}

static bool read_dump(const ml_string_list *words, bool *enable) {
    const char *filter;

    for (int i = 0; i < words->n; i++)
        if (!ml_dump_option(enable, &filter, words->word[i]))
            return false;
    return true;
}

static bool unknown_dump_option(const ml_config *c) {
    bool enable;

    return !read_dump(&c->run.dump.inference, &enable) ||
           !read_dump(&c->run.dump.score, &enable) ||
           !read_dump(&c->run.dump.train, &enable);
}

static bool dumps_elsewhere(const ml_config *c) {
    bool enable = c->run.dump.enable;

    return read_dump(&c->run.dump.inference, &enable) && enable &&
           ml_run_elsewhere(&c->run);
}

static bool one_output(const ml_config *c) {
    return !c->convert.save_hf == !c->convert.save_gguf;
}

static bool q8_0_without_gguf(const ml_config *c) {
    return c->convert.dtype == ML_DTYPE_Q8_0 && !c->convert.save_gguf;
}

static bool other_codes_in_gguf(const ml_config *c) {
    return c->convert.save_gguf && c->convert.dtype >= ML_DTYPE_QUANTIZED &&
           c->convert.dtype != ML_DTYPE_Q8_0;
}

static bool interleaves(const ml_config *c) {
    return c->run.place.chunk_layers || c->run.place.chunks > 1;
}

static bool interleaves_one_stage(const ml_config *c) {
    return interleaves(c) && c->run.place.pp <= 1;
}

static bool interleaves_twice(const ml_config *c) {
    return c->run.place.chunk_layers && c->run.place.chunks;
}

static bool interleaves_uneven_ends(const ml_config *c) {
    return interleaves(c) && (c->run.place.first_layers || c->run.place.last_layers);
}

static bool shards_unevenly(const ml_config *c) {
    int32_t n = c->run.trainer.grad_shards;
    return n & (n - 1);
}

static bool shards_what_is_divided(const ml_config *c) {
    const ml_place_opts *p = &c->run.place;
    return c->run.trainer.grad_shards && (p->tp > 1 || p->cp > 1 || p->ep > 1 ||
                                          p->etp > 1 || p->backend == ML_TRAIN_FSDP);
}

#define QUANTIZED                                                                          \
    (ML_CMD_SCORE | ML_CMD_BENCH_ENGINE | ML_CMD_SERVE | ML_CMD_TINKER | ML_CMD_SFT |      \
     ML_CMD_TRAIN | ML_CMD_EVAL)
#define ALGO (ML_CMD_TRAIN | ML_CMD_LOSS)
#define NO_END "--num-rollout or --num-epoch is required"
#define PROFILE "--profile needs --save, the directory for the trace"
#define SAVE_HF "--save-hf needs --save, the directory for snapshots"
#define SETS_TWICE "--eval-config and --eval-prompt-data exclude each other: remove one"
#define INTERVAL "--save-interval needs --save, the directory for snapshots"

static bool no_certificate(const ml_config *c) {
    return !c->access.tls_cert &&
           (c->access.tls_key || c->access.tls_password || c->access.tls_client_ca);
}

const ml_rule ml_rules[] = {
    { "convert-output", ML_CMD_CONVERT, one_output,
      "one of --save-hf and --save-gguf is required" },
    { "convert-q8_0", ML_CMD_CONVERT, q8_0_without_gguf,
      "--dtype q8_0 is for GGUF files: it needs --save-gguf" },
    { "convert-gguf", ML_CMD_CONVERT, other_codes_in_gguf,
      "--save-gguf stores f32, bf16, f16 or q8_0: choose one of them as --dtype" },
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
    { "gradient-shards", ML_CMD_SFT | ML_CMD_TRAIN, shards_unevenly,
      "--gradient-shards must be a power of two" },
    { "gradient-shards-sizes", ML_CMD_SFT | ML_CMD_TRAIN, shards_what_is_divided,
      "--gradient-shards goes with data and pipeline parallelism alone: remove it, or the "
      "tensor, context and expert parallel sizes and --train-backend fsdp" },
    { "interleaved-stages", ML_CMD_SFT | ML_CMD_TRAIN, interleaves_one_stage,
      "--num-layers-per-virtual-pipeline-stage and --num-virtual-stages-per-pipeline-rank "
      "need --pipeline-model-parallel-size of at least 2" },
    { "interleaved-twice", ML_CMD_SFT | ML_CMD_TRAIN, interleaves_twice,
      "--num-layers-per-virtual-pipeline-stage and --num-virtual-stages-per-pipeline-rank "
      "exclude each other: remove one" },
    { "interleaved-ends", ML_CMD_SFT | ML_CMD_TRAIN, interleaves_uneven_ends,
      "--decoder-first-pipeline-num-layers and --decoder-last-pipeline-num-layers are for "
      "ranks with one stage: remove them, or the virtual stages" },
    { "qkv-format", ML_CMD_SFT | ML_CMD_TRAIN, padded_and_dynamic,
      "--qkv-format bshd uses --micro-batch-size: remove --use-dynamic-batch-size" },
    { "train-subsample", ML_CMD_TRAIN, share_of_nothing,
      "--load-debug-rollout-data-subsample needs --load-debug-rollout-data" },
    { "train-recording", ML_CMD_TRAIN, other_recording,
      "--save-debug-rollout-data writes .jsonl.zst or .pt: change the suffix" },
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
    { "score-adapters", ML_CMD_SCORE, two_adapter_flags,
      "--lora-adapter-path and --lora-paths exclude each other: name one adapter for all "
      "sequences, or a list" },
    { "quantized-dtype", QUANTIZED, quantized_dtype,
      "--quantization and --base-quantization exclude --dtype f32 and bf16: what is not "
      "quantized has the dtype of the checkpoint" },
    { "quantized-ranks", ML_CMD_SERVE | ML_CMD_BENCH_ENGINE, quantized_ranks,
      "--quantization excludes --tp-size: an engine of one rank has the whole weights" },
    { "quantized-grads", ML_CMD_SCORE, quantized_grads,
      "--quantization excludes --grads without an adapter: quantized weights have no "
      "gradients; add --lora-adapter-path" },
    { "score-grads-batching", ML_CMD_SCORE, grads_tokenwise,
      "--grads needs whole sequences in a batch: use --batching packed or single" },
    { "score-mtp-batching", ML_CMD_SCORE, mtp_elsewhere,
      "--mtp needs whole sequences in a batch and the model's own weights: use --batching "
      "packed or single, and no LoRA adapter" },
    { "convert-in-place", ML_CMD_CONVERT, convert_onto_itself,
      "--save-hf and the input checkpoint are the same directory: choose another one" },
    { "serve-replicas", ML_CMD_SERVE, serve_replicas,
      "--dp-size without --enable-dp-attention asks for several copies of the model: start "
      "several servers behind miles router, or add --enable-dp-attention" },
    { "serve-dp-uneven", ML_CMD_SERVE, serve_dp_uneven,
      "--dp-size does not divide --tp-size: use a divisor" },
    { "serve-no-tokenizer", ML_CMD_SERVE, serve_template_unread,
      "--skip-tokenizer-init excludes --tokenizer-path and --chat-template: remove one of "
      "them" },
    { "router-by-chance", ML_CMD_ROUTER, router_by_chance,
      "--policy random and power_of_two are not supported: use least_loaded, which "
      "compares the loads of all workers" },
    { "router-manual", ML_CMD_ROUTER, router_manual,
      "--policy manual is not supported: use consistent_hashing, which maps a routing key "
      "to a worker without a table" },
    { "two-kls", ALGO, two_kls,
      "--kl-coef and --kl-loss-coef exclude each other: set one of them" },
    { "normalize-advantages", ALGO, unwhitened,
      "this --advantage-estimator needs --normalize-advantages" },
    { "critic-kl", ALGO, critic_with_penalty,
      "--kl-coef must be 0 with a critic: use --use-kl-loss and --kl-loss-coef" },
    { "tis-of-rollout", ALGO, tis_on_itself,
      "--use-tis and --use-rollout-logprobs exclude each other: remove one of them" },
    { "mismatch-metrics", ALGO, mismatch_of_what,
      "--get-mismatch-metrics needs --custom-tis-function-path" },
    { "dual-clip", ALGO, weak_dual_clip, "--eps-clip-c must be above 1" },
    { "custom-loss", ALGO, custom_without_path,
      "--loss-type custom_loss and --custom-loss-function-path need each other" },
    { "old-log-probs", ALGO, no_old_policy,
      "--kl-coef and --use-opd need old log-probs, which --skip-actor-forward-only does "
      "not compute" },
    { "batch-steps", ML_CMD_SFT | ML_CMD_TRAIN, two_batch_sizes,
      "--global-batch-size is not the samples of a rollout divided by "
      "--num-steps-per-rollout: remove one of them" },
    { "batch-samples", ML_CMD_SFT | ML_CMD_TRAIN, batch_of_more,
      "a train step needs between 1 and all samples of a rollout (--rollout-batch-size "
      "times --n-samples-per-prompt): lower --global-batch-size or "
      "--num-steps-per-rollout, or raise --rollout-batch-size" },
    { "serve-tls", ML_CMD_SERVE | ML_CMD_ROUTER | ML_CMD_DASHBOARD | ML_CMD_TINKER,
      no_certificate,
      "--ssl-keyfile, --ssl-keyfile-password and --ssl-ca-certs need --ssl-certfile" },
    { "eval-pairs", ML_CMD_TRAIN | ML_CMD_EVAL, half_a_set,
      "--eval-prompt-data needs a name and a file for each set: NAME FILE NAME FILE" },
    { "stop-token-ids", ML_CMD_TRAIN | ML_CMD_EVAL, no_token_id,
      "--rollout-stop-token-ids: expected token ids, whole numbers from 0 on" },
    { "train-overlong", ML_CMD_TRAIN, overlong_of_what,
      "--overlong-buffer-len must not exceed --rollout-max-response-len" },
    { "two-judges", ML_CMD_TRAIN | ML_CMD_EVAL | ML_CMD_REWARD, two_judges,
      "--judge-model-path and --judge-url exclude each other: remove one of them" },
    { "train-curriculum-data", ML_CMD_TRAIN, selects_nothing,
      "--prompt-sampling and --replay-hard-prompts select rows of --prompt-data: give it" },
    { "train-curriculum-keys", ML_CMD_TRAIN, sampling_unused,
      "--difficulty-key needs --prompt-sampling difficulty, and --pass-rate-key "
      "--prompt-sampling hard, learnable or difficulty" },
    { "train-gdpo", ML_CMD_TRAIN, uneven_weights,
      "--gdpo-reward-weights must be as many numbers as --gdpo-reward-keys, which exclude "
      "--custom-reward-post-process-path" },
    { "train-pass-at-k", ML_CMD_TRAIN, subsets_of_more,
      "--pass-at-k must not exceed --n-samples-per-prompt" },
    { "train-teacher-names", ML_CMD_TRAIN, no_url,
      "--opd-teacher-urls: expected URL or NAME=URL for each teacher" },
    { "dumper-options", ML_CMD_SFT | ML_CMD_TRAIN, unknown_dump_option,
      "--dumper-inference, --dumper-fwd-only, --dumper-fwd-bwd: expected enable=1, "
      "enable=0 "
      "or filter=PART, a part of the names to write" },
    { "train-dumper-engines", ML_CMD_TRAIN, dumps_elsewhere,
      "--dumper-inference: remote engines write no tensors: add --dumper-inference "
      "enable=0" },
    { 0 },
};
