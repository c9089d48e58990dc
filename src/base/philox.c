#include "base/philox.h"

enum { PHILOX_ROUNDS = 10 };

static uint32_t low(uint64_t x) {
    return (uint32_t)x;
}

static uint32_t high(uint64_t x) {
    return (uint32_t)(x >> 32);
}

ml_philox ml_philox_at(uint64_t seed, uint64_t sample, uint64_t position) {
    uint32_t key0 = low(seed), key1 = high(seed);
    ml_philox c = { { low(sample), high(sample), low(position), high(position) } };

    for (int round = 0; round < PHILOX_ROUNDS; round++) {
        uint64_t a = (uint64_t)0xD2511F53u * c.word[0];
        uint64_t b = (uint64_t)0xCD9E8D57u * c.word[2];
        c = (ml_philox){ { high(b) ^ c.word[1] ^ key0, low(b), high(a) ^ c.word[3] ^ key1,
                           low(a) } };
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
    return c;
}

double ml_philox_uniform(uint64_t seed, uint64_t sample, uint64_t position) {
    ml_philox r = ml_philox_at(seed, sample, position);
    uint64_t bits = (uint64_t)r.word[0] << 32 | r.word[1];
    return (double)(bits >> 11) * 0x1p-53;
}
