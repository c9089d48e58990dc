/* check_draws.c - filtered draws of a GPU against the rules, in double precision.
 *
 *     check_draws
 *
 * Rows of made-up logits, many of them equal; top-k, top-p and min-p, alone and together.  A draw
 * must be a token that the filters keep, the one that its random number points at, and have the
 * very log-prob that scoring it has.  Its support is what the filters keep, and its log-prob over it
 * that of double precision. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/backend.h"
#include "backend/draw.h"
#include "base/philox.h"

enum { VOCAB = 151936, ROWS = 16 };

static const struct filter {
    float temperature;
    int32_t top_k;
    float top_p, min_p;
} filters[] = {
    { 1, 50, 1, 0 },        { 1, 1, 1, 0 },
    { 0.7f, 0, 0.9f, 0 },   { 1, 0, 0.3f, 0 },
    { 1, 0, 1, 0.05f },     { 1.5f, 0, 1, 0.3f },
    { 0.6f, 20, 0.95f, 0 }, { 1, 1000, 0.99f, 1e-3f },
    { 1, VOCAB - 1, 1, 0 }, { 2, 0, 0.999f, 0 },
};
enum { FILTERS = sizeof filters / sizeof *filters, DRAWS = ROWS * FILTERS };

static float *logits;
static ml_draw_opts opts[DRAWS];
static ml_draw draws[DRAWS], again[DRAWS];

static _Noreturn void die(const char *what) {
    fprintf(stderr, "check_draws: %s\n", what);
    exit(1);
}

/* Bell-shaped; of even rows in steps of 1 / 16, so that many are equal. */
static void make_rows(void) {
    logits = malloc((size_t)ROWS * VOCAB * sizeof *logits);
    if (!logits)
        die("no memory");
    for (uint64_t r = 0; r < ROWS; r++)
        for (uint64_t i = 0; i < VOCAB; i++) {
            double x = -6;
            for (uint64_t k = 0; k < 12; k++)
                x += ml_philox_uniform(r, i, k);
            x *= 1.0 + 0.2 * (double)r;
            logits[r * VOCAB + i] = (float)(r % 2 ? x : round(16 * x) / 16);
        }
}

static void make_draws(const float *there) {
    for (int i = 0; i < DRAWS; i++) {
        const struct filter *f = &filters[i % FILTERS];
        opts[i] = (ml_draw_opts){ .temperature = f->temperature,
                                  .top_k = f->top_k,
                                  .top_p = f->top_p,
                                  .min_p = f->min_p,
                                  .repetition = 1,
                                  .seed = 5,
                                  .sample = (uint64_t)i };
        draws[i] = (ml_draw){ .logits = there + (size_t)(i / FILTERS) * VOCAB,
                              .opts = &opts[i],
                              .n_history = 3 + i % 4,
                              .support = malloc(ml_support_max(VOCAB)),
                              .given = -1 };
        if (!draws[i].support)
            die("no memory");
    }
}

/* A row's tokens by distance from the largest, of equal ones the lower id first. */
static float distance[VOCAB];
static int32_t order[VOCAB];
static bool kept[VOCAB];

static int by_distance(const void *a, const void *b) {
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return distance[x] != distance[y] ? (distance[x] > distance[y] ? 1 : -1) : x - y;
}

static double weight(int32_t i) {
    return exp(-(double)distance[i]);
}

static void sort_row(const float *z, float temperature) {
    float m = -INFINITY;

    for (int32_t i = 0; i < VOCAB; i++) {
        m = fmaxf(m, z[i] / temperature);
        order[i] = i;
    }
    for (int32_t i = 0; i < VOCAB; i++)
        distance[i] = m - z[i] / temperature;
    qsort(order, VOCAB, sizeof *order, by_distance);
}

/* Marks what the filters keep, and returns what it weighs. */
static double keep(const ml_draw_opts *o) {
    double all = 0, before = 0, sum = 0,
           near = o->min_p > 0 ? -log((double)o->min_p) : HUGE_VAL;

    for (int32_t i = 0; i < VOCAB; i++)
        all += weight(i);
    for (int32_t r = 0; r < VOCAB; r++) {
        int32_t i = order[r];
        kept[i] = (o->top_k <= 0 || r < o->top_k) &&
                  (o->top_p >= 1 || before <= (double)o->top_p * all) &&
                  (double)distance[i] <= near;
        before += weight(i);
        sum += kept[i] ? weight(i) : 0;
    }
    return sum;
}

