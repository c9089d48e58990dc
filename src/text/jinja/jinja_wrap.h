/* jinja_wrap.h - wraps text to a width, for the filters wordwrap and pprint. */
#ifndef ML_TEXT_JINJA_JINJA_WRAP_H
#define ML_TEXT_JINJA_JINJA_WRAP_H

#include "text/jinja/jinja_priv.h"

typedef struct ml_jwrap {
    int64_t width;
    bool cut;     /* words longer than a line are broken */
    bool hyphens; /* words may be broken after hyphens */
    ml_str newline;
} ml_jwrap;

/* Wraps one line of the text as textwrap.wrap() does. */
void ml_jbuf_wrap(ml_jrun *r, ml_jbuf *b, ml_str line, const ml_jwrap *how);

/* The end of the line at p, without its line break; *next: the next line. */
const char *ml_jline_end(const char *p, const char *end, const char **next);

/* pprint.pformat(): sorted keys, in lines of 80 characters. */
void ml_jval_pprint(ml_jrun *r, ml_jbuf *b, ml_jval v);

#endif
