/* Drawing tokens: against a plain reference in f64, against the LM head's bits, and the same
 * at every level and number of threads. */
#include "tests/support/test.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "backend/backend.h"
#include "backend/cpu/lmhead.h"
#include "backend/draw.h"
#include "base/philox.h"

enum { MANY = 3001 }; /* a vocabulary of several tiles and an odd rest */

static const ml_draw_opts plain = { .temperature = 1.0f,
                                    .top_p = 1.0f,
                                    .repetition = 1.0f };

typedef struct machine {
    ml_backend be;
    void *scratch;
    int64_t n_vocab;
} machine;

static machine machine_open(int n_thread, const char *level, int64_t n_vocab) {
    machine m = { .n_vocab = n_vocab };
    ml_err err;
    if (ml_backend_cpu_open(&m.be, n_thread, level, &err) != ML_OK)
        abort();
    m.scratch = malloc(ml_cpu_sample_scratch(m.be.stream, n_vocab));
    return m;
}

static void machine_close(machine *m) {
    free(m->scratch);
    ml_backend_close(&m->be);
}

static void sample(machine *m, ml_draw *d, int64_t n) {
    ml_cpu_sample(m->be.stream, d, n, m->n_vocab, m->scratch);
}

/* Uniform in [0, 1), as a test's own noise. */
static double noise(uint64_t a, uint64_t b) {
    return ml_philox_uniform(0x7e57, a, b);
}

/* A row that looks like a model's: a crowd far below, some candidates, some ties. */
static void fill_row(float *z, int64_t n, uint64_t seed, double spread) {
    for (int64_t i = 0; i < n; i++) {
        double a = noise(seed, (uint64_t)(2 * i)), b = noise(seed, (uint64_t)(2 * i + 1));
        z[i] = (float)(spread * sqrt(-2.0 * log(1.0 - a)) * cos(6.283185307179586 * b));
        if (i % 7 == 3)
            z[i] = roundf(z[i] * 2.0f) / 2.0f;
    }
}

static ml_draw draw_of(const float *z, const ml_draw_opts *o) {
    return (ml_draw){ .logits = z, .opts = o, .given = -1 };
}

/* ---- the reference ---- */

typedef struct ref_token {
    float s;
    int32_t id;
    double p;
    bool kept;
} ref_token;

static int by_rank(const void *a, const void *b) {
    const ref_token *x = a, *y = b;
    if (x->s != y->s)
        return x->s > y->s ? -1 : 1;
    return x->id < y->id ? -1 : 1;
}

/* Tokens in descending order, with the probabilities of what is kept. */
static ref_token *ref_filter(const float *z, int64_t n, const ml_draw_opts *o) {
    ref_token *t = calloc((size_t)n, sizeof *t);
    double total = 0.0, before = 0.0, kept = 0.0;

    for (int64_t i = 0; i < n; i++)
        t[i] = (ref_token){ .s = z[i] / o->temperature, .id = (int32_t)i };
    qsort(t, (size_t)n, sizeof *t, by_rank);
    for (int64_t i = 0; i < n; i++)
        total += exp((double)t[i].s - (double)t[0].s);
    for (int64_t i = 0; i < n; i++) {
        t[i].p = exp((double)t[i].s - (double)t[0].s) / total;
        t[i].kept = (o->top_k == 0 || i < o->top_k) && before <= (double)o->top_p &&
                    t[i].p >= (double)o->min_p * t[0].p;
        before += t[i].p;
        kept += t[i].kept ? t[i].p : 0.0;
    }
    for (int64_t i = 0; i < n; i++)
        t[i].p = t[i].kept ? t[i].p / kept : 0.0;
    return t;
}

static int by_id(const void *a, const void *b) {
    const ref_token *x = a, *y = b;
    return x->id - y->id;
}

