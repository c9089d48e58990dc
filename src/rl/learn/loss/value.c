/* The critic's loss: the squared error, or that of the clipped value if it is larger. */
#include <math.h>
#include <stdio.h>

#include "rl/builtins.h"

typedef struct error_term {
    double value, d; /* d: with respect to the new value */
} error_term;

static error_term squared_error(double value, double target, double slope) {
    double e = value - target;
    return (error_term){ e * e, 2.0 * e * slope };
}

/* At a tie either derivative is valid; PyTorch uses their mean. */
static error_term larger(error_term a, error_term b) {
    if (a.value == b.value)
        return (error_term){ a.value, (a.d + b.d) / 2.0 };
    return a.value > b.value ? a : b;
}

static int32_t metrics(const miles_algo *algo, miles_metric *out) {
    (void)algo;
    out[0] = (miles_metric){ "value_loss", MILES_MEAN_SAMPLE };
    out[1] = (miles_metric){ "value_clipfrac", MILES_MEAN_SAMPLE };
    return 2;
}

static int run(const miles_sample *s, const miles_algo *algo, miles_loss_out *out,
               miles_error *err) {
    double most = algo->value_clip, clipped = 0.0;

    if (s->n && (!s->value || !s->old_value || !s->returns)) {
        snprintf(err->text, sizeof err->text, "the value loss needs values and returns");
        return 1;
    }
    for (int64_t t = 0; t < s->n; t++) {
        double moved = s->value[t] - s->old_value[t];
        bool far = fabs(moved) > most;
        double held = s->old_value[t] + (far ? copysign(most, moved) : moved);
        error_term e;
        if (!s->mask[t])
            continue;
        e = larger(squared_error(held, s->returns[t], far ? 0.0 : 1.0),
                   squared_error(s->value[t], s->returns[t], 1.0));
        out->other += e.value;
        out->d_value[t] = out->other_scale * e.d;
        clipped += far ? 1.0 : 0.0;
    }
    out->metric[0] = out->other;
    out->metric[1] = clipped;
    return 0;
}

const miles_loss ml_loss_value = {
    .base = { sizeof(miles_loss), MILES_LOSS, "value_loss", NULL,
              "clipped squared error of a critic" },
    .metrics = metrics,
    .run = run,
};
