#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "rl/learn/learner_priv.h"
#include "rl/learn/step_control.h"
#include "rl/learn/step_run.h"

static bool same_bits(float a, float b) {
    uint32_t x, y;
    memcpy(&x, &a, sizeof x);
    memcpy(&y, &b, sizeof y);
    return x == y;
}

/* Checks that log-probs of rollout and training with the same weights are bitwise equal;
 * dropout is a part of training alone. */
static ml_status check_equal(ml_learn_run *s, const ml_loss_io *io, ml_err *err) {
    const ml_sample *x = s->in[io->sample];

    if (ml_trainer_drops(s->l->trainer))
        return ML_OK;
    for (int32_t t = 0; x->logprob && x->version && t < io->n_response; t++) {
        double diff;
        if (!io->mask[t] || x->version[t] != s->l->weights->version ||
            same_bits(x->logprob[t], io->logprob[t]))
            continue;
        diff = fabs((double)x->logprob[t] - (double)io->logprob[t]);
        s->out->max_diff = diff > s->out->max_diff ? diff : s->out->max_diff;
        if (s->l->inexact)
            continue;
        return ml_fail(
            err, ML_EFORMAT,
            "rollout and training disagree: token %d of sample %lld was drawn with "
            "log-prob %.9g, but the same weights (version %llu) give %.9g in training; was "
            "the rollout generated with another temperature, model or program?",
            t, (long long)x->index, (double)x->logprob[t],
            (unsigned long long)x->version[t], (double)io->logprob[t]);
    }
    return ML_OK;
}

static ml_status on_sample_loss(void *self, const ml_loop_event *e, ml_err *err) {
    ml_learn_run *s = self;
    ml_loop_event own = { .kind = e->kind, .step = s->step, .io = e->io };
    ml_status st = check_equal(s, e->io, err);

    return st == ML_OK ? ml_learn_tell(s, own, err) : st;
}

static int by_number(const void *x, const void *y) {
    int32_t i = *(const int32_t *)x, k = *(const int32_t *)y;
    return i < k ? -1 : i > k;
}

/* The indices of the samples in the step's micro-batches, of all ranks, ascending. */
static int32_t *numbers_of(ml_arena *a, const ml_schedule_step *plan, int32_t n_rank,
                           int32_t *n) {
    int32_t *number;

    *n = 0;
    for (int32_t r = 0; r < n_rank; r++)
        for (int32_t k = 0; k < plan->rank[r].n; k++)
            *n += plan->rank[r].bin[k].n;
    number = ML_NEW(a, int32_t, *n + 1);
    *n = 0;
    for (int32_t r = 0; r < n_rank; r++)
        for (int32_t k = 0; k < plan->rank[r].n; k++)
            for (int32_t i = 0; i < plan->rank[r].bin[k].n; i++)
                number[(*n)++] = plan->rank[r].bin[k].item[i];
    qsort(number, (size_t)*n, sizeof *number, by_number);
    return number;
}

/* The model that a train step updates: actor or critic. */
typedef struct trainee {
    ml_trainer *trainer;
    const miles_loss *loss;
    const char *prefix; /* of its metrics */
    bool is_actor;
} trainee;

static void report_step(const trainee *p, const ml_step_result *step,
                        const ml_step_loss *loss, const double *metric, ml_metrics *out) {
    const ml_mtp_trainer *mtp = ml_trainer_mtp(p->trainer);

    ml_metrics_add(out, p->prefix, "loss", step->loss);
    for (int32_t k = 0; k < loss->n_metric; k++)
        ml_metrics_add(out, p->prefix, loss->metric[k].name, metric[k]);
    ml_metrics_add(out, p->prefix, "grad_norm", step->grad_norm);
    if (mtp) {
        ml_metrics_add(out, p->prefix, mtp->head ? "draft_loss" : "mtp_loss",
                       step->mtp_loss);
        ml_metrics_add(out, p->prefix, mtp->head ? "draft_grad_norm" : "mtp_grad_norm",
                       step->mtp_grad_norm);
    }
    ml_metrics_add(out, p->prefix, "lr-pg_0", step->lr);
    ml_metrics_add(out, p->prefix, "weight_decay", step->weight_decay);
    ml_metrics_add(out, p->prefix, "tokens", (double)step->n_token);
    ml_metrics_add(out, p->prefix, "loss_tokens", (double)step->n_loss);
    ml_metrics_add(out, p->prefix, "applied", step->applied);
}

static ml_status tell_step(const ml_learn_run *s, ml_loop_event_kind kind, ml_err *err) {
    return ml_learn_tell(s, (ml_loop_event){ .kind = kind, .step = s->step }, err);
}

