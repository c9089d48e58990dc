/* Advantages against what Miles' own code gave: every one-rank case of the recordings that
 * has to do with rewards, estimators, distillation and whitening. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "rl/learn/advantage/advantages.h"
#include "rl/learn/advantage/opd.h"
#include "rl/learn/advantage/reward_norm.h"
#include "rl/learn/advantage/whiten.h"
#include "rl/builtins.h"
#include "rl/learn/loss/kl.h"
#include "tests/support/recording.h"
#include "tests/support/test.h"

/* Recorded in f64, and in f32. */
static const ml_tolerance f64 = { 1e-9, 1e-12 }, f32 = { 1e-5, 2e-6 };

static ml_tolerance tolerance(ml_case *c) {
    const char *dtype = ml_record_text(c, ml_json_get(c->args, "dtype"));
    return strcmp(dtype, "float64") == 0 ? f64 : f32;
}

static bool fails(const ml_json *out) {
    return ml_json_get(out, "error") != NULL;
}

static void rewards_of(ml_record_batch *b, ml_case *c, const char *key) {
    const double *reward = ml_record_row(c, ml_json_get(c->args, key));

    for (int64_t i = 0; i < b->of.n; i++)
        b->sample[i].reward = reward[i];
}

static void equal_columns(ml_case *c, const ml_record_batch *b, double *const *got,
                          const ml_json *want, ml_tolerance t, const char *what) {
    const ml_json *row = want ? want->child : NULL;

    ml_record_expect(c, want && want->n == b->of.n, "another number of samples");
    for (int64_t i = 0; i < b->of.n && row; i++, row = row->next)
        ml_record_equal_row(c, got[i], b->sample[i].n, row, t, what);
}

/* --- estimators ------------------------------------------------------------------ */

static void play_estimator(ml_case *c, const miles_advantage *row, ml_record_batch *b,
                           const miles_algo *algo, const char *advantage,
                           const char *returns) {
    double **a = ml_columns_new(&c->arena, &b->of), **r = ml_columns_new(&c->arena, &b->of);
    miles_error why = { "" };
    int failed = row->run(&b->of, algo, a, r, &why);

    ml_record_expect(c, (failed != 0) == fails(c->out), "failure");
    ml_record_expect(c, !failed || why.text[0], "a failure without a sentence");
    if (!failed && advantage)
        equal_columns(c, b, a, ml_json_get(c->out, advantage), tolerance(c), advantage);
    if (!failed && returns)
        equal_columns(c, b, r, ml_json_get(c->out, returns), tolerance(c), returns);
}

static void play_grpo(ml_case *c) {
    miles_algo algo = ml_record_algo();
    ml_record_batch b;

    ml_record_batch_init(&b, c, ml_json_get(c->args, "kl"), NULL);
    rewards_of(&b, c, "rewards");
    play_estimator(c, &ml_advantage_grpo, &b, &algo, NULL, "returns");
}

static void play_reinforce(ml_case *c) {
    miles_algo algo = ml_record_algo();
    ml_record_batch b;

    algo.kl_coef = ml_record_number(ml_json_get(c->args, "kl_coef"));
    algo.gamma = ml_record_number(ml_json_get(c->args, "gamma"));
    ml_record_batch_init(&b, c, ml_json_get(c->args, "kl"), "loss_masks");
    ml_record_column(&b, c, "kl", offsetof(miles_sample, kl));
    rewards_of(&b, c, "rewards");
    play_estimator(c, &ml_advantage_reinforce_pp, &b, &algo, NULL, "returns");
}

static void play_baseline(ml_case *c) {
    miles_algo algo = ml_record_algo();
    ml_record_batch b;

    algo.kl_coef = ml_record_number(ml_json_get(c->args, "kl_coef"));
    ml_record_batch_init(&b, c, ml_json_get(c->args, "kl"), "loss_masks");
    ml_record_column(&b, c, "kl", offsetof(miles_sample, kl));
    rewards_of(&b, c, "rewards");
    play_estimator(c, &ml_advantage_reinforce_pp_baseline, &b, &algo, "advantages", NULL);
}

