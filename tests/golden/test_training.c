/* Training against PyTorch: the losses of 50 steps, with and without masks, the gradient of
 * a policy-like loss, and a step of GRPO (tools/gen_training_golden.py). */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/json.h"
#include "io/safetensors.h"
#include "plugin/resolve.h"
#include "rl/learn/advantage/reward_norm.h"
#include "rl/learn/step_run.h"
#include "tests/support/test.h"
#include "tests/support/train_fixture.h"

#define GOLDEN "tests/golden/training"

static const ml_json *read_golden(ml_arena *a, ml_file *f) {
    const ml_json *root = NULL;
    ml_err err = { 0 };
    if (ml_file_map(f, GOLDEN "/training.json", &err) ||
        ml_json_parse(&root, a, f->bytes, "training.json", &err))
        ml_test_fail(__FILE__, __LINE__, "%s", err.msg);
    return root;
}

static void track(const char *name, bool whole, int n_thread) {
    ml_train_fixture t;
    ml_arena a;
    ml_file f = { 0 };
    const ml_json *run, *loss, *norm;
    double first = 0, last = 0;

    ml_arena_init(&a, "golden");
    run = ml_json_get(read_golden(&a, &f), name);
    loss = ml_json_get(run, "loss")->child;
    norm = ml_json_get(run, "grad_norm")->child;
    ml_train_fixture_open(
        &t, &(ml_train_fixture_opts){ .dtype = ML_WEIGHT_F32,
                                      .n_thread = n_thread,
                                      .whole = whole,
                                      .trainer = ml_train_fixture_defaults() });
    for (int i = 0; i < 50; i++, loss = loss->next, norm = norm->next) {
        ml_step_result r = ml_train_fixture_step(&t, 200);
        double want = 0, want_norm = 0;
        ml_json_f64(loss, &want);
        ml_json_f64(norm, &want_norm);
        if (!(fabs(r.loss - want) <= 1e-4 * want))
            ml_test_fail(__FILE__, __LINE__, "step %d: loss %.8f instead of %.8f", i,
                         r.loss, want);
        if (!(fabs(r.grad_norm - want_norm) <= 2e-3 * want_norm))
            ml_test_fail(__FILE__, __LINE__, "step %d: gradient norm %.6f instead of %.6f",
                         i, r.grad_norm, want_norm);
        CHECK(r.applied && r.lr == 1e-3 && r.weight_decay == 0.1);
        first = i == 0 ? r.loss : first;
        last = r.loss;
    }
    CHECK(last < 0.7 * first);
    CHECK(t.weights.version == 50 && ml_trainer_samples(t.trainer) == 150);
    ml_train_fixture_close(&t);
    ml_file_unmap(&f);
    ml_arena_release(&a);
}

static void all_tokens(void) {
    track("all", true, 2);
}

static void masked_tokens(void) {
    track("masked", false, 1);
}

/* d (a log p + b H), a and b as in the script. */
static ml_status weighted(void *ud, ml_loss_io *io, int32_t n, ml_err *err) {
    (void)ud;
    (void)err;
    for (int32_t i = 0; i < n; i++)
        for (int32_t t = 0; t < io[i].n_response; t++) {
            io[i].dlogprob[t] = (float)((5 * t + 3 * io[i].sample) % 11 - 5) / 8;
            io[i].dentropy[t] = (float)((3 * t + 2 * io[i].sample) % 7 - 3) / 16;
        }
    return ML_OK;
}

/* Against the tensor of this name. */
static void same_gradient(const ml_train_fixture *t, const ml_st_file *want,
                          const char *name, int32_t i) {
    const ml_param *p = &t->spec.param[i];
    int64_t rows = p->n_dim == 2 ? p->shape[0] : 1, n = ml_param_count(p);
    const ml_st_tensor *w = ml_st_find(want, ml_str_of(name));
    float *got = malloc((size_t)n * sizeof *got);
    double diff = 0, size = 0;

    ml_weights_unpack(ml_trainer_grads(t->trainer), i, 0, 0, rows, ML_F32, got);
    for (int64_t k = 0; w && k < n; k++) {
        diff += pow((double)got[k] - (double)((const float *)w->data)[k], 2);
        size += pow((double)((const float *)w->data)[k], 2);
    }
    if (!w || !(sqrt(diff) <= 1e-5 * sqrt(size)) || size == 0)
        ml_test_fail(__FILE__, __LINE__, "%s: relative error %g", p->name,
                     sqrt(diff / size));
    free(got);
}

static void policy_gradient(void) {
    ml_train_fixture_opts o = { .dtype = ML_WEIGHT_F32,
                                .trainer = ml_train_fixture_defaults() };
    ml_train_fixture t;
    ml_st_file *want = NULL;
    ml_step_result r;
    ml_err err = { 0 };
    ml_bins bins;

    o.trainer.temperature = 0.7;
    ml_train_fixture_open(&t, &o);
    bins = ml_train_fixture_bins(&t, 120);
    CHECK(ml_st_open(&want, GOLDEN "/policy_grads.safetensors", &err) == ML_OK);
    CHECK(ml_trainer_accumulate(t.trainer,
                                &(ml_step){ .sample = t.sample,
                                            .micro = &bins,
                                            .denominator = 1,
                                            .loss = weighted,
                                            .entropy = true },
                                &r, &err) == ML_OK);
    for (int32_t i = 0; i < t.spec.n_param && want; i++)
        same_gradient(&t, want, t.spec.param[i].name, i);
    ml_st_close(want);
    ml_train_fixture_close(&t);
}

/* --- a step of GRPO --------------------------------------------------------------- */

