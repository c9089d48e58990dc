#include "run/run.h"

#include "run/teachers.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "plugin/model_family.h"
#include "plugin/python_prompts.h"
#include "rl/record/run_disk.h"
#include "train/memory.h"

/* --- opening ---------------------------------------------------------------- */

/* A checkpoint without a template is allowed unless one is needed. */
static ml_status open_text(ml_train_run *r, ml_err *err) {
    const ml_run_opts *o = &r->opts;
    ml_err why = { 0 };
    ml_status st = ml_tokenizer_open(&r->tokenizer, o->hf_checkpoint, err);

    if (st != ML_OK)
        return st;
    st = ml_chat_template_open(&r->chat_template, o->hf_checkpoint, o->chat_template, &why);
    if (st != ML_OK && (o->chat_template || o->needs_template)) {
        *err = why;
        return st;
    }
    ml_prompt_encoder_init(&r->prompter, r->tokenizer, r->chat_template, 1);
    return ML_OK;
}

static void take_data_weights(ml_train_run *r) {
    const ml_string_list *words = &r->opts.data_weights;
    double *weight = ML_NEW(&r->arena, double, words->n + 1);

    for (int i = 0; i < words->n; i++)
        weight[i] = strtod(words->word[i], NULL);
    r->opts.source.weight = words->n ? weight : NULL;
    r->opts.source.n_weight = words->n;
}

/* As in TRL: the tokenizer's padding, or the configuration's, or the end token. */
static void choose_padding(ml_train_run *r) {
    int32_t pad = ml_tokenizer_role(r->tokenizer, ML_TOKEN_PAD);

    if (pad != ML_NONE)
        r->spec.pad_token = pad;
    else if (r->spec.pad_token == ML_NONE)
        r->spec.pad_token = ml_tokenizer_role(r->tokenizer, ML_TOKEN_EOS);
}

/* A data source in Python reads the rows of --prompt-data, if there are any, and makes rows with
 * the fields of a sample, whose text is rendered already. */
static ml_status open_source_in_python(ml_train_run *r, ml_dataset_opts data, ml_err *err) {
    ml_dataset_opts rows = data;
    ml_status st = ML_OK;

    rows.make = NULL;
    if (data.path)
        st = ml_dataset_open(&r->rows, &rows, err);
    data.path = data.make->base.name; /* for messages */
    data.input_key = "prompt";
    data.label_key = "label";
    data.metadata_key = data.tool_key = NULL;
    data.apply_chat_template = false;
    r->opts.source.pull = ml_python_prompts_pull;
    return st == ML_OK ? ml_dataset_open(&r->dataset, &data, err) : st;
}

static ml_status open_data(ml_train_run *r, ml_err *err) {
    ml_dataset_opts data = r->opts.data;
    bool prompts = data.path || data.make;
    bool text = !r->tokenizer && (prompts || r->opts.needs_tokenizer);
    ml_status st = text ? open_text(r, err) : ML_OK;

    if (st == ML_OK && r->spec.reward)
        choose_padding(r);
    if (st != ML_OK || !prompts || !ml_run_ranks_first(&r->opts.ranks))
        return st;
    data.text = ml_prompt_encoder_text(&r->prompter);
    st = ml_python_prompts_are(data.make) ? open_source_in_python(r, data, err)
                                          : ml_dataset_open(&r->dataset, &data, err);
    take_data_weights(r);
    r->opts.source.curriculum.batch = r->opts.rollout_batch_size;
    return st == ML_OK ? ml_data_source_new(&r->source, &r->dataset, &r->opts.source, err)
                       : st;
}

/* Samples per rollout. */
static int64_t samples_of_round(const ml_run_opts *o) {
    return o->rollout_batch_size * o->source.n_samples_per_prompt;
}

