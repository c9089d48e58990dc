/* Constraints between flags of miles train: generation of samples, and models besides the
 * actor. */
#include <string.h>

#include "cli/flag.h"

/* --- generation of samples ------------------------------------------------------- */

static bool async_flag_in_train(const ml_config *c) {
    return !c->mode.async && (c->mode.fully || c->mode.update_interval > 1);
}

static bool queue_flag_without_queue(const ml_config *c) {
    return !c->mode.fully &&
           (c->mode.max_stale >= 0 || c->mode.max_samples || c->mode.unused);
}

static bool buffer_without_queue(const ml_config *c) {
    return c->extensions.path.buffer && (!c->mode.fully || c->mode.max_stale >= 0);
}

static bool two_sets_in_one(const ml_config *c) {
    return c->mode.async && c->mode.colocate;
}

static bool saves_between(const ml_config *c) {
    return c->train.save_interval % c->mode.update_interval != 0;
}

static bool fully_in_rounds(const ml_config *c) {
    return c->mode.fully && (c->rollout.partial || c->rollout.over_sampling ||
                             c->extensions.path.samples_hook);
}

static bool less_than_a_group(const ml_config *c) {
    return c->mode.max_samples && c->mode.max_samples < c->rollout.n_samples_per_prompt;
}

static bool external_without_address(const ml_config *c) {
    return c->mode.external && !c->mode.addrs.n;
}

static bool address_without_external(const ml_config *c) {
    return !c->mode.external && c->mode.addrs.n;
}

static bool place_without_engines(const ml_config *c) {
    return !ml_config_elsewhere(c) && c->mode.weight_dir;
}

static bool engines_of_two_kinds(const ml_config *c) {
    return c->mode.external && c->mode.n_engine;
}

static bool engines_in_one_set(const ml_config *c) {
    return c->mode.colocate && c->mode.n_engine;
}

static bool no_place_for_weights(const ml_config *c) {
    return ml_config_elsewhere(c) && !c->mode.weight_dir && !c->train.save;
}

static bool peer_to_peer(const ml_config *c) {
    return c->mode.transfer == ML_TRANSFER_P2P;
}

static bool delta_for_nobody(const ml_config *c) {
    return c->mode.transfer == ML_TRANSFER_DISK_DELTA && !ml_config_elsewhere(c);
}

static bool delta_without_copy(const ml_config *c) {
    return c->mode.transfer == ML_TRANSFER_DISK_DELTA && !c->mode.local_dir;
}

static bool delta_flag_without_delta(const ml_config *c) {
    return c->mode.transfer == ML_TRANSFER_BROADCAST &&
           (c->mode.local_dir || c->mode.delta_encoding || c->mode.delta_checksum);
}

static bool uneven_engines(const ml_config *c) {
    return c->async_eval.n_gpu % c->async_eval.per_engine != 0;
}

static bool evaluates_elsewhere(const ml_config *c) {
    return c->async_eval.n_gpu && c->mode.external;
}

static bool no_place_for_snapshots(const ml_config *c) {
    return c->async_eval.n_gpu && !c->async_eval.dir && !c->train.save;
}

static bool stale_by_design(const ml_config *c) {
    return c->debug.on_policy &&
           (c->mode.async || c->rollout.partial || c->debug.skip_sync);
}

static bool prefill_alone(const ml_config *c) {
    return c->debug.prefill && (!c->debug.on_policy || c->rollout.load_debug);
}

static bool hook_without_files(const ml_config *c) {
    return c->extensions.path.weights_written && !ml_config_elsewhere(c);
}

static bool analyses_nothing(const ml_config *c) {
    return c->record.analyse && !c->record.events && !c->debug.dump;
}

static bool skips_what_it_checks(const ml_config *c) {
    return c->debug.skip_sync && c->debug.ci_test && !c->debug.ci_no_sync;
}

static bool faults_of_nobody(const ml_config *c) {
    return c->debug.faults && !c->mode.n_engine;
}

static bool takes_turns_with_itself(const ml_config *c) {
    return (c->mode.offload || c->mode.offload_train || c->mode.offload_rollout) &&
           (c->mode.async || ml_config_elsewhere(c) || c->rollout.load_debug);
}

/* --- models besides the actor -------------------------------------------------- */

static bool is(const char *a, const char *b) {
    return a && strcmp(a, b) == 0;
}

/* For an estimator in a shared object it is known only after loading. */
static bool critic_of_nothing(const ml_config *c) {
    return ml_config_names_critic(c) && !is(c->algo.advantage_estimator, "ppo") &&
           !strchr(c->algo.advantage_estimator, ':');
}

static bool critic_without_returns(const ml_config *c) {
    return is(c->algo.advantage_estimator, "ppo") && c->algo.disable_compute_advantages;
}

