#include "net/http_url.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static ml_status malformed(const char *url, ml_err *err) {
    return ml_fail(err, ML_EFORMAT, "'%s' is not a URL like http://host:port/path", url);
}

/* Parses ":8000" or an empty string, which leaves *port.  Moves *p past it. */
static bool split_port(const char **p, int *port) {
    char *end;
    long n;

    if (**p != ':')
        return true;
    if ((*p)[1] < '0' || (*p)[1] > '9')
        return false;
    n = strtol(*p + 1, &end, 10);
    *p = end;
    *port = (int)n;
    return n >= 1 && n <= 65535;
}

/* A name or an IPv4 address; in brackets an IPv6 address, which may have a zone.  All other
 * characters are rejected, because the host is written into headers and metrics. */
static bool is_host(const char *p, const char *end, bool bracket) {
    const char *others = bracket ? ".:%-_" : ".-_";

    for (; p < end; p++) {
        char lower = (char)(*p | 0x20);
        if (!(*p >= '0' && *p <= '9') && !(lower >= 'a' && lower <= 'z') &&
            !(*p && strchr(others, *p)))
            return false;
    }
    return true;
}

ml_status ml_http_url_split(ml_http_url *out, const char *url, ml_err *err) {
    const char *p = url, *end;
    bool bracket;

    out->tls = strncmp(p, "https://", 8) == 0;
    out->port = out->tls ? 443 : 80;
    if (!out->tls && strncmp(p, "http://", 7) != 0)
        return malformed(url, err);
    p += out->tls ? 8 : 7;
    end = *p == '[' ? strchr(p, ']') : p + strcspn(p, ":/?#@ \t\r\n");
    bracket = *p == '[';
    p += bracket;
    if (!end || end == p || (size_t)(end - p) >= sizeof out->host ||
        !is_host(p, end, bracket))
        return malformed(url, err);
    memcpy(out->host, p, (size_t)(end - p));
    out->host[end - p] = 0;
    p = end + (*end == ']');
    if (!split_port(&p, &out->port) || (*p && *p != '/' && *p != '?'))
        return malformed(url, err);
    for (const char *c = p; *c; c++)
        if ((unsigned char)*c <= ' ' || *c == 0x7f)
            return malformed(url, err);
    out->target = p;
    return ML_OK;
}
