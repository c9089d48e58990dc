/* detok.h - tokens to text, one at a time, and stop strings found on the way.
 *
 * What a detokenizer gives, put together, is what decoding all tokens at once gives, and
 * every piece of it is whole characters: bytes that may yet become one are kept back.
 *
 * thread: one owner. */
#ifndef ML_TEXT_TOKENIZER_DETOK_H
#define ML_TEXT_TOKENIZER_DETOK_H

#include "text/tokenizer/tokenizer.h"

typedef struct ml_detok ml_detok;

ml_detok *ml_detok_new(const ml_tokenizer *t, bool skip_special);
void ml_detok_free(ml_detok *d);

/* Appends to out what is certain now that this token has come. */
void ml_detok_push(ml_detok *d, int32_t id, ml_text *out);
/* Appends the rest; after that, a new text may begin. */
void ml_detok_finish(ml_detok *d, ml_text *out);

/* Looks for strings in text that comes in pieces.  The first one to be complete ends the
 * text, the longest where several end at once; how the text was cut makes no difference. */
typedef struct ml_stops {
    const ml_str *stop; /* [n], the caller's; none is empty */
    int n;
    ml_text held; /* the end of the text so far, as long as it may begin a stop string */
} ml_stops;

/* Appends to out what cannot belong to a stop string.  Returns -1, or the index of the
 * string that was found; then out ends right before it and the rest is dropped. */
int ml_stops_push(ml_stops *s, ml_str text, ml_text *out);
/* The text is over: appends what was held, and forgets it. */
void ml_stops_finish(ml_stops *s, ml_text *out);
void ml_stops_release(ml_stops *s);

#endif
