/* A model that is run as stages, one per layer, has the bits of one that is run whole: log-
 * probs, entropies and gradients, with two micro-batches in flight. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/dir.h"
#include "model/stage.h"
#include "tests/support/test.h"
#include "tests/support/train_fixture.h"
#include "train/micro.h"

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
static const char *const models[] = { "qwen3_moe", "gemma4_text", NULL };
#else
static const char *const models[] = {
    "llama_tied",  "qwen3_moe",   "deepseek_v3",       "qwen3_next",   "gpt_oss",
    "gemma2",      "gemma3_text", "gemma4_text",       "glm4",         "glm4_moe_lite",
    "glm_moe_dsa", "llama4_text", "gemma4_text_moe",   "mixtral",      "nemotron_h",
    "phi3",        "smollm3",     "nemotron_h_latent", "deepseek_v32", "deepseek_v4",
    NULL,
};
#endif

enum { MICRO = 2, MAX_STAGE = 8, MAX_ROW = 512 };

/* One model, its micro-batches, and what a run computes. */
typedef struct bench {
    ml_train_fixture t;
    ml_micro micro[MICRO];
    ml_recompute recompute;
    ml_batch_caps caps;
    float logprob[MICRO][MAX_ROW], entropy[MICRO][MAX_ROW];
    float *dlogprob, *dentropy;
    ml_weights grads;
    ml_tensor embed;
    ml_arena arena;
} bench;

static void must(ml_status st, const ml_err *err) {
    if (st == ML_OK)
        return;
    ml_test_fail(__FILE__, __LINE__, "%s", err->msg);
    exit(1);
}

static void open_bench(bench *b, const char *model, bool bf16) {
    static const ml_context_opts whole = { .n_rank = 1 };
    char dir[256];
    ml_train_fixture_opts o = { .dir = dir,
                                .dtype = bf16 ? ML_WEIGHT_BF16 : ML_WEIGHT_F32,
                                .trainer = ml_train_fixture_defaults() };

    snprintf(dir, sizeof dir, "tests/golden/data/%s", model);
    ml_arena_init(&b->arena, "test");
    ml_train_fixture_open(&b->t, &o);
    for (int i = 0; i < MICRO; i++) {
        static int32_t item[MICRO][2] = { { 0, 1 }, { 2, 3 } };
        ml_bin bin = { item[i], b->t.n_sample > 3 ? 2 : 1 };
        b->caps = ml_micro_max(b->caps, ml_micro_need(b->t.sample, &bin, &whole));
    }
    for (int i = 0; i < MICRO; i++) {
        static int32_t item[MICRO][2] = { { 0, 1 }, { 2, 3 } };
        ml_bin bin = { item[i], b->t.n_sample > 3 ? 2 : 1 };
        ml_micro_init(&b->micro[i], b->caps, &whole, false);
        ml_micro_fill(&b->micro[i], b->t.sample, &bin, true, 1);
    }
    CHECK(b->caps.n_loss <= MAX_ROW);
    b->dlogprob = ML_NEW(&b->arena, float, MAX_ROW);
    b->dentropy = ML_NEW(&b->arena, float, MAX_ROW);
    for (int i = 0; i < MAX_ROW; i++) {
        b->dlogprob[i] = 0.1f * (float)(i % 7 - 3);
        b->dentropy[i] = 0.01f * (float)(i % 5 - 2);
    }
}

static void close_bench(bench *b) {
    for (int i = 0; i < MICRO; i++)
        ml_micro_release(&b->micro[i]);
    ml_train_fixture_close(&b->t);
    ml_arena_release(&b->arena);
}

static void zero_grads(bench *b) {
    ml_err err = { 0 };
    int32_t table = b->t.spec.node[0].w[0];

    must(ml_weights_zeros(&b->grads, &b->t.spec, &b->t.be, &b->arena, &err), &err);
    b->embed = b->grads.t[table];
    b->embed.data = ml_arena_take(&b->arena, ml_tensor_bytes(&b->embed), 1);
    memset(b->embed.data, 0, ml_tensor_bytes(&b->embed));
}

static ml_plan *plan_of(bench *b, bool backward, int32_t first, int32_t end,
                        int32_t n_set) {
    ml_plan_opts o = { .caps = b->caps,
                       .backward = backward,
                       .recompute = b->recompute,
                       .first = first,
                       .end = end,
                       .n_set = n_set };
    ml_err err = { 0 };
    ml_plan *p;

    must(ml_plan_new(&p, &b->t.spec, &b->t.be, o, &err), &err);
    must(ml_plan_alloc(p, &err), &err);
    return p;
}

static ml_run run_of(bench *b, int micro, int32_t set) {
    return (ml_run){ .weights = &b->t.weights,
                     .grads = &b->grads,
                     .embed_grad = &b->embed,
                     .rows = &b->micro[micro].batch.rows,
                     .set = set };
}

static void read_results(bench *b, ml_plan *p, int micro) {
    ml_plan_read(p, &b->micro[micro].batch.rows, b->logprob[micro], b->entropy[micro],
                 NULL);
}

static void run_whole(bench *b) {
    ml_plan *p = plan_of(b, true, 0, 0, 1);

    for (int i = 0; i < MICRO; i++) {
        ml_run run = run_of(b, i, 0);
        ml_plan_forward(p, &run);
        read_results(b, p, i);
        ml_plan_backward(p, &run, b->dlogprob, b->dentropy);
    }
    ml_plan_free(p);
}