/* The recorded token rewards are a penalty of weight -1. */
static void play_gae(ml_case *c) {
    miles_algo algo = ml_record_algo();
    ml_record_batch b;

    algo.kl_coef = -1.0;
    algo.gamma = ml_record_number(ml_json_get(c->args, "gamma"));
    algo.lambd = ml_record_number(ml_json_get(c->args, "lambd"));
    ml_record_batch_init(&b, c, ml_json_get(c->args, "values"), "loss_masks");
    ml_record_column(&b, c, "rewards", offsetof(miles_sample, kl));
    ml_record_column(&b, c, "values", offsetof(miles_sample, old_value));
    rewards_of(&b, c, "terminal_rewards");
    play_estimator(c, &ml_advantage_ppo, &b, &algo, "advantages", "returns");
}

/* One sample, whose last token ends it. */
static void play_gae_serial(ml_case *c) {
    miles_algo algo = ml_record_algo();
    const ml_json *values = ml_json_get(c->args, "values");
    uint8_t *ones = ML_NEW(&c->arena, uint8_t, values->n + 1);
    miles_sample sample = { .size = sizeof sample,
                            .n = values->n,
                            .mask = ones,
                            .kept = ones,
                            .kl = ml_record_row(c, ml_json_get(c->args, "rewards")),
                            .old_value = ml_record_row(c, values) };
    const miles_sample *view = &sample;
    miles_batch b = { sizeof b, 1, &view };
    double **a = ml_columns_new(&c->arena, &b), **r = ml_columns_new(&c->arena, &b);
    miles_error why = { "" };

    memset(ones, 1, (size_t)values->n);
    algo.kl_coef = -1.0;
    algo.gamma = ml_record_number(ml_json_get(c->args, "gamma"));
    algo.lambd = ml_record_number(ml_json_get(c->args, "lambd"));
    ml_record_expect(c, ml_advantage_ppo.run(&b, &algo, a, r, &why) == 0, why.text);
    ml_record_equal_row(c, a[0], sample.n, ml_json_get(c->out, "advantages"), tolerance(c),
                        "advantages");
    ml_record_equal_row(c, r[0], sample.n, ml_json_get(c->out, "returns"), tolerance(c),
                        "returns");
}

/* --- the whole pipeline ---------------------------------------------------------- */

static const miles_advantage *estimator(const char *name) {
    for (const miles_extension *const *row = ml_builtins; *row; row++)
        if ((*row)->kind == MILES_ADVANTAGE && strcmp((*row)->name, name) == 0)
            return (const void *)*row;
    return NULL;
}

static int32_t kl_type(const char *name) {
    static const char *const names[] = { "k1", "k2", "k3", "low_var_kl" };
    int32_t i = 0;

    while (i < 4 && strcmp(names[i], name) != 0)
        i++;
    return i;
}

static ml_recipe recipe_of(ml_case *c) {
    const ml_json *k = ml_json_get(c->args, "config");
    ml_recipe r = { .num = ml_record_algo(), .compute_advantages = true };

    r.advantage = estimator(ml_record_text(c, ml_json_get(k, "advantage_estimator")));
    r.num.kl_coef = ml_record_number(ml_json_get(k, "kl_coef"));
    r.num.gamma = ml_record_number(ml_json_get(k, "gamma"));
    r.num.lambd = ml_record_number(ml_json_get(k, "lambd"));
    r.num.kl_loss_type = kl_type(ml_record_text(c, ml_json_get(k, "kl_loss_type")));
    r.num.use_rollout_logprobs = ml_case_flag(k, "use_rollout_logprobs");
    r.normalize_advantages = ml_case_flag(k, "normalize_advantages");
    r.use_opd = ml_case_flag(k, "use_opd");
    r.opd_kl_coef = ml_record_number(ml_json_get(k, "opd_kl_coef"));
    return r;
}

static bool nearly_constant(const ml_record_batch *b, double *const *x) {
    for (int64_t i = 0; i < b->of.n; i++)
        for (int64_t t = 0; t < b->sample[i].n; t++)
            if (fabs(x[i][t]) > 50.0) /* a masked value, seen from a vanishing variance */
                return true;
    return false;
}

