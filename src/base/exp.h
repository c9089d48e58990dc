/* exp.h - exp(), bit-identical on every machine.
 *
 * libm selects a variant by CPU; this is one fixed sequence of f64 operations.
 *
 * thread: any. */
#ifndef ML_BASE_EXP_H
#define ML_BASE_EXP_H

/* Within 1 ulp; 0 and infinity beyond the range of f64, NaN for NaN. */
double ml_exp(double x);

#endif
