#include "io/parquet/thrift.h"

#include <stdarg.h>
#include <stdio.h>

enum { MAX_DEPTH = 64 };

void ml_thrift_fail(ml_thrift *t, const char *fmt, ...) {
    char why[500];
    va_list ap;

    if (t->st)
        return;
    va_start(ap, fmt);
    vsnprintf(why, sizeof why, fmt, ap);
    va_end(ap);
    t->st = ml_fail(t->err, ML_EFORMAT, "%s: at byte %zu: %s", t->what,
                    (size_t)(t->p - t->file), why);
    t->p = t->end;
    t->type = ML_THRIFT_STOP;
}

static unsigned char byte(ml_thrift *t) {
    if (t->p == t->end) {
        ml_thrift_fail(t, "the metadata ends inside a value");
        return 0;
    }
    return *t->p++;
}

static uint64_t varint(ml_thrift *t) {
    uint64_t v = 0;

    for (int shift = 0; shift < 64; shift += 7) {
        unsigned char c = byte(t);
        v |= (uint64_t)(c & 0x7f) << shift;
        if (c < 0x80)
            return t->st ? 0 : v;
    }
    ml_thrift_fail(t, "a number has more than 64 bits");
    return 0;
}

static int64_t zigzag(ml_thrift *t) {
    uint64_t v = varint(t);
    return (int64_t)(v >> 1) ^ -(int64_t)(v & 1);
}

static bool expect(ml_thrift *t, bool is, const char *what) {
    if (!is)
        ml_thrift_fail(t, "a value has the Thrift type %d; expected %s", t->type, what);
    return !t->st;
}

static bool valid_type(int type) {
    return type >= ML_THRIFT_TRUE && type <= ML_THRIFT_UUID;
}

bool ml_thrift_next(ml_thrift *t, int16_t *id) {
    unsigned char head;

    if (t->st)
        return false;
    head = byte(t);
    t->type = head & 15;
    if (t->type == ML_THRIFT_STOP) {
        if (head)
            ml_thrift_fail(t, "the field header 0x%02x has no type", head);
        t->depth--;
        return false;
    }
    if (!valid_type(t->type))
        ml_thrift_fail(t, "a field has the unknown Thrift type %d", t->type);
    *id = (int16_t)(head >> 4 ? *id + (head >> 4) : zigzag(t));
    return !t->st;
}

int64_t ml_thrift_i64(ml_thrift *t) {
    if (!expect(t, t->type >= ML_THRIFT_I8 && t->type <= ML_THRIFT_I64, "an integer"))
        return 0;
    return t->type == ML_THRIFT_I8 ? (int8_t)byte(t) : zigzag(t);
}

int32_t ml_thrift_i32(ml_thrift *t) {
    int64_t v = ml_thrift_i64(t);

    if (v < INT32_MIN || v > INT32_MAX) {
        ml_thrift_fail(t, "the number %lld does not fit 32 bits", (long long)v);
        return 0;
    }
    return (int32_t)v;
}

bool ml_thrift_bool(ml_thrift *t) {
    expect(t, t->type == ML_THRIFT_TRUE || t->type == ML_THRIFT_FALSE, "true or false");
    return t->type == ML_THRIFT_TRUE;
}

static ml_str take(ml_thrift *t, uint64_t n) {
    ml_str s = { (const char *)t->p, (size_t)n };

    if (n > (uint64_t)(t->end - t->p))
        ml_thrift_fail(t, "a value has %llu bytes, but only %zu follow",
                       (unsigned long long)n, (size_t)(t->end - t->p));
    if (t->st)
        return (ml_str){ "", 0 };
    t->p += n;
    return s;
}

ml_str ml_thrift_binary(ml_thrift *t) {
    return expect(t, t->type == ML_THRIFT_BINARY, "a string") ? take(t, varint(t))
                                                              : (ml_str){ "", 0 };
}

int64_t ml_thrift_list(ml_thrift *t) {
    unsigned char head;
    uint64_t n;

    if (!expect(t, t->type == ML_THRIFT_LIST || t->type == ML_THRIFT_SET, "a list"))
        return 0;
    head = byte(t);
    n = head >> 4 == 15 ? varint(t) : head >> 4;
    t->type = head & 15;
    if (n && !t->st && !valid_type(t->type))
        ml_thrift_fail(t, "a list has elements of the unknown Thrift type %d", t->type);
    if (n > (uint64_t)(t->end - t->p))
        ml_thrift_fail(t, "a list has %llu elements, but only %zu bytes follow",
                       (unsigned long long)n, (size_t)(t->end - t->p));
    return t->st ? 0 : (int64_t)n;
}

void ml_thrift_struct(ml_thrift *t) {
    expect(t, t->type == ML_THRIFT_STRUCT, "a struct");
    if (++t->depth > MAX_DEPTH)
        ml_thrift_fail(t, "structs are nested more than %d deep", MAX_DEPTH);
}

/* Elements of a list of booleans are a byte each; a field's boolean is in its type. */
static void skip_element(ml_thrift *t, int type) {
    t->type = type;
    if (type == ML_THRIFT_TRUE || type == ML_THRIFT_FALSE)
        byte(t);
    else
        ml_thrift_skip(t);
}

static void skip_list(ml_thrift *t) {
    int64_t n = ml_thrift_list(t);
    int type = t->type;

    if (++t->depth > MAX_DEPTH)
        ml_thrift_fail(t, "lists are nested more than %d deep", MAX_DEPTH);
    for (int64_t i = 0; i < n && !t->st; i++)
        skip_element(t, type);
    t->depth--;
}

static void skip_map(ml_thrift *t) {
    uint64_t n = varint(t);
    unsigned char types = n ? byte(t) : 0;

    if (n > (uint64_t)(t->end - t->p))
        ml_thrift_fail(t, "a map has %llu entries, but only %zu bytes follow",
                       (unsigned long long)n, (size_t)(t->end - t->p));
    if (++t->depth > MAX_DEPTH)
        ml_thrift_fail(t, "maps are nested more than %d deep", MAX_DEPTH);
    for (uint64_t i = 0; i < n && !t->st; i++) {
        skip_element(t, types >> 4);
        skip_element(t, types & 15);
    }
    t->depth--;
}

static void skip_struct(ml_thrift *t) {
    ml_thrift_struct(t);
    for (int16_t id = 0; ml_thrift_next(t, &id);)
        ml_thrift_skip(t);
}

void ml_thrift_skip(ml_thrift *t) {
    switch (t->type) {
    case ML_THRIFT_TRUE:
    case ML_THRIFT_FALSE: return;
    case ML_THRIFT_I8: byte(t); return;
    case ML_THRIFT_I16:
    case ML_THRIFT_I32:
    case ML_THRIFT_I64: varint(t); return;
    case ML_THRIFT_F64: take(t, 8); return;
    case ML_THRIFT_BINARY: take(t, varint(t)); return;
    case ML_THRIFT_LIST:
    case ML_THRIFT_SET: skip_list(t); return;
    case ML_THRIFT_MAP: skip_map(t); return;
    case ML_THRIFT_STRUCT: skip_struct(t); return;
    case ML_THRIFT_UUID: take(t, 16); return;
    default: ml_thrift_fail(t, "the Thrift type %d is unknown", t->type);
    }
}
