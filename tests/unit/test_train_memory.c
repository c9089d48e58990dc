/* Memory that training does not need: the same bits without it. */
#include <stdio.h>
#include <string.h>

#include "base/philox.h"
#include "run/memory_plan.h"
#include "tests/support/test.h"
#include "tests/support/train_fixture.h"
#include "train/micro.h"

enum { PROMPTS = 3, ANSWERS = 4, SAMPLES = PROMPTS * ANSWERS, PROMPT = 37, LONGEST = 64 };

/* The samples of a prompt follow each other; their answers differ in length. */
static void make_samples(ml_train_sample *s, ml_arena *a, int32_t n_vocab) {
    for (int32_t i = 0; i < SAMPLES; i++) {
        int32_t answer = 3 + 5 * (i % ANSWERS), *token = ML_NEW(a, int32_t, LONGEST);
        for (int32_t k = 0; k < PROMPT + answer; k++) {
            int32_t stream = k < PROMPT ? i / ANSWERS : 100 + i;
            token[k] = (int32_t)(ml_philox_at(7, (uint64_t)stream, (uint64_t)k).word[0] %
                                 (uint32_t)n_vocab);
        }
        s[i] = (ml_train_sample){
            .token = token, .n_token = PROMPT + answer, .n_response = answer, .rollout = i
        };
    }
}

static ml_bins all_in_one(ml_arena *a) {
    ml_bins bins = { .bin = ML_NEW(a, ml_bin, 1), .n = 1 };

    bins.bin[0] = (ml_bin){ .item = ML_NEW(a, int32_t, SAMPLES), .n = SAMPLES };
    for (int32_t i = 0; i < SAMPLES; i++)
        bins.bin[0].item[i] = i;
    return bins;
}

/* A prompt of 37 tokens shares two pages: they are there once, and listed by all samples. */
static void shared_pages(void) {
    ml_train_sample s[SAMPLES];
    ml_context_opts share = { .share = true };
    ml_batch_caps need;
    ml_bins micro;
    ml_arena a;

    ml_arena_init(&a, "test");
    make_samples(s, &a, 1000);
    micro = all_in_one(&a);
    need = ml_micro_need(s, &micro.bin[0], &share);
    CHECK(need.n_again == 2 * SAMPLES);
    CHECK(need.n_page == PROMPTS * (2 + 1 + 1 + 2 + 2)); /* 8, 13, 18 and 23 own tokens */
    ml_arena_release(&a);
}

typedef struct result {
    ml_train_fixture t;
    ml_step_result step;
} result;

/* Two steps; between them the trainer rests, or does not. */
static void run(result *r, const char *name, bool rests, bool share) {
    char dir[100];
    ml_train_fixture_opts o = { .dir = dir,
                                .dtype = ML_WEIGHT_BF16,
                                .trainer = ml_train_fixture_defaults() };
    ml_err err = { 0 };

    snprintf(dir, sizeof dir, "tests/golden/data/%s", name);
    o.trainer.share_prefixes = share;
    o.trainer.batch =
        (ml_schedule_opts){ .one_step = true, .dynamic = true, .max_tokens = 1 << 20 };
    ml_train_fixture_open(&r->t, &o);
    r->t.n_sample = SAMPLES;
    make_samples(r->t.sample, &r->t.arena, (int32_t)r->t.spec.n_vocab);
    for (int i = 0; i < 2; i++) {
        ml_schedule plan;
        CHECK(ml_trainer_schedule(&plan, r->t.trainer, &r->t.arena, r->t.sample, SAMPLES,
                                  &err) == ML_OK);
        CHECK(ml_trainer_step(r->t.trainer,
                              &(ml_step){ .sample = r->t.sample,
                                          .micro = &plan.step[0].rank[0],
                                          .n_rollout = SAMPLES,
                                          .denominator = SAMPLES,
                                          .loss = ml_train_fixture_nll },
                              &r->step, &err) == ML_OK);
        if (rests)
            ml_trainer_rest(r->t.trainer);
    }
}

