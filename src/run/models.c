/* The models besides the actor, from the flags. */
#include <math.h>
#include <string.h>

#include "run/opts.h"

/* --- the critic ------------------------------------------------------------- */

/* Whether an estimator of a shared object needs a critic is known only now; for the
 * others, the rules between flags have checked it. */
static ml_status take_critic(ml_train_run_opts *out, const ml_config *c, ml_err *err) {
    if (!out->recipe.critic_loss && ml_config_names_critic(c))
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

static void take_reference(ml_train_run_opts *out, const ml_config *c) {
    out->ref_load = c->models.ref_load;
    out->ref_step = c->models.ref_step;
    out->ref_interval = c->models.ref_interval;
    out->wants_ref = c->algo.num.use_kl_loss || c->algo.num.kl_coef != 0.0;
}

/* --- the teacher ------------------------------------------------------------ */

/* NAME=URL, or the URL alone. */
static ml_status take_urls(ml_train_run_opts *out, const char **url,
                           const ml_string_list *w, ml_err *err) {
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

ml_status ml_train_models(ml_train_run_opts *out, const char **url, const ml_config *c,
                          ml_err *err) {
    ml_status st = take_critic(out, c, err);

    if (st != ML_OK)
        return st;
    take_reference(out, c);
    out->teacher_request_s = c->mode.request_s;
    out->teacher_load = c->models.teacher_load;
    out->teacher_step = c->models.teacher_step;
    out->keep_old_actor = c->models.keep_old_actor;
    out->reset_optimizer = c->models.reset_optimizer;
    out->entropy = c->models.entropy;
    out->on_policy = c->debug.on_policy;
    return take_urls(out, url, &c->models.teacher_urls, err);
}
