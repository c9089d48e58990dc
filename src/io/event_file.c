#include "io/event_file.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/checksum.h"
#include "base/clock.h"
#include "base/file.h"

enum { HEAD = 12, TAIL = 4 }; /* bytes before and after a record's data */

/* Fields of the messages: (number << 3) | wire type. */
enum {
    EVENT_TIME = 1 << 3 | 1,
    EVENT_STEP = 2 << 3 | 0,
    EVENT_VERSION = 3 << 3 | 2,
    EVENT_SUMMARY = 5 << 3 | 2,
    SUMMARY_VALUE = 1 << 3 | 2,
    VALUE_TAG = 1 << 3 | 2,
    VALUE_NUMBER = 2 << 3 | 5,
};

/* ---- writing ---- */

static void add_little(ml_text *t, uint64_t x, int bytes) {
    for (int i = 0; i < bytes; i++) {
        char c = (char)(x >> 8 * i & 255);
        ml_text_add(t, &c, 1);
    }
}

static void add_varint(ml_text *t, uint64_t x) {
    for (; x > 127; x >>= 7)
        add_little(t, (x & 127) | 128, 1);
    add_little(t, x, 1);
}

static void add_bytes(ml_text *t, int member, ml_str s) {
    add_varint(t, (uint64_t)member);
    add_varint(t, s.len);
    ml_text_add(t, s.ptr, s.len);
}

static void add_time(ml_text *t, double s) {
    uint64_t bits;
    memcpy(&bits, &s, sizeof bits);
    add_varint(t, EVENT_TIME);
    add_little(t, bits, 8);
}

/* Checksums are rotated and offset (masked CRC), as required for data that contains
 * checksums. */
static uint32_t masked(const void *bytes, size_t n) {
    uint32_t crc = ml_crc32c(bytes, n);
    return (crc >> 15 | crc << 17) + 0xA282EAD8u;
}

static void add_record(ml_text *out, const ml_text *bytes) {
    size_t head = out->len;

    add_little(out, bytes->len, 8);
    add_little(out, masked(out->ptr + head, 8), 4);
    ml_text_add(out, bytes->ptr, bytes->len);
    add_little(out, masked(bytes->ptr, bytes->len), 4);
}

static void add_version(ml_text *out) {
    ml_text t = { 0 };

    add_time(&t, ml_clock_unix_s());
    add_bytes(&t, EVENT_VERSION, ml_str_of("brain.Event:2"));
    add_record(out, &t);
    ml_text_release(&t);
}

static void add_event(ml_text *out, const ml_event *e) {
    ml_text value = { 0 }, summary = { 0 }, t = { 0 };
    uint32_t bits;

    memcpy(&bits, &e->value, sizeof bits);
    add_bytes(&value, VALUE_TAG, e->tag);
    add_varint(&value, VALUE_NUMBER);
    add_little(&value, bits, 4);
    add_bytes(&summary, SUMMARY_VALUE, (ml_str){ value.ptr, value.len });
    add_time(&t, e->time_s);
    add_varint(&t, EVENT_STEP);
    add_varint(&t, (uint64_t)e->step);
    add_bytes(&t, EVENT_SUMMARY, (ml_str){ summary.ptr, summary.len });
    add_record(out, &t);
    ml_text_release(&value);
    ml_text_release(&summary);
    ml_text_release(&t);
}

/* ---- reading ---- */

static uint64_t little(const char *p, int bytes) {
    uint64_t x = 0;
    for (int i = 0; i < bytes; i++)
        x |= (uint64_t)(unsigned char)p[i] << 8 * i;
    return x;
}

/* Takes the next n bytes; false if there are fewer. */
static bool take(ml_str *from, uint64_t n, ml_str *out) {
    if (n > from->len)
        return false;
    *out = (ml_str){ from->ptr, (size_t)n };
    *from = (ml_str){ from->ptr + n, from->len - (size_t)n };
    return true;
}

static bool take_varint(ml_str *from, uint64_t *out) {
    ml_str c;

    *out = 0;
    for (int shift = 0; shift < 64 && take(from, 1, &c); shift += 7) {
        *out |= (uint64_t)(c.ptr[0] & 127) << shift;
        if (!(c.ptr[0] & 128))
            return true;
    }
    return false;
}

