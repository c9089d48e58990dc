/* Losses, corrections and reductions against what Miles' own code gave: every one-rank case
 * of the recordings. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/exp.h"
#include "rl/advantage/advantages.h"
#include "rl/edges.h"
#include "rl/loss/kl.h"
#include "rl/loss/step_loss.h"
#include "rl/loss/surrogate.h"
#include "rl/reduce/divisors.h"
#include "tests/support/recording.h"
#include "tests/support/test.h"

/* Recorded in f64, in f32, and in f32 behind a softmax, a long sum or a large exponent. */
static const ml_tolerance f64 = { 1e-9, 1e-12 }, f32 = { 1e-5, 2e-6 },
                          loose = { 1e-4, 1e-5 };

static double number(const ml_json *from, const char *key) {
    return ml_record_number(ml_json_get(from, key));
}

static int32_t word(ml_case *c, const ml_json *from, const char *key,
                    const char *const *words) {
    const char *text = ml_record_text(c, ml_json_get(from, key));
    int32_t i = 0;

    while (words[i] && strcmp(words[i], text) != 0)
        i++;
    return words[i] ? i : 0;
}

static const char *const kl_types[] = { "k1", "k2", "k3", "low_var_kl", NULL };
static const char *const levels[] = { "token", "sequence", "geometric", NULL };
static const char *const modes[] = { "truncate", "clip", "mask", NULL };

/* --- single tokens ----------------------------------------------------------------- */

static void play_kl(ml_case *c) {
    const ml_json *log_probs = ml_json_get(c->args, "log_probs");
    const double *lp = ml_record_row(c, log_probs);
    const double *base = ml_record_row(c, ml_json_get(c->args, "log_probs_base"));
    const double *old = ml_record_row(c, ml_json_get(c->args, "old_log_probs")), *want;
    miles_kl type = (miles_kl)word(c, c->args, "kl_loss_type", kl_types);
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

    algo.eps_clip = number(c->args, "eps_clip");
    algo.eps_clip_high = number(c->args, "eps_clip_high");
    algo.eps_clip_c = number(c->args, "eps_clip_c");
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

/* A step whose totals are sums, as the recordings have them before any scaling. */
typedef struct played {
    ml_recipe recipe;
    ml_record_batch b;
    ml_step_loss step;
    double **d_log_prob, **d_entropy, **d_value;
    double loss, metric[ML_STEP_METRIC_MAX];
} played;

static bool play_step(played *p, ml_case *c, const miles_loss *loss,
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
            &p->step, i, (ml_model_says){ s->log_prob, s->entropy, s->value },
            (ml_derivatives){ p->d_log_prob[i], p->d_entropy[i], p->d_value[i] }, &err);
    }
    if (st != ML_OK)
        ml_case_fail(c, err.msg);
    else
        ml_step_loss_totals(&p->step, &p->loss, p->metric);
    return st == ML_OK;
}

static double metric_of(const played *p, const char *name) {
    for (int32_t k = 0; k < p->step.n_metric; k++)
        if (strcmp(p->step.metric[k].name, name) == 0)
            return p->metric[k];
    return (double)NAN;
}

static void equal_columns(ml_case *c, const played *p, double *const *got,
                          const ml_json *want, ml_tolerance t, const char *what) {
    const ml_json *row = want ? want->child : NULL;

    for (int64_t i = 0; i < p->b.of.n && row; i++, row = row->next)
        ml_record_equal_row(c, got[i], p->b.sample[i].n, row, t, what);
}

/* Advantages of 1 for all tokens; the caller sets its own where they matter. */
static void ones(played *p, ml_case *c) {
    for (int64_t i = 0; i < p->b.of.n; i++) {
        double *a = ML_NEW(&c->arena, double, p->b.sample[i].n + 1);
        for (int64_t t = 0; t < p->b.sample[i].n; t++)
            a[t] = 1.0;
        p->b.sample[i].advantage = a;
    }
}

/* Without clipping the loss is -ratio A.  With A = c / ratio its derivative is that of the
 * sum of c kl, which is what was recorded (there over masked tokens as well). */
