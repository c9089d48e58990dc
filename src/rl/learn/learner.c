#include "rl/learn/learner.h"

#include <math.h>

#include "base/bug.h"
#include "base/clock.h"
#include "rl/learn/advantage/advantages.h"
#include "rl/learn/advantage/reward_norm.h"
#include "rl/learn/learner_priv.h"
#include "rl/learn/preference.h"
#include "rl/learn/reward_loss.h"

/* Routing replay: training uses the routing record of the rollout. */
static ml_status take_routing(ml_learn_run *s, int32_t i, ml_routing_kind route,
                              ml_err *err) {
    const ml_sample *x = s->in[i];
    const ml_routing *r = &x->routed[route];
    ml_status st;

    if (!r->n && x->n_response)
        return ml_fail(err, ML_EFORMAT,
                       "sample %lld has no routing record: it must come from a rollout "
                       "with the same replay flags",
                       (long long)x->index);
    st = r->n ? ml_routing_replay_check(ml_trainer_spec(s->l->trainer), route, r->row, r->n,
                                        r->width, err)
              : ML_OK;
    if (st != ML_OK)
        ml_err_prefix(err, "sample %lld", (long long)x->index);
    s->train[i].routed[route] = (ml_token_routing){ .given = r->row, .n_given = r->n };
    return st;
}

static ml_status take_all_routing(ml_learn_run *s, ml_err *err) {
    ml_status st = ML_OK;

    for (int r = 0; r < ML_N_ROUTING; r++)
        for (int32_t i = 0; s->l->replay[r] && i < s->n && st == ML_OK; i++)
            st = take_routing(s, i, (ml_routing_kind)r, err);
    return st;
}

static ml_status take_samples(ml_learn_run *s, ml_err *err) {
    ml_train_rows rows = ml_train_rows_of(s->a, s->in, s->n);

    s->train = rows.train;
    s->row = rows.row;
    s->view = rows.view;
    for (int32_t i = 0; i < s->n; i++)
        if (ml_sample_check(s->in[i], ml_trainer_spec(s->l->trainer)->n_vocab,
                            "the rollout", err) != ML_OK)
            return ML_EFORMAT;
    for (int32_t i = 0; i < s->n && s->l->recipe->compute_advantages; i++)
        if (!s->in[i]->has_reward)
            return ml_fail(err, ML_EFORMAT, "sample %lld has no reward",
                           (long long)s->in[i]->index);
    return take_all_routing(s, err);
}

static miles_batch batch_of(const ml_learn_run *s) {
    return (miles_batch){ sizeof(miles_batch), s->n, s->view };
}