/* Rank 0 has the data set. */
static ml_status count_rollouts(ml_train_run *r, ml_err *err) {
    ml_run_opts *o = &r->opts;
    int64_t rows = r->rows.rows.n ? r->rows.rows.n : r->dataset.rows.n,
            batch = o->trainer.batch.global_batch_size;
    ml_status st;

    if (o->learns_nothing && !o->data.path)
        return ML_OK;
    if (o->num_rollout == 0 && o->data.path && r->source && rows < o->rollout_batch_size)
        return ml_fail(err, ML_EUSAGE,
                       "%s has %lld rows, fewer than --rollout-batch-size %lld",
                       o->data.path, (long long)rows, (long long)o->rollout_batch_size);
    r->num_rollout =
        o->num_rollout ? o->num_rollout : rows / o->rollout_batch_size * o->num_epoch;
    st = ml_comm_share(o->ranks.world, &r->num_rollout, sizeof r->num_rollout, err);
    o->trainer.lr.train_iters = r->num_rollout * samples_of_round(o) / batch;
    return st;
}

/* A model without routing has nothing to replay, as in Miles. */
static void drop_vain_replay(ml_train_run *r) {
    static const char *const what[ML_N_ROUTING] = { "experts", "indexer" };

    for (int i = 0; i < ML_N_ROUTING; i++) {
        if (!r->opts.trainer.replay[i] || r->spec.route[i].top_k)
            continue;
        ml_log(ML_LOG_WARN, "replay is ignored: a model of family %s has no %s",
               r->spec.family, what[i]);
        r->opts.trainer.replay[i] = r->opts.replay_rollout[i] = false;
    }
}

/* A directory of snapshots has no model at its top level. */
static bool is_checkpoint(ml_arena *a, const char *dir) {
    return access(ml_arena_printf(a, "%s/config.json", dir), F_OK) == 0;
}

/* The initial weights of a critic that does not continue with the actor: its own
 * checkpoint, its newest snapshot, or the actor's checkpoint. */
static ml_status open_critic(ml_train_run *r, ml_spec_opts spec, ml_err *err) {
    const ml_run_opts *o = &r->opts;
    const char *dir = o->hf_checkpoint;
    int64_t actor = ML_NONE, own = ML_NONE;
    ml_status st = ML_OK;

    if (o->critic_load && is_checkpoint(&r->arena, o->critic_load)) {
        dir = o->critic_load;
    } else if (o->critic_load) {
        st = o->load ? ml_snapshot_latest(&actor, o->load, err) : ML_OK;
        if (st == ML_OK && actor == ML_NONE)
            st = ml_snapshot_latest(&own, o->critic_load, err);
    }
    if (own != ML_NONE)
        dir = ml_snapshot_path(&r->arena, o->critic_load, own);
    return st == ML_OK ? ml_critic_open(&r->critic, dir, spec, (uint64_t)o->critic_seed,
                                        o->dtype, err)
                       : st;
}

ml_timeline *ml_train_run_ops(const ml_train_run *r, ml_span_kind kind) {
    unsigned kinds = r->opts.log.spans ? r->opts.log.spans : ML_SPAN_ALL;
    return kinds & kind ? r->opts.log.ops : NULL;
}

static void share_ops(ml_train_run *r) {
    r->opts.trainer.spans_score = ml_train_run_ops(r, ML_SPAN_LOG_PROBS);
    r->opts.trainer.spans_train = ml_train_run_ops(r, ML_SPAN_TRAIN);
}

static ml_status make_lora(ml_train_run *r, ml_err *err) {
    const ml_lora_flags *f = &r->opts.lora;
    ml_lora_opts o = { .rank = (int32_t)f->rank,
                       .alpha = f->alpha,
                       .dropout = f->dropout,
                       .rslora = f->rslora,
                       .target = f->target,
                       .exclude = f->exclude,
                       .fused = f->type == 0,
                       .shared_outer = f->shared_outer,
                       .seed = (uint64_t)r->opts.source.seed };
    ml_status st;

    if (!f->path)
        return ml_lora_new(&r->lora, &r->spec, r->from, &o, &r->be, err);
    st = ml_lora_load(&r->lora, &r->spec, f->path, &r->be, err);
    if (st == ML_OK && f->rank && f->rank != r->lora.config.rank)
        st = ml_fail(err, ML_EUSAGE,
                     "--lora-rank %lld: the adapter in %s has rank %d; remove the flag",
                     (long long)f->rank, f->path, r->lora.config.rank);
    if (st == ML_OK && r->lora.config.dropout > 0 && f->dropout == 0)
        ml_log(ML_LOG_WARN, "%s: \"lora_dropout\" %g is not applied; --lora-dropout is",
               f->path, r->lora.config.dropout);
    return st;
}