/* One draw under these options: what is kept, its probabilities, the token, the entropy. */
static void check_against_reference(machine *m, const float *z, const ml_draw_opts *o) {
    int64_t n = m->n_vocab;
    int32_t *ids = calloc((size_t)n, sizeof *ids), *top = calloc((size_t)n, sizeof *top);
    float *lp = calloc((size_t)n, sizeof *lp), *top_lp = calloc((size_t)n, sizeof *top_lp);
    ref_token *ref = ref_filter(z, n, o);
    ml_draw d = draw_of(z, o);
    double u = ml_philox_uniform(o->seed, o->sample, 0), before = 0.0, entropy = 0.0;

    for (int64_t i = 0; i < n; i++)
        ids[i] = (int32_t)i;
    d.also = ids;
    d.also_logprob = lp;
    d.top_id = top;
    d.top_logprob = top_lp;
    d.n_also = d.n_top = (int32_t)n;
    sample(m, &d, 1);
    for (int64_t i = 0; i < n; i++) {
        CHECK(top[i] == ref[i].id);
        CHECK(memcmp(&top_lp[i], &lp[ref[i].id], sizeof *lp) == 0);
        CHECK((isfinite(top_lp[i]) != 0) == ref[i].kept);
    }
    qsort(ref, (size_t)n, sizeof *ref, by_id);
    for (int64_t i = 0; i < n; i++) {
        if (ref[i].kept) {
            CHECK(fabs((double)lp[i] - log(ref[i].p)) < 3e-5);
            entropy -= ref[i].p * log(ref[i].p);
        }
        if (i < d.id)
            before += ref[i].p;
    }
    CHECK(fabs((double)d.entropy - entropy) < 3e-5);
    CHECK(ref[d.id].kept && d.logprob == lp[d.id]);
    CHECK(u > before - 1e-6 && u < before + ref[d.id].p + 1e-6);
    free(ref);
    free(ids);
    free(top);
    free(lp);
    free(top_lp);
}

static void filters_agree_with_the_reference(void) {
    static const struct {
        int32_t top_k;
        float top_p, min_p, temperature;
    } cases[] = {
        { 0, 0.9f, 0.0f, 1.0f },        { 50, 1.0f, 0.0f, 1.0f },
        { 0, 1.0f, 0.05f, 1.0f },       { 1, 1.0f, 0.0f, 1.0f },
        { 0, 0.0f, 0.0f, 1.0f },        { 0, 0.95f, 0.0f, 0.7f },
        { 50, 0.8f, 0.02f, 1.3f },      { 5, 0.999f, 0.0f, 0.3f },
        { MANY, 0.5f, 0.001f, 2.0f },   { 300, 0.99f, 0.0f, 1.0f },
        { 2 * MANY, 1.0f, 0.0f, 1.0f },
    };
    machine m = machine_open(1, NULL, MANY);
    float z[MANY];

    for (uint64_t row = 0; row < 6; row++) {
        fill_row(z, MANY, row, row % 3 == 0 ? 0.3 : 3.0);
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            ml_draw_opts o = plain;
            o.top_k = cases[i].top_k;
            o.top_p = cases[i].top_p;
            o.min_p = cases[i].min_p;
            o.temperature = cases[i].temperature;
            o.dist = ML_DIST_DRAWN;
            o.sample = row * 100 + i;
            check_against_reference(&m, z, &o);
        }
    }
    machine_close(&m);
}

static void all_equal_rows_keep_the_lowest_ids(void) {
    machine m = machine_open(1, NULL, MANY);
    ml_draw_opts o = plain;
    float z[MANY], top_lp[4];
    int32_t top[4];
    ml_draw d;

    for (int i = 0; i < MANY; i++)
        z[i] = -2.5f;
    o.top_k = 3;
    o.dist = ML_DIST_DRAWN;
    for (o.sample = 0; o.sample < 200; o.sample++) {
        d = draw_of(z, &o);
        d.n_top = 4;
        d.top_id = top;
        d.top_logprob = top_lp;
        sample(&m, &d, 1);
        CHECK(d.id < 3 && fabsf(d.logprob + 1.0986123f) < 1e-6f);
        CHECK(top[0] == 0 && top[1] == 1 && top[2] == 2 && top[3] == 3);
        CHECK(top_lp[2] == d.logprob && isinf(top_lp[3]));
    }
    machine_close(&m);
}

