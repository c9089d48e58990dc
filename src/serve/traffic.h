/* traffic.h - what requests did: counters for /metrics, and lines of the access log.
 *
 * Every request has a record from the gate until its end.
 *
 * thread: the event loop's. */
#ifndef ML_SERVE_TRAFFIC_H
#define ML_SERVE_TRAFFIC_H

#include "net/http_server.h"
#include "serve/access_log.h"
#include "serve/api_keys.h"

typedef struct ml_request_record {
    ml_api_key *key;   /* NULL: refused before its key was known */
    bool running;      /* counted as one of the key's */
    const char *route; /* static */
    char id[80];       /* of the answer; empty: it has none */
    bool generates;    /* the next four are known */
    int64_t n_prompt, n_answer;
    double queue_s, first_s; /* in the queue; until the first token; 0: none */
} ml_request_record;

typedef struct ml_traffic {
    ml_access_log *log; /* NULL: none */
    struct ml_traffic_count *count;
    int n, cap;
} ml_traffic;

/* Belongs to the request; the observer frees it.  NULL: out of memory. */
ml_request_record *ml_request_record_new(const char *route);
/* Tokens that the request has used; `r` may be NULL. */
void ml_request_record_use(ml_request_record *r, int64_t n_prompt, int64_t n_answer);

ml_http_observer ml_traffic_observe; /* ud: an ml_traffic */
void ml_traffic_release(ml_traffic *t);

/* Prometheus text.  start: of the names; label: of every value, or "". */
typedef struct ml_metrics_form {
    ml_text *to;
    const char *start, *label;
} ml_metrics_form;
void ml_metrics_head(const ml_metrics_form *f, const char *name, const char *type,
                     const char *help);
/* One value; labels: more of them, such as key="a", or "". */
void ml_metrics_value(const ml_metrics_form *f, const char *name, const char *labels,
                      double v);
void ml_traffic_write(const ml_traffic *t, const ml_metrics_form *f);
/* The counters of the keys: of no key, the admin's and, unless there is a file, the
 * client's; those of the file, or NULL. */
void ml_api_keys_write(const ml_api_key *const own[3], const ml_api_keys *more,
                       const ml_metrics_form *f);
/* Connections, and the memory and files of the process. */
void ml_process_write(const ml_http_server *s, const ml_metrics_form *f);

#endif
