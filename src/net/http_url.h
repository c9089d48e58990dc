/* http_url.h - splits http://host:port/path, or https, into its parts. */
#ifndef ML_NET_HTTP_URL_H
#define ML_NET_HTTP_URL_H

#include <stdbool.h>

#include "base/err.h"

typedef struct ml_http_url {
    char host[256]; /* without the brackets of an IPv6 address */
    int port;
    bool tls;           /* https */
    const char *target; /* path and query, a pointer into the URL; "" if there is none */
} ml_http_url;

ml_status ml_http_url_split(ml_http_url *out, const char *url, ml_err *err);

#endif
