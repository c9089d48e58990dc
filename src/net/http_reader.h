/* http_reader.h - an incremental parser of HTTP/1.1 messages.
 *
 * Parses requests (for the server) and replies (for the client), strictly: it rejects input
 * that two parsers could read differently (both length headers, duplicate length headers,
 * bare line feeds, folded lines, malformed numbers), to prevent request smuggling past a
 * proxy.
 *
 * thread: one owner at a time. */
#ifndef ML_NET_HTTP_READER_H
#define ML_NET_HTTP_READER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/str.h"

typedef struct ml_http_field {
    ml_str name, value;
} ml_http_field;

typedef enum ml_http_event {
    ML_HTTP_MORE, /* all input is consumed, more is needed */
    ML_HTTP_HEAD, /* the first line and the header fields are parsed */
    ML_HTTP_DATA, /* a piece of the body, pointing into the input */
    ML_HTTP_END,  /* the message is complete */
    ML_HTTP_BAD,  /* an error: refusal and why are set; parsing stops */
} ml_http_event;

#define ML_HTTP_MAX_FIELDS 128

typedef enum ml_http_framing {
    ML_HTTP_FIXED,   /* `left` bytes; 0: no body */
    ML_HTTP_CHUNKED, /* chunked transfer coding */
    ML_HTTP_TO_EOF,  /* a reply that ends with its connection */
} ml_http_framing;

typedef struct ml_http_reader {
    /* Set by init. */
    bool reply;
    size_t max_header, max_body;
    /* Of the current message, from ML_HTTP_HEAD until the next begin. */
    ml_str method, target; /* of a request */
    int status;            /* of a reply */
    int minor;             /* HTTP/1.minor */
    ml_http_field field[ML_HTTP_MAX_FIELDS];
    int n_field;
    ml_http_framing framing;
    size_t body_bytes; /* received of the body so far */
    bool bodyless;     /* set by the caller for the reply to HEAD: it has no body */
    /* For ML_HTTP_BAD: the server's reply status, and a sentence without its period. */
    int refusal;
    const char *why;
    /* Private. */
    int state;
    ml_text head, line;
    size_t line_at; /* offset of the last line of the head */
    uint64_t left;  /* remaining bytes of the body or the chunk */
    size_t trailer_bytes;
} ml_http_reader;

void ml_http_reader_init(ml_http_reader *r, bool reply, size_t max_header, size_t max_body);
void ml_http_reader_release(ml_http_reader *r);
void ml_http_reader_begin(ml_http_reader *r); /* starts the next message */

/* Consumes bytes from the front of *in and returns the next event; call again until
 * ML_HTTP_MORE, ML_HTTP_END or ML_HTTP_BAD. */
ml_http_event ml_http_reader_next(ml_http_reader *r, ml_str *in, ml_str *piece);

/* The connection has ended: true if the current message is complete or had not begun. */
bool ml_http_reader_eof(const ml_http_reader *r);
/* True before the first byte of a message. */
bool ml_http_reader_fresh(const ml_http_reader *r);

/* True from ML_HTTP_HEAD on. */
bool ml_http_reader_has_head(const ml_http_reader *r);

/* The first field of this name, ignoring case; ptr NULL if there is none. */
ml_str ml_http_reader_field(const ml_http_reader *r, const char *name);

/* May the connection carry another message after this one? */
bool ml_http_reader_keeps_alive(const ml_http_reader *r);

/* Does the comma-separated list have this word, ignoring case? */
bool ml_http_list_has(ml_str list, const char *word);
/* Equal, ignoring case? */
bool ml_http_name_is(ml_str a, const char *name);

#endif
