/* Constraints between flags of miles train: generation of samples, and models besides the
 * actor. */
#include <string.h>

#include "cli/flags/flag.h"

/* --- adapters ---------------------------------------------------------------------- */

static bool lora_without_targets(const ml_config *c) {
    return c->run.lora.rank && !c->run.lora.path && !c->run.lora.target;
}

static bool lora_elsewhere(const ml_config *c) {
    return ml_run_has_lora(&c->run) &&
           (c->run.eval_gpus > 0 ||
            (ml_run_elsewhere(&c->run) && c->run.mode.transfer == ML_TRANSFER_DISK_DELTA));
}

static bool lora_with_copies(const ml_config *c) {
    return ml_run_has_lora(&c->run) && (c->run.ref_interval || c->run.keep_old_actor);
}

static bool train_only_elsewhere(const ml_config *c) {
    return c->run.lora.train_only &&
           (!ml_run_has_lora(&c->run) || ml_run_elsewhere(&c->run));
}

static bool lora_dropout(const ml_config *c) {
    return c->run.lora.dropout > 0 && (!ml_run_has_lora(&c->run) || c->run.on_policy ||
                                       c->run.algo.skip_actor_forward_only);
}

static bool services_flags_alone(const ml_config *c) {
    const ml_multi_lora_opts *o = &c->run.multi_lora;
    return !o->n_slot && (o->adapters.n || o->no_service || o->max_batch);
}

static bool paused_in_place(const ml_config *c) {
    return !c->run.multi_lora.n_slot && c->pause_mode &&
           strcmp(c->pause_mode, "in_place") == 0;
}

static bool service_without_rank(const ml_config *c) {
    return c->run.multi_lora.n_slot && (!c->run.lora.rank || c->run.lora.path);
}

static bool unpaired_adapters(const ml_config *c) {
    return c->run.multi_lora.adapters.n % 2;
}

/* What has one model, one data set or one learner in mind. */
static bool service_with_one_model(const ml_config *c) {
    const ml_run_opts *o = &c->run;

    return o->multi_lora.n_slot &&
           (!o->mode.async || ml_run_elsewhere(o) || o->data.path || o->load ||
            o->rollout.load_debug || o->rollout.rollout_only || o->lora.train_only ||
            o->lora.shared_outer || o->qat || o->rollout_dtype > ML_WEIGHT_STORED ||
            o->teacher_load || o->algo.use_opd || ml_run_names_critic(o) ||
            strcmp(o->algo.advantage_estimator, "ppo") == 0);
}

static bool service_with_extras(const ml_config *c) {
    const ml_run_opts *o = &c->run;

    return o->multi_lora.n_slot &&
           (o->mode.fully || o->mode.colocate || o->rollout.partial ||
            o->rollout.over_sampling || o->rollout.eval_data.n || o->rollout.eval_config ||
            o->rollout.eval_interval || o->sessions.kind || o->mode.update_interval > 1 ||
            o->algo.num.calculate_per_token_loss || o->ref_interval || o->keep_old_actor ||
            o->trainer.optimizer.rule.kind != ML_OPTIMIZER_ADAM);
}

/* Extensions have one instance, and runs their own threads. */
static bool service_with_functions(const ml_config *c) {
    const ml_extension_paths *p = &c->run.extensions.path;

    return c->run.multi_lora.n_slot &&
           (p->rollout || p->source || p->group_filter || p->buffer_filter ||
            p->reward_post || p->sample_filter || p->samples_hook || p->metrics ||
            p->after_init || p->before_log_prob || p->before_train_step || p->after_save ||
            p->buffer || p->convert || p->data_ready || c->run.extensions.generate);
}

/* --- multi-token prediction ---------------------------------------------------------- */

static bool mtp_without_layers(const ml_config *c) {
    return c->run.mtp.train && c->run.mtp.n_layer < 1;
}

/* A head is that of EAGLE3, if there is an algorithm. */
static bool head_not_given(const ml_config *c) {
    const ml_speculative_opts *o = &c->run.speculative;

    return c->run.mtp.head && (!o->draft_path || c->run.mtp.train ||
                               (o->algorithm && strcmp(o->algorithm, "EAGLE3") != 0));
}

static bool trains_module(const ml_config *c) {
    return c->run.mtp.train || c->run.mtp.head;
}

/* A head reads layers of several stages. */
static bool head_in_stages(const ml_config *c) {
    return c->run.mtp.head && c->run.place.pp > 1;
}

