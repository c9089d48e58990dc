#include "serve/access.h"

#include <arpa/inet.h>
#include <math.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/secret.h"

/* --- classes of paths ------------------------------------------------------------- */

/* A path that ends in a slash matches all paths that begin with it. */
static const struct {
    const char *path;
    ml_access_class class;
} paths[] = {
    { "/health", ML_ACCESS_OPEN },
    { "/liveness", ML_ACCESS_OPEN },
    { "/readiness", ML_ACCESS_OPEN },
    { "/metrics", ML_ACCESS_METRICS },
    { "/model_info", ML_ACCESS_METRICS },
    { "/get_model_info", ML_ACCESS_METRICS },
    { "/server_info", ML_ACCESS_METRICS },
    { "/get_server_info", ML_ACCESS_METRICS },
    { "/weight_version", ML_ACCESS_METRICS },
    { "/get_weight_version", ML_ACCESS_METRICS },
    { "/get_load", ML_ACCESS_METRICS },
    { "/v1/models", ML_ACCESS_METRICS },
    { "/v1/models/", ML_ACCESS_METRICS },
    { "/list_workers", ML_ACCESS_METRICS },
    { "/workers", ML_ACCESS_METRICS },
    { "/health_generate", ML_ACCESS_GENERATE },
    { "/generate", ML_ACCESS_GENERATE },
    { "/v1/completions", ML_ACCESS_GENERATE },
    { "/v1/chat/completions", ML_ACCESS_GENERATE },
    { "/v1/messages", ML_ACCESS_GENERATE },
    { "/v1/messages/", ML_ACCESS_GENERATE },
    { "/v1/responses", ML_ACCESS_GENERATE },
    { "/v1/responses/", ML_ACCESS_GENERATE },
    { "/sessions", ML_ACCESS_GENERATE },
    { "/sessions/", ML_ACCESS_SESSION },
    { "/v1/embeddings", ML_ACCESS_GENERATE },
    { "/v1/audio/", ML_ACCESS_GENERATE },
    { "/v1/images/", ML_ACCESS_GENERATE },
    { "/v1/score", ML_ACCESS_GENERATE },
    { "/v1/rerank", ML_ACCESS_GENERATE },
    { "/v1/tokenize", ML_ACCESS_GENERATE },
    { "/v1/detokenize", ML_ACCESS_GENERATE },
    { "/tokenize", ML_ACCESS_GENERATE },
    { "/detokenize", ML_ACCESS_GENERATE },
    { "/encode", ML_ACCESS_GENERATE },
    { "/classify", ML_ACCESS_GENERATE },
};

static bool is_path(ml_str path, const char *row) {
    size_t n = strlen(row);

    return row[n - 1] == '/' ? path.len > n && memcmp(path.ptr, row, n) == 0
                             : ml_str_is(path, row);
}

static bool is_read(ml_str method) {
    return ml_str_is(method, "GET") || ml_str_is(method, "HEAD");
}

ml_access_class ml_access_class_of(ml_str method, ml_str path) {
    ml_access_class class = ML_ACCESS_ADMIN;

    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++)
        if (is_path(path, paths[i].path))
            class = paths[i].class;
    return class <= ML_ACCESS_METRICS && !is_read(method) ? ML_ACCESS_ADMIN : class;
}

const char *ml_access_route_of(ml_str path) {
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++)
        if (is_path(path, paths[i].path))
            return paths[i].path;
    return "other";
}

/* --- names of hosts ----------------------------------------------------------------- */

static bool same_name(ml_str a, const char *b) {
    return a.len == strlen(b) && strncasecmp(a.ptr, b, a.len) == 0;
}

static bool in_list(ml_str name, const char *const *list, int n) {
    for (int i = 0; i < n; i++)
        if (same_name(name, list[i]) || strcmp(list[i], "*") == 0)
            return true;
    return false;
}

