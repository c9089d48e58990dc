#include "cli/train_mode.h"

/* --- what cannot be meant ------------------------------------------------------- */

typedef struct mode_rule {
    bool (*broken)(const ml_config *c);
    const char *sentence;
} mode_rule;

static bool async_flag_in_train(const ml_config *c) {
    return !c->mode.async && (c->mode.fully || c->mode.update_interval > 1);
}

static bool queue_flag_without_queue(const ml_config *c) {
    return !c->mode.fully &&
           (c->mode.max_stale >= 0 || c->mode.max_samples || c->mode.unused);
}

static bool buffer_without_queue(const ml_config *c) {
    return c->edges.path.buffer && (!c->mode.fully || c->mode.max_stale >= 0);
}

static bool two_sets_in_one(const ml_config *c) {
    return c->mode.async && c->mode.colocate;
}

static bool saves_between(const ml_config *c) {
    return c->train.save_interval % c->mode.update_interval != 0;
}

static bool fully_in_rounds(const ml_config *c) {
    return c->mode.fully &&
           (c->rollout.partial || c->rollout.over_sampling || c->edges.path.samples_hook);
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
    return c->behind.n_gpu % c->behind.per_engine != 0;
}

static bool evaluates_elsewhere(const ml_config *c) {
    return c->behind.n_gpu && c->mode.external;
}

static bool no_place_for_snapshots(const ml_config *c) {
    return c->behind.n_gpu && !c->behind.dir && !c->train.save;
}

static bool stale_by_design(const ml_config *c) {
    return c->debug.on_policy &&
           (c->mode.async || c->rollout.partial || c->debug.skip_sync);
}

static bool prefill_alone(const ml_config *c) {
    return c->debug.prefill && (!c->debug.on_policy || c->rollout.load_debug);
}

