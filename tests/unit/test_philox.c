/* Philox4x32-10: the published vectors, and what the addresses promise. */
#include "tests/support/test.h"

#include <stdint.h>
#include <string.h>

#include "base/philox.h"

static void published_vectors_come_out(void) {
    static const struct {
        uint64_t seed, sample, position;
        uint32_t word[4];
    } known[] = {
        { 0, 0, 0, { 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8 } },
        { UINT64_MAX,
          UINT64_MAX,
          UINT64_MAX,
          { 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd } },
        { 0x299f31d0a4093822,
          0x85a308d3243f6a88,
          0x0370734413198a2e,
          { 0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1 } },
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        ml_philox r = ml_philox_at(known[i].seed, known[i].sample, known[i].position);
        CHECK(memcmp(r.word, known[i].word, sizeof r.word) == 0);
    }
}

static void uniform_is_the_first_two_words(void) {
    double want = (double)(0x6627e8d5e169c58du >> 11) / 9007199254740992.0;
    CHECK(ml_philox_uniform(0, 0, 0) == want);
}

static void uniform_is_in_range_and_even(void) {
    enum { DRAWS = 100000, BINS = 16 };
    int64_t bin[BINS] = { 0 };
    double sum = 0.0;

    for (uint64_t i = 0; i < DRAWS; i++) {
        double u = ml_philox_uniform(7, i / 100, i % 100), at = u * BINS;
        CHECK(u >= 0.0 && u < 1.0);
        bin[(int)at]++;
        sum += u;
    }
    CHECK(sum / DRAWS > 0.497 && sum / DRAWS < 0.503);
    for (int i = 0; i < BINS; i++) /* 6250 expected, standard deviation 77 */
        CHECK(bin[i] > 5900 && bin[i] < 6600);
}

static void every_part_of_the_address_counts(void) {
    double u = ml_philox_uniform(1, 2, 3);
    CHECK(u == ml_philox_uniform(1, 2, 3));
    CHECK(u != ml_philox_uniform(2, 2, 3) && u != ml_philox_uniform(1, 3, 3));
    CHECK(u != ml_philox_uniform(1, 2, 4) && u != ml_philox_uniform(1, 3, 2));
    CHECK(u != ml_philox_uniform(1 + (1ull << 32), 2, 3));
    CHECK(u != ml_philox_uniform(1, 2 + (1ull << 32), 3));
    CHECK(u != ml_philox_uniform(1, 2, 3 + (1ull << 32)));
}

static const ml_test tests[] = {
    { "Philox gives the published vectors", published_vectors_come_out },
    { "a Philox uniform is made of its first two words", uniform_is_the_first_two_words },
    { "Philox uniforms are in range and even", uniform_is_in_range_and_even },
    { "seed, sample and position all change a Philox draw",
      every_part_of_the_address_counts },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
