#include "net/http_reader.h"

#include <string.h>
#include <strings.h>

#define MAX_CHUNK_LINE 256

/* Parser states. */
enum { HEAD, BODY, CHUNK_SIZE, CHUNK_DATA, CHUNK_END, TRAILERS, DONE, BROKEN };

/* --- characters and lists --------------------------------------------------- */

static bool is_token(ml_str s) {
    static const char others[] = "!#$%&'*+-.^_`|~";

    for (size_t i = 0; i < s.len; i++) {
        char c = s.ptr[i];
        bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
        if (!letter && !(c >= '0' && c <= '9') && (c == 0 || !strchr(others, c)))
            return false;
    }
    return s.len > 0;
}

static bool is_text(ml_str s) {
    for (size_t i = 0; i < s.len; i++) {
        unsigned char c = (unsigned char)s.ptr[i];
        if ((c < 0x20 && c != '\t') || c == 0x7f)
            return false;
    }
    return true;
}

static ml_str trim(ml_str s) {
    while (s.len && (s.ptr[0] == ' ' || s.ptr[0] == '\t')) {
        s.ptr++;
        s.len--;
    }
    while (s.len && (s.ptr[s.len - 1] == ' ' || s.ptr[s.len - 1] == '\t'))
        s.len--;
    return s;
}

bool ml_http_name_is(ml_str a, const char *name) {
    return a.len == strlen(name) && strncasecmp(a.ptr, name, a.len) == 0;
}

bool ml_http_list_has(ml_str list, const char *word) {
    while (list.len) {
        const char *comma = memchr(list.ptr, ',', list.len);
        size_t n = comma ? (size_t)(comma - list.ptr) : list.len;
        if (ml_http_name_is(trim((ml_str){ list.ptr, n }), word))
            return true;
        n += comma ? 1 : 0;
        list.ptr += n;
        list.len -= n;
    }
    return false;
}

/* Digits only, at most 18, so that the value cannot overflow. */
static bool decimal(ml_str s, uint64_t *out) {
    *out = 0;
    for (size_t i = 0; i < s.len; i++) {
        if (s.ptr[i] < '0' || s.ptr[i] > '9')
            return false;
        *out = *out * 10 + (uint64_t)(s.ptr[i] - '0');
    }
    return s.len > 0 && s.len <= 18;
}

