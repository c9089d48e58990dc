/* math_macros.h - the meaning of LaTeX macros in an answer.
 *
 * thread: any; immutable. */
#ifndef ML_RL_REWARD_MATH_MATH_MACROS_H
#define ML_RL_REWARD_MATH_MATH_MACROS_H

#include "base/str.h"

typedef enum ml_macro_sense {
    ML_MACRO_NOTHING,  /* removed */
    ML_MACRO_SPACE,    /* white space */
    ML_MACRO_FONT,     /* removed, with the braces of its argument */
    ML_MACRO_TEXT,     /* likewise; the argument is words */
    ML_MACRO_ARGUMENT, /* removed, with its argument */
    ML_MACRO_OP,       /* an operator */
    ML_MACRO_OPEN,     /* a bracket */
    ML_MACRO_CLOSE,    /* a bracket */
    ML_MACRO_RENAME,   /* an alias of another macro */
    ML_MACRO_WORD      /* an alias of a word */
} ml_macro_sense;

typedef struct ml_macro {
    const char *name;
    ml_macro_sense sense;
    const char *is;
} ml_macro;

/* NULL: the macro has no plain equivalent. */
const ml_macro *ml_macro_find(ml_str name);
/* Macros with a one-character name that is not a letter, such as "\,". */
const ml_macro *ml_macro_sign(char c);

/* sin, log, ...: a word, or a macro, that takes an argument. */
bool ml_math_is_function(ml_str name);
/* alpha, ell, ...: a macro that denotes a number or a variable. */
bool ml_math_is_symbol(ml_str name);
/* hat, vec, ...: a macro that makes another symbol of the following one. */
bool ml_math_is_accent(ml_str name);

#endif
