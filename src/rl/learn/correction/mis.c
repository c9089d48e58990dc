/* Masked importance sampling: weights per token, per sequence or per geometric mean of the
 * sequence, bounded in one of three ways; tokens or whole sequences whose ratio is out of
 * bounds can be rejected.  Its metrics measure the mismatch between trainer and engine. */
#include <math.h>
#include <stdio.h>

#include "base/exp.h"
#include "rl/builtins.h"

#define LOG_RATIO_MAX 20.0

typedef enum mis_metric {
    TRAINING_LOG_PPL,
    TRAINING_PPL,
    ROLLOUT_LOG_PPL,
    ROLLOUT_PPL,
    KL,
    K3_KL,
    LOG_PPL_DIFF,
    LOG_PPL_ABS_DIFF,
    PPL_RATIO,
    CHI2_TOKEN,
    CHI2_SEQ,
    WEIGHT_BEFORE,
    TRUNCATE_FRACTION,
    CLIP_LOW,
    CLIP_HIGH,
    MASK_LOW,
    MASK_HIGH,
    WEIGHT_AFTER,
    RS_LOW,
    RS_HIGH,
    VETO_TOKEN,
    VETO_SEQ,
    RATIO_AFTER,
    NORM_FACTOR,
    RATIO_MEAN,
    RATIO_MIN,
    RATIO_MAX,
    N_METRIC
} mis_metric;

static const char *const names[N_METRIC] = {
    [TRAINING_LOG_PPL] = "mis_training_log_ppl",
    [TRAINING_PPL] = "mis_training_ppl",
    [ROLLOUT_LOG_PPL] = "mis_rollout_log_ppl",
    [ROLLOUT_PPL] = "mis_rollout_ppl",
    [KL] = "mis_kl",
    [K3_KL] = "mis_k3_kl",
    [LOG_PPL_DIFF] = "mis_log_ppl_diff",
    [LOG_PPL_ABS_DIFF] = "mis_log_ppl_abs_diff",
    [PPL_RATIO] = "mis_ppl_ratio",
    [CHI2_TOKEN] = "mis_chi2_token",
    [CHI2_SEQ] = "mis_chi2_seq",
    [WEIGHT_BEFORE] = "mis_tis_weight_before_bound",
    [TRUNCATE_FRACTION] = "mis_tis_truncate_fraction",
    [CLIP_LOW] = "mis_tis_clip_fraction_low",
    [CLIP_HIGH] = "mis_tis_clip_fraction_high",
    [MASK_LOW] = "mis_tis_mask_fraction_low",
    [MASK_HIGH] = "mis_tis_mask_fraction_high",
    [WEIGHT_AFTER] = "mis_tis_weight_after_bound",
    [RS_LOW] = "mis_rs_mask_fraction_low",
    [RS_HIGH] = "mis_rs_mask_fraction_high",
    [VETO_TOKEN] = "mis_rs_catastrophic_token_fraction",
    [VETO_SEQ] = "mis_rs_catastrophic_seq_fraction",
    [RATIO_AFTER] = "mis_is_ratio_mean_after_tis_rs",
    [NORM_FACTOR] = "mis_batch_norm_factor",
    [RATIO_MEAN] = "mis_is_ratio_mean_final",
    [RATIO_MIN] = "mis_is_ratio_min_final",
    [RATIO_MAX] = "mis_is_ratio_max_final",
};

static bool reported(const miles_algo *a, mis_metric m) {
    if (m < WEIGHT_BEFORE)
        return true;
    if (!a->use_tis)
        return false;
    switch (m) {
    case TRUNCATE_FRACTION: return a->tis_mode == MILES_TRUNCATE;
    case CLIP_LOW:
    case CLIP_HIGH: return a->tis_mode == MILES_CLIP;
    case MASK_LOW:
    case MASK_HIGH: return a->tis_mode == MILES_MASK;
    case RS_LOW:
    case RS_HIGH: return a->use_rs;
    case VETO_TOKEN:
    case VETO_SEQ: return a->use_rs && !isnan(a->rs_veto_threshold);
    case NORM_FACTOR: return a->tis_batch_normalize;
    default: return true;
    }
}

