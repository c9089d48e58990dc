/* detok.h - incremental detokenizer, with stop strings.
 *
 * The concatenated output of a detokenizer equals the result of decoding all tokens at
 * once.  Every piece consists of whole characters: bytes of an incomplete character are
 * held back.
 *
 * thread: one owner. */
#ifndef ML_TEXT_TOKENIZER_DETOK_H
#define ML_TEXT_TOKENIZER_DETOK_H

#include "text/tokenizer/tokenizer.h"

typedef struct ml_detok ml_detok;

ml_detok *ml_detok_new(const ml_tokenizer *t, bool skip_special);
void ml_detok_free(ml_detok *d);

/* Appends the text that is final after this token. */
void ml_detok_push(ml_detok *d, int32_t id, ml_text *out);
/* Appends the rest; then a new text may begin. */
void ml_detok_finish(ml_detok *d, ml_text *out);

/* Appends the bytes of a token in the middle of a text; they may be a part of a character.
 * (The text of a single token has U+FFFD in their place.) */
void ml_token_bytes(const ml_tokenizer *t, int32_t id, ml_text *out);

/* Finds stop strings in streamed text.  The first one to be complete ends the text; if
 * several end at the same position, the longest one does.  The result does not depend on
 * how the text is divided into pieces. */
typedef struct ml_stops {
    const ml_str *stop; /* [n] owned by the caller; none is empty */
    int n;
    ml_text held; /* the suffix of the text so far that may begin a stop string */
} ml_stops;

/* Appends to out what cannot belong to a stop string.  Returns -1, or the index of the
 * string that was found; then out ends right before it and the rest is dropped. */
int ml_stops_push(ml_stops *s, ml_str text, ml_text *out);
/* The text is over: appends what was held, and forgets it. */
void ml_stops_finish(ml_stops *s, ml_text *out);
void ml_stops_release(ml_stops *s);

#endif
