#include "cli/train_opts.h"

#include <stdio.h>
#include <string.h>

#include "cli/arch_check.h"
#include "cli/train_debug.h"
#include "cli/train_dir.h"

static const struct {
    const char *name;
    ml_module bit;
} modules[] = { { "core_attn", ML_MODULE_CORE_ATTN },
                { "layernorm", ML_MODULE_LAYERNORM },
                { "mlp", ML_MODULE_MLP },
                { "moe", ML_MODULE_MOE },
                { "moe_act", ML_MODULE_MOE_ACT } };

static ml_status module_bits(unsigned *out, const ml_string_list *words, ml_err *err) {
    *out = words->n ? 0 : ML_MODULE_CORE_ATTN;
    for (int i = 0; i < words->n; i++) {
        size_t k = 0, n = sizeof modules / sizeof *modules;
        while (k < n && strcmp(modules[k].name, words->word[i]) != 0)
            k++;
        if (k == n)
            return ml_fail(err, ML_EUSAGE,
                           "--recompute-modules: \"%s\" is not one of core_attn, "
                           "layernorm, mlp, moe, moe_act",
                           words->word[i]);
        *out |= modules[k].bit;
    }
    return ML_OK;
}

static ml_lr_opts lr_opts(const ml_config *c, int64_t batch) {
    bool constant = c->train.weight_decay_style == ML_DECAY_INCR_CONSTANT;

    return (ml_lr_opts){
        .global_batch_size = batch,
        .lr = c->train.lr,
        .min_lr = c->train.min_lr,
        .warmup_init = c->train.lr_warmup_init,
        .style = (ml_lr_style)c->train.lr_style,
        .decay_iters = c->train.lr_decay_iters,
        .warmup_iters = c->train.lr_warmup_iters,
        .warmup_fraction = c->train.lr_warmup_fraction,
        .wsd_decay_iters = c->train.lr_wsd_decay_iters,
        .wsd_style = (ml_wsd_style)c->train.lr_wsd_style,
        .start_weight_decay =
            constant ? c->train.weight_decay : c->train.start_weight_decay,
        .end_weight_decay = constant ? c->train.weight_decay : c->train.end_weight_decay,
        .weight_decay_style = (ml_decay_incr_style)c->train.weight_decay_style,
    };
}

static int64_t batch_size(const ml_config *c, int64_t n_sample) {
    if (c->rollout.num_steps_per_rollout)
        return n_sample / c->rollout.num_steps_per_rollout;
    return c->train.global_batch_size ? c->train.global_batch_size : n_sample;
}

static ml_status check_batch(const ml_config *c, int64_t batch, int64_t n_sample,
                             ml_err *err) {
    if (c->train.global_batch_size && c->train.global_batch_size != batch)
        return ml_fail(err, ML_EUSAGE,
                       "--global-batch-size is %lld, but %lld samples in "
                       "--num-steps-per-rollout %lld make it %lld: keep one of them",
                       (long long)c->train.global_batch_size, (long long)n_sample,
                       (long long)c->rollout.num_steps_per_rollout, (long long)batch);
    if (batch > n_sample || batch < 1)
        return ml_fail(err, ML_EUSAGE,
                       "--global-batch-size is %lld, but a rollout has %lld samples: lower "
                       "it or raise --rollout-batch-size",
                       (long long)batch, (long long)n_sample);
    return ML_OK;
}

static ml_trainer_opts trainer_opts(const ml_config *c, int64_t batch) {
    return (ml_trainer_opts){
        .optimizer = { .kind = (ml_optimizer_kind)c->train.optimizer,
                       .beta1 = c->train.adam_beta1,
                       .beta2 = c->train.adam_beta2,
                       .eps = c->train.adam_eps,
                       .momentum = c->train.sgd_momentum,
                       .clip_grad = c->train.clip_grad,
                       .freeze = c->train.freeze,
                       .offload_dir = c->train.offload_dir,
                       .offload_host = c->train.offload_host || c->train.offload_states },
        .lr = lr_opts(c, batch),
        .batch = { .global_batch_size = batch,
                   .dynamic = c->train.dynamic,
                   .max_tokens = c->train.max_tokens,
                   .micro_batch_size = c->train.micro_batch_size,
                   .one_step = c->train.dynamic_batch,
                   .balance = c->train.balance,
                   .by_flops = c->train.by_flops,
                   .allow_partial = c->train.allow_partial },
        .score_max_tokens = c->train.score_max_tokens,
        .recompute = { .granularity = (ml_granularity)c->train.granularity,
                       .block = c->train.recompute_method == 1,
                       .n_layer = (int32_t)c->train.recompute_layers },
        .keep_logits = !c->train.recompute_loss,
        .loss_rows = (int32_t)(c->train.loss_rows > 0 ? c->train.loss_rows : 0),
        .stop_on_bad = c->train.check_nan,
    };
}

static ml_status span_bits(unsigned *out, const ml_string_list *words, ml_err *err) {
    static const struct {
        const char *name;
        unsigned bits;
    } kinds[] = { { "train_overall", ML_SPAN_ALL },
                  { "train_actor", ML_SPAN_TRAIN },
                  { "train_log_probs", ML_SPAN_LOG_PROBS } };

    for (int i = 0; i < words->n; i++) {
        size_t k = 0, n = sizeof kinds / sizeof *kinds;
        while (k < n && strcmp(kinds[k].name, words->word[i]) != 0)
            k++;
        if (k == n)
            return ml_fail(err, ML_EUSAGE,
                           "--profile-target: \"%s\" is not one of train_overall, "
                           "train_actor, train_log_probs",
                           words->word[i]);
        *out |= kinds[k].bits;
    }
    return ML_OK;
}

