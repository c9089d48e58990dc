/* proto.h - the wire format of Protocol Buffers, without schemas.
 *
 * A message is a sequence of fields: a number, and a varint, 4 or 8 bytes, or a byte string.
 * Nested messages, packed lists and entries of maps are byte strings.
 *
 * thread: any; no state. */
#ifndef ML_BASE_PROTO_H
#define ML_BASE_PROTO_H

#include <stdbool.h>
#include <stdint.h>

#include "base/str.h"

typedef struct ml_proto {
    ml_str left; /* of the message */
    bool bad;    /* it is malformed; nothing more is read */
} ml_proto;

typedef struct ml_proto_field {
    int32_t number;
    uint64_t value; /* a varint, or the bits of a number of 4 or 8 bytes */
    ml_str bytes;   /* a byte string: a view of the message; otherwise ptr is NULL */
} ml_proto_field;

/* The next field; false at the end, or if the rest is malformed. */
bool ml_proto_next(ml_proto *p, ml_proto_field *f);
/* The next varint of a packed list. */
bool ml_proto_varint(ml_proto *p, uint64_t *out);
/* The value of a field of type double. */
double ml_proto_double(const ml_proto_field *f);

void ml_proto_put_int(ml_text *t, int32_t number, uint64_t value);
void ml_proto_put_double(ml_text *t, int32_t number, double value);
void ml_proto_put_bytes(ml_text *t, int32_t number, ml_str bytes);
/* A byte string of n bytes, which the caller writes to the returned place. */
char *ml_proto_room(ml_text *t, int32_t number, size_t n);

#endif
