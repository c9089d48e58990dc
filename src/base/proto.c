#include "base/proto.h"

#include <string.h>

enum { VARINT = 0, FIXED64 = 1, BYTES = 2, FIXED32 = 5 };

static bool fail(ml_proto *p) {
    p->bad = true;
    return false;
}

bool ml_proto_varint(ml_proto *p, uint64_t *out) {
    *out = 0;
    if (!p->left.len)
        return false;
    for (int shift = 0; shift < 64 && p->left.len; shift += 7) {
        uint64_t b = (unsigned char)*p->left.ptr++;
        p->left.len--;
        *out |= (b & 0x7F) << shift;
        if (b < 0x80)
            return shift < 63 || b < 2 ? true : fail(p);
    }
    return fail(p);
}

static ml_str take(ml_proto *p, size_t n) {
    ml_str s = { p->left.ptr, n };

    p->left.ptr += n;
    p->left.len -= n;
    return s;
}

static bool read_fixed(ml_proto *p, size_t n, uint64_t *out) {
    ml_str s;

    *out = 0;
    if (p->left.len < n)
        return fail(p);
    s = take(p, n);
    for (size_t i = 0; i < n; i++)
        *out |= (uint64_t)(unsigned char)s.ptr[i] << (8 * i);
    return true;
}

static bool read_bytes(ml_proto *p, ml_str *out) {
    uint64_t n;

    if (!ml_proto_varint(p, &n) || n > p->left.len)
        return fail(p);
    *out = take(p, (size_t)n);
    return true;
}

bool ml_proto_next(ml_proto *p, ml_proto_field *f) {
    uint64_t key;

    *f = (ml_proto_field){ 0 };
    if (p->bad || !p->left.len)
        return false;
    if (!ml_proto_varint(p, &key) || key >> 3 == 0 || key >> 3 > INT32_MAX)
        return fail(p);
    f->number = (int32_t)(key >> 3);
    switch (key & 7) {
    case VARINT: return ml_proto_varint(p, &f->value) || fail(p);
    case FIXED64: return read_fixed(p, 8, &f->value);
    case BYTES: return read_bytes(p, &f->bytes);
    case FIXED32: return read_fixed(p, 4, &f->value);
    default: return fail(p); /* groups are obsolete */
    }
}

double ml_proto_double(const ml_proto_field *f) {
    double x;

    memcpy(&x, &f->value, sizeof x);
    return x;
}

static void put_varint(ml_text *t, uint64_t v) {
    char b[10];
    size_t n = 0;

    do {
        b[n++] = (char)((v & 0x7F) | (v > 0x7F ? 0x80 : 0));
        v >>= 7;
    } while (v);
    ml_text_add(t, b, n);
}

static void put_key(ml_text *t, int32_t number, unsigned wire) {
    put_varint(t, (uint64_t)number << 3 | wire);
}

void ml_proto_put_int(ml_text *t, int32_t number, uint64_t value) {
    put_key(t, number, VARINT);
    put_varint(t, value);
}

void ml_proto_put_double(ml_text *t, int32_t number, double value) {
    uint64_t bits;
    char b[8];

    memcpy(&bits, &value, sizeof bits);
    for (int i = 0; i < 8; i++)
        b[i] = (char)(bits >> (8 * i) & 0xFF);
    put_key(t, number, FIXED64);
    ml_text_add(t, b, sizeof b);
}

char *ml_proto_room(ml_text *t, int32_t number, size_t n) {
    put_key(t, number, BYTES);
    put_varint(t, n);
    return ml_text_room(t, n);
}

void ml_proto_put_bytes(ml_text *t, int32_t number, ml_str bytes) {
    char *to = ml_proto_room(t, number, bytes.len);

    if (bytes.len)
        memcpy(to, bytes.ptr, bytes.len);
}
