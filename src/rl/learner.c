#include "rl/learner.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/bug.h"
#include "base/clock.h"
#include "rl/advantage/advantages.h"
#include "rl/advantage/reward_norm.h"
#include "rl/step_run.h"

/* One call of ml_learn. */
typedef struct lesson {
    ml_learner *l;
    ml_arena *a;
    const ml_sample *const *in; /* [n] */
    int32_t n;
    ml_train_sample *train; /* [n] */
    miles_sample *row;      /* [n] what the edges see */
    const miles_sample **view;
    ml_lesson *out;
} lesson;

/* --- columns ---------------------------------------------------------------------- */

static double *widen(lesson *s, const float *v, int32_t n) {
    double *out = ML_NEW(s->a, double, n + 1);
    for (int32_t i = 0; i < n; i++)
        out[i] = (double)v[i];
    return out;
}

static const uint8_t *mask_of(lesson *s, const ml_sample *x) {
    uint8_t *mask = ML_NEW(s->a, uint8_t, x->n_response + 1);
    if (x->mask && !x->remove)
        memcpy(mask, x->mask, (size_t)x->n_response);
    else
        memset(mask, x->remove ? 0 : 1, (size_t)x->n_response);
    return mask;
}

static const int64_t *versions_of(lesson *s, const ml_sample *x) {
    int64_t *out = ML_NEW(s->a, int64_t, x->n_response + 1);
    for (int32_t i = 0; i < x->n_response; i++)
        out[i] = (int64_t)x->version[i];
    return out;
}

static ml_status take_samples(lesson *s, ml_err *err) {
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
            .rollout_log_prob = x->logprob ? widen(s, x->logprob, x->n_response) : NULL,
            .teacher_log_prob =
                x->teacher_logprob ? widen(s, x->teacher_logprob, x->n_response) : NULL,
            .weight_version = x->version ? versions_of(s, x) : NULL,
        };
        s->view[i] = &s->row[i];
    }
    return ML_OK;
}

static miles_batch batch_of(const lesson *s) {
    return (miles_batch){ sizeof(miles_batch), s->n, s->view };
}

