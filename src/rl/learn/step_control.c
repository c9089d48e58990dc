#include "rl/learn/step_control.h"

#include <math.h>
#include <string.h>

#include "comm/share.h"

static void change_grads(miles_step *step, const char *pattern, double scale,
                         double max_norm) {
    ml_step_control *c = step->ctx;
    ml_grad_rule r = { ml_arena_str(c->arena, pattern, strlen(pattern)), scale, max_norm };

    ml_text_add(&c->rules, (const char *)&r, sizeof r);
}

static void add_metric(miles_step *step, const char *name, double value) {
    ml_step_control *c = step->ctx;

    ml_metrics_add(c->metrics, "train/", ml_arena_str(c->arena, name, strlen(name)), value);
}

void ml_step_control_init(ml_step_control *c, ml_arena *a, const ml_trainer *t,
                          ml_metrics *metrics) {
    *c = (ml_step_control){ .step = { .size = sizeof c->step,
                                      .clip_grad = ml_trainer_clip_grad(t),
                                      .change_grads = change_grads,
                                      .add_metric = add_metric },
                            .arena = a,
                            .metrics = metrics };
    c->step.ctx = c;
    ml_trainer_schedule_at(t, &c->step.lr, &c->step.weight_decay);
}

void ml_step_control_release(ml_step_control *c) {
    ml_text_release(&c->rules);
}

static ml_status check(const miles_step *s, int32_t n_rank, ml_err *err) {
    if (!isfinite(s->lr) || s->lr < 0 || !isfinite(s->weight_decay) || s->weight_decay < 0)
        return ml_fail(err, ML_EUSAGE,
                       "--custom-megatron-before-train-step-hook-path: the hook set the "
                       "learning rate to %g and the weight decay to %g; expected finite "
                       "numbers of at least 0",
                       s->lr, s->weight_decay);
    if (s->loss && n_rank > 1)
        return ml_fail(err, ML_EUNSUP,
                       "--custom-megatron-before-train-step-hook-path: a hook that adds a "
                       "loss needs a single rank; use --custom-loss-function-path");
    return ML_OK;
}

/* Patterns are sent as lines, their numbers as an array. */
static ml_status share_rules(ml_step_control *c, ml_comm *comm, ml_err *err) {
    ml_text lines = { 0 };
    ml_grad_rule *rule = NULL;
    int64_t n = (int64_t)(c->rules.len / sizeof *rule);
    const char *at;
    ml_status st = ml_comm_share(comm, &n, sizeof n, err);

    rule = ML_NEW(c->arena, ml_grad_rule, n + 1);
    if (c->rules.len)
        memcpy(rule, c->rules.ptr, c->rules.len);
    for (int64_t i = 0; i < n && rule[i].pattern; i++)
        ml_text_add(&lines, rule[i].pattern, strlen(rule[i].pattern) + 1);
    if (st == ML_OK)
        st = ml_comm_share(comm, rule, (size_t)n * sizeof *rule, err);
    if (st == ML_OK)
        st = ml_comm_share_text(comm, &lines, err);
    at = st == ML_OK && n ? ml_arena_str(c->arena, lines.ptr, lines.len) : NULL;
    for (int64_t i = 0; i < n && at; i++) {
        rule[i].pattern = at;
        at += strlen(at) + 1;
    }
    c->changes.rules.rule = rule;
    c->changes.rules.n = (int32_t)n;
    ml_text_release(&lines);
    return st;
}

ml_status ml_step_control_share(ml_step_control *c, ml_trainer *t, ml_err *err) {
    ml_comm *comm = ml_trainer_ranks(t)->comm;
    ml_status st = check(&c->step, ml_comm_size(comm), err);
    double numbers[3] = { c->step.lr, c->step.weight_decay, c->step.clip_grad };

    st = ml_comm_agree(comm, st, err);
    if (st == ML_OK)
        st = ml_comm_share(comm, numbers, sizeof numbers, err);
    if (st == ML_OK)
        st = share_rules(c, comm, err);
    c->changes.lr = numbers[0];
    c->changes.weight_decay = numbers[1];
    c->changes.rules.clip_grad = numbers[2];
    return st;
}