static void play_advantages(ml_case *c) {
    ml_recipe r = recipe_of(c);
    ml_record_batch b;
    ml_advantages got;
    ml_err err = { 0 };
    ml_status st;

    ml_record_batch_init(&b, c, ml_json_get(c->args, "loss_masks"), "loss_masks");
    rewards_of(&b, c, "rewards");
    ml_record_column(&b, c, "log_probs", offsetof(miles_sample, old_log_prob));
    ml_record_column(&b, c, "ref_log_probs", offsetof(miles_sample, ref_log_prob));
    ml_record_column(&b, c, "rollout_log_probs", offsetof(miles_sample, rollout_log_prob));
    ml_record_column(&b, c, "teacher_log_probs", offsetof(miles_sample, teacher_log_prob));
    ml_record_column(&b, c, "values", offsetof(miles_sample, old_value));
    st = ml_advantages_compute(&got, &c->arena, &r, &b.of, &err);
    ml_record_expect(c, (st != ML_OK) == fails(c->out), err.msg);
    if (st != ML_OK)
        return;
    equal_columns(c, &b, got.advantage, ml_json_get(c->out, "advantages"),
                  nearly_constant(&b, got.advantage) ? (ml_tolerance){ 0.05, 1e-4 } : f32,
                  "advantages");
    equal_columns(c, &b, got.returns, ml_json_get(c->out, "returns"), f32, "returns");
    if (got.opd_reverse_kl)
        equal_columns(c, &b, got.opd_reverse_kl, ml_json_get(c->out, "opd_reverse_kl"), f32,
                      "opd_reverse_kl");
}

/* --- rewards ---------------------------------------------------------------------- */

static int64_t whole(const ml_json *v, int64_t otherwise) {
    int64_t i;
    return v && ml_json_i64(v, &i) ? i : otherwise;
}

/* Explicit sizes, the recorded index, blocks of n samples, or all in one. */
static int64_t group_of(ml_case *c, const ml_json *sample, int64_t i, int64_t n) {
    const ml_json *sizes = ml_json_get(c->args, "prompt_group_sizes");
    int64_t per = whole(ml_json_get(c->args, "n_samples_per_prompt"), 1), group = 0;
    int64_t batch = whole(ml_json_get(c->args, "rollout_batch_size"), 0);

    for (const ml_json *s = sizes ? sizes->child : NULL; s; s = s->next, group++) {
        if (i < whole(s, 0))
            return group;
        i -= whole(s, 0);
    }
    return whole(ml_json_get(sample, "group_index"), n == per * batch ? i / per : 0);
}

static double reward_of(ml_case *c, const ml_json *sample) {
    const ml_json *v = ml_json_get(sample, "reward");

    if (v && v->type == ML_JSON_OBJECT)
        v = ml_json_get(v, ml_record_text(c, ml_json_get(c->args, "reward_key")));
    return ml_record_number(v);
}

static ml_reward_row *scored(ml_case *c, int64_t *n) {
    const ml_json *samples = ml_json_get(c->args, "samples");
    ml_reward_row *row = ML_NEW(&c->arena, ml_reward_row, samples->n + 1);
    int64_t i = 0;

    *n = samples->n;
    for (const ml_json *s = samples->child; s; s = s->next, i++) {
        int64_t index = whole(ml_json_get(s, "index"), 1000000 + i);
        row[i] =
            (ml_reward_row){ group_of(c, s, i, *n),
                             whole(ml_json_get(s, "rollout_id"), index), reward_of(c, s) };
    }
    return row;
}

