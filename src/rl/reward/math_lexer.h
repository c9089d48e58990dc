/* math_lexer.h - what the files of the lexer share.
 *
 * thread: as the arena's. */
#ifndef ML_RL_REWARD_MATH_LEXER_H
#define ML_RL_REWARD_MATH_LEXER_H

#include "rl/reward/math_lex.h"

typedef struct ml_lexer {
    ml_arena *arena;
    const char *p, *end;
    ml_mtok *tok; /* [cap] */
    int32_t n, cap;
    int32_t brackets;  /* ( [ and \{ that are open: commas there separate */
    int32_t text_from; /* the depth of braces from which on it is text; 0: it is not */
    int32_t depth;
    uint8_t *hidden; /* [depth]: braces that only hold a font's argument */
    bool spaced;
    int n_dollar;
    const char *formula_end; /* the dollar sign that closes a formula; NULL: none is open */
} ml_lexer;

bool ml_is_digit_at(const char *p, const char *end);
bool ml_is_letter_at(const char *p, const char *end);
/* Every byte `is`, and there is one. */
bool ml_all_of(ml_str s, bool (*is)(const char *p, const char *end));

ml_mtok *ml_lexer_push(ml_lexer *x, ml_mtok_kind kind, ml_str text);
void ml_lexer_push_op(ml_lexer *x, const char *text);
/* Bytes in lower case, in the arena. */
ml_str ml_lexer_lowered(ml_lexer *x, const char *from, size_t n);
void ml_lexer_skip_blanks(ml_lexer *x);
/* The bytes of a braced argument at p without its braces; false: there is none. */
bool ml_lexer_peek_argument(const ml_lexer *x, ml_str *out);

/* The next token is, without braces, the argument of a macro: \frac12, \sqrt x, \binom n2. */
bool ml_lexer_is_argument(const ml_lexer *x);
void ml_lexer_number(ml_lexer *x);
/* "million" after a number becomes its exponent, after anything else that has a value a
 * factor.  False: the word is no such. */
bool ml_lexer_magnitude(ml_lexer *x, ml_str word);
/* Digits under a mark, or in brackets, after a decimal point repeat: 0.\bar3, 0.1(6). */
bool ml_lexer_repeating(ml_lexer *x);
bool ml_lexer_bracketed_repeat(ml_lexer *x);

void ml_lexer_macro(ml_lexer *x);

/* Tokens that mean one thing together become one. */
void ml_lexer_join(ml_mtoks *all, ml_mtok *t, ml_arena *a);

#endif
