/* pyfloat.h - a double as Python's repr() writes it.
 *
 * thread: any; no state. */
#ifndef ML_BASE_PYFLOAT_H
#define ML_BASE_PYFLOAT_H

#define ML_PYFLOAT_TEXT 40

/* The shortest decimal that reads back as f; always with a point or an exponent.  "nan",
 * "inf" or "-inf" if f is not finite. */
void ml_pyfloat_text(double f, char out[ML_PYFLOAT_TEXT]);

#endif
