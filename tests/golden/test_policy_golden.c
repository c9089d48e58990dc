/* Corrections and the whole policy loss, from logits, against what Miles' own code gave:
 * every one-rank case of the recordings. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "rl/learn/advantage/advantages.h"
#include "rl/learn/advantage/reward_norm.h"
#include "rl/builtins.h"
#include "rl/rollout/reward_shaping.h"
#include "tests/support/recorded_step.h"
#include "tests/support/test.h"

/* Recorded in f64; in f32 behind a softmax. */
static const ml_tolerance f64 = { 1e-9, 1e-12 }, loose = { 1e-4, 1e-5 };

static const char *const kl_types[] = { "k1", "k2", "k3", "low_var_kl", NULL };
static const char *const levels[] = { "token", "sequence", "geometric", NULL };
static const char *const modes[] = { "truncate", "clip", "mask", NULL };

/* --- corrections --------------------------------------------------------------------- */

static void set_mis(miles_algo *a, ml_case *c, const ml_json *from) {
    a->use_tis = ml_case_flag(from, "use_tis");
    a->use_rs = ml_case_flag(from, "use_rs");
    a->tis_batch_normalize = ml_case_flag(from, "tis_batch_normalize");
    a->tis_level = ml_record_word(c, from, "tis_level", levels);
    a->rs_level = ml_record_word(c, from, "rs_level", levels);
    a->tis_mode = ml_record_word(c, from, "tis_mode", modes);
    a->tis_lower_bound = ml_record_member(from, "tis_lower_bound");
    a->tis_upper_bound = ml_record_member(from, "tis_upper_bound");
    a->rs_lower_bound = ml_record_member(from, "rs_lower_bound");
    a->rs_upper_bound = ml_record_member(from, "rs_upper_bound");
    a->rs_veto_threshold = ml_record_member(from, "rs_veto_threshold");
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

    algo.tis_clip = ml_record_member(c->args, "tis_clip");
    algo.tis_clip_low = ml_record_member(c->args, "tis_clip_low");
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
    r->num.eps_clip = ml_record_member(k, "eps_clip");
    r->num.eps_clip_high = ml_record_member(k, "eps_clip_high");
    r->num.eps_clip_c = ml_record_member(k, "eps_clip_c");
    r->num.entropy_coef = ml_record_member(k, "entropy_coef");
    r->num.kl_loss_coef = ml_record_member(k, "kl_loss_coef");
    r->num.kl_loss_type = ml_record_word(c, k, "kl_loss_type", kl_types);
    r->num.tis_clip = ml_record_member(k, "tis_clip");
    r->num.tis_clip_low = ml_record_member(k, "tis_clip_low");
    r->num.opsm_delta = ml_record_member(k, "opsm_delta");
    r->num.use_kl_loss = ml_case_flag(k, "use_kl_loss");
    r->num.use_unbiased_kl = ml_case_flag(k, "use_unbiased_kl");
    r->num.use_opsm = ml_case_flag(k, "use_opsm");
    r->num.use_rollout_logprobs = ml_case_flag(k, "use_rollout_logprobs");
    r->num.calculate_per_token_loss = ml_case_flag(k, "calculate_per_token_loss");
    r->num.sequence_ratio = strcmp(estimator, "gspo") == 0;
    r->num.use_entropy =
        r->num.entropy_coef != 0.0 || ml_case_flag(k, "observe_training_entropy");
    if (ml_case_flag(k, "use_tis") || ml_case_flag(k, "get_mismatch_metrics"))
        r->correction = rows[ml_record_word(c, k, "correction", names)];
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
    const ml_json *row = logits->child;
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

static void entropies(ml_recorded_step *p, ml_case *c, double temperature) {
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
static void equal_logit_gradients(ml_recorded_step *p, ml_case *c, double temperature) {
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
    double temperature = ml_record_member(k, "rollout_temperature");
    ml_recorded_step p = { 0 };

    set_policy(&p.recipe, c, k);
    ml_record_batch_init(&p.b, c, ml_json_get(c->args, "loss_masks"), "loss_masks");
    ml_recorded_step_log_probs(&p, c);
    ml_record_column(&p.b, c, "log_probs", offsetof(miles_sample, old_log_prob));
    ml_record_column(&p.b, c, "ref_log_probs", offsetof(miles_sample, ref_log_prob));
    ml_record_column(&p.b, c, "rollout_log_probs",
                     offsetof(miles_sample, rollout_log_prob));
    ml_record_column(&p.b, c, "advantages", offsetof(miles_sample, advantage));
    ml_record_column(&p.b, c, "opd_reverse_kl", offsetof(miles_sample, opd_reverse_kl));
    for (int64_t i = 0; ml_case_flag(k, "skip_actor_forward_only") && i < p.b.of.n; i++)
        p.b.sample[i].old_log_prob = p.b.sample[i].log_prob;
    entropies(&p, c, temperature);
    if (!ml_recorded_step_run(&p, c, &ml_loss_policy,
                              ml_json_get(c->args, "rollout_mask_sums")))
        return;
    want = ml_json_get(c->out, "metrics");
    ml_record_equal(c, p.loss, ml_json_get(c->out, "loss"), loose, "loss");
    /* An entropy that was not computed is 0 there, and not reported here. */
    if (!p.recipe.num.use_entropy)
        ml_record_equal(c, 0.0, ml_json_get(want, "entropy_loss"), loose, "entropy_loss");
    ml_record_expect(c, want->n == p.step.n_metric + 1 + !p.recipe.num.use_entropy,
                     "another number of metrics");
    for (int32_t m = 0; m < p.step.n_metric; m++)
        ml_record_equal(c, p.metric[m], ml_json_get(want, p.step.metric[m].name), loose,
                        p.step.metric[m].name);
    ml_recorded_step_equal(c, &p, p.d_log_prob, ml_json_get(c->out, "grad_log_probs"),
                           loose, "grad_log_probs");
    equal_logit_gradients(&p, c, temperature);
}

/* --- the objectives of verl and TRL -------------------------------------------------------- */

/* Their means divide by n + 1e-8. */
static const ml_tolerance other = { 1e-7, 1e-9 };

static miles_algo objective_algo(void) {
    miles_algo a = ml_record_algo();

    a.eps_clip_high = 0.28;
    a.sapo_temperature_pos = 1.0;
    a.sapo_temperature_neg = 1.05;
    a.vespo_k_pos = a.vespo_lambda_neg = 2.0;
    a.vespo_lambda_pos = a.vespo_k_neg = 3.0;
    a.clip_cov_ratio = 1.0;
    a.clip_cov_lb = 0.2;
    a.clip_cov_ub = 5.0;
    a.kl_cov_ratio = 0.2;
    a.kl_cov_coef = 0.7;
    return a;
}

static void play_rloo(ml_case *c) {
    const double *reward = ml_record_row(c, ml_json_get(c->args, "rewards"));
    const double *of = ml_record_row(c, ml_json_get(c->args, "groups"));
    int64_t n = ml_json_get(c->args, "rewards")->n;
    ml_reward_row *row = ML_NEW(&c->arena, ml_reward_row, n);
    miles_sample *s = ML_NEW(&c->arena, miles_sample, n);
    const miles_sample **view = ML_NEW(&c->arena, const miles_sample *, n);
    double *centred = ML_NEW(&c->arena, double, n), *got = ML_NEW(&c->arena, double, n);
    double **at = ML_NEW(&c->arena, double *, n), *returns = ML_NEW(&c->arena, double, n);
    double **again = ML_NEW(&c->arena, double *, n);
    miles_batch b = { sizeof b, n, view };
    miles_error why = { "" };
    ml_err err = { 0 };

    for (int64_t i = 0; i < n; i++)
        row[i] = (ml_reward_row){ (int64_t)of[i], i, reward[i] };
    ml_record_expect(c, ml_rewards_normalise(centred, row, n, false, &err) == ML_OK,
                     err.msg);
    for (int64_t i = 0; i < n; i++) {
        s[i] = (miles_sample){ sizeof *s, 1, (int64_t)of[i], i, centred[i] };
        view[i] = &s[i];
        at[i] = &got[i];
        again[i] = &returns[i];
    }
    ml_record_expect(c, ml_advantage_rloo.run(&b, NULL, at, again, &why) == 0, why.text);
    ml_record_equal_row(c, got, n, ml_json_get(c->out, "advantages"), other, "advantages");
}

/* A recorded step has a denominator of 1; these objectives are means over the samples. */
static void objective_equal(ml_case *c, ml_recorded_step *p) {
    double n = (double)p->b.of.n;

    for (int64_t i = 0; i < p->b.of.n; i++)
        for (int64_t t = 0; t < p->b.sample[i].n; t++)
            p->d_log_prob[i][t] /= n;
    ml_record_equal(c, p->loss / n, ml_json_get(c->out, "loss"), other, "loss");
    ml_recorded_step_equal(c, p, p->d_log_prob, ml_json_get(c->out, "d_log_probs"), other,
                           "d_log_probs");
}

/* Samples with one reward of each of these names, a column of the arguments. */
static ml_sample **rewarded(ml_case *c, int64_t n, const char *const *key, int32_t n_key) {
    const double *of = ml_record_row(c, ml_json_get(c->args, "groups"));
    ml_sample **s = ML_NEW(&c->arena, ml_sample *, n);

    for (int64_t i = 0; i < n; i++) {
        s[i] = ML_NEW(&c->arena, ml_sample, 1);
        *s[i] = (ml_sample){ .index = i, .rollout = i, .has_reward = true };
        s[i]->group = of ? (int64_t)of[i] : 0;
        for (int32_t k = 0; k < n_key; k++) {
            double value = ml_record_row(c, ml_json_get(c->args, key[k]))[i];
            if (k == 0)
                s[i]->reward = value;
            else
                s[i]->part[s[i]->n_part++] = (ml_reward_value){ .value = value };
            if (k > 0)
                snprintf(s[i]->part[k - 1].name, sizeof s[i]->part->name, "%s", key[k]);
        }
    }
    return s;
}

static void shape(ml_case *c, const ml_reward_shaping *o, ml_sample **s, int64_t n) {
    ml_metrics metrics;
    ml_err err = { 0 };

    ml_metrics_init(&metrics, &c->arena);
    ml_record_expect(c, ml_reward_shape(o, s, n, &metrics, &c->arena, &err) == ML_OK,
                     err.msg);
}

static void play_gdpo(ml_case *c) {
    static const char *const key[] = { "reward", "format" };
    int64_t n = ml_json_get(c->args, "groups")->n;
    ml_sample **s = rewarded(c, n, key, 2);
    double *got = ML_NEW(&c->arena, double, n);

    shape(c,
          &(ml_reward_shaping){ .key = key,
                                .weight = ml_record_row(c, ml_json_get(c->args, "weights")),
                                .n_key = 2 },
          s, n);
    for (int64_t i = 0; i < n; i++)
        got[i] = s[i]->shaped;
    ml_record_equal_row(c, got, n, ml_json_get(c->out, "advantages"), other, "advantages");
}

static void play_overlong(ml_case *c) {
    const double *length = ml_record_row(c, ml_json_get(c->args, "lengths"));
    int64_t n = ml_json_get(c->args, "lengths")->n;
    ml_sample **s = rewarded(c, n, NULL, 0);
    double *got = ML_NEW(&c->arena, double, n);

    for (int64_t i = 0; i < n; i++)
        s[i]->n_response = (int32_t)length[i];
    shape(c,
          &(ml_reward_shaping){ .max_response = (int64_t)ml_record_member(c->args, "max"),
                                .overlong_buffer =
                                    (int64_t)ml_record_member(c->args, "buffer"),
                                .overlong_factor = 1 },
          s, n);
    for (int64_t i = 0; i < n; i++)
        got[i] = s[i]->reward;
    ml_record_equal_row(c, got, n, ml_json_get(c->out, "rewards"), other, "rewards");
}

/* Those whose loss is that of GRPO: GSPO's ratio, and reductions. */
static bool choose_reduction(ml_recipe *r, const char *kind) {
    bool dapo = strcmp(kind, "dapo") == 0, drgrpo = strcmp(kind, "drgrpo") == 0;
    bool luspo = strcmp(kind, "luspo") == 0;

    r->num.sequence_ratio = luspo || strcmp(kind, "gspo") == 0;
    r->num.drgrpo_divisor = 8;
    if (dapo || drgrpo)
        r->num.eps_clip_c = 3;
    r->reducer = luspo    ? &ml_reducer_luspo
                 : dapo   ? &ml_reducer_dapo
                 : drgrpo ? &ml_reducer_drgrpo
                          : NULL;
    return r->reducer || r->num.sequence_ratio;
}

static void play_objective(ml_case *c) {
    static const miles_loss *const losses[] = { &ml_loss_sapo,  &ml_loss_gmpo,
                                                &ml_loss_vespo, &ml_loss_clip_cov,
                                                &ml_loss_cispo, &ml_loss_kl_cov };
    static const struct {
        const char *kind;
        void (*play)(ml_case *c);
    } others[] = { { "rloo", play_rloo },
                   { "gdpo", play_gdpo },
                   { "overlong", play_overlong } };
    const char *kind = ml_record_text(c, c->kind);
    ml_recorded_step p = { .recipe = { .num = objective_algo(), .loss = &ml_loss_policy } };

    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (strcmp(others[i].kind, kind) == 0) {
            others[i].play(c);
            return;
        }
    for (size_t i = 0; i < sizeof losses / sizeof *losses; i++)
        if (strcmp(losses[i]->base.name, kind) == 0)
            p.recipe.loss = losses[i];
    ml_record_expect(c,
                     choose_reduction(&p.recipe, kind) || p.recipe.loss != &ml_loss_policy,
                     "another objective");
    ml_record_batch_init(&p.b, c, ml_json_get(c->args, "loss_masks"), "loss_masks");
    ml_record_column(&p.b, c, "old_log_probs", offsetof(miles_sample, old_log_prob));
    ml_record_column(&p.b, c, "log_probs", offsetof(miles_sample, log_prob));
    ml_record_column(&p.b, c, "advantages", offsetof(miles_sample, advantage));
    if (!ml_recorded_step_run(&p, c, p.recipe.loss, NULL))
        return;
    objective_equal(c, &p);
}

#define PLAYS(test, play)                                                                  \
    static void test(void) {                                                               \
        ml_test_cases(#test ".jsonl", play);                                               \
    }
PLAYS(tis, play_tis)
PLAYS(icepop, play_icepop)
PLAYS(mis, play_mis)
PLAYS(policy_loss_full, play_policy_full)
PLAYS(objectives, play_objective)

static const ml_test tests[] = {
    { "truncated importance sampling is Miles'", tis },
    { "IcePop is Miles'", icepop },
    { "masked importance sampling is Miles'", mis },
    { "whole policy losses are Miles'", policy_loss_full },
    { "objectives are those of verl and TRL", objectives },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
