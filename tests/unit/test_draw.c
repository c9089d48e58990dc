/* Drawing tokens: the LM head's bits, penalties and bans, odd rows, and the same at every level
 * and number of threads. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/lmhead.h"
#include "tests/support/drawer.h"
#include "tests/support/test.h"

/* ---- log-probabilities ---- */

static bool same_bits(float a, float b) {
    return memcmp(&a, &b, sizeof a) == 0;
}

static void logprob_has_the_lm_heads_bits(void) {
    ml_drawer m = ml_drawer_open(1, NULL, ML_DRAWER_VOCAB);
    const ml_cpu_kern *kern = ml_cpu(m.be.stream)->kern;
    float z[ML_DRAWER_VOCAB], also_lp[2], top_lp[3];
    int32_t also[2] = { 17, 3000 }, top[3], banned = 5;

    for (uint64_t i = 0; i < 30; i++) {
        ml_draw_opts o = ml_drawer_plain;
        ml_draw d = ml_drawer_of(z, &o);
        float t = i % 3 == 0 ? 1.0f : i % 3 == 1 ? 0.7f : 0.0f;
        ml_drawer_row(z, ML_DRAWER_VOCAB, i, 4.0);
        o.temperature = t;
        o.top_k = i % 2 ? 20 : 0;
        o.dist = i % 5 ? ML_DIST_RAW : ML_DIST_MODEL;
        o.sample = i;
        d.ban = &banned;
        d.n_ban = 1;
        d.given = i % 4 == 3 ? banned : -1;
        d.also = also;
        d.n_also = 2;
        d.n_top = 3;
        d.also_logprob = also_lp;
        d.top_id = top;
        d.top_logprob = top_lp;
        ml_drawer_draw(&m, &d, 1);
        if (t == 0.0f || o.dist == ML_DIST_MODEL)
            t = 1.0f;
        CHECK(d.given < 0 ? d.id != banned : d.id == banned);
        CHECK(
            same_bits(d.logprob, ml_logprob_of(kern, z, ML_DRAWER_VOCAB, d.id, t).logprob));
        CHECK(
            same_bits(d.entropy, ml_logprob_of(kern, z, ML_DRAWER_VOCAB, d.id, t).entropy));
        for (int j = 0; j < 2; j++)
            CHECK(same_bits(also_lp[j],
                            ml_logprob_of(kern, z, ML_DRAWER_VOCAB, also[j], t).logprob));
        for (int j = 0; j < 3; j++)
            CHECK(same_bits(top_lp[j],
                            ml_logprob_of(kern, z, ML_DRAWER_VOCAB, top[j], t).logprob));
    }
    ml_drawer_close(&m);
}

static void greedy_takes_the_lowest_of_equals(void) {
    ml_drawer m = ml_drawer_open(1, NULL, ML_DRAWER_VOCAB);
    float z[ML_DRAWER_VOCAB];
    ml_draw_opts o = ml_drawer_plain;
    ml_draw d = ml_drawer_of(z, &o);

    ml_drawer_row(z, ML_DRAWER_VOCAB, 1, 1.0);
    o.temperature = 0.0f;
    z[2000] = z[999] = z[2999] = 50.0f;
    ml_drawer_draw(&m, &d, 1);
    CHECK(d.id == 999);
    z[3000] = 51.0f;
    ml_drawer_draw(&m, &d, 1);
    CHECK(d.id == 3000);
    ml_drawer_close(&m);
}

/* ---- penalties, bias, bans ---- */

static void penalties_change_the_drawing_distribution(void) {
    static const float z[6] = { 2.0f, -2.0f, 1.0f, 0.5f, 0.0f, -1.0f };
    static const int32_t history[] = { 0, 1, 2, 2, 2, 3 }; /* prompt 0 1 2, answer 2 2 3 */
    static const ml_bias bias[] = { { 4, 1.5f }, { 5, -100.0f } };
    static const int32_t all[6] = { 0, 1, 2, 3, 4, 5 };
    float want[6] = { 2.0f / 1.25f,
                      -2.0f * 1.25f,
                      1.0f / 1.25f - 0.3f * 2.0f - 0.2f,
                      0.5f / 1.25f - 0.3f - 0.2f,
                      1.5f,
                      -101.0f };
    ml_drawer m = ml_drawer_open(1, NULL, 6);
    ml_draw_opts o = { .temperature = 0.5f,
                       .top_p = 1.0f,
                       .repetition = 1.25f,
                       .frequency = 0.3f,
                       .presence = 0.2f,
                       .bias = bias,
                       .n_bias = 2,
                       .dist = ML_DIST_DRAWN };
    float lp[6], sum = 0.0f;
    ml_draw d = ml_drawer_of(z, &o);

    d.history = history;
    d.n_history = 6;
    d.n_prompt = 3;
    d.also = all;
    d.n_also = 6;
    d.also_logprob = lp;
    ml_drawer_draw(&m, &d, 1);
    for (int i = 0; i < 6; i++)
        sum += expf(want[i] / 0.5f);
    for (int i = 0; i < 6; i++)
        CHECK(fabsf(lp[i] - (want[i] / 0.5f - logf(sum))) < 2e-5f);
    o.dist = ML_DIST_MODEL;
    ml_drawer_draw(&m, &d, 1);
    CHECK(fabsf((lp[0] - lp[1]) - 4.0f) < 1e-5f); /* the model's own */
    ml_drawer_close(&m);
}

