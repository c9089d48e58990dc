/* jinja_format.h - formats numbers and strings with a width, for "..." % args
 * (jinja_percent.c) and "...".format(args) (jinja_braces.c). */
#ifndef ML_TEXT_JINJA_JINJA_FORMAT_H
#define ML_TEXT_JINJA_JINJA_FORMAT_H

#include "text/jinja/jinja_priv.h"

/* The options that both formats have. */
typedef struct ml_jspec {
    uint32_t fill;
    char align; /* < > ^ =, 0: the type's own */
    char sign;  /* + - or blank */
    bool alternate;
    int64_t width, precision; /* precision -1: not given */
    char group;               /* , or _ or 0 */
    char type;                /* 0: none */
} ml_jspec;

bool ml_jformat_is_digit(const char *p, const char *end);
/* Reads digits from p on as a number; returns the end. */
const char *ml_jformat_read(ml_jrun *r, const char *p, const char *end, int64_t *out);

/* dflt: the alignment if s has none. */
void ml_jformat_pad(ml_jrun *r, ml_jbuf *b, const ml_jspec *s, ml_str text, char dflt);
void ml_jformat_int(ml_jrun *r, ml_jbuf *b, const ml_jspec *s, ml_jval v, bool is_percent);
void ml_jformat_float(ml_jrun *r, ml_jbuf *b, const ml_jspec *s, double f);
/* Converts a number to double; raises if it is an integer that is too large. */
double ml_jformat_f64(ml_jrun *r, ml_jval v);
/* The first n_char characters of a string; -1: all. */
ml_str ml_jformat_cut(ml_jval s, int64_t n_char);

#endif
