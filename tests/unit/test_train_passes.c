/* Micro-batches that run as several passes (passes.h): the same bits, and less memory. */
#include <stdio.h>
#include <string.h>

#include "base/philox.h"
#include "run/memory_plan.h"
#include "tests/support/test.h"
#include "tests/support/train_fixture.h"
#include "train/passes.h"

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

static void check_order(const ml_bins *passes) {
    int32_t next = 0;

    for (int32_t k = 0; k < passes->n; k++)
        for (int32_t i = 0; i < passes->bin[k].n; i++)
            CHECK(passes->bin[k].item[i] == next++);
    CHECK(next == SAMPLES);
}

static void runs_of_samples(void) {
    ml_train_sample s[SAMPLES];
    ml_context_opts alone = { 0 }, share = { .share = true };
    ml_bins micro, passes;
    ml_arena a;

    ml_arena_init(&a, "test");
    make_samples(s, &a, 1000);
    micro = all_in_one(&a);
    passes = ml_passes_split(&a, &micro, s, &alone, 110);
    check_order(&passes);
    CHECK(passes.n == 6); /* two samples of 40 to 55 tokens */
    passes = ml_passes_split(&a, &micro, s, &alone, 1);
    check_order(&passes);
    CHECK(passes.n == SAMPLES);
    passes = ml_passes_split(&a, &micro, s, &share, 1);
    check_order(&passes);
    CHECK(passes.n == PROMPTS); /* the samples of a prompt stay together */
    for (int32_t k = 0; k < passes.n; k++)
        CHECK(passes.bin[k].n == ANSWERS);
    passes = ml_passes_split(&a, &micro, s, &share, 1 << 20);
    CHECK(passes.n == 1 && passes.bin[0].n == SAMPLES);
    ml_arena_release(&a);
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
    int32_t n_pass;
} result;

/* Two steps in passes of so many rows; between them the trainer rests. */
static void run(result *r, const char *name, int32_t pass_rows, bool share) {
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
    r->t.be.pass_rows = pass_rows;
    r->t.n_sample = SAMPLES;
    make_samples(r->t.sample, &r->t.arena, (int32_t)r->t.spec.n_vocab);
    for (int i = 0; i < 2; i++) {
        ml_schedule plan;
        CHECK(ml_trainer_schedule(&plan, r->t.trainer, &r->t.arena, r->t.sample, SAMPLES,
                                  &err) == ML_OK);
        r->n_pass = plan.step[0].rank[0].n;
        CHECK(ml_trainer_step(r->t.trainer,
                              &(ml_step){ .sample = r->t.sample,
                                          .micro = &plan.step[0].rank[0],
                                          .n_rollout = SAMPLES,
                                          .denominator = SAMPLES,
                                          .loss = ml_train_fixture_nll },
                              &r->step, &err) == ML_OK);
        ml_trainer_rest(r->t.trainer);
    }
}

static void check_family(const char *name, bool share) {
    result one, several;

    run(&one, name, 0, share);
    run(&several, name, 8, share);
    CHECK(one.n_pass == 1 && several.n_pass > 1);
    CHECK(one.step.applied && one.step.loss == several.step.loss &&
          one.step.grad_norm == several.step.grad_norm);
    CHECK(memcmp(one.t.weights.buf.ptr, several.t.weights.buf.ptr,
                 one.t.weights.buf.bytes) == 0);
    ml_train_fixture_close(&one.t);
    ml_train_fixture_close(&several.t);
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
    ml_memory whole, passes, longer;
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
    req.rows_together = 100;
    CHECK(ml_memory_plan(&passes, &req, &err) == ML_OK);
    CHECK(row_bytes(&passes, "activations") * (size_t)((1 << 16) / t.be.pass_rows) <
          row_bytes(&whole, "activations") * 11 / 10);
    req.rows_together = 2 * t.be.pass_rows; /* a sample that is longer than a pass */
    CHECK(ml_memory_plan(&longer, &req, &err) == ML_OK);
    CHECK(row_bytes(&longer, "activations") > row_bytes(&passes, "activations"));
    req.act_in_turns = true;
    CHECK(ml_memory_plan(&passes, &req, &err) == ML_OK);
    CHECK(passes.in_turns == 1000 && passes.total == longer.total - 1000);
    CHECK(passes.returned ==
          row_bytes(&passes, "activations") + row_bytes(&passes, "scratch"));
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
    { "passes are runs of samples and keep prompts together", runs_of_samples },
    { "pages of a shared prompt are there once", shared_pages },
    { "passes, and a rest between steps, change no bit of the weights", same_weights },
    { "the memory plan counts the rows of a pass", planned_memory },
    { "the host computes norms and activation functions again",
      cheap_results_are_not_kept },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
