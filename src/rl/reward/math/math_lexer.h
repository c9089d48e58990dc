/* math_lexer.h - internals that the lexer's files share.
 *
 * thread: as the arena's. */
#ifndef ML_RL_REWARD_MATH_MATH_LEXER_H
#define ML_RL_REWARD_MATH_MATH_LEXER_H

#include "rl/reward/math/math_lex.h"

typedef struct ml_lexer {
    ml_arena *arena;
    const char *p, *end;
    ml_mtok *tok; /* [cap] */
    int32_t n, cap;
    int32_t brackets;  /* open ( [ and \{: commas there separate */
    int32_t text_from; /* brace depth from which the input is text; 0: it is not */
    int32_t depth;
    uint8_t *hidden; /* [depth]: braces that only enclose a font's argument */
    bool spaced;
    int n_dollar;
    const char *formula_end; /* the dollar sign that closes a formula; NULL: none is open */
} ml_lexer;

bool ml_is_digit_at(const char *p, const char *end);
bool ml_is_letter_at(const char *p, const char *end);
/* True if s is not empty and `is` holds for every byte. */
bool ml_all_of(ml_str s, bool (*is)(const char *p, const char *end));

ml_mtok *ml_lexer_push(ml_lexer *x, ml_mtok_kind kind, ml_str text);
void ml_lexer_push_op(ml_lexer *x, const char *text);
/* The bytes in lower case, allocated in the arena. */
ml_str ml_lexer_lowered(ml_lexer *x, const char *from, size_t n);
void ml_lexer_skip_blanks(ml_lexer *x);
/* The contents of a braced argument at p, without the braces; false: there is none. */
bool ml_lexer_peek_argument(const ml_lexer *x, ml_str *out);

/* True if the next token is an unbraced macro argument: \frac12, \sqrt x, \binom n2. */
bool ml_lexer_is_argument(const ml_lexer *x);
void ml_lexer_number(ml_lexer *x);
/* Turns "million" after a number into its exponent, and after another value into a factor.
 * False: the word is not a magnitude. */
bool ml_lexer_magnitude(ml_lexer *x, ml_str word);
/* Repeating decimals, marked by an accent or brackets after the decimal point: 0.\bar3,
 * 0.1(6). */
bool ml_lexer_repeating(ml_lexer *x);
bool ml_lexer_bracketed_repeat(ml_lexer *x);

void ml_lexer_macro(ml_lexer *x);

/* Merges tokens that have one meaning together. */
void ml_lexer_join(ml_mtoks *all, ml_mtok *t, ml_arena *a);

#endif
