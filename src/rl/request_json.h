/* question.h - what a worker process or a server is asked: an object on one line.
 *
 * Members are appended one by one: ", \"key\": value".
 *
 * thread: any. */
#ifndef ML_RL_REQUEST_JSON_H
#define ML_RL_REQUEST_JSON_H

#include "base/str.h"

/* A string; bytes that are no UTF-8 become '?'.  NULL: null. */
void ml_request_text(ml_text *t, const char *key, const char *s, size_t n);

/* JSON as it is, without line breaks.  NULL: null. */
void ml_request_json(ml_text *t, const char *key, const char *s, size_t n);

#endif