/* 127.0.0.0/8 or ::1. */
static bool is_loopback(const struct sockaddr *addr) {
    const struct in6_addr *six;

    if (addr->sa_family == AF_INET)
        return ntohl(((const struct sockaddr_in *)(const void *)addr)->sin_addr.s_addr) >>
                   24 ==
               127;
    if (addr->sa_family != AF_INET6)
        return false;
    six = &((const struct sockaddr_in6 *)(const void *)addr)->sin6_addr;
    return IN6_IS_ADDR_LOOPBACK(six) ||
           (IN6_IS_ADDR_V4MAPPED(six) && six->s6_addr[12] == 127);
}

/* True for a numeric address such as "127.0.0.1" or "::1"; sets *loopback. */
static bool is_address(ml_str name, bool *loopback) {
    struct sockaddr_in four = { .sin_family = AF_INET };
    struct sockaddr_in6 six = { .sin6_family = AF_INET6 };
    char text[64];
    bool is_four;

    *loopback = false;
    if (name.len >= sizeof text)
        return false;
    memcpy(text, name.ptr, name.len);
    text[name.len] = 0;
    is_four = inet_pton(AF_INET, text, &four.sin_addr) == 1;
    if (!is_four && inet_pton(AF_INET6, text, &six.sin6_addr) != 1)
        return false;
    *loopback = is_loopback(is_four ? (struct sockaddr *)&four : (struct sockaddr *)&six);
    return true;
}

/* The name in "name:port" or "[::1]:port", with or without the port; empty: malformed. */
static ml_str name_of(ml_str host) {
    bool bracket = host.len && host.ptr[0] == '[';
    const char *end =
        bracket ? memchr(host.ptr, ']', host.len) : memchr(host.ptr, ':', host.len);
    size_t n = end ? (size_t)(end - host.ptr) : host.len, at = n + (bracket ? 1 : 0);

    if ((bracket && !end) || (at < host.len && host.ptr[at] != ':'))
        return (ml_str){ "", 0 };
    for (size_t i = at + 1; i < host.len; i++)
        if (host.ptr[i] < '0' || host.ptr[i] > '9')
            return (ml_str){ "", 0 };
    return bracket ? (ml_str){ host.ptr + 1, n - 1 } : (ml_str){ host.ptr, n };
}

/* Protects against DNS rebinding: a page whose own name was made to resolve to this server
 * sends that name in Host.  Only names that others cannot point here are accepted. */
static bool is_known_host(const ml_access *a, ml_str host, bool any_address) {
    ml_str name = name_of(host);
    bool loopback, address = is_address(name, &loopback);

    return name.len && (loopback || (address && any_address) ||
                        same_name(name, "localhost") || same_name(name, a->host) ||
                        in_list(name, a->opts.allowed_host, a->opts.n_host) ||
                        in_list(host, a->opts.allowed_host, a->opts.n_host));
}

/* --- browsers ------------------------------------------------------------------------- */

bool ml_access_is_browser_field(ml_str name) {
    static const char start[] = "sec-fetch-";
    size_t n = sizeof start - 1;

    return same_name(name, "origin") || same_name(name, "referer") ||
           (name.len > n && strncasecmp(name.ptr, start, n) == 0);
}

static bool is_browser(const ml_http_head *h) {
    ml_str name, value;

    for (int i = 0; ml_http_head_field_at(h, i, &name, &value); i++)
        if (ml_access_is_browser_field(name))
            return true;
    return false;
}

static bool is_allowed_origin(const ml_access *a, ml_str origin) {
    return origin.ptr && in_list(origin, a->opts.allowed_origin, a->opts.n_origin);
}

/* True if the origin is "http://" or "https://" followed by the value of Host. */
static bool is_same_origin(ml_str origin, ml_str host) {
    size_t scheme = origin.len > 8 && strncasecmp(origin.ptr, "https://", 8) == 0  ? 8
                    : origin.len > 7 && strncasecmp(origin.ptr, "http://", 7) == 0 ? 7
                                                                                   : 0;

    return scheme && host.ptr && origin.len - scheme == host.len &&
           strncasecmp(origin.ptr + scheme, host.ptr, host.len) == 0;
}

