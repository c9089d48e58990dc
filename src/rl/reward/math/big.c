#include "rl/reward/math/big.h"

#include <string.h>

bool ml_work_take(ml_work *w, int64_t amount) {
    if (w->spent || w->left < amount) {
        w->spent = true;
        return false;
    }
    w->left -= amount;
    return true;
}

static ml_big trimmed(const uint32_t *limb, int32_t n, bool neg) {
    while (n > 0 && limb[n - 1] == 0)
        n--;
    return (ml_big){ .neg = neg && n > 0, .n = n, .limb = limb };
}

/* Allocates n limbs; NULL if that exceeds the work budget. */
static uint32_t *take_limbs(ml_work *w, int32_t n) {
    if (n > ML_BIG_LIMBS)
        w->spent = true;
    if (!ml_work_take(w, n))
        return NULL;
    return ML_NEW(w->arena, uint32_t, n + 1);
}

ml_big ml_big_of(ml_work *w, int64_t v) {
    uint64_t m = v < 0 ? 0 - (uint64_t)v : (uint64_t)v;
    uint32_t *limb = take_limbs(w, 2);

    if (!limb)
        return (ml_big){ 0 };
    limb[0] = (uint32_t)m;
    limb[1] = (uint32_t)(m >> 32);
    return trimmed(limb, 2, v < 0);
}

/* limb[0 .. n) = limb * factor + carry; returns the new n. */
static int32_t scale(uint32_t *limb, int32_t n, uint32_t factor, uint32_t carry) {
    uint64_t c = carry;

    for (int32_t i = 0; i < n; i++) {
        c += (uint64_t)limb[i] * factor;
        limb[i] = (uint32_t)c;
        c >>= 32;
    }
    if (c)
        limb[n++] = (uint32_t)c;
    return n;
}

ml_big ml_big_digits(ml_work *w, ml_str decimal) {
    /* Nine digits fit in a limb. */
    size_t most = decimal.len / 9 + 1;
    int32_t n = 0;
    uint32_t *limb;

    if (most > ML_BIG_LIMBS)
        w->spent = true;
    if (!ml_work_take(w, (int64_t)(most * decimal.len)))
        return (ml_big){ 0 };
    limb = take_limbs(w, (int32_t)most);
    if (!limb)
        return (ml_big){ 0 };
    for (size_t i = 0; i < decimal.len; i++)
        n = scale(limb, n, 10, (uint32_t)(decimal.ptr[i] - '0'));
    return trimmed(limb, n, false);
}

ml_big ml_big_power(ml_work *w, uint32_t base, int64_t exponent) {
    ml_big result = ml_big_of(w, 1), square = ml_big_of(w, base);

    for (; exponent > 0 && !w->spent; exponent >>= 1) {
        if (exponent & 1)
            result = ml_big_mul(w, result, square);
        if (exponent > 1)
            square = ml_big_mul(w, square, square);
    }
    return result;
}

static int compare_size(ml_big a, ml_big b) {
    if (a.n != b.n)
        return a.n < b.n ? -1 : 1;
    for (int32_t i = a.n - 1; i >= 0; i--)
        if (a.limb[i] != b.limb[i])
            return a.limb[i] < b.limb[i] ? -1 : 1;
    return 0;
}

static ml_big add_sizes(ml_work *w, ml_big a, ml_big b, bool neg) {
    int32_t n = (a.n > b.n ? a.n : b.n) + 1;
    uint32_t *limb = take_limbs(w, n);
    uint64_t c = 0;

    if (!limb)
        return (ml_big){ 0 };
    for (int32_t i = 0; i < n; i++) {
        c += (uint64_t)(i < a.n ? a.limb[i] : 0) + (i < b.n ? b.limb[i] : 0);
        limb[i] = (uint32_t)c;
        c >>= 32;
    }
    return trimmed(limb, n, neg);
}

/* a - b, where |a| >= |b|. */
static ml_big subtract_sizes(ml_work *w, ml_big a, ml_big b, bool neg) {
    uint32_t *limb = take_limbs(w, a.n);
    int64_t c = 0;

    if (!limb)
        return (ml_big){ 0 };
    for (int32_t i = 0; i < a.n; i++) {
        c += (int64_t)a.limb[i] - (i < b.n ? b.limb[i] : 0);
        limb[i] = (uint32_t)c;
        c = c < 0 ? -1 : 0;
    }
    return trimmed(limb, a.n, neg);
}

ml_big ml_big_add(ml_work *w, ml_big a, ml_big b) {
    if (a.neg == b.neg)
        return add_sizes(w, a, b, a.neg);
    if (compare_size(a, b) >= 0)
        return subtract_sizes(w, a, b, a.neg);
    return subtract_sizes(w, b, a, b.neg);
}

ml_big ml_big_mul(ml_work *w, ml_big a, ml_big b) {
    uint32_t *limb;

    if (!ml_work_take(w, (int64_t)a.n * b.n))
        return (ml_big){ 0 };
    limb = take_limbs(w, a.n + b.n);
    if (!limb)
        return (ml_big){ 0 };
    for (int32_t i = 0; i < a.n; i++) {
        uint64_t c = 0;
        for (int32_t j = 0; j < b.n; j++) {
            c += (uint64_t)a.limb[i] * b.limb[j] + limb[i + j];
            limb[i + j] = (uint32_t)c;
            c >>= 32;
        }
        limb[i + b.n] = (uint32_t)c;
    }
    return trimmed(limb, a.n + b.n, a.neg != b.neg);
}

ml_big ml_big_minus(ml_big a) {
    a.neg = !a.neg && a.n > 0;
    return a;
}

bool ml_big_eq(ml_big a, ml_big b) {
    return a.neg == b.neg && compare_size(a, b) == 0;
}

bool ml_big_u64(ml_big a, uint64_t *out) {
    if (a.n > 2)
        return false;
    *out = (a.n > 0 ? a.limb[0] : 0) | (uint64_t)(a.n > 1 ? a.limb[1] : 0) << 32;
    return true;
}
