/* recipe.h - the algorithm of a run: its extensions and its numeric parameters.
 *
 * ml_algo_opts has the command-line options; run/resolve.h turns them into a recipe
 * once, before training starts. miles/plugin.h documents the extension types.
 *
 * thread: immutable after it is made. */
#ifndef ML_RL_RECIPE_H
#define ML_RL_RECIPE_H

#include "base/str.h"
#include "miles/plugin.h"

typedef struct ml_algo_opts {
    miles_algo num;
    const char *advantage_estimator; /* a name, or a shared object and a name: a.so:name */
    const char *loss_type, *custom_loss;
    const char *custom_tis, *custom_reducer; /* NULL: the standard ones */
    double opd_kl_coef;
    bool disable_rewards_normalization, disable_grpo_std_normalization;
    bool disable_compute_advantages;
    bool normalize_advantages, use_opd;
    bool observe_training_entropy, get_mismatch_metrics, skip_actor_forward_only;
    ml_str args; /* the flags of the run, a JSON object, for Python functions */
} ml_algo_opts;

/* Losses on preferences (learn/preference.h). */
typedef enum ml_preference_kind {
    ML_PREFERENCE_DPO,
    ML_PREFERENCE_HINGE,
    ML_PREFERENCE_IPO,
    ML_PREFERENCE_SIMPO,
    ML_PREFERENCE_ORPO,
    ML_PREFERENCE_KTO,
    ML_PREFERENCE_REWARD /* the pairs of a reward model (learn/reward_loss.h) */
} ml_preference_kind;

typedef struct ml_preference_opts {
    bool on;
    ml_preference_kind kind;
    double beta, label_smoothing, gamma;
    double desirable, undesirable; /* kto: weights */
    double center;                 /* of a reward model */
} ml_preference_opts;

typedef struct ml_recipe {
    miles_algo num;
    const miles_advantage *advantage;
    const miles_correction *correction; /* NULL: none */
    const miles_reducer *reducer;       /* NULL: the mean over the rollout */
    const miles_loss *loss;
    const miles_loss *critic_loss; /* NULL: no critic */
    ml_preference_opts preference;
    double opd_kl_coef;
    bool centre_rewards, scale_rewards;
    bool compute_advantages, normalize_advantages, use_opd;
    /* The old log-probs are those of the training forward pass. */
    bool skip_actor_forward_only;
} ml_recipe;

/* True if a sample whose advantages are all 0 has no gradient. */
bool ml_recipe_is_flat(const ml_recipe *r);
/* True if a group in which all rewards are equal contributes nothing to training. */
bool ml_recipe_compares_rewards(const ml_recipe *r);

#endif