static bool no_reference(const ml_config *c) {
    return c->models.ref_interval && !c->algo.num.use_kl_loss && c->algo.num.kl_coef == 0.0;
}

static bool teacher_of_nobody(const ml_config *c) {
    return !c->algo.use_opd && (c->models.teacher_load || c->models.teacher_urls.n);
}

/* Recordings may contain the teacher's log-probs. */
static bool teacher_of_no_type(const ml_config *c) {
    return c->algo.use_opd && !c->models.opd_type && !c->rollout.load_debug;
}

static bool teacher_not_loaded(const ml_config *c) {
    return c->algo.use_opd && is(c->models.opd_type, "megatron") &&
           (!c->models.teacher_load || c->models.teacher_urls.n);
}

static bool teacher_not_asked(const ml_config *c) {
    return c->algo.use_opd && is(c->models.opd_type, "sglang") &&
           (c->models.teacher_load || !c->models.teacher_urls.n);
}

static bool old_and_none(const ml_config *c) {
    return c->models.keep_old_actor && c->algo.skip_actor_forward_only;
}

static bool needs_the_pass(const ml_config *c) {
    return c->algo.skip_actor_forward_only && (c->models.entropy || c->debug.on_policy);
}

static bool replays_no_routing(const ml_config *c) {
    return c->algo.skip_actor_forward_only && c->rollout.routing_replay &&
           !c->rollout.rollout_routing_replay;
}

static bool replays_no_indexer(const ml_config *c) {
    return c->algo.skip_actor_forward_only && c->rollout.indexer_replay &&
           !c->rollout.rollout_indexer_replay;
}