/* A rank keeps its part of the adapter.  The stages are those of the spec with LORA ops. */
static ml_status divide_lora(ml_train_run *r, ml_err *err) {
    const ml_run_opts *o = &r->opts;
    const ml_mesh *mesh = o->trainer.mesh;
    int32_t rank = !ml_run_ranks_trains(&o->ranks) ? ML_NONE : mesh ? mesh->rank : 0;
    ml_status st =
        ml_run_ranks_stages(&r->opts.trainer.stage, &r->arena, &o->place, &r->spec, err);

    if (st != ML_OK || !o->ranks.sizes.gather)
        return st;
    return ml_lora_divide(&r->lora, &r->spec, &o->ranks.sizes, rank, o->trainer.stage, err);
}

/* The adapter is made before the memory is planned: LORA ops are part of the plans. */
static ml_status open_lora(ml_train_run *r, ml_err *err) {
    bool *wanted;
    ml_status st;

    if (!r->be.ops->forward[ML_OP_LORA])
        return ml_fail(err, ML_EUNSUP,
                       "--lora-rank: the backend %s does not compute adapters yet; use "
                       "--device cpu",
                       r->be.name);
    st = make_lora(r, err);
    if (st != ML_OK)
        return st;
    wanted = ML_NEW(&r->arena, bool, r->lora.n_site);
    ml_lora_mark(&r->lora, wanted);
    ml_spec_lora_insert(&r->spec, wanted, r->lora.max_rank);
    if (r->opts.lora.dropout > 0 &&
        !ml_spec_lora_dropout(&r->spec, (float)r->opts.lora.dropout))
        return ml_fail(
            err, ML_EUNSUP,
            "--lora-dropout: kv_b_proj of this %s model is multiplied with other "
            "inputs than the layer's; add it to --exclude-modules, or set 0",
            r->spec.family);
    r->opts.trainer.dropout = r->opts.lora.dropout > 0;
    r->opts.trainer.dropout_seed = (uint64_t)r->opts.source.seed;
    st = divide_lora(r, err);
    r->lora_site = r->lora.site;
    r->lora_table =
        (ml_lora_table){ .adapter = &r->lora_site, .n_adapter = 1, .all = true };
    r->opts.trainer.lora = &r->lora;
    return st;
}

/* The LORA ops of the host's model are those of its own adapter, whose rank is the limit. */
ml_status ml_train_run_adapt(ml_train_run *r, ml_err *err) {
    const ml_train_run *host = r->host;
    ml_lora_limits limits = { .max_rank = host->lora.max_rank };
    ml_status st = make_lora(r, err);

    if (st == ML_OK)
        st = ml_lora_check(&r->lora, &limits, "the new adapter", err);
    r->lora_site = r->lora.site;
    r->lora_table =
        (ml_lora_table){ .adapter = &r->lora_site, .n_adapter = 1, .all = true };
    r->opts.trainer.lora = &r->lora;
    r->opts.trainer.dropout = host->opts.trainer.dropout;
    r->opts.trainer.dropout_seed = host->opts.trainer.dropout_seed;
    return st;
}

/* Whether engines may have a quantized copy: the rules of --rollout-quantization. */
static bool may_quantize_rollouts(const ml_run_opts *o) {
    const ml_place_opts *p = &o->place;

    return !o->qat && o->dtype < ML_WEIGHT_STORED && !ml_run_has_lora(o) && !o->on_policy &&
           !ml_run_elsewhere(o) && p->tp <= 1 && p->pp <= 1 && p->ep <= 1 && p->etp <= 1 &&
           p->backend != ML_TRAIN_FSDP && !ml_run_ranks_moves(&o->ranks);
}

