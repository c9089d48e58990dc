/* sse.h - a writer and a parser of server-sent events. */
#ifndef ML_NET_SSE_H
#define ML_NET_SSE_H

#include "base/str.h"

/* Appends "data: ...\n\n", one data line for each line of the payload. */
void ml_sse_write(ml_text *out, ml_str payload);

/* An incremental parser; zero-initialize it. */
typedef struct ml_sse {
    ml_text line, data;
    bool skip_lf;
} ml_sse;

/* Calls fn with the payload of each event that this piece completes. */
void ml_sse_push(ml_sse *s, ml_str piece, void (*fn)(void *ud, ml_str data), void *ud);
void ml_sse_release(ml_sse *s);

#endif
