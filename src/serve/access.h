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
#include "serve/api_keys.h"
#include "serve/traffic.h"

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
    ml_api_keys *keys;               /* all of the clients' keys; NULL: api_key alone */
    const char *admin_key;           /* valid for all paths; NULL: api_key is, if set */
    int64_t limit[ML_N_LIMIT];       /* of api_key, and of requests without a key */
    ml_access_log *log;              /* NULL: none */
    const char *const *allowed_host; /* [n_host] besides this machine's own names */
    int n_host;
    const char *const *allowed_origin; /* [n_origin] browser origins; "*": any */
    int n_origin;
    bool insecure; /* other machines may send requests without a key */
    ml_tls *tls;   /* NULL: plain HTTP */
    /* The classes of paths; NULL: ml_access_class_of. */
    ml_access_class (*class_of)(ml_str method, ml_str path);
    /* The route in logs and metrics, a static text; NULL: ml_access_route_of. */
    const char *(*route_of)(ml_str path);
} ml_access_opts;

typedef struct ml_access {
    ml_access_opts opts;
    const char *host;                    /* the address the server listens on */
    bool local;                          /* host is a loopback address */
    ml_api_key anonymous, client, admin; /* without a key; api_key and admin_key */
    ml_traffic traffic;
} ml_access;

/* The classes of the server's and the router's paths. */
ml_access_class ml_access_class_of(ml_str method, ml_str path);
/* The row of these paths; "other": none. */
const char *ml_access_route_of(ml_str path);

/* ML_EUSAGE: other machines could send requests without a key, and insecure is unset. */
ml_status ml_access_init(ml_access *out, const char *host, const ml_access_opts *o,
                         ml_err *err);

/* Checks, counts and logs the server's requests, and sets its TLS.  The access must not move
 * until the server is closed, and is released after that. */
void ml_access_attach(ml_access *a, ml_http_server *s);
void ml_access_release(ml_access *a);

/* Writes the counters of requests, keys and connections. */
void ml_access_metrics(const ml_access *a, const ml_http_server *s,
                       const ml_metrics_form *f);

/* True for headers in which a browser describes the page that sends a request. */
bool ml_access_is_browser_field(ml_str name);

/* Adds the CORS headers for a page of an allowed origin, and the rate limits of the key,
 * before the reply begins. */
void ml_access_add_headers(const ml_access *a, ml_http_call *c);

#endif
