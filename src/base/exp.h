/* exp.h - the exponential function, the same bits on every machine.
 *
 * libm picks a variant by CPU; this is one sequence of f64 operations.
 *
 * thread: any. */
#ifndef ML_BASE_EXP_H
#define ML_BASE_EXP_H

/* Within 1 unit of the last place; 0 and infinity beyond the range of f64, NaN for NaN. */
double ml_exp(double x);

#endif
