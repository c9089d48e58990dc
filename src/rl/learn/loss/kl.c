#include "rl/learn/loss/kl.h"

#include <math.h>

#include "base/exp.h"

double ml_log_ratio_clamp(double x, bool *inside) {
    *inside = fabs(x) <= ML_LOG_RATIO_MAX;
    if (*inside)
        return x;
    return x > 0.0 ? ML_LOG_RATIO_MAX : x < 0.0 ? -ML_LOG_RATIO_MAX : 0.0;
}

/* `both` is value + d, computed directly: for k3 the large terms of the two cancel. */
typedef struct estimate {
    double value, d, both;
} estimate;

/* Schulman's k3 estimator: exp(x) - 1 - x with x = base - log_prob.  Never negative, and 0
 * where the policies agree. */
static estimate k3(double x, bool inside) {
    double e = ml_exp(x), value = e - 1.0 - x;
    return inside ? (estimate){ value, 1.0 - e, -x } : (estimate){ value, 0.0, value };
}

static estimate biased(miles_kl type, double d) {
    bool inside = true;
    double x;

    switch (type) {
    case MILES_K1: return (estimate){ d, 1.0, d + 1.0 };
    case MILES_K2: return (estimate){ d * d / 2.0, d, d * d / 2.0 + d };
    case MILES_K3: return k3(-d, true);
    case MILES_LOW_VAR_KL: break;
    }
    x = ml_log_ratio_clamp(-d, &inside);
    return k3(x, inside);
}

ml_kl ml_kl_estimate(miles_kl type, double log_prob, double base, const double *old) {
    const double most = 10.0;
    estimate e = biased(type, log_prob - base);
    double ratio = old ? ml_exp(log_prob - *old) : 1.0;
    ml_kl kl = { ratio * e.value, old ? ratio * e.both : e.d };

    if (type == MILES_LOW_VAR_KL && fabs(kl.value) > most)
        kl = (ml_kl){ kl.value > 0.0 ? most : -most, 0.0 };
    return kl;
}
