/* Estimators, reward normalisation and whitening, by numbers worked out on paper, and the
 * cases that recordings do not have. */
#include <math.h>
#include <string.h>

#include "base/exp.h"
#include "rl/learn/advantage/advantages.h"
#include "rl/learn/advantage/reward_norm.h"
#include "rl/learn/advantage/whiten.h"
#include "rl/builtins.h"
#include "rl/rollout/reward_shaping.h"
#include "tests/support/recording.h"
#include "tests/support/test.h"

static bool near(double got, double want) {
    return fabs(got - want) <= 1e-6 * (1.0 + fabs(want));
}

static const uint8_t all_ones[16] = { 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1 };

static ml_advantages compute(ml_arena *a, const ml_recipe *r, const miles_sample *s,
                             int64_t n, ml_status *st) {
    const miles_sample *view[8];
    ml_advantages out;
    ml_err err;

    for (int64_t i = 0; i < n; i++)
        view[i] = &s[i];
    *st = ml_advantages_compute(&out, a, r, &(miles_batch){ sizeof(miles_batch), n, view },
                                &err);
    return out;
}

/* --- estimators over groups --------------------------------------------------------- */

/* The advantage of a rollout in all subsets of k of a group of n: the mean over those that
 * contain it, each with the best reward, relative to the mean and spread over all. */
static double by_subsets(const int *right, int n, int k, int of) {
    double sum = 0, square = 0, own = 0, count = 0, n_own = 0, mean, spread;

    for (int set = 0; set < 1 << n; set++) {
        int size = 0, best = 0;
        for (int i = 0; i < n; i++)
            if (set >> i & 1) {
                size++;
                best |= right[i];
            }
        if (size != k)
            continue;
        count++;
        sum += best;
        square += best * best;
        if (set >> of & 1) {
            n_own++;
            own += best;
        }
    }
    mean = sum / count;
    spread = sqrt(square / count - mean * mean);
    return spread == 0 ? 0 : (own / n_own - mean) / spread;
}

static void pass_at_k_is_a_mean_over_subsets(void) {
    enum { N = 6 };
    ml_recipe r = { .num = ml_record_algo(),
                    .advantage = &ml_advantage_pass_at_k,
                    .compute_advantages = true };
    ml_arena a;

    ml_arena_init(&a, "test");
    for (int k = 1; k <= N; k++)
        for (int n_right = 0; n_right <= N; n_right++) {
            miles_sample s[N];
            int right[N];
            ml_status st;
            ml_advantages got;
            for (int i = 0; i < N; i++) {
                right[i] = i < n_right;
                s[i] = (miles_sample){ .size = sizeof *s,
                                       .n = 1,
                                       .group = 4,
                                       .rollout = i,
                                       .reward = right[i],
                                       .mask = all_ones,
                                       .kept = all_ones };
            }
            r.num.pass_at_k = k;
            got = compute(&a, &r, s, N, &st);
            CHECK(st == ML_OK);
            for (int i = 0; i < N; i++)
                CHECK(near(got.advantage[i][0], by_subsets(right, N, k, i)));
        }
    ml_arena_release(&a);
}

/* --- shaped rewards ------------------------------------------------------------------- */

static void overlong_and_short_answers(void) {
    static const int32_t length[] = { 6, 10, 8, 9 };
    static const double reward[] = { 1, 1, 0, 0 };
    /* beyond 10 - 4 = 6: -(0, 4, 2, 3) / 4 * 2; 0.5 - (0, 4, 2, 3) / 4, times 3 */
    static const double want[] = { 1 + 0 + 1.5, 1 - 2 - 1.5, 0 - 1 + 0, 0 - 1.5 - 0.75 };
    ml_reward_shaping o = {
        .max_response = 10, .overlong_buffer = 4, .overlong_factor = 2, .length_coef = 3
    };
    ml_sample s[4], *view[4];
    ml_metrics metrics;
    ml_err err;
    ml_arena a;

    ml_arena_init(&a, "test");
    ml_metrics_init(&metrics, &a);
    for (int i = 0; i < 4; i++) {
        s[i] = (ml_sample){ .index = i,
                            .rollout = i,
                            .n_response = length[i],
                            .reward = reward[i],
                            .has_reward = true };
        view[i] = &s[i];
    }
    CHECK(ml_reward_shape(&o, view, 4, &metrics, &a, &err) == ML_OK);
    for (int i = 0; i < 4; i++)
        if (!near(s[i].reward, want[i]))
            ml_test_fail(__FILE__, __LINE__, "answer %d: %g", i, s[i].reward);
    ml_arena_release(&a);
}