static void check_family(const char *name, bool share) {
    result one, other;

    run(&one, name, false, share);
    run(&other, name, true, share);
    CHECK(one.step.applied && one.step.loss == other.step.loss &&
          one.step.grad_norm == other.step.grad_norm);
    CHECK(memcmp(one.t.weights.buf.ptr, other.t.weights.buf.ptr, one.t.weights.buf.bytes) ==
          0);
    ml_train_fixture_close(&one.t);
    ml_train_fixture_close(&other.t);
}

static void same_weights(void) {
    static const char *const families[] = { "llama_tied", "qwen3", "qwen3_moe",
                                            "gemma3_text" };

    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        check_family(families[i], false);
        check_family(families[i], true);
    }
}

static size_t row_bytes(const ml_memory *m, const char *what) {
    for (int i = 0; i < m->n; i++)
        if (strcmp(m->row[i].what, what) == 0)
            return m->row[i].bytes;
    return 0;
}

static void planned_memory(void) {
    static const char *const sets[] = { "actor weights", NULL };
    ml_train_fixture_opts o = { .dtype = ML_WEIGHT_BF16,
                                .trainer = ml_train_fixture_defaults() };
    ml_train_fixture t;
    ml_memory_request req;
    ml_memory whole, turns;
    ml_err err = { 0 };

    o.trainer.batch =
        (ml_schedule_opts){ .one_step = true, .dynamic = true, .max_tokens = 1 << 16 };
    ml_train_fixture_open(&t, &o);
    req = (ml_memory_request){ .spec = &t.spec,
                               .be = &t.be,
                               .weight_bytes = t.weights.buf.bytes,
                               .bf16 = true,
                               .set = sets,
                               .opts = o.trainer,
                               .kv_bytes = 1000 };
    CHECK(ml_memory_plan(&whole, &req, &err) == ML_OK && whole.in_turns == 0);
    req.act_in_turns = true;
    CHECK(ml_memory_plan(&turns, &req, &err) == ML_OK);
    CHECK(turns.in_turns == 1000 && turns.total == whole.total - 1000);
    CHECK(turns.returned ==
          row_bytes(&turns, "activations") + row_bytes(&turns, "scratch"));
    ml_train_fixture_close(&t);
}

/* Norms and activation functions are computed again on the host, not on a device. */
static void cheap_results_are_not_kept(void) {
    ml_train_fixture_opts o = { .dtype = ML_WEIGHT_BF16,
                                .trainer = ml_train_fixture_defaults() };
    ml_plan_opts opts = { .caps = { .n_token = 64, .n_seq = 1, .n_loss = 8, .n_page = 4 },
                          .backward = true };
    ml_plan *plan[2] = { NULL };
    ml_train_fixture t;
    ml_backend be;
    ml_device dev;
    ml_err err = { 0 };

    ml_train_fixture_open(&t, &o);
    be = t.be;
    dev = *be.dev;
    dev.host = false;
    be.dev = &dev;
    CHECK(ml_plan_new(&plan[0], &t.spec, &t.be, opts, &err) == ML_OK);
    CHECK(ml_plan_new(&plan[1], &t.spec, &be, opts, &err) == ML_OK);
    CHECK(ml_plan_set_bytes(plan[0]) < ml_plan_set_bytes(plan[1]) * 9 / 10);
    ml_plan_free(plan[0]);
    ml_plan_free(plan[1]);
    ml_train_fixture_close(&t);
}

static const ml_test tests[] = {
    { "pages of a shared prompt are there once", shared_pages },
    { "a rest between steps changes no bit of the weights", same_weights },
    { "the KV cache and activations use memory in turn", planned_memory },
    { "the host computes norms and activation functions again",
      cheap_results_are_not_kept },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
