/* The models beside the actor, as flags ask for them. */
#include <math.h>
#include <string.h>

#include "cli/train_opts.h"

static bool is(const char *a, const char *b) {
    return a && strcmp(a, b) == 0;
}

/* --- the critic ------------------------------------------------------------- */

static ml_status take_critic(ml_train_run_opts *out, const ml_config *c, ml_err *err) {
    bool asked = c->models.critic_load || c->models.critic_save || c->models.critic_only ||
                 c->models.critic_warmup || !isnan(c->models.critic_lr);

    if (!out->recipe.critic_loss && asked)
        return ml_fail(
            err, ML_EUSAGE,
            "--advantage-estimator %s has no critic: leave out the flags of one, "
            "or use ppo",
            c->algo.advantage_estimator);
    if (out->recipe.critic_loss && !out->recipe.compute_advantages)
        return ml_fail(err, ML_EUSAGE,
                       "a critic learns returns, which "
                       "--disable-compute-advantages-and-returns leaves out");
    out->critic_load = c->models.critic_load;
    out->critic_save = c->models.critic_save;
    out->critic_lr = isnan(c->models.critic_lr) ? c->train.lr : c->models.critic_lr;
    out->critic_warmup_iters = c->models.critic_warmup;
    out->n_critic_only = c->models.critic_only;
    out->critic_seed = (uint64_t)c->models.seed;
    return ML_OK;
}

/* --- the reference ---------------------------------------------------------- */

static ml_status take_reference(ml_train_run_opts *out, const ml_config *c, ml_err *err) {
    out->ref_load = c->models.ref_load;
    out->ref_step = c->models.ref_step;
    out->ref_interval = c->models.ref_interval;
    out->wants_ref = c->algo.num.use_kl_loss || c->algo.num.kl_coef != 0.0;
    if (out->ref_interval && !out->wants_ref)
        return ml_fail(err, ML_EUSAGE,
                       "--ref-update-interval: there is no reference without --use-kl-loss "
                       "or --kl-coef");
    return ML_OK;
}

/* --- the teacher ------------------------------------------------------------ */

/* NAME=URL, or the URL alone. */
static ml_status take_urls(ml_train_run_opts *out, const char **url, const ml_words *w,
                           ml_err *err) {
    if (w->n > ML_TEACHERS)
        return ml_fail(err, ML_EUSAGE, "--opd-teacher-urls: at most %d are taken",
                       ML_TEACHERS);
    for (int i = 0; i < w->n; i++) {
        const char *word = w->word[i], *equals = strchr(word, '=');
        const char *scheme = strstr(word, "://");
        url[i] = equals && (!scheme || equals < scheme) ? equals + 1 : word;
        if (!*url[i] || equals == word)
            return ml_fail(err, ML_EUSAGE, "--opd-teacher-urls: \"%s\" is not NAME=URL",
                           word);
    }
    out->teacher_url = url;
    out->n_teacher_url = w->n;
    return ML_OK;
}

static ml_status check_teacher(const ml_config *c, ml_err *err) {
    bool load = c->models.teacher_load != NULL, urls = c->models.teacher_urls.n > 0;

    if (!c->algo.use_opd && (load || urls))
        return ml_fail(err, ML_EUSAGE, "a teacher needs --use-opd, or nobody asks it");
    if (!c->algo.use_opd || (c->rollout.load_debug && !c->models.opd_type))
        return ML_OK; /* recordings may have its log-probs */
    if (!c->models.opd_type)
        return ml_fail(err, ML_EUSAGE,
                       "--use-opd needs --opd-type: megatron with --opd-teacher-load, or "
                       "sglang with --opd-teacher-urls");
    if (is(c->models.opd_type, "megatron") && (!load || urls))
        return ml_fail(err, ML_EUSAGE,
                       "--opd-type megatron takes the teacher from --opd-teacher-load, not "
                       "from --opd-teacher-urls");
    if (is(c->models.opd_type, "sglang") && (load || !urls))
        return ml_fail(err, ML_EUSAGE,
                       "--opd-type sglang takes the teacher from --opd-teacher-urls, not "
                       "from --opd-teacher-load");
    return ML_OK;
}

ml_status ml_train_models(ml_train_run_opts *out, const char **url, const ml_config *c,
                          ml_err *err) {
    static const char *const route[ML_ROUTES] = { "routing", "indexer" };
    ml_status st = take_critic(out, c, err);

    if (st == ML_OK)
        st = take_reference(out, c, err);
    if (st == ML_OK)
        st = check_teacher(c, err);
    if (st == ML_OK)
        st = take_urls(out, url, &c->models.teacher_urls, err);
    out->teacher_request_s = c->mode.request_s;
    if (st == ML_OK && c->models.keep_old_actor && c->algo.skip_actor_forward_only)
        st = ml_fail(err, ML_EUSAGE,
                     "--keep-old-actor says whose log-probs are the old ones, "
                     "--skip-actor-forward-only that there are none: keep one");
    if (st == ML_OK && c->algo.skip_actor_forward_only &&
        (c->models.entropy || c->debug.on_policy))
        st = ml_fail(err, ML_EUSAGE,
                     "--skip-actor-forward-only leaves out the pass that "
                     "--use-rollout-entropy and --true-on-policy-mode want: keep one");
    for (int i = 0; i < ML_ROUTES && c->algo.skip_actor_forward_only && st == ML_OK; i++)
        if (out->trainer.replay[i] && !out->replay_rollout[i])
            st = ml_fail(err, ML_EUSAGE,
                         "--use-%s-replay replays what the pass for old log-probs chose, "
                         "which --skip-actor-forward-only leaves out: use "
                         "--use-rollout-%s-replay",
                         route[i], route[i]);
    out->teacher_load = c->models.teacher_load;
    out->teacher_step = c->models.teacher_step;
    out->keep_old_actor = c->models.keep_old_actor;
    out->reset_optimizer = c->models.reset_optimizer;
    out->entropy = c->models.entropy;
    out->on_policy = c->debug.on_policy;
    return st;
}
