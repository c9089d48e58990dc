/* A train step does not depend on how it is split: log-probs, losses and gradients are the
 * same bits for any micro-batch size, number of threads and recomputation. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/test.h"
#include "tests/support/train_fixture.h"

static const char *const models[] = { "qwen3",       "qwen3_moe",
                                      "gemma2",      "llama_tied",
                                      "qwen2",       "phi3",
                                      "smollm3",     "olmo2",
                                      "mixtral",     "glm4_moe",
                                      "minimax_m2",  "gpt_oss",
                                      "qwen3_next",  "nemotron_h",
                                      "deepseek_v3", "glm4_moe_lite",
                                      "gemma4_text", "gemma4_text_moe",
                                      "llama4_text", "gemma3n_text",
                                      "deepseek_v4", "nemotron_h_latent",
                                      NULL };
enum { MAX_RESPONSE = 200 };

/* Log-probs and entropies of a step, as passed to its loss. */
typedef struct record {
    float logprob[ML_TRAIN_FIXTURE_SAMPLES][MAX_RESPONSE],
        entropy[ML_TRAIN_FIXTURE_SAMPLES][MAX_RESPONSE];
    double loss;
    unsigned char *grads;
    size_t bytes;
} record;

/* A loss with gradients for both inputs that records the inputs. */
static ml_status remember(void *ud, ml_loss_io *io, int32_t n, ml_err *err) {
    record *r = ud;

    for (int32_t i = 0; i < n; i++) {
        size_t bytes = (size_t)io[i].n_response * sizeof(float);
        memcpy(r->logprob[io[i].sample], io[i].logprob, bytes);
        memcpy(r->entropy[io[i].sample], io[i].entropy, bytes);
        for (int32_t t = 0; t < io[i].n_response; t++)
            io[i].dentropy[t] = 0.01f * (float)(t % 5 - 2);
    }
    return ml_train_fixture_nll(NULL, io, n, err);
}

static void run_step(ml_train_fixture *t, const ml_bins *bins, record *r) {
    const ml_weights *g = ml_trainer_grads(t->trainer);
    ml_step_result out;
    ml_err err = { 0 };
    ml_step step = { .sample = t->sample,
                     .micro = bins,
                     .n_rollout = t->n_sample,
                     .denominator = t->n_sample,
                     .loss = remember,
                     .ud = r,
                     .entropy = true };

    memset(r, 0, sizeof *r);
    if (ml_trainer_accumulate(t->trainer, &step, &out, &err) != ML_OK)
        ml_test_fail(__FILE__, __LINE__, "%s", err.msg);
    r->loss = out.loss;
    r->bytes = g->buf.bytes;
    r->grads = malloc(r->bytes);
    memcpy(r->grads, g->buf.ptr, r->bytes);
}

static void same(const record *a, const record *b, bool grads, const char *model,
                 const char *what) {
    if (memcmp(a->logprob, b->logprob, sizeof a->logprob) ||
        memcmp(a->entropy, b->entropy, sizeof a->entropy))
        ml_test_fail(__FILE__, __LINE__, "%s: %s changes log-probs", model, what);
    if (a->loss != b->loss)
        ml_test_fail(__FILE__, __LINE__, "%s: %s changes the loss", model, what);
    if (grads && memcmp(a->grads, b->grads, a->bytes))
        ml_test_fail(__FILE__, __LINE__, "%s: %s changes gradients", model, what);
}

static ml_train_fixture_opts opts_of(const char *model, char dir[256], int n_thread) {
    snprintf(dir, 256, "tests/golden/data/%s", model);
    return (ml_train_fixture_opts){ .dir = dir,
                                    .dtype = ML_WEIGHT_F32,
                                    .n_thread = n_thread,
                                    .trainer = ml_train_fixture_defaults() };
}

/* One by one, all at once and in between; samples keep their order. */
static void micro_batches_do_not_show(void) {
    static const int64_t sizes[] = { 0, 110, 200, 1000 };
    static record first, other;
    char dir[256];

    for (int m = 0; models[m]; m++) {
        ml_train_fixture_opts o = opts_of(models[m], dir, 2);
        ml_train_fixture t;
        ml_train_fixture_open(&t, &o);
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            ml_bins bins = ml_train_fixture_bins(&t, sizes[i]);
            run_step(&t, &bins, i ? &other : &first);
            if (i == 0)
                continue;
            same(&first, &other, true, models[m], "the size of micro-batches");
            free(other.grads);
        }
        free(first.grads);
        ml_train_fixture_close(&t);
    }
}

