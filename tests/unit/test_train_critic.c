/* A critic: a model with a value per token, trained on targets of its own. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/scratch.h"
#include "tests/support/test.h"
#include "tests/support/train_fixture.h"
#include "train/snapshot.h"

static ml_train_fixture_opts opts_for(const char *dir, ml_weight_dtype dtype) {
    return (ml_train_fixture_opts){ .dir = dir,
                                    .dtype = dtype,
                                    .n_thread = 2,
                                    .critic = true,
                                    .trainer = ml_train_fixture_defaults() };
}

static double target_of(int32_t sample, int32_t t) {
    return 0.5 * ((sample + t) % 3 - 1);
}

/* Half the squared distance to the targets. */
static ml_status squared(void *ud, ml_loss_io *io, int32_t n, ml_err *err) {
    (void)ud;
    (void)err;
    for (int32_t i = 0; i < n; i++) {
        CHECK(!io[i].logprob && !io[i].entropy && !io[i].dlogprob);
        for (int32_t t = 0; t < io[i].n_response; t++) {
            double e = (double)io[i].value[t] - target_of(io[i].sample, t);
            if (!io[i].mask[t])
                continue;
            io[i].loss += 0.5 * e * e;
            io[i].dvalue[t] = (float)e;
        }
    }
    return ML_OK;
}

static ml_step_result run(ml_train_fixture *t, int64_t max_tokens, bool apply) {
    ml_bins bins = ml_train_fixture_bins(t, max_tokens);
    ml_step step = { .sample = t->sample,
                     .micro = &bins,
                     .n_rollout = 3,
                     .denominator = 1,
                     .loss = squared };
    ml_step_result r;
    ml_err err = { 0 };
    ml_status st = apply ? ml_trainer_step(t->trainer, &step, &r, &err)
                         : ml_trainer_accumulate(t->trainer, &step, &r, &err);
    if (st != ML_OK)
        ml_test_fail(__FILE__, __LINE__, "%s", err.msg);
    return r;
}

static double loss_with(ml_train_fixture *t, int32_t param, int64_t at, float delta) {
    float *w = t->weights.t[param].data, kept = w[at];
    double loss;

    w[at] = kept + delta;
    loss = run(t, 200, false).loss;
    w[at] = kept;
    return loss;
}

static void check_gradient(ml_train_fixture *t, const char *name, int64_t at) {
    int32_t member, i = ml_spec_find(&t->spec, ml_str_of(name), &member);
    const float h = 1e-2f;
    double got, want;

    CHECK(i != ML_NONE);
    want = (loss_with(t, i, at, h) - loss_with(t, i, at, -h)) / (2 * (double)h);
    run(t, 200, false);
    got = (double)((float *)ml_trainer_grads(t->trainer)->t[i].data)[at];
    if (!(fabs(got - want) <= 2e-3 * (fabs(want) + 0.05)))
        ml_test_fail(__FILE__, __LINE__, "%s[%d]: gradient %g, difference quotient %g",
                     name, (int)at, got, want);
}

static void gradients_are_derivatives(void) {
    ml_train_fixture_opts o = opts_for(NULL, ML_WEIGHT_F32);
    ml_train_fixture t;

    ml_train_fixture_open(&t, &o);
    CHECK(t.spec.critic &&
          ml_spec_find(&t.spec, ml_str_of("lm_head.weight"), &(int32_t){ 0 }) == ML_NONE);
    check_gradient(&t, "value_head.weight", 3 * ML_LANES);
    check_gradient(&t, "value_head.bias", 0);
    check_gradient(&t, "model.norm.weight", 5);
    check_gradient(&t, "model.layers.0.mlp.down_proj.weight", 40);
    ml_train_fixture_close(&t);
}

static void same_bits_however_cut(const char *dir) {
    ml_train_fixture_opts o = opts_for(dir, ML_WEIGHT_F32);
    ml_train_fixture t;
    size_t bytes;
    unsigned char *first;
    double loss;

    ml_train_fixture_open(&t, &o);
    loss = run(&t, 0, false).loss;
    bytes = ml_trainer_grads(t.trainer)->buf.bytes;
    first = malloc(bytes);
    memcpy(first, ml_trainer_grads(t.trainer)->buf.ptr, bytes);
    CHECK(run(&t, 1000, false).loss == loss);
    CHECK(memcmp(first, ml_trainer_grads(t.trainer)->buf.ptr, bytes) == 0);
    free(first);
    ml_train_fixture_close(&t);
}

