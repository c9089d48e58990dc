/* regex_dialect.h - translates patterns from Oniguruma (Ruby syntax) to PCRE2. */
#ifndef ML_TEXT_REGEX_DIALECT_H
#define ML_TEXT_REGEX_DIALECT_H

#include "base/err.h"
#include "base/str.h"
#include "text/unicode.h"

/* The caller releases *out, also after an error.  ML_EUNSUP: the message names the
 * construct whose meaning differs in PCRE2. */
ml_status ml_regex_translate(ml_text *out, const ml_unicode *u, ml_str pattern,
                             ml_err *err);

#endif
