/* reasoning.h - separates the reasoning of an answer from its content while it is streamed.
 *
 * Reasoning stands between two marks at the beginning of the answer.  Some models write the
 * first mark, for others the chat template has written it already: their answers begin with
 * reasoning.  Whitespace beside the marks belongs to neither part. */
#ifndef ML_TEXT_CHAT_REASONING_H
#define ML_TEXT_CHAT_REASONING_H

#include "base/str.h"

/* A parser, by SGLang's name; NULL: not known. */
typedef struct ml_reasoning_format {
    const char *name;
    const char *open, *close;
    bool begun;   /* the answer begins with reasoning, with or without `open` */
    bool special; /* its marks are special tokens */
} ml_reasoning_format;
const ml_reasoning_format *ml_reasoning_find(const char *name);

typedef struct ml_reasoning_reader {
    const ml_reasoning_format *format; /* NULL: all is content */
    enum { ML_REASONING_BEGIN, ML_REASONING_INSIDE, ML_REASONING_AFTER } state;
    ml_text held;
    bool skip; /* whitespace is skipped until text comes */
} ml_reasoning_reader;

void ml_reasoning_release(ml_reasoning_reader *r);
/* Appends to `reasoning` and to `content` what is known to belong there. */
void ml_reasoning_push(ml_reasoning_reader *r, ml_str piece, ml_text *reasoning,
                       ml_text *content);
void ml_reasoning_finish(ml_reasoning_reader *r, ml_text *reasoning, ml_text *content);

#endif
