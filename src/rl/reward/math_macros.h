/* math_macros.h - what LaTeX's macros mean in an answer.
 *
 * thread: any; immutable. */
#ifndef ML_RL_REWARD_MATH_MACROS_H
#define ML_RL_REWARD_MATH_MACROS_H

#include "base/str.h"

typedef enum ml_macro_sense {
    ML_MACRO_NOTHING,  /* gone */
    ML_MACRO_SPACE,    /* a blank */
    ML_MACRO_FONT,     /* gone, with the braces of its argument */
    ML_MACRO_TEXT,     /* likewise; what is inside is words */
    ML_MACRO_ARGUMENT, /* gone, argument and all */
    ML_MACRO_OP,       /* an operator */
    ML_MACRO_OPEN,     /* a bracket */
    ML_MACRO_CLOSE,    /* a bracket */
    ML_MACRO_RENAME,   /* the same as another macro */
    ML_MACRO_WORD      /* the same as a word */
} ml_macro_sense;

typedef struct ml_macro {
    const char *name;
    ml_macro_sense sense;
    const char *is;
} ml_macro;

/* NULL: one that has no plain meaning. */
const ml_macro *ml_macro_find(ml_str name);
/* Macros of one character that is no letter, as in "\,". */
const ml_macro *ml_macro_sign(char c);

/* sin, log, ...: a word, or a macro, that takes an argument. */
bool ml_math_is_function(ml_str name);
/* alpha, ell, ...: a macro that stands for a number, or for something like one. */
bool ml_math_is_symbol(ml_str name);
/* hat, vec, ...: a macro that makes another symbol of the one after it. */
bool ml_math_is_accent(ml_str name);

#endif
