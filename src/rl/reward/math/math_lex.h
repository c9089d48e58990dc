/* math_lex.h - converts an answer, in LaTeX or plain text, to tokens with a canonical
 * spelling.
 *
 * Fonts, colours, delimiter sizes and invisible characters are removed; Unicode and LaTeX
 * names of a symbol are one token; numbers have no thousands separators.  Unrecognised
 * input becomes a token of its own, so that answers can still be compared as text.
 *
 * thread: any; tokens are allocated in the arena. */
#ifndef ML_RL_REWARD_MATH_MATH_LEX_H
#define ML_RL_REWARD_MATH_MATH_LEX_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/str.h"

typedef enum ml_mtok_kind {
    ML_T_NUM,   /* text: digits, optionally with a point and an exponent */
    ML_T_WORD,  /* letters, lower case */
    ML_T_MACRO, /* a LaTeX name without a plain equivalent: frac, sqrt, sin, alpha, ... */
    ML_T_OPEN,  /* text: one of ( [ { < as brackets of the formula */
    ML_T_CLOSE,
    ML_T_GROUP, /* LaTeX's grouping braces */
    ML_T_UNGROUP,
    ML_T_OP, /* + - * / ^ _ ! | = < > , : % and <= >= != +- deg row & or and in cup, names
              * of other relations, currency signs */
    ML_T_OTHER
} ml_mtok_kind;

typedef struct ml_mtok {
    ml_mtok_kind kind;
    ml_str text;
    ml_str repeat;  /* NUM: digits that repeat indefinitely after text */
    bool spaced;    /* white space before it */
    bool in_text;   /* inside \text or similar */
    bool capitals;  /* WORD: contained capital letters */
    bool magnitude; /* NUM: "million" or similar was multiplied into it */
} ml_mtok;

/* A slice of tokens. */
typedef struct ml_mtoks {
    const ml_mtok *t;
    int32_t n;
} ml_mtoks;

#define ML_MATH_BYTES 12000

/* False if the answer is longer than ML_MATH_BYTES. */
bool ml_math_lex(ml_mtoks *out, ml_arena *a, ml_str src);

bool ml_mtok_is(const ml_mtok *t, ml_mtok_kind kind, const char *text);
bool ml_mtok_op(const ml_mtok *t, const char *text);

/* A currency sign. */
bool ml_mtok_is_money(const ml_mtok *t);

/* Change of the nesting depth: +1 for an opening token, -1 for a closing one, 0
 * otherwise. */
int ml_mtok_nests(const ml_mtok *t);

#endif