/* Each number of a reward is normalised by itself, then weighted. */
static void several_rewards(void) {
    static const char *const key[] = { "reward", "format" };
    static const double weight[] = { 2, 0.5 };
    ml_reward_shaping o = { .key = key, .weight = weight, .n_key = 2 };
    ml_reward_row row[2][6];
    double part[2][6];
    ml_sample s[6], *view[6];
    ml_err err;
    ml_arena a;

    ml_arena_init(&a, "test");
    for (int i = 0; i < 6; i++) {
        double x[] = { i * i % 5, (i % 2) * 100 };
        s[i] = (ml_sample){ .index = i,
                            .rollout = i,
                            .group = i / 3,
                            .reward = x[0],
                            .has_reward = true,
                            .part = { { "format", x[1] } },
                            .n_part = 1 };
        view[i] = &s[i];
        for (int k = 0; k < 2; k++)
            row[k][i] = (ml_reward_row){ i / 3, i, x[k] };
    }
    CHECK(ml_reward_shape(&o, view, 6, NULL, &a, &err) == ML_OK);
    for (int k = 0; k < 2; k++)
        CHECK(ml_rewards_normalise(part[k], row[k], 6, true, &err) == ML_OK);
    for (int i = 0; i < 6; i++)
        CHECK(s[i].has_shaped && near(s[i].shaped, 2 * part[0][i] + 0.5 * part[1][i]));
    s[4].n_part = 0;
    CHECK(ml_reward_shape(&o, view, 6, NULL, &a, &err) == ML_EFORMAT);
    CHECK_HAS(err.msg, "the reward of sample 4 has no \"format\"");
    ml_arena_release(&a);
}

/* --- rewards ---------------------------------------------------------------------- */

static void group_of_eight(void) {
    static const double reward[] = { 0, 1, 1, 0, 1, 1, 1, 0 };
    ml_reward_row row[8];
    double got[8];
    ml_err err;

    for (int i = 0; i < 8; i++)
        row[i] = (ml_reward_row){ 3, i, reward[i] };
    CHECK(ml_rewards_normalise(got, row, 8, true, &err) == ML_OK);
    for (int i = 0; i < 8; i++)
        CHECK(near(got[i], reward[i] == 0.0 ? -1.207612 : 0.724567));
}

static void pieces_count_once(void) {
    static const ml_reward_row row[] = { { 0, 10, 0 }, { 0, 11, 1 }, { 0, 11, 1 },
                                         { 0, 11, 1 }, { 1, 20, 2 }, { 1, 20, 2 },
                                         { 1, 21, 4 } };
    static const double want[] = { -0.5, 0.5, 0.5, 0.5, -1, -1, 1 };
    double got[7];
    ml_err err;

    CHECK(ml_rewards_normalise(got, row, 7, false, &err) == ML_OK);
    for (int i = 0; i < 7; i++)
        CHECK(got[i] == want[i]);
}

static void equal_rewards_are_zero(void) {
    ml_reward_row row[7];
    double got[7];
    ml_err err;

    for (int i = 0; i < 7; i++)
        row[i] = (ml_reward_row){ i == 6, i, 0.1 };
    CHECK(ml_rewards_normalise(got, row, 7, true, &err) == ML_OK);
    for (int i = 0; i < 7; i++)
        CHECK(got[i] == 0.0);
}