static bool hook_without_files(const ml_config *c) {
    return c->edges.path.weights_written && !ml_config_elsewhere(c);
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

static const mode_rule rules[] = {
    { async_flag_in_train, "--fully-async and --update-weights-interval belong to miles "
                           "train-async: miles train publishes after each round" },
    { queue_flag_without_queue,
      "--max-weight-staleness, --async-max-concurrent-samples and "
      "--async-unused-samples-handler are about the queue of --fully-async: give it, or "
      "leave them out" },
    { buffer_without_queue,
      "--custom-async-data-buffer-path decides what the queue of --fully-async gives: it "
      "needs that flag, and --max-weight-staleness is its own business" },
    { two_sets_in_one, "--colocate is for miles train: train-async changes one set of "
                       "weights while it generates with another" },
    { saves_between,
      "--save-interval must be a multiple of --update-weights-interval: a run "
      "is saved where it publishes, so that it can go on from there" },
    { fully_in_rounds, "--fully-async has no rounds to over-sample or to leave answers "
                       "behind: leave out --partial-rollout, "
                       "--over-sampling-batch-size and "
                       "--rollout-all-samples-process-path" },
    { less_than_a_group,
      "--async-max-concurrent-samples must be at least --n-samples-per-prompt" },
    { external_without_address,
      "--rollout-external needs --rollout-external-engine-addrs HOST:PORT, where miles "
      "serve or miles router runs" },
    { address_without_external,
      "--rollout-external-engine-addrs needs --rollout-external" },
    { place_without_engines, "--update-weight-disk-dir is for engines of other processes: "
                             "give --rollout-external or --rollout-num-engines" },
    { engines_of_two_kinds, "--rollout-num-engines starts engines, and --rollout-external "
                            "uses some that run already: give one of them" },
    { engines_in_one_set, "--colocate shares one set of weights, and engines of "
                          "--rollout-num-engines have their "
                          "own: leave one of them out" },
    { no_place_for_weights,
      "engines elsewhere read weights from a directory: give --update-weight-disk-dir DIR, "
      "or --save" },
    { peer_to_peer,
      "--update-weight-transfer-mode p2p writes into the memory of other machines' GPUs, "
      "which is not offered: use broadcast or disk-delta" },
    { delta_for_nobody, "--update-weight-transfer-mode disk-delta is for engines of other "
                        "processes: give --rollout-external or --rollout-num-engines" },
    { delta_without_copy,
      "--update-weight-transfer-mode disk-delta needs --update-weight-local-checkpoint-dir "
      "DIR, where engines keep the copy that deltas are applied to" },
    { delta_flag_without_delta,
      "--update-weight-local-checkpoint-dir, --update-weight-delta-encoding and "
      "--update-weight-delta-checksum are about --update-weight-transfer-mode disk-delta: "
      "give it, or leave them out" },
    { uneven_engines, "--eval-num-gpus must be a multiple of --eval-num-gpus-per-engine" },
    { evaluates_elsewhere, "--eval-num-gpus has engines of its own on this machine, and "
                           "--rollout-external says that they are elsewhere: keep one" },
    { no_place_for_snapshots, "--eval-num-gpus evaluates weights on disk: give "
                              "--eval-hf-dir DIR, or --save" },
    { stale_by_design,
      "--true-on-policy-mode wants every token drawn with the weights it is trained on: "
      "use "
      "miles train, without --partial-rollout and --debug-skip-weight-update" },
    { prefill_alone,
      "--recompute-logprobs-via-prefill needs --true-on-policy-mode and an engine, not "
      "--load-debug-rollout-data" },
    { hook_without_files,
      "--custom-update-weight-post-write-path is about weights that "
      "are written for engines "
      "elsewhere: give --rollout-external or --rollout-num-engines, or leave it out" },
    { analyses_nothing,
      "--enable-event-analyzer needs --save-debug-event-data, the events to analyse" },
    { faults_of_nobody, "--ci-ft-test-actions crashes engines of the run: give "
                        "--rollout-num-engines, and --use-fault-tolerance to survive it" },
    { takes_turns_with_itself,
      "--offload, --offload-train and --offload-rollout give memory back in turns: they "
      "need miles train with an engine of its own process" },
    { skips_what_it_checks, "--ci-test compares weights that --debug-skip-weight-update "
                            "keeps apart: add --ci-disable-weight-update-checker" },
};

ml_status ml_train_mode_check(const ml_config *c, ml_err *err) {
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        if (rules[i].broken(c))
            return ml_fail(err, ML_EUSAGE, "%s", rules[i].sentence);
    return ML_OK;
}

/* --- the loop --------------------------------------------------------------------- */

/* The engine is wanted for evaluations: nothing new is begun meanwhile. */
static ml_status evaluate(void *ud, ml_figures *out, ml_err *err) {
    ml_train_gen *t = ud;
    ml_status st;

    if (t->flow)
        ml_flow_hold(t->flow, true);
    st = ml_evals_run(&t->evals, out, err);
    if (t->flow)
        ml_flow_hold(t->flow, false);
    return st;
}

static ml_status open_flow(ml_train_gen *t, const ml_config *c, void (*say)(const char *),
                           ml_err *err) {
    int64_t per_group = c->rollout.n_samples_per_prompt,
            batch = c->train.rollout_batch_size,
            capacity = (int64_t)(c->mode.capacity * (double)batch);
    ml_flow_opts o = {
        .run = t->run,
        .asker = t->rollout.asker,
        .how = t->rollout.how,
        .filter = t->rollout.filter,
        .buffer = t->buffer,
        .max_groups = c->mode.max_samples ? c->mode.max_samples / per_group : batch,
        .capacity = capacity < 1 ? 1 : capacity,
        .max_stale = c->mode.max_stale,
        .retry = c->mode.unused == 1,
        .mask_old = c->rollout.mask_old,
        .say = say,
    };

    return ml_flow_open(&t->flow, &o, err);
}

ml_status ml_train_mode_enter(ml_train_gen *t, ml_train_loop *loop, const ml_config *c,
                              ml_err *err) {
    ml_status st = ML_OK;

    loop->publish = ml_train_gen_publish;
    loop->publish_ud = t;
    loop->turn = t->offload_train || t->offload_rollout ? ml_train_gen_turn : NULL;
    loop->turn_ud = t;
    loop->publish_interval = c->mode.update_interval;
    loop->evaluate = t->evals.n ? evaluate : NULL;
    loop->evaluate_ud = t;
    loop->behind = t->eval_queue;
    loop->eval_interval = c->rollout.eval_interval;
    loop->skip_first_eval = c->rollout.skip_first_eval;
    loop->ahead = c->mode.async;
    loop->debug.generating = t->second.n ? &t->second : NULL;
    loop->rollout =
        t->row_rollout.row ? ml_rollout_row(&t->row_rollout) : ml_rollout_gen(&t->rollout);
    if (c->mode.fully) {
        st = open_flow(t, c, loop->watch.say, err);
        loop->rollout = st == ML_OK ? ml_rollout_flow(t->flow) : loop->rollout;
        if (!loop->record && c->train.save)
            loop->record = ml_arena_printf(
                &t->arena, "%s/rollout_data/{rollout_id}.jsonl.zst", c->train.save);
    } else if (c->mode.async) {
        t->ahead = ML_NEW(&t->arena, ml_ahead, 1);
        ml_ahead_init(t->ahead, loop->rollout, t->run->num_rollout, t->run->spec.n_vocab);
        loop->rollout = ml_rollout_ahead(t->ahead);
    }
    return st;
}

void ml_train_mode_leave(ml_train_gen *t) {
    ml_flow_close(t->flow);
    t->flow = NULL;
    if (t->ahead)
        ml_ahead_release(t->ahead);
    t->ahead = NULL;
}