static void play_gspo_kl(ml_case *c) {
    played p = { .recipe = { .num = ml_record_algo() } };
    const ml_json *upstream = ml_json_get(c->args, "upstream");
    const ml_json *want = ml_json_get(c->out, "grad_log_probs");
    const ml_json *kl = ml_json_get(c->out, "ppo_kl");
    const double *flat = ml_record_row(c, kl);
    int64_t at = 0;

    p.recipe.num.eps_clip = p.recipe.num.eps_clip_high = 1e30;
    p.recipe.num.sequence_ratio = true;
    p.recipe.num.calculate_per_token_loss = true;
    ml_record_batch_init(&p.b, c, upstream, "loss_masks");
    ml_record_column(&p.b, c, "log_probs", offsetof(miles_sample, log_prob));
    ml_record_column(&p.b, c, "old_log_probs", offsetof(miles_sample, old_log_prob));
    ml_record_column(&p.b, c, "upstream", offsetof(miles_sample, advantage));
    upstream = upstream->child;
    want = want->child;
    for (int64_t i = 0; i < p.b.of.n; i++, upstream = upstream->next) {
        double *a = ml_record_row(c, upstream);
        for (int64_t t = 0; t < p.b.sample[i].n; t++)
            a[t] *= ml_exp(flat[at + t]); /* c / ratio, the ratio being exp(-kl) */
        at += p.b.sample[i].n;
        p.b.sample[i].advantage = a;
    }
    if (!play_step(&p, c, &ml_loss_policy, NULL))
        return;
    at = 0;
    upstream = ml_json_get(c->args, "upstream")->child;
    for (int64_t i = 0; i < p.b.of.n; i++, want = want->next, upstream = upstream->next) {
        const miles_sample *s = &p.b.sample[i];
        const double *w = ml_record_row(c, want), *up = ml_record_row(c, upstream);
        double all = 0.0, trained = 0.0, n = 0.0;
        for (int64_t t = 0; t < s->n; t++) {
            all += up[t];
            trained += s->mask[t] ? up[t] : 0.0;
            n += s->mask[t];
        }
        for (int64_t t = 0; t < s->n; t++)
            ml_record_expect(c,
                             ml_record_near(p.d_log_prob[i][t] * all, w[t] * trained,
                                            (ml_tolerance){ 1e-8, 1e-9 }),
                             "another derivative");
        if (n > 0.0)
            ml_record_expect(
                c,
                ml_record_near(p.step.loss_number[i * p.step.n_loss_metric + 3],
                               n * flat[at], f64),
                "another ppo_kl");
        at += s->n;
    }
}

/* The derivative of a token is 0 where the sequence is left out. */
static void play_opsm(ml_case *c) {
    played p = { .recipe = { .num = ml_record_algo() } };
    const double *keep = ml_record_row(c, ml_json_get(c->out, "opsm_mask"));
    int64_t at = 0;

    p.recipe.num.eps_clip = p.recipe.num.eps_clip_high = 1e30;
    p.recipe.num.use_opsm = true;
    p.recipe.num.opsm_delta = number(c->args, "opsm_delta");
    ml_record_batch_init(&p.b, c, ml_json_get(c->args, "log_probs"), "loss_masks");
    ml_record_column(&p.b, c, "log_probs", offsetof(miles_sample, log_prob));
    ml_record_column(&p.b, c, "old_log_probs", offsetof(miles_sample, old_log_prob));
    ml_record_column(&p.b, c, "advantages", offsetof(miles_sample, advantage));
    if (!play_step(&p, c, &ml_loss_policy, NULL))
        return;
    ml_record_equal(c, metric_of(&p, "opsm_clipfrac"), ml_json_get(c->out, "opsm_clipfrac"),
                    f32, "opsm_clipfrac");
    for (int64_t i = 0; i < p.b.of.n; i++)
        for (int64_t t = 0; t < p.b.sample[i].n; t++, at++)
            if (p.b.sample[i].mask[t] && p.b.sample[i].advantage[t] != 0.0)
                ml_record_expect(c, (p.d_log_prob[i][t] != 0.0) == (keep[at] == 1.0),
                                 "another opsm_mask");
}