static void play_reward_norm(ml_case *c) {
    const char *name = ml_record_text(c, ml_json_get(c->args, "advantage_estimator"));
    uint32_t needs = estimator(name)->needs;
    bool scale =
        (needs & MILES_SCALE_REWARDS) && ml_case_flag(c->args, "grpo_std_normalization");
    bool tiny = strcmp(ml_record_text(c, c->kind), "tiny") == 0;
    int64_t n;
    ml_reward_row *row = scored(c, &n);
    double *got = ML_NEW(&c->arena, double, n + 1);
    ml_err err = { 0 };
    ml_status st = ML_OK;

    for (int64_t i = 0; i < n; i++)
        got[i] = row[i].reward;
    if ((needs & MILES_CENTRE_REWARDS) && ml_case_flag(c->args, "rewards_normalization"))
        st = ml_rewards_normalise(got, row, n, scale, &err);
    ml_record_expect(c, (st != ML_OK) == fails(c->out), "failure");
    /* One f32 step apart: what f32 makes of the mean is half of the difference. */
    if (st == ML_OK)
        ml_record_equal_row(c, got, n, ml_json_get(c->out, "processed"),
                            tiny ? (ml_tolerance){ 0.5, 0.1 } : f32, "processed");
}

static void play_zero_std(ml_case *c) {
    const ml_json *want = ml_json_get(c->out, "metrics");
    bool ppo = ml_str_is(ml_json_get(c->args, "advantage_estimator")->text, "ppo");
    ml_zero_std z;
    int64_t n;
    ml_reward_row *row = scored(c, &n);

    if (ppo)
        return; /* groups mean nothing to it, and nothing is reported */
    ml_zero_std_count(&z, &c->arena, row, n);
    ml_record_expect(c, want->n == z.n + 2, "another number of metrics");
    ml_record_equal(c, z.all_zero, ml_json_get(want, "zero_std/all_zero_percentage"), f64,
                    "all_zero");
    ml_record_equal(c, z.all_one, ml_json_get(want, "zero_std/all_one_percentage"), f64,
                    "all_one");
    for (int32_t i = 0; i < z.n; i++)
        ml_record_equal(c, (double)z.equal[i].count,
                        ml_json_get(want, ml_arena_printf(&c->arena, "zero_std/count_%s",
                                                          z.equal[i].reward)),
                        f64, z.equal[i].reward);
}

/* --- whitening ------------------------------------------------------------------- */

static void whiten_samples(ml_case *c, ml_record_batch *b, double ***x, ml_status *st,
                           bool shift) {
    const uint8_t **mask = ML_NEW(&c->arena, const uint8_t *, b->of.n + 1);
    int64_t *n = ML_NEW(&c->arena, int64_t, b->of.n + 1);
    ml_err err;

    *x = ml_columns_new(&c->arena, &b->of);
    for (int64_t i = 0; i < b->of.n; i++) {
        mask[i] = b->sample[i].mask;
        n[i] = b->sample[i].n;
        memcpy((*x)[i], b->sample[i].advantage, (size_t)n[i] * sizeof(double));
    }
    *st = ml_whiten(*x, mask, n, b->of.n, shift, &err);
}

/* The ranks of the recording are samples here: the statistics are those of all. */
static void play_whiten(ml_case *c) {
    const ml_json *ranks = ml_json_get(c->out, "per_dp_rank"), *rank = ranks->child;
    bool rough = strcmp(ml_record_text(c, c->kind), "offset") == 0,
         same = strcmp(ml_record_text(c, c->kind), "const") == 0;
    ml_record_batch b;
    double **x;
    ml_status st;

    ml_record_batch_init(&b, c, ml_json_get(c->args, "values"), "masks");
    ml_record_column(&b, c, "values", offsetof(miles_sample, advantage));
    whiten_samples(c, &b, &x, &st, ml_case_flag(c->args, "shift_mean"));
    ml_record_expect(c, (st != ML_OK) == fails(rank), "failure");
    for (int64_t i = 0; i < b.of.n && st == ML_OK; i++, rank = rank->next)
        for (int64_t t = 0; same && t < b.sample[i].n; t++) /* f32 loses these; we do not */
            ml_record_expect(c, isfinite(x[i][t]), "constant advantages must stay finite");
    rank = ranks->child;
    for (int64_t i = 0; i < b.of.n && st == ML_OK && !same; i++, rank = rank->next)
        ml_record_equal_row(c, x[i], b.sample[i].n, ml_json_get(rank, "whitened"),
                            rough ? (ml_tolerance){ 0.05, 0.05 }
                                  : (ml_tolerance){ 1e-4, 1e-5 },
                            "whitened");
}