/* Another order of samples changes gradients by rounding only, and nothing else. */
static void order_shows_in_rounding_only(void) {
    static record first, other;
    char dir[256];
    ml_train_fixture_opts o = opts_of("qwen3", dir, 2);
    ml_train_fixture t;
    ml_bins bins;
    double diff = 0, size = 0;

    ml_train_fixture_open(&t, &o);
    bins = ml_train_fixture_bins(&t, 0);
    run_step(&t, &bins, &first);
    bins = ml_pack_first_fit_decreasing(&t.arena, (int64_t[]){ 37, 70, 150 }, 3, 190);
    run_step(&t, &bins, &other);
    same(&first, &other, false, "qwen3", "the order of samples");
    for (size_t i = 0; i < first.bytes / sizeof(float); i++) {
        double a = (double)((float *)first.grads)[i], b = (double)((float *)other.grads)[i];
        diff += (a - b) * (a - b);
        size += a * a;
    }
    CHECK(size > 0 && diff <= 1e-10 * size);
    free(first.grads);
    free(other.grads);
    ml_train_fixture_close(&t);
}

static void threads_do_not_show(void) {
    static record first, other;
    char dir[256];

    for (int m = 0; models[m]; m++)
        for (int n = 1; n <= 3; n++) {
            ml_train_fixture_opts o = opts_of(models[m], dir, n);
            ml_train_fixture t;
            ml_bins bins;
            ml_train_fixture_open(&t, &o);
            bins = ml_train_fixture_bins(&t, 200);
            run_step(&t, &bins, n == 1 ? &first : &other);
            if (n > 1) {
                same(&first, &other, true, models[m], "the number of threads");
                free(other.grads);
            }
            if (n == 3)
                free(first.grads);
            ml_train_fixture_close(&t);
        }
}

typedef struct setting {
    const char *name;
    ml_recompute r;
    bool keep_logits;
    int32_t loss_rows;
} setting;

static const setting settings[] = {
    { "nothing again", { .granularity = ML_RECOMPUTE_NONE } },
    { "attention again",
      { .granularity = ML_RECOMPUTE_SELECTIVE, .modules = ML_MODULE_CORE_ATTN } },
    { "norms again",
      { .granularity = ML_RECOMPUTE_SELECTIVE, .modules = ML_MODULE_LAYERNORM } },
    { "every module again",
      { .granularity = ML_RECOMPUTE_SELECTIVE,
        .modules = ML_MODULE_CORE_ATTN | ML_MODULE_LAYERNORM | ML_MODULE_MLP |
                   ML_MODULE_MOE | ML_MODULE_MOE_ACT } },
    { "the first layer again",
      { .granularity = ML_RECOMPUTE_FULL, .block = true, .n_layer = 1 } },
    { "all layers together again", { .granularity = ML_RECOMPUTE_FULL, .n_layer = 2 } },
    { "kept logits", { .granularity = ML_RECOMPUTE_NONE }, true },
    { "one token's logits", { .granularity = ML_RECOMPUTE_NONE }, false, 1 },
    { "kept logits, 7 at a time", { .granularity = ML_RECOMPUTE_NONE }, true, 7 },
    { "each layer again", { .granularity = ML_RECOMPUTE_FULL } },
};
enum { N_SETTING = sizeof settings / sizeof *settings };

static void recomputation_does_not_show(void) {
    static record first, other;
    char dir[256];

    for (int m = 0; models[m]; m++)
        for (int i = 0; i < N_SETTING; i++) {
            ml_train_fixture_opts o = opts_of(models[m], dir, 2);
            ml_train_fixture t;
            ml_bins bins;
            o.trainer.recompute = settings[i].r;
            o.trainer.keep_logits = settings[i].keep_logits;
            o.trainer.loss_rows = settings[i].loss_rows;
            ml_train_fixture_open(&t, &o);
            bins = ml_train_fixture_bins(&t, 110);
            run_step(&t, &bins, i == 0 ? &first : &other);
            if (i > 0) {
                same(&first, &other, true, models[m], settings[i].name);
                free(other.grads);
            }
            if (i == N_SETTING - 1)
                free(first.grads);
            ml_train_fixture_close(&t);
        }
}