/* What is wrong with a draw; NULL: nothing.  Rounding may move sums by a millionth. */
static const char *judge(const ml_draw *w, const float *z) {
    const ml_draw_opts *o = w->opts;
    double u = ml_philox_uniform(o->seed, o->sample, (uint64_t)w->n_history);
    double sum, below = 0;

    if (w->id < 0 || w->id >= VOCAB)
        return "is no token";
    sort_row(z, o->temperature);
    sum = keep(o);
    if (!kept[w->id])
        return "is not kept";
    for (int32_t i = 0; i < w->id; i++)
        below += kept[i] ? weight(i) : 0;
    if (u * sum < below - 1e-6 * sum || u * sum > below + weight(w->id) + 1e-6 * sum)
        return "is not where its random number points";
    return NULL;
}

/* The same of a draw's support; `kept` is of its row.  Of tokens at the edge of top-p, rounding
 * may keep one more or less. */
static const char *judge_support(const ml_draw *w) {
    static int32_t id[VOCAB];
    static bool in[VOCAB];
    int64_t n = ml_support_ids(
        id, (ml_str){ (const char *)w->support, (size_t)w->n_support }, VOCAB);
    double sum = 0, want;
    int other = 0;

    memset(in, 0, sizeof in);
    for (int64_t i = 0; i < n; i++) {
        in[id[i]] = true;
        sum += weight(id[i]);
    }
    for (int32_t i = 0; i < VOCAB; i++)
        other += in[i] != kept[i];
    want = -(double)distance[w->id] - log(sum);
    if (!in[w->id])
        return "is not in its support";
    if (other > (w->opts->top_p < 1))
        return "has another support than the filters keep";
    if (!(fabs((double)w->support_logprob - want) <= 1e-4 * (1 + fabs(want))))
        return "has a wrong log-prob over its support";
    return NULL;
}

static int compare(void) {
    int bad = 0;

    for (int i = 0; i < DRAWS; i++) {
        const char *wrong = judge(&draws[i], logits + (size_t)(i / FILTERS) * VOCAB);
        if (!wrong && memcmp(&draws[i].logprob, &again[i].logprob, sizeof(float)) != 0)
            wrong = "has another log-prob when it is given";
        if (!wrong)
            wrong = judge_support(&draws[i]);
        if (wrong)
            printf("draw %d (row %d, filter %d): token %d %s\n", i, i / FILTERS,
                   i % FILTERS, draws[i].id, wrong);
        bad += wrong != NULL;
    }
    printf("%d of %d filtered draws are wrong\n", bad, DRAWS);
    return bad;
}

int main(void) {
    size_t bytes = (size_t)ROWS * VOCAB * sizeof *logits;
    ml_buf there, scratch;
    ml_backend be;
    ml_err err;
    int bad;

    if (ml_backend_open(&be, &(ml_backend_opts){ .device = "cuda", .n_thread = 1 }, &err)) {
        printf("skipped: %s\n0 passed, 0 failed, 1 skipped\n", err.msg);
        return 0;
    }
    make_rows();
    if (be.dev->alloc(be.dev, &there, bytes, ML_MEM_SCRATCH, &err) ||
        be.dev->alloc(be.dev, &scratch, be.ops->sample_scratch(be.stream, VOCAB),
                      ML_MEM_SCRATCH, &err))
        die(err.msg);
    be.dev->copy_in(be.stream, there.ptr, logits, bytes);
    make_draws(there.ptr);
    be.ops->sample(be.stream, draws, DRAWS, VOCAB, scratch.ptr, NULL);
    be.ops->sampled(be.stream, draws, DRAWS);
    for (int i = 0; i < DRAWS; i++) {
        again[i] = draws[i];
        again[i].given = draws[i].id;
    }
    be.ops->sample(be.stream, again, DRAWS, VOCAB, scratch.ptr, NULL);
    be.ops->sampled(be.stream, again, DRAWS);
    if (be.dev->sync(be.stream, &err))
        die(err.msg);
    bad = compare();
    printf("%d passed, %d failed, 0 skipped\n", !bad, bad > 0);
    return bad > 0;
}