/* The recorded ppo_kl is old - new: old is 0, new is -ppo_kl. */
static void play_ess(ml_case *c) {
    played p = { .recipe = { .num = ml_record_algo() } };
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
    if (play_step(&p, c, &ml_loss_policy, NULL))
        ml_record_equal(c, metric_of(&p, "ess_ratio"), ml_json_get(c->out, "ess_ratio"),
                        loose, "ess_ratio");
}

/* The critic's outputs stand one before the response's tokens. */
static void critic_outputs(played *p, ml_case *c, const double *flat, bool ragged) {
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
    played p = { .recipe = { .num = ml_record_algo() } };
    const ml_json *length = ml_json_get(c->args, "total_lengths")->child;
    const ml_json *want = ml_json_get(c->out, "grad_value_outputs");
    const double *flat = ml_record_row(c, want);

    p.recipe.num.value_clip = number(c->args, "value_clip");
    p.recipe.num.calculate_per_token_loss =
        ml_case_flag(c->args, "calculate_per_token_loss");
    ml_record_batch_init(&p.b, c, ml_json_get(c->args, "values"), "loss_masks");
    ml_record_column(&p.b, c, "values", offsetof(miles_sample, old_value));
    ml_record_column(&p.b, c, "returns", offsetof(miles_sample, returns));
    critic_outputs(&p, c, ml_record_row(c, ml_json_get(c->args, "value_outputs")), false);
    if (!play_step(&p, c, &ml_loss_value, ml_json_get(c->args, "rollout_mask_sums")))
        return;
    ml_record_equal(c, p.loss, ml_json_get(c->out, "loss"), f32, "loss");
    want = ml_json_get(c->out, "metrics");
    ml_record_equal(c, metric_of(&p, "value_loss"), ml_json_get(want, "value_loss"), f32,
                    "value_loss");
    ml_record_equal(c, metric_of(&p, "value_clipfrac"), ml_json_get(want, "value_clipfrac"),
                    f32, "value_clipfrac");
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
    double g = number(c->args, "num_rollouts");
    double dp_cp = number(c->args, "dp_cp_size");

    if (isnan(g))
        g = number(c->args, "dynamic_global_batch_size");
    if (isnan(g))
        g = number(c->args, "global_batch_size");
    if (ml_case_flag(c->args, "multi_lora"))
        g = 1.0;
    if (ml_case_flag(c->args, "calculate_per_token_loss"))
        return loss;
    if (!ml_case_flag(c->args, "apply_megatron_loss_scaling"))
        return loss / g * dp_cp;
    return loss * number(c->args, "num_microbatches") / g * dp_cp;
}

static void play_loss_scaling(ml_case *c) {
    played p = { .recipe = { .num = ml_record_algo() } };
    const ml_json *want = ml_json_get(c->out, "log_values");
    const double *logged = ml_record_row(c, want);
    double *divisor;

    if (number(c->args, "cp_size") != 1.0)
        return; /* several ranks */
    p.recipe.num.value_clip = number(c->args, "value_clip");
    p.recipe.num.calculate_per_token_loss =
        ml_case_flag(c->args, "calculate_per_token_loss");
    ml_record_batch_init(&p.b, c, ml_json_get(c->args, "values"), "loss_masks");
    ml_record_column(&p.b, c, "values", offsetof(miles_sample, old_value));
    ml_record_column(&p.b, c, "returns", offsetof(miles_sample, returns));
    critic_outputs(&p, c, NULL, true);
    if (!play_step(&p, c, &ml_loss_value, ml_json_get(c->args, "rollout_mask_sums")))
        return;
    divisor = ML_NEW(&c->arena, double, p.b.of.n + 1);
    ml_record_expect(
        c,
        ml_record_near(ml_divisors(divisor, &p.b.of, p.recipe.num.calculate_per_token_loss),
                       logged[0], f64),
        "another count");
    ml_record_expect(c, ml_record_near(metric_of(&p, "value_loss"), logged[1], f32),
                     "another value_loss");
    ml_record_expect(c, ml_record_near(metric_of(&p, "value_clipfrac"), logged[2], f32),
                     "another value_clipfrac");
    ml_record_equal(c, scaled(c, p.loss), ml_json_get(c->out, "loss"), f32, "loss");
}

