/* Losses and reductions against what Miles' own code gave: every one-rank case of the
 * recordings.  Corrections and the whole policy loss: test_policy_golden.c. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/exp.h"
#include "rl/learn/advantage/advantages.h"
#include "rl/builtins.h"
#include "rl/learn/loss/kl.h"
#include "rl/learn/loss/surrogate.h"
#include "rl/learn/reduce/divisors.h"
#include "tests/support/recorded_step.h"
#include "tests/support/test.h"

/* Recorded in f64, in f32, and in f32 behind a softmax, a long sum or a large exponent. */
static const ml_tolerance f64 = { 1e-9, 1e-12 }, f32 = { 1e-5, 2e-6 },
                          loose = { 1e-4, 1e-5 };

static const char *const kl_types[] = { "k1", "k2", "k3", "low_var_kl", NULL };

/* --- single tokens ----------------------------------------------------------------- */

static void play_kl(ml_case *c) {
    const ml_json *log_probs = ml_json_get(c->args, "log_probs");
    const double *lp = ml_record_row(c, log_probs);
    const double *base = ml_record_row(c, ml_json_get(c->args, "log_probs_base"));
    const double *old = ml_record_row(c, ml_json_get(c->args, "old_log_probs")), *want;
    miles_kl type = (miles_kl)ml_record_word(c, c->args, "kl_loss_type", kl_types);
    double *value = ML_NEW(&c->arena, double, log_probs->n + 1);
    double *d = ML_NEW(&c->arena, double, log_probs->n + 1);

    for (int32_t t = 0; t < log_probs->n; t++) {
        ml_kl kl = ml_kl_estimate(type, lp[t], base[t], old ? &old[t] : NULL);
        value[t] = kl.value;
        d[t] = kl.d;
    }
    ml_record_equal_row(c, value, log_probs->n, ml_json_get(c->out, "kl"), f32, "kl");
    /* Recorded in f32, where the two terms of the derivative cancel as large as the value. */
    want = ml_record_row(c, ml_json_get(c->out, "grad_log_probs"));
    for (int32_t t = 0; t < log_probs->n; t++)
        ml_record_expect(
            c,
            ml_record_near(d[t], want[t],
                           (ml_tolerance){ 1e-4, 1e-5 + 1e-6 * fabs(value[t]) }),
            "another derivative");
}

static void play_policy_loss(ml_case *c) {
    const ml_json *log_probs = ml_json_get(c->args, "log_probs");
    const double *lp = ml_record_row(c, log_probs);
    const double *old = ml_record_row(c, ml_json_get(c->args, "old_log_probs"));
    const double *a = ml_record_row(c, ml_json_get(c->args, "advantages"));
    double *value = ML_NEW(&c->arena, double, log_probs->n + 1);
    double *d = ML_NEW(&c->arena, double, log_probs->n + 1);
    double *clipped = ML_NEW(&c->arena, double, log_probs->n + 1);
    miles_algo algo = ml_record_algo();

    algo.eps_clip = ml_record_member(c->args, "eps_clip");
    algo.eps_clip_high = ml_record_member(c->args, "eps_clip_high");
    algo.eps_clip_c = ml_record_member(c->args, "eps_clip_c");
    if (ml_json_get(c->out, "error")) {
        CHECK(algo.eps_clip_c <= 1.0); /* refused when the recipe is made */
        return;
    }
    for (int32_t t = 0; t < log_probs->n; t++) {
        ml_surrogate s = ml_surrogate_ppo(lp[t] - old[t], lp[t], a[t], &algo);
        value[t] = s.value;
        d[t] = s.d_log_ratio;
        clipped[t] = s.clipped;
    }
    ml_record_equal_row(c, value, log_probs->n, ml_json_get(c->out, "pg_losses"), loose,
                        "pg_losses");
    ml_record_equal_row(c, clipped, log_probs->n, ml_json_get(c->out, "clipfrac"), f64,
                        "clipfrac");
    ml_record_equal_row(c, d, log_probs->n, ml_json_get(c->out, "grad_log_probs"), loose,
                        "grad_log_probs");
}

/* --- whole steps -------------------------------------------------------------------- */

/* Advantages of 1 for all tokens; the caller sets its own where they matter. */
static void ones(ml_recorded_step *p, ml_case *c) {
    for (int64_t i = 0; i < p->b.of.n; i++) {
        double *a = ML_NEW(&c->arena, double, p->b.sample[i].n + 1);
        for (int64_t t = 0; t < p->b.sample[i].n; t++)
            a[t] = 1.0;
        p->b.sample[i].advantage = a;
    }
}