static int hex_digit(char c) {
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* --- the reader ------------------------------------------------------------- */

void ml_http_reader_init(ml_http_reader *r, bool reply, size_t max_header,
                         size_t max_body) {
    *r = (ml_http_reader){ .reply = reply, .max_header = max_header, .max_body = max_body };
}

void ml_http_reader_release(ml_http_reader *r) {
    ml_text_release(&r->head);
    ml_text_release(&r->line);
}

void ml_http_reader_begin(ml_http_reader *r) {
    r->head.len = r->line.len = 0;
    r->method = r->target = (ml_str){ 0 };
    r->status = r->n_field = 0;
    r->body_bytes = r->trailer_bytes = r->line_at = 0;
    r->bodyless = false;
    r->state = HEAD;
}

bool ml_http_reader_fresh(const ml_http_reader *r) {
    return r->state == HEAD && r->head.len == 0;
}

bool ml_http_reader_has_head(const ml_http_reader *r) {
    return r->state != HEAD;
}

bool ml_http_reader_eof(const ml_http_reader *r) {
    return r->state == DONE || ml_http_reader_fresh(r) ||
           (r->state == BODY && r->framing == ML_HTTP_TO_EOF);
}

ml_str ml_http_reader_field(const ml_http_reader *r, const char *name) {
    for (int i = 0; i < r->n_field; i++)
        if (ml_http_name_is(r->field[i].name, name))
            return r->field[i].value;
    return (ml_str){ 0 };
}

bool ml_http_reader_keeps_alive(const ml_http_reader *r) {
    if (r->minor == 0 || r->framing == ML_HTTP_TO_EOF)
        return false;
    for (int i = 0; i < r->n_field; i++)
        if (ml_http_name_is(r->field[i].name, "connection") &&
            ml_http_list_has(r->field[i].value, "close"))
            return false;
    return true;
}

static ml_http_event bad(ml_http_reader *r, int refusal, const char *why) {
    r->state = BROKEN;
    r->refusal = refusal;
    r->why = why;
    return ML_HTTP_BAD;
}

/* Moves bytes from *in to t, up to and including a line feed.  True: a line is complete. */
static bool take_line(ml_text *t, ml_str *in) {
    const char *lf = memchr(in->ptr, '\n', in->len);
    size_t n = lf ? (size_t)(lf - in->ptr) + 1 : in->len;

    ml_text_add(t, in->ptr, n);
    in->ptr += n;
    in->len -= n;
    return lf != NULL;
}

/* Splits off the line at *p, without its CR LF; false if it ends in a bare LF. */
static bool cut_line(const char **p, ml_str *line) {
    const char *lf = strchr(*p, '\n');

    *line = (ml_str){ *p, (size_t)(lf - *p) };
    *p = lf + 1;
    if (line->len == 0 || line->ptr[line->len - 1] != '\r')
        return false;
    line->len--;
    return true;
}

static bool read_version(ml_http_reader *r, ml_str v) {
    if (v.len != 8 || memcmp(v.ptr, "HTTP/1.", 7) != 0 ||
        (v.ptr[7] != '0' && v.ptr[7] != '1'))
        return false;
    r->minor = v.ptr[7] - '0';
    return true;
}

static ml_http_event read_request_line(ml_http_reader *r, ml_str line) {
    const char *a = memchr(line.ptr, ' ', line.len), *b;
    const char *end = line.ptr + line.len;

    b = a ? memchr(a + 1, ' ', (size_t)(end - a - 1)) : NULL;
    if (!b)
        return bad(r, 400, "malformed request line: expected METHOD TARGET VERSION");
    r->method = (ml_str){ line.ptr, (size_t)(a - line.ptr) };
    r->target = (ml_str){ a + 1, (size_t)(b - a - 1) };
    if (!is_token(r->method))
        return bad(r, 400, "malformed method");
    if (r->target.len == 0 || !is_text(r->target) ||
        memchr(r->target.ptr, '\t', r->target.len))
        return bad(r, 400, "invalid characters in the request target");
    if (!read_version(r, (ml_str){ b + 1, (size_t)(end - b - 1) }))
        return bad(r, 505, "expected HTTP/1.1 or HTTP/1.0");
    return ML_HTTP_HEAD;
}

static ml_http_event read_status_line(ml_http_reader *r, ml_str line) {
    if (line.len < 12 || !read_version(r, (ml_str){ line.ptr, 8 }) || line.ptr[8] != ' ' ||
        (line.len > 12 && line.ptr[12] != ' '))
        return bad(r, 502, "malformed status line: expected VERSION CODE REASON");
    for (int i = 9; i < 12; i++) {
        if (line.ptr[i] < '0' || line.ptr[i] > '9')
            return bad(r, 502, "the status code must have three digits");
        r->status = r->status * 10 + (line.ptr[i] - '0');
    }
    if (r->status < 100)
        return bad(r, 502, "the status is below 100");
    return ML_HTTP_HEAD;
}

static ml_http_event read_field(ml_http_reader *r, ml_str line) {
    const char *colon = memchr(line.ptr, ':', line.len);
    ml_str name, value;

    if (!colon)
        return bad(r, 400, "malformed header: no colon");
    name = (ml_str){ line.ptr, (size_t)(colon - line.ptr) };
    value = trim((ml_str){ colon + 1, line.len - name.len - 1 });
    if (!is_token(name))
        return bad(r, 400, "malformed header name");
    if (!is_text(value))
        return bad(r, 400, "control characters in a header value");
    if (r->n_field == ML_HTTP_MAX_FIELDS)
        return bad(r, 431, "more than 128 headers");
    r->field[r->n_field++] = (ml_http_field){ name, value };
    return ML_HTTP_HEAD;
}

/* How often a header occurs; a framing header may occur only once. */
static int count_fields(const ml_http_reader *r, const char *name) {
    int n = 0;

    for (int i = 0; i < r->n_field; i++)
        n += ml_http_name_is(r->field[i].name, name);
    return n;
}

/* Checks that apply to requests only, after the fields are parsed. */
static ml_http_event check_side(ml_http_reader *r) {
    if (!r->reply && count_fields(r, "host") != 1 &&
        (r->minor == 1 || count_fields(r, "host") > 1))
        return bad(r, 400, "an HTTP/1.1 request must have exactly one Host header");
    return ML_HTTP_HEAD;
}

/* Determines how the body is delimited. */
static ml_http_event find_framing(ml_http_reader *r) {
    int n_length = count_fields(r, "content-length");
    int n_coding = count_fields(r, "transfer-encoding");

    r->framing = ML_HTTP_FIXED;
    r->left = 0;
    if (n_length > 1 || n_coding > 1 || (n_length && n_coding))
        return bad(r, 400, "duplicate body length");
    if (n_length && !decimal(ml_http_reader_field(r, "content-length"), &r->left))
        return bad(r, 400, "Content-Length must be a number");
    if (n_coding) {
        if (!ml_http_name_is(ml_http_reader_field(r, "transfer-encoding"), "chunked"))
            return bad(r, 501, "only Transfer-Encoding: chunked is supported");
        if (r->minor == 0)
            return bad(r, 400, "HTTP/1.0 does not support Transfer-Encoding");
        r->framing = ML_HTTP_CHUNKED;
    }
    if (r->reply && (r->bodyless || r->status == 204 || r->status == 304)) {
        r->framing = ML_HTTP_FIXED;
        r->left = 0;
    } else if (r->reply && !n_length && !n_coding)
        r->framing = ML_HTTP_TO_EOF;
    if (r->framing == ML_HTTP_FIXED && r->left > r->max_body)
        return bad(r, 413, "the body exceeds the server's limit");
    r->state = r->framing == ML_HTTP_CHUNKED ? CHUNK_SIZE : BODY;
    return ML_HTTP_HEAD;
}

static ml_http_event parse_head(ml_http_reader *r) {
    const char *p = r->head.ptr;
    ml_http_event e;
    ml_str line;

    if (memchr(p, 0, r->head.len))
        return bad(r, 400, "NUL byte in the headers");
    if (!cut_line(&p, &line))
        return bad(r, 400, "lines must end in CR LF");
    e = r->reply ? read_status_line(r, line) : read_request_line(r, line);
    while (e == ML_HTTP_HEAD) {
        if (!cut_line(&p, &line))
            return bad(r, 400, "lines must end in CR LF");
        if (line.len == 0)
            break;
        e = read_field(r, line);
    }
    if (e == ML_HTTP_HEAD)
        e = check_side(r);
    return e == ML_HTTP_HEAD ? find_framing(r) : e;
}

/* Interim replies (1xx except 101) are skipped. */
static bool is_interim(const ml_http_reader *r) {
    return r->reply && r->status < 200 && r->status != 101;
}

#define TLS_HANDSHAKE 0x16 /* the record type of a ClientHello */

static ml_http_event next_head(ml_http_reader *r, ml_str *in) {
    while (in->len) {
        if (!r->reply && r->head.len == 0 && in->ptr[0] == TLS_HANDSHAKE)
            return bad(
                r, 400,
                "TLS handshake on a plain HTTP port: use http:// instead of https://");
        bool whole = take_line(&r->head, in);
        const char *line = r->head.ptr + r->line_at;
        size_t n = r->head.len - r->line_at;

        if (r->head.len > r->max_header)
            return bad(r, 431, "the headers exceed the server's limit");
        if (!whole)
            break;
        if (n > 2 || (n == 2 && *line != '\r')) {
            r->line_at = r->head.len;
            continue;
        }
        if (r->line_at == 0 && n == 2 && !r->reply) {
            r->head.len = 0; /* skip an empty line before a request */
            continue;
        }
        if (parse_head(r) == ML_HTTP_BAD)
            return ML_HTTP_BAD;
        if (!is_interim(r))
            return ML_HTTP_HEAD;
        bool bodyless = r->bodyless;
        ml_http_reader_begin(r);
        r->bodyless = bodyless;
    }
    return ML_HTTP_MORE;
}

static ml_http_event take_data(ml_http_reader *r, ml_str *in, ml_str *piece) {
    size_t n =
        r->framing == ML_HTTP_TO_EOF || in->len < r->left ? in->len : (size_t)r->left;

    if (n == 0)
        return ML_HTTP_MORE;
    if (n > r->max_body - r->body_bytes)
        return bad(r, 413, "the body exceeds the server's limit");
    *piece = (ml_str){ in->ptr, n };
    in->ptr += n;
    in->len -= n;
    r->left -= r->framing == ML_HTTP_TO_EOF ? 0 : n;
    r->body_bytes += n;
    return ML_HTTP_DATA;
}

/* "1a2b;name=value" CR LF */
static ml_http_event chunk_size(ml_http_reader *r, ml_str *in) {
    bool whole = take_line(&r->line, in);
    ml_str line = { r->line.ptr, r->line.len };
    size_t n = 0;

    if (r->line.len > MAX_CHUNK_LINE)
        return bad(r, 400, "the chunk size line is too long");
    if (!whole)
        return ML_HTTP_MORE;
    if (line.len < 2 || line.ptr[line.len - 2] != '\r')
        return bad(r, 400, "lines must end in CR LF");
    line.len -= 2;
    r->left = 0;
    for (; n < line.len && hex_digit(line.ptr[n]) >= 0; n++)
        r->left = r->left << 4 | (uint64_t)hex_digit(line.ptr[n]);
    if (n == 0 || n > 15 || (n < line.len && line.ptr[n] != ';') || !is_text(line))
        return bad(r, 400, "the chunk size must be a hexadecimal number");
    if (r->left > r->max_body - r->body_bytes)
        return bad(r, 413, "the body exceeds the server's limit");
    r->line.len = 0;
    r->state = r->left ? CHUNK_DATA : TRAILERS;
    return ML_HTTP_MORE;
}

static ml_http_event chunk_end(ml_http_reader *r, ml_str *in) {
    bool whole = take_line(&r->line, in);

    if (r->line.len > 2 || (whole && r->line.len != 2) ||
        (r->line.len && r->line.ptr[0] != '\r'))
        return bad(r, 400, "a chunk is longer than its size");
    if (whole) {
        r->line.len = 0;
        r->state = CHUNK_SIZE;
    }
    return ML_HTTP_MORE;
}

/* Skips trailers: nothing here uses them. */
static ml_http_event trailers(ml_http_reader *r, ml_str *in) {
    size_t before = r->line.len;
    bool whole = take_line(&r->line, in);

    r->trailer_bytes += r->line.len - before;
    if (r->trailer_bytes > r->max_header)
        return bad(r, 431, "the trailers exceed the server's limit");
    if (!whole)
        return ML_HTTP_MORE;
    if (r->line.len < 2 || r->line.ptr[r->line.len - 2] != '\r')
        return bad(r, 400, "lines must end in CR LF");
    if (r->line.len == 2)
        r->state = DONE;
    r->line.len = 0;
    return ML_HTTP_MORE;
}

/* A body of fixed length ends without further input. */
static bool body_complete(const ml_http_reader *r) {
    return r->state == BODY && r->framing == ML_HTTP_FIXED && r->left == 0;
}

ml_http_event ml_http_reader_next(ml_http_reader *r, ml_str *in, ml_str *piece) {
    ml_http_event e = ML_HTTP_MORE;

    if (r->state == HEAD)
        return next_head(r, in);
    if (r->state == BROKEN)
        return ML_HTTP_BAD;
    if (body_complete(r))
        r->state = DONE;
    while (e == ML_HTTP_MORE && in->len && r->state != DONE) {
        switch (r->state) {
        case BODY: e = take_data(r, in, piece); break;
        case CHUNK_SIZE: e = chunk_size(r, in); break;
        case CHUNK_DATA:
            e = take_data(r, in, piece);
            if (r->left == 0)
                r->state = CHUNK_END;
            break;
        case CHUNK_END: e = chunk_end(r, in); break;
        default: e = trailers(r, in); break;
        }
    }
    return e == ML_HTTP_MORE && r->state == DONE ? ML_HTTP_END : e;
}