static void log_probs_of_out(played *p, ml_case *c) {
    const ml_json *row = ml_json_get(c->out, "log_probs")->child;

    for (int64_t i = 0; i < p->b.of.n; i++, row = row->next)
        p->b.sample[i].log_prob = ml_record_row(c, row);
}

static void play_sft(ml_case *c) {
    played p = { .recipe = { .num = ml_record_algo() } };

    p.recipe.num.calculate_per_token_loss =
        ml_case_flag(c->args, "calculate_per_token_loss");
    ml_record_batch_init(&p.b, c, ml_json_get(c->args, "loss_masks"), "loss_masks");
    log_probs_of_out(&p, c);
    if (!play_step(&p, c, &ml_loss_sft, ml_json_get(c->args, "rollout_mask_sums")))
        return;
    ml_record_equal(c, p.loss, ml_json_get(c->out, "loss"), f32, "loss");
    equal_columns(c, &p, p.d_log_prob, ml_json_get(c->out, "grad_log_probs"), f32,
                  "grad_log_probs");
}

/* x is minus the log-prob of a fine-tuning step, which is nothing but its reduction. */
static void play_reduce(ml_case *c) {
    played p = { .recipe = { .num = ml_record_algo() } };
    const ml_json *rank = ml_json_get(c->out, "per_cp_rank")->child, *x;
    const double *rollout = ml_record_row(c, ml_json_get(c->args, "rollout_ids"));
    const double *grad = ml_record_row(c, ml_json_get(rank, "grad"));
    bool masked_nonfinite = false;
    int64_t at = 0;

    if (number(c->args, "cp_size") != 1.0)
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
    if (!play_step(&p, c, &ml_loss_sft, NULL))
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

/* --- corrections --------------------------------------------------------------------- */

static void set_mis(miles_algo *a, ml_case *c, const ml_json *from) {
    a->use_tis = ml_case_flag(from, "use_tis");
    a->use_rs = ml_case_flag(from, "use_rs");
    a->tis_batch_normalize = ml_case_flag(from, "tis_batch_normalize");
    a->tis_level = word(c, from, "tis_level", levels);
    a->rs_level = word(c, from, "rs_level", levels);
    a->tis_mode = word(c, from, "tis_mode", modes);
    a->tis_lower_bound = number(from, "tis_lower_bound");
    a->tis_upper_bound = number(from, "tis_upper_bound");
    a->rs_lower_bound = number(from, "rs_lower_bound");
    a->rs_upper_bound = number(from, "rs_upper_bound");
    a->rs_veto_threshold = number(from, "rs_veto_threshold");
}

/* The sum of a recorded column over the trained tokens of all samples. */
static double trained_sum(ml_case *c, const ml_record_batch *b, const ml_json *flat) {
    const double *x = ml_record_row(c, flat);
    double sum = 0.0;
    int64_t at = 0;

    for (int64_t i = 0; i < b->of.n; i++)
        for (int64_t t = 0; t < b->sample[i].n; t++, at++)
            if (b->sample[i].mask[t])
                sum += x[at];
    return sum;
}

static void equal_correction(ml_case *c, const ml_record_batch *b, const miles_algo *algo,
                             const miles_correction *row, double *const *weight,
                             uint8_t *const *kept, const double *number_of) {
    const ml_json *want = ml_json_get(c->out, "metrics");
    const ml_json *mask = ml_json_get(c->out, "modified_masks");
    const double *before = ml_record_row(c, ml_json_get(c->args, "pg_loss"));
    const double *after = ml_record_row(c, ml_json_get(c->out, "pg_loss"));
    miles_metric m[MILES_METRIC_MAX];
    int32_t n = row->metrics(algo, m);
    int64_t at = 0;

    mask = mask ? mask->child : NULL;
    for (int64_t i = 0; i < b->of.n; i++) {
        const double *keep = ml_record_row(c, mask);
        for (int64_t t = 0; t < b->sample[i].n; t++, at++) {
            ml_record_expect(c, ml_record_near(before[at] * weight[i][t], after[at], f64),
                             "another weight");
            if (keep)
                ml_record_expect(c, kept[i][t] == (keep[t] != 0.0), "another mask");
        }
        mask = mask ? mask->next : NULL;
    }
    ml_record_expect(c, want->n == n, "another number of metrics");
    for (int32_t k = 0; k < n; k++) {
        const ml_json *column = ml_json_get(want, m[k].name);
        double got = 0.0;
        for (int64_t i = 0; i < b->of.n; i++)
            got += number_of[i * n + k];
        if (!column)
            ml_case_fail(c, m[k].name);
        else if (!ml_record_near(got, trained_sum(c, b, column), f64))
            ml_test_fail(__FILE__, __LINE__, "%s:%lld: %s is %.17g, not %.17g", c->path,
                         (long long)c->line, m[k].name, got, trained_sum(c, b, column));
    }
}

static void play_correction(ml_case *c, const miles_correction *row,
                            const miles_algo *algo) {
    ml_record_batch b;
    double **weight, *metric;
    uint8_t **kept;
    miles_error why = { "" };
    int failed;

    ml_record_batch_init(&b, c, ml_json_get(c->args, "loss_masks"), "loss_masks");
    ml_record_column(&b, c, "train_log_probs", offsetof(miles_sample, old_log_prob));
    ml_record_column(&b, c, "rollout_log_probs", offsetof(miles_sample, rollout_log_prob));
    weight = ml_columns_new(&c->arena, &b.of);
    kept = ML_NEW(&c->arena, uint8_t *, b.of.n + 1);
    metric = ML_NEW(&c->arena, double, b.of.n *MILES_METRIC_MAX + 1);
    for (int64_t i = 0; i < b.of.n; i++) {
        kept[i] = ML_NEW(&c->arena, uint8_t, b.sample[i].n + 1);
        for (int64_t t = 0; t < b.sample[i].n; t++) {
            weight[i][t] = 1.0;
            kept[i][t] = b.sample[i].mask[t];
        }
    }
    failed = row->run(&b.of, algo, weight, kept, metric, &why);
    ml_record_expect(c, (failed != 0) == (ml_json_get(c->out, "error") != NULL), "failure");
    if (!failed)
        equal_correction(c, &b, algo, row, weight, kept, metric);
}

static void play_tis_like(ml_case *c, const miles_correction *row) {
    miles_algo algo = ml_record_algo();

    algo.tis_clip = number(c->args, "tis_clip");
    algo.tis_clip_low = number(c->args, "tis_clip_low");
    play_correction(c, row, &algo);
}

static void play_tis(ml_case *c) {
    play_tis_like(c, &ml_correction_tis);
}

static void play_icepop(ml_case *c) {
    play_tis_like(c, &ml_correction_icepop);
}

static void play_mis(ml_case *c) {
    miles_algo algo = ml_record_algo();

    set_mis(&algo, c, c->args);
    play_correction(c, &ml_correction_mis, &algo);
}

/* --- the policy loss, from logits ------------------------------------------------------ */

static void set_policy(ml_recipe *r, ml_case *c, const ml_json *k) {
    static const char *const names[] = { "tis", "icepop", "mis", NULL };
    static const miles_correction *const rows[] = { &ml_correction_tis,
                                                    &ml_correction_icepop,
                                                    &ml_correction_mis };
    const char *estimator = ml_record_text(c, ml_json_get(k, "advantage_estimator"));

    r->num = ml_record_algo();
    if (ml_json_get(k, "tis_level"))
        set_mis(&r->num, c, k);
    r->num.use_tis = ml_case_flag(k, "use_tis");
    r->num.eps_clip = number(k, "eps_clip");
    r->num.eps_clip_high = number(k, "eps_clip_high");
    r->num.eps_clip_c = number(k, "eps_clip_c");
    r->num.entropy_coef = number(k, "entropy_coef");
    r->num.kl_loss_coef = number(k, "kl_loss_coef");
    r->num.kl_loss_type = word(c, k, "kl_loss_type", kl_types);
    r->num.tis_clip = number(k, "tis_clip");
    r->num.tis_clip_low = number(k, "tis_clip_low");
    r->num.opsm_delta = number(k, "opsm_delta");
    r->num.use_kl_loss = ml_case_flag(k, "use_kl_loss");
    r->num.use_unbiased_kl = ml_case_flag(k, "use_unbiased_kl");
    r->num.use_opsm = ml_case_flag(k, "use_opsm");
    r->num.use_rollout_logprobs = ml_case_flag(k, "use_rollout_logprobs");
    r->num.calculate_per_token_loss = ml_case_flag(k, "calculate_per_token_loss");
    r->num.sequence_ratio = strcmp(estimator, "gspo") == 0;
    r->num.use_entropy =
        r->num.entropy_coef != 0.0 || ml_case_flag(k, "observe_training_entropy");
    if (ml_case_flag(k, "use_tis") || ml_case_flag(k, "get_mismatch_metrics"))
        r->correction = rows[word(c, k, "correction", names)];
    if (ml_str_is(ml_json_get(k, "pg_loss_reducer")->text, "drgrpo"))
        r->reducer = &ml_reducer_drgrpo;
}

/* One row of logits, as the model would hand it to the loss. */
typedef struct softmax {
    double *p, *x; /* [n] probabilities; logits over the temperature */
    int32_t n;
    double entropy, mean; /* mean of x under p */
} softmax;

static softmax softmax_of(ml_case *c, const ml_json *logits, double temperature) {
    softmax s = { .n = logits->n };
    double most = -(double)INFINITY, sum = 0.0;

    s.x = ml_record_row(c, logits);
    s.p = ML_NEW(&c->arena, double, s.n + 1);
    for (int32_t v = 0; v < s.n; v++) {
        if (temperature > 0.0)
            s.x[v] /= temperature;
        most = s.x[v] > most ? s.x[v] : most;
    }
    for (int32_t v = 0; v < s.n; v++)
        sum += s.p[v] = exp(s.x[v] - most);
    for (int32_t v = 0; v < s.n; v++) {
        s.p[v] /= sum;
        s.mean += s.p[v] * s.x[v];
    }
    s.entropy = most + log(sum) - s.mean;
    return s;
}

/* The row of logits that predicts response token t of sample i. */
static const ml_json *logits_row(ml_case *c, const ml_json *logits, int64_t i, int64_t t,
                                 int64_t n) {
    const ml_json *length = ml_json_get(c->args, "total_lengths")->child;
    const ml_json *row = ml_json_get(logits, "logits") ? NULL : logits->child;
    int64_t skip = 0;

    for (; i > 0; i--, length = length->next)
        skip += (int64_t)ml_record_number(length);
    skip += (int64_t)ml_record_number(length) - n - 1 + t;
    for (; skip > 0; skip--)
        row = row->next;
    return row;
}

static int32_t token_at(ml_case *c, int64_t i, int64_t t, int64_t n) {
    const ml_json *row = ml_json_get(c->args, "tokens")->child;
    const ml_json *token;

    for (; i > 0; i--)
        row = row->next;
    token = row->child;
    for (int64_t skip = row->n - n + t; skip > 0; skip--)
        token = token->next;
    return (int32_t)ml_record_number(token);
}

static void entropies(played *p, ml_case *c, double temperature) {
    for (int64_t i = 0; i < p->b.of.n; i++) {
        int64_t n = p->b.sample[i].n;
        double *h = ML_NEW(&c->arena, double, n + 1);
        for (int64_t t = 0; t < n; t++)
            h[t] = softmax_of(c, logits_row(c, ml_json_get(c->args, "logits"), i, t, n),
                              temperature)
                       .entropy;
        p->b.sample[i].entropy = h;
    }
}

/* Both derivatives, carried on to the logits, as they were recorded. */
static void equal_logit_gradients(played *p, ml_case *c, double temperature) {
    for (int64_t i = 0; i < p->b.of.n; i++)
        for (int64_t t = 0, n = p->b.sample[i].n; t < n; t++) {
            const ml_json *logits = logits_row(c, ml_json_get(c->args, "logits"), i, t, n);
            softmax s = softmax_of(c, logits, temperature);
            int32_t target = token_at(c, i, t, n);
            double *g = ML_NEW(&c->arena, double, s.n + 1);
            for (int32_t v = 0; v < s.n; v++) {
                g[v] = p->d_log_prob[i][t] * ((v == target ? 1.0 : 0.0) - s.p[v]) -
                       p->d_entropy[i][t] * s.p[v] * (s.x[v] - s.mean);
                g[v] /= temperature > 0.0 ? temperature : 1.0;
            }
            ml_record_equal_row(c, g, s.n,
                                logits_row(c, ml_json_get(c->out, "grad_logits"), i, t, n),
                                loose, "grad_logits");
        }
}

static void play_policy_full(ml_case *c) {
    const ml_json *k = ml_json_get(c->args, "config"), *want;
    double temperature = number(k, "rollout_temperature");
    played p = { 0 };

    set_policy(&p.recipe, c, k);
    ml_record_batch_init(&p.b, c, ml_json_get(c->args, "loss_masks"), "loss_masks");
    log_probs_of_out(&p, c);
    ml_record_column(&p.b, c, "log_probs", offsetof(miles_sample, old_log_prob));
    ml_record_column(&p.b, c, "ref_log_probs", offsetof(miles_sample, ref_log_prob));
    ml_record_column(&p.b, c, "rollout_log_probs",
                     offsetof(miles_sample, rollout_log_prob));
    ml_record_column(&p.b, c, "advantages", offsetof(miles_sample, advantage));
    ml_record_column(&p.b, c, "opd_reverse_kl", offsetof(miles_sample, opd_reverse_kl));
    for (int64_t i = 0; ml_case_flag(k, "skip_actor_forward_only") && i < p.b.of.n; i++)
        p.b.sample[i].old_log_prob = p.b.sample[i].log_prob;
    entropies(&p, c, temperature);
    if (!play_step(&p, c, &ml_loss_policy, ml_json_get(c->args, "rollout_mask_sums")))
        return;
    want = ml_json_get(c->out, "metrics");
    ml_record_equal(c, p.loss, ml_json_get(c->out, "loss"), loose, "loss");
    ml_record_expect(c, want->n == p.step.n_metric + 1, "another number of metrics");
    for (int32_t m = 0; m < p.step.n_metric; m++)
        ml_record_equal(c, p.metric[m], ml_json_get(want, p.step.metric[m].name), loose,
                        p.step.metric[m].name);
    equal_columns(c, &p, p.d_log_prob, ml_json_get(c->out, "grad_log_probs"), loose,
                  "grad_log_probs");
    equal_logit_gradients(&p, c, temperature);
}

/* --- metrics of a step ------------------------------------------------------------------ */

/* Micro-batches and ranks are one list of numbers here. */
static void play_aggregate(ml_case *c) {
    const ml_json *keys = ml_json_get(c->args, "keys")->child;
    const ml_json *ranks = ml_json_get(c->args, "values");
    double divide_by = number(c->args, "num_rollouts"), count = 0.0;
    double factor = isnan(divide_by) ? number(c->args, "cp_size") : 1.0;
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
PLAYS(tis, play_tis)
PLAYS(icepop, play_icepop)
PLAYS(mis, play_mis)
PLAYS(policy_loss_full, play_policy_full)
PLAYS(aggregate_train_losses, play_aggregate)

static const ml_test tests[] = {
    { "kl", kl },
    { "policy_loss", policy_loss },
    { "gspo_kl", gspo_kl },
    { "opsm", opsm },
    { "ess", ess },
    { "value_loss", value_loss },
    { "loss_scaling", loss_scaling },
    { "sft_loss", sft_loss },
    { "reduce", reduce },
    { "rollout_mask_sums", rollout_mask_sums },
    { "tis", tis },
    { "icepop", icepop },
    { "mis", mis },
    { "policy_loss_full", policy_loss_full },
    { "aggregate_train_losses", aggregate_train_losses },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
