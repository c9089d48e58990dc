#include <stddef.h>
#include <string.h>

#include "rl/learn/learner_priv.h"

/* Allocates a number per response token of each sample. */
static float **new_columns(ml_learn_run *s) {
    float **column = ML_NEW(s->a, float *, s->n + 1);
    for (int32_t i = 0; i < s->n; i++)
        column[i] = ML_NEW(s->a, float, s->train[i].n_response + 1);
    return column;
}

/* Stores columns in the field of miles_sample at this offset, converted to double. */
static void put_columns(ml_learn_run *s, size_t field, float *const *column) {
    for (int32_t i = 0; i < s->n; i++) {
        const double *wide = ml_train_rows_widen(s->a, column[i], s->train[i].n_response);
        memcpy((char *)&s->row[i] + field, &wide, sizeof wide);
    }
}

/* Runs a forward pass with weights w over all samples: log-probs, or values of a critic. */
static ml_status score(ml_learn_run *s, ml_trainer *t, const ml_weights *w, size_t field,
                       ml_err *err) {
    float **column = new_columns(s);
    ml_status st = ml_trainer_score(t, w, s->train, s->n, column, NULL, err);

    if (st == ML_OK)
        put_columns(s, field, column);
    return st;
}

/* Scores the current policy; the same forward pass computes entropies, if required. */
static ml_status score_actor(ml_learn_run *s, ml_err *err) {
    float **logprob = new_columns(s), **entropy = s->l->entropy ? new_columns(s) : NULL;
    ml_status st =
        ml_learn_tell(s, (ml_loop_event){ .kind = ML_ON_SCORE, .what = "actor" }, err);

    if (st == ML_OK)
        st = ml_trainer_score(s->l->trainer, NULL, s->train, s->n, logprob, entropy, err);
    if (st != ML_OK)
        return st;
    put_columns(s, offsetof(miles_sample, old_log_prob), logprob);
    if (entropy)
        put_columns(s, offsetof(miles_sample, entropy), entropy);
    return ML_OK;
}

/* Computes log-probs with these weights. */
static ml_status score_logprobs(ml_learn_run *s, const char *whose, const ml_weights *w,
                                size_t field, ml_err *err) {
    ml_status st =
        ml_learn_tell(s, (ml_loop_event){ .kind = ML_ON_SCORE, .what = whose }, err);
    return st == ML_OK ? score(s, s->l->trainer, w, field, err) : st;
}

static bool has_drawn_logprobs(const ml_learn_run *s) {
    for (int32_t i = 0; i < s->n; i++)
        if (s->train[i].n_response && !s->in[i]->logprob)
            return false;
    return true;
}

/* The forward pass for old log-probs records the routing, which the train steps replay. */
static ml_status score_and_record(ml_learn_run *s, ml_err *err) {
    const ml_spec *spec = ml_trainer_spec(s->l->trainer);
    ml_status st;

    for (int r = 0; r < ML_N_ROUTING; r++)
        for (int32_t i = 0; s->l->record[r] && i < s->n; i++)
            s->train[i].routed[r].record = ML_NEW(
                s->a, int32_t,
                s->train[i].n_token * ml_spec_routing_width(spec, (ml_routing_kind)r));
    st = score_actor(s, err);
    for (int r = 0; r < ML_N_ROUTING; r++)
        for (int32_t i = 0; s->l->record[r] && i < s->n; i++)
            s->train[i].routed[r] =
                (ml_token_routing){ .given = s->train[i].routed[r].record,
                                    .n_given = s->train[i].n_token };
    return st;
}

static bool records(const ml_learner *l) {
    bool any = false;
    for (int r = 0; r < ML_N_ROUTING; r++)
        any = any || l->record[r];
    return any;
}

/* Old log-probs.  If the current weights generated all tokens, the rollout's log-probs
 * equal those that a forward pass would compute, bit for bit, and are used instead. */
static ml_status score_old(ml_learn_run *s, ml_err *err) {
    const ml_recipe *r = s->l->recipe;
    bool drawn = has_drawn_logprobs(s);

    if (records(s->l))
        return score_and_record(s, err);
    if (s->l->entropy) {
        ml_status st = score_actor(s, err);
        if (st != ML_OK || !s->l->keep_old_actor)
            return st;
    }
    if (r->skip_actor_forward_only)
        return ML_OK;
    if (s->l->keep_old_actor && !drawn)
        return ml_fail(err, ML_EFORMAT,
                       "--keep-old-actor needs the rollout's log-probs, which some samples "
                       "do not have");
    if (drawn && ((s->out->n_stale == 0 && !s->l->inexact) || s->l->keep_old_actor)) {
        for (int32_t i = 0; i < s->n; i++)
            s->row[i].old_log_prob = s->row[i].rollout_log_prob;
        return ML_OK;
    }
    if (r->num.use_rollout_logprobs && !r->correction)
        return ML_OK;
    return score_actor(s, err);
}

static bool has_supports(const ml_learn_run *s) {
    for (int32_t i = 0; i < s->n; i++)
        if (s->train[i].support)
            return true;
    return false;
}

/* The old log-probs over the whole vocabulary, for what compares them with another model's. */
static ml_status score_full(ml_learn_run *s, ml_err *err) {
    const ml_recipe *r = s->l->recipe;
    ml_train_sample *own = s->train;
    ml_status st;

    if (!has_supports(s) || (r->num.kl_coef == 0.0 && !r->use_opd &&
                             !(r->num.use_kl_loss && r->num.use_unbiased_kl)))
        return ML_OK;
    s->train = ML_NEW(s->a, ml_train_sample, s->n + 1);
    for (int32_t i = 0; i < s->n; i++) {
        s->train[i] = own[i];
        s->train[i].support = NULL;
    }
    st = score(s, s->l->trainer, NULL, offsetof(miles_sample, old_full_log_prob), err);
    s->train = own;
    return st;
}

static ml_status score_values(ml_learn_run *s, ml_err *err) {
    if (!s->l->critic)
        return ML_OK;
    return score(s, s->l->critic, NULL, offsetof(miles_sample, old_value), err);
}

ml_status ml_learn_score(ml_learn_run *s, ml_err *err) {
    ml_status st = ML_OK;

    if (!s->l->recipe->compute_advantages && !s->l->recipe->preference.on)
        return ML_OK;
    if (ml_trainer_spec(s->l->trainer)->reward)
        return score(s, s->l->trainer, NULL, offsetof(miles_sample, old_value), err);
    st = score_values(s, err);
    if (st != ML_OK || s->critic_only)
        return st;
    if (s->l->ref)
        st = score_logprobs(s, "ref", s->l->ref, offsetof(miles_sample, ref_log_prob), err);
    if (st == ML_OK && s->l->teacher)
        st = score_logprobs(s, "teacher", s->l->teacher,
                            offsetof(miles_sample, teacher_log_prob), err);
    if (st == ML_OK)
        st = score_old(s, err);
    return st == ML_OK ? score_full(s, err) : st;
}