ml_weight_dtype ml_train_dtype(const ml_config *c) {
    switch (c->dtype) {
    case ML_DTYPE_F32: return ML_WEIGHT_F32;
    case ML_DTYPE_BF16: return ML_WEIGHT_BF16;
    default: return ML_WEIGHT_AUTO;
    }
}

ml_status ml_train_opts(ml_train_run_opts *out, const ml_config *c, int64_t n_per_prompt,
                        ml_err *err) {
    int64_t n_sample = c->train.rollout_batch_size * n_per_prompt;
    int64_t batch = batch_size(c, n_sample);
    ml_status st = check_batch(c, batch, n_sample, err);

    if (st == ML_OK)
        st = ml_arch_check(c, err);
    if (st != ML_OK)
        return st;
    *out = (ml_train_run_opts){
        .hf_checkpoint = c->hf_checkpoint,
        .dtype = ml_train_dtype(c),
        .backend = ml_config_backend(c),
        .chat_template = c->chat.chat_template,
        .data = { .path = c->train.prompt_data,
                  .input_key = c->train.input_key,
                  .tool_key = c->train.tool_key,
                  .template_kwargs = c->train.template_kwargs },
        .source = { .shuffle = c->train.shuffle,
                    .seed = c->train.rollout_seed,
                    .n_samples_per_prompt = (int32_t)n_per_prompt },
        .rollout_batch_size = c->train.rollout_batch_size,
        .num_rollout = c->train.num_rollout,
        .num_epoch = c->train.num_epoch,
        .trainer = trainer_opts(c, batch),
        .save = c->train.save,
        .load = c->train.load,
        .save_hf = c->train.save_hf,
        .save_interval = c->train.save_interval,
        .keep_last = c->train.keep_last,
        .retain_interval = c->train.retain_interval,
        .ckpt_step = c->train.ckpt_step,
        .start_rollout = c->train.start_rollout,
        .async_save = c->train.async_save,
        .log = { .tensorboard = c->log.tensorboard,
                 .project = c->log.project,
                 .experiment = c->log.experiment,
                 .no_store = !c->log.store,
                 .profile = c->log.profile },
        .no_save_optim = !c->train.save_optim,
        .no_load_optim = !c->train.load_optim,
        .finetune = c->train.finetune,
        .overwrite = c->train.overwrite,
    };
    out->replay_rollout[ML_ROUTING_EXPERTS] = c->rollout.rollout_routing_replay;
    out->trainer.replay[ML_ROUTING_EXPERTS] =
        c->rollout.routing_replay || c->rollout.rollout_routing_replay;
    out->replay_rollout[ML_ROUTING_KEYS] = c->rollout.rollout_indexer_replay;
    out->trainer.replay[ML_ROUTING_KEYS] =
        c->rollout.indexer_replay || c->rollout.rollout_indexer_replay;
    ml_train_debug_opts(out, c);
    st = span_bits(&out->log.spans, &c->log.targets, err);
    if (st != ML_OK)
        return st;
    return module_bits(&out->trainer.recompute.modules, &c->train.recompute_modules, err);
}

void ml_train_opts_text(ml_text *out, const ml_train_run_opts *o, const ml_config *c) {
    ml_text_printf(out,
                   "\"global_batch_size\": %lld, \"rollout_batch_size\": %lld, "
                   "\"n_samples_per_prompt\": %d, \"lr\": %.17g, \"min_lr\": %.17g, "
                   "\"weight_decay\": %.17g, \"optimizer\": \"%s\"",
                   (long long)o->trainer.batch.global_batch_size,
                   (long long)o->rollout_batch_size, o->source.n_samples_per_prompt,
                   o->trainer.lr.lr, o->trainer.lr.min_lr, o->trainer.lr.end_weight_decay,
                   o->trainer.optimizer.kind == ML_OPTIMIZER_ADAM ? "adam" : "sgd");
    ml_text_printf(out, ", \"rollout_seed\": %lld, \"rollout_shuffle\": %s",
                   (long long)c->train.rollout_seed, c->train.shuffle ? "true" : "false");
}

static ml_status check_memory(ml_train_run *r, ml_err *err) {
    size_t free_bytes, margin;
    ml_memory_request req;

    ml_train_run_memory(r, &req);
    free_bytes = ml_memory_available(&r->be);
    margin = r->opts.memory_margin;
    return ml_memory_check(&req, free_bytes > margin ? free_bytes - margin : 0, err);
}

ml_status ml_train_print_memory(ml_train_run *r, ml_err *err) {
    ml_memory_request req;
    ml_memory m;
    ml_text t = { 0 };
    ml_status st;

    ml_train_run_memory(r, &req);
    st = ml_memory_plan(&m, &req, err);
    if (st != ML_OK)
        return st;
    ml_memory_text(&t, &m);
    printf("memory plan of %s, %lld parameters:\n%s", r->spec.family,
           (long long)ml_spec_param_count(&r->spec), t.ptr);
    ml_text_release(&t);
    st = check_memory(r, err);
    return st == ML_OK ? ml_train_run_check_disk(r, err) : st;
}

ml_status ml_train_start(ml_train_run *r, ml_cmd cmd, const ml_config *c, ml_err *err) {
    ml_status st = check_memory(r, err);

    if (st == ML_OK)
        st = ml_train_dir_choose(r, c, err);
    if (st == ML_OK)
        st = ml_train_run_check_disk(r, err);
    if (st == ML_OK)
        st = ml_train_run_start(r, err);
    if (st == ML_OK)
        st = ml_train_dir_describe(r, cmd, c, err);
    if (st != ML_OK)
        ml_train_dir_drop(r, c);
    return st;
}