static bool is_foreign(const ml_access *a, const ml_http_head *h) {
    ml_str origin = ml_http_head_field(h, "origin");
    ml_str site = ml_http_head_field(h, "sec-fetch-site");

    if (is_allowed_origin(a, origin))
        return false;
    if (origin.ptr && !is_same_origin(origin, ml_http_head_field(h, "host")))
        return true;
    return site.ptr && !same_name(site, "same-origin") && !same_name(site, "none");
}

/* Adds the CORS header lines for a page of an allowed origin. */
static void allow_origin(ml_http_early *e, const ml_access *a, const ml_http_head *h) {
    ml_str origin = ml_http_head_field(h, "origin");

    if (is_allowed_origin(a, origin) && origin.len < 300)
        snprintf(e->headers, sizeof e->headers,
                 "Access-Control-Allow-Origin: %.*s\r\nVary: Origin\r\n", (int)origin.len,
                 origin.ptr);
}

static bool is_preflight(const ml_http_head *h) {
    return ml_str_is(h->method, "OPTIONS") && ml_http_head_field(h, "origin").ptr &&
           ml_http_head_field(h, "access-control-request-method").ptr;
}

static void answer_preflight(ml_http_early *e, const ml_http_head *h) {
    ml_str wanted = ml_http_head_field(h, "access-control-request-headers");
    bool net = ml_http_head_field(h, "access-control-request-private-network").ptr != NULL;
    size_t n = strlen(e->headers);

    if (!wanted.ptr || wanted.len > 300)
        wanted = ml_str_of("authorization, content-type, x-api-key");
    snprintf(e->headers + n, sizeof e->headers - n,
             "Access-Control-Allow-Methods: GET, POST, PUT, DELETE\r\n"
             "Access-Control-Allow-Headers: %.*s\r\n"
             "Access-Control-Max-Age: 600\r\n%s",
             (int)wanted.len, wanted.ptr,
             net ? "Access-Control-Allow-Private-Network: true\r\n" : "");
    e->status = 204;
}

/* --- keys -------------------------------------------------------------------------- */

/* NULL: the request has no key. */
static ml_str presented_key(const ml_http_head *h) {
    static const char scheme[] = "Bearer ";
    ml_str s = ml_http_head_field(h, "authorization");
    size_t n = sizeof scheme - 1;

    if (!s.ptr)
        return ml_http_head_field(h, "x-api-key");
    if (s.len < n || strncasecmp(s.ptr, scheme, n) != 0)
        return (ml_str){ 0 };
    return (ml_str){ s.ptr + n, s.len - n };
}

static bool is_key(const char *key, ml_str given) {
    return key && given.ptr && ml_secret_is(key, given);
}

static ml_api_key *client_key(ml_access *a, ml_str given) {
    if (a->opts.keys)
        return given.ptr ? ml_api_keys_find(a->opts.keys, given) : NULL;
    return is_key(a->opts.api_key, given) ? &a->client : NULL;
}

/* The key of an allowed request; NULL: it is not allowed.  *proved: the request has a valid
 * key, rather than none being required. */
static ml_api_key *key_of(ml_access *a, ml_access_class class, ml_str given, bool *proved) {
    const ml_access_opts *o = &a->opts;
    bool admin = is_key(o->admin_key, given);
    ml_api_key *client = client_key(a, given);
    bool admin_only = class == ML_ACCESS_ADMIN && o->admin_key;

    *proved = admin || (client && !admin_only);
    if (*proved)
        return admin ? &a->admin : client;
    return class == ML_ACCESS_OPEN || class == ML_ACCESS_SESSION ||
                   (!admin_only && !o->api_key)
               ? &a->anonymous
               : NULL;
}

