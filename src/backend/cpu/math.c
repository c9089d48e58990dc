#include "backend/cpu/math.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "base/exp.h"

/* c[0] + c[1] x + ... + c[n-1] x^(n-1) */
static double poly(const double *c, int n, double x) {
    double p = c[n - 1];
    for (int i = n - 2; i >= 0; i--)
        p = p * x + c[i];
    return p;
}

/* x = 2^e m with m in [sqrt(1/2), sqrt(2)), x positive and finite.  Every f32 is a normal
 * f64, so the exponent can be read from the bits. */
static double split(double x, int *e) {
    uint64_t u;
    double m;

    memcpy(&u, &x, sizeof u);
    *e = (int)(u >> 52) - 1023;
    u = (u & 0xfffffffffffffu) | (uint64_t)1023 << 52;
    memcpy(&m, &u, sizeof m);
    if (m >= 0x1.6a09e667f3bcdp0) {
        m *= 0.5;
        *e += 1;
    }
    return m;
}

float ml_logf(float x) {
    /* log m = 2 atanh(s) with s = (m - 1) / (m + 1), |s| < 0.172: the series of atanh. */
    static const double c[] = {
        1.0,      1.0 / 3,  1.0 / 5,  1.0 / 7,  1.0 / 9,  1.0 / 11,
        1.0 / 13, 1.0 / 15, 1.0 / 17, 1.0 / 19, 1.0 / 21, 1.0 / 23
    };
    double m, s;
    int e;

    if (!(x > 0.0f))
        return x == 0.0f ? -INFINITY : NAN;
    if (x == INFINITY)
        return x;
    m = split((double)x, &e);
    s = (m - 1.0) / (m + 1.0);
    s = 2.0 * s * poly(c, (int)(sizeof c / sizeof *c), s * s);
    return (float)(e * 0x1.62e42fefa2p-1 + (e * 0x1.9ef35793c7673p-41 + s));
}

double ml_softplus(float x) {
    /* log(1 + e) = 2 atanh(s) with s = e / (2 + e) <= 1/3: no cancellation for small e. */
    static const double c[] = { 1.0,      1.0 / 3,  1.0 / 5,  1.0 / 7,  1.0 / 9,
                                1.0 / 11, 1.0 / 13, 1.0 / 15, 1.0 / 17, 1.0 / 19,
                                1.0 / 21, 1.0 / 23, 1.0 / 25, 1.0 / 27 };
    double e = ml_exp(-fabs((double)x)), s = e / (2.0 + e);
    return (x > 0.0f ? (double)x : 0.0) +
           2.0 * s * poly(c, (int)(sizeof c / sizeof *c), s * s);
}

double ml_sigmoid(double x) {
    return 1.0 / (1.0 + ml_exp(-x));
}

float ml_sigmoidf(float x) {
    return (float)ml_sigmoid((double)x);
}

/* angle - n pi/2, |result| <= pi/4.  Cody-Waite reduction: pi/2 is three pieces of 22
 * bits and a remainder, so that products with n < 2^31 are exact. */
static double reduce(double angle, double n) {
    double r = angle - n * 0x1.921fbp0;
    r -= n * 0x1.5110bp-22;
    r -= n * 0x1.184698p-44;
    return r - n * 0x1.3198a2e037073p-69;
}

void ml_sincos(double *sine, double *cosine, float angle) {
    /* Taylor series: at pi/4 the next terms are below 1e-17. */
    static const double cs[] = { 1.0,
                                 -1.0 / 6,
                                 1.0 / 120,
                                 -1.0 / 5040,
                                 1.0 / 362880,
                                 -1.0 / 39916800,
                                 1.0 / 6227020800,
                                 -1.0 / 1307674368000,
                                 1.0 / 355687428096000 };
    static const double cc[] = { 1.0,
                                 -1.0 / 2,
                                 1.0 / 24,
                                 -1.0 / 720,
                                 1.0 / 40320,
                                 -1.0 / 3628800,
                                 1.0 / 479001600,
                                 -1.0 / 87178291200,
                                 1.0 / 20922789888000,
                                 -1.0 / 6402373705728000 };
    double n, r, s, c;

    *sine = *cosine = (double)NAN;
    if (!(fabsf(angle) < 0x1p31f))
        return;
    n = ((double)angle * 0x1.45f306dc9c883p-1 + 0x1.8p52) - 0x1.8p52;
    r = reduce((double)angle, n);
    s = r * poly(cs, (int)(sizeof cs / sizeof *cs), r * r);
    c = poly(cc, (int)(sizeof cc / sizeof *cc), r * r);
    switch ((int64_t)n & 3) {
    case 0: *sine = s, *cosine = c; break;
    case 1: *sine = c, *cosine = -s; break;
    case 2: *sine = -s, *cosine = -c; break;
    default: *sine = -c, *cosine = s; break;
    }
}
