/* Losses, corrections and reducers: by numbers worked out on paper, by difference
 * quotients, and by what must not make a difference. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "run/extensions.h"
#include "rl/learn/advantage/advantages.h"
#include "rl/builtins.h"
#include "rl/learn/loss/kl.h"
#include "rl/learn/loss/step_loss.h"
#include "rl/learn/loss/surrogate.h"
#include "tests/support/recording.h"
#include "tests/support/test.h"

static bool near(double got, double want) {
    return fabs(got - want) <= 1e-6 * (1.0 + fabs(want));
}

/* --- on paper ------------------------------------------------------------------------- */

static void kl_on_paper(void) {
    static const double d[] = { 0.1, -0.1, 0.5, -0.5, 3, -3, 25 };
    static const double k3[] = { 0.004837, 0.005171,  0.106531, 0.148721,
                                 2.049787, 16.085537, 24.0 };
    static const double low[] = {
        0.004837, 0.005171, 0.106531, 0.148721, 2.049787, 10, 10
    };

    for (int i = 0; i < 7; i++) {
        CHECK(ml_kl_estimate(MILES_K1, d[i], 0, NULL).value == d[i]);
        CHECK(near(ml_kl_estimate(MILES_K2, d[i], 0, NULL).value, d[i] * d[i] / 2));
        CHECK(near(ml_kl_estimate(MILES_K3, d[i], 0, NULL).value, k3[i]));
        CHECK(near(ml_kl_estimate(MILES_LOW_VAR_KL, d[i], 0, NULL).value, low[i]));
    }
}

static void surrogate_on_paper(void) {
    static const struct {
        double kl, advantage, value, dual;
        bool clipped;
    } row[] = { { -0.5, 1, -1.28, -1.28, true },
                { 0.5, 1, -0.606531, -0.606531, false },
                { -0.5, -1, 1.648721, 1.648721, false },
                { 0.5, -1, 0.8, 0.8, true },
                { -2, -1, 7.389056, 3.0, false } };
    miles_algo a = ml_record_algo();

    a.eps_clip_high = 0.28;
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        ml_surrogate s;
        a.eps_clip_c = (double)NAN;
        s = ml_surrogate_ppo(-row[i].kl, 0, row[i].advantage, &a);
        CHECK(near(s.value, row[i].value) && s.clipped == row[i].clipped);
        a.eps_clip_c = 3.0;
        CHECK(
            near(ml_surrogate_ppo(-row[i].kl, 0, row[i].advantage, &a).value, row[i].dual));
    }
    CHECK(near(ml_surrogate_cispo(0.5, -2, 1, &a).value, 1.28 * 2));
    CHECK(near(ml_surrogate_cispo(0.5, -2, 1, &a).d_log_prob, -1.28));
}

/* --- random batches -------------------------------------------------------------------- */

#define N_SAMPLE 5
#define MOST 7

/* Columns of a batch; samples of 0 tokens, of masked tokens and of one token are among
 * them. */
typedef struct made {
    miles_sample sample[N_SAMPLE];
    const miles_sample *view[N_SAMPLE];
    miles_batch batch;
    uint8_t mask[N_SAMPLE][MOST];
    double column[9][N_SAMPLE][MOST];
    uint64_t state;
} made;

static double uniform(made *m, double low, double high) {
    m->state = m->state * 6364136223846793005u + 1442695040888963407u;
    return low + (high - low) * (double)(m->state >> 11) / 0x1p53;
}

static const size_t columns[9] = {
    offsetof(miles_sample, log_prob),         offsetof(miles_sample, old_log_prob),
    offsetof(miles_sample, rollout_log_prob), offsetof(miles_sample, ref_log_prob),
    offsetof(miles_sample, entropy),          offsetof(miles_sample, value),
    offsetof(miles_sample, old_value),        offsetof(miles_sample, advantage),
    offsetof(miles_sample, returns)
};

static void make(made *m, uint64_t seed, double spread) {
    static const int64_t lengths[N_SAMPLE] = { 4, 0, 7, 1, 5 };

    memset(m, 0, sizeof *m);
    m->state = seed * 77777 + 5;
    for (int i = 0; i < N_SAMPLE; i++) {
        miles_sample *s = &m->sample[i];
        *s = (miles_sample){ .size = sizeof *s,
                             .n = lengths[i],
                             .rollout = i / 2,
                             .mask = m->mask[i],
                             .kept = m->mask[i] };
        m->view[i] = s;
        for (int t = 0; t < MOST; t++) {
            double old = uniform(m, -3, -0.1);
            m->mask[i][t] = i != 3 && uniform(m, 0, 1) < 0.75;
            m->column[0][i][t] = old + uniform(m, -spread, spread);
            m->column[1][i][t] = old;
            m->column[2][i][t] = old + uniform(m, -spread, spread);
            m->column[3][i][t] = old + uniform(m, -spread, spread);
            for (int c = 4; c < 9; c++)
                m->column[c][i][t] = uniform(m, -2, 2);
        }
        for (int c = 0; c < 9; c++) {
            const double *x = m->column[c][i];
            memcpy((char *)s + columns[c], &x, sizeof x);
        }
    }
    m->batch = (miles_batch){ sizeof m->batch, N_SAMPLE, m->view };
}