/* As in Miles, a checkpoint with FP8 weights is generated with in FP8, and trained in bf16. */
static void decide_rollout_dtype(ml_train_run *r) {
    bool fp8 = false;

    if (r->opts.rollout_dtype != ML_WEIGHT_STORED)
        return;
    for (int32_t i = 0; i < r->spec.n_param && !fp8; i++)
        fp8 =
            ml_weights_param_dtype(&r->spec.param[i], r->from, ML_WEIGHT_STORED) == ML_FP8;
    r->opts.rollout_dtype =
        fp8 && may_quantize_rollouts(&r->opts) ? ML_WEIGHT_FP8 : ML_WEIGHT_AUTO;
    if (r->opts.rollout_dtype)
        ml_log(ML_LOG_WARN,
               "%s has FP8 weights: rollouts are generated with weights in FP8, and their "
               "log-probs differ from training; --rollout-quantization none prevents it, "
               "--fp8-format trains in FP8, too",
               r->opts.hf_checkpoint);
}

/* Excludes layers from quantization.  Engines of other processes would not know of it, and have
 * a quantized base alone. */
static ml_status keep_precision(ml_train_run *r, ml_err *err) {
    const ml_run_opts *o = &r->opts;
    const bool ends = o->high_precision.ends;
    const ml_high_precision h = { .first = ends ? o->high_precision.first : 0,
                                  .last = ends ? o->high_precision.last : 0,
                                  .name = o->high_precision.names.word,
                                  .n_name = o->high_precision.names.n };

    if (!ends && !h.n_name)
        return ML_OK;
    if (!o->qat && !o->rollout_dtype)
        return ml_fail(
            err, ML_EUSAGE,
            "--first-last-layers-bf16 and --extra-high-precision-layers-hf are for "
            "runs with --fp8-format, --fake-quantization or --rollout-quantization: "
            "add one of these, or remove the flag");
    if (!ml_spec_keep_precision(&r->spec, &h) && h.n_name)
        return ml_fail(
            err, ML_EUSAGE,
            "--extra-high-precision-layers-hf: no linear layer of %s has \"%s\" in "
            "its name: give a part of a tensor's name, such as mlp.down_proj",
            o->hf_checkpoint, h.name[0]);
    return ML_OK;
}

static ml_status check_grad_format(const ml_train_run *r, ml_err *err) {
    if (!r->opts.trainer.grad_format || r->be.fp8_grads)
        return ML_OK;
    return ml_fail(err, ML_EUSAGE,
                   "--fp8-backward needs a GPU with wgmma (Hopper, compute capability 9.0) "
                   "and bf16 activations: remove it");
}

static ml_status open_head(ml_train_run *r, ml_err *err) {
    ml_status st;

    if (r->opts.recipe.preference.on || r->spec.reward)
        return ml_fail(err, ML_EUSAGE,
                       "--train-draft is for miles sft and miles train: remove it");
    st = ml_mtp_trainer_open_head(&r->mtp, r->opts.speculative.draft_path, &r->spec, &r->be,
                                  err);
    if (st != ML_OK)
        ml_err_prefix(err, "--train-draft");
    r->opts.trainer.mtp = &r->mtp;
    return st;
}

/* The module is opened before the memory is planned. */
static ml_status open_mtp(ml_train_run *r, ml_err *err) {
    ml_status st;

    if (r->opts.mtp.head && !r->opts.learns_nothing)
        return open_head(r, err);
    if (!r->opts.mtp.train || r->opts.learns_nothing)
        return ML_OK;
    if (r->opts.recipe.preference.on || r->spec.reward)
        return ml_fail(err, ML_EUSAGE,
                       "--enable-mtp-training is for miles sft and miles train: remove it");
    st = ml_mtp_trainer_open(&r->mtp, r->opts.hf_checkpoint, &r->be, r->opts.mtp.factor,
                             err);
    if (st == ML_OK)
        st = ml_weights_check(&r->mtp.spec, r->from, err);
    if (st != ML_OK)
        ml_err_prefix(err, "--enable-mtp-training");
    r->opts.trainer.mtp = &r->mtp;
    return st;
}

