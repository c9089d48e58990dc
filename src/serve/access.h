/* access.h - who may ask a server or a router for what.
 *
 * Every request is judged by its head, before its body is read: by the name in Host, by what a
 * browser says of the page that sends it (Origin, Sec-Fetch-Site), and by its key.  The classes
 * of paths are one table for both.  SECURITY.md describes the rules.
 *
 * thread: the loop's. */
#ifndef ML_SERVE_ACCESS_H
#define ML_SERVE_ACCESS_H

#include "net/http_server.h"

/* Strings stay the caller's. */
typedef struct ml_access_opts {
    const char *api_key;   /* of clients; NULL: none is asked for */
    const char *admin_key; /* good for everything; NULL: api_key is, if any */
    const char *const
        *allowed_host; /* [n_host] names in Host beside those of this machine */
    int n_host;
    const char *const *allowed_origin; /* [n_origin] pages of browsers; "*": any */
    int n_origin;
    bool insecure; /* other machines may ask without a key */
} ml_access_opts;

typedef struct ml_access {
    ml_access_opts opts;
    const char *host; /* that the server listens on */
    bool local;       /* it is of this machine alone */
} ml_access;

typedef enum ml_access_class {
    ML_ACCESS_OPEN,     /* health: needs no key */
    ML_ACCESS_METRICS,  /* tells about the server and changes nothing */
    ML_ACCESS_GENERATE, /* makes or scores tokens */
    ML_ACCESS_ADMIN,    /* changes the server, and every path that is not known */
} ml_access_class;

ml_access_class ml_access_class_of(ml_str method, ml_str path);

/* ML_EUSAGE: other machines could ask without a key, and nobody said that they may. */
ml_status ml_access_init(ml_access *out, const char *host, const ml_access_opts *o,
                         ml_err *err);

ml_http_gate ml_access_gate; /* ud: an ml_access */

/* By which a browser tells of the page that sends a request. */
bool ml_access_is_browser_field(ml_str name);

/* Adds what a page of an allowed origin needs to read the reply; before it begins. */
void ml_access_add_headers(const ml_access *a, ml_http_call *c);

#endif