static int32_t metrics(const miles_algo *algo, miles_metric *out) {
    int32_t n = 0;

    for (int m = 0; m < N_METRIC; m++)
        if (reported(algo, (mis_metric)m))
            out[n++] = (miles_metric){ names[m], MILES_MEAN_SAMPLE };
    return n;
}

/* --- one sample -------------------------------------------------------------- */

typedef struct bounds {
    double low, high;
} bounds;

static double or_else(double x, double otherwise) {
    return isnan(x) ? otherwise : x;
}

static bounds weight_bounds(const miles_algo *a) {
    return (bounds){ or_else(a->tis_lower_bound, 1.0 / a->tis_upper_bound),
                     a->tis_upper_bound };
}

static bounds reject_bounds(const miles_algo *a) {
    bounds b = weight_bounds(a);
    return (bounds){ or_else(a->rs_lower_bound, b.low),
                     or_else(a->rs_upper_bound, b.high) };
}

static double clamp(double x, double low, double high) {
    return x < low ? low : x > high ? high : x;
}

static double trained_count(const miles_sample *s) {
    int64_t n = 0;

    for (int64_t t = 0; t < s->n; t++)
        n += s->mask[t];
    return (double)n;
}

static double trained_sum(const miles_sample *s, const double *x) {
    double sum = 0.0;

    for (int64_t t = 0; t < s->n; t++)
        if (s->mask[t])
            sum += x[t];
    return sum;
}

static double log_ratio(const miles_sample *s, int64_t t) {
    return s->old_log_prob[t] - s->rollout_log_prob[t];
}

static double log_ratio_sum(const miles_sample *s) {
    double sum = 0.0;

    for (int64_t t = 0; t < s->n; t++)
        if (s->mask[t])
            sum += log_ratio(s, t);
    return sum;
}

/* The importance ratio of token t at a level; `whole` is the sum of the log ratios. */
static double ratio_at(const miles_sample *s, int64_t t, int32_t level, double whole,
                       double n) {
    double l = level == MILES_TOKEN      ? log_ratio(s, t)
               : level == MILES_SEQUENCE ? whole
                                         : whole / n;
    return ml_exp(clamp(l, -LOG_RATIO_MAX, LOG_RATIO_MAX));
}

/* Perplexities and divergences, as sums over the trained tokens like all metrics. */
static void compare(const miles_sample *s, double *sum) {
    double count = trained_count(s), n = count > 0.0 ? count : 1.0;
    double training = -trained_sum(s, s->old_log_prob) / n;
    double rollout = -trained_sum(s, s->rollout_log_prob) / n;
    double whole = clamp(log_ratio_sum(s), -LOG_RATIO_MAX, LOG_RATIO_MAX), squares = 0.0;

    for (int64_t t = 0; t < s->n; t++)
        if (s->mask[t]) {
            double l = log_ratio(s, t);
            double r = ml_exp(clamp(l, -LOG_RATIO_MAX, LOG_RATIO_MAX));
            sum[KL] -= l;
            sum[K3_KL] += ml_exp(l) - l - 1.0;
            squares += r * r;
        }
    sum[TRAINING_LOG_PPL] = count * training;
    sum[TRAINING_PPL] = count * ml_exp(training);
    sum[ROLLOUT_LOG_PPL] = count * rollout;
    sum[ROLLOUT_PPL] = count * ml_exp(rollout);
    sum[LOG_PPL_DIFF] = count * (training - rollout);
    sum[LOG_PPL_ABS_DIFF] = count * fabs(training - rollout);
    sum[PPL_RATIO] = count * ml_exp(training - rollout);
    sum[CHI2_TOKEN] = count * (squares / n - 1.0);
    sum[CHI2_SEQ] = count * (ml_exp(2.0 * whole) - 1.0);
}

