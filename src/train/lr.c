#include "train/lr.h"

#include <math.h>

static const double PI = 3.14159265358979323846;

static ml_status check(const ml_lr *s, ml_err *err) {
    const ml_lr_opts *o = &s->opts;

    if (o->train_iters < 1 || o->global_batch_size < 1)
        return ml_fail(err, ML_EUSAGE,
                       "a schedule needs at least one iteration of one sample, not %lld of "
                       "%lld: increase --num-rollout or lower --global-batch-size",
                       (long long)o->train_iters, (long long)o->global_batch_size);
    if (!(o->min_lr >= 0 && o->min_lr <= o->lr && o->warmup_init <= o->lr))
        return ml_fail(
            err, ML_EUSAGE,
            "--lr is %g; --min-lr (%g) and --lr-warmup-init (%g) must not exceed it", o->lr,
            o->min_lr, o->warmup_init);
    if (!(s->warmup < s->decay))
        return ml_fail(err, ML_EUSAGE,
                       "the warm-up takes %g samples and the decay %g: lower "
                       "--lr-warmup-iters or increase --lr-decay-iters",
                       s->warmup, s->decay);
    if (o->style == ML_LR_WSD && o->wsd_decay_iters < 1)
        return ml_fail(err, ML_EUSAGE,
                       "--lr-decay-style WSD needs --lr-wsd-decay-iters, the length of its "
                       "decay");
    if (o->weight_decay_style == ML_DECAY_INCR_CONSTANT &&
        o->start_weight_decay != o->end_weight_decay)
        return ml_fail(err, ML_EUSAGE,
                       "a constant weight decay cannot go from %g to %g: set "
                       "--weight-decay-incr-style",
                       o->start_weight_decay, o->end_weight_decay);
    return ML_OK;
}

ml_status ml_lr_init(ml_lr *out, const ml_lr_opts *opts, ml_err *err) {
    int64_t decay_iters = opts->decay_iters ? opts->decay_iters : opts->train_iters;
    double batch = (double)opts->global_batch_size;

    *out = (ml_lr){ .opts = *opts,
                    .decay = (double)decay_iters * batch,
                    .wsd_decay = (double)opts->wsd_decay_iters * batch,
                    .weight_decay_incr = (double)opts->train_iters * batch };
    out->warmup = opts->warmup_fraction > 0 ? opts->warmup_fraction * out->decay
                                            : (double)opts->warmup_iters * batch;
    return check(out, err);
}

void ml_lr_rescale(ml_lr *s, const ml_lr_opts *opts, double lr) {
    double ratio = opts->lr > 0 ? lr / opts->lr : 0;

    s->opts.lr = opts->lr > 0 ? lr : 0;
    s->opts.min_lr = opts->min_lr * ratio;
    s->opts.warmup_init = opts->warmup_init * ratio;
}

static double cosine(double ratio) {
    return 0.5 * (cos(PI * ratio) + 1.0);
}

static double wsd_coefficient(const ml_lr *s, double n) {
    double start = s->decay - s->wsd_decay, ratio = (n - start) / s->wsd_decay;

    if (n <= start)
        return 1.0;
    switch (s->opts.wsd_style) {
    case ML_WSD_LINEAR: return 1.0 - ratio;
    case ML_WSD_COSINE: return cosine(ratio);
    case ML_WSD_MINUS_SQRT: return 1.0 - sqrt(ratio);
    default: return 2.0 * pow(0.5, ratio) - 1.0;
    }
}

static double coefficient(const ml_lr *s, double n) {
    double ratio = (n - s->warmup) / (s->decay - s->warmup);

    switch (s->opts.style) {
    case ML_LR_LINEAR: return 1.0 - ratio;
    case ML_LR_COSINE: return cosine(ratio);
    default: return wsd_coefficient(s, n);
    }
}

double ml_lr_at(const ml_lr *s, int64_t n_sample) {
    const ml_lr_opts *o = &s->opts;
    double n = (double)n_sample, lr;

    if (s->warmup > 0 && n <= s->warmup)
        return o->warmup_init + (o->lr - o->warmup_init) * n / s->warmup;
    if (o->style == ML_LR_CONSTANT)
        return o->lr;
    if (n > s->decay)
        return o->min_lr;
    if (o->style == ML_LR_INVERSE_SQRT) {
        lr = o->lr * sqrt(fmax(s->warmup, 1.0)) / sqrt(fmax(n, 1.0));
        return fmax(o->min_lr, lr);
    }
    return o->min_lr + coefficient(s, n) * (o->lr - o->min_lr);
}

double ml_lr_weight_decay_at(const ml_lr *s, int64_t n_sample) {
    const ml_lr_opts *o = &s->opts;
    double ratio = (double)n_sample / s->weight_decay_incr, coeff;

    if (o->weight_decay_style == ML_DECAY_INCR_CONSTANT || ratio > 1.0)
        return o->end_weight_decay;
    coeff = o->weight_decay_style == ML_DECAY_INCR_COSINE ? cosine(1.0 - ratio) : ratio;
    return o->start_weight_decay + coeff * (o->end_weight_decay - o->start_weight_decay);
}