static size_t planned_bytes(const ml_train_fixture *t, ml_backend *be, ml_recompute r) {
    ml_plan_opts o = { .caps = { 160, 4, 160, 16 }, .backward = true, .recompute = r };
    ml_plan *p = NULL;
    ml_err err = { 0 };
    size_t bytes = 0;

    CHECK(ml_plan_new(&p, &t->spec, be, o, &err) == ML_OK);
    bytes = p ? ml_plan_act_bytes(p) : 0;
    ml_plan_free(p);
    return bytes;
}

/* Without recomputation, on a device: the host computes cheap results again anyway. */
static size_t kept_bytes(const ml_train_fixture *t) {
    ml_backend be = t->be;
    ml_device dev = *be.dev;

    dev.host = false;
    be.dev = &dev;
    return planned_bytes(t, &be, settings[0].r);
}

/* Layers that are computed again together have all their results at that time. */
static void recomputation_saves_memory(void) {
    char dir[256];

    for (int m = 0; models[m]; m++) {
        ml_train_fixture_opts o = opts_of(models[m], dir, 1);
        ml_train_fixture t;
        size_t none;
        ml_train_fixture_open(&t, &o);
        none = planned_bytes(&t, &t.be, settings[0].r);
        CHECK(none < kept_bytes(&t));
        for (int i = 1; i < N_SETTING; i++) {
            size_t bytes = planned_bytes(&t, &t.be, settings[i].r);
            bool together = settings[i].r.n_layer >= t.spec.n_layer;
            if (bytes > (together ? kept_bytes(&t) : none))
                ml_test_fail(__FILE__, __LINE__, "%s: %s takes %zu bytes, without %zu",
                             models[m], settings[i].name, bytes, none);
        }
        CHECK(planned_bytes(&t, &t.be, settings[N_SETTING - 1].r) < none * 9 / 10);
        ml_train_fixture_close(&t);
    }
}

/* Scoring gives the same log-probs and entropies as the train step's forward. */
static void scoring_is_the_forward_of_training(void) {
    static record step;
    static float lp[ML_TRAIN_FIXTURE_SAMPLES][MAX_RESPONSE],
        h[ML_TRAIN_FIXTURE_SAMPLES][MAX_RESPONSE];
    float *logprob[ML_TRAIN_FIXTURE_SAMPLES], *entropy[ML_TRAIN_FIXTURE_SAMPLES];
    char dir[256];
    ml_err err = { 0 };

    for (int i = 0; i < ML_TRAIN_FIXTURE_SAMPLES; i++) {
        logprob[i] = lp[i];
        entropy[i] = h[i];
    }
    for (int m = 0; models[m]; m++) {
        ml_train_fixture_opts o = opts_of(models[m], dir, 2);
        ml_train_fixture t;
        ml_bins bins;
        o.dtype = ML_WEIGHT_BF16;
        o.trainer.temperature = 0.8;
        o.trainer.score_max_tokens = 230;
        ml_train_fixture_open(&t, &o);
        bins = ml_train_fixture_bins(&t, 0);
        run_step(&t, &bins, &step);
        CHECK(ml_trainer_score(t.trainer, NULL, t.sample, t.n_sample, logprob, entropy,
                               &err) == ML_OK);
        for (int32_t i = 0; i < t.n_sample; i++)
            for (int32_t k = 0; k < t.sample[i].n_response; k++) {
                CHECK(lp[i][k] < 0 && h[i][k] > 0);
                if (t.sample[i].mask[k])
                    CHECK(lp[i][k] == step.logprob[i][k] && h[i][k] == step.entropy[i][k]);
            }
        free(step.grads);
        ml_train_fixture_close(&t);
    }
}

static const ml_test tests[] = {
    { "train steps are the same bits for any micro-batch", micro_batches_do_not_show },
    { "the order of samples changes gradients by rounding only",
      order_shows_in_rounding_only },
    { "train steps are the same bits for any number of threads", threads_do_not_show },
    { "train steps are the same bits with recomputation", recomputation_does_not_show },
    { "recomputation saves memory", recomputation_saves_memory },
    { "scoring gives the bits of the training forward",
      scoring_is_the_forward_of_training },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