static void play_normalize(ml_case *c) {
    const ml_json *rank = ml_json_get(c->out, "per_cp_rank")->child;
    ml_record_batch b;
    double **x;
    ml_status st;
    int64_t total = 0;

    if (ml_record_number(ml_json_get(c->args, "cp_size")) != 1.0)
        return; /* several ranks */
    ml_record_batch_init(&b, c, ml_json_get(c->args, "advantages"), "loss_masks");
    ml_record_column(&b, c, "advantages", offsetof(miles_sample, advantage));
    for (int64_t i = 0; i < b.of.n; i++)
        total += b.sample[i].n;
    whiten_samples(c, &b, &x, &st, true);
    ml_record_expect(c,
                     total == 0 || (st != ML_OK) == (ml_json_get(rank, "error") != NULL ||
                                                     fails(ml_json_get(rank, "out"))),
                     "failure");
    if (st == ML_OK)
        equal_columns(c, &b, x, ml_json_get(rank, "out"), (ml_tolerance){ 1e-3, 1e-4 },
                      "out");
}

/* --- distillation ---------------------------------------------------------------- */

/* An estimator that leaves the advantages as they are. */
static int as_given(const miles_batch *b, const miles_algo *algo, double *const *advantage,
                    double *const *returns, miles_error *err) {
    (void)algo;
    (void)returns;
    (void)err;
    for (int64_t i = 0; i < b->n; i++)
        memcpy(advantage[i], b->sample[i]->advantage,
               (size_t)b->sample[i]->n * sizeof(double));
    return 0;
}

static void play_opd(ml_case *c) {
    static const miles_advantage given = {
        { sizeof(miles_advantage), MILES_ADVANTAGE, "given", NULL, "" }, 0, as_given
    };
    ml_recipe r = { .num = ml_record_algo(), .advantage = &given, .use_opd = true };
    ml_record_batch b;
    ml_advantages got;
    ml_err err = { 0 };
    ml_status st;

    /* Columns of unequal lengths cannot be said here; a stage without the student's
     * log-probs belongs to a pipeline of several ranks. */
    if (strstr(ml_record_text(c, c->kind), "mismatch") ||
        strcmp(ml_record_text(c, c->kind), "no_student") == 0)
        return;
    r.opd_kl_coef = ml_record_number(ml_json_get(c->args, "opd_kl_coef"));
    ml_record_batch_init(&b, c, ml_json_get(c->args, "advantages"), NULL);
    ml_record_column(&b, c, "advantages", offsetof(miles_sample, advantage));
    ml_record_column(&b, c, "student_log_probs", offsetof(miles_sample, old_log_prob));
    ml_record_column(&b, c, "teacher_log_probs", offsetof(miles_sample, teacher_log_prob));
    ml_record_column(&b, c, "opd_reverse_kl", offsetof(miles_sample, opd_reverse_kl));
    st = ml_advantages_compute(&got, &c->arena, &r, &b.of, &err);
    ml_record_expect(c, (st != ML_OK) == fails(c->out), "failure");
    if (st != ML_OK)
        return;
    equal_columns(c, &b, got.advantage, ml_json_get(c->out, "advantages"), f64,
                  "advantages");
    equal_columns(c, &b, got.opd_reverse_kl, ml_json_get(c->out, "opd_reverse_kl"), f64,
                  "opd_reverse_kl");
}

static int word(ml_case *c, const char *key, const char *const *words) {
    const char *text = ml_record_text(c, ml_json_get(c->args, key));
    int i = 0;

    while (words[i] && strcmp(words[i], text) != 0)
        i++;
    ml_record_expect(c, words[i] != NULL, "an unknown word");
    return i;
}

/* A list of [log-prob, id, ...]; null is an empty one. */
static ml_opd_tokens tokens_of(ml_case *c, const ml_json *list) {
    int32_t n = list ? list->n : 0, i = 0;
    int32_t *id = ML_NEW(&c->arena, int32_t, n + 1);
    float *logprob = ML_NEW(&c->arena, float, n + 1);

    for (const ml_json *e = n ? list->child : NULL; e; e = e->next, i++) {
        double x = 0;
        ml_record_expect(c, ml_json_f64(e->child, &x), "a log-prob is not a number");
        logprob[i] = (float)x;
        id[i] = (int32_t)whole(e->child->next, -1);
    }
    return (ml_opd_tokens){ id, logprob, n };
}