ml_status ml_train_run_open(ml_train_run *r, const ml_run_opts *opts, ml_err *err) {
    ml_spec_opts spec;
    ml_status st =
        ml_model_family_find(&spec, opts->arch.spec.word, opts->arch.spec.n, err);

    *r = (ml_train_run){ .opts = *opts };
    ml_arena_init(&r->arena, "run");
    spec.reward = opts->trains_reward;
    if (st == ML_OK)
        st = ml_spec_open_with(&r->spec, opts->hf_checkpoint, &spec, err);
    if (st == ML_OK)
        st = ml_checkpoint_open(&r->from, opts->hf_checkpoint, err);
    if (st == ML_OK)
        st = ml_weights_check(&r->spec, r->from, err);
    r->spec.head_seed = (uint64_t)opts->source.seed;
    if (st == ML_OK)
        st = ml_weights_keep_kv(&r->spec, r->from, opts->dtype, opts->kv_dtype, err);
    if (st == ML_OK) {
        decide_rollout_dtype(r);
        drop_vain_replay(r);
        st = keep_precision(r, err);
        ml_train_run_mark_codes(r, r->from);
    }
    if (st == ML_OK)
        st = ml_run_ranks_stages(&r->opts.trainer.stage, &r->arena, &opts->place, &r->spec,
                                 err);
    if (st == ML_OK && opts->recipe.critic_loss && !opts->learns_nothing &&
        ml_run_ranks_trains(&opts->ranks))
        st = open_critic(r, spec, err);
    if (st == ML_OK && r->critic.from)
        st = ml_run_ranks_stages(&r->critic.stage, &r->arena, &opts->place, &r->critic.spec,
                                 err);
    if (st == ML_OK)
        st = ml_train_run_check_dirs(r, err);
    if (st == ML_OK)
        st = open_data(r, err);
    if (st == ML_OK)
        st = count_rollouts(r, err);
    if (st == ML_OK)
        st = ml_secret_find(&r->teacher_key, opts->teacher_key, opts->teacher_key_file,
                            "--opd-teacher-api-key", err);
    if (st == ML_OK && opts->teacher_load)
        st = ml_run_teachers_choose(r, err);
    if (opts->log.ops)
        share_ops(r);
    if (st == ML_OK)
        st = ml_backend_open(&r->be, &opts->backend, err);
    if (st == ML_OK)
        st = check_grad_format(r, err);
    if (st == ML_OK && ml_run_has_lora(opts))
        st = open_lora(r, err);
    if (st == ML_OK && ml_run_ranks_trains(&opts->ranks))
        st = open_mtp(r, err);
    if (st == ML_OK && opts->trainer.mesh)
        st = ml_mesh_attach(opts->trainer.mesh, r->be.stream, err);
    return st;
}

/* As in Miles: epochs, rounded down to whole steps, at least one; after those of the snapshot
 * that the run continues from. */
static ml_status steps_of_epochs(ml_train_run *r, ml_err *err) {
    ml_run_opts *o = &r->opts;
    int64_t steps = o->num_epoch * r->dataset.rows.n / o->rollout_batch_size, done = -1;
    ml_status st = o->load ? ml_snapshot_latest(&done, o->load, err) : ML_OK;

    o->num_rollout = (done < 0 ? 0 : done + 1) + (steps > 0 ? steps : 1);
    return st;
}