static bool mtp_with_others(const ml_config *c) {
    return trains_module(c) && (ml_run_has_lora(&c->run) || ml_run_elsewhere(&c->run) ||
                                c->fake_quantization > 0 || c->fp8_format);
}

/* --- quantization --------------------------------------------------------------------- */

static bool quantized_without_lora(const ml_config *c) {
    return c->quantization && !ml_run_has_lora(&c->run);
}

static bool quantizes_rollouts(const ml_config *c) {
    return c->rollout_quantization && c->rollout_quantization != ML_ROLLOUT_AUTO;
}

static bool quantized_in_parts(const ml_config *c) {
    const ml_place_opts *p = &c->run.place;

    return (c->quantization || c->fake_quantization > 0 || quantizes_rollouts(c) ||
            c->fp8_format) &&
           (p->tp > 1 || p->pp > 1 || p->ep > 1 || p->etp > 1 ||
            p->backend == ML_TRAIN_FSDP);
}

static bool fp8_recipe(const ml_config *c) {
    return (c->fp8_format || c->fp8_recipe) &&
           (!c->fp8_recipe || (strcmp(c->fp8_recipe, "blockwise") != 0 &&
                               strcmp(c->fp8_recipe, "mxfp8") != 0));
}

static bool fp8_format(const ml_config *c) {
    return (c->fp8_format || c->fp8_recipe) &&
           (!c->fp8_format || (strcmp(c->fp8_format, "e4m3") != 0 &&
                               (strcmp(c->fp8_format, "hybrid") != 0 || !c->fp8_backward)));
}

static bool fp8_backward(const ml_config *c) {
    return c->fp8_backward &&
           (!c->fp8_format || !c->fp8_recipe || strcmp(c->fp8_recipe, "blockwise") != 0);
}

static bool megatron_names_alone(const ml_config *c) {
    return c->run.high_precision.megatron_names.n && !c->run.high_precision.names.n;
}

/* They have the default 1. */
static bool layers_without_ends(const ml_config *c) {
    return !c->run.high_precision.ends &&
           (c->run.high_precision.first != 1 || c->run.high_precision.last != 1);
}

static bool fake_with_others(const ml_config *c) {
    return (c->fake_quantization > 0 || c->fp8_format) &&
           ((c->fake_quantization > 0 && c->fp8_format) || ml_run_has_lora(&c->run) ||
            quantizes_rollouts(c) || c->run.ref_interval || c->run.keep_old_actor ||
            ml_run_elsewhere(&c->run));
}

static bool rollout_quantized_with_others(const ml_config *c) {
    return quantizes_rollouts(c) &&
           (ml_run_has_lora(&c->run) || c->run.on_policy || ml_run_elsewhere(&c->run));
}

static bool quantized_critic(const ml_config *c) {
    return c->quantization && c->run.algo.advantage_estimator &&
           strcmp(c->run.algo.advantage_estimator, "ppo") == 0;
}

/* --- the optimizer ----------------------------------------------------------------- */

static bool reduced_moments(const ml_config *c) {
    const ml_optim_rule_opts *o = &c->run.trainer.optimizer.rule;
    return o->format1 != ML_MOMENT_F32 || o->format2 != ML_MOMENT_F32;
}

static bool formats_alone(const ml_config *c) {
    return reduced_moments(c) && !c->precision_aware;
}

static bool formats_without_adam(const ml_config *c) {
    return reduced_moments(c) && c->run.trainer.optimizer.rule.kind != ML_OPTIMIZER_ADAM;
}

/* --- generation of samples ------------------------------------------------------- */

static bool async_flag_in_train(const ml_config *c) {
    return !c->run.mode.async && (c->run.mode.fully || c->run.mode.update_interval > 1);
}

static bool queue_flag_without_queue(const ml_config *c) {
    return !c->run.mode.fully &&
           ((c->run.mode.max_stale >= 0 && !c->run.multi_lora.n_slot) ||
            c->run.mode.max_samples || c->run.mode.unused);
}

static bool buffer_without_queue(const ml_config *c) {
    return c->run.extensions.path.buffer &&
           (!c->run.mode.fully || c->run.mode.max_stale >= 0);
}

static bool two_sets_in_one(const ml_config *c) {
    return c->run.mode.async && c->run.mode.colocate;
}

static bool saves_between(const ml_config *c) {
    return c->run.save_interval % c->run.mode.update_interval != 0;
}

