/* byte_tokenizer.h - a byte-level tokenizer made in a test: a token for each byte, whose id
 * is its value, further tokens, and a special end token. */
#ifndef ML_TESTS_SUPPORT_BYTE_TOKENIZER_H
#define ML_TESTS_SUPPORT_BYTE_TOKENIZER_H

#include "text/tokenizer/tokenizer.h"

/* Failures end the test.  Tokens 256 + i are extra[i], the one after them ends a text. */
ml_tokenizer *ml_byte_tokenizer(const char *const *extra, int32_t n_extra);

/* Tokens that occur in JSON: borders of strings and numbers in the middle. */
extern const char *const ml_json_tokens[];
extern const int32_t ml_n_json_tokens;

#endif
