/* Truncated importance sampling (TIS) and IcePop: the policy loss of each token is
 * weighted by the ratio of its probability in the trainer to that in the engine. */
#include <math.h>
#include <stdio.h>

#include "base/exp.h"
#include "rl/builtins.h"

enum { TIS, CLIPFRAC, DISTANCE, N_METRIC };

static int32_t metrics(const miles_algo *algo, miles_metric *out) {
    (void)algo;
    out[TIS] = (miles_metric){ "tis", MILES_MEAN_SAMPLE };
    out[CLIPFRAC] = (miles_metric){ "tis_clipfrac", MILES_MEAN_SAMPLE };
    out[DISTANCE] = (miles_metric){ "tis_abs", MILES_MEAN_SAMPLE };
    return N_METRIC;
}

typedef double bound_fn(double w, double low, double high);

/* NaN stays NaN: a log-prob missing from the engine must not go unnoticed in training. */
static double truncated(double w, double low, double high) {
    return w < low ? low : w > high ? high : w;
}

static double within_band(double w, double low, double high) {
    return w >= low && w <= high ? w : 0.0;
}

static void weigh(const miles_sample *s, const miles_algo *algo, double *weight,
                  double *metric, bound_fn *bound) {
    for (int64_t t = 0; t < s->n; t++) {
        double w = ml_exp(s->old_log_prob[t] - s->rollout_log_prob[t]);
        weight[t] = bound(w, algo->tis_clip_low, algo->tis_clip);
        if (!s->mask[t])
            continue;
        metric[TIS] += w;
        metric[CLIPFRAC] += weight[t] == w ? 0.0 : 1.0;
        metric[DISTANCE] += fabs(w - 1.0);
    }
}

static int run(const miles_batch *b, const miles_algo *algo, double *const *weight,
               double *metric, miles_error *err, bound_fn *bound) {
    for (int64_t i = 0; i < b->n; i++) {
        const miles_sample *s = b->sample[i];
        if (s->n && (!s->old_log_prob || !s->rollout_log_prob)) {
            snprintf(err->text, sizeof err->text,
                     "sample %lld has no old_log_probs or no rollout_log_probs: importance "
                     "weights need both",
                     (long long)i);
            return 1;
        }
        weigh(s, algo, weight[i], metric + i * N_METRIC, bound);
    }
    return 0;
}

static int run_tis(const miles_batch *b, const miles_algo *algo, double *const *weight,
                   uint8_t *const *kept, double *metric, miles_error *err) {
    (void)kept;
    return run(b, algo, weight, metric, err, truncated);
}

static int run_icepop(const miles_batch *b, const miles_algo *algo, double *const *weight,
                      uint8_t *const *kept, double *metric, miles_error *err) {
    (void)kept;
    return run(b, algo, weight, metric, err, within_band);
}

const miles_correction ml_correction_tis = {
    .base = { sizeof(miles_correction), MILES_CORRECTION, "tis", NULL,
              "importance weights, clipped to --tis-clip-low and --tis-clip" },
    .metrics = metrics,
    .run = run_tis,
};

const miles_correction ml_correction_icepop = {
    .base = { sizeof(miles_correction), MILES_CORRECTION, "icepop",
              "miles.backends.training_utils.loss_hub.corrections.icepop_function",
              "importance weights within --tis-clip-low and --tis-clip, otherwise 0" },
    .metrics = metrics,
    .run = run_icepop,
};
