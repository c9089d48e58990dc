#include "rl/learn/loss/surrogate.h"

#include "base/exp.h"
#include "rl/learn/loss/kl.h"

static double clamp(double x, double low, double high) {
    return x < low ? low : x > high ? high : x;
}

ml_surrogate ml_surrogate_ppo(double log_ratio, double log_prob, double advantage,
                              const miles_algo *algo) {
    double low = 1.0 - algo->eps_clip, high = 1.0 + algo->eps_clip_high;
    bool inside;
    double ratio = ml_exp(ml_log_ratio_clamp(log_ratio, &inside));
    double plain = -ratio * advantage, bounded = -clamp(ratio, low, high) * advantage;
    ml_surrogate s = { .value = plain, .clipped = bounded > plain };

    (void)log_prob;
    if (s.clipped) /* the clipped term is larger only where the ratio was clipped */
        s.value = bounded;
    else if (inside)
        s.d_log_ratio = plain;
    if (advantage < 0.0 && -algo->eps_clip_c * advantage < s.value) {
        s.value = -algo->eps_clip_c * advantage;
        s.d_log_ratio = 0.0;
    }
    return s;
}

ml_surrogate ml_surrogate_cispo(double log_ratio, double log_prob, double advantage,
                                const miles_algo *algo) {
    bool inside;
    double ratio = ml_exp(ml_log_ratio_clamp(log_ratio, &inside));
    double held = clamp(ratio, 1.0 - algo->eps_clip, 1.0 + algo->eps_clip_high);

    return (ml_surrogate){ .value = -held * advantage * log_prob,
                           .d_log_prob = -held * advantage,
                           .clipped = held != ratio };
}