static ml_status train_step(ml_learn_run *s, const trainee *p, const ml_schedule_step *plan,
                            const ml_step_control *control, ml_step_result *out,
                            ml_metrics *metrics, ml_err *err) {
    const ml_recipe *r = s->l->recipe;
    double metric[ML_STEP_METRIC_MAX];
    int32_t n, *number = numbers_of(s->a, plan, ml_trainer_shards(p->trainer), &n);
    const miles_sample **view = ML_NEW(s->a, const miles_sample *, n + 1);
    miles_batch b = { sizeof b, n, view };
    ml_step_loss loss;
    ml_status st;

    for (int32_t i = 0; i < n; i++)
        view[i] = &s->row[number[i]];
    st = ml_step_loss_init(&loss, s->a, r, p->loss, &b, err);
    if (st == ML_OK && control && control->step.loss)
        ml_step_loss_add(&loss, s->a, control->step.loss);
    if (st == ML_OK)
        st = ml_step_run_on(
            p->trainer,
            &(ml_step_run){ .loss = &loss,
                            .sample = number,
                            .list = s->train,
                            .step = plan,
                            .rank = ml_trainer_first_shard(p->trainer),
                            .changes = control ? &control->changes : NULL,
                            .old_is_now = p->is_actor && r->skip_actor_forward_only,
                            .observer = { s, p->is_actor ? on_sample_loss : NULL } },
            out, metric, err);
    if (st != ML_OK)
        return st;
    report_step(p, out, &loss, metric, metrics);
    return p->is_actor ? tell_step(s, ML_ON_STEP_END, err) : ML_OK;
}

static bool has_advantage(const miles_sample *row) {
    for (int64_t t = 0; t < row->n; t++)
        if (row->mask[t] && row->advantage[t] != 0.0)
            return true;
    return false;
}

/* Marks samples without a gradient: a policy loss without an entropy or KL term has none
 * where the advantages are 0, as in a group of equal rewards.  Whether other losses have a
 * gradient is known only after they have run. */
static void mark_idle(ml_learn_run *s) {
    bool flat = ml_recipe_is_flat(s->l->recipe);

    for (int32_t i = 0; i < s->n && flat; i++)
        s->train[i].idle = s->row[i].advantage && !has_advantage(&s->row[i]);
}

static void expect_steps(const ml_learner *l, const ml_schedule *plan, bool wanted) {
    int32_t first = ml_trainer_first_shard(l->trainer);

    for (int32_t k = 0; k < plan->n_step && wanted; k++)
        for (int32_t i = 0; i < ml_trainer_own_shards(l->trainer); i++)
            ml_work_count_expect(l->work_count, plan->step[k].rank[first + i].n);
}

/* A train step of the actor, with what hooks change about it.  `whole` is the plan in which
 * all samples have a backward pass: a loss of a hook may have a gradient anywhere. */
static ml_status begin_step(ml_learn_run *s, const trainee *actor,
                            const ml_schedule_step *plan, const ml_schedule_step *whole,
                            ml_step_metrics *done, ml_err *err) {
    bool hook = s->l->step_hook;
    ml_step_control c;
    ml_status st;

    ml_step_control_init(&c, s->a, actor->trainer, &done->metrics);
    st = ml_learn_tell(
        s, (ml_loop_event){ .kind = ML_ON_STEP_BEGIN, .step = s->step, .control = &c.step },
        err);
    if (st == ML_OK && hook)
        st = ml_step_control_share(&c, actor->trainer, err);
    if (st == ML_OK)
        st = train_step(s, actor, c.step.loss ? whole : plan, hook ? &c : NULL, &done->step,
                        &done->metrics, err);
    ml_step_control_release(&c);
    return st;
}

/* Runs all train steps of the critic, then those of the actor; step k of both has the same
 * samples. */
ml_status ml_learn_train(ml_learn_run *s, ml_err *err) {
    const ml_recipe *r = s->l->recipe;
    trainee actor = { s->l->trainer, r->loss, "train/", true };
    trainee critic = { s->l->critic, r->critic_loss, "train/critic-", false };
    ml_schedule plan, critic_plan;
    ml_status st =
        ml_trainer_schedule(&critic_plan, s->l->trainer, s->a, s->train, s->n, err);

    if (st != ML_OK)
        return st;
    mark_idle(s);
    st = ml_trainer_schedule(&plan, s->l->trainer, s->a, s->train, s->n, err);
    if (st != ML_OK)
        return st;
    expect_steps(s->l, &critic_plan, critic.trainer != NULL);
    expect_steps(s->l, &plan, !s->critic_only);
    s->out->n_step = plan.n_step;
    s->out->step = ML_NEW(s->a, ml_step_metrics, plan.n_step + 1);
    for (int32_t k = 0; k < plan.n_step; k++)
        ml_metrics_init(&s->out->step[k].metrics, s->a);
    for (int32_t k = 0; k < plan.n_step && st == ML_OK && critic.trainer; k++) {
        ml_step_metrics *done = &s->out->step[k];
        done->has_critic = true;
        st = train_step(s, &critic, &critic_plan.step[k], NULL, &done->critic,
                        &done->metrics, err);
    }
    for (int32_t k = 0; k < plan.n_step && st == ML_OK && !s->critic_only; k++) {
        ml_step_metrics *done = &s->out->step[k];
        done->has_step = true;
        s->step = k;
        st = begin_step(s, &actor, &plan.step[k], &critic_plan.step[k], done, err);
    }
    return st;
}
