/* Samples that share the rows of their prompts (prefix.h): the same log-probs, bit for bit, and the gradients of
 * samples that do not. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/philox.h"
#include "tests/support/test.h"
#include "tests/support/train_fixture.h"
#include "train/prefix.h"

enum { PROMPTS = 3, ANSWERS = 4, SAMPLES = PROMPTS * ANSWERS, LONGEST = 256 };

static const char *const families[] = {
    "llama",  "llama_tied",  "qwen2",        "qwen3",       "qwen3_moe", "mixtral",
    "gemma2", "gemma3_text", "gemma3n_text", "gpt_oss",     "glm4_moe",  "minimax_m2",
    "olmo2",  "phi3",        "smollm3",      "deepseek_v3", "mistral",   "llama_yarn",
};

static int32_t number(int32_t stream, int32_t i, int32_t below) {
    return (int32_t)(ml_philox_at(7, (uint64_t)stream, (uint64_t)i).word[0] %
                     (uint32_t)below);
}

/* Prompts of a page and a bit, of a tile, and of several tiles; answers of one token, and so long that all
 * keys of the tile with the prefix's end are read.  Samples of the prompts alternate. */
static void make_samples(ml_train_fixture *t) {
    static const int32_t prompt[PROMPTS] = { 21, 64, 150 };
    static const int32_t answers[ANSWERS] = { 60, 1, 95, 14 };

    t->n_sample = SAMPLES;
    for (int32_t i = 0; i < SAMPLES; i++) {
        int32_t of = i % PROMPTS, n = prompt[of], answer = answers[i / PROMPTS];
        int32_t *token = ML_NEW(&t->arena, int32_t, LONGEST);
        uint8_t *mask = ML_NEW(&t->arena, uint8_t, LONGEST);
        for (int32_t k = 0; k < n + answer; k++)
            token[k] = number(k < n ? of : 100 + i, k, (int32_t)t->spec.n_vocab);
        for (int32_t k = 0; k < answer; k++)
            mask[k] = k % 5 != 3;
        t->sample[i] = (ml_train_sample){ .token = token,
                                          .n_token = n + answer,
                                          .n_response = answer,
                                          .mask = mask,
                                          .rollout = i };
    }
}

typedef struct result {
    ml_train_fixture t;
    float *logprob[SAMPLES], *entropy[SAMPLES];
    ml_step_result step;
} result;

/* The sum of the values. */
static ml_status values(void *ud, ml_loss_io *io, int32_t n, ml_err *err) {
    (void)ud;
    (void)err;
    for (int32_t i = 0; i < n; i++)
        for (int32_t t = 0; t < io[i].n_response; t++) {
            bool counts = io[i].mask[t] != 0;
            io[i].loss += counts ? (double)io[i].value[t] : 0.0;
            io[i].dvalue[t] = counts ? 1.0f : 0.0f;
        }
    return ML_OK;
}

/* Tokens [0, until) of conversation `of` and, from there to n, those of another; the last n_response are trained. */
static void add_turn(ml_train_fixture *t, int32_t of, int32_t until, int32_t other,
                     int32_t n, int32_t n_response) {
    int32_t *token = ML_NEW(&t->arena, int32_t, LONGEST);
    uint8_t *mask = ML_NEW(&t->arena, uint8_t, LONGEST);

    for (int32_t k = 0; k < n; k++)
        token[k] = number(k < until ? of : other, k, (int32_t)t->spec.n_vocab);
    for (int32_t k = 0; k < n_response; k++)
        mask[k] = (k + t->n_sample) % 5 != 3;
    t->sample[t->n_sample] = (ml_train_sample){ .token = token,
                                                .n_token = n,
                                                .n_response = n_response,
                                                .mask = mask,
                                                .rollout = t->n_sample };
    t->n_sample++;
}

/* A conversation whose turns are samples of their own, with branches, and one trained as a whole: rows of responses
 * are those of prompts of others, or scored by several. */
