#include "base/pyrandom.h"

#include "base/bug.h"

enum {
    N = ML_PYRANDOM_WORDS,
    M = 397
}; /* MT19937: words of state, distance of the twist */

static uint32_t mixed(uint32_t before) {
    return before ^ before >> 30;
}

static void start(uint32_t *w, uint32_t seed) {
    w[0] = seed;
    for (uint32_t i = 1; i < N; i++)
        w[i] = 1812433253u * mixed(w[i - 1]) + i;
}

/* The state is a ring of N - 1 words; word 0 is a copy of word N - 1, which closes the
 * ring. */
static uint32_t after(uint32_t *w, uint32_t i) {
    if (++i < N)
        return i;
    w[0] = w[N - 1];
    return 1;
}

static void start_by_key(uint32_t *w, const uint32_t *key, uint32_t n_key) {
    uint32_t i = 1;

    start(w, 19650218u);
    for (uint32_t k = 0; k < N; k++) {
        uint32_t j = k % n_key;
        w[i] = (w[i] ^ mixed(w[i - 1]) * 1664525u) + key[j] + j;
        i = after(w, i);
    }
    for (uint32_t k = 1; k < N; k++) {
        w[i] = (w[i] ^ mixed(w[i - 1]) * 1566083941u) - i;
        i = after(w, i);
    }
    w[0] = 0x80000000u;
}

void ml_pyrandom_init(ml_pyrandom *r, int64_t seed) {
    uint64_t size = seed < 0 ? 0 - (uint64_t)seed : (uint64_t)seed;
    uint32_t key[2] = { (uint32_t)size, (uint32_t)(size >> 32) };

    start_by_key(r->word, key, key[1] ? 2 : 1);
    r->next = N;
}

static void twist(uint32_t *w) {
    for (int i = 0; i < N; i++) {
        uint32_t y = (w[i] & 0x80000000u) | (w[(i + 1) % N] & 0x7fffffffu);
        w[i] = w[(i + M) % N] ^ y >> 1 ^ (y & 1 ? 0x9908b0dfu : 0);
    }
}

uint32_t ml_pyrandom_u32(ml_pyrandom *r) {
    uint32_t y;

    if (r->next == N) {
        twist(r->word);
        r->next = 0;
    }
    y = r->word[r->next++];
    y ^= y >> 11;
    y ^= y << 7 & 0x9d2c5680u;
    y ^= y << 15 & 0xefc60000u;
    return y ^ y >> 18;
}

uint32_t ml_pyrandom_below(ml_pyrandom *r, uint32_t n) {
    uint32_t drawn;
    int unused;

    ML_BUG_IF(n == 0);
    unused = __builtin_clz(n);
    do
        drawn = ml_pyrandom_u32(r) >> unused;
    while (drawn >= n);
    return drawn;
}

void ml_pyrandom_shuffle(ml_pyrandom *r, uint32_t *x, uint32_t n) {
    for (uint32_t left = n; left > 1; left--) {
        uint32_t i = left - 1, j = ml_pyrandom_below(r, left), moved = x[i];
        x[i] = x[j];
        x[j] = moved;
    }
}