/* The recipe of trial k: options are drawn by their bits. */
static ml_recipe recipe_of(unsigned k) {
    static const miles_correction *const corrections[] = { NULL, &ml_correction_tis,
                                                           &ml_correction_icepop,
                                                           &ml_correction_mis };
    static const miles_reducer *const reducers[] = { NULL, &ml_reducer_drgrpo,
                                                     &ml_reducer_dapo };
    ml_recipe r = { .num = ml_record_algo(), .loss = &ml_loss_policy };

    r.num.eps_clip_high = 0.28;
    r.num.eps_clip_c = k & 1 ? 3.0 : (double)NAN;
    r.num.sequence_ratio = k & 2;
    r.num.use_kl_loss = k & 4;
    r.num.kl_loss_coef = 0.3;
    r.num.kl_loss_type = (int32_t)(k / 8 % 4);
    r.num.use_unbiased_kl = k & 32;
    r.num.use_entropy = k & 64;
    r.num.entropy_coef = 0.1;
    r.num.calculate_per_token_loss = k & 128;
    r.num.use_opsm = k & 256;
    r.num.opsm_delta = 0.05;
    r.num.use_tis = true;
    r.num.tis_mode = (int32_t)(k / 3 % 3);
    r.num.tis_level = (int32_t)(k / 5 % 3);
    r.num.use_rs = k & 16;
    r.correction = corrections[k / 7 % 4];
    r.reducer = reducers[k / 11 % 3];
    return r;
}

typedef struct result {
    double loss, metric[ML_STEP_METRIC_MAX];
    int32_t n_metric;
    double d[3][N_SAMPLE][MOST]; /* log-prob, entropy, value */
} result;

/* Samples are trained in the given order. */
static result run(const made *m, const ml_recipe *r, const miles_loss *loss,
                  const int *order) {
    result out = { 0 };
    ml_arena a;
    ml_step_loss s;
    ml_err err = { 0 };

    ml_arena_init(&a, "test");
    if (ml_step_loss_init(&s, &a, r, loss, &m->batch, &err) != ML_OK)
        ml_test_fail(__FILE__, __LINE__, "%s", err.msg);
    for (int k = 0; k < N_SAMPLE; k++) {
        int i = order ? order[k] : k;
        const miles_sample *x = &m->sample[i];
        ml_model_outputs now = { x->log_prob, x->entropy, x->value };
        ml_derivatives d = { out.d[0][i], out.d[1][i], out.d[2][i] };
        if (ml_step_loss_sample(&s, i, now, d, &err) != ML_OK)
            ml_test_fail(__FILE__, __LINE__, "%s", err.msg);
    }
    out.n_metric = s.n_metric;
    ml_step_loss_totals(&s, &out.loss, out.metric);
    ml_arena_release(&a);
    return out;
}

/* How many derivatives of this column are not what a difference quotient says. */
static int wrong_derivatives(made *m, const ml_recipe *r, const miles_loss *loss,
                             int column, double (*d)[MOST]) {
    const double h = 1e-6;
    int wrong = 0;

    for (int i = 0; i < N_SAMPLE; i++)
        for (int64_t t = 0; t < m->sample[i].n; t++) {
            double *x = &m->column[column][i][t], at = *x, up, down, quotient;
            *x = at + h;
            up = run(m, r, loss, NULL).loss;
            *x = at - h;
            down = run(m, r, loss, NULL).loss;
            *x = at;
            quotient = (up - down) / (2 * h);
            wrong += fabs(quotient - d[i][t]) > 1e-6 * (1.0 + fabs(quotient));
        }
    return wrong;
}

static void policy_derivatives(void) {
    made m;

    for (unsigned k = 0; k < 512; k += 3) {
        ml_recipe r = recipe_of(k);
        result x;
        make(&m, k, 0.6);
        x = run(&m, &r, &ml_loss_policy, NULL);
        if (wrong_derivatives(&m, &r, &ml_loss_policy, 0, x.d[0]) ||
            wrong_derivatives(&m, &r, &ml_loss_policy, 4, x.d[1]))
            ml_test_fail(__FILE__, __LINE__, "derivatives of recipe %u", k);
    }
}

