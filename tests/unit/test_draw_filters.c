/* Which tokens may be drawn and how often: against a plain reference in f64. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/philox.h"
#include "tests/support/drawer.h"
#include "tests/support/test.h"

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
static void check_against_reference(ml_drawer *m, const float *z, const ml_draw_opts *o) {
    int64_t n = m->n_vocab;
    int32_t *ids = calloc((size_t)n, sizeof *ids), *top = calloc((size_t)n, sizeof *top);
    float *lp = calloc((size_t)n, sizeof *lp), *top_lp = calloc((size_t)n, sizeof *top_lp);
    ref_token *ref = ref_filter(z, n, o);
    ml_draw d = ml_drawer_of(z, o);
    double u = ml_philox_uniform(o->seed, o->sample, 0), before = 0.0, entropy = 0.0;

    for (int64_t i = 0; i < n; i++)
        ids[i] = (int32_t)i;
    d.also = ids;
    d.also_logprob = lp;
    d.top_id = top;
    d.top_logprob = top_lp;
    d.n_also = d.n_top = (int32_t)n;
    ml_drawer_draw(m, &d, 1);
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
        { 0, 0.9f, 0.0f, 1.0f },
        { 50, 1.0f, 0.0f, 1.0f },
        { 0, 1.0f, 0.05f, 1.0f },
        { 1, 1.0f, 0.0f, 1.0f },
        { 0, 0.0f, 0.0f, 1.0f },
        { 0, 0.95f, 0.0f, 0.7f },
        { 50, 0.8f, 0.02f, 1.3f },
        { 5, 0.999f, 0.0f, 0.3f },
        { ML_DRAWER_VOCAB, 0.5f, 0.001f, 2.0f },
        { 300, 0.99f, 0.0f, 1.0f },
        { 2 * ML_DRAWER_VOCAB, 1.0f, 0.0f, 1.0f },
    };
    ml_drawer m = ml_drawer_open(1, NULL, ML_DRAWER_VOCAB);
    float z[ML_DRAWER_VOCAB];

    for (uint64_t row = 0; row < 6; row++) {
        ml_drawer_row(z, ML_DRAWER_VOCAB, row, row % 3 == 0 ? 0.3 : 3.0);
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            ml_draw_opts o = ml_drawer_plain;
            o.top_k = cases[i].top_k;
            o.top_p = cases[i].top_p;
            o.min_p = cases[i].min_p;
            o.temperature = cases[i].temperature;
            o.dist = ML_DIST_DRAWN;
            o.sample = row * 100 + i;
            check_against_reference(&m, z, &o);
        }
    }
    ml_drawer_close(&m);
}

static void all_equal_rows_keep_the_lowest_ids(void) {
    ml_drawer m = ml_drawer_open(1, NULL, ML_DRAWER_VOCAB);
    ml_draw_opts o = ml_drawer_plain;
    float z[ML_DRAWER_VOCAB], top_lp[4];
    int32_t top[4];
    ml_draw d;

    for (int i = 0; i < ML_DRAWER_VOCAB; i++)
        z[i] = -2.5f;
    o.top_k = 3;
    o.dist = ML_DIST_DRAWN;
    for (o.sample = 0; o.sample < 200; o.sample++) {
        d = ml_drawer_of(z, &o);
        d.n_top = 4;
        d.top_id = top;
        d.top_logprob = top_lp;
        ml_drawer_draw(&m, &d, 1);
        CHECK(d.id < 3 && fabsf(d.logprob + 1.0986123f) < 1e-6f);
        CHECK(top[0] == 0 && top[1] == 1 && top[2] == 2 && top[3] == 3);
        CHECK(top_lp[2] == d.logprob && isinf(top_lp[3]));
    }
    ml_drawer_close(&m);
}

/* ---- statistics ---- */

/* 20,000 draws over 8 tokens: chi-square with 7 degrees of freedom, 24.3 is p = 0.001. */
static double chi_square(ml_drawer *m, const float *z, const ml_draw_opts *base) {
    enum { DRAWS = 20000 };
    double count[8] = { 0 }, chi = 0.0;
    ref_token *ref = ref_filter(z, 8, base);

    qsort(ref, 8, sizeof *ref, by_id);
    for (uint64_t i = 0; i < DRAWS; i++) {
        ml_draw_opts o = *base;
        ml_draw d = ml_drawer_of(z, &o);
        o.sample = i / 100;
        d.history = NULL;
        d.n_history = (int32_t)(i % 100);
        ml_drawer_draw(m, &d, 1);
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
    ml_drawer m = ml_drawer_open(1, NULL, 8);
    ml_draw_opts o = ml_drawer_plain;

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
    ml_drawer_close(&m);
}

static void samples_and_positions_have_their_own_draws(void) {
    enum { N = 64 };
    ml_drawer m = ml_drawer_open(1, NULL, ML_DRAWER_VOCAB);
    float z[ML_DRAWER_VOCAB] = { 0 };
    int same = 0;
    int32_t id[2 * N];

    for (uint64_t i = 0; i < N; i++) {
        ml_draw_opts o = ml_drawer_plain;
        ml_draw d = ml_drawer_of(z, &o);
        o.sample = i;
        ml_drawer_draw(&m, &d, 1);
        id[2 * i] = d.id;
        d.n_history = 1;
        ml_drawer_draw(&m, &d, 1);
        id[2 * i + 1] = d.id;
    }
    for (int i = 0; i < 2 * N; i++)
        for (int j = 0; j < i; j++)
            same += id[i] == id[j];
    CHECK(same < 12); /* 2.7 expected of 8128 pairs over 3001 tokens */
    ml_drawer_close(&m);
}

static const ml_test tests[] = {
    { "top-k, top-p and min-p keep the tokens of the f64 reference",
      filters_agree_with_the_reference },
    { "top-k of equal logits keeps the lowest ids", all_equal_rows_keep_the_lowest_ids },
    { "draws follow the distribution", draws_follow_the_distribution },
    { "each sample and position has its own random draw",
      samples_and_positions_have_their_own_draws },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
