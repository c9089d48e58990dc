/* api_keys.h - the keys of clients, and how much each of them may use.
 *
 * A key file has a line for each key:
 *
 *     KEY [name=NAME] [requests-per-minute=N] [tokens-per-minute=N] [concurrent=N]
 *
 * Empty lines and lines that begin with "# " are skipped.  Rates are token buckets that hold
 * a minute's worth: a client may use it at once, and then at the rate.  Generated tokens are
 * charged when they are known, so a bucket of tokens can become negative; requests wait until
 * it is positive again.
 *
 * thread: the event loop's; reading: any. */
#ifndef ML_SERVE_API_KEYS_H
#define ML_SERVE_API_KEYS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/secret.h"
#include "base/str.h"

typedef enum ml_limit {
    ML_LIMIT_REQUESTS,   /* per minute */
    ML_LIMIT_TOKENS,     /* per minute, of prompts and answers */
    ML_LIMIT_CONCURRENT, /* requests */
    ML_N_LIMIT,
} ml_limit;

#define ML_KEY_NAME_MAX 63

typedef struct ml_api_key {
    char name[ML_KEY_NAME_MAX + 1]; /* in logs and metrics */
    ml_secret secret;               /* empty: of requests without a key */
    int64_t limit[ML_N_LIMIT];      /* 0: none */
    double left[ML_N_LIMIT];        /* of the buckets; unused for concurrent requests */
    double at_s;                    /* clock of the buckets; 0: full */
    int64_t n_running, n_prompt, n_answer;
    int64_t n_limited[ML_N_LIMIT]; /* requests that were refused */
} ml_api_key;

typedef struct ml_api_keys {
    ml_api_key *key; /* [n] */
    int n;
} ml_api_keys;

/* defaults: the limits of keys that have none of their own.  may: whether a limit is
 * supported; others are refused. */
ml_status ml_api_keys_read(ml_api_keys *out, const char *path, const char *flag,
                           const int64_t defaults[ML_N_LIMIT], const bool may[ML_N_LIMIT],
                           ml_err *err);
void ml_api_keys_release(ml_api_keys *k); /* zeros are allowed */

/* NULL: unknown.  Takes as long for every key. */
ml_api_key *ml_api_keys_find(const ml_api_keys *k, ml_str given);

/* Takes a request from the bucket and counts it as running.  Returns -1, or the limit that
 * it exceeds; *retry_s: when to try again. */
int ml_api_key_admit(ml_api_key *k, double now_s, double *retry_s);
void ml_api_key_done(ml_api_key *k);
/* Takes tokens from the bucket. */
void ml_api_key_charge(ml_api_key *k, double now_s, int64_t n_prompt, int64_t n_answer);

/* Calls `put` with each of OpenAI's x-ratelimit-* headers. */
typedef void ml_header_fn(void *ud, const char *name, const char *value);
void ml_api_key_headers(ml_api_key *k, double now_s, ml_header_fn *put, void *ud);

#endif
