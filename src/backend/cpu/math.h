/* math.h - scalar functions with the same bits on every machine, unlike libm's.
 *
 * Plain f64 arithmetic, compiled once for all levels.  For whole rows see v16_math.inc.
 *
 * thread: any. */
#ifndef ML_BACKEND_CPU_MATH_H
#define ML_BACKEND_CPU_MATH_H

/* Natural logarithm, correctly rounded in nearly all cases (tests/unit/test_math.c counts
 * the others); log 0 = -inf, of negative numbers NaN. */
float ml_logf(float x);

/* log(1 + e^x), relative error 1e-13 wherever the result is a normal f64. */
double ml_softplus(float x);

/* 1 / (1 + e^-x). */
double ml_sigmoid(double x);
float ml_sigmoidf(float x);

/* Sine and cosine of an f32 angle; tests/unit/test_math.c requires an error below 1e-15
 * on samples up to 2^30.  NaN where |angle| >= 2^31. */
void ml_sincos(double *sine, double *cosine, float angle);

#endif