static ml_recipe grpo_recipe(void) {
    ml_algo_opts o = { .num = { .eps_clip = 0.2,
                                .eps_clip_high = 0.28,
                                .eps_clip_c = (double)NAN,
                                .entropy_coef = 0.01,
                                .use_kl_loss = true,
                                .kl_loss_coef = 0.1,
                                .kl_loss_type = MILES_LOW_VAR_KL },
                       .advantage_estimator = "grpo",
                       .loss_type = "policy_loss" };
    ml_recipe r;
    ml_err err = { 0 };

    if (ml_recipe_resolve(&r, &o, &err) != ML_OK)
        ml_test_fail(__FILE__, __LINE__, "%s", err.msg);
    return r;
}

/* A column of the golden file: "old.3". */
static double *column(ml_arena *a, const ml_st_file *f, const char *what, int32_t i,
                      int32_t n) {
    char name[40];
    const ml_st_tensor *t;
    double *out = ML_NEW(a, double, n + 1);

    snprintf(name, sizeof name, "%s.%d", what, i);
    t = ml_st_find(f, ml_str_of(name));
    if (!t || t->shape[0] != n)
        ml_test_fail(__FILE__, __LINE__, "%s is not there, or of another length", name);
    for (int32_t k = 0; t && k < n; k++)
        out[k] = (double)((const float *)t->data)[k];
    return out;
}

/* The samples are one group; rewards follow a formula that the generator repeats. */
static const miles_sample **grpo_rows(ml_arena *a, const ml_train_fixture *t,
                                      const ml_st_file *f, const ml_recipe *recipe) {
    miles_sample *row = ML_NEW(a, miles_sample, t->n_sample);
    const miles_sample **view = ML_NEW(a, const miles_sample *, t->n_sample);
    ml_reward_row *reward = ML_NEW(a, ml_reward_row, t->n_sample);
    double *used = ML_NEW(a, double, t->n_sample);
    ml_err err = { 0 };

    for (int32_t i = 0; i < t->n_sample; i++)
        reward[i] = (ml_reward_row){ 0, i, 3 * i % 5 / 4.0 };
    CHECK(ml_rewards_normalise(used, reward, t->n_sample, recipe->scale_rewards, &err) ==
          ML_OK);
    for (int32_t i = 0; i < t->n_sample; i++) {
        int32_t n = t->sample[i].n_response;
        double *advantage = ML_NEW(a, double, n + 1);
        for (int32_t k = 0; k < n; k++)
            advantage[k] = used[i];
        row[i] = (miles_sample){ .size = sizeof *row,
                                 .n = n,
                                 .rollout = i,
                                 .mask = t->sample[i].mask,
                                 .kept = t->sample[i].mask,
                                 .old_log_prob = column(a, f, "old", i, n),
                                 .ref_log_prob = column(a, f, "ref", i, n),
                                 .advantage = advantage };
        view[i] = &row[i];
    }
    return view;
}

static void grpo_step(ml_train_fixture *t, ml_arena *a, const ml_st_file *f, double *loss) {
    ml_recipe recipe = grpo_recipe();
    miles_batch batch = { sizeof batch, t->n_sample, grpo_rows(a, t, f, &recipe) };
    ml_bins bins = ml_train_fixture_bins(t, 120);
    ml_schedule_step step = { .rank = &bins, .n_rollout = t->n_sample };
    int32_t *number = ML_NEW(a, int32_t, t->n_sample);
    double metric[ML_STEP_METRIC_MAX];
    ml_step_loss of;
    ml_step_result r;
    ml_err err = { 0 };

    for (int32_t i = 0; i < t->n_sample; i++)
        number[i] = i;
    CHECK(ml_step_loss_init(&of, a, &recipe, recipe.loss, &batch, &err) == ML_OK);
    CHECK(ml_step_run_on(
              t->trainer,
              &(ml_step_run){
                  .loss = &of, .sample = number, .list = t->sample, .step = &step },
              &r, metric, &err) == ML_OK);
    *loss = r.loss;
}

static void grpo(void) {
    ml_train_fixture_opts o = { .dtype = ML_WEIGHT_F32,
                                .trainer = ml_train_fixture_defaults() };
    ml_train_fixture t;
    ml_st_file *want = NULL;
    ml_arena a;
    ml_err err = { 0 };
    double loss = 0, torch;
    int32_t n = 0;

    ml_arena_init(&a, "grpo");
    ml_train_fixture_open(&t, &o);
    CHECK(ml_st_open(&want, GOLDEN "/grpo.safetensors", &err) == ML_OK);
    grpo_step(&t, &a, want, &loss);
    torch = (double)*(const float *)ml_st_find(want, ml_str_of("loss"))->data;
    if (!(fabs(loss - torch) <= 1e-5 * fabs(torch)))
        ml_test_fail(__FILE__, __LINE__, "the loss is %.9g, not %.9g", loss, torch);
    for (int32_t i = 0; i < t.spec.n_param; i++) {
        char name[200];
        snprintf(name, sizeof name, "grad.%s", t.spec.param[i].name);
        if (!ml_st_find(want, ml_str_of(name)))
            continue;
        same_gradient(&t, want, name, i);
        n++;
    }
    CHECK(n == 6);
    ml_st_close(want);
    ml_train_fixture_close(&t);
    ml_arena_release(&a);
}

static const ml_test tests[] = {
    { "50 steps on all tokens follow PyTorch", all_tokens },
    { "50 steps on masked tokens follow PyTorch", masked_tokens },
    { "the gradient of a policy loss is PyTorch's", policy_gradient },
    { "a step of GRPO is PyTorch's", grpo },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