static void make_conversations(ml_train_fixture *t) {
    t->n_sample = 0;
    add_turn(t, 1, 60, 0, 60, 39);    /* its first turn */
    add_turn(t, 9, 80, 0, 80, 20);    /* another conversation */
    add_turn(t, 1, 120, 0, 120, 20);  /* the second turn, after the first */
    add_turn(t, 1, 90, 2, 140, 50);   /* a branch within it */
    add_turn(t, 1, 120, 0, 120, 20);  /* the same answer again */
    add_turn(t, 1, 120, 3, 200, 179); /* all turns of another branch at once */
    add_turn(t, 1, 90, 2, 140, 119);  /* and of the first branch */
    add_turn(t, 9, 48, 4, 49, 1);     /* a page boundary and a token */
}

static void run_with(result *r, ml_train_fixture_opts o, bool share, int32_t max_tokens,
                     void (*make)(ml_train_fixture *)) {
    ml_schedule plan;
    ml_err err = { 0 };

    o.trainer = ml_train_fixture_defaults();
    o.trainer.use = ML_TRAINER_GRADS;
    o.trainer.share_prefixes = share;
    o.trainer.batch =
        (ml_schedule_opts){ .one_step = true, .dynamic = true, .max_tokens = max_tokens };
    ml_train_fixture_open(&r->t, &o);
    make(&r->t);
    for (int32_t i = 0; i < r->t.n_sample; i++) {
        r->logprob[i] = ML_NEW(&r->t.arena, float, LONGEST);
        r->entropy[i] = ML_NEW(&r->t.arena, float, LONGEST);
    }
    CHECK(ml_trainer_score(r->t.trainer, NULL, r->t.sample, r->t.n_sample, r->logprob,
                           o.critic ? NULL : r->entropy, &err) == ML_OK);
    CHECK(ml_trainer_schedule(&plan, r->t.trainer, &r->t.arena, r->t.sample, r->t.n_sample,
                              &err) == ML_OK);
    CHECK(ml_trainer_accumulate(
              r->t.trainer,
              &(ml_step){ .sample = r->t.sample,
                          .micro = &plan.step[0].rank[0],
                          .n_rollout = r->t.n_sample,
                          .denominator = r->t.n_sample,
                          .loss = o.critic ? values : ml_train_fixture_nll },
              &r->step, &err) == ML_OK);
}

static void run(result *r, ml_train_fixture_opts o, bool share, int32_t max_tokens) {
    run_with(r, o, share, max_tokens, make_samples);
}

static void check_scores(const result *a, const result *b) {
    for (int32_t i = 0; i < a->t.n_sample; i++) {
        size_t bytes = (size_t)a->t.sample[i].n_response * sizeof(float);
        CHECK(memcmp(a->logprob[i], b->logprob[i], bytes) == 0);
        CHECK(memcmp(a->entropy[i], b->entropy[i], bytes) == 0);
    }
    CHECK(a->step.loss == b->step.loss && a->step.n_token == b->step.n_token);
}

/* The norm of the difference is below 1e-6 of that of the gradients. */
static void check_grads(const result *a, const result *b) {
    const ml_weights *x = ml_trainer_grads(a->t.trainer),
                     *y = ml_trainer_grads(b->t.trainer);
    const float *of_x = x->buf.ptr, *of_y = y->buf.ptr;
    double all = 0.0, apart = 0.0;

    for (size_t i = 0; i < x->buf.bytes / sizeof *of_x; i++) {
        double d = (double)of_x[i] - (double)of_y[i];
        all += (double)of_x[i] * (double)of_x[i];
        apart += d * d;
    }
    CHECK(x->buf.bytes == y->buf.bytes && all > 0 && sqrt(apart / all) < 1e-6);
}

static void close_all(result *r, int n) {
    for (int i = 0; i < n; i++)
        ml_train_fixture_close(&r[i].t);
}

