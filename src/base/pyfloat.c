#include "base/pyfloat.h"

#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The next larger decimal with as many digits, in the form d.ddde-dd; false: all are 9. */
static bool next_decimal(char *text) {
    for (char *p = strchr(text, 'e'); p-- > text;) {
        if (*p >= '0' && *p < '9') {
            ++*p;
            return true;
        }
        if (*p == '9')
            *p = '0';
    }
    return false;
}

/* The nearest decimal with some digits or, below a power of two, the one after it: doubles
 * are closer to each other on that side. */
static bool reads_back(char *text, double f) {
    return strtod(text, NULL) == f || (next_decimal(text) && strtod(text, NULL) == f);
}

/* The fewest digits that read back as f; 17 always suffice.  Decimals of up to 15 digits
 * survive the way through a normal double, so that fewer are 15 with zeros at the end. */
static int shortest_digits(double f, char digits[20], int *exponent) {
    char text[40];
    int n = 0;

    for (int precision = fabs(f) < DBL_MIN ? 0 : DBL_DIG - 1; precision < 17; precision++) {
        snprintf(text, sizeof text, "%.*e", precision, f);
        if (reads_back(text, f))
            break;
    }
    for (const char *p = text; *p != 'e'; p++)
        if (*p >= '0' && *p <= '9')
            digits[n++] = *p;
    *exponent = atoi(strchr(text, 'e') + 1);
    while (n > 1 && digits[n - 1] == '0')
        n--;
    digits[n] = 0;
    return n;
}

void ml_pyfloat_text(double f, char out[ML_PYFLOAT_TEXT]) {
    char digits[20];
    const char *minus = signbit(f) ? "-" : "";
    int n, e;

    if (isnan(f) || isinf(f)) {
        snprintf(out, ML_PYFLOAT_TEXT, "%s", isnan(f) ? "nan" : f < 0 ? "-inf" : "inf");
        return;
    }
    n = shortest_digits(f, digits, &e);
    if (e < -4 || e >= 16)
        snprintf(out, ML_PYFLOAT_TEXT, "%s%c%s%se%c%02d", minus, digits[0],
                 n > 1 ? "." : "", digits + 1, e < 0 ? '-' : '+', abs(e));
    else if (e < 0)
        snprintf(out, ML_PYFLOAT_TEXT, "%s0.%.*s%s", minus, -e - 1, "0000", digits);
    else if (n <= e + 1)
        snprintf(out, ML_PYFLOAT_TEXT, "%s%s%.*s.0", minus, digits, e + 1 - n,
                 "0000000000000000");
    else
        snprintf(out, ML_PYFLOAT_TEXT, "%s%.*s.%s", minus, e + 1, digits, digits + e + 1);
}