static void other_derivatives(void) {
    made m;

    for (unsigned k = 0; k < 40; k++) {
        ml_recipe r = { .num = ml_record_algo() };
        result x;
        r.num.calculate_per_token_loss = k & 1;
        make(&m, k, 0.6);
        x = run(&m, &r, &ml_loss_value, NULL);
        CHECK(!wrong_derivatives(&m, &r, &ml_loss_value, 5, x.d[2]));
        x = run(&m, &r, &ml_loss_sft, NULL);
        CHECK(!wrong_derivatives(&m, &r, &ml_loss_sft, 0, x.d[0]));
    }
}

/* CISPO holds the ratio: the quotient is taken against a loss whose ratio does not move. */
static void cispo_derivatives(void) {
    ml_recipe r = { .num = ml_record_algo() };
    made m;
    result x;

    make(&m, 3, 0.6);
    x = run(&m, &r, &ml_loss_cispo, NULL);
    for (int i = 0; i < N_SAMPLE; i++)
        for (int64_t t = 0; t < m.sample[i].n; t++) {
            double ratio = exp(m.column[0][i][t] - m.column[1][i][t]);
            double held = fmin(fmax(ratio, 0.8), 1.2), want = -held * m.column[7][i][t];
            int64_t n = 0;
            for (int k = 0; k < N_SAMPLE; k++)
                for (int64_t u = 0; k / 2 == i / 2 && u < m.sample[k].n; u++)
                    n += m.mask[k][u];
            want = m.mask[i][t] ? want / (double)(n ? n : 1) / 3.0 : 0.0;
            CHECK(near(x.d[0][i][t], want));
        }
}

/* The numbers of the objectives besides policy_loss. */
static miles_algo objective_algo(void) {
    miles_algo a = ml_record_algo();

    a.eps_clip_high = 0.28;
    a.sapo_temperature_pos = 1.0;
    a.sapo_temperature_neg = 1.05;
    a.vespo_k_pos = 2.0;
    a.vespo_lambda_pos = 3.0;
    a.vespo_k_neg = 3.0;
    a.vespo_lambda_neg = 2.0;
    a.clip_cov_ratio = a.kl_cov_ratio = 0.3;
    a.clip_cov_lb = 0.1;
    a.clip_cov_ub = 5.0;
    a.kl_cov_coef = 0.5;
    return a;
}

static void objective_derivatives(void) {
    static const miles_loss *const losses[] = { &ml_loss_sapo, &ml_loss_gmpo,
                                                &ml_loss_clip_cov, &ml_loss_kl_cov };
    static const int order[] = { 3, 4, 0, 2, 1 };
    made m;

    for (unsigned k = 0; k < 60; k++) {
        const miles_loss *loss = losses[k % 4];
        ml_recipe r = { .num = objective_algo(), .loss = loss };
        result x, y;
        r.num.sequence_ratio = k & 4;
        r.num.calculate_per_token_loss = k & 8;
        r.reducer = k & 16 ? &ml_reducer_luspo : NULL;
        make(&m, k, 0.6);
        x = run(&m, &r, loss, NULL);
        y = run(&m, &r, loss, order);
        CHECK(memcmp(&x, &y, sizeof x) == 0);
        if (wrong_derivatives(&m, &r, loss, 0, x.d[0]))
            ml_test_fail(__FILE__, __LINE__, "derivatives of %s, %u", loss->base.name, k);
    }
}

/* VESPO holds its weights: by a formula in which they do not move. */
static void vespo_derivatives(void) {
    ml_recipe r = { .num = objective_algo(), .loss = &ml_loss_vespo };
    made m;
    result x;

    make(&m, 3, 0.3);
    x = run(&m, &r, &ml_loss_vespo, NULL);
    for (int i = 0; i < N_SAMPLE; i++)
        for (int64_t t = 0; t < m.sample[i].n; t++) {
            double log_w = 0, a = m.column[7][i][t], k = a >= 0 ? 2 : 3, l = a >= 0 ? 3 : 2;
            int64_t n = 0;
            for (int64_t u = 0; u < m.sample[i].n; u++)
                log_w += m.mask[i][u] ? m.column[0][i][u] - m.column[1][i][u] : 0;
            for (int j = 0; j < N_SAMPLE; j++)
                for (int64_t u = 0; j / 2 == i / 2 && u < m.sample[j].n; u++)
                    n += m.mask[j][u];
            a *= -exp(l + k * log_w - l * exp(log_w)) / (double)(n ? n : 1) / 3.0;
            CHECK(near(x.d[0][i][t], m.mask[i][t] ? a : 0.0));
        }
}

