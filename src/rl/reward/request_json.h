/* request_json.h - builds the one-line JSON object that is sent to a worker process or a
 * server.
 *
 * Members are appended one by one: ", \"key\": value".
 *
 * thread: any. */
#ifndef ML_RL_REWARD_REQUEST_JSON_H
#define ML_RL_REWARD_REQUEST_JSON_H

#include "base/str.h"

/* A string; bytes that are not UTF-8 become '?'.  NULL: null. */
void ml_request_text(ml_text *t, const char *key, const char *s, size_t n);

/* Verbatim JSON, without line breaks.  NULL: null. */
void ml_request_json(ml_text *t, const char *key, const char *s, size_t n);

#endif
