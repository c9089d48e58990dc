#include "base/exp.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

/* 2^e for a normal result. */
static double power_of_two(int e) {
    uint64_t bits = (uint64_t)(e + 1023) << 52;
    double d;

    memcpy(&d, &bits, sizeof d);
    return d;
}

double ml_exp(double x) {
    /* e^r = 1 + r + r^2 (1/2 + r/6 + ...), |r| <= ln(2)/2: the next term is below 2^-60. */
    static const double c[] = {
        1.0 / 2,       1.0 / 6,        1.0 / 24,        1.0 / 120,
        1.0 / 720,     1.0 / 5040,     1.0 / 40320,     1.0 / 362880,
        1.0 / 3628800, 1.0 / 39916800, 1.0 / 479001600, 1.0 / 6227020800,
    };
    const double log2e = 0x1.71547652b82fep0, round = 0x1.8p52;
    double n, r, low, p;
    int e;

    if (x != x)
        return x;
    if (x > 709.782712893384)
        return (double)INFINITY;
    if (x < -745.2)
        return 0.0;
    n = (x * log2e + round) - round;
    /* ln 2 in two pieces, the first short enough for an exact product with n. */
    r = x - n * 0x1.62e42fefap-1;
    low = n * 0x1.cf79abc9e3b39p-40;
    r -= low;
    p = c[11];
    for (int i = 10; i >= 0; i--)
        p = p * r + c[i];
    p = 1.0 + (r + r * r * p);
    /* In two steps, because 2^n alone may be out of range. */
    e = (int)n / 2;
    return p * power_of_two(e) * power_of_two((int)n - e);
}