static void check_family(const char *name, ml_weight_dtype dtype) {
    char dir[100];
    ml_train_fixture_opts o = { .dir = dir, .dtype = dtype };
    result r[3];

    snprintf(dir, sizeof dir, "tests/golden/data/%s", name);
    run(&r[0], o, false, 1 << 20);
    run(&r[1], o, true, 1 << 20);
    check_scores(&r[0], &r[1]);
    check_grads(&r[0], &r[1]);
    o.n_thread = 3; /* the same bytes, whatever the number of threads */
    run(&r[2], o, true, 1 << 20);
    check_scores(&r[1], &r[2]);
    CHECK(memcmp(ml_trainer_grads(r[1].t.trainer)->buf.ptr,
                 ml_trainer_grads(r[2].t.trainer)->buf.ptr,
                 ml_trainer_grads(r[1].t.trainer)->buf.bytes) == 0);
    close_all(r, 3);
}

static void families_share(void) {
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        check_family(families[i], ML_WEIGHT_F32);
        check_family(families[i], ML_WEIGHT_BF16);
    }
}

/* Samples of a prompt in several micro-batches share what they have in each. */
static void micro_batches_share(void) {
    result r[2];

    run(&r[0], (ml_train_fixture_opts){ 0 }, false, 300);
    run(&r[1], (ml_train_fixture_opts){ 0 }, true, 300);
    check_scores(&r[0], &r[1]);
    check_grads(&r[0], &r[1]);
    close_all(r, 2);
}

/* Trees of several levels. */
static void conversations_share(void) {
    static const char *const name[] = { "llama", "qwen3_moe", "gemma2", "deepseek_v3" };
    ml_context_opts share = { .share = true }, alone = { 0 };

    for (int i = 0; i < 4; i++)
        for (int critic = 0; critic < 2; critic++) {
            char dir[100];
            ml_train_fixture_opts o = { .dir = dir, .critic = critic };
            ml_bins bins;
            result r[3];
            snprintf(dir, sizeof dir, "tests/golden/data/%s", name[i]);
            run_with(&r[0], o, false, 1 << 20, make_conversations);
            run_with(&r[1], o, true, 1 << 20, make_conversations);
            check_scores(&r[0], &r[1]);
            check_grads(&r[0], &r[1]);
            run_with(&r[2], o, true, 250, make_conversations); /* several micro-batches */
            check_scores(&r[0], &r[2]);
            check_grads(&r[0], &r[2]);
            bins = ml_train_fixture_bins(&r[1].t, 1 << 20);
            ml_prefix_group(r[1].t.sample, bins.bin[0].item, bins.bin[0].n);
            CHECK(ml_micro_need(r[1].t.sample, &bins.bin[0], &alone).n_token == 909);
            CHECK(ml_micro_need(r[1].t.sample, &bins.bin[0], &share).n_token == 397);
            close_all(r, 3);
        }
}

static void critics_share(void) {
    result r[2];

    run(&r[0], (ml_train_fixture_opts){ .critic = true }, false, 1 << 20);
    run(&r[1], (ml_train_fixture_opts){ .critic = true }, true, 1 << 20);
    check_scores(&r[0], &r[1]);
    check_grads(&r[0], &r[1]);
    close_all(r, 2);
}

/* An adapter, whose gradients are the only ones. */
static void adapters_share(void) {
    static const ml_lora_opts lora = { .rank = 4, .alpha = 8, .target = "all-linear" };
    result r[2];

    run(&r[0], (ml_train_fixture_opts){ .lora = &lora }, false, 1 << 20);
    run(&r[1], (ml_train_fixture_opts){ .lora = &lora }, true, 1 << 20);
    check_scores(&r[0], &r[1]);
    check_grads(&r[0], &r[1]);
    close_all(r, 2);
}

