/* words.h - splits a text into words: lower case, without ASCII punctuation and articles.
 *
 * thread: any; words are allocated in the arena. */
#ifndef ML_RL_REWARD_GRADERS_WORDS_H
#define ML_RL_REWARD_GRADERS_WORDS_H

#include <stdint.h>

#include "base/arena.h"
#include "base/map.h"
#include "base/str.h"

typedef struct ml_words {
    ml_str *word; /* [n] */
    int64_t n;
} ml_words;

void ml_words_init(ml_words *w, ml_arena *a, ml_str text);

/* Appends the text in lower case. */
void ml_text_lower(ml_text *out, ml_str text);

#endif
