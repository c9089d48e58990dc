/* http_reader.h - HTTP/1.1 messages out of bytes that come in pieces.
 *
 * Reads requests (for the server) and replies (for the client), strictly: what two
 * readers could understand differently (both lengths, two lengths, bare line feeds,
 * folded lines, odd numbers) is refused, so that nothing can be smuggled past a proxy.
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
    ML_HTTP_MORE, /* all bytes are used up, more are needed */
    ML_HTTP_HEAD, /* the first line and the fields are known */
    ML_HTTP_DATA, /* a piece of the body, inside the bytes given */
    ML_HTTP_END,  /* the message is complete */
    ML_HTTP_BAD,  /* refusal and why are set; nothing more can be read */
} ml_http_event;

#define ML_HTTP_MAX_FIELDS 128

typedef enum ml_http_framing {
    ML_HTTP_FIXED,   /* `left` bytes; none when it is 0 */
    ML_HTTP_CHUNKED, /* in chunks */
    ML_HTTP_TO_EOF,  /* a reply that ends with its connection */
} ml_http_framing;

typedef struct ml_http_reader {
    /* Set by init. */
    bool reply;
    size_t max_header, max_body;
    /* Of the message at hand, from ML_HTTP_HEAD until the next begin. */
    ml_str method, target; /* of a request */
    int status;            /* of a reply */
    int minor;             /* HTTP/1.minor */
    ml_http_field field[ML_HTTP_MAX_FIELDS];
    int n_field;
    ml_http_framing framing;
    size_t body_bytes; /* of the body so far */
    bool bodyless; /* set by the caller after the request was HEAD: a reply has no body */
    /* Of ML_HTTP_BAD: the status a server answers with, and a sentence without its period. */
    int refusal;
    const char *why;
    /* Inside. */
    int state;
    ml_text head, line;
    size_t line_at; /* where the last line of the head begins */
    uint64_t left;  /* bytes to come of the body or of the chunk */
    size_t trailer_bytes;
} ml_http_reader;

void ml_http_reader_init(ml_http_reader *r, bool reply, size_t max_header, size_t max_body);
void ml_http_reader_release(ml_http_reader *r);
void ml_http_reader_begin(ml_http_reader *r); /* the next message */

/* Takes bytes off the front of *in and says what they gave; call again until ML_HTTP_MORE,
 * ML_HTTP_END or ML_HTTP_BAD. */
ml_http_event ml_http_reader_next(ml_http_reader *r, ml_str *in, ml_str *piece);

/* The connection has ended: true when the message at hand is complete by that, or none had
 * begun. */
bool ml_http_reader_eof(const ml_http_reader *r);
/* True before the first byte of a message. */
bool ml_http_reader_fresh(const ml_http_reader *r);

/* True from ML_HTTP_HEAD on. */
bool ml_http_reader_has_head(const ml_http_reader *r);

/* The first field of this name, in any case; ptr NULL when there is none. */
ml_str ml_http_reader_field(const ml_http_reader *r, const char *name);

/* May the connection carry another message after this one? */
bool ml_http_reader_keeps_alive(const ml_http_reader *r);

/* Does the comma-separated list hold this word, in any case? */
bool ml_http_list_has(ml_str list, const char *word);
/* Equal in any case? */
bool ml_http_name_is(ml_str a, const char *name);

#endif