const ml_rule ml_rules_train[] = {
    { "train-async-flags", ML_CMD_TRAIN, async_flag_in_train,
      "--fully-async and --update-weights-interval belong to miles "
      "train-async: miles train publishes after each round" },
    { "train-async-queue", ML_CMD_TRAIN, queue_flag_without_queue,
      "--max-weight-staleness, --async-max-concurrent-samples and "
      "--async-unused-samples-handler are about the queue of --fully-async: give it, or "
      "leave them out" },
    { "train-async-buffer", ML_CMD_TRAIN, buffer_without_queue,
      "--custom-async-data-buffer-path decides what the queue of --fully-async gives: it "
      "needs that flag, and --max-weight-staleness is its own business" },
    { "train-async-colocate", ML_CMD_TRAIN, two_sets_in_one,
      "--colocate is for miles train: train-async changes one set of "
      "weights while it generates with another" },
    { "train-async-saves", ML_CMD_TRAIN, saves_between,
      "--save-interval must be a multiple of --update-weights-interval: a run "
      "is saved where it publishes, so that it can go on from there" },
    { "train-async-rounds", ML_CMD_TRAIN, fully_in_rounds,
      "--fully-async has no rounds to over-sample or to leave answers "
      "behind: leave out --partial-rollout, "
      "--over-sampling-batch-size and "
      "--rollout-all-samples-process-path" },
    { "train-async-samples", ML_CMD_TRAIN, less_than_a_group,
      "--async-max-concurrent-samples must be at least --n-samples-per-prompt" },
    { "train-external-address", ML_CMD_TRAIN, external_without_address,
      "--rollout-external needs --rollout-external-engine-addrs HOST:PORT, where miles "
      "serve or miles router runs" },
    { "train-external-alone", ML_CMD_TRAIN, address_without_external,
      "--rollout-external-engine-addrs needs --rollout-external" },
    { "train-weights-dir", ML_CMD_TRAIN, place_without_engines,
      "--update-weight-disk-dir is for engines of other processes: "
      "give --rollout-external or --rollout-num-engines" },
    { "train-engines-twice", ML_CMD_TRAIN, engines_of_two_kinds,
      "--rollout-num-engines starts engines, and --rollout-external "
      "uses some that run already: give one of them" },
    { "train-engines-colocate", ML_CMD_TRAIN, engines_in_one_set,
      "--colocate shares one set of weights, and engines of "
      "--rollout-num-engines have their "
      "own: leave one of them out" },
    { "train-weights-nowhere", ML_CMD_TRAIN, no_place_for_weights,
      "engines elsewhere read weights from a directory: give --update-weight-disk-dir DIR, "
      "or --save" },
    { "train-weights-p2p", ML_CMD_TRAIN, peer_to_peer,
      "--update-weight-transfer-mode p2p writes into the memory of other machines' GPUs, "
      "which is not offered: use broadcast or disk-delta" },
    { "train-delta-engines", ML_CMD_TRAIN, delta_for_nobody,
      "--update-weight-transfer-mode disk-delta is for engines of other "
      "processes: give --rollout-external or --rollout-num-engines" },
    { "train-delta-copy", ML_CMD_TRAIN, delta_without_copy,
      "--update-weight-transfer-mode disk-delta needs --update-weight-local-checkpoint-dir "
      "DIR, where engines keep the copy that deltas are applied to" },
    { "train-delta-flags", ML_CMD_TRAIN, delta_flag_without_delta,
      "--update-weight-local-checkpoint-dir, --update-weight-delta-encoding and "
      "--update-weight-delta-checksum are about --update-weight-transfer-mode disk-delta: "
      "give it, or leave them out" },
    { "train-eval-engines", ML_CMD_TRAIN, uneven_engines,
      "--eval-num-gpus must be a multiple of --eval-num-gpus-per-engine" },
    { "train-eval-elsewhere", ML_CMD_TRAIN, evaluates_elsewhere,
      "--eval-num-gpus has engines of its own on this machine, and "
      "--rollout-external says that they are elsewhere: keep one" },
    { "train-eval-snapshots", ML_CMD_TRAIN, no_place_for_snapshots,
      "--eval-num-gpus evaluates weights on disk: give "
      "--eval-hf-dir DIR, or --save" },
    { "train-on-policy", ML_CMD_TRAIN, stale_by_design,
      "--true-on-policy-mode wants every token drawn with the weights it is trained on: "
      "use "
      "miles train, without --partial-rollout and --debug-skip-weight-update" },
    { "train-prefill", ML_CMD_TRAIN, prefill_alone,
      "--recompute-logprobs-via-prefill needs --true-on-policy-mode and an engine, not "
      "--load-debug-rollout-data" },
    { "train-weights-hook", ML_CMD_TRAIN, hook_without_files,
      "--custom-update-weight-post-write-path is about weights that "
      "are written for engines "
      "elsewhere: give --rollout-external or --rollout-num-engines, or leave it out" },
    { "train-events", ML_CMD_TRAIN, analyses_nothing,
      "--enable-event-analyzer needs --save-debug-event-data, the events to analyse" },
    { "train-faults", ML_CMD_TRAIN, faults_of_nobody,
      "--ci-ft-test-actions crashes engines of the run: give "
      "--rollout-num-engines, and --use-fault-tolerance to survive it" },
    { "train-offload", ML_CMD_TRAIN, takes_turns_with_itself,
      "--offload, --offload-train and --offload-rollout give memory back in turns: they "
      "need miles train with an engine of its own process" },
    { "train-ci-sync", ML_CMD_TRAIN, skips_what_it_checks,
      "--ci-test compares weights that --debug-skip-weight-update "
      "keeps apart: add --ci-disable-weight-update-checker" },
    { "train-critic", ML_CMD_TRAIN, critic_of_nothing,
      "--critic-load, --critic-save, --critic-lr, --critic-lr-warmup-iters and "
      "--num-critic-only-steps are of a critic, which only --advantage-estimator ppo has: "
      "use that, or leave them out" },
    { "train-critic-returns", ML_CMD_TRAIN, critic_without_returns,
      "a critic learns returns, which --disable-compute-advantages-and-returns leaves "
      "out" },
    { "train-ref-interval", ML_CMD_TRAIN, no_reference,
      "--ref-update-interval: there is no reference without --use-kl-loss or --kl-coef" },
    { "train-teacher", ML_CMD_TRAIN, teacher_of_nobody,
      "a teacher needs --use-opd, or nobody asks it" },
    { "train-opd-type", ML_CMD_TRAIN, teacher_of_no_type,
      "--use-opd needs --opd-type: megatron with --opd-teacher-load, or sglang with "
      "--opd-teacher-urls" },
    { "train-opd-load", ML_CMD_TRAIN, teacher_not_loaded,
      "--opd-type megatron takes the teacher from --opd-teacher-load, not from "
      "--opd-teacher-urls" },
    { "train-opd-urls", ML_CMD_TRAIN, teacher_not_asked,
      "--opd-type sglang takes the teacher from --opd-teacher-urls, not from "
      "--opd-teacher-load" },
    { "train-old-actor", ML_CMD_TRAIN, old_and_none,
      "--keep-old-actor says whose log-probs are the old ones, --skip-actor-forward-only "
      "that there are none: keep one" },
    { "train-forward-pass", ML_CMD_TRAIN, needs_the_pass,
      "--skip-actor-forward-only leaves out the pass that --use-rollout-entropy and "
      "--true-on-policy-mode want: keep one" },
    { "train-routing-replay", ML_CMD_TRAIN, replays_no_routing,
      "--use-routing-replay replays what the pass for old log-probs chose, which "
      "--skip-actor-forward-only leaves out: use --use-rollout-routing-replay" },
    { "train-indexer-replay", ML_CMD_TRAIN, replays_no_indexer,
      "--use-indexer-replay replays what the pass for old log-probs chose, which "
      "--skip-actor-forward-only leaves out: use --use-rollout-indexer-replay" },
    { 0 },
};