ml_status ml_train_run_open_on(ml_train_run *r, const ml_run_opts *opts, ml_train_run *host,
                               ml_err *err) {
    ml_status st;

    *r = (ml_train_run){ .opts = *opts,
                         .host = host,
                         .spec = host->spec,
                         .from = host->from,
                         .be = host->be,
                         .tokenizer = host->tokenizer,
                         .chat_template = host->chat_template };
    ml_arena_init(&r->arena, "run");
    r->opts.trainer.stage = host->opts.trainer.stage;
    for (int i = 0; i < ML_N_ROUTING; i++) {
        r->opts.trainer.replay[i] = host->opts.trainer.replay[i];
        r->opts.replay_rollout[i] = host->opts.replay_rollout[i];
    }
    ml_prompt_encoder_init(&r->prompter, r->tokenizer, r->chat_template, 1);
    st = ml_train_run_check_dirs(r, err);
    if (st == ML_OK)
        st = open_data(r, err);
    if (st == ML_OK && !opts->num_rollout)
        st = steps_of_epochs(r, err);
    return st == ML_OK ? count_rollouts(r, err) : st;
}

/* What a run on a host's model does not own. */
static void forget_host(ml_train_run *r) {
    r->tokenizer = NULL;
    r->chat_template = NULL;
    r->from = NULL;
    r->be = (ml_backend){ 0 };
    r->spec = (ml_spec){ 0 };
}

void ml_train_run_close(ml_train_run *r) {
    ml_run_log_close(&r->log);
    ml_saver_close(r->saver);
    ml_trainer_close(r->trainer);
    ml_mtp_trainer_close(&r->mtp);
    ml_critic_close(&r->critic);
    ml_weights_close(&r->quantized);
    ml_weights_close(&r->quantized_ref);
    ml_weights_close(&r->weights);
    ml_weights_close(&r->ref);
    ml_weights_close(&r->teacher);
    ml_lora_close(&r->lora);
    ml_data_source_free(r->source);
    ml_dataset_close(&r->dataset);
    ml_dataset_close(&r->rows);
    if (r->prompter.tokenizer)
        ml_prompt_encoder_release(&r->prompter);
    if (r->host)
        forget_host(r);
    else
        ml_python_prompts_clear();
    ml_chat_template_close(r->chat_template);
    if (r->tokenizer)
        ml_tokenizer_close(r->tokenizer);
    if (r->be.name && r->opts.trainer.mesh)
        ml_mesh_detach(r->opts.trainer.mesh);
    if (r->be.name)
        ml_backend_close(&r->be);
    ml_checkpoint_close(r->from);
    ml_spec_close(&r->spec);
    for (int i = 0; i < 2; i++)
        ml_run_dir_close(&r->dir[i]);
    ml_arena_release(&r->arena);
}

ml_prompt_feed ml_train_run_feed(const ml_train_run *r) {
    return (ml_prompt_feed){ .source = r->source,
                             .dataset = &r->dataset,
                             .batch = r->opts.rollout_batch_size,
                             .n_per_prompt = r->opts.source.n_samples_per_prompt,
                             .n_vocab = r->spec.n_vocab };
}

/* --- memory ----------------------------------------------------------------- */

static void name_set(ml_train_run *r, int *n, bool there, const char *name) {
    if (there)
        r->set_name[(*n)++] = name;
}

/* The quantized copies of the actor's weights, and of the reference's. */
static size_t quantized_bytes(const ml_train_run *r) {
    const ml_run_opts *o = &r->opts;

    if (o->qat)
        return ml_weights_code_bytes(&r->spec, o->qat) * (o->wants_ref ? 2 : 1);
    return ml_weights_code_bytes(&r->spec, o->rollout_dtype);
}