static void rows_are_saved(void) {
    ml_context_opts share = { .share = true }, alone = { 0 };
    ml_batch_caps a, b;
    ml_bins bins;
    result r;

    run(&r, (ml_train_fixture_opts){ 0 }, true, 1 << 20);
    bins = ml_train_fixture_bins(&r.t, 1 << 20);
    for (int32_t i = 0; i < bins.n; i++)
        ml_prefix_group(r.t.sample, bins.bin[i].item, bins.bin[i].n);
    CHECK(bins.n == 1 && bins.bin[0].n == SAMPLES);
    for (int32_t i = 0; i < SAMPLES; i++) /* those of a prompt together, in their order */
        CHECK(bins.bin[0].item[i] == i / ANSWERS + i % ANSWERS * PROMPTS);
    a = ml_micro_need(r.t.sample, &bins.bin[0], &alone);
    b = ml_micro_need(r.t.sample, &bins.bin[0], &share);
    /* 16, 48 and 144 tokens are shared, by four each */
    CHECK(a.n_token - b.n_token == (ANSWERS - 1) * (16 + 48 + 144));
    CHECK(b.n_seq == SAMPLES + PROMPTS && a.n_loss == b.n_loss);
    close_all(&r, 1);
}

/* Every sample once, in micro-batches within the limit; shared tokens count once. */
static void samples_of_a_prompt_are_packed_together(void) {
    enum { CAP = 360 };
    ml_context_opts share = { .share = true };
    int32_t n_token = 0, seen[SAMPLES] = { 0 }, at = 0;
    ml_schedule plan;
    ml_err err = { 0 };
    result r;

    run(&r, (ml_train_fixture_opts){ 0 }, true, CAP);
    CHECK(ml_trainer_schedule(&plan, r.t.trainer, &r.t.arena, r.t.sample, SAMPLES, &err) ==
          ML_OK);
    for (int32_t k = 0; k < plan.step[0].rank[0].n; k++) {
        const ml_bin *bin = &plan.step[0].rank[0].bin[k];
        int32_t n = ml_micro_need(r.t.sample, bin, &share).n_token;
        CHECK(n <= CAP);
        n_token += n;
        for (int32_t i = 0; i < bin->n; i++, at++)
            seen[bin->item[i]] = 1 + at / ANSWERS;
    }
    for (int32_t i = 0; i < SAMPLES; i++)
        CHECK(seen[i] == 1 + i % PROMPTS);
    /* 3 x 170 tokens of answers, and those of prompts behind the shared ones: 4 x (5 + 16 + 6); shared are 16, 48
     * and 144, the last perhaps twice */
    CHECK(n_token <= 510 + 108 + 208 + 144);
    close_all(&r, 1);
}

static void others_are_refused(void) {
    static const char *const dirs[][2] = { { "nemotron_h", "recurrent layers" },
                                           { "llama4_text", "attention in chunks" },
                                           { "deepseek_v32", "sparse attention" } };
    char dir[100];
    ml_spec spec;
    ml_err err = { 0 };

    for (size_t i = 0; i < sizeof dirs / sizeof *dirs; i++) {
        snprintf(dir, sizeof dir, "tests/golden/data/%s", dirs[i][0]);
        CHECK(ml_spec_open(&spec, dir, &err) == ML_OK);
        CHECK(ml_prefix_supports(&spec, &err) == ML_EUNSUP);
        CHECK_HAS(err.msg, dirs[i][1]);
        ml_spec_close(&spec);
    }
}

static const ml_test tests[] = {
    { "families share prefixes", families_share },
    { "samples in several micro-batches share prefixes", micro_batches_share },
    { "branched conversations share their turns, whoever is trained on them",
      conversations_share, 200 },
    { "critics share prefixes", critics_share },
    { "adapters share prefixes", adapters_share },
    { "shared rows are computed once", rows_are_saved },
    { "micro-batches have the samples of a prompt together",
      samples_of_a_prompt_are_packed_together },
    { "models without such rows are refused", others_are_refused },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