static bool is_json(ml_str type) {
    const char *semicolon = type.ptr ? memchr(type.ptr, ';', type.len) : NULL;
    size_t n = semicolon ? (size_t)(semicolon - type.ptr) : type.len;

    while (n && (type.ptr[n - 1] == ' ' || type.ptr[n - 1] == '\t'))
        n--;
    return same_name((ml_str){ type.ptr ? type.ptr : "", n }, "application/json");
}

/* --- the gate ---------------------------------------------------------------------- */

static bool refuse(ml_http_early *e, int status, const char *why) {
    e->status = status;
    snprintf(e->why, sizeof e->why, "%s", why);
    return false;
}

static bool check_host(const ml_access *a, const ml_http_head *h, ml_http_early *e) {
    bool strict = a->local || a->opts.n_host > 0;
    ml_str host = ml_http_head_field(h, "host");

    if (!host.ptr) /* HTTP/1.0, which no browser uses */
        return true;
    if (strict ? is_known_host(a, host, !a->local)
               : a->opts.api_key || !is_browser(h) || is_known_host(a, host, true))
        return true;
    return refuse(e, 403,
                  "host not allowed: use localhost or 127.0.0.1, or start the server with "
                  "--allowed-hosts NAME");
}

static bool check_browser(const ml_access *a, const ml_http_head *h, ml_http_early *e) {
    if (!is_foreign(a, h))
        return true;
    return refuse(e, 403,
                  "origin not allowed: start the server with --allowed-origins ORIGIN");
}

static bool check_key(ml_access *a, const ml_http_head *h, ml_access_class class,
                      bool *proved, ml_http_early *e) {
    ml_request_record *r = e->tag;
    size_t n = strlen(e->headers);

    r->key = key_of(a, class, presented_key(h), proved);
    if (r->key)
        return true;
    snprintf(e->headers + n, sizeof e->headers - n, "WWW-Authenticate: Bearer\r\n");
    return refuse(e, 401,
                  class == ML_ACCESS_ADMIN && a->opts.admin_key
                      ? "Missing or invalid key: send \"Authorization: Bearer KEY\" with "
                        "the key of --admin-api-key"
                      : "Missing or invalid key: send \"Authorization: Bearer KEY\" with "
                        "the key of --api-key");
}

static bool check_admin(const ml_http_head *h, bool proved, ml_http_early *e) {
    if (is_read(h->method) && !proved && is_browser(h))
        return refuse(e, 403,
                      "browsers must use POST, or send the key, to change the server");
    if (h->has_body && !is_json(ml_http_head_field(h, "content-type")))
        return refuse(
            e, 415,
            "the request body must be JSON: send \"Content-Type: application/json\"");
    return true;
}

static void add_line(void *ud, const char *name, const char *value) {
    ml_http_early *e = ud;
    size_t n = strlen(e->headers);

    snprintf(e->headers + n, sizeof e->headers - n, "%s: %s\r\n", name, value);
}

/* Requests that generate count towards the limits of their key. */
static bool check_limits(ml_http_early *e) {
    static const char *const what[ML_N_LIMIT] = { "requests per minute",
                                                  "tokens per minute",
                                                  "concurrent requests" };
    ml_request_record *r = e->tag;
    double now = ml_clock_s(), retry_s;
    int over = ml_api_key_admit(r->key, now, &retry_s);
    char text[120];

    r->running = over < 0;
    if (r->running)
        return true;
    snprintf(text, sizeof text, "%.0f", ceil(retry_s));
    add_line(e, "Retry-After", text);
    ml_api_key_headers(r->key, now, add_line, e);
    snprintf(text, sizeof text, "the limit of %lld %s is reached; try again in %.0f s",
             (long long)r->key->limit[over], what[over], ceil(retry_s));
    return refuse(e, 429, text);
}

static bool is_limited(ml_access_class class) {
    return class == ML_ACCESS_GENERATE || class == ML_ACCESS_SESSION;
}