/* Without clipping the loss is -ratio A.  With A = c / ratio its derivative is that of the
 * sum of c kl, which is what was recorded. */
static void advantages_for(ml_recorded_step *p, ml_case *c, const double *kl) {
    const ml_json *upstream = ml_json_get(c->args, "upstream")->child;

    for (int64_t i = 0; i < p->b.of.n; i++, upstream = upstream->next) {
        double *a = ml_record_row(c, upstream);
        for (int64_t t = 0; t < p->b.sample[i].n; t++)
            a[t] *= ml_exp(*kl++); /* the ratio is exp(-kl) */
        p->b.sample[i].advantage = a;
    }
}

/* The recording sums over masked tokens as well: the shares are taken out of both. */
static void equal_gspo(const ml_recorded_step *p, ml_case *c, int64_t i, const double *want,
                       const double *upstream) {
    const miles_sample *s = &p->b.sample[i];
    double all = 0.0, trained = 0.0;

    for (int64_t t = 0; t < s->n; t++) {
        all += upstream[t];
        trained += s->mask[t] ? upstream[t] : 0.0;
    }
    for (int64_t t = 0; t < s->n; t++)
        ml_record_expect(c,
                         ml_record_near(p->d_log_prob[i][t] * all, want[t] * trained,
                                        (ml_tolerance){ 1e-8, 1e-9 }),
                         "another derivative");
}

static void play_gspo_kl(ml_case *c) {
    ml_recorded_step p = { .recipe = { .num = ml_record_algo() } };
    const ml_json *upstream = ml_json_get(c->args, "upstream");
    const ml_json *want = ml_json_get(c->out, "grad_log_probs")->child;
    const double *kl = ml_record_row(c, ml_json_get(c->out, "ppo_kl"));
    double sum = 0.0;

    p.recipe.num.eps_clip = p.recipe.num.eps_clip_high = 1e30;
    p.recipe.num.sequence_ratio = true;
    p.recipe.num.calculate_per_token_loss = true;
    ml_record_batch_init(&p.b, c, upstream, "loss_masks");
    ml_record_column(&p.b, c, "log_probs", offsetof(miles_sample, log_prob));
    ml_record_column(&p.b, c, "old_log_probs", offsetof(miles_sample, old_log_prob));
    advantages_for(&p, c, kl);
    if (!ml_recorded_step_run(&p, c, &ml_loss_policy, NULL))
        return;
    upstream = upstream->child;
    for (int64_t i = 0; i < p.b.of.n; i++, want = want->next, upstream = upstream->next) {
        equal_gspo(&p, c, i, ml_record_row(c, want), ml_record_row(c, upstream));
        for (int64_t t = 0; t < p.b.sample[i].n; t++, kl++)
            sum += p.b.sample[i].mask[t] ? *kl : 0.0;
    }
    ml_record_expect(c, ml_record_near(ml_recorded_step_metric(&p, "ppo_kl"), sum, f64),
                     "another ppo_kl");
}

/* The derivative of a token is 0 where the sequence is left out. */
static void play_opsm(ml_case *c) {
    ml_recorded_step p = { .recipe = { .num = ml_record_algo() } };
    const double *keep = ml_record_row(c, ml_json_get(c->out, "opsm_mask"));
    int64_t at = 0;

    p.recipe.num.eps_clip = p.recipe.num.eps_clip_high = 1e30;
    p.recipe.num.use_opsm = true;
    p.recipe.num.opsm_delta = ml_record_member(c->args, "opsm_delta");
    ml_record_batch_init(&p.b, c, ml_json_get(c->args, "log_probs"), "loss_masks");
    ml_record_column(&p.b, c, "log_probs", offsetof(miles_sample, log_prob));
    ml_record_column(&p.b, c, "old_log_probs", offsetof(miles_sample, old_log_prob));
    ml_record_column(&p.b, c, "advantages", offsetof(miles_sample, advantage));
    if (!ml_recorded_step_run(&p, c, &ml_loss_policy, NULL))
        return;
    ml_record_equal(c, ml_recorded_step_metric(&p, "opsm_clipfrac"),
                    ml_json_get(c->out, "opsm_clipfrac"), f32, "opsm_clipfrac");
    for (int64_t i = 0; i < p.b.of.n; i++)
        for (int64_t t = 0; t < p.b.sample[i].n; t++, at++)
            if (p.b.sample[i].mask[t] && p.b.sample[i].advantage[t] != 0.0)
                ml_record_expect(c, (p.d_log_prob[i][t] != 0.0) == (keep[at] == 1.0),
                                 "another opsm_mask");
}