/* ---- statistics ---- */

/* 20,000 draws over 8 tokens: chi-square with 7 degrees of freedom, 24.3 is p = 0.001. */
static double chi_square(machine *m, const float *z, const ml_draw_opts *base) {
    enum { DRAWS = 20000 };
    double count[8] = { 0 }, chi = 0.0;
    ref_token *ref = ref_filter(z, 8, base);

    qsort(ref, 8, sizeof *ref, by_id);
    for (uint64_t i = 0; i < DRAWS; i++) {
        ml_draw_opts o = *base;
        ml_draw d = draw_of(z, &o);
        o.sample = i / 100;
        d.history = NULL;
        d.n_history = (int32_t)(i % 100);
        sample(m, &d, 1);
        count[d.id]++;
    }
    for (int i = 0; i < 8; i++) {
        double want = ref[i].p * DRAWS;
        if (ref[i].kept)
            chi += (count[i] - want) * (count[i] - want) / want;
        else
            CHECK(count[i] == 0.0);
    }
    free(ref);
    return chi;
}

static void draws_follow_the_distribution(void) {
    static const float z[8] = { 0.0f, 1.0f, -1.0f, 2.0f, 0.5f, 0.5f, -0.3f, 1.7f };
    machine m = machine_open(1, NULL, 8);
    ml_draw_opts o = plain;

    o.seed = 1;
    CHECK(chi_square(&m, z, &o) < 24.3);
    o.seed = 2;
    o.temperature = 0.6f;
    CHECK(chi_square(&m, z, &o) < 24.3);
    o.top_k = 5;
    CHECK(chi_square(&m, z, &o) < 24.3);
    o.top_k = 0;
    o.top_p = 0.8f;
    CHECK(chi_square(&m, z, &o) < 24.3);
    o.top_p = 1.0f;
    o.min_p = 0.2f;
    CHECK(chi_square(&m, z, &o) < 24.3);
    machine_close(&m);
}

static void samples_and_positions_have_their_own_draws(void) {
    enum { N = 64 };
    machine m = machine_open(1, NULL, MANY);
    float z[MANY] = { 0 };
    int same = 0;
    int32_t id[2 * N];

    for (uint64_t i = 0; i < N; i++) {
        ml_draw_opts o = plain;
        ml_draw d = draw_of(z, &o);
        o.sample = i;
        sample(&m, &d, 1);
        id[2 * i] = d.id;
        d.n_history = 1;
        sample(&m, &d, 1);
        id[2 * i + 1] = d.id;
    }
    for (int i = 0; i < 2 * N; i++)
        for (int j = 0; j < i; j++)
            same += id[i] == id[j];
    CHECK(same < 12); /* 2.7 expected of 8128 pairs over 3001 tokens */
    machine_close(&m);
}

/* ---- log-probabilities ---- */

static bool same_bits(float a, float b) {
    return memcmp(&a, &b, sizeof a) == 0;
}

