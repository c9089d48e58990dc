#include <string.h>

#include "serve/serve_priv.h"
#include "text/unicode.h"

int ml_http_status_of(ml_status st) {
    switch (st) {
    case ML_OK: return 200;
    case ML_EAGAIN: return 429;
    case ML_EUSAGE:
    case ML_EFORMAT:
    case ML_EUNSUP: return 400;
    case ML_EPEER: return 502;
    case ML_ENOMEM: return 503;
    case ML_EIO: return 500;
    }
    return 500;
}

static const char *error_type(int status) {
    switch (status) {
    case 401: return "authentication_error";
    case 404:
    case 405: return "not_found_error";
    case 429: return "rate_limit_error";
    case 502:
    case 503: return "service_unavailable_error";
    default: return status < 500 ? "invalid_request_error" : "internal_server_error";
    }
}

void ml_reply_json(ml_http_call *c, int status, const ml_text *body) {
    ml_http_reply(c, status, "application/json", (ml_str){ body->ptr, body->len });
}

/* Messages quote client input, which may be invalid or cut UTF-8; JSON must be valid. */
static void write_message(ml_json_out *o, const char *message) {
    ml_str left = ml_str_of(message);
    ml_text clean = { 0 };

    for (;;) {
        size_t n = ml_utf8_valid(left);
        ml_text_add(&clean, left.ptr, n);
        if (n == left.len)
            break;
        ml_text_add(&clean, "?", 1);
        left = (ml_str){ left.ptr + n + 1, left.len - n - 1 };
    }
    ml_json_str(o, (ml_str){ clean.ptr, clean.len });
    ml_text_release(&clean);
}

/* As in Anthropic's API. */
static const char *anthropic_type(int status) {
    switch (status) {
    case 403: return "permission_error";
    case 405: return "invalid_request_error";
    case 413: return "request_too_large";
    case 502:
    case 503: return "overloaded_error";
    default: return status < 500 ? error_type(status) : "api_error";
    }
}

void ml_anthropic_error_write(ml_json_out *o, int status, const char *message) {
    ml_json_begin(o, '{');
    ml_json_put_word(o, "type", "error");
    ml_json_key(o, "error");
    ml_json_begin(o, '{');
    ml_json_put_word(o, "type", anthropic_type(status));
    ml_json_key(o, "message");
    write_message(o, message);
    ml_json_end(o, '}');
    ml_json_end(o, '}');
}

/* .../v1/messages and the paths below it */
static bool is_anthropic(ml_str path) {
    static const char name[] = "/v1/messages";
    size_t n = sizeof name - 1;

    for (size_t i = 0; i + n <= path.len; i++)
        if (memcmp(path.ptr + i, name, n) == 0 &&
            (i + n == path.len || path.ptr[i + n] == '/'))
            return true;
    return false;
}

/* code NULL: the status. */
static void write_error(const ml_http_call *c, ml_text *out, int status, const char *type,
                        const char *code, const char *message) {
    ml_json_out o = { .to = out };

    if (is_anthropic(ml_http_path(c))) {
        ml_anthropic_error_write(&o, status, message);
        return;
    }
    ml_json_begin(&o, '{');
    ml_json_key(&o, "error");
    ml_json_begin(&o, '{');
    ml_json_key(&o, "message");
    write_message(&o, message);
    ml_json_put_word(&o, "type", type);
    ml_json_key(&o, "param");
    ml_json_null(&o);
    ml_json_key(&o, "code");
    if (code)
        ml_json_word(&o, code);
    else
        ml_json_int(&o, status);
    ml_json_end(&o, '}');
    ml_json_end(&o, '}');
}

void ml_reply_no_model(ml_http_call *c, const char *message) {
    ml_text body = { 0 };

    write_error(c, &body, 404, "invalid_request_error", "model_not_found", message);
    ml_reply_json(c, 404, &body);
    ml_text_release(&body);
}

void ml_reply_error(ml_http_call *c, int status, const char *message) {
    ml_text body = { 0 };

    write_error(c, &body, status, error_type(status), NULL, message);
    if (status == 429 || status == 503)
        ml_http_add_header(c, "Retry-After", "1");
    ml_reply_json(c, status, &body);
    ml_text_release(&body);
}

void ml_reply_err(ml_http_call *c, const ml_err *err) {
    bool full = err->code == ML_EAGAIN && !err->msg[0];

    ml_reply_error(c, ml_http_status_of(err->code),
                   full ? "The queue is full; try again later." : err->msg);
}

/* job.c parses the bodies of requests that generate; bodies of other requests are small. */
#define MAX_SMALL_BODY ((size_t)1 << 20)

typedef struct parse {
    const ml_json *out;
    ml_arena *arena;
    ml_str body;
    ml_status st;
    ml_err *err;
} parse;

static void parse_body(void *ud) {
    parse *p = ud;

    /* A copy: the owner may outlive the call. */
    p->body.ptr = ml_arena_str(p->arena, p->body.ptr, p->body.len);
    p->st = ml_json_parse(&p->out, p->arena, p->body, "request body", p->err);
}

ml_status ml_read_body(const ml_json **out, ml_http_call *c, ml_arena *a, bool optional,
                       ml_err *err) {
    parse p = { .arena = a, .body = ml_http_body(c), .err = err };

    if (p.body.len > MAX_SMALL_BODY)
        return ml_fail(err, ML_EUSAGE,
                       "the body has %zu bytes; this endpoint accepts at most %zu",
                       p.body.len, MAX_SMALL_BODY);
    if (p.body.len == 0)
        p.body = ml_str_of(optional ? "{}" : "");
    if (!ml_memory_try(parse_body, &p))
        return ml_fail(err, ML_ENOMEM, "out of memory for this request; try again later");
    *out = p.out;
    return p.st;
}
