#include "base/xxh3.h"

#include <string.h>

/* XXH3 has a separate path for each range of lengths; numbers are little-endian. */

#define P32_1 0x9E3779B1u
#define P32_2 0x85EBCA77u
#define P32_3 0xC2B2AE3Du
#define P64_1 0x9E3779B185EBCA87u
#define P64_2 0xC2B2AE3D27D4EB4Fu
#define P64_3 0x165667B19E3779F9u
#define P64_4 0x85EBCA77C2B2AE63u
#define P64_5 0x27D4EB2F165667C5u
#define MIX_1 0x165667919E3779F9u
#define MIX_2 0x9FB21C651E98DF25u

enum {
    SECRET = 192,
    STRIPE = 64,
    STEP = 8,                                  /* offset into the secret, from stripe to
                                                  stripe */
    BLOCK = (SECRET - STRIPE) / STEP * STRIPE, /* after which the lanes are scrambled */
    LANES = 8,
    MIDDLE = 240, /* the longest input that is mixed in pairs */
};

static const uint8_t secret[SECRET] = {
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21,
    0xad, 0x1c, 0xde, 0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4,
    0xb7, 0xb3, 0x67, 0x1f, 0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a,
    0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21, 0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e,
    0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c, 0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3,
    0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3, 0x71, 0x64, 0x48, 0x97,
    0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8, 0xa8, 0xfa,
    0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d,
    0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78,
    0x73, 0x64, 0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff,
    0xfa, 0x13, 0x63, 0xeb, 0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16,
    0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e, 0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc,
    0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce, 0x45, 0xcb, 0x3a, 0x8f, 0x95, 0x16,
    0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e,
};

/* --- words ------------------------------------------------------------------------- */

static uint32_t word(const uint8_t *p) {
    uint32_t v;
    memcpy(&v, p, sizeof v); /* little-endian machines only, like all our targets */
    return v;
}