/* Sizes only; the longest sample is not known in advance. */
void ml_train_run_memory(ml_train_run *r, ml_memory_request *out) {
    const ml_run_opts *o = &r->opts;
    ml_weight_dtype dtype = ml_weights_dtype(&r->be, o->dtype);
    const ml_shard_range *part = ml_train_run_parts(r, &r->spec);
    size_t bytes = ml_weights_part_bytes(&r->spec, r->from, dtype, part);
    bool critic = r->critic.from != NULL, trains = ml_run_ranks_trains(&o->ranks);
    int n = 0;

    if (!r->base_bytes) /* the first call is before any allocation */
        r->base_bytes = ml_memory_base(&r->be);
    name_set(r, &n, trains, "actor weights");
    name_set(r, &n, trains && o->wants_ref && !ml_run_has_lora(o), "reference weights");
    name_set(r, &n, trains && o->teacher_load && !r->teacher_engine, "teacher weights");
    name_set(r, &n, o->second_set && !ml_run_has_lora(o), "rollout weights");
    r->set_name[n] = NULL;
    *out = (ml_memory_request){
        .spec = &r->spec,
        .be = &r->be,
        .weight_bytes = bytes,
        .whole_bytes = ml_weights_bytes(&r->spec, r->from, dtype),
        .from = r->from,
        .dtype = dtype,
        .bf16 = bytes < ml_weights_part_bytes(&r->spec, NULL, ML_WEIGHT_F32, part),
        .set = r->set_name,
        .critic = critic ? &r->critic.spec : NULL,
        .critic_bytes =
            critic ? ml_weights_bytes(&r->critic.spec, r->critic.from, dtype) : 0,
        .critic_from = r->critic.from,
        .critic_stage = r->critic.stage,
        .generates_only = !trains,
        .opts = o->trainer,
        .longest = o->trainer.batch.dynamic ? 0 : o->trainer.batch.max_tokens,
        .scores = o->recipe.compute_advantages || o->recipe.preference.on,
        .async_save = o->saver.async,
        .saves_ref = o->ref_interval > 0,
        .base_bytes = r->base_bytes,
        .engine_bytes = o->engine_bytes,
        .kv_bytes = o->kv_bytes,
        .reward_bytes = o->reward_bytes,
        .in_turns = o->in_turns,
        .act_in_turns = o->act_in_turns,
        .quantized_bytes = quantized_bytes(r),
    };
}

/* A GPU counts for all processes: ranks read it while none of them allocates. */
ml_status ml_train_run_measure(ml_train_run *r, ml_err *err) {
    const ml_run_ranks *ranks = &r->opts.ranks;
    const ml_device *dev = r->be.dev;
    ml_status st;

    if (dev->host || !dev->held)
        return ML_OK;
    st = ml_comm_meet(ranks->world, err);
    if (st != ML_OK)
        return st;
    r->base_bytes =
        ml_run_ranks_bytes(ranks, ml_memory_base(&r->be) - dev->later, false) + dev->later;
    r->free_bytes = ml_run_ranks_bytes(ranks, ml_memory_available(&r->be), false);
    r->held_bytes = dev->held();
    return ml_comm_meet(ranks->world, err);
}

size_t ml_train_run_free_bytes(const ml_train_run *r, const ml_backend *be) {
    return r->free_bytes
               ? r->free_bytes
               : ml_run_ranks_bytes(&r->opts.ranks, ml_memory_available(be), be->dev->host);
}

size_t ml_train_run_peak(const ml_train_run *r) {
    const ml_device *dev = r->be.dev;

    if (r->opts.ranks.n_device < 2 || !r->free_bytes)
        return ml_memory_peak(&r->be);
    return r->base_bytes - dev->later + dev->held_peak() - r->held_bytes;
}

/* --- disk ------------------------------------------------------------------- */

static uint64_t checkpoint_bytes(const ml_checkpoint *c) {
    uint64_t bytes = 0;
    for (int32_t i = 0; i < c->n_file; i++)
        bytes += c->file[i]->file.bytes.len;
    return bytes;
}

/* Bytes of a model's checkpoint and its optimizer state. */
static uint64_t snapshot_bytes(const ml_train_run *r, const ml_spec *s,
                               const ml_checkpoint *from, bool bf16) {
    bool lora = ml_run_has_lora(&r->opts) && s == &r->spec;
    uint64_t state =
        r->opts.save_optim
            ? ml_optimizer_saved_bytes(lora ? &r->lora.spec : s, &r->opts.trainer.optimizer,
                                       bf16 && !lora)
            : 0;
    return (lora ? r->lora.weights.buf.bytes : checkpoint_bytes(from)) + state;
}