/* Copies what one stage has written to where another one reads it. */
static void pass_on(bench *b, ml_plan *from, ml_port_kind out, ml_plan *to, ml_port_kind in,
                    int micro, int32_t set) {
    const ml_rows *rows = &b->micro[micro].batch.rows;
    ml_tensor x[ML_PORTS], y[ML_PORTS];
    int32_t n = ml_plan_port(from, out, rows, set, x);

    CHECK(n > 0 && n == ml_plan_port(to, in, rows, set, y));
    for (int32_t i = 0; i < n; i++) {
        CHECK(ml_tensor_bytes(&x[i]) == ml_tensor_bytes(&y[i]) && x[i].data && y[i].data);
        memcpy(y[i].data, x[i].data, ml_tensor_bytes(&x[i]));
    }
}

static int32_t plan_stages(bench *b, bool backward, int32_t n_set, ml_plan **p) {
    ml_stage_opts o = { .n_stage = b->t.spec.n_layer };
    int32_t *stage = ML_NEW(&b->arena, int32_t, b->t.spec.n_node);
    ml_err err = { 0 };

    CHECK(o.n_stage <= MAX_STAGE);
    must(ml_stage_of_nodes(stage, &b->t.spec, &o, &err), &err);
    for (int32_t k = 0; k < o.n_stage; k++) {
        int32_t first, end;
        CHECK(ml_stage_chunk(stage, b->t.spec.n_node, k, 0, &first, &end));
        p[k] = plan_of(b, backward, first, end, n_set);
        CHECK(ml_plan_has_head(p[k]) == (k == o.n_stage - 1));
    }
    return o.n_stage;
}

/* Both micro-batches go forward before the first goes back. */
static void run_stages(bench *b) {
    ml_plan *p[MAX_STAGE];
    int32_t n = plan_stages(b, true, MICRO, p);

    for (int i = 0; i < MICRO; i++)
        for (int32_t k = 0; k < n; k++) {
            ml_run run = run_of(b, i, i);
            if (k > 0)
                pass_on(b, p[k - 1], ML_PORT_OUT, p[k], ML_PORT_IN, i, i);
            ml_plan_forward(p[k], &run);
            if (k == n - 1)
                read_results(b, p[k], i);
        }
    for (int i = 0; i < MICRO; i++)
        for (int32_t k = n - 1; k >= 0; k--) {
            ml_run run = run_of(b, i, i);
            if (k < n - 1)
                pass_on(b, p[k + 1], ML_PORT_DIN, p[k], ML_PORT_DOUT, i, i);
            ml_plan_backward(p[k], &run, b->dlogprob, b->dentropy);
        }
    for (int32_t k = 0; k < n; k++)
        ml_plan_free(p[k]);
}

/* Without gradients: the values of the next micro-batch come in before those of this one
 * are sent on. */
static void score_stages(bench *b) {
    ml_plan *p[MAX_STAGE];
    int32_t n = plan_stages(b, false, 1, p);

    for (int tick = 0; tick < n + MICRO - 1; tick++)
        for (int32_t k = n - 1; k >= 0; k--) {
            int i = tick - k;
            ml_run run = run_of(b, i < 0 || i >= MICRO ? 0 : i, 0);
            if (i < 0 || i >= MICRO)
                continue;
            if (k > 0)
                pass_on(b, p[k - 1], ML_PORT_OUT, p[k], ML_PORT_IN, i, 0);
            ml_plan_forward(p[k], &run);
            if (k == n - 1)
                read_results(b, p[k], i);
        }
    for (int32_t k = 0; k < n; k++)
        ml_plan_free(p[k]);
}

static void same_scores(const bench *b, const float *logprob, const char *model,
                        const char *what) {
    if (memcmp(logprob, b->logprob, sizeof b->logprob))
        ml_test_fail(__FILE__, __LINE__, "%s: stages change log-probs %s", model, what);
}

static void compare(bench *b, const char *model) {
    static float logprob[MICRO][MAX_ROW], entropy[MICRO][MAX_ROW];
    ml_weights whole;
    ml_tensor embed;

    zero_grads(b);
    run_whole(b);
    whole = b->grads;
    embed = b->embed;
    memcpy(logprob, b->logprob, sizeof logprob);
    memcpy(entropy, b->entropy, sizeof entropy);
    memset(b->logprob, 0, sizeof b->logprob);
    zero_grads(b);
    run_stages(b);
    same_scores(b, logprob[0], model, "in training");
    if (memcmp(entropy, b->entropy, sizeof entropy))
        ml_test_fail(__FILE__, __LINE__, "%s: stages change entropies", model);
    if (memcmp(whole.buf.ptr, b->grads.buf.ptr, whole.buf.bytes) ||
        memcmp(embed.data, b->embed.data, ml_tensor_bytes(&embed)))
        ml_test_fail(__FILE__, __LINE__, "%s: stages change gradients", model);
    memset(b->logprob, 0, sizeof b->logprob);
    score_stages(b);
    same_scores(b, logprob[0], model, "in scoring");
    ml_weights_close(&whole);
    ml_weights_close(&b->grads);
}

static void stages_do_not_show(void) {
    static const ml_recompute how[] = {
        { 0 },
        { .granularity = ML_RECOMPUTE_FULL },
        { .granularity = ML_RECOMPUTE_FULL, .block = true, .n_layer = 1 },
        { .granularity = ML_RECOMPUTE_SELECTIVE,
          .modules = ML_MODULE_CORE_ATTN | ML_MODULE_LAYERNORM | ML_MODULE_MOE_ACT },
    };
    static bench b;

    for (int m = 0; models[m]; m++)
        for (int bf16 = 0; bf16 < 2; bf16++) {
            b = (bench){ 0 };
            open_bench(&b, models[m], bf16);
            for (size_t k = 0; k < sizeof how / sizeof *how; k++) {
                b.recompute = how[k];
                compare(&b, models[m]);
            }
            close_bench(&b);
        }
}

static const ml_test tests[] = {
    { "a model in stages has the bits of the whole one", stages_do_not_show,
      .limit_s = 120 },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
