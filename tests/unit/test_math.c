/* Accuracy of the kernels' own exp, sigmoid, tanh, log, sine and cosine. */
#include "tests/support/test.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>

#include "backend/cpu/math.h"
#include "backend/cpu/v16_c.h"

#include "backend/cpu/v16_math.inc"

static float float_of(uint32_t u) {
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

/* |got - want| in units of the f32 spacing at want; denormals have the spacing 2^-149. */
static double ulps(double got, double want) {
    int e;
    frexp(want, &e);
    return fabs(got - want) / ldexp(1.0, (e < -125 ? -125 : e) - 24);
}

typedef v16 lane_fn(v16 x);
typedef double wide_fn(double x);

static double wide_sigmoid(double x) {
    return 1.0 / (1.0 + exp(-x));
}

/* The worst error over [lo, hi] and [-hi, -lo], walking the floats by `step` bit patterns. */
static double worst(lane_fn *f, wide_fn *g, float lo, float hi, uint32_t step) {
    uint32_t u, end;
    double bad = 0.0;

    memcpy(&u, &lo, sizeof u);
    memcpy(&end, &hi, sizeof end);
    for (; u < end; u += 8 * step) {
        float x[16], y[16];
        for (uint32_t i = 0; i < 8; i++) {
            x[i] = float_of(u + i * step);
            x[i + 8] = -x[i];
        }
        v16_store(y, f(v16_load(x)));
        for (int i = 0; i < 16; i++) {
            double e = ulps((double)y[i], g((double)x[i]));
            bad = e > bad ? e : bad;
        }
    }
    return bad;
}

static void check_worst(const char *name, double got, double bound) {
    printf("    %s: worst %.3f ulp\n", name, got);
    if (!(got <= bound))
        ml_test_fail(__FILE__, __LINE__, "%s is %.3f ulp off; %.1f allowed", name, got,
                     bound);
}

static float one(lane_fn *f, float x) {
    float y[16];
    v16_store(y, f(v16_set1(x)));
    for (int i = 1; i < 16; i++)
        CHECK(memcmp(&y[i], &y[0], sizeof y[0]) == 0);
    return y[0];
}

static void exp_is_close(void) {
    check_worst("exp", worst(v16_exp, exp, 0x1p-30f, 88.7f, 251), 2.0);
    check_worst("exp near underflow", worst(v16_exp, exp, 87.0f, 88.0f, 1), 2.0);
    /* Below -88.7 the positive side overflows: only the negative one is of interest. */
    double bad = 0.0;
    for (float x = -88.0f; x > -104.5f; x -= 0x1p-10f) {
        double e = ulps((double)one(v16_exp, x), exp((double)x));
        bad = e > bad ? e : bad;
    }
    check_worst("exp of denormal results", bad, 2.0);
}

static void exp_of_special_values(void) {
    CHECK(one(v16_exp, 0.0f) == 1.0f);
    CHECK(one(v16_exp, -0.0f) == 1.0f);
    CHECK(one(v16_exp, 0x1p-149f) == 1.0f);
    CHECK(one(v16_exp, -INFINITY) == 0.0f);
    CHECK(one(v16_exp, -1e30f) == 0.0f);
    CHECK(one(v16_exp, INFINITY) == INFINITY);
    CHECK(one(v16_exp, 88.73f) == INFINITY);
    CHECK(one(v16_exp, 88.72f) < INFINITY);
    CHECK(isnan(one(v16_exp, NAN)));
}

static void sigmoid_is_close(void) {
    check_worst("sigmoid", worst(v16_sigmoid, wide_sigmoid, 0x1p-30f, 87.0f, 251), 4.0);
    CHECK(one(v16_sigmoid, 0.0f) == 0.5f);
    CHECK(one(v16_sigmoid, -INFINITY) == 0.0f);
    CHECK(one(v16_sigmoid, INFINITY) == 1.0f);
    CHECK(isnan(one(v16_sigmoid, NAN)));
}

static void tanh_is_close(void) {
    check_worst("tanh", worst(v16_tanh, tanh, 0x1p-140f, 20.0f, 1009), 4.0);
    check_worst("tanh at the seam", worst(v16_tanh, tanh, 0.6f, 0.65f, 1), 4.0);
    CHECK(signbit(one(v16_tanh, -0.0f)));
    CHECK(one(v16_tanh, -INFINITY) == -1.0f);
    CHECK(one(v16_tanh, INFINITY) == 1.0f);
    CHECK(one(v16_tanh, 1e30f) == 1.0f);
    CHECK(isnan(one(v16_tanh, NAN)));
}

static void log_is_correctly_rounded(void) {
    int64_t n = 0, off = 0;
    for (uint32_t u = 1; u < 0x7f800000u; u += 1009, n++) {
        float x = float_of(u), want = (float)logl((long double)x);
        if (ml_logf(x) != want) {
            off++;
            CHECK(ulps((double)ml_logf(x), (double)want) <= 1.0);
        }
    }
    for (uint32_t u = 0x3f7f0000u; u < 0x3f810000u; u++, n++)
        off += ml_logf(float_of(u)) != (float)logl((long double)float_of(u));
    printf("    log: %lld of %lld not correctly rounded\n", (long long)off, (long long)n);
    CHECK(off * 100000 <= n);
    CHECK(ml_logf(1.0f) == 0.0f && !signbit(ml_logf(1.0f)));
    CHECK(ml_logf(0.0f) == -INFINITY && ml_logf(-0.0f) == -INFINITY);
    CHECK(ml_logf(INFINITY) == INFINITY);
    CHECK(isnan(ml_logf(-1.0f)) && isnan(ml_logf(NAN)));
}

static void sine_and_cosine_are_close(void) {
    double bad = 0.0;
    for (uint32_t u = 0; u < 0x4e800000u; u += 997) { /* up to 2^30 */
        float x = float_of(u);
        double s, c, s2, c2;
        ml_sincos(&s, &c, x);
        ml_sincos(&s2, &c2, -x);
        bad = fmax(bad, fabs((double)(sinl((long double)x) - (long double)s)));
        bad = fmax(bad, fabs((double)(cosl((long double)x) - (long double)c)));
        CHECK(s2 == -s && c2 == c);
    }
    printf("    sine, cosine: worst %.3g\n", bad);
    CHECK(bad < 1e-15);
}

static void sine_of_special_values(void) {
    double s, c;
    ml_sincos(&s, &c, 0.0f);
    CHECK(s == 0.0 && c == 1.0);
    ml_sincos(&s, &c, INFINITY);
    CHECK(isnan(s) && isnan(c));
    ml_sincos(&s, &c, NAN);
    CHECK(isnan(s) && isnan(c));
    ml_sincos(&s, &c, 0x1p31f);
    CHECK(isnan(s) && isnan(c));
}

static const ml_test tests[] = {
    { "exp is within 2 ulp", exp_is_close },
    { "exp of special values is exact", exp_of_special_values },
    { "sigmoid is within 4 ulp", sigmoid_is_close },
    { "tanh is within 4 ulp", tanh_is_close },
    { "log is correctly rounded", log_is_correctly_rounded },
    { "sine and cosine are close to long double", sine_and_cosine_are_close },
    { "sine and cosine of special values are exact", sine_of_special_values },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
