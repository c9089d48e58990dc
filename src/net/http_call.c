#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>

#include "base/bug.h"
#include "net/http_conn.h"

const char *ml_http_reason(int status) {
    static const struct {
        int status;
        const char *reason;
    } table[] = {
        { 100, "Continue" },
        { 200, "OK" },
        { 201, "Created" },
        { 202, "Accepted" },
        { 204, "No Content" },
        { 304, "Not Modified" },
        { 400, "Bad Request" },
        { 401, "Unauthorized" },
        { 403, "Forbidden" },
        { 404, "Not Found" },
        { 405, "Method Not Allowed" },
        { 408, "Request Timeout" },
        { 409, "Conflict" },
        { 413, "Content Too Large" },
        { 415, "Unsupported Media Type" },
        { 417, "Expectation Failed" },
        { 422, "Unprocessable Content" },
        { 429, "Too Many Requests" },
        { 431, "Request Header Fields Too Large" },
        { 499, "Client Closed Request" },
        { 500, "Internal Server Error" },
        { 501, "Not Implemented" },
        { 502, "Bad Gateway" },
        { 503, "Service Unavailable" },
        { 504, "Gateway Timeout" },
        { 505, "HTTP Version Not Supported" },
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (table[i].status == status)
            return table[i].reason;
    return "Unknown";
}

/* --- the request ------------------------------------------------------------ */

bool ml_http_call_new(ml_http_conn *conn) {
    ml_http_call *c = calloc(1, sizeof *c);

    if (!c)
        return false;
    c->conn = conn;
    c->keep = conn->server->listener && ml_http_reader_keeps_alive(&conn->reader);
    c->no_body = ml_str_is(conn->reader.method, "HEAD");
    conn->call = c;
    return true;
}

void ml_http_call_free(ml_http_call *c) {
    c->conn->call = NULL;
    ml_text_release(&c->headers);
    free(c);
}

ml_str ml_http_method(const ml_http_call *c) {
    return c->conn->reader.method;
}

ml_str ml_http_path(const ml_http_call *c) {
    return (ml_str){ c->conn->path.ptr, c->conn->path.len };
}

ml_str ml_http_query(const ml_http_call *c) {
    return c->conn->query;
}

ml_str ml_http_target(const ml_http_call *c) {
    return c->conn->target;
}

ml_str ml_http_header(const ml_http_call *c, const char *name) {
    return ml_http_reader_field(&c->conn->reader, name);
}

bool ml_http_header_at(const ml_http_call *c, int i, ml_str *name, ml_str *value) {
    const ml_http_reader *r = &c->conn->reader;

    if (i >= r->n_field)
        return false;
    *name = r->field[i].name;
    *value = r->field[i].value;
    return true;
}

ml_str ml_http_body(const ml_http_call *c) {
    return (ml_str){ c->conn->body.ptr, c->conn->body.len };
}

void ml_http_take_body(ml_http_call *c, ml_text *out) {
    *out = c->conn->body;
    c->conn->body = (ml_text){ 0 };
    if (c->conn->server->limits.budget)
        c->conn->counted -= out->len;
}

void *ml_http_tag(const ml_http_call *c) {
    return c->conn->tag;
}

ml_str ml_http_peer(const ml_http_call *c) {
    return ml_str_of(c->conn->peer);
}

void ml_http_on_gone(ml_http_call *c, ml_loop_fn *fn, void *ud) {
    c->gone = fn;
    c->gone_ud = ud;
}

/* --- the reply -------------------------------------------------------------- */

static struct evbuffer *output(const ml_http_call *c) {
    return bufferevent_get_output(c->conn->bev);
}

void ml_http_add_header(ml_http_call *c, const char *name, const char *value) {
    size_t from = c->headers.len;

    ML_BUG_IF(c->begun);
    ml_text_printf(&c->headers, "%s: %s\r\n", name, value);
    /* A line break in the value would start another header: prevents header injection. */
    for (size_t at = from; at + 2 < c->headers.len; at++)
        if ((unsigned char)c->headers.ptr[at] < 0x20)
            c->headers.ptr[at] = ' ';
    if (strcasecmp(name, "content-length") == 0) {
        c->counted = true;
        c->left = (size_t)strtoumax(value, NULL, 10);
    }
}

/* Chooses the framing of the reply and sends its head. */
static void send_head(ml_http_call *c, int status, const char *type) {
    char line[400];

    ML_BUG_IF(c->begun);
    c->begun = true;
    c->status = status;
    c->no_body = c->no_body || status == 204 || status == 304;
    c->chunked = !c->counted && c->conn->reader.minor == 1;
    c->keep = c->keep && (c->counted || c->chunked || c->no_body);
    snprintf(line, sizeof line, "HTTP/1.1 %d %s\r\n%s%.200s%s%s%s", status,
             ml_http_reason(status), type ? "Content-Type: " : "", type ? type : "",
             type ? "\r\n" : "",
             c->chunked && status != 204 && status != 304 ? "Transfer-Encoding: chunked\r\n"
                                                          : "",
             c->keep ? "" : "Connection: close\r\n");
    ml_http_conn_send(c->conn, line, strlen(line));
    ml_http_conn_send(c->conn, c->headers.ptr, c->headers.len);
    ml_http_conn_send(c->conn, "\r\n", 2);
}

static void finish(ml_http_call *c) {
    ml_http_conn *conn = c->conn;
    bool keep = c->keep;

    ml_http_conn_report(conn, c->status, !conn->cut);
    ml_http_call_free(c);
    ml_http_conn_answered(conn, keep);
}

void ml_http_reply(ml_http_call *c, int status, const char *type, ml_str body) {
    char length[32];

    snprintf(length, sizeof length, "%zu", body.len);
    if (status != 204 && !c->counted)
        ml_http_add_header(c, "Content-Length", length);
    send_head(c, status, type);
    if (!c->no_body)
        ml_http_conn_send(c->conn, body.ptr, body.len);
    finish(c);
}

void ml_http_begin(ml_http_call *c, int status, const char *type) {
    send_head(c, status, type);
}

void ml_http_write(ml_http_call *c, ml_str piece) {
    ml_http_conn *conn = c->conn;
    char size[24];

    ML_BUG_IF(!c->begun);
    if (c->no_body || c->conn->cut || piece.len == 0)
        return;
    if (c->counted) {
        ML_BUG_IF(piece.len > c->left);
        c->left -= piece.len;
    }
    if (c->chunked) {
        snprintf(size, sizeof size, "%zx\r\n", piece.len);
        ml_http_conn_send(conn, size, strlen(size));
    }
    ml_http_conn_send(conn, piece.ptr, piece.len);
    if (c->chunked)
        ml_http_conn_send(conn, "\r\n", 2);
    if (evbuffer_get_length(output(c)) > conn->server->limits.max_unsent)
        ml_http_conn_cut(conn);
}

void ml_http_end(ml_http_call *c) {
    ML_BUG_IF(!c->begun);
    if (c->counted && c->left && !c->no_body) {
        ml_http_abort(c); /* shorter than its Content-Length */
        return;
    }
    if (c->chunked && !c->no_body)
        ml_http_conn_send(c->conn, "0\r\n\r\n", 5);
    finish(c);
}

void ml_http_abort(ml_http_call *c) {
    ml_http_conn *conn = c->conn;
    struct linger now = { .l_onoff = 1, .l_linger = 0 };

    /* A reset, not a plain close: some replies are complete when the connection closes. */
    setsockopt(bufferevent_getfd(conn->bev), SOL_SOCKET, SO_LINGER, &now, sizeof now);
    ml_http_conn_report(conn, c->status, false);
    ml_http_call_free(c);
    ml_http_conn_cut(conn);
}