static void pieces_must_agree(void) {
    static const ml_reward_row row[] = { { 0, 1, 0.5 }, { 0, 1, 0.25 } };
    double got[2];
    ml_err err;

    CHECK(ml_rewards_normalise(got, row, 2, true, &err) == ML_EFORMAT);
    CHECK_HAS(err.msg, "must have the same reward");
}

/* --- estimators -------------------------------------------------------------------- */

static void reinforce_on_paper(void) {
    static const double kl[] = { .1, .2, .3, .4 },
                        want[] = { 1.53854, 1.7206, 1.934, -0.04 };
    static const uint8_t mask[] = { 1, 1, 1, 0 };
    miles_algo algo = ml_record_algo();
    miles_sample s = { .size = sizeof s, .n = 4, .reward = 2, .mask = mask, .kl = kl };
    const miles_sample *view = &s;
    miles_batch b = { sizeof b, 1, &view };
    double a[4], r[4], *pa = a, *pr = r;
    miles_error err;

    algo.kl_coef = 0.1;
    algo.gamma = 0.9;
    CHECK(ml_advantage_reinforce_pp.run(&b, &algo, &pa, &pr, &err) == 0);
    for (int t = 0; t < 4; t++)
        CHECK(near(a[t], want[t]) && a[t] == r[t]);
}

static void gae_skips_what_is_masked(void) {
    static const uint8_t mask[] = { 1, 0, 0, 0, 1 };
    static const double values[5] = { 0 };
    miles_algo algo = ml_record_algo();
    miles_sample s = {
        .size = sizeof s, .n = 5, .reward = 2, .mask = mask, .old_value = values
    };
    const miles_sample *view = &s;
    miles_batch b = { sizeof b, 1, &view };
    double a[5], r[5], *pa = a, *pr = r;
    miles_error err;

    algo.gamma = 0.9;
    algo.lambd = 0.5;
    CHECK(ml_advantage_ppo.run(&b, &algo, &pa, &pr, &err) == 0);
    CHECK(near(a[4], 2) && near(a[0], 0.9) && a[1] == 0 && a[2] == 0 && a[3] == 0);
    s.old_value = NULL;
    CHECK(ml_advantage_ppo.run(&b, &algo, &pa, &pr, &err) == 1);
    CHECK_HAS(err.text, "needs a critic");
}

static void distillation_on_paper(void) {
    static const double student[] = { 0, 1 }, teacher[] = { 0, 0 };
    ml_recipe r = { .num = ml_record_algo(),
                    .advantage = &ml_advantage_grpo,
                    .use_opd = true,
                    .opd_kl_coef = 0.5 };
    miles_sample s = { .size = sizeof s,
                       .n = 2,
                       .reward = 2,
                       .mask = all_ones,
                       .old_log_prob = student,
                       .teacher_log_prob = teacher };
    ml_arena a;
    ml_advantages got;
    ml_status st;

    ml_arena_init(&a, "test");
    got = compute(&a, &r, &s, 1, &st);
    CHECK(st == ML_OK && got.advantage[0][0] == 2.0 && got.advantage[0][1] == 1.5);
    CHECK(got.returns[0][1] == 2.0 && got.opd_reverse_kl[0][1] == 1.0);
    s.teacher_log_prob = NULL;
    compute(&a, &r, &s, 1, &st);
    CHECK(st == ML_EFORMAT);
    ml_arena_release(&a);
}

static void penalty_needs_a_reference(void) {
    static const double lp[] = { -1, -2 };
    ml_recipe r = { .num = ml_record_algo(), .advantage = &ml_advantage_reinforce_pp };
    miles_sample s = {
        .size = sizeof s, .n = 2, .reward = 1, .mask = all_ones, .old_log_prob = lp
    };
    ml_arena a;
    ml_status st;

    ml_arena_init(&a, "test");
    r.num.kl_coef = 0.1;
    compute(&a, &r, &s, 1, &st);
    CHECK(st == ML_EFORMAT);
    r.advantage = &ml_advantage_grpo; /* which has no use for it */
    compute(&a, &r, &s, 1, &st);
    CHECK(st == ML_OK);
    ml_arena_release(&a);
}