static void logprob_has_the_lm_heads_bits(void) {
    machine m = machine_open(1, NULL, MANY);
    const ml_cpu_kern *kern = ml_cpu(m.be.stream)->kern;
    float z[MANY], also_lp[2], top_lp[3];
    int32_t also[2] = { 17, 3000 }, top[3], banned = 5;

    for (uint64_t i = 0; i < 30; i++) {
        ml_draw_opts o = plain;
        ml_draw d = draw_of(z, &o);
        float t = i % 3 == 0 ? 1.0f : i % 3 == 1 ? 0.7f : 0.0f;
        fill_row(z, MANY, i, 4.0);
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
        sample(&m, &d, 1);
        if (t == 0.0f || o.dist == ML_DIST_MODEL)
            t = 1.0f;
        CHECK(d.given < 0 ? d.id != banned : d.id == banned);
        CHECK(same_bits(d.logprob, ml_logprob_of(kern, z, MANY, d.id, t).logprob));
        CHECK(same_bits(d.entropy, ml_logprob_of(kern, z, MANY, d.id, t).entropy));
        for (int j = 0; j < 2; j++)
            CHECK(same_bits(also_lp[j], ml_logprob_of(kern, z, MANY, also[j], t).logprob));
        for (int j = 0; j < 3; j++)
            CHECK(same_bits(top_lp[j], ml_logprob_of(kern, z, MANY, top[j], t).logprob));
    }
    machine_close(&m);
}

static void greedy_takes_the_lowest_of_equals(void) {
    machine m = machine_open(1, NULL, MANY);
    float z[MANY];
    ml_draw_opts o = plain;
    ml_draw d = draw_of(z, &o);

    fill_row(z, MANY, 1, 1.0);
    o.temperature = 0.0f;
    z[2000] = z[999] = z[2999] = 50.0f;
    sample(&m, &d, 1);
    CHECK(d.id == 999);
    z[3000] = 51.0f;
    sample(&m, &d, 1);
    CHECK(d.id == 3000);
    machine_close(&m);
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
    machine m = machine_open(1, NULL, 6);
    ml_draw_opts o = { .temperature = 0.5f,
                       .top_p = 1.0f,
                       .repetition = 1.25f,
                       .frequency = 0.3f,
                       .presence = 0.2f,
                       .bias = bias,
                       .n_bias = 2,
                       .dist = ML_DIST_DRAWN };
    float lp[6], sum = 0.0f;
    ml_draw d = draw_of(z, &o);

    d.history = history;
    d.n_history = 6;
    d.n_prompt = 3;
    d.also = all;
    d.n_also = 6;
    d.also_logprob = lp;
    sample(&m, &d, 1);
    for (int i = 0; i < 6; i++)
        sum += expf(want[i] / 0.5f);
    for (int i = 0; i < 6; i++)
        CHECK(fabsf(lp[i] - (want[i] / 0.5f - logf(sum))) < 2e-5f);
    o.dist = ML_DIST_MODEL;
    sample(&m, &d, 1);
    CHECK(fabsf((lp[0] - lp[1]) - 4.0f) < 1e-5f); /* the model's own */
    machine_close(&m);
}

static void bias_and_bans_decide_draws(void) {
    machine m = machine_open(1, NULL, MANY);
    float z[MANY];
    ml_bias up = { 77, 100.0f };
    int32_t ban[3] = { 77, 78, 79 };
    ml_draw_opts o = plain;
    ml_draw d = draw_of(z, &o);

    fill_row(z, MANY, 3, 2.0);
    for (o.sample = 0; o.sample < 100; o.sample++) {
        o.bias = &up;
        o.n_bias = 1;
        d.n_ban = 0;
        sample(&m, &d, 1);
        CHECK(d.id == 77);
        d.ban = ban;
        d.n_ban = 3;
        sample(&m, &d, 1);
        CHECK(d.id < 77 || d.id > 79);
        o.temperature = 0.0f;
        sample(&m, &d, 1);
        CHECK(d.id < 77 || d.id > 79);
        o.temperature = 1.0f;
    }
    machine_close(&m);
}

/* ---- odd rows ---- */