/* The weight of one trained token; *keep becomes 0 when the bound rejects it. */
static double bounded(const miles_algo *a, double w, uint8_t *keep, double *sum) {
    bounds b = weight_bounds(a);
    double low = w < b.low ? 1.0 : 0.0, high = w > b.high ? 1.0 : 0.0;

    switch ((miles_bound)a->tis_mode) {
    case MILES_TRUNCATE: sum[TRUNCATE_FRACTION] += high; return clamp(w, 0.0, b.high);
    case MILES_CLIP:
        sum[CLIP_LOW] += low;
        sum[CLIP_HIGH] += high;
        return clamp(w, b.low, b.high);
    case MILES_MASK: break;
    }
    sum[MASK_LOW] += low;
    sum[MASK_HIGH] += high;
    if (!(w >= b.low && w <= b.high))
        *keep = 0;
    return w;
}

static void weigh(const miles_sample *s, const miles_algo *a, double *weight, uint8_t *kept,
                  double *sum) {
    double whole = log_ratio_sum(s), count = trained_count(s);

    for (int64_t t = 0; t < s->n; t++) {
        double w = ratio_at(s, t, a->tis_level, whole, count > 0.0 ? count : 1.0);
        weight[t] = 0.0;
        if (!s->mask[t])
            continue;
        sum[WEIGHT_BEFORE] += w;
        weight[t] = bounded(a, w, &kept[t], sum);
        sum[WEIGHT_AFTER] += weight[t];
    }
    sum[RATIO_AFTER] = sum[WEIGHT_AFTER];
}

/* Rejects tokens out of bounds; one catastrophic token rejects (vetoes) its whole
 * sequence. */
static void reject(const miles_sample *s, const miles_algo *a, uint8_t *kept, double *sum) {
    double whole = log_ratio_sum(s), count = trained_count(s);
    bounds b = reject_bounds(a);

    for (int64_t t = 0; t < s->n; t++) {
        double w = ratio_at(s, t, a->rs_level, whole, count > 0.0 ? count : 1.0);
        if (!s->mask[t])
            continue;
        sum[RS_LOW] += w < b.low ? 1.0 : 0.0;
        sum[RS_HIGH] += w > b.high ? 1.0 : 0.0;
        if (!(w >= b.low && w <= b.high))
            kept[t] = 0;
        /* False if there is no threshold. */
        if (ml_exp(log_ratio(s, t)) < a->rs_veto_threshold)
            sum[VETO_TOKEN] += 1.0;
    }
    if (sum[VETO_TOKEN] > 0.0)
        for (int64_t t = 0; t < s->n; t++)
            kept[t] = 0;
    sum[VETO_SEQ] = sum[VETO_TOKEN] > 0.0 ? count : 0.0;
}

static void final_ratios(const miles_sample *s, const double *weight, double factor,
                         double *sum) {
    double count = trained_count(s), low = (double)INFINITY, high = -low;

    for (int64_t t = 0; t < s->n; t++)
        if (s->mask[t]) {
            low = weight[t] < low ? weight[t] : low;
            high = weight[t] > high ? weight[t] : high;
        }
    sum[NORM_FACTOR] = count * factor;
    sum[RATIO_MEAN] = trained_sum(s, weight);
    sum[RATIO_MIN] = count > 0.0 ? count * low : 0.0;
    sum[RATIO_MAX] = count > 0.0 ? count * high : 0.0;
}

/* --- the batch --------------------------------------------------------------- */