static ml_status normalise_rewards(ml_learn_run *s, ml_err *err) {
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

/* Counts the trained tokens, and those that the current weights did not generate. */
static void count_tokens(ml_learn_run *s) {
    for (int32_t i = 0; i < s->n; i++)
        for (int32_t t = 0; t < s->train[i].n_response; t++) {
            const uint64_t *version = s->in[i]->version;
            if (!s->train[i].mask[t])
                continue;
            s->out->n_token++;
            s->out->n_stale += !version || version[t] != s->l->weights->version;
        }
}

static ml_status check_on_policy(const ml_learn_run *s, ml_err *err) {
    if (!s->l->on_policy)
        return ML_OK;
    if (s->out->n_stale)
        return ml_fail(err, ML_EFORMAT,
                       "--true-on-policy-mode: %lld of %lld tokens of rollout %lld were "
                       "not drawn with the current weights",
                       (long long)s->out->n_stale, (long long)s->out->n_token,
                       (long long)s->rollout);
    for (int32_t i = 0; i < s->n; i++)
        if (s->in[i]->n_response && !s->in[i]->logprob)
            return ml_fail(err, ML_EFORMAT,
                           "--true-on-policy-mode: sample %lld has no log-probs to compare "
                           "with training",
                           (long long)s->in[i]->index);
    return ML_OK;
}

static ml_status take_preferences(ml_learn_run *s, ml_err *err) {
    ml_preference_row *row = ML_NEW(s->a, ml_preference_row, s->n + 1);

    for (int32_t i = 0; i < s->n; i++)
        row[i] = (ml_preference_row){ .row = &s->row[i],
                                      .n_answer = s->in[i]->n_answer,
                                      .desirable = s->in[i]->reward > 0 };
    if (s->l->recipe->preference.kind == ML_PREFERENCE_REWARD)
        return ml_reward_pairs_compute(s->a, &s->l->recipe->preference, row, s->n, err);
    return ml_preferences_compute(s->a, &s->l->recipe->preference, row, s->n, err);
}

static ml_status take_advantages(ml_learn_run *s, ml_err *err) {
    ml_recipe recipe = *s->l->recipe;
    miles_batch b = batch_of(s);
    ml_advantages adv;
    ml_status st;

    if (recipe.preference.on)
        return take_preferences(s, err);
    if (!recipe.compute_advantages)
        return ML_OK;
    if (s->critic_only)
        recipe.use_opd = false; /* on-policy distillation trains only the actor */
    st = ml_advantages_compute(&adv, s->a, &recipe, &b, err);
    for (int32_t i = 0; i < s->n && st == ML_OK; i++) {
        s->row[i].advantage = adv.advantage[i];
        s->row[i].returns = adv.returns[i];
        if (adv.opd_reverse_kl)
            s->row[i].opd_reverse_kl = adv.opd_reverse_kl[i];
    }
    return st;
}

/* --- training on a rollout batch ------------------------------------------------------ */

static void begin_optimizers(ml_learner *l) {
    if (!l->reset_optimizer)
        return;
    ml_optimizer_reset(ml_trainer_optimizer(l->trainer));
    if (ml_trainer_mtp(l->trainer))
        ml_optimizer_reset(&ml_trainer_mtp(l->trainer)->optimizer);
    if (l->critic)
        ml_optimizer_reset(ml_trainer_optimizer(l->critic));
}

static ml_status update_reference(ml_learner *l, int64_t rollout, ml_err *err) {
    if (!l->ref || !l->ref_interval || (rollout + 1) % l->ref_interval != 0)
        return ML_OK;
    return ml_weights_copy(l->ref, l->weights, ml_trainer_optimizer(l->trainer)->be, err);
}

ml_status ml_learn_tell(const ml_learn_run *s, ml_loop_event e, ml_err *err) {
    e.rollout = s->rollout;
    e.first_step = s->out->first_step;
    e.sample = s->in;
    e.n_sample = s->n;
    return ml_observe(s->l->observers, &e, err);
}

static ml_status call_data_ready(const ml_learn_run *s, ml_err *err) {
    miles_batch b = batch_of(s);
    return ml_learn_tell(s, (ml_loop_event){ .kind = ML_ON_DATA_READY, .batch = &b }, err);
}

static ml_status prepare(ml_learn_run *s, ml_err *err) {
    ml_status st = take_samples(s, err);

    if (st == ML_OK)
        st = normalise_rewards(s, err);
    if (st != ML_OK)
        return st;
    count_tokens(s);
    st = check_on_policy(s, err);
    if (st == ML_OK)
        st = ml_learn_score(s, err);
    if (st == ML_OK)
        st = take_advantages(s, err);
    return st == ML_OK ? call_data_ready(s, err) : st;
}

ml_status ml_learn(ml_learner *l, int64_t rollout, ml_learn_result *out, ml_arena *a,
                   const ml_sample *const *sample, int64_t n, ml_err *err) {
    ml_learn_run s = { .l = l,
                       .a = a,
                       .in = sample,
                       .n = (int32_t)n,
                       .rollout = rollout,
                       .critic_only = l->critic && rollout < l->n_critic_only,
                       .out = out };
    double began = ml_clock_s();
    ml_status st;

    ML_BUG_IF(n > INT32_MAX);
    *out = (ml_learn_result){ .first_step = rollout * l->steps_per_rollout };
    ml_work_count_clear(l->work_count);
    begin_optimizers(l);
    st = prepare(&s, err);
    if (st != ML_OK)
        return st;
    ml_learn_report(&s);
    out->score_s = ml_clock_s() - began;
    st = ml_learn_train(&s, err);
    if (ml_trainer_drops(l->trainer))
        out->max_diff = (double)NAN;
    else if (!s.critic_only && out->n_token > out->n_stale)
        ml_metrics_add(&out->rollout, "rollout/", "forward_logp_max_diff", out->max_diff);
    out->train_s = ml_clock_s() - began - out->score_s;
    return st == ML_OK ? update_reference(l, rollout, err) : st;
}
