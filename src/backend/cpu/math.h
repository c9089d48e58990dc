/* math.h - scalar functions that libm would give other bits for on other machines.
 *
 * Plain f64 arithmetic, compiled once for all levels.  For whole rows see v16_math.inc.
 *
 * thread: any. */
#ifndef ML_BACKEND_CPU_MATH_H
#define ML_BACKEND_CPU_MATH_H

/* Natural logarithm, correctly rounded in nearly all cases; log 0 = -inf, of less NaN. */
float ml_logf(float x);

/* log(1 + e^x), to 1e-13 of itself wherever that is a normal f64. */
double ml_softplus(float x);

/* 1 / (1 + e^-x). */
double ml_sigmoid(double x);
float ml_sigmoidf(float x);

/* Sine and cosine of an f32 angle to 1e-15; NaN where |angle| >= 2^31. */
void ml_sincos(double *sine, double *cosine, float angle);

#endif