static void bias_and_bans_decide_draws(void) {
    ml_drawer m = ml_drawer_open(1, NULL, ML_DRAWER_VOCAB);
    float z[ML_DRAWER_VOCAB];
    ml_bias up = { 77, 100.0f };
    int32_t ban[3] = { 77, 78, 79 };
    ml_draw_opts o = ml_drawer_plain;
    ml_draw d = ml_drawer_of(z, &o);

    ml_drawer_row(z, ML_DRAWER_VOCAB, 3, 2.0);
    for (o.sample = 0; o.sample < 100; o.sample++) {
        o.bias = &up;
        o.n_bias = 1;
        d.n_ban = 0;
        ml_drawer_draw(&m, &d, 1);
        CHECK(d.id == 77);
        d.ban = ban;
        d.n_ban = 3;
        ml_drawer_draw(&m, &d, 1);
        CHECK(d.id < 77 || d.id > 79);
        o.temperature = 0.0f;
        ml_drawer_draw(&m, &d, 1);
        CHECK(d.id < 77 || d.id > 79);
        o.temperature = 1.0f;
    }
    ml_drawer_close(&m);
}

/* ---- odd rows ---- */

static void rows_with_infinities_and_nans_have_a_rule(void) {
    ml_drawer m = ml_drawer_open(1, NULL, 40);
    float z[40];
    ml_draw_opts o = ml_drawer_plain;
    ml_draw d = ml_drawer_of(z, &o);

    for (int i = 0; i < 40; i++)
        z[i] = i % 2 ? (float)NAN : -INFINITY;
    z[22] = 1.0f;
    z[31] = 1.5f;
    for (o.sample = 0; o.sample < 50; o.sample++) {
        for (o.top_k = 0; o.top_k < 2; o.top_k++) {
            ml_drawer_draw(&m, &d, 1);
            CHECK(o.top_k ? d.id == 31 : d.id == 22 || d.id == 31);
            CHECK(isnan(d.logprob)); /* of the model's logits, NaN included */
        }
    }
    for (int i = 0; i < 40; i++)
        z[i] = (float)NAN;
    for (o.top_k = 0; o.top_k < 2; o.top_k++) {
        ml_drawer_draw(&m, &d, 1);
        CHECK(d.id == 0 && isnan(d.logprob));
    }
    o.temperature = 0.0f;
    ml_drawer_draw(&m, &d, 1);
    CHECK(d.id == 0 && isnan(d.logprob));
    o.temperature = 1.0f;
    o.top_k = 0;
    z[12] = INFINITY;
    ml_drawer_draw(&m, &d, 1);
    CHECK(d.id == 12);
    ml_drawer_close(&m);
}

/* ---- the same everywhere ---- */

enum { ROWS = 12, TOP = 20 };

typedef struct outcome {
    int32_t id[ROWS], top_id[ROWS][TOP];
    float logprob[ROWS], entropy[ROWS], top_logprob[ROWS][TOP];
} outcome;

static void run_rows(outcome *out, const float *z, int n_thread, const char *level) {
    static const int32_t history[] = { 5, 9, 9, 2000 };
    ml_drawer m = ml_drawer_open(n_thread, level, ML_DRAWER_VOCAB);
    ml_draw_opts o[ROWS];
    ml_draw d[ROWS];

    for (int i = 0; i < ROWS; i++) {
        o[i] = ml_drawer_plain;
        o[i].temperature = i % 4 == 3 ? 0.0f : 0.6f + 0.2f * (float)(i % 3);
        o[i].top_k = i % 5 == 1 ? 40 : 0;
        o[i].top_p = i % 5 == 2 ? 0.9f : 1.0f;
        o[i].min_p = i % 5 == 3 ? 0.01f : 0.0f;
        o[i].repetition = i % 2 ? 1.2f : 1.0f;
        o[i].dist = (ml_dist)(i % 3);
        o[i].sample = (uint64_t)i;
        d[i] = ml_drawer_of(z + (int64_t)i * ML_DRAWER_VOCAB, &o[i]);
        d[i].history = history;
        d[i].n_history = 4;
        d[i].n_prompt = 2;
        d[i].n_top = TOP;
        d[i].top_id = out->top_id[i];
        d[i].top_logprob = out->top_logprob[i];
    }
    ml_drawer_draw(&m, d, ROWS);
    for (int i = 0; i < ROWS; i++) {
        out->id[i] = d[i].id;
        out->logprob[i] = d[i].logprob;
        out->entropy[i] = d[i].entropy;
    }
    ml_drawer_close(&m);
}

static void levels_and_threads_give_the_same_bits(void) {
    static const int threads[] = { 1, 2, 3, 8 };
    float *z = malloc(sizeof *z * ROWS * ML_DRAWER_VOCAB);
    outcome want, got;

    for (int i = 0; i < ROWS; i++)
        ml_drawer_row(z + (int64_t)i * ML_DRAWER_VOCAB, ML_DRAWER_VOCAB, (uint64_t)i, 2.0);
    memset(&want, 0, sizeof want);
    run_rows(&want, z, 1, "c");
    for (const char *const *level = ml_backend_cpu_levels(); *level; level++) {
        for (int i = 0; i < 4; i++) {
            memset(&got, 0, sizeof got);
            run_rows(&got, z, threads[i], *level);
            CHECK(memcmp(&got, &want, sizeof got) == 0);
        }
    }
    free(z);
}

static const ml_test tests[] = {
    { "a draw's log-prob has the bits of the LM head", logprob_has_the_lm_heads_bits },
    { "greedy decoding takes the lowest id of equal logits",
      greedy_takes_the_lowest_of_equals },
    { "penalties change the drawing distribution",
      penalties_change_the_drawing_distribution },
    { "logit bias and banned tokens decide draws", bias_and_bans_decide_draws },
    { "logits with infinities and NaNs draw by a fixed rule",
      rows_with_infinities_and_nans_have_a_rule },
    { "draws are the same bits for every level and thread count",
      levels_and_threads_give_the_same_bits },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
