/* Supervised fine-tuning: the negative log-probability of the trained tokens. */
#include <stdio.h>

#include "rl/builtins.h"

static int32_t metrics(const miles_algo *algo, miles_metric *out) {
    (void)algo;
    (void)out;
    return 0; /* no metrics besides the loss */
}

static int run(const miles_sample *s, const miles_algo *algo, miles_loss_out *out,
               miles_error *err) {
    (void)algo;
    if (s->n && !s->log_prob) {
        snprintf(err->text, sizeof err->text, "the SFT loss needs log_probs");
        return 1;
    }
    for (int64_t t = 0; t < s->n; t++)
        if (s->mask[t]) {
            out->other -= s->log_prob[t];
            out->d_log_prob[t] = -out->other_scale;
        }
    return 0;
}

const miles_loss ml_loss_sft = {
    .base = { sizeof(miles_loss), MILES_LOSS, "sft_loss", NULL,
              "negative log-probability of the trained tokens" },
    .metrics = metrics,
    .run = run,
};
