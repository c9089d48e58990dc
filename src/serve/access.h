/* access.h - access control of the server and the router.
 *
 * Every request is checked by its head, before its body is read: the Host name, the headers
 * in which a browser describes the requesting page (Origin, Sec-Fetch-Site), and the API
 * key.  The server and the router share one table of path classes.  SECURITY.md describes
 * the rules.
 *
 * thread: the event loop's. */
#ifndef ML_SERVE_ACCESS_H
#define ML_SERVE_ACCESS_H

#include "net/http_server.h"

typedef enum ml_access_class {
    ML_ACCESS_OPEN,     /* health: needs no key */
    ML_ACCESS_METRICS,  /* read-only information about the server */
    ML_ACCESS_GENERATE, /* generates or scores tokens */
    ML_ACCESS_SESSION,  /* of a session: its id is the key */
    ML_ACCESS_ADMIN,    /* changes the server; also every unknown path */
} ml_access_class;

/* The caller owns the strings. */
typedef struct ml_access_opts {
    const char *api_key;             /* for clients; NULL: no key is required */
    const char *admin_key;           /* valid for all paths; NULL: api_key is, if set */
    const char *const *allowed_host; /* [n_host] besides this machine's own names */
    int n_host;
    const char *const *allowed_origin; /* [n_origin] browser origins; "*": any */
    int n_origin;
    bool insecure; /* other machines may send requests without a key */
    ml_tls *tls;   /* NULL: plain HTTP */
    /* The classes of paths; NULL: ml_access_class_of. */
    ml_access_class (*class_of)(ml_str method, ml_str path);
} ml_access_opts;

typedef struct ml_access {
    ml_access_opts opts;
    const char *host; /* the address the server listens on */
    bool local;       /* host is a loopback address */
} ml_access;

/* The classes of the server's and the router's paths. */
ml_access_class ml_access_class_of(ml_str method, ml_str path);

/* ML_EUSAGE: other machines could send requests without a key, and insecure is unset. */
ml_status ml_access_init(ml_access *out, const char *host, const ml_access_opts *o,
                         ml_err *err);

ml_http_gate ml_access_gate; /* ud: an ml_access */

/* True for headers in which a browser describes the page that sends a request. */
bool ml_access_is_browser_field(ml_str name);

/* Adds the CORS headers for a page of an allowed origin, before the reply begins. */
void ml_access_add_headers(const ml_access *a, ml_http_call *c);

#endif
