/* http_url.h - http://host:port/path, taken apart. */
#ifndef ML_NET_HTTP_URL_H
#define ML_NET_HTTP_URL_H

#include "base/err.h"

typedef struct ml_http_url {
    char host[256]; /* without the brackets of an IPv6 address */
    int port;
    const char *target; /* path and query, inside the text given; "" when there is none */
} ml_http_url;

ml_status ml_http_url_split(ml_http_url *out, const char *url, ml_err *err);

#endif
