/* gpqa_words.h - splits a response into words and signs, to find the choice it names.
 *
 * thread: any; words are allocated in the arena. */
#ifndef ML_RL_REWARD_GRADERS_GPQA_WORDS_H
#define ML_RL_REWARD_GRADERS_GPQA_WORDS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/str.h"

/* A word in lower case, a sign, or the macro \boxed.  Emphasis, fonts, tags, braces and
 * quotes are removed. */
typedef struct ml_gpqa_word {
    ml_str text;
    char letter; /* the capital of a single ASCII letter; 0: not a letter */
    bool capital, sign;
    bool spaced, breaks; /* white space, a line break before it */
    bool tied; /* a letter that touches a hyphen, subscript or exponent: C-terminal, C_2 */
} ml_gpqa_word;

typedef struct ml_gpqa_words {
    const ml_gpqa_word *w; /* [n] */
    int32_t n;
} ml_gpqa_words;

void ml_gpqa_words_init(ml_gpqa_words *out, ml_arena *a, ml_str text);

#endif
