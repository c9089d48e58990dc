#include "cli/train_opts.h"

#include <string.h>

static const struct {
    const char *name;
    ml_module bit;
} modules[] = { { "core_attn", ML_MODULE_CORE_ATTN },
                { "layernorm", ML_MODULE_LAYERNORM },
                { "mlp", ML_MODULE_MLP },
                { "moe", ML_MODULE_MOE },
                { "moe_act", ML_MODULE_MOE_ACT } };

static ml_status module_bits(unsigned *out, const ml_words *words, ml_err *err) {
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

static ml_lr_opts lr_opts(const ml_config *c, int64_t train_iters, int64_t batch) {
    bool constant = c->train.weight_decay_style == ML_DECAY_INCR_CONSTANT;

    return (ml_lr_opts){
        .train_iters = train_iters,
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

ml_status ml_train_opts(ml_trainer_opts *out, const ml_config *c, int64_t num_rollout,
                        int64_t n_sample, ml_err *err) {
    int64_t batch = c->train.global_batch_size ? c->train.global_batch_size : n_sample;

    if (batch > n_sample)
        return ml_fail(err, ML_EUSAGE,
                       "--global-batch-size is %lld, but a rollout has %lld samples: lower "
                       "it or raise --rollout-batch-size",
                       (long long)batch, (long long)n_sample);
    *out = (ml_trainer_opts){
        .optimizer = { .kind = (ml_optimizer_kind)c->train.optimizer,
                       .beta1 = c->train.adam_beta1,
                       .beta2 = c->train.adam_beta2,
                       .eps = c->train.adam_eps,
                       .momentum = c->train.sgd_momentum,
                       .clip_grad = c->train.clip_grad,
                       .freeze = c->train.freeze,
                       .offload_dir = c->train.offload_dir },
        .lr = lr_opts(c, num_rollout * n_sample / batch, batch),
        .batch = { .global_batch_size = batch,
                   .dynamic = c->train.dynamic,
                   .max_tokens = c->train.max_tokens,
                   .micro_batch_size = c->train.micro_batch_size,
                   .balance = c->train.balance,
                   .allow_partial = c->train.allow_partial },
        .score_max_tokens = c->train.score_max_tokens,
        .recompute = { .granularity = (ml_granularity)c->train.granularity,
                       .block = c->train.recompute_method == 1,
                       .n_layer = (int32_t)c->train.recompute_layers },
        .keep_logits = !c->train.recompute_loss,
        .stop_on_bad = c->train.check_nan,
    };
    return module_bits(&out->recompute.modules, &c->train.recompute_modules, err);
}

void ml_train_opts_text(ml_text *out, const ml_trainer_opts *o, const ml_config *c) {
    ml_text_printf(
        out,
        "{\"global_batch_size\": %lld, \"rollout_batch_size\": %lld, \"lr\": "
        "%.17g, \"min_lr\": %.17g, \"weight_decay\": %.17g, \"optimizer\": \"%s\"",
        (long long)o->batch.global_batch_size, (long long)c->train.rollout_batch_size,
        o->lr.lr, o->lr.min_lr, o->lr.end_weight_decay,
        o->optimizer.kind == ML_OPTIMIZER_ADAM ? "adam" : "sgd");
    ml_text_printf(out, ", \"rollout_seed\": %lld, \"rollout_shuffle\": %s}",
                   (long long)c->train.rollout_seed, c->train.shuffle ? "true" : "false");
}