static bool fully_in_rounds(const ml_config *c) {
    return c->run.mode.fully && (c->run.rollout.partial || c->run.rollout.over_sampling ||
                                 c->run.extensions.path.samples_hook);
}

static bool less_than_a_group(const ml_config *c) {
    return c->run.mode.max_samples &&
           c->run.mode.max_samples < c->run.source.n_samples_per_prompt;
}

static bool external_without_address(const ml_config *c) {
    return c->run.mode.external && !c->run.mode.addrs.n;
}

static bool address_without_external(const ml_config *c) {
    return !c->run.mode.external && c->run.mode.addrs.n;
}

static bool place_without_engines(const ml_config *c) {
    return !ml_run_elsewhere(&c->run) && c->run.publish.dir;
}

static bool engines_of_two_kinds(const ml_config *c) {
    return ml_run_external(&c->run) && c->run.mode.n_engine;
}

static bool router_without_port(const ml_config *c) {
    return c->run.mode.router_ip && (c->run.router.port < 1 || c->run.mode.external);
}

static bool router_of_nothing(const ml_config *c) {
    return c->run.router.port >= 0 && !c->run.mode.router_ip &&
           (!ml_run_elsewhere(&c->run) || (!c->run.save && !c->run.publish.dir));
}

static bool engines_in_one_set(const ml_config *c) {
    return c->run.mode.colocate && c->run.mode.n_engine;
}

/* Files, and logs of the engines of the run. */
static bool no_place_for_weights(const ml_config *c) {
    return ml_run_elsewhere(&c->run) && !c->run.publish.dir && !c->run.save &&
           (c->run.mode.n_engine || c->run.mode.transfer != ML_TRANSFER_BROADCAST);
}

static bool place_without_files(const ml_config *c) {
    return c->run.publish.dir && c->run.mode.transfer == ML_TRANSFER_BROADCAST &&
           !c->run.mode.n_engine;
}

static bool address_without_tcp(const ml_config *c) {
    return c->run.publish.address &&
           (!ml_run_elsewhere(&c->run) || c->run.mode.transfer != ML_TRANSFER_BROADCAST);
}

static bool peer_to_peer(const ml_config *c) {
    return c->run.mode.transfer == ML_TRANSFER_P2P && ml_run_elsewhere(&c->run);
}

static bool delta_without_engines(const ml_config *c) {
    return c->run.mode.transfer == ML_TRANSFER_DISK_DELTA && !ml_run_elsewhere(&c->run);
}

static bool delta_without_copy(const ml_config *c) {
    return c->run.mode.transfer == ML_TRANSFER_DISK_DELTA && !c->run.publish.copy;
}

static bool delta_flag_without_delta(const ml_config *c) {
    return c->run.mode.transfer != ML_TRANSFER_DISK_DELTA &&
           (c->run.publish.copy || c->run.publish.write.encoding ||
            c->run.publish.write.checksum);
}

static bool uneven_engines(const ml_config *c) {
    return c->run.eval_gpus % c->run.eval_gpus_per_engine != 0;
}

static bool evaluates_elsewhere(const ml_config *c) {
    return c->run.eval_gpus && ml_run_external(&c->run);
}

static bool no_place_for_snapshots(const ml_config *c) {
    return c->run.eval_gpus && !c->run.eval_queue.dir && !c->run.save;
}

static bool stale_by_design(const ml_config *c) {
    return c->run.on_policy && (c->run.mode.async || c->run.rollout.partial ||
                                c->run.debug.skip_sync || c->run.lora.train_only);
}

static bool prefill_alone(const ml_config *c) {
    return c->run.debug.prefill && (!c->run.on_policy || c->run.rollout.load_debug);
}

static bool hook_without_files(const ml_config *c) {
    return c->run.extensions.path.weights_written &&
           (!ml_run_elsewhere(&c->run) || c->run.mode.transfer == ML_TRANSFER_BROADCAST);
}

static bool analyses_nothing(const ml_config *c) {
    return c->run.record.analyse && !c->run.record.events && !c->run.debug.dump;
}

static bool skips_what_it_checks(const ml_config *c) {
    return c->run.debug.skip_sync && c->run.invariants.fresh_steps &&
           !c->run.debug.ci_no_sync;
}

static bool faults_without_engines(const ml_config *c) {
    return c->run.debug.faults && !c->run.mode.n_engine;
}

static bool restarts_ranks(const ml_config *c) {
    for (int i = 0; i < c->ft_components.n; i++)
        if (strcmp(c->ft_components.word[i], "rollout") != 0)
            return true;
    return false;
}

