#include "plugin/resolve.h"

#include <math.h>
#include <string.h>

#include "plugin/extension.h"
#include "rl/builtins.h"

/* --- contradictory options ---------------------------------------------------- */

static bool two_kls(const ml_recipe *r, const ml_algo_opts *o) {
    (void)r;
    return o->num.kl_coef != 0.0 && o->num.kl_loss_coef != 0.0;
}

static bool unwhitened(const ml_recipe *r, const ml_algo_opts *o) {
    return r->compute_advantages && (r->advantage->needs & MILES_WHITEN) &&
           !o->normalize_advantages;
}

static bool tis_on_itself(const ml_recipe *r, const ml_algo_opts *o) {
    (void)r;
    return o->num.use_rollout_logprobs && o->num.use_tis;
}

static bool mismatch_of_what(const ml_recipe *r, const ml_algo_opts *o) {
    (void)r;
    return o->get_mismatch_metrics && !o->custom_tis;
}

static bool critic_with_penalty(const ml_recipe *r, const ml_algo_opts *o) {
    return (r->advantage->needs & MILES_NEEDS_VALUES) && o->num.kl_coef != 0.0;
}

static bool weak_dual_clip(const ml_recipe *r, const ml_algo_opts *o) {
    (void)r;
    return o->num.eps_clip_c <= 1.0; /* false for NaN (no dual clip) */
}

static bool custom_without_path(const ml_recipe *r, const ml_algo_opts *o) {
    (void)r;
    return !strcmp(o->loss_type, "custom_loss") != (o->custom_loss != NULL);
}

static bool no_old_policy(const ml_recipe *r, const ml_algo_opts *o) {
    (void)r;
    return o->skip_actor_forward_only && (o->use_opd || o->num.kl_coef != 0.0);
}

static const struct {
    bool (*broken)(const ml_recipe *r, const ml_algo_opts *o);
    const char *sentence;
} rules[] = {
    { two_kls, "--kl-coef and --kl-loss-coef exclude each other: set one of them" },
    { unwhitened, "this --advantage-estimator needs --normalize-advantages" },
    { tis_on_itself,
      "--use-tis and --use-rollout-logprobs exclude each other: remove one of them" },
    { mismatch_of_what, "--get-mismatch-metrics needs --custom-tis-function-path" },
    { critic_with_penalty,
      "--kl-coef must be 0 with a critic: use --use-kl-loss and --kl-loss-coef" },
    { weak_dual_clip, "--eps-clip-c must be above 1" },
    { custom_without_path,
      "--loss-type custom_loss and --custom-loss-function-path need each other" },
    { no_old_policy, "--kl-coef and --use-opd need old log-probs, which "
                     "--skip-actor-forward-only does not compute" },
};

static ml_status check(const ml_recipe *r, const ml_algo_opts *o, ml_err *err) {
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        if (rules[i].broken(r, o))
            return ml_fail(err, ML_EUSAGE, "%s", rules[i].sentence);
    return ML_OK;
}

/* --- extensions ---------------------------------------------------------------- */

static ml_status find_extensions(ml_recipe *r, const ml_algo_opts *o, ml_err *err) {
    bool custom = strcmp(o->loss_type, "custom_loss") == 0 && o->custom_loss;
    bool corrects = o->num.use_tis || o->get_mismatch_metrics;
    const miles_extension *advantage = NULL, *loss = NULL, *tis = NULL, *reducer = NULL;
    ml_status st = ml_extension_find(&advantage, MILES_ADVANTAGE, o->advantage_estimator,
                                     "advantage-estimator", err);

    if (st == ML_OK && custom)
        st = ml_extension_find(&loss, MILES_LOSS, o->custom_loss,
                               "custom-loss-function-path", err);
    else if (st == ML_OK && strcmp(o->loss_type, "custom_loss") != 0)
        st = ml_extension_find(&loss, MILES_LOSS, o->loss_type, "loss-type", err);
    if (st == ML_OK && corrects)
        st =
            ml_extension_find(&tis, MILES_CORRECTION, o->custom_tis ? o->custom_tis : "tis",
                              "custom-tis-function-path", err);
    if (st == ML_OK && o->custom_reducer)
        st = ml_extension_find(&reducer, MILES_REDUCER, o->custom_reducer,
                               "custom-pg-loss-reducer-function-path", err);
    /* miles_extension is the first member of its struct. */
    r->advantage = (const void *)advantage;
    r->loss = (const void *)loss;
    r->correction = (const void *)tis;
    r->reducer = (const void *)reducer;
    return st;
}

ml_status ml_recipe_resolve(ml_recipe *out, const ml_algo_opts *o, ml_err *err) {
    uint32_t wants;
    ml_status st;

    *out = (ml_recipe){ .num = o->num,
                        .opd_kl_coef = o->opd_kl_coef,
                        .compute_advantages = !o->disable_compute_advantages,
                        .normalize_advantages = o->normalize_advantages,
                        .use_opd = o->use_opd,
                        .skip_actor_forward_only = o->skip_actor_forward_only };
    st = find_extensions(out, o, err);
    if (st != ML_OK)
        return st;
    wants = out->advantage->needs;
    out->num.size = sizeof out->num;
    out->num.sequence_ratio = (wants & MILES_SEQUENCE_RATIO) != 0;
    out->num.use_correction = out->correction != NULL;
    out->num.use_entropy = o->num.entropy_coef != 0.0 || o->observe_training_entropy;
    if (isnan(o->num.eps_clip_high))
        out->num.eps_clip_high = o->num.eps_clip;
    if (wants & MILES_NEEDS_VALUES)
        out->critic_loss = &ml_loss_value;
    out->centre_rewards =
        (wants & MILES_CENTRE_REWARDS) && !o->disable_rewards_normalization;
    out->scale_rewards = out->centre_rewards && (wants & MILES_SCALE_REWARDS) &&
                         !o->disable_grpo_std_normalization;
    return check(out, o, err);
}
