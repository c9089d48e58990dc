/* regex_dialect.h - patterns in Oniguruma's dialect of Ruby, said in PCRE2's words. */
#ifndef ML_TEXT_REGEX_DIALECT_H
#define ML_TEXT_REGEX_DIALECT_H

#include "base/err.h"
#include "base/str.h"
#include "text/unicode.h"

/* *out is the caller's to release, also after an error: ML_EUNSUP, which names what would mean
 * something else. */
ml_status ml_regex_translate(ml_text *out, const ml_unicode *u, ml_str pattern,
                             ml_err *err);

#endif
