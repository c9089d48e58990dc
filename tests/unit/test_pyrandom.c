/* Expected numbers are those of CPython 3.11: random.Random(seed) and its methods. */
#include "base/pyrandom.h"

#include <stddef.h>

#include "tests/support/test.h"

static void first_words(void) {
    static const struct {
        int64_t seed;
        uint32_t word[3];
    } cases[] = {
        { 0, { 3626764237u, 1654615998u, 3255389356u } },
        { 1, { 577090037u, 2444712010u, 3639700191u } },
        { -1, { 577090037u, 2444712010u, 3639700191u } },
        { 42, { 2746317213u, 478163327u, 107420369u } },
        { 4294967295, { 2728839433u, 2661025012u, 872737089u } },
        { 4294967296, { 485306839u, 1508871100u, 1794561286u } },
        { 1099511627779, { 943978446u, 261273136u, 2359950418u } },
        { INT64_MIN, { 2377109768u, 1691753470u, 4039908392u } },
        { INT64_MAX, { 1359979423u, 2819855560u, 2711238091u } },
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ml_pyrandom r;
        ml_pyrandom_init(&r, cases[i].seed);
        for (int k = 0; k < 3; k++) {
            uint32_t got = ml_pyrandom_u32(&r);
            if (got != cases[i].word[k])
                ml_test_fail(__FILE__, __LINE__, "seed %lld, word %d: %u",
                             (long long)cases[i].seed, k, got);
        }
    }
}

/* Past the end of the state, where it is renewed. */
static void far_word(void) {
    ml_pyrandom r;
    uint32_t got = 0;

    ml_pyrandom_init(&r, 7);
    for (int i = 0; i < 1000; i++)
        got = ml_pyrandom_u32(&r);
    CHECK(got == 2798318755u);
}

static void below(void) {
    static const uint32_t bound[] = { 1, 2, 3, 4, 10, 64, 65, 1000, 1u << 31, UINT32_MAX };
    static const uint32_t want[] = { 0, 1, 2, 0, 7, 31, 6, 922, 673671309, 486215926 };
    ml_pyrandom r;

    ml_pyrandom_init(&r, 5);
    for (size_t i = 0; i < sizeof bound / sizeof *bound; i++)
        CHECK(ml_pyrandom_below(&r, bound[i]) == want[i]);
}

static void shuffles_ten(void) {
    static const uint32_t want[3][10] = { { 7, 3, 2, 8, 5, 6, 9, 4, 0, 1 },
                                          { 8, 1, 5, 6, 9, 7, 3, 2, 4, 0 },
                                          { 4, 5, 0, 2, 9, 3, 7, 1, 8, 6 } };

    for (int s = 0; s < 3; s++) {
        uint32_t x[10];
        ml_pyrandom r;
        for (uint32_t i = 0; i < 10; i++)
            x[i] = i;
        ml_pyrandom_init(&r, 42 + s);
        ml_pyrandom_shuffle(&r, x, 10);
        for (int i = 0; i < 10; i++)
            CHECK(x[i] == want[s][i]);
    }
}

static void shuffles_many(void) {
    enum { N = 100000 };
    static uint32_t x[N];
    ml_pyrandom r;
    uint64_t hash = 0;

    for (uint32_t i = 0; i < N; i++)
        x[i] = i;
    ml_pyrandom_init(&r, 42);
    ml_pyrandom_shuffle(&r, x, N);
    for (int i = 0; i < N; i++)
        hash = hash * 31 + x[i];
    CHECK(x[0] == 3813 && x[N - 1] == 83810);
    CHECK(hash == 5417258543045719502u);
}

static void shuffles_nothing(void) {
    uint32_t one = 5;
    ml_pyrandom r;

    ml_pyrandom_init(&r, 1);
    ml_pyrandom_shuffle(&r, NULL, 0);
    ml_pyrandom_shuffle(&r, &one, 1);
    CHECK(one == 5);
    CHECK(ml_pyrandom_u32(&r) == 577090037u); /* and nothing was drawn */
}

static const ml_test tests[] = {
    { "the first words are CPython's for each seed", first_words },
    { "the 1000th word is CPython's", far_word },
    { "bounded draws are CPython's", below },
    { "shuffles of ten are CPython's", shuffles_ten },
    { "a shuffle of 100000 is CPython's", shuffles_many },
    { "a shuffle of fewer than two draws nothing", shuffles_nothing },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