/* --- what must not matter --------------------------------------------------------------- */

static void order_does_not_matter(void) {
    static const int order[] = { 3, 4, 0, 2, 1 };
    made m;

    for (unsigned k = 0; k < 512; k += 7) {
        ml_recipe r = recipe_of(k);
        result a, b;
        make(&m, k, 1.0);
        a = run(&m, &r, &ml_loss_policy, NULL);
        b = run(&m, &r, &ml_loss_policy, order);
        CHECK(memcmp(&a, &b, sizeof a) == 0);
    }
}

static void masked_tokens_do_not_matter(void) {
    made m;

    for (unsigned k = 0; k < 512; k += 7) {
        ml_recipe r = recipe_of(k & ~256u); /* OPSM counts masked tokens, as Miles does */
        result a, b;
        make(&m, k, 1.0);
        a = run(&m, &r, &ml_loss_policy, NULL);
        for (int c = 0; c < 9; c++)
            for (int i = 0; i < N_SAMPLE; i++)
                for (int t = 0; t < MOST; t++)
                    if (!m.mask[i][t])
                        m.column[c][i][t] = (double)NAN;
        b = run(&m, &r, &ml_loss_policy, NULL);
        CHECK(memcmp(&a, &b, sizeof a) == 0 && isfinite(a.loss));
        a = run(&m, &r, &ml_loss_value, NULL);
        CHECK(isfinite(a.loss));
    }
}

static void huge_ratios_stay_finite(void) {
    made m;

    for (unsigned k = 0; k < 512; k += 7) {
        ml_recipe r = recipe_of(k & ~32u); /* the unbiased KL has no bound, as in Miles */
        result a;
        make(&m, k, 300.0);
        r.num.kl_loss_type = MILES_LOW_VAR_KL;
        if (r.correction == &ml_correction_mis)
            r.correction = NULL; /* its k3 has none either */
        a = run(&m, &r, &ml_loss_policy, NULL);
        CHECK(isfinite(a.loss));
        for (int i = 0; i < N_SAMPLE; i++)
            for (int64_t t = 0; t < m.sample[i].n; t++)
                CHECK(isfinite(a.d[0][i][t]));
    }
}

/* The first step of a rollout: nothing has moved, to the bit. */
static void on_policy_is_exact(void) {
    ml_recipe r = { .num = ml_record_algo(), .correction = &ml_correction_tis };
    made m;
    result a;

    make(&m, 1, 0.5);
    r.num.use_kl_loss = true;
    r.num.kl_loss_type = MILES_LOW_VAR_KL;
    for (int c = 1; c < 4; c++)
        memcpy(m.column[c], m.column[0], sizeof m.column[0]);
    a = run(&m, &r, &ml_loss_policy, NULL);
    /* pg_loss, pg_clipfrac, ppo_kl, ess, abs_diff, train_rollout_kl, kl_loss */
    CHECK(a.metric[1] == 0.0 && a.metric[2] == 0.0 && a.metric[4] == 0.0);
    CHECK(a.metric[5] == 0.0 && a.metric[6] == 0.0);
}

/* A metric is reported when it was computed. */
static void an_entropy_that_is_not_computed_is_no_metric(void) {
    miles_algo algo = ml_record_algo();
    miles_metric metric[MILES_METRIC_MAX];

    for (int with = 0; with < 2; with++) {
        bool found = false;
        algo.use_entropy = with;
        for (int32_t k = ml_loss_policy.metrics(&algo, metric) - 1; k >= 0; k--)
            found |= strcmp(metric[k].name, "entropy_loss") == 0;
        CHECK(found == (with == 1));
    }
}

/* --- reductions ---------------------------------------------------------------------------- */

static double mean_of_ones(const miles_reducer *reducer, bool per_token) {
    ml_recipe r = { .num = ml_record_algo(), .reducer = reducer };
    made m;

    make(&m, 9, 0.0);
    r.num.calculate_per_token_loss = per_token;
    for (int i = 0; i < N_SAMPLE; i++)
        for (int t = 0; t < MOST; t++) {
            m.mask[i][t] = i != 3;
            m.column[7][i][t] = -1.0; /* the loss of every token is 1 */
        }
    return run(&m, &r, &ml_loss_policy, NULL).loss;
}

