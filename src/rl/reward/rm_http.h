/* rm_http.h - a client for a reward server: sends a request by POST, returns the response
 * body.
 *
 * thread: one at a time. */
#ifndef ML_RL_REWARD_RM_HTTP_H
#define ML_RL_REWARD_RM_HTTP_H

#include <stdint.h>

#include "base/err.h"
#include "base/str.h"

typedef struct ml_rm_http ml_rm_http;

typedef enum ml_rm_end {
    ML_RM_ANSWERED,
    ML_RM_LATE,   /* not within the deadline */
    ML_RM_DOWN,   /* no connection, or a server error, in every attempt */
    ML_RM_REFUSED /* the server rejected the request: retrying would not help */
} ml_rm_end;

ml_status ml_rm_http_open(ml_rm_http **out, const char *url, ml_err *err);
void ml_rm_http_close(ml_rm_http *r); /* NULL is allowed */
/* Requests have this API key from now on. */
void ml_rm_http_authorize(ml_rm_http *r, const char *key);

/* Makes up to 1 + n_retry attempts within the deadline, with increasing delays.  `out` is
 * the body, or an error message. */
ml_rm_end ml_rm_http_ask(ml_rm_http *r, ml_text *out, ml_str json, double deadline_s,
                         int64_t n_retry);

#endif