static bool takes_turns_with_itself(const ml_config *c) {
    return (c->run.mode.offload || c->run.mode.offload_train ||
            c->run.mode.offload_rollout) &&
           (c->run.mode.async || ml_run_elsewhere(&c->run) || c->run.rollout.load_debug);
}

/* --- models besides the actor -------------------------------------------------- */

static bool is(const char *a, const char *b) {
    return a && strcmp(a, b) == 0;
}

/* For an estimator in a shared object it is known only after loading. */
static bool critic_of_nothing(const ml_config *c) {
    return ml_run_names_critic(&c->run) && !is(c->run.algo.advantage_estimator, "ppo") &&
           !strchr(c->run.algo.advantage_estimator, ':');
}

static bool critic_without_returns(const ml_config *c) {
    return is(c->run.algo.advantage_estimator, "ppo") &&
           c->run.algo.disable_compute_advantages;
}

static bool no_reference(const ml_config *c) {
    return c->run.ref_interval && !c->run.algo.num.use_kl_loss &&
           c->run.algo.num.kl_coef == 0.0;
}

static bool teacher_without_opd(const ml_config *c) {
    return !c->run.algo.use_opd && (c->run.teacher_load || c->run.teacher_urls.n);
}

/* Recordings may contain the teacher's log-probs. */
static bool teacher_of_no_type(const ml_config *c) {
    return c->run.algo.use_opd && !c->run.opd_type && !c->run.rollout.load_debug;
}

static bool teacher_not_loaded(const ml_config *c) {
    return c->run.algo.use_opd && is(c->run.opd_type, "megatron") &&
           (!c->run.teacher_load || c->run.teacher_urls.n);
}

/* With its own prompt, the actor's teacher is the actor. */
static bool learns_from_itself(const ml_config *c) {
    return is(c->run.opd_type, "self") &&
           (!c->run.opd.context_key || c->run.teacher_load || c->run.teacher_urls.n);
}

static bool context_of_no_teacher(const ml_config *c) {
    return c->run.opd.context_key && !c->run.algo.use_opd;
}

static bool top_k_of_no_teacher(const ml_config *c) {
    return c->run.opd.top_k && !c->run.algo.use_opd;
}

/* The order in which groups end decides which are kept, and must not depend on when others
 * are scored. */
static bool top_k_disturbs(const ml_config *c) {
    const ml_run_opts *o = &c->run;
    return (o->opd.top_k || is(o->opd_type, "self")) && o->mode.async && !o->mode.fully &&
           (o->rollout.over_sampling > o->rollout_batch_size ||
            o->extensions.path.group_filter);
}

static bool teacher_not_asked(const ml_config *c) {
    return c->run.algo.use_opd && is(c->run.opd_type, "sglang") &&
           (c->run.teacher_load || !c->run.teacher_urls.n);
}

static bool old_and_none(const ml_config *c) {
    return c->run.keep_old_actor && c->run.algo.skip_actor_forward_only;
}

static bool needs_the_pass(const ml_config *c) {
    return c->run.algo.skip_actor_forward_only && (c->run.entropy || c->run.on_policy);
}

static bool replays_no_routing(const ml_config *c) {
    return c->run.algo.skip_actor_forward_only && c->run.rollout.routing_replay &&
           !c->run.rollout.rollout_routing_replay;
}

static bool replays_no_indexer(const ml_config *c) {
    return c->run.algo.skip_actor_forward_only && c->run.rollout.indexer_replay &&
           !c->run.rollout.rollout_indexer_replay;
}

static bool agent_without_sessions(const ml_config *c) {
    const char *generate = c->run.extensions.generate;
    bool agentic =
        generate &&
        strcmp(generate, "miles.rollout.generate_hub.agentic_tool_call.generate") == 0;

    return (c->run.sessions.agent != NULL) != agentic || (agentic && !c->run.sessions.kind);
}

static bool session_flag_alone(const ml_config *c) {
    const ml_session_flags *f = &c->run.sessions;

    return !f->kind &&
           (f->ip || f->ports.n || f->picker || f->postprocessor || f->max_tokens ||
            (f->matcher && strcmp(f->matcher, "strict") != 0) ||
            (f->tito && strcmp(f->tito, "default") != 0));
}

static bool tree_with_groups(const ml_config *c) {
    return c->run.sessions.kind == 2 && (c->run.reward.group || c->run.rollout.partial);
}