static ml_status normalise_rewards(lesson *s, ml_err *err) {
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

/* --- passes that only score ---------------------------------------------------------- */

/* Log-probs of all samples under w, as columns. */
static ml_status score(lesson *s, const ml_weights *w, double ***out, ml_err *err) {
    float **logprob = ML_NEW(s->a, float *, s->n + 1);
    double **column = ML_NEW(s->a, double *, s->n + 1);
    const char *whose = !w ? "actor" : w == s->l->ref ? "ref" : "teacher";
    ml_status st =
        ml_hooks_tell(s->l->hooks, MILES_BEFORE_LOG_PROB, s->l->rollout, -1, whose, err);

    if (st != ML_OK)
        return st;
    for (int32_t i = 0; i < s->n; i++)
        logprob[i] = ML_NEW(s->a, float, s->train[i].n_response + 1);
    st = ml_trainer_score(s->l->trainer, w, s->train, s->n, logprob, NULL, err);
    for (int32_t i = 0; i < s->n && st == ML_OK; i++)
        column[i] = widen(s, logprob[i], s->train[i].n_response);
    *out = column;
    return st;
}

/* Tokens that count, and those of them that other weights drew. */
static void count_tokens(lesson *s) {
    for (int32_t i = 0; i < s->n; i++)
        for (int32_t t = 0; t < s->train[i].n_response; t++) {
            const uint64_t *version = s->in[i]->version;
            if (!s->train[i].mask[t])
                continue;
            s->out->n_token++;
            s->out->n_stale += !version || version[t] != s->l->weights->version;
        }
}

static bool has_drawn_logprobs(const lesson *s) {
    for (int32_t i = 0; i < s->n; i++)
        if (s->train[i].n_response && !s->in[i]->logprob)
            return false;
    return true;
}

static ml_status score_all(lesson *s, ml_err *err) {
    const ml_recipe *r = s->l->recipe;
    double **column = NULL;
    ml_status st = ML_OK;

    if (!r->compute_advantages)
        return ML_OK;
    if (s->l->ref) {
        st = score(s, s->l->ref, &column, err);
        for (int32_t i = 0; i < s->n && st == ML_OK; i++)
            s->row[i].ref_log_prob = column[i];
    }
    if (s->l->teacher && st == ML_OK) {
        st = score(s, s->l->teacher, &column, err);
        for (int32_t i = 0; i < s->n && st == ML_OK; i++)
            s->row[i].teacher_log_prob = column[i];
    }
    if (st != ML_OK || r->skip_actor_forward_only)
        return st;
    if (s->out->n_stale == 0 && has_drawn_logprobs(s)) {
        for (int32_t i = 0; i < s->n; i++)
            s->row[i].old_log_prob = s->row[i].rollout_log_prob;
        return ML_OK;
    }
    if (r->num.use_rollout_logprobs && !r->correction)
        return ML_OK;
    st = score(s, NULL, &column, err);
    for (int32_t i = 0; i < s->n && st == ML_OK; i++)
        s->row[i].old_log_prob = column[i];
    return st;
}

static ml_status take_advantages(lesson *s, ml_err *err) {
    miles_batch b = batch_of(s);
    ml_advantages adv;
    ml_status st;

    if (!s->l->recipe->compute_advantages)
        return ML_OK;
    st = ml_advantages_compute(&adv, s->a, s->l->recipe, &b, err);
    for (int32_t i = 0; i < s->n && st == ML_OK; i++) {
        s->row[i].advantage = adv.advantage[i];
        s->row[i].returns = adv.returns[i];
        if (adv.opd_reverse_kl)
            s->row[i].opd_reverse_kl = adv.opd_reverse_kl[i];
    }
    return st;
}

/* --- one optimizer step --------------------------------------------------------------- */

static bool same_bits(float a, float b) {
    uint32_t x, y;
    memcpy(&x, &a, sizeof x);
    memcpy(&y, &b, sizeof y);
    return x == y;
}

/* Rollout and training agree to the bit where they used the same weights. */
static ml_status check_equal(void *ud, const ml_loss_io *io, ml_err *err) {
    lesson *s = ud;
    const ml_sample *x = s->in[io->sample];

    for (int32_t t = 0; x->logprob && x->version && t < io->n_response; t++) {
        double diff;
        if (!io->mask[t] || x->version[t] != s->l->weights->version ||
            same_bits(x->logprob[t], io->logprob[t]))
            continue;
        diff = fabs((double)x->logprob[t] - (double)io->logprob[t]);
        s->out->max_diff = diff > s->out->max_diff ? diff : s->out->max_diff;
        return ml_fail(
            err, ML_EFORMAT,
            "rollout and training disagree: token %d of sample %lld was drawn with "
            "log-prob %.9g, and the same weights (version %llu) give %.9g in "
            "training; was the rollout made with another temperature, model or "
            "program?",
            t, (long long)x->index, (double)x->logprob[t],
            (unsigned long long)x->version[t], (double)io->logprob[t]);
    }
    return ML_OK;
}

static int by_number(const void *x, const void *y) {
    int32_t i = *(const int32_t *)x, k = *(const int32_t *)y;
    return i < k ? -1 : i > k;
}

/* The numbers of the samples of the step's micro-batches, ascending. */
static int32_t *numbers_of(ml_arena *a, const ml_bins *micro, int32_t *n) {
    int32_t *number;

    *n = 0;
    for (int32_t k = 0; k < micro->n; k++)
        *n += micro->bin[k].n;
    number = ML_NEW(a, int32_t, *n + 1);
    *n = 0;
    for (int32_t k = 0; k < micro->n; k++)
        for (int32_t i = 0; i < micro->bin[k].n; i++)
            number[(*n)++] = micro->bin[k].item[i];
    qsort(number, (size_t)*n, sizeof *number, by_number);
    return number;
}

static void report_step(lesson *s, const ml_step_loss *loss, const double *metric,
                        ml_learned *done) {
    ml_figures_init(&done->figures, s->a);
    ml_figures_add(&done->figures, "train/", "loss", done->step.loss);
    for (int32_t k = 0; k < loss->n_metric; k++)
        ml_figures_add(&done->figures, "train/", loss->metric[k].name, metric[k]);
    ml_figures_add(&done->figures, "train/", "grad_norm", done->step.grad_norm);
    ml_figures_add(&done->figures, "train/", "lr-pg_0", done->step.lr);
    ml_figures_add(&done->figures, "train/", "weight_decay", done->step.weight_decay);
    ml_figures_add(&done->figures, "train/", "tokens", (double)done->step.n_token);
    ml_figures_add(&done->figures, "train/", "loss_tokens", (double)done->step.n_loss);
    ml_figures_add(&done->figures, "train/", "applied", done->step.applied);
}

static ml_status train_step(lesson *s, const ml_schedule_step *plan, ml_learned *done,
                            ml_err *err) {
    const ml_recipe *r = s->l->recipe;
    double metric[ML_STEP_METRIC_MAX];
    int32_t n, *number = numbers_of(s->a, &plan->rank[0], &n);
    const miles_sample **view = ML_NEW(s->a, const miles_sample *, n + 1);
    miles_batch b = { sizeof b, n, view };
    ml_step_loss loss;
    ml_status st;

    for (int32_t i = 0; i < n; i++)
        view[i] = &s->row[number[i]];
    st = ml_step_loss_init(&loss, s->a, r, r->loss, &b, err);
    if (st == ML_OK)
        st = ml_step_run_on(s->l->trainer,
                            &(ml_step_run){ .loss = &loss,
                                            .sample = number,
                                            .list = s->train,
                                            .step = plan,
                                            .old_is_now = r->skip_actor_forward_only,
                                            .look = check_equal,
                                            .ud = s },
                            &done->step, metric, err);
    if (st != ML_OK)
        return st;
    report_step(s, &loss, metric, done);
    return ML_OK;
}

static ml_status train_all(lesson *s, ml_err *err) {
    ml_schedule plan;
    ml_status st = ml_trainer_schedule(&plan, s->l->trainer, s->a, s->train, s->n, err);

    if (st != ML_OK)
        return st;
    s->out->step = ML_NEW(s->a, ml_learned, plan.n_step + 1);
    for (int32_t k = 0; k < plan.n_step && st == ML_OK; k++, s->out->n_step++) {
        st = ml_hooks_tell(s->l->hooks, MILES_BEFORE_TRAIN_STEP, s->l->rollout, k, "", err);
        if (st == ML_OK)
            st = train_step(s, &plan.step[k], &s->out->step[k], err);
    }
    return st;
}

/* --- figures of the rollout ------------------------------------------------------------ */

/* The mean over samples of the mean over their trained tokens. */
static void add_column(lesson *s, const char *name, size_t field) {
    double sum = 0.0;

    for (int32_t i = 0; i < s->n; i++) {
        const double *x;
        double own = 0.0, n = 0.0;
        memcpy(&x, (const char *)&s->row[i] + field, sizeof x);
        if (!x && s->row[i].n)
            return;
        for (int64_t t = 0; t < s->row[i].n; t++) {
            own += s->row[i].mask[t] ? x[t] : 0.0;
            n += s->row[i].mask[t];
        }
        sum += own / (n > 1.0 ? n : 1.0);
    }
    ml_figures_add(&s->out->rollout, "rollout/", name, s->n ? sum / s->n : 0.0);
}

static void report_rollout(lesson *s) {
    double raw = 0, used = 0, response = 0, total = 0, truncated = 0, n = s->n ? s->n : 1;

    ml_figures_init(&s->out->rollout, s->a);
    for (int32_t i = 0; i < s->n; i++) {
        raw += s->in[i]->reward;
        used += s->row[i].reward;
        response += s->in[i]->n_response;
        total += s->in[i]->n_token;
        truncated += s->in[i]->status == ML_SAMPLE_TRUNCATED;
    }
    if (s->l->recipe->compute_advantages) {
        ml_figures_add(&s->out->rollout, "rollout/", "raw_reward", raw / n);
        ml_figures_add(&s->out->rollout, "rollout/", "rewards", used / n);
    }
    ml_figures_add(&s->out->rollout, "rollout/", "response_lengths", response / n);
    ml_figures_add(&s->out->rollout, "rollout/", "total_lengths", total / n);
    ml_figures_add(&s->out->rollout, "rollout/", "truncated", truncated / n);
    add_column(s, "log_probs", offsetof(miles_sample, old_log_prob));
    add_column(s, "rollout_log_probs", offsetof(miles_sample, rollout_log_prob));
    add_column(s, "ref_log_probs", offsetof(miles_sample, ref_log_prob));
    add_column(s, "teacher_log_probs", offsetof(miles_sample, teacher_log_prob));
    add_column(s, "advantages", offsetof(miles_sample, advantage));
    add_column(s, "returns", offsetof(miles_sample, returns));
    add_column(s, "opd_reverse_kl", offsetof(miles_sample, opd_reverse_kl));
    ml_figures_add(&s->out->rollout, "rollout/", "stale_tokens", (double)s->out->n_stale);
}

ml_status ml_learn(ml_learner *l, ml_lesson *out, ml_arena *a,
                   const ml_sample *const *sample, int64_t n, ml_err *err) {
    lesson s = { .l = l, .a = a, .in = sample, .n = (int32_t)n, .out = out };
    double began = ml_clock_s();
    ml_status st;

    ML_BUG_IF(n > INT32_MAX);
    *out = (ml_lesson){ 0 };
    st = take_samples(&s, err);
    if (st == ML_OK)
        st = normalise_rewards(&s, err);
    if (st != ML_OK)
        return st;
    count_tokens(&s);
    st = score_all(&s, err);
    if (st == ML_OK)
        st = take_advantages(&s, err);
    if (st != ML_OK)
        return st;
    report_rollout(&s);
    out->score_s = ml_clock_s() - began;
    st = train_all(&s, err);
    if (out->n_token > out->n_stale)
        ml_figures_add(&out->rollout, "rollout/", "forward_logp_max_diff", out->max_diff);
    out->train_s = ml_clock_s() - began - out->score_s;
    return st;
}