/* Element `at` of a list that ends with the n positions of the response. */
static ml_opd_tokens position_of(ml_case *c, const char *key, int64_t at, int64_t n) {
    const ml_json *list = ml_json_get(c->args, key), *e;

    if (!list || list->type != ML_JSON_ARRAY)
        return (ml_opd_tokens){ 0 };
    e = list->child;
    for (int64_t skip = list->n - n + at; skip > 0; skip--)
        e = e->next;
    return tokens_of(c, e);
}

static void play_opd_topk(ml_case *c) {
    static const char *const sets[] = { "only-student", "only-teacher", "intersection",
                                        "union",        "xor",          NULL };
    static const char *const weights[] = { "student_p", "teacher_p", "none", NULL };
    int64_t n = whole(ml_json_get(c->args, "response_length"), 0);
    double *got = ML_NEW(&c->arena, double, n + 1);
    ml_opd_set set = (ml_opd_set)word(c, "strategy", sets);
    ml_opd_weight weight = (ml_opd_weight)word(c, "weight_mode", weights);
    ml_opd_needs needs = ml_opd_needs_of(set);
    static const ml_opd_tokens none = { 0 };
    ml_err err = { 0 };

    for (int64_t t = 0; t < n; t++) {
        ml_opd_position p = {
            needs.student_top ? position_of(c, "student_top", t, n) : none,
            needs.teacher_top ? position_of(c, "teacher_input_top", t, n) : none,
            needs.teacher_on_student ? position_of(c, "teacher_input_token_ids", t, n)
                                     : none,
            needs.student_on_teacher ? position_of(c, "student_input_token_ids", t, n)
                                     : none,
        };
        ml_record_expect(
            c, ml_opd_reverse_kl(&got[t], set, weight, &p, &c->arena, &err) == ML_OK,
            err.msg);
    }
    ml_record_equal_row(c, got, n, ml_json_get(c->out, "reverse_kl"), f32, "reverse_kl");
}

#define PLAYS(test, name, play)                                                            \
    static void test(void) {                                                               \
        ml_test_cases(name, play);                                                         \
    }
PLAYS(grpo_returns, "grpo_returns.jsonl", play_grpo)
PLAYS(reinforce_returns, "reinforce_pp_returns.jsonl", play_reinforce)
PLAYS(reinforce_baseline, "reinforce_pp_baseline.jsonl", play_baseline)
PLAYS(gae, "gae.jsonl", play_gae)
PLAYS(gae_serial, "gae_serial.jsonl", play_gae_serial)
PLAYS(advantages, "advantages.jsonl", play_advantages)
PLAYS(reward_norm, "reward_norm.jsonl", play_reward_norm)
PLAYS(zero_std, "zero_std_metrics.jsonl", play_zero_std)
PLAYS(whitening, "whiten.jsonl", play_whiten)
PLAYS(normalize, "normalize_advantages.jsonl", play_normalize)
PLAYS(opd, "opd.jsonl", play_opd)
PLAYS(opd_topk, "opd_topk.jsonl", play_opd_topk)

static const ml_test tests[] = {
    { "GRPO returns are Miles'", grpo_returns },
    { "REINFORCE++ returns are Miles'", reinforce_returns },
    { "REINFORCE++ baseline returns are Miles'", reinforce_baseline },
    { "GAE is Miles'", gae },
    { "serial GAE is Miles'", gae_serial },
    { "advantages of whole batches are Miles'", advantages },
    { "reward normalisation is Miles'", reward_norm },
    { "metrics of groups without variance are Miles'", zero_std },
    { "whitening is Miles'", whitening },
    { "advantage normalisation is Miles'", normalize },
    { "on-policy distillation is Miles'", opd },
    { "top-k distillation is Miles'", opd_topk },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
