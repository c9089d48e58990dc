/* regex.h - the regular expressions of tokenizer.json, on PCRE2 with its JIT.
 *
 * These patterns are written for Oniguruma, with Ruby syntax.  Constructs with the same
 * meaning in PCRE2 are passed through, constructs with another spelling are translated, and
 * constructs with another meaning are rejected with an error that names them.
 *
 * thread: a compiled pattern is immutable; a finder belongs to one thread. */
#ifndef ML_TEXT_REGEX_H
#define ML_TEXT_REGEX_H

#include "base/err.h"
#include "base/str.h"
#include "text/unicode.h"

typedef struct ml_regex ml_regex;
typedef struct ml_finder ml_finder;

ml_status ml_regex_new(ml_regex **out, const ml_unicode *u, ml_str pattern, ml_err *err);
/* Compiles a pattern in PCRE2 syntax from an untrusted source: a search that takes more
 * than about ten milliseconds returns an error.  `pattern` is valid UTF-8. */
ml_status ml_regex_new_bounded(ml_regex **out, ml_str pattern, ml_err *err);
void ml_regex_free(ml_regex *r);

/* The working memory of a search; usable with any pattern. */
ml_finder *ml_finder_new(void);
void ml_finder_free(ml_finder *f);

/* Finds the first match that begins at `from` or later.  `text` is valid UTF-8.  ML_EAGAIN:
 * no match.  Returns an error if the pattern exceeds the backtracking limit. */
ml_status ml_regex_find(const ml_regex *r, ml_finder *f, ml_str text, size_t from,
                        size_t *begin, size_t *end, ml_err *err);

#endif