/* One field of a message: its bytes, or its number in little-endian bytes. */
static bool take_member(ml_str *from, uint64_t *member, ml_str *bytes, uint64_t *number) {
    uint64_t n;

    if (!take_varint(from, member))
        return false;
    *number = 0;
    switch (*member & 7) {
    case 0: return take_varint(from, number);
    case 1: return take(from, 8, bytes) && (*number = little(bytes->ptr, 8), true);
    case 2: return take_varint(from, &n) && take(from, n, bytes);
    case 5: return take(from, 4, bytes) && (*number = little(bytes->ptr, 4), true);
    default: return false;
    }
}

static void read_value(ml_event *e, ml_str value) {
    uint64_t member, number;
    ml_str bytes;

    while (take_member(&value, &member, &bytes, &number)) {
        if (member == VALUE_TAG)
            e->tag = bytes;
        if (member == VALUE_NUMBER)
            memcpy(&e->value, bytes.ptr, sizeof e->value);
    }
}

static ml_event read_event(ml_str message) {
    ml_event e = { 0 };
    uint64_t member, number;
    ml_str bytes = { 0 }, value;

    while (take_member(&message, &member, &bytes, &number)) {
        if (member == EVENT_TIME)
            memcpy(&e.time_s, &number, sizeof e.time_s);
        if (member == EVENT_STEP)
            e.step = (int64_t)number;
        if (member == EVENT_SUMMARY && take_member(&bytes, &member, &value, &number) &&
            member == SUMMARY_VALUE)
            read_value(&e, value);
    }
    return e;
}

static bool take_record(ml_str *from, ml_str *out) {
    ml_str head, bytes, tail;

    if (!take(from, HEAD, &head) || little(head.ptr + 8, 4) != masked(head.ptr, 8))
        return false;
    if (!take(from, little(head.ptr, 8), &bytes) || !take(from, TAIL, &tail))
        return false;
    *out = bytes;
    return little(tail.ptr, 4) == masked(bytes.ptr, bytes.len);
}

ml_status ml_event_file_read(const char *path, void (*each)(void *ud, const ml_event *e),
                             void *ud, ml_err *err) {
    ml_file f;
    ml_str rest, record;
    ml_status st = ml_file_map(&f, path, err);

    if (st != ML_OK)
        return st;
    rest = f.bytes;
    while (take_record(&rest, &record)) {
        ml_event e = read_event(record);
        each(ud, &e);
    }
    ml_file_unmap(&f);
    return ML_OK;
}

/* ---- the file ---- */

typedef struct sieve {
    ml_text kept;
    bool (*keep)(void *ud, const ml_event *e);
    void *ud;
} sieve;

static void sift(void *ud, const ml_event *e) {
    sieve *s = ud;
    if (e->tag.len && s->keep(s->ud, e))
        add_event(&s->kept, e);
}

ml_status ml_event_file_open(ml_event_file *out, const char *path,
                             bool (*keep)(void *ud, const ml_event *e), void *ud,
                             ml_err *err) {
    sieve s = { .keep = keep, .ud = ud };
    ml_status st;

    *out = (ml_event_file){ 0 };
    add_version(&s.kept);
    if (keep)
        (void)ml_event_file_read(path, sift, &s, NULL); /* no file yet: nothing is kept */
    st = ml_file_replace(path, (ml_str){ s.kept.ptr, s.kept.len }, err);
    ml_text_release(&s.kept);
    if (st != ML_OK)
        return st;
    out->f = fopen(path, "ab");
    if (!out->f)
        return ml_fail(err, ML_EIO, "%s: cannot open: %s", path, strerror(errno));
    out->path = strdup(path);
    return ML_OK;
}

void ml_event_file_close(ml_event_file *f) {
    if (f->f)
        fclose(f->f);
    free(f->path);
    *f = (ml_event_file){ 0 };
}

void ml_event_file_add(ml_event_file *f, const ml_event *e) {
    ml_text t = { 0 };

    add_event(&t, e);
    fwrite(t.ptr, 1, t.len, f->f);
    ml_text_release(&t);
}

ml_status ml_event_file_flush(ml_event_file *f, ml_err *err) {
    if (fflush(f->f) != 0 || ferror(f->f))
        return ml_fail(err, ML_EIO, "%s: cannot write: is the disk full?", f->path);
    return ML_OK;
}