const ml_rule ml_rules_train[] = {
    { "train-sessions-agent", ML_CMD_TRAIN, agent_without_sessions,
      "--custom-agent-function-path, --use-session-server and "
      "--custom-generate-function-path "
      "miles.rollout.generate_hub.agentic_tool_call.generate need each other: give all "
      "three, or no agent" },
    { "train-sessions-alone", ML_CMD_TRAIN, session_flag_alone,
      "--session-*, --tito-model and --max-seq-len need --use-session-server: add it" },
    { "train-sessions-groups", ML_CMD_TRAIN, tree_with_groups,
      "--use-session-server v2 excludes --group-rm and --partial-rollout: remove them, or "
      "use v1" },
    { "lora-targets", ML_CMD_SFT | ML_CMD_TRAIN, lora_without_targets,
      "--lora-rank needs --target-modules: all-linear, or names such as q_proj,v_proj" },
    { "lora-elsewhere", ML_CMD_SFT | ML_CMD_TRAIN, lora_elsewhere,
      "--lora-rank excludes --eval-num-gpus and --update-weight-transfer-mode disk-delta: "
      "use broadcast or disk, which send the adapter alone" },
    { "lora-copies", ML_CMD_SFT | ML_CMD_TRAIN, lora_with_copies,
      "--lora-rank excludes --ref-update-interval and --keep-old-actor: the reference is "
      "the "
      "model without the adapter" },
    { "multi-lora-alone", ML_CMD_TRAIN, services_flags_alone,
      "--multi-lora-adapter, --multi-lora-disable-service-mode and "
      "--multi-lora-max-adapter-global-batch-size need --multi-lora-n-adapters" },
    { "multi-lora-pause", ML_CMD_TRAIN, paused_in_place,
      "--pause-generation-mode in_place needs --multi-lora-n-adapters: requests would go "
      "on "
      "with keys of old weights; use retract" },
    { "multi-lora-rank", ML_CMD_TRAIN, service_without_rank,
      "--multi-lora-n-adapters needs --lora-rank, the largest rank of an adapter, and "
      "excludes --lora-adapter-path" },
    { "multi-lora-pairs", ML_CMD_TRAIN, unpaired_adapters,
      "--multi-lora-adapter needs a name and a file: NAME FILE" },
    { "multi-lora-model", ML_CMD_TRAIN, service_with_one_model,
      "--multi-lora-n-adapters needs miles train-async, and excludes --prompt-data and "
      "--load (adapters have their own), engines of other processes, recorded rollouts, "
      "--debug-rollout-only, --lora-train-only, --experts-shared-outer-loras, quantized "
      "training and rollouts, teachers and critics" },
    { "multi-lora-extras", ML_CMD_TRAIN, service_with_extras,
      "--multi-lora-n-adapters excludes --fully-async, --colocate, --partial-rollout, "
      "--over-sampling-batch-size, evaluations, --use-session-server, "
      "--update-weights-interval, --calculate-per-token-loss, --ref-update-interval, "
      "--keep-old-actor, and optimizers other than adam" },
    { "multi-lora-functions", ML_CMD_TRAIN, service_with_functions,
      "--multi-lora-n-adapters excludes functions and filters of the user besides rewards: "
      "an adapter's own is custom_rm_path" },
    { "lora-train-only", ML_CMD_SFT | ML_CMD_TRAIN, train_only_elsewhere,
      "--lora-train-only needs --lora-rank, and excludes engines of other processes" },
    { "lora-dropout", ML_CMD_SFT | ML_CMD_TRAIN, lora_dropout,
      "--lora-dropout needs --lora-rank, and excludes --true-on-policy-mode and "
      "--skip-actor-forward-only: log-probs of a forward pass with dropout are not those "
      "of rollouts" },
    { "mtp-layers", ML_CMD_SFT | ML_CMD_TRAIN, mtp_without_layers,
      "--enable-mtp-training needs the number of multi-token prediction layers: add "
      "--mtp-num-layers 1" },
    { "draft-head", ML_CMD_SFT | ML_CMD_TRAIN, head_not_given,
      "--train-draft trains an EAGLE-3 head: add --speculative-draft-model-path with its "
      "directory, use --speculative-algorithm EAGLE3 and no --enable-mtp-training" },
    { "mtp-sizes", ML_CMD_SFT | ML_CMD_TRAIN, head_in_stages,
      "--train-draft: an EAGLE-3 head reads layers of several stages of a pipeline: use "
      "--pipeline-model-parallel-size 1" },
    { "mtp-others", ML_CMD_SFT | ML_CMD_TRAIN, mtp_with_others,
      "--enable-mtp-training, --train-draft: a module that drafts is trained with all "
      "weights, unquantized, for an engine of this process: use no LoRA adapter, no "
      "--fake-quantization, no --fp8-format, and engines of the run itself without "
      "--rollout-num-engines" },
    { "quantized-base", ML_CMD_SFT | ML_CMD_TRAIN, quantized_without_lora,
      "--base-quantization needs --lora-rank: quantized weights are not trained" },
    { "quantized-sizes", ML_CMD_SFT | ML_CMD_TRAIN, quantized_in_parts,
      "--base-quantization, --fake-quantization, --rollout-quantization and --fp8-format "
      "need ranks that have the whole model: use data and context parallelism alone, "
      "without --tensor-model-parallel-size, --pipeline-model-parallel-size, "
      "--expert-model-parallel-size, --expert-tensor-parallel-size above 1 and "
      "--train-backend fsdp" },
    { "quantized-critic", ML_CMD_TRAIN, quantized_critic,
      "--base-quantization excludes --advantage-estimator ppo, whose critic trains all its "
      "weights: use grpo or reinforce_plus_plus" },
    { "fp8-recipe", ML_CMD_SFT | ML_CMD_TRAIN, fp8_recipe,
      "--fp8-format needs --fp8-recipe blockwise or mxfp8: delayed (Megatron's default) "
      "and "
      "tensorwise scale activations by the whole tensor, so that a row would depend on its "
      "batch" },
    { "fp8-format", ML_CMD_SFT | ML_CMD_TRAIN, fp8_format,
      "--fp8-recipe needs --fp8-format e4m3, or hybrid with --fp8-backward: without it "
      "gradients are not rounded, so that hybrid and e5m2 have no use" },
    { "fp8-backward", ML_CMD_SFT | ML_CMD_TRAIN, fp8_backward,
      "--fp8-backward needs --fp8-format e4m3 or hybrid and --fp8-recipe blockwise: "
      "products of mxfp8 run in bf16" },
    { "high-precision-names", ML_CMD_SFT | ML_CMD_TRAIN, megatron_names_alone,
      "--extra-high-precision-layers-megatron: the checkpoint has Hugging Face's names: "
      "name "
      "the same layers with --extra-high-precision-layers-hf, too" },
    { "high-precision-layers", ML_CMD_SFT | ML_CMD_TRAIN, layers_without_ends,
      "--num-layers-at-start-in-bf16 and --num-layers-at-end-in-bf16 need "
      "--first-last-layers-bf16" },
    { "fake-others", ML_CMD_SFT | ML_CMD_TRAIN, fake_with_others,
      "--fake-quantization and --fp8-format train all weights, with engines in the "
      "process: they exclude each other, --lora-rank (use --base-quantization), "
      "--rollout-quantization, --ref-update-interval, --keep-old-actor and engines of "
      "other processes" },
    { "rollout-quantization", ML_CMD_TRAIN, rollout_quantized_with_others,
      "--rollout-quantization is for engines in the process, whose log-probs differ from "
      "training: it excludes --lora-rank (use --base-quantization), --true-on-policy-mode "
      "(use --fake-quantization) and engines of other processes" },
    { "moments-alone", ML_CMD_SFT | ML_CMD_TRAIN, formats_alone,
      "--exp-avg-dtype and --exp-avg-sq-dtype need --use-precision-aware-optimizer" },
    { "moments-of-adam", ML_CMD_SFT | ML_CMD_TRAIN, formats_without_adam,
      "--exp-avg-dtype and --exp-avg-sq-dtype are for --optimizer adam: remove them" },
    { "train-async-flags", ML_CMD_TRAIN, async_flag_in_train,
      "--fully-async and --update-weights-interval need miles train-async: miles train "
      "publishes after each rollout" },
    { "train-async-queue", ML_CMD_TRAIN, queue_flag_without_queue,
      "--max-weight-staleness, --async-max-concurrent-samples and "
      "--async-unused-samples-handler need --fully-async: add it, or remove them" },
    { "train-async-buffer", ML_CMD_TRAIN, buffer_without_queue,
      "--custom-async-data-buffer-path needs --fully-async, and excludes "
      "--max-weight-staleness, which it replaces" },
    { "train-async-colocate", ML_CMD_TRAIN, two_sets_in_one,
      "--colocate is for miles train: train-async generates with one set of weights while "
      "it trains another" },
    { "train-async-saves", ML_CMD_TRAIN, saves_between,
      "--save-interval must be a multiple of --update-weights-interval: a run can only "
      "resume from a rollout that published its weights" },
    { "train-async-rounds", ML_CMD_TRAIN, fully_in_rounds,
      "--fully-async excludes --partial-rollout, --over-sampling-batch-size and "
      "--rollout-all-samples-process-path: remove them" },
    { "train-async-samples", ML_CMD_TRAIN, less_than_a_group,
      "--async-max-concurrent-samples must be at least --n-samples-per-prompt" },
    { "train-external-address", ML_CMD_TRAIN, external_without_address,
      "--rollout-external needs --rollout-external-engine-addrs HOST:PORT, the address of "
      "miles serve or miles router" },
    { "train-external-alone", ML_CMD_TRAIN, address_without_external,
      "--rollout-external-engine-addrs needs --rollout-external" },
    { "train-weights-dir", ML_CMD_TRAIN, place_without_engines,
      "--update-weight-disk-dir needs remote engines: add --rollout-external or "
      "--rollout-num-engines" },
    { "train-engines-twice", ML_CMD_TRAIN, engines_of_two_kinds,
      "--rollout-num-engines and --rollout-external exclude each other: remove one" },
    { "train-router-port", ML_CMD_TRAIN, router_without_port,
      "--sglang-router-ip needs --sglang-router-port N, the router's port, and excludes "
      "--rollout-external" },
    { "train-router-engines", ML_CMD_TRAIN, router_of_nothing,
      "--sglang-router-port is for remote engines: add --rollout-external or "
      "--rollout-num-engines, and --save, where router.json has the address" },
    { "train-engines-colocate", ML_CMD_TRAIN, engines_in_one_set,
      "--colocate excludes --rollout-num-engines, whose engines have their own weights: "
      "remove one of them" },
    { "train-weights-nowhere", ML_CMD_TRAIN, no_place_for_weights,
      "remote engines read weights from a directory, and those of the run write logs "
      "there: "
      "give --update-weight-disk-dir DIR, or --save" },
    { "train-weights-no-files", ML_CMD_TRAIN, place_without_files,
      "--update-weight-disk-dir is for files: add --update-weight-transfer-mode disk, or "
      "remove it" },
    { "train-weights-address", ML_CMD_TRAIN, address_without_tcp,
      "--update-weight-address is for remote engines with --update-weight-transfer-mode "
      "broadcast: remove it" },
    { "train-weights-p2p", ML_CMD_TRAIN, peer_to_peer,
      "--update-weight-transfer-mode p2p is not supported with remote engines: use "
      "broadcast "
      "or disk-delta" },
    { "train-delta-engines", ML_CMD_TRAIN, delta_without_engines,
      "--update-weight-transfer-mode disk-delta needs remote engines: add "
      "--rollout-external or --rollout-num-engines" },
    { "train-delta-copy", ML_CMD_TRAIN, delta_without_copy,
      "--update-weight-transfer-mode disk-delta needs --update-weight-local-checkpoint-dir "
      "DIR, the directory of the engines' local copy" },
    { "train-delta-flags", ML_CMD_TRAIN, delta_flag_without_delta,
      "--update-weight-local-checkpoint-dir, --update-weight-delta-encoding and "
      "--update-weight-delta-checksum need --update-weight-transfer-mode disk-delta: add "
      "it, or remove them" },
    { "train-eval-engines", ML_CMD_TRAIN, uneven_engines,
      "--eval-num-gpus must be a multiple of --eval-num-gpus-per-engine" },
    { "train-eval-elsewhere", ML_CMD_TRAIN, evaluates_elsewhere,
      "--eval-num-gpus starts engines on this machine, and excludes --rollout-external: "
      "remove one of them" },
    { "train-eval-snapshots", ML_CMD_TRAIN, no_place_for_snapshots,
      "--eval-num-gpus evaluates weights on disk: give "
      "--eval-hf-dir DIR, or --save" },
    { "train-on-policy", ML_CMD_TRAIN, stale_by_design,
      "--true-on-policy-mode needs every token drawn with the weights it is trained on: "
      "use miles train, without --partial-rollout, --debug-skip-weight-update and "
      "--lora-train-only" },
    { "train-prefill", ML_CMD_TRAIN, prefill_alone,
      "--recompute-logprobs-via-prefill needs --true-on-policy-mode and an engine, not "
      "--load-debug-rollout-data" },
    { "train-weights-hook", ML_CMD_TRAIN, hook_without_files,
      "--custom-update-weight-post-write-path needs remote engines that read files: add "
      "--rollout-external or --rollout-num-engines, and --update-weight-transfer-mode disk "
      "or disk-delta; or remove it" },
    { "train-events", ML_CMD_TRAIN, analyses_nothing,
      "--enable-event-analyzer needs --save-debug-event-data, the events to check" },
    { "train-faults", ML_CMD_TRAIN, faults_without_engines,
      "--ci-ft-test-actions kills engines of the run: add --rollout-num-engines and "
      "--use-fault-tolerance" },
    { "train-ft-components", ML_CMD_SFT | ML_CMD_TRAIN, restarts_ranks,
      "--ft-components: only rollout is supported, the engines of --use-fault-tolerance.  "
      "A "
      "training rank that fails ends the job with exit code 3: let a launcher start it "
      "again, "
      "with --load" },
    { "train-offload", ML_CMD_TRAIN, takes_turns_with_itself,
      "--offload, --offload-train and --offload-rollout need miles train with the engine "
      "in the same process" },
    { "train-ci-sync", ML_CMD_TRAIN, skips_what_it_checks,
      "--ci-test compares weights, which differ under --debug-skip-weight-update: add "
      "--ci-disable-weight-update-checker" },
    { "train-critic", ML_CMD_TRAIN, critic_of_nothing,
      "--critic-load, --critic-save, --critic-lr, --critic-lr-warmup-iters and "
      "--num-critic-only-steps need a critic: add --advantage-estimator ppo, or remove "
      "them" },
    { "train-critic-returns", ML_CMD_TRAIN, critic_without_returns,
      "--advantage-estimator ppo excludes --disable-compute-advantages-and-returns: a "
      "critic is trained on the returns" },
    { "train-ref-interval", ML_CMD_TRAIN, no_reference,
      "--ref-update-interval needs a reference model: add --use-kl-loss or --kl-coef" },
    { "train-teacher", ML_CMD_TRAIN, teacher_without_opd,
      "--opd-teacher-load and --opd-teacher-urls need --use-opd" },
    { "train-opd-type", ML_CMD_TRAIN, teacher_of_no_type,
      "--use-opd needs --opd-type: megatron with --opd-teacher-load, or sglang with "
      "--opd-teacher-urls" },
    { "train-opd-load", ML_CMD_TRAIN, teacher_not_loaded,
      "--opd-type megatron takes the teacher from --opd-teacher-load, not from "
      "--opd-teacher-urls" },
    { "train-opd-top-k", ML_CMD_TRAIN, top_k_of_no_teacher,
      "--opd-log-prob-top-k needs --use-opd" },
    { "train-opd-self", ML_CMD_TRAIN, learns_from_itself,
      "--opd-type self needs --opd-context-key, and excludes --opd-teacher-load and "
      "--opd-teacher-urls" },
    { "train-opd-context", ML_CMD_TRAIN, context_of_no_teacher,
      "--opd-context-key needs --use-opd" },
    { "train-opd-async", ML_CMD_TRAIN, top_k_disturbs,
      "--opd-log-prob-top-k and --opd-type self ask the engine for log-probs, which would "
      "decide in miles train-async which groups of --over-sampling-batch-size and "
      "--dynamic-sampling-filter-path end first: use miles train or --fully-async" },
    { "train-opd-urls", ML_CMD_TRAIN, teacher_not_asked,
      "--opd-type sglang takes the teacher from --opd-teacher-urls, not from "
      "--opd-teacher-load" },
    { "train-old-actor", ML_CMD_TRAIN, old_and_none,
      "--keep-old-actor selects the old log-probs, which --skip-actor-forward-only does "
      "not compute: remove one of them" },
    { "train-forward-pass", ML_CMD_TRAIN, needs_the_pass,
      "--skip-actor-forward-only skips the forward pass that --use-rollout-entropy and "
      "--true-on-policy-mode need: remove one of them" },
    { "train-routing-replay", ML_CMD_TRAIN, replays_no_routing,
      "--use-routing-replay needs the forward pass for old log-probs, which "
      "--skip-actor-forward-only skips: use --use-rollout-routing-replay" },
    { "train-indexer-replay", ML_CMD_TRAIN, replays_no_indexer,
      "--use-indexer-replay needs the forward pass for old log-probs, which "
      "--skip-actor-forward-only skips: use --use-rollout-indexer-replay" },
    { 0 },
};
