#include "tests/support/recorded_step.h"

#include <math.h>
#include <string.h>

#include "rl/learn/advantage/advantages.h"

bool ml_recorded_step_run(ml_recorded_step *p, ml_case *c, const miles_loss *loss,
                          const ml_json *divisors) {
    const double *divisor = ml_record_row(c, divisors);
    ml_err err = { 0 };
    ml_status st = ml_step_loss_init(&p->step, &c->arena, &p->recipe, loss, &p->b.of, &err);

    p->step.denominator = 1.0;
    for (int64_t i = 0; divisor && i < p->b.of.n; i++)
        p->step.sample_divisor[i] = divisor[i] > 1.0 ? divisor[i] : 1.0;
    for (int64_t i = 0; p->recipe.num.calculate_per_token_loss && i < p->b.of.n; i++)
        p->step.sample_divisor[i] = 1.0;
    p->d_log_prob = ml_columns_new(&c->arena, &p->b.of);
    p->d_entropy = ml_columns_new(&c->arena, &p->b.of);
    p->d_value = ml_columns_new(&c->arena, &p->b.of);
    for (int64_t i = 0; i < p->b.of.n && st == ML_OK; i++) {
        const miles_sample *s = &p->b.sample[i];
        st = ml_step_loss_sample(
            &p->step, i, (ml_model_outputs){ s->log_prob, s->entropy, s->value },
            (ml_derivatives){ p->d_log_prob[i], p->d_entropy[i], p->d_value[i] }, &err);
    }
    if (st != ML_OK)
        ml_case_fail(c, err.msg);
    else
        ml_step_loss_totals(&p->step, &p->loss, p->metric);
    return st == ML_OK;
}

double ml_recorded_step_metric(const ml_recorded_step *p, const char *name) {
    for (int32_t k = 0; k < p->step.n_metric; k++)
        if (strcmp(p->step.metric[k].name, name) == 0)
            return p->metric[k];
    return (double)NAN;
}

void ml_recorded_step_equal(ml_case *c, const ml_recorded_step *p, double *const *got,
                            const ml_json *want, ml_tolerance t, const char *what) {
    const ml_json *row = want ? want->child : NULL;

    for (int64_t i = 0; i < p->b.of.n && row; i++, row = row->next)
        ml_record_equal_row(c, got[i], p->b.sample[i].n, row, t, what);
}

void ml_recorded_step_log_probs(ml_recorded_step *p, ml_case *c) {
    const ml_json *row = ml_json_get(c->out, "log_probs")->child;

    for (int64_t i = 0; i < p->b.of.n; i++, row = row->next)
        p->b.sample[i].log_prob = ml_record_row(c, row);
}