static uint64_t twin(const uint8_t *p) {
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static ml_u128 product(uint64_t a, uint64_t b) {
    __extension__ unsigned __int128 p = (unsigned __int128)a * b;
    return (ml_u128){ (uint64_t)p, (uint64_t)(p >> 64) };
}

static uint64_t folded(uint64_t a, uint64_t b) {
    ml_u128 p = product(a, b);
    return p.low ^ p.high;
}

static uint64_t stir(uint64_t h) {
    h ^= h >> 37;
    h *= MIX_1;
    return h ^ h >> 32;
}

/* The finalizer of XXH64; for the shortest inputs. */
static uint64_t stir_short(uint64_t h) {
    h ^= h >> 33;
    h *= P64_2;
    h ^= h >> 29;
    h *= P64_3;
    return h ^ h >> 32;
}

/* --- up to 16 bytes ---------------------------------------------------------------- */

static ml_u128 hash_0(void) {
    return (ml_u128){ stir_short(twin(secret + 64) ^ twin(secret + 72)),
                      stir_short(twin(secret + 80) ^ twin(secret + 88)) };
}

static ml_u128 hash_1_to_3(const uint8_t *p, size_t n) {
    uint32_t low =
        (uint32_t)p[0] << 16 | (uint32_t)p[n >> 1] << 24 | p[n - 1] | (uint32_t)n << 8;
    uint32_t high = __builtin_bswap32(low);

    high = high << 13 | high >> 19;
    return (ml_u128){ stir_short(low ^ (uint64_t)(word(secret) ^ word(secret + 4))),
                      stir_short(high ^ (uint64_t)(word(secret + 8) ^ word(secret + 12))) };
}

static ml_u128 hash_4_to_8(const uint8_t *p, size_t n) {
    uint64_t both = word(p) + ((uint64_t)word(p + n - 4) << 32);
    ml_u128 h =
        product(both ^ twin(secret + 16) ^ twin(secret + 24), P64_1 + ((uint64_t)n << 2));

    h.high += h.low << 1;
    h.low ^= h.high >> 3;
    h.low ^= h.low >> 35;
    h.low *= MIX_2;
    h.low ^= h.low >> 28;
    h.high = stir(h.high);
    return h;
}

static ml_u128 hash_9_to_16(const uint8_t *p, size_t n) {
    uint64_t low = twin(p), high = twin(p + n - 8);
    ml_u128 m = product(low ^ high ^ twin(secret + 32) ^ twin(secret + 40), P64_1), h;

    m.low += (uint64_t)(n - 1) << 54;
    high ^= twin(secret + 48) ^ twin(secret + 56);
    m.high += high + (high & UINT32_MAX) * (P32_2 - 1);
    m.low ^= __builtin_bswap64(m.high);
    h = product(m.low, P64_2);
    h.high += m.high * P64_2;
    return (ml_u128){ stir(h.low), stir(h.high) };
}

/* --- up to 240 bytes --------------------------------------------------------------- */

static uint64_t mix_16(const uint8_t *p, const uint8_t *key) {
    return folded(twin(p) ^ twin(key), twin(p + 8) ^ twin(key + 8));
}

/* Mixes two pieces of 16 bytes, each multiplied into one half and added to the other. */
static void mix_32(ml_u128 *h, const uint8_t *a, const uint8_t *b, const uint8_t *key) {
    h->low += mix_16(a, key);
    h->low ^= twin(b) + twin(b + 8);
    h->high += mix_16(b, key + 16);
    h->high ^= twin(a) + twin(a + 8);
}

static ml_u128 end_middle(ml_u128 m, size_t n) {
    return (ml_u128){
        stir(m.low + m.high),
        0 - stir(m.low * P64_1 + m.high * P64_4 + (uint64_t)n * P64_2),
    };
}

/* Pairs from both ends, the innermost first. */
static ml_u128 hash_17_to_128(const uint8_t *p, size_t n) {
    ml_u128 h = { (uint64_t)n * P64_1, 0 };

    for (size_t i = (n - 1) / 32; i > 0; i--)
        mix_32(&h, p + 16 * i, p + n - 16 * (i + 1), secret + 32 * i);
    mix_32(&h, p, p + n - 16, secret);
    return end_middle(h, n);
}

static ml_u128 hash_129_to_240(const uint8_t *p, size_t n) {
    ml_u128 h = { (uint64_t)n * P64_1, 0 };
    size_t i = 0;

    for (; i < 128; i += 32)
        mix_32(&h, p + i, p + i + 16, secret + i);
    h = (ml_u128){ stir(h.low), stir(h.high) };
    for (; i + 32 <= n; i += 32)
        mix_32(&h, p + i, p + i + 16, secret + 3 + (i - 128));
    mix_32(&h, p + n - 16, p + n - 32, secret + 103);
    return end_middle(h, n);
}

/* --- longer inputs ----------------------------------------------------------------- */

static void take_stripe(uint64_t acc[LANES], const uint8_t *p, const uint8_t *key) {
    for (int i = 0; i < LANES; i++) {
        uint64_t v = twin(p + 8 * i), k = v ^ twin(key + 8 * i);
        acc[i ^ 1] += v;
        acc[i] += (k & UINT32_MAX) * (k >> 32);
    }
}

static void scramble(uint64_t acc[LANES]) {
    for (int i = 0; i < LANES; i++) {
        acc[i] ^= acc[i] >> 47;
        acc[i] ^= twin(secret + SECRET - STRIPE + 8 * i);
        acc[i] *= P32_1;
    }
}

static uint64_t merge(const uint64_t acc[LANES], const uint8_t *key, uint64_t h) {
    for (int i = 0; i < LANES; i += 2)
        h += folded(acc[i] ^ twin(key + 8 * i), acc[i + 1] ^ twin(key + 8 * i + 8));
    return stir(h);
}

static ml_u128 hash_long(const uint8_t *p, size_t n) {
    uint64_t acc[LANES] = { P32_3, P64_1, P64_2, P64_3, P64_4, P32_2, P64_5, P32_1 };
    size_t n_stripe = (n - 1) / STRIPE;

    for (size_t i = 0; i < n_stripe; i++) {
        size_t in_block = i % (BLOCK / STRIPE);
        if (i > 0 && in_block == 0)
            scramble(acc);
        take_stripe(acc, p + i * STRIPE, secret + in_block * STEP);
    }
    if ((n - 1) % BLOCK < STRIPE) /* complete blocks, followed by the last stripe only */
        scramble(acc);
    take_stripe(acc, p + n - STRIPE, secret + SECRET - STRIPE - 7);
    return (ml_u128){
        merge(acc, secret + 11, (uint64_t)n * P64_1),
        merge(acc, secret + SECRET - STRIPE - 11, ~((uint64_t)n * P64_2)),
    };
}

ml_u128 ml_xxh3_128(const void *bytes, size_t n) {
    const uint8_t *p = bytes;

    if (n > MIDDLE)
        return hash_long(p, n);
    if (n > 128)
        return hash_129_to_240(p, n);
    if (n > 16)
        return hash_17_to_128(p, n);
    if (n > 8)
        return hash_9_to_16(p, n);
    if (n >= 4)
        return hash_4_to_8(p, n);
    return n ? hash_1_to_3(p, n) : hash_0();
}