/* The recorded ppo_kl is old - new: old is 0, new is -ppo_kl. */
static void play_ess(ml_case *c) {
    ml_recorded_step p = { .recipe = { .num = ml_record_algo() } };
    const ml_json *row = ml_json_get(c->args, "ppo_kl");

    p.recipe.num.calculate_per_token_loss =
        ml_case_flag(c->args, "calculate_per_token_loss");
    ml_record_batch_init(&p.b, c, row, "loss_masks");
    row = row->child;
    for (int64_t i = 0; i < p.b.of.n; i++, row = row->next) {
        double *lp = ml_record_row(c, row);
        for (int64_t t = 0; t < p.b.sample[i].n; t++)
            lp[t] = -lp[t];
        p.b.sample[i].log_prob = lp;
        p.b.sample[i].old_log_prob = ML_NEW(&c->arena, double, p.b.sample[i].n + 1);
    }
    ones(&p, c);
    if (ml_recorded_step_run(&p, c, &ml_loss_policy, NULL))
        ml_record_equal(c, ml_recorded_step_metric(&p, "ess_ratio"),
                        ml_json_get(c->out, "ess_ratio"), loose, "ess_ratio");
}

/* The critic's outputs stand one before the response's tokens. */
static void critic_outputs(ml_recorded_step *p, ml_case *c, const double *flat,
                           bool ragged) {
    const ml_json *length = ml_json_get(c->args, "total_lengths")->child;
    const ml_json *row = ragged ? ml_json_get(c->args, "value_outputs")->child : NULL;

    for (int64_t i = 0; i < p->b.of.n; i++, length = length->next) {
        int64_t total = (int64_t)ml_record_number(length);
        const double *all = ragged ? ml_record_row(c, row) : flat;
        p->b.sample[i].value = all + total - p->b.sample[i].n - 1;
        flat = ragged ? NULL : flat + total;
        row = ragged ? row->next : NULL;
    }
}

static void play_value_loss(ml_case *c) {
    ml_recorded_step p = { .recipe = { .num = ml_record_algo() } };
    const ml_json *length = ml_json_get(c->args, "total_lengths")->child;
    const ml_json *want = ml_json_get(c->out, "grad_value_outputs");
    const double *flat = ml_record_row(c, want);

    p.recipe.num.value_clip = ml_record_member(c->args, "value_clip");
    p.recipe.num.calculate_per_token_loss =
        ml_case_flag(c->args, "calculate_per_token_loss");
    ml_record_batch_init(&p.b, c, ml_json_get(c->args, "values"), "loss_masks");
    ml_record_column(&p.b, c, "values", offsetof(miles_sample, old_value));
    ml_record_column(&p.b, c, "returns", offsetof(miles_sample, returns));
    critic_outputs(&p, c, ml_record_row(c, ml_json_get(c->args, "value_outputs")), false);
    if (!ml_recorded_step_run(&p, c, &ml_loss_value,
                              ml_json_get(c->args, "rollout_mask_sums")))
        return;
    ml_record_equal(c, p.loss, ml_json_get(c->out, "loss"), f32, "loss");
    want = ml_json_get(c->out, "metrics");
    ml_record_equal(c, ml_recorded_step_metric(&p, "value_loss"),
                    ml_json_get(want, "value_loss"), f32, "value_loss");
    ml_record_equal(c, ml_recorded_step_metric(&p, "value_clipfrac"),
                    ml_json_get(want, "value_clipfrac"), f32, "value_clipfrac");
    for (int64_t i = 0; i < p.b.of.n; i++, length = length->next) {
        int64_t total = (int64_t)ml_record_number(length), n = p.b.sample[i].n;
        for (int64_t t = 0; t < n; t++)
            ml_record_expect(c,
                             ml_record_near(p.d_value[i][t], flat[total - n - 1 + t], f32),
                             "another derivative");
        flat += total;
    }
}