static void micro_batches_do_not_show(void) {
    same_bits_however_cut("tests/golden/data/qwen3");
    same_bits_however_cut("tests/golden/data/llama_tied");
}

static void learns_and_scores(void) {
    static float buf[ML_TRAIN_FIXTURE_SAMPLES][200];
    ml_train_fixture_opts o = opts_for(NULL, ML_WEIGHT_F32);
    ml_train_fixture t;
    float *value[ML_TRAIN_FIXTURE_SAMPLES];
    double first, loss = 0;
    ml_err err = { 0 };

    for (int i = 0; i < ML_TRAIN_FIXTURE_SAMPLES; i++)
        value[i] = buf[i];
    o.trainer.keep_logits = true; /* of which a critic has none */
    ml_train_fixture_open(&t, &o);
    first = run(&t, 200, true).loss;
    for (int i = 0; i < 30; i++)
        run(&t, 200, true);
    CHECK(ml_trainer_score(t.trainer, NULL, t.sample, t.n_sample, value, NULL, &err) ==
          ML_OK);
    for (int32_t i = 0; i < t.n_sample; i++)
        for (int32_t k = 0; k < t.sample[i].n_response; k++)
            if (t.sample[i].mask[k])
                loss += 0.5 * pow((double)buf[i][k] - target_of(i, k), 2);
    CHECK(loss < 0.5 * first);
    CHECK(fabs(run(&t, 200, false).loss - loss) < 1e-9 * first);
    ml_train_fixture_close(&t);
}

/* A critic's checkpoint has its own head, and no longer that of the language model. */
static void resumes_with_its_head(void) {
    ml_train_fixture_opts o = opts_for(NULL, ML_WEIGHT_F32);
    const char *dir = ml_test_path("critic");
    ml_train_fixture a, b;
    ml_saver *s = NULL;
    ml_save_state state = { .iteration = 0, .data = { "{}", 2 }, .config = { "{}", 2 } };
    ml_checkpoint *c = NULL;
    ml_arena arena;
    ml_err err = { 0 };
    const char *path;

    ml_arena_init(&arena, "test");
    ml_train_fixture_open(&a, &o);
    run(&a, 200, true);
    path = ml_snapshot_path(&arena, dir, 0);
    CHECK(!ml_saver_open(&s, &(ml_saver_opts){ .dir = dir, .from = a.checkpoint }, &err) &&
          !ml_saver_save(s, &(ml_save_models){ .actor = a.trainer }, &state, &err) &&
          !ml_snapshot_check(path, &err));
    ml_saver_close(s);
    ml_train_fixture_open(&b, &o);
    ml_trainer_close(b.trainer);
    ml_weights_close(&b.weights);
    CHECK(!ml_checkpoint_open(&c, path, &err) &&
          !ml_weights_load(&b.weights, &b.spec, c, o.dtype, &b.be, &b.arena, &err) &&
          !ml_trainer_open(&b.trainer, &b.spec, &b.weights, &b.be, &o.trainer, &err) &&
          !ml_snapshot_load(path, &(ml_snapshot_into){ .trainer = b.trainer }, &state,
                            &arena, &err));
    CHECK(ml_checkpoint_find(c, ml_str_of("value_head.weight"), NULL) &&
          !ml_checkpoint_find(c, ml_str_of("lm_head.weight"), NULL));
    CHECK(memcmp(a.weights.buf.ptr, b.weights.buf.ptr, a.weights.buf.bytes) == 0);
    run(&a, 200, true);
    run(&b, 200, true);
    CHECK(memcmp(a.weights.buf.ptr, b.weights.buf.ptr, a.weights.buf.bytes) == 0);
    ml_checkpoint_close(c);
    ml_train_fixture_close(&a);
    ml_train_fixture_close(&b);
    ml_arena_release(&arena);
}

static const ml_test tests[] = {
    { "critic gradients are difference quotients", gradients_are_derivatives },
    { "critic steps are the same bits for any micro-batch", micro_batches_do_not_show },
    { "a critic learns and scores values", learns_and_scores },
    { "a critic's checkpoint has its value head", resumes_with_its_head },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