static void reductions(void) {
    /* 16 trained tokens in 3 rollouts (4 + 0, 7 + 0, 5), 5 samples. */
    CHECK(near(mean_of_ones(NULL, false), 1.0));
    CHECK(near(mean_of_ones(NULL, true), 16.0 / 18.0));
    CHECK(near(mean_of_ones(&ml_reducer_dapo, false), 1.0));
    CHECK(near(mean_of_ones(&ml_reducer_dapo, true), 1.0));
    CHECK(near(mean_of_ones(&ml_reducer_drgrpo, false), 16.0 / 1000.0 / 3.0));
    CHECK(near(mean_of_ones(&ml_reducer_luspo, false), 16.0 / 3.0));
    CHECK(near(mean_of_ones(&ml_reducer_luspo, true), 16.0 / 3.0));
}

/* --- recipes --------------------------------------------------------------------------------- */

static ml_algo_opts options(void) {
    return (ml_algo_opts){ .num = ml_record_algo(),
                           .advantage_estimator = "grpo",
                           .loss_type = "policy_loss" };
}

static void contradictions_are_refused(void) {
    static const struct {
        const char *flags, *says;
    } row[] = {
        { "--kl-coef 0.1 --kl-loss-coef 0.1", "set one of them" },
        { "--advantage-estimator reinforce_plus_plus", "needs --normalize-advantages" },
        { "--use-rollout-logprobs --use-tis", "exclude each other" },
        { "--get-mismatch-metrics", "needs --custom-tis-function-path" },
        { "--advantage-estimator ppo --kl-coef 0.1", "must be 0 with a critic" },
        { "--eps-clip-c 1", "must be above 1" },
        { "--loss-type custom_loss", "need each other" },
        { "--skip-actor-forward-only --use-opd", "need old log-probs" },
        { "--advantage-estimator gpro", "grpo, gspo" },
        { "--use-tis --custom-tis-function-path nothing", "tis, icepop, mis" },
        { "--custom-pg-loss-reducer-function-path x", "drgrpo, dapo" },
        { "--loss-type no_loss", "policy_loss, cispo_loss" },
        { "--custom-loss-function-path ./none.so:x --loss-type custom_loss",
          "cannot load" },
    };
    char out[4000], line[400];

    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        snprintf(line, sizeof line, "loss %s < /dev/null", row[i].flags);
        CHECK(ml_test_miles(out, sizeof out, line) != 0);
        CHECK_HAS(out, row[i].says);
    }
}

static void miles_names_are_known(void) {
    ml_algo_opts o = options();
    ml_recipe r;
    ml_err err = { 0 };

    o.num.use_tis = true;
    o.num.eps_clip_high = (double)NAN;
    o.custom_tis = "miles.backends.training_utils.loss_hub.corrections.icepop_function";
    o.custom_reducer = "examples.experimental.DrGRPO.custom_reducer.get_pg_loss_reducer";
    CHECK(ml_recipe_resolve(&r, &o, &err) == ML_OK);
    CHECK(r.correction == &ml_correction_icepop && r.reducer == &ml_reducer_drgrpo);
    CHECK(r.num.eps_clip_high == r.num.eps_clip && r.scale_rewards && !r.critic_loss);
    o.advantage_estimator = "ppo";
    CHECK(ml_recipe_resolve(&r, &o, &err) == ML_OK);
    CHECK(r.critic_loss == &ml_loss_value && !r.centre_rewards);
}

static const ml_test tests[] = {
    { "KL estimators give the numbers worked out by hand", kl_on_paper },
    { "the clipped surrogate gives the numbers worked out by hand", surrogate_on_paper },
    { "policy gradients are difference quotients for every recipe", policy_derivatives },
    { "value and SFT gradients are difference quotients", other_derivatives },
    { "CISPO gradients hold the ratio constant", cispo_derivatives },
    { "gradients of SAPO, GMPO, Clip-Cov and KL-Cov are difference quotients",
      objective_derivatives },
    { "VESPO gradients hold its weights constant", vespo_derivatives },
    { "the loss has the same bits for any order of samples", order_does_not_matter },
    { "masked tokens do not change the loss", masked_tokens_do_not_matter },
    { "the loss stays finite for huge ratios", huge_ratios_stay_finite },
    { "on policy, ratios and KL are exact", on_policy_is_exact },
    { "an entropy that is not computed is no metric",
      an_entropy_that_is_not_computed_is_no_metric },
    { "each loss reduction has its denominator", reductions },
    { "contradictory loss flags are refused", contradictions_are_refused },
    { "Miles' module paths name our rows", miles_names_are_known },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