/* Number of saves in the remaining rollouts. */
static int64_t count_saves(const ml_train_run *r) {
    int64_t done = ML_NONE, left, every = r->opts.save_interval;

    if (r->opts.load && ml_snapshot_latest(&done, r->opts.load, NULL) != ML_OK)
        done = ML_NONE;
    left = r->num_rollout - done - 1;
    if (left < 1)
        return 0;
    return every ? (left + every - 1) / every : 1;
}

ml_status ml_train_run_check_disk(ml_train_run *r, ml_err *err) {
    const ml_run_opts *o = &r->opts;
    ml_memory_request req;
    ml_run_disk d = { .dir = o->save, .n_keep = o->saver.keep_last };

    if (!o->save || o->learns_nothing || !ml_run_ranks_first(&o->ranks))
        return ML_OK;
    ml_train_run_memory(r, &req);
    d.n_save = count_saves(r);
    if (o->saver.retain_interval)
        d.n_keep = (d.n_keep ? d.n_keep : 1) + r->num_rollout / o->saver.retain_interval;
    d.snapshot_bytes = snapshot_bytes(r, &r->spec, r->from, req.bf16);
    if (r->mtp.be && o->save_optim)
        d.snapshot_bytes +=
            ml_optimizer_saved_bytes(&r->mtp.spec, &o->trainer.optimizer, req.bf16);
    d.snapshot_bytes += r->mtp.head ? checkpoint_bytes(r->mtp.head) : 0;
    if (o->ref_interval)
        d.snapshot_bytes += (uint64_t)ml_spec_param_count(&r->spec) * sizeof(float);
    if (r->critic.from)
        d.snapshot_bytes += snapshot_bytes(r, &r->critic.spec, r->critic.from, req.bf16);
    d.copy_bytes = o->saver.hf ? checkpoint_bytes(r->from) : 0;
    return ml_run_disk_check(&d, ml_run_disk_free(o->save), err);
}

/* --- saving ----------------------------------------------------------------- */

static void add_members(ml_text *object, ml_str members) {
    object->len--; /* the closing brace */
    ml_text_printf(object, ", ");
    ml_text_add(object, members.ptr, members.len);
    ml_text_printf(object, "}");
}

/* The state of a data source in Python; unfinished groups read their rows again. */
static ml_status save_source(ml_train_run *r, ml_text *data, ml_err *err) {
    bool unfinished = r->opts.rollout.partial || r->opts.mode.fully;
    ml_text more = { 0 };
    ml_status st;

    if (!r->source || !ml_python_prompts_are(r->opts.data.make))
        return ML_OK;
    st = ml_python_prompts_save(r->rollout, unfinished, &more, err);
    if (st == ML_OK && more.len)
        add_members(data, (ml_str){ more.ptr, more.len });
    ml_text_release(&more);
    return st;
}

ml_status ml_train_run_save(ml_train_run *r, ml_str more, ml_err *err) {
    ml_text data = { 0 };
    ml_status st;

    if (r->source)
        ml_data_source_save(r->source, &data);
    else
        ml_text_printf(&data, "{}");
    while (data.len && data.ptr[data.len - 1] == '\n')
        data.len--;
    if (more.len)
        add_members(&data, more);
    st = save_source(r, &data, err);
    if (st == ML_OK)
        st =
            ml_saver_save(r->saver,
                          &(ml_save_models){ .actor = r->trainer,
                                             .critic = r->critic.trainer,
                                             .ref = r->opts.ref_interval ? &r->ref : NULL },
                          &(ml_save_state){ .iteration = r->rollout,
                                            .data = { data.ptr, data.len },
                                            .config = r->opts.config },
                          err);
    ml_text_release(&data);
    return st;
}