/* --- whitening ---------------------------------------------------------------------- */

static void whitening_on_paper(void) {
    static const uint8_t mask[] = { 1, 1, 1, 1, 0 };
    static const double want[] = { -1.161895, -0.387298, 0.387298, 1.161895, 5.809475 };
    double x[] = { 1, 2, 3, 4, 10 }, *px = x;
    const uint8_t *pm = mask;
    int64_t n = 5;
    ml_err err;

    CHECK(ml_whiten(&px, &pm, &n, 1, true, &err) == ML_OK);
    for (int t = 0; t < 5; t++)
        CHECK(near(x[t], want[t]));
}

static void large_constants_whiten_to_zero(void) {
    double x[8], *px = x;
    const uint8_t *pm = all_ones;
    int64_t n = 8;
    ml_err err;

    for (int t = 0; t < 8; t++)
        x[t] = 1000.1;
    CHECK(ml_whiten(&px, &pm, &n, 1, true, &err) == ML_OK);
    for (int t = 0; t < 8; t++)
        CHECK(x[t] == 0.0);
}

static void nothing_trained_is_an_error(void) {
    static const uint8_t mask[4] = { 0 };
    double x[4] = { 1, 2, 3, 4 }, *px = x;
    const uint8_t *pm = mask;
    int64_t n = 4;
    ml_err err;

    CHECK(ml_whiten(&px, &pm, &n, 1, true, &err) == ML_EFORMAT);
    CHECK_HAS(err.msg, "the rollout has no trained token");
}

/* --- exp ---------------------------------------------------------------------------- */

static void exp_is_exact_enough(void) {
    uint64_t state = 42;

    for (int i = 0; i < 200000; i++) {
        double x, got, want;
        state = state * 6364136223846793005u + 1442695040888963407u;
        x = ((double)(state >> 11) / 0x1p53 - 0.5) * (i % 2 ? 1400.0 : 4.0);
        got = ml_exp(x);
        want = exp(x);
        if (fabs(got - want) > 4.5e-16 * want)
            ml_test_fail(__FILE__, __LINE__, "exp(%.17g) = %.17g, not %.17g", x, got, want);
    }
    CHECK(ml_exp(0.0) == 1.0 && ml_exp(-1e9) == 0.0 && isinf(ml_exp(1e9)));
    CHECK(isnan(ml_exp((double)NAN)) && ml_exp((double)-INFINITY) == 0.0);
}

static const ml_test tests[] = {
    { "GRPO normalises a group of eight as worked out by hand", group_of_eight },
    { "pieces of one rollout count once in normalisation", pieces_count_once },
    { "equal rewards normalise to exactly zero", equal_rewards_are_zero },
    { "pieces of one rollout with two rewards are refused", pieces_must_agree },
    { "pass@k advantages are means over the subsets of a group",
      pass_at_k_is_a_mean_over_subsets },
    { "overlong and short answers get the rewards worked out by hand",
      overlong_and_short_answers },
    { "each number of a reward is normalised by itself", several_rewards },
    { "REINFORCE++ returns are those worked out by hand", reinforce_on_paper },
    { "GAE skips masked tokens", gae_skips_what_is_masked },
    { "the distillation penalty is the one worked out by hand", distillation_on_paper },
    { "--kl-coef without reference log-probs is refused", penalty_needs_a_reference },
    { "whitening gives the numbers worked out by hand", whitening_on_paper },
    { "whitening a large constant gives zero", large_constants_whiten_to_zero },
    { "whitening without a trained token is an error", nothing_trained_is_an_error },
    { "ml_exp is within 4.5e-16 of exp", exp_is_exact_enough },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