/* The mean weight: of tokens, or of sequences if a sequence has one weight. */
static double mean_weight(const miles_batch *b, const miles_algo *a,
                          double *const *weight) {
    double sum = 0.0, count = 0.0;

    for (int64_t i = 0; i < b->n; i++) {
        double own = trained_sum(b->sample[i], weight[i]), n = trained_count(b->sample[i]);
        sum += a->tis_level == MILES_TOKEN ? own : own / (n > 0.0 ? n : 1.0);
        count += a->tis_level == MILES_TOKEN ? n : 1.0;
    }
    return sum / (count > 0.0 ? count : 1.0);
}

/* Divides the weights so that their mean is 1; returns the divisor. */
static double normalise(const miles_batch *b, const miles_algo *a, double *const *weight) {
    double mean = a->tis_batch_normalize ? mean_weight(b, a, weight) : 1.0;

    if (!(mean > 1e-8))
        return 1.0;
    for (int64_t i = 0; i < b->n; i++)
        for (int64_t t = 0; t < b->sample[i]->n; t++)
            weight[i][t] /= mean;
    return mean;
}

static int check(const miles_batch *b, const miles_algo *a, miles_error *err) {
    bounds w = weight_bounds(a), r = reject_bounds(a);
    const char *wrong = NULL;

    for (int64_t i = 0; i < b->n; i++)
        if (b->sample[i]->n &&
            !(b->sample[i]->old_log_prob && b->sample[i]->rollout_log_prob))
            wrong = "masked importance sampling needs old_log_probs and rollout_log_probs";
    if (a->use_tis && a->tis_mode != MILES_TRUNCATE && !(w.low < w.high))
        wrong = "--tis-lower-bound must be below --tis-upper-bound";
    if (a->use_tis && a->use_rs && !(r.low < r.high))
        wrong = "--rs-lower-bound must be below --rs-upper-bound";
    if (a->use_tis && a->tis_batch_normalize && a->tis_level == MILES_GEOMETRIC)
        wrong = "--tis-batch-normalize does not work with --tis-level geometric: use token "
                "or sequence";
    if (wrong)
        snprintf(err->text, sizeof err->text, "%s", wrong);
    return wrong != NULL;
}

/* Metrics are written in two parts: those that depend on the sample alone, and, once the
 * batch's mean is known, those of its final ratios. */
static void put(const miles_algo *algo, const double *sum, mis_metric first,
                mis_metric last, double *metric) {
    for (int m = 0; m <= (int)last; m++)
        if (reported(algo, (mis_metric)m)) {
            if (m >= (int)first)
                *metric = sum[m];
            metric++;
        }
}

static int run(const miles_batch *b, const miles_algo *algo, double *const *weight,
               uint8_t *const *kept, double *metric, miles_error *err) {
    miles_metric all[MILES_METRIC_MAX];
    int32_t n_metric = metrics(algo, all);
    double factor;

    if (check(b, algo, err))
        return 1;
    for (int64_t i = 0; i < b->n; i++) {
        const miles_sample *s = b->sample[i];
        double sum[N_METRIC] = { 0 };
        compare(s, sum);
        if (algo->use_tis)
            weigh(s, algo, weight[i], kept[i], sum);
        if (algo->use_tis && algo->use_rs)
            reject(s, algo, kept[i], sum);
        put(algo, sum, TRAINING_LOG_PPL, RATIO_AFTER, metric + i * n_metric);
    }
    factor = algo->use_tis ? normalise(b, algo, weight) : 1.0;
    for (int64_t i = 0; i < b->n; i++) {
        double sum[N_METRIC] = { 0 };
        final_ratios(b->sample[i], weight[i], factor, sum);
        put(algo, sum, NORM_FACTOR, RATIO_MAX, metric + i * n_metric);
    }
    return 0;
}

const miles_correction ml_correction_mis = {
    .base = { sizeof(miles_correction), MILES_CORRECTION, "mis",
              "examples.infra_features.train_infer_mismatch_helper.mis.compute_mis_weights_"
              "with_cp",
              "masked importance sampling: --tis-level, --tis-mode, --use-rs and others" },
    .metrics = metrics,
    .run = run,
};
