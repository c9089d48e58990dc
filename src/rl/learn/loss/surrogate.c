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

ml_surrogate ml_surrogate_plain(double log_ratio, double log_prob, double advantage,
                                const miles_algo *algo) {
    bool inside;
    double plain = -ml_exp(ml_log_ratio_clamp(log_ratio, &inside)) * advantage;

    (void)log_prob;
    (void)algo;
    return (ml_surrogate){ .value = plain, .d_log_ratio = inside ? plain : 0.0 };
}

ml_surrogate ml_surrogate_sapo(double log_ratio, double log_prob, double advantage,
                               const miles_algo *algo) {
    double tau = advantage > 0.0 ? algo->sapo_temperature_pos : algo->sapo_temperature_neg;
    bool inside;
    double ratio = ml_exp(ml_log_ratio_clamp(log_ratio, &inside));
    double gate = 1.0 / (1.0 + ml_exp(-tau * (ratio - 1.0)));

    (void)log_prob;
    return (ml_surrogate){
        .value = -4.0 / tau * gate * advantage,
        .d_log_ratio = inside ? -4.0 * gate * (1.0 - gate) * ratio * advantage : 0.0
    };
}

#define LOG_LEAST -18.420680743952367 /* log(1e-8) */

ml_surrogate ml_surrogate_vespo(double log_ratio, double log_prob, double advantage,
                                const miles_algo *algo) {
    bool gains = advantage >= 0.0;
    double k = gains ? algo->vespo_k_pos : algo->vespo_k_neg;
    double lambda = gains ? algo->vespo_lambda_pos : algo->vespo_lambda_neg;
    double log_w = clamp(log_ratio, LOG_LEAST, ML_LOG_RATIO_MAX);
    double phi;

    lambda = lambda < 1e-4 ? 1e-4 : lambda;
    phi = ml_exp(lambda + k * log_w - lambda * ml_exp(log_w));
    return (ml_surrogate){ .value = -phi * advantage * log_prob,
                           .d_log_prob = -phi * advantage,
                           .clipped = log_w != log_ratio };
}

double ml_gmpo_log_ratio(double log_ratio, double advantage, const miles_algo *algo,
                         bool *moves) {
    double low = -algo->eps_clip, high = algo->eps_clip_high;

    *moves = advantage > 0.0 ? log_ratio <= high : advantage < 0.0 && log_ratio >= low;
    return *moves ? log_ratio : advantage > 0.0 ? high : advantage < 0.0 ? low : 0.0;
}
