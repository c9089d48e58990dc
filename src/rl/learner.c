#include "rl/learner.h"

#include <string.h>

#include "base/bug.h"
#include "base/clock.h"
#include "rl/advantage/advantages.h"
#include "rl/advantage/reward_norm.h"
#include "rl/learner_priv.h"

/* --- columns ---------------------------------------------------------------------- */

double *ml_lesson_widen(ml_lesson_run *s, const float *v, int32_t n) {
    double *out = ML_NEW(s->a, double, n + 1);
    for (int32_t i = 0; i < n; i++)
        out[i] = (double)v[i];
    return out;
}

static const uint8_t *mask_of(ml_lesson_run *s, const ml_sample *x) {
    uint8_t *mask = ML_NEW(s->a, uint8_t, x->n_response + 1);
    if (x->mask && !x->remove)
        memcpy(mask, x->mask, (size_t)x->n_response);
    else
        memset(mask, x->remove ? 0 : 1, (size_t)x->n_response);
    return mask;
}

static const int64_t *versions_of(ml_lesson_run *s, const ml_sample *x) {
    int64_t *out = ML_NEW(s->a, int64_t, x->n_response + 1);
    for (int32_t i = 0; i < x->n_response; i++)
        out[i] = (int64_t)x->version[i];
    return out;
}

static ml_status take_samples(ml_lesson_run *s, ml_err *err) {
    s->train = ML_NEW(s->a, ml_train_sample, s->n + 1);
    s->row = ML_NEW(s->a, miles_sample, s->n + 1);
    s->view = ML_NEW(s->a, const miles_sample *, s->n + 1);
    for (int32_t i = 0; i < s->n; i++) {
        const ml_sample *x = s->in[i];
        const uint8_t *mask = mask_of(s, x);
        if (!x->has_reward && s->l->recipe->compute_advantages)
            return ml_fail(err, ML_EFORMAT, "sample %lld has no reward",
                           (long long)x->index);
        s->train[i] =
            (ml_train_sample){ x->token, x->n_token, x->n_response, mask, x->rollout };
        s->row[i] = (miles_sample){
            .size = sizeof *s->row,
            .n = x->n_response,
            .group = x->group,
            .rollout = x->rollout,
            .reward = x->reward,
            .mask = mask,
            .kept = mask,
            .rollout_log_prob =
                x->logprob ? ml_lesson_widen(s, x->logprob, x->n_response) : NULL,
            .teacher_log_prob = x->teacher_logprob
                                    ? ml_lesson_widen(s, x->teacher_logprob, x->n_response)
                                    : NULL,
            .weight_version = x->version ? versions_of(s, x) : NULL,
        };
        s->view[i] = &s->row[i];
    }
    return ML_OK;
}

static miles_batch batch_of(const ml_lesson_run *s) {
    return (miles_batch){ sizeof(miles_batch), s->n, s->view };
}

static ml_status normalise_rewards(ml_lesson_run *s, ml_err *err) {
    const ml_recipe *r = s->l->recipe;
    ml_reward_row *row = ML_NEW(s->a, ml_reward_row, s->n + 1);
    double *reward = ML_NEW(s->a, double, s->n + 1);
    ml_status st;

    if (s->n && s->in[0]->has_shaped) {
        for (int32_t i = 0; i < s->n; i++)
            s->row[i].reward = s->in[i]->shaped;
        return ML_OK;
    }
    if (!r->centre_rewards)
        return ML_OK;
    for (int32_t i = 0; i < s->n; i++)
        row[i] = (ml_reward_row){ s->row[i].group, s->row[i].rollout, s->row[i].reward };
    st = ml_rewards_normalise(reward, row, s->n, r->scale_rewards, err);
    for (int32_t i = 0; i < s->n && st == ML_OK; i++)
        s->row[i].reward = reward[i];
    return st;
}

/* Tokens that count, and those of them that other weights drew. */
static void count_tokens(ml_lesson_run *s) {
    for (int32_t i = 0; i < s->n; i++)
        for (int32_t t = 0; t < s->train[i].n_response; t++) {
            const uint64_t *version = s->in[i]->version;
            if (!s->train[i].mask[t])
                continue;
            s->out->n_token++;
            s->out->n_stale += !version || version[t] != s->l->weights->version;
        }
}

static ml_status take_advantages(ml_lesson_run *s, ml_err *err) {
    ml_recipe recipe = *s->l->recipe;
    miles_batch b = batch_of(s);
    ml_advantages adv;
    ml_status st;

    if (!recipe.compute_advantages)
        return ML_OK;
    if (s->critic_only)
        recipe.use_opd = false; /* it is the actor's business */
    st = ml_advantages_compute(&adv, s->a, &recipe, &b, err);
    for (int32_t i = 0; i < s->n && st == ML_OK; i++) {
        s->row[i].advantage = adv.advantage[i];
        s->row[i].returns = adv.returns[i];
        if (adv.opd_reverse_kl)
            s->row[i].opd_reverse_kl = adv.opd_reverse_kl[i];
    }
    return st;
}

/* --- a lesson ------------------------------------------------------------------------- */

static void begin_optimizers(ml_learner *l) {
    if (!l->reset_optimizer)
        return;
    ml_optimizer_reset(ml_trainer_optimizer(l->trainer));
    if (l->critic)
        ml_optimizer_reset(ml_trainer_optimizer(l->critic));
}

static ml_status update_reference(ml_learner *l, int64_t rollout, ml_err *err) {
    if (!l->ref || !l->ref_interval || (rollout + 1) % l->ref_interval != 0)
        return ML_OK;
    return ml_weights_copy(l->ref, l->weights, ml_trainer_optimizer(l->trainer)->be, err);
}

static ml_status prepare(ml_lesson_run *s, ml_err *err) {
    ml_status st = take_samples(s, err);

    if (st == ML_OK)
        st = normalise_rewards(s, err);
    if (st != ML_OK)
        return st;
    count_tokens(s);
    st = ml_lesson_score(s, err);
    return st == ML_OK ? take_advantages(s, err) : st;
}

ml_status ml_learn(ml_learner *l, int64_t rollout, ml_lesson *out, ml_arena *a,
                   const ml_sample *const *sample, int64_t n, ml_err *err) {
    ml_lesson_run s = { .l = l,
                        .a = a,
                        .in = sample,
                        .n = (int32_t)n,
                        .rollout = rollout,
                        .critic_only = l->critic && rollout < l->n_critic_only,
                        .out = out };
    double began = ml_clock_s();
    ml_status st;

    ML_BUG_IF(n > INT32_MAX);
    *out = (ml_lesson){ 0 };
    begin_optimizers(l);
    st = prepare(&s, err);
    if (st != ML_OK)
        return st;
    ml_lesson_report(&s);
    out->score_s = ml_clock_s() - began;
    st = ml_lesson_train(&s, err);
    if (!s.critic_only && out->n_token > out->n_stale)
        ml_figures_add(&out->rollout, "rollout/", "forward_logp_max_diff", out->max_diff);
    out->train_s = ml_clock_s() - began - out->score_s;
    return st == ML_OK ? update_reference(l, rollout, err) : st;
}