static bool gate(void *ud, const ml_http_head *h, ml_http_early *answer) {
    ml_access *a = ud;
    ml_access_class class =
        (a->opts.class_of ? a->opts.class_of : ml_access_class_of)(h->method, h->path);
    bool proved;

    answer->tag = ml_request_record_new(
        (a->opts.route_of ? a->opts.route_of : ml_access_route_of)(h->path));
    if (!answer->tag)
        return refuse(answer, 503, "the server is out of memory; try again later");
    allow_origin(answer, a, h);
    if (!check_host(a, h, answer) || !check_browser(a, h, answer))
        return false;
    if (is_preflight(h)) {
        answer_preflight(answer, h);
        return false;
    }
    if (!check_key(a, h, class, &proved, answer))
        return false;
    if (class == ML_ACCESS_ADMIN)
        return check_admin(h, proved, answer);
    return !is_limited(class) || check_limits(answer);
}

void ml_access_attach(ml_access *a, ml_http_server *s) {
    ml_http_server_set_gate(s, gate, a);
    ml_http_server_set_observer(s, ml_traffic_observe, &a->traffic);
    ml_http_server_set_tls(s, a->opts.tls);
}

void ml_access_release(ml_access *a) {
    ml_traffic_release(&a->traffic);
}

void ml_access_metrics(const ml_access *a, const ml_http_server *s,
                       const ml_metrics_form *f) {
    const ml_api_key *const own[] = { &a->anonymous, &a->admin, &a->client };

    ml_traffic_write(&a->traffic, f);
    ml_api_keys_write(own, a->opts.keys, f);
    ml_process_write(s, f);
}

static void add_header(void *ud, const char *name, const char *value) {
    ml_http_add_header(ud, name, value);
}

void ml_access_add_headers(const ml_access *a, ml_http_call *c) {
    const ml_request_record *r = ml_http_tag(c);
    ml_str origin = ml_http_header(c, "origin");
    char value[300];

    if (r && r->running)
        ml_api_key_headers(r->key, ml_clock_s(), add_header, c);
    if (!is_allowed_origin(a, origin) || origin.len >= sizeof value)
        return;
    snprintf(value, sizeof value, "%.*s", (int)origin.len, origin.ptr);
    ml_http_add_header(c, "Access-Control-Allow-Origin", value);
    ml_http_add_header(c, "Vary", "Origin");
}

/* --- initialization ------------------------------------------------------------------ */

/* A host that cannot be resolved counts as local: listening on it fails later. */
static bool is_local_bind(const char *host) {
    struct addrinfo hints = { .ai_flags = AI_PASSIVE, .ai_socktype = SOCK_STREAM }, *all;
    bool local = true;

    if (getaddrinfo(host, NULL, &hints, &all) != 0)
        return true;
    for (const struct addrinfo *x = all; x; x = x->ai_next)
        local = local && is_loopback(x->ai_addr);
    freeaddrinfo(all);
    return local;
}

ml_status ml_access_init(ml_access *out, const char *host, const ml_access_opts *o,
                         ml_err *err) {
    *out = (ml_access){ .opts = *o,
                        .host = host,
                        .local = is_local_bind(host),
                        .client = { .name = "default" },
                        .admin = { .name = "admin" },
                        .traffic = { .log = o->log } };
    memcpy(out->anonymous.limit, o->limit, sizeof o->limit);
    memcpy(out->client.limit, o->limit, sizeof o->limit);
    if (o->insecure || o->api_key)
        return ML_OK;
    if (!out->local)
        return ml_fail(err, ML_EUSAGE,
                       "--host %s: other machines could use the server without a key: set "
                       "--api-key-file FILE, listen on 127.0.0.1, or add --insecure",
                       host);
    if (in_list(ml_str_of("*"), o->allowed_origin, o->n_origin))
        return ml_fail(err, ML_EUSAGE,
                       "--allowed-origins *: every web page could use the server without a "
                       "key: set --api-key-file FILE, list the origins, or add --insecure");
    return ML_OK;
}