static void rows_with_infinities_and_nans_have_a_rule(void) {
    machine m = machine_open(1, NULL, 40);
    float z[40];
    ml_draw_opts o = plain;
    ml_draw d = draw_of(z, &o);

    for (int i = 0; i < 40; i++)
        z[i] = i % 2 ? (float)NAN : -INFINITY;
    z[22] = 1.0f;
    z[31] = 1.5f;
    for (o.sample = 0; o.sample < 50; o.sample++) {
        for (o.top_k = 0; o.top_k < 2; o.top_k++) {
            sample(&m, &d, 1);
            CHECK(o.top_k ? d.id == 31 : d.id == 22 || d.id == 31);
            CHECK(isnan(d.logprob)); /* of the model's logits, NaN included */
        }
    }
    for (int i = 0; i < 40; i++)
        z[i] = (float)NAN;
    for (o.top_k = 0; o.top_k < 2; o.top_k++) {
        sample(&m, &d, 1);
        CHECK(d.id == 0 && isnan(d.logprob));
    }
    o.temperature = 0.0f;
    sample(&m, &d, 1);
    CHECK(d.id == 0 && isnan(d.logprob));
    o.temperature = 1.0f;
    o.top_k = 0;
    z[12] = INFINITY;
    sample(&m, &d, 1);
    CHECK(d.id == 12);
    machine_close(&m);
}

/* ---- the same everywhere ---- */

enum { ROWS = 12, TOP = 20 };

typedef struct outcome {
    int32_t id[ROWS], top_id[ROWS][TOP];
    float logprob[ROWS], entropy[ROWS], top_logprob[ROWS][TOP];
} outcome;

static void run_rows(outcome *out, const float *z, int n_thread, const char *level) {
    static const int32_t history[] = { 5, 9, 9, 2000 };
    machine m = machine_open(n_thread, level, MANY);
    ml_draw_opts o[ROWS];
    ml_draw d[ROWS];

    for (int i = 0; i < ROWS; i++) {
        o[i] = plain;
        o[i].temperature = i % 4 == 3 ? 0.0f : 0.6f + 0.2f * (float)(i % 3);
        o[i].top_k = i % 5 == 1 ? 40 : 0;
        o[i].top_p = i % 5 == 2 ? 0.9f : 1.0f;
        o[i].min_p = i % 5 == 3 ? 0.01f : 0.0f;
        o[i].repetition = i % 2 ? 1.2f : 1.0f;
        o[i].dist = (ml_dist)(i % 3);
        o[i].sample = (uint64_t)i;
        d[i] = draw_of(z + (int64_t)i * MANY, &o[i]);
        d[i].history = history;
        d[i].n_history = 4;
        d[i].n_prompt = 2;
        d[i].n_top = TOP;
        d[i].top_id = out->top_id[i];
        d[i].top_logprob = out->top_logprob[i];
    }
    sample(&m, d, ROWS);
    for (int i = 0; i < ROWS; i++) {
        out->id[i] = d[i].id;
        out->logprob[i] = d[i].logprob;
        out->entropy[i] = d[i].entropy;
    }
    machine_close(&m);
}

static void levels_and_threads_give_the_same_bits(void) {
    static const int threads[] = { 1, 2, 3, 8 };
    float *z = malloc(sizeof *z * ROWS * MANY);
    outcome want, got;

    for (int i = 0; i < ROWS; i++)
        fill_row(z + (int64_t)i * MANY, MANY, (uint64_t)i, 2.0);
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
    { "filters agree with the reference", filters_agree_with_the_reference },
    { "all-equal rows keep the lowest ids", all_equal_rows_keep_the_lowest_ids },
    { "draws follow the distribution", draws_follow_the_distribution },
    { "samples and positions have their own draws",
      samples_and_positions_have_their_own_draws },
    { "log-prob has the LM head's bits", logprob_has_the_lm_heads_bits },
    { "greedy takes the lowest of equals", greedy_takes_the_lowest_of_equals },
    { "penalties change the drawing distribution",
      penalties_change_the_drawing_distribution },
    { "bias and bans decide draws", bias_and_bans_decide_draws },
    { "rows with infinities and NaNs have a rule",
      rows_with_infinities_and_nans_have_a_rule },
    { "levels and threads give the same bits", levels_and_threads_give_the_same_bits },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
