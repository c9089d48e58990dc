/* What ranks exchange in rounds of a bounded stage: sums in tree order, bytes of all. */
#include <stdlib.h>
#include <string.h>

#include "model/ranks.h"
#include "tests/support/must.h"
#include "tests/support/ranks.h"

/* Floats of each rank in two rows that do not divide evenly; more than a round has. */
static int64_t count_of(int32_t row, int32_t rank) {
    return row == 0 ? 5 + 3 * rank : 2500000 + 1001 * rank;
}

static float value(int32_t from, int32_t row, int32_t rank, int64_t i) {
    return (float)(1 + from) * 0.001f + (float)((i * 7 + row + 3 * rank) % 1013);
}

static void fill(ml_rank_spans *s, ml_arena *a, int32_t n_rank, int32_t from, bool own) {
    for (int32_t row = 0; row < s->n; row++)
        for (int32_t k = 0; k < n_rank; k++) {
            int64_t n = count_of(row, k);
            float *p = ML_NEW(a, float, n);
            for (int64_t i = 0; i < n && (own || k == from); i++)
                p[i] = value(from, row, k, i);
            s->span[row * n_rank + k] = (ml_rank_span){ p, (size_t)n * sizeof *p };
        }
}

/* The tree over three ranks: (0 + 1) + 2. */
static void check_sums(const ml_rank_spans *s, int32_t rank) {
    int64_t n_bad = 0;

    for (int32_t row = 0; row < s->n; row++)
        for (int64_t i = 0; i < count_of(row, rank); i++) {
            float want =
                (value(0, row, rank, i) + value(1, row, rank, i)) + value(2, row, rank, i);
            n_bad += ((float *)s->span[row * 3 + rank].data)[i] != want;
        }
    CHECK(n_bad == 0);
}

static void check_bytes(const ml_rank_spans *s) {
    int64_t n_bad = 0;

    for (int32_t row = 0; row < s->n; row++)
        for (int32_t k = 0; k < 3; k++)
            for (int64_t i = 0; i < count_of(row, k); i++)
                n_bad += ((float *)s->span[row * 3 + k].data)[i] != value(k, row, k, i);
    CHECK(n_bad == 0);
}

static void exchange(ml_comm *c, void *ud) {
    const bool *host = ud;
    ml_rank_spans s;
    ml_backend be;
    ml_ranks r;
    ml_arena a;

    MUST(ml_backend_cpu_open(&be, 1, NULL, &err));
    ml_arena_init(&a, "test");
    ml_ranks_open(&r, c, &be);
    s = ml_ranks_spans(&r, &a, 2, *host);
    fill(&s, &a, c->size, c->rank, true);
    MUST(ml_ranks_reduce(&r, &s, &err));
    check_sums(&s, c->rank);
    fill(&s, &a, c->size, c->rank, false);
    MUST(ml_ranks_gather(&r, &s, &err));
    check_bytes(&s);
    CHECK(r.stage.bytes <= ml_ranks_stage_bytes(c->size));
    ml_ranks_close(&r);
    ml_arena_release(&a);
    ml_backend_close(&be);
}

static void rounds_give_the_sums_of_one(void) {
    bool host[] = { false, true };

    for (int i = 0; i < 2; i++)
        ml_ranks_run(3, exchange, &host[i]);
}

static void the_stage_is_bounded(void) {
    CHECK(ml_ranks_stage_bytes(1) == 0);
    CHECK(ml_ranks_stage_bytes(8) == (size_t)64 << 20);
    for (int32_t n = 2; n <= 16384; n++) {
        size_t bytes = ml_ranks_stage_bytes(n);
        CHECK(bytes <= (size_t)256 << 20 && bytes > 0 && bytes / (size_t)n % 64 == 0);
    }
}

static const ml_test tests[] = {
    { "ranks exchange in rounds what they would at once", rounds_give_the_sums_of_one,
      120 },
    { "the stage of an exchange does not grow with the ranks", the_stage_is_bounded },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