/* What Megatron's accumulation is owed: at one rank of one step it cancels. */
static double scaled(ml_case *c, double loss) {
    double g = ml_record_member(c->args, "num_rollouts");
    double dp_cp = ml_record_member(c->args, "dp_cp_size");

    if (isnan(g))
        g = ml_record_member(c->args, "dynamic_global_batch_size");
    if (isnan(g))
        g = ml_record_member(c->args, "global_batch_size");
    if (ml_case_flag(c->args, "multi_lora"))
        g = 1.0;
    if (ml_case_flag(c->args, "calculate_per_token_loss"))
        return loss;
    if (!ml_case_flag(c->args, "apply_megatron_loss_scaling"))
        return loss / g * dp_cp;
    return loss * ml_record_member(c->args, "num_microbatches") / g * dp_cp;
}

static void play_loss_scaling(ml_case *c) {
    ml_recorded_step p = { .recipe = { .num = ml_record_algo() } };
    const ml_json *want = ml_json_get(c->out, "log_values");
    const double *logged = ml_record_row(c, want);
    double *divisor;

    if (ml_record_member(c->args, "cp_size") != 1.0)
        return; /* several ranks */
    p.recipe.num.value_clip = ml_record_member(c->args, "value_clip");
    p.recipe.num.calculate_per_token_loss =
        ml_case_flag(c->args, "calculate_per_token_loss");
    ml_record_batch_init(&p.b, c, ml_json_get(c->args, "values"), "loss_masks");
    ml_record_column(&p.b, c, "values", offsetof(miles_sample, old_value));
    ml_record_column(&p.b, c, "returns", offsetof(miles_sample, returns));
    critic_outputs(&p, c, NULL, true);
    if (!ml_recorded_step_run(&p, c, &ml_loss_value,
                              ml_json_get(c->args, "rollout_mask_sums")))
        return;
    divisor = ML_NEW(&c->arena, double, p.b.of.n + 1);
    ml_record_expect(
        c,
        ml_record_near(ml_divisors(divisor, &p.b.of, p.recipe.num.calculate_per_token_loss),
                       logged[0], f64),
        "another count");
    ml_record_expect(
        c, ml_record_near(ml_recorded_step_metric(&p, "value_loss"), logged[1], f32),
        "another value_loss");
    ml_record_expect(
        c, ml_record_near(ml_recorded_step_metric(&p, "value_clipfrac"), logged[2], f32),
        "another value_clipfrac");
    ml_record_equal(c, scaled(c, p.loss), ml_json_get(c->out, "loss"), f32, "loss");
}

static void play_sft(ml_case *c) {
    ml_recorded_step p = { .recipe = { .num = ml_record_algo() } };

    p.recipe.num.calculate_per_token_loss =
        ml_case_flag(c->args, "calculate_per_token_loss");
    ml_record_batch_init(&p.b, c, ml_json_get(c->args, "loss_masks"), "loss_masks");
    ml_recorded_step_log_probs(&p, c);
    if (!ml_recorded_step_run(&p, c, &ml_loss_sft,
                              ml_json_get(c->args, "rollout_mask_sums")))
        return;
    ml_record_equal(c, p.loss, ml_json_get(c->out, "loss"), f32, "loss");
    ml_recorded_step_equal(c, &p, p.d_log_prob, ml_json_get(c->out, "grad_log_probs"), f32,
                           "grad_log_probs");
}

/* x is minus the log-prob of a fine-tuning step, which is nothing but its reduction. */
static void play_reduce(ml_case *c) {
    ml_recorded_step p = { .recipe = { .num = ml_record_algo() } };
    const ml_json *rank = ml_json_get(c->out, "per_cp_rank")->child, *x;
    const double *rollout = ml_record_row(c, ml_json_get(c->args, "rollout_ids"));
    const double *grad = ml_record_row(c, ml_json_get(rank, "grad"));
    bool masked_nonfinite = false;
    int64_t at = 0;

    if (ml_record_member(c->args, "cp_size") != 1.0)
        return; /* several ranks */
    p.recipe.num.calculate_per_token_loss =
        ml_case_flag(c->args, "calculate_per_token_loss");
    ml_record_batch_init(&p.b, c, ml_json_get(c->args, "x"), "loss_masks");
    x = ml_json_get(c->args, "x")->child;
    for (int64_t i = 0; i < p.b.of.n; i++, x = x->next) {
        double *lp = ml_record_row(c, x);
        for (int64_t t = 0; t < p.b.sample[i].n; t++) {
            masked_nonfinite |= !isfinite(lp[t]) && !p.b.sample[i].mask[t];
            lp[t] = -lp[t];
        }
        p.b.sample[i].log_prob = lp;
        if (rollout)
            p.b.sample[i].rollout = (int64_t)rollout[i];
    }
    if (!ml_recorded_step_run(&p, c, &ml_loss_sft, NULL))
        return;
    if (!masked_nonfinite) /* there Miles' reduction is NaN, and ours does not look */
        ml_record_equal(c, p.loss, ml_json_get(rank, "value"), f64, "value");
    for (int64_t i = 0; i < p.b.of.n; i++)
        for (int64_t t = 0; t < p.b.sample[i].n; t++, at++)
            ml_record_expect(c, ml_record_near(-p.d_log_prob[i][t], grad[at], f64),
                             "another derivative");
}

static void play_mask_sums(ml_case *c) {
    const double *id = ml_record_row(c, ml_json_get(c->args, "rollout_ids"));
    const double *want = ml_record_row(c, ml_json_get(c->out, "rollout_mask_sums"));
    double *got;
    ml_record_batch b;

    ml_record_batch_init(&b, c, ml_json_get(c->args, "loss_masks"), "loss_masks");
    got = ML_NEW(&c->arena, double, b.of.n + 1);
    for (int64_t i = 0; i < b.of.n; i++)
        b.sample[i].rollout = (int64_t)id[i];
    ml_divisors(got, &b.of, false);
    for (int64_t i = 0; i < b.of.n; i++)
        ml_record_expect(c, got[i] == (want[i] > 1.0 ? want[i] : 1.0), "another sum");
}

/* --- metrics of a step ------------------------------------------------------------------ */

/* Micro-batches and ranks are one list of numbers here. */
static void play_aggregate(ml_case *c) {
    const ml_json *keys = ml_json_get(c->args, "keys")->child;
    const ml_json *ranks = ml_json_get(c->args, "values");
    double divide_by = ml_record_member(c->args, "num_rollouts"), count = 0.0;
    double factor = isnan(divide_by) ? ml_record_member(c->args, "cp_size") : 1.0;
    int64_t n = 0, n_key = ml_json_get(c->args, "keys")->n;
    double *number_of = ML_NEW(&c->arena, double, 10000);

    for (const ml_json *rank = ranks->child; rank; rank = rank->next)
        for (const ml_json *micro = rank->child; micro; micro = micro->next, n++) {
            const double *v = ml_record_row(c, micro);
            count += v[0];
            memcpy(number_of + n * n_key, v + 1, (size_t)n_key * sizeof *v);
        }
    if (isnan(divide_by))
        divide_by = count;
    for (int64_t k = 0; k < n_key; k++, keys = keys->next) {
        const char *name = ml_record_text(c, keys);
        ml_record_equal(c, factor * ml_fold(number_of + k, n_key, n, NULL, divide_by),
                        ml_json_get(c->out, name), f32, name);
    }
}

#define PLAYS(test, play)                                                                  \
    static void test(void) {                                                               \
        ml_test_cases(#test ".jsonl", play);                                               \
    }
PLAYS(kl, play_kl)
PLAYS(policy_loss, play_policy_loss)
PLAYS(gspo_kl, play_gspo_kl)
PLAYS(opsm, play_opsm)
PLAYS(ess, play_ess)
PLAYS(value_loss, play_value_loss)
PLAYS(loss_scaling, play_loss_scaling)
PLAYS(sft_loss, play_sft)
PLAYS(reduce, play_reduce)
PLAYS(rollout_mask_sums, play_mask_sums)
PLAYS(aggregate_train_losses, play_aggregate)

static const ml_test tests[] = {
    { "KL estimates are Miles'", kl },
    { "policy losses are Miles'", policy_loss },
    { "GSPO's KL is Miles'", gspo_kl },
    { "off-policy sequence masks are Miles'", opsm },
    { "effective sample sizes are Miles'", ess },
    { "value losses are Miles'", value_loss },
    { "loss scaling is Miles'", loss_scaling },
    { "SFT losses are Miles'", sft_loss },
    { "loss reduction is Miles'", reduce },
    { "mask sums of rollouts are Miles'", rollout_mask_sums },
    { "aggregated train losses are Miles'", aggregate_train_losses },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
