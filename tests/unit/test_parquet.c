/* The parts of the parquet reader: Thrift, encodings, levels, and what it says of files that
 * are damaged.  Files are written here, page by page. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "io/parquet/parquet.h"
#include "io/parquet/pq_codec.h"
#include "io/parquet/pq_encoding.h"
#include "io/parquet/pq_value.h"
#include "io/parquet/thrift.h"
#include "tests/support/scratch.h"
#include "tests/support/test.h"

/* --- Thrift, written and read ---------------------------------------------------------- */

typedef struct writer {
    ml_text t;
    int16_t last[32]; /* field ids, by depth */
    int depth;
} writer;

static void put_byte(writer *w, int c) {
    char b = (char)c;
    ml_text_add(&w->t, &b, 1);
}

static void put_varint(writer *w, uint64_t v) {
    for (; v > 127; v >>= 7)
        put_byte(w, (int)(v & 127) | 128);
    put_byte(w, (int)v);
}

static void put_field(writer *w, int16_t id, int type) {
    put_byte(w, (id - w->last[w->depth]) << 4 | type);
    w->last[w->depth] = id;
}

static void put_zigzag(writer *w, int64_t v) {
    put_varint(w, ((uint64_t)v << 1) ^ (uint64_t)(v >> 63));
}

static void put_i32(writer *w, int16_t id, int64_t v) {
    put_field(w, id, ML_THRIFT_I32);
    put_zigzag(w, v);
}

static void put_i64(writer *w, int16_t id, int64_t v) {
    put_field(w, id, ML_THRIFT_I64);
    put_zigzag(w, v);
}

static void put_string(writer *w, int16_t id, const char *s) {
    put_field(w, id, ML_THRIFT_BINARY);
    put_varint(w, strlen(s));
    ml_text_add(&w->t, s, strlen(s));
}

static void begin(writer *w) { /* a struct, as a list's element */
    w->last[++w->depth] = 0;
}

static void begin_field(writer *w, int16_t id) {
    put_field(w, id, ML_THRIFT_STRUCT);
    begin(w);
}

static void end(writer *w) {
    put_byte(w, 0);
    w->depth--;
}

static void put_list(writer *w, int16_t id, int n) {
    put_field(w, id, ML_THRIFT_LIST);
    put_byte(w, (n < 15 ? n : 15) << 4 | ML_THRIFT_STRUCT);
    if (n >= 15)
        put_varint(w, (uint64_t)n);
}

static ml_thrift reader_of(const void *bytes, size_t n, ml_err *err) {
    return (ml_thrift){ .p = bytes,
                        .end = (const unsigned char *)bytes + n,
                        .file = bytes,
                        .what = "test",
                        .type = ML_THRIFT_STRUCT,
                        .err = err };
}

static void thrift_values(void) {
    writer w = { 0 };
    ml_err err = { 0 };
    ml_thrift t;
    int n = 0;

    begin(&w);
    put_i32(&w, 1, -5);
    put_i64(&w, 2, INT64_MIN);
    put_field(&w, 4, ML_THRIFT_TRUE);
    put_string(&w, 5, "text");
    put_field(&w, 6, ML_THRIFT_MAP); /* skipped: {1: true, 2: true} */
    put_varint(&w, 2);
    put_byte(&w, ML_THRIFT_I8 << 4 | ML_THRIFT_TRUE);
    ml_text_add(&w.t, "\1\1\2\1", 4);
    put_field(&w, 7, ML_THRIFT_F64);
    ml_text_add(&w.t, "12345678", 8);
    put_list(&w, 9, 20);
    for (int i = 0; i < 20; i++) {
        begin(&w);
        put_i32(&w, 1, i);
        end(&w);
    }
    put_byte(&w, ML_THRIFT_I16); /* an id that is not a small step */
    put_zigzag(&w, 300);
    put_zigzag(&w, 7);
    end(&w);
    t = reader_of(w.t.ptr, w.t.len, &err);
    ml_thrift_struct(&t);
    for (int16_t id = 0; ml_thrift_next(&t, &id); n++)
        switch (id) {
        case 1: CHECK(ml_thrift_i32(&t) == -5); break;
        case 2: CHECK(ml_thrift_i64(&t) == INT64_MIN); break;
        case 4: CHECK(ml_thrift_bool(&t)); break;
        case 5: CHECK(ml_str_is(ml_thrift_binary(&t), "text")); break;
        case 300: CHECK(ml_thrift_i64(&t) == 7); break;
        default: ml_thrift_skip(&t);
        }
    CHECK(t.st == ML_OK && n == 8 && t.p == t.end);
    for (size_t k = 0; k < w.t.len; k++) { /* every truncation is an error, none a crash */
        t = reader_of(w.t.ptr, k, &err);
        ml_thrift_skip(&t);
        CHECK(t.st == ML_EFORMAT);
        CHECK_HAS(err.msg, "test: at byte ");
    }
    ml_text_release(&w.t);
}

static void thrift_refuses(void) {
    static const struct {
        const char *bytes, *says;
    } cases[] = {
        { "\x19\xfc\xff\xff\xff\xff\x0f", "a list has 4294967295 elements, but only" },
        { "\x18\xff\x01", "a value has 255 bytes, but only" },
        { "\x1e", "unknown Thrift type 14" },
        { "\x10", "the field header 0x10 has no type" },
        { "\x16\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "more than 64 bits" },
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ml_err err = { 0 };
        ml_thrift t = reader_of(cases[i].bytes, strlen(cases[i].bytes), &err);
        ml_thrift_skip(&t);
        CHECK(t.st == ML_EFORMAT);
        CHECK_HAS(err.msg, cases[i].says);
    }
}

static void thrift_depth(void) {
    char deep[1000];
    ml_err err = { 0 };
    ml_thrift t;

    memset(deep, 0x1c, sizeof deep); /* a struct in a struct in ... */
    t = reader_of(deep, sizeof deep, &err);
    ml_thrift_skip(&t);
    CHECK_HAS(err.msg, "nested more than 64 deep");
    memset(deep, 0x19, sizeof deep); /* a list of lists of ... */
    t = reader_of(deep, sizeof deep, &err);
    ml_thrift_skip(&t);
    CHECK_HAS(err.msg, "nested more than 64 deep");
}

/* --- encodings --------------------------------------------------------------------------- */

static void hybrid_runs(void) {
    /* The specification's example of bit-packing: 0 to 7 in three bits. */
    static const char packed[] = "\x03\x88\xc6\xfa", mixed[] = "\x08\x05\x03\x88\xc6\xfa";
    const uint8_t *p = (const uint8_t *)packed;
    uint8_t narrow[12];
    uint32_t wide[12];

    CHECK(ml_pq_hybrid_u8(&p, p + 4, 3, narrow, 8));
    for (int i = 0; i < 8; i++)
        CHECK(narrow[i] == i);
    p = (const uint8_t *)mixed;
    CHECK(ml_pq_hybrid_u32(&p, p + 6, 3, wide, 12));
    for (int i = 0; i < 12; i++)
        CHECK(wide[i] == (uint32_t)(i < 4 ? 5 : i - 4));
    p = (const uint8_t *)mixed;
    CHECK(!ml_pq_hybrid_u32(&p, p + 5, 3, wide, 12));
    p = (const uint8_t *)mixed;
    CHECK(ml_pq_hybrid_u32(&p, p + 5, 3, wide, 9)); /* padding may be missing */
    p = (const uint8_t *)"\x04\x34\x12";
    CHECK(ml_pq_hybrid_u32(&p, p + 3, 16, wide, 2) && wide[1] == 0x1234);
    p = (const uint8_t *)"\x00\x00\x00";
    CHECK(
        !ml_pq_hybrid_u8(&p, p + 2, 1, narrow, 1)); /* runs of nothing end with the bytes */
}

static void old_bit_packing(void) {
    const uint8_t *p = (const uint8_t *)"\x05\x39\x77"; /* 0 to 7 from the high end */
    uint8_t out[8];

    CHECK(ml_pq_bit_packed(&p, p + 3, 3, out, 8));
    for (int i = 0; i < 8; i++)
        CHECK(out[i] == i);
    p = (const uint8_t *)"\x05\x39";
    CHECK(!ml_pq_bit_packed(&p, p + 2, 3, out, 8));
}

/* The examples of the specification: 1 to 5, and 7, 5, 3, 1, 2, 3, 4, 5. */
static void deltas(void) {
    static const char first[] = "\x80\x01\x04\x05\x02\x02\x00\x00\x00\x00";
    static const char second[] = "\x80\x01\x04\x08\x0e\x03\x02\x00\x00\x00"
                                 "\xc0\x3f\0\0\0\0\0\0";
    static const int want[] = { 7, 5, 3, 1, 2, 3, 4, 5 };
    const uint8_t *p = (const uint8_t *)first;
    int64_t out[16];

    CHECK(ml_pq_delta(&p, p + sizeof first - 1, out, 2, 5));
    for (int i = 0; i < 5; i++)
        CHECK(out[2 * i] == i + 1);
    p = (const uint8_t *)second;
    CHECK(ml_pq_delta(&p, p + sizeof second - 1, out, 1, 8));
    for (int i = 0; i < 8; i++)
        CHECK(out[i] == want[i]);
    CHECK(p == (const uint8_t *)second + sizeof second - 1);
    for (size_t n = 0; n < 12; n++) { /* 14 bits are 2 bytes */
        p = (const uint8_t *)second;
        CHECK(!ml_pq_delta(&p, p + n, out, 1, 8));
    }
    p = (const uint8_t *)second;
    CHECK(!ml_pq_delta(&p, p + sizeof second - 1, out, 1, 9));
}

/* Differences of 64 bits that wrap around. */
static void wide_deltas(void) {
    writer w = { 0 };
    const uint8_t *p;
    int64_t out[3];

    put_varint(&w, 128);
    put_varint(&w, 1);
    put_varint(&w, 3);
    put_zigzag(&w, INT64_MAX);
    put_zigzag(&w, INT64_MIN);
    put_byte(&w, 64);
    /* INT64_MAX + INT64_MIN + x = INT64_MIN; then INT64_MIN + INT64_MIN + x = -1. */
    ml_text_add(&w.t, "\1\0\0\0\0\0\0\x80", 8);
    ml_text_add(&w.t, "\xff\xff\xff\xff\xff\xff\xff\xff", 8);
    p = (const uint8_t *)w.t.ptr;
    CHECK(ml_pq_delta(&p, p + w.t.len, out, 1, 3));
    CHECK(out[0] == INT64_MAX && out[1] == INT64_MIN && out[2] == -1);
    ml_text_release(&w.t);
}

/* One miniblock of 128 differences in 64 bits. */
static void put_deltas(writer *w, const int64_t *v, int n) {
    put_varint(w, 128);
    put_varint(w, 1);
    put_varint(w, (uint64_t)n);
    put_zigzag(w, v[0]);
    put_zigzag(w, 0);
    put_byte(w, 64);
    for (int i = 1; i < 129; i++) {
        int64_t d = i < n ? v[i] - v[i - 1] : 0;
        ml_text_add(&w->t, (const char *)&d, sizeof d);
    }
}

static void byte_arrays(void) {
    static const char plain[] = "\2\0\0\0ab\0\0\0\0\1\0\0\0c";
    const uint8_t *p = (const uint8_t *)plain;
    writer w = { 0 };
    ml_str v[3];

    CHECK(ml_pq_plain_bytes(&p, p + sizeof plain - 1, v, 3));
    CHECK(ml_str_is(v[0], "ab") && ml_str_is(v[1], "") && ml_str_is(v[2], "c"));
    p = (const uint8_t *)plain;
    CHECK(!ml_pq_plain_bytes(&p, p + sizeof plain - 2, v, 3));
    put_deltas(&w, (const int64_t[]){ 5, 0, 4 }, 3);
    ml_text_add(&w.t, "Helloaxis", 9);
    p = (const uint8_t *)w.t.ptr;
    CHECK(ml_pq_delta_length(&p, p + w.t.len, v, 3));
    CHECK(ml_str_is(v[0], "Hello") && ml_str_is(v[1], "") && ml_str_is(v[2], "axis"));
    p = (const uint8_t *)w.t.ptr;
    CHECK(!ml_pq_delta_length(&p, p + w.t.len - 1, v, 3));
    ml_text_release(&w.t);
}

/* The specification's example: axis, axle, babble, babyhood. */
static void prefixed_arrays(void) {
    static const char *const want[] = { "axis", "axle", "babble", "babyhood" };
    static const int64_t suffix[] = { 4, 2, 6, 5 };
    int64_t prefix[] = { 0, 2, 0, 3 };
    char *mem = NULL;
    size_t n = 0;
    ml_str v[4];

    for (int bad = 0; bad < 3; bad++) {
        writer w = { 0 };
        const uint8_t *p;
        bool ok;
        prefix[1] = bad == 1 ? 5 : 2; /* longer than the text before */
        put_deltas(&w, prefix, 4);
        put_deltas(&w, suffix, 4);
        ml_text_add(&w.t, "axislebabbleyhood", 17);
        p = (const uint8_t *)w.t.ptr;
        ok = ml_pq_delta_bytes(&p, p + w.t.len, v, 4, &mem, &n, bad == 2 ? 21 : 22);
        CHECK(ok == (bad == 0));
        for (int i = 0; ok && i < 4; i++)
            CHECK(ml_str_is(v[i], want[i]));
        free(mem);
        ml_text_release(&w.t);
    }
}

static void stream_split(void) {
    const uint8_t *p = (const uint8_t *)"adgbehcfi";
    uint8_t out[9];

    CHECK(ml_pq_stream_split(&p, p + 9, 3, out, 3));
    CHECK(memcmp(out, "abcdefghi", 9) == 0);
    p = (const uint8_t *)"adgbehcf";
    CHECK(!ml_pq_stream_split(&p, p + 8, 3, out, 3));
}

static void codec_limits(void) {
    CHECK(ml_pq_codec_can_hold(ML_PQ_UNCOMPRESSED, 5, 5));
    CHECK(!ml_pq_codec_can_hold(ML_PQ_UNCOMPRESSED, 6, 5));
    CHECK(ml_pq_codec_can_hold(ML_PQ_SNAPPY, 1000, 50));
    CHECK(!ml_pq_codec_can_hold(ML_PQ_SNAPPY, 1 << 20, 50));
    CHECK(!ml_pq_codec_can_hold(ML_PQ_ZSTD, 1 << 30, 50));
    CHECK(!ml_pq_codec_can_hold(ML_PQ_LZO, 1, 1) && !ml_pq_codec_can_hold(99, 1, 1));
}

/* Hadoop's LZ4 blocks, and a bare block under the same name: 5 literals each. */
static void lz4_of_hadoop(void) {
    static const char framed[] = "\0\0\0\5\0\0\0\6\x50Hello";
    char out[10];
    ml_err err;

    CHECK(!ml_pq_unpack(ML_PQ_LZ4_HADOOP, NULL, out, 5, (ml_str){ framed, 14 }, &err));
    CHECK(memcmp(out, "Hello", 5) == 0);
    CHECK(!ml_pq_unpack(ML_PQ_LZ4_HADOOP, NULL, out, 5, (ml_str){ framed + 8, 6 }, &err));
    CHECK(ml_pq_unpack(ML_PQ_LZ4_RAW, NULL, out, 6, (ml_str){ framed + 8, 6 }, &err) ==
          ML_EFORMAT);
    CHECK_HAS(err.msg, "the page has 5 bytes after decompression; its header says 6");
}

/* --- values ------------------------------------------------------------------------------ */

static void spells(ml_pq_node leaf, const char *bytes, size_t n, const char *want) {
    ml_text t = { 0 };

    CHECK(ml_pq_value_put(&t, &leaf, (ml_str){ bytes, n }));
    if (strcmp(t.ptr, want) != 0)
        ml_test_fail(__FILE__, __LINE__, "%s, not %s", t.ptr, want);
    ml_text_release(&t);
}

static void dates(void) {
    static const struct {
        int32_t day;
        const char *text;
    } cases[] = { { 0, "\"1970-01-01\"" },       { -1, "\"1969-12-31\"" },
                  { 11016, "\"2000-02-29\"" },   { 2932896, "\"9999-12-31\"" },
                  { -719162, "\"0001-01-01\"" }, { -719163, "\"0000-12-31\"" } };
    ml_pq_node date = { .physical = ML_PQ_INT32, .logical = ML_PQ_DATE, .width = 4 };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        spells(date, (const char *)&cases[i].day, 4, cases[i].text);
}

/* As str(decimal.Decimal(...)). */
static void decimals(void) {
    ml_pq_node d = { .physical = ML_PQ_FIXED, .logical = ML_PQ_DECIMAL, .scale = 2 };
    ml_pq_node i = { .physical = ML_PQ_INT32, .logical = ML_PQ_DECIMAL, .scale = 3 };
    char big[32];

    spells(d, "\x01\x02", 2, "\"2.58\"");
    spells(d, "\xff", 1, "\"-0.01\"");
    spells(d, "\x80", 1, "\"-1.28\"");
    spells(d, "\0\0", 2, "\"0.00\"");
    spells(i, "\x18\xfc\xff\xff", 4, "\"-1.000\"");
    i.scale = 0;
    spells(i, "\x05\0\0\0", 4, "\"5\"");
    i.scale = 10;
    spells(i, "\x01\0\0\0", 4, "\"1E-10\"");
    spells(i, "\x0c\0\0\0", 4, "\"1.2E-9\"");
    i.scale = -3;
    spells(i, "\x0c\0\0\0", 4, "\"1.2E+4\"");
    memset(big, 0xff, sizeof big);
    big[0] = 0x7f;
    d.scale = 0;
    spells(d, big, sizeof big,
           "\"578960446186580977117854925043439539266349923328202820197287920039565648199"
           "67\"");
}

static void other_values(void) {
    ml_pq_node n = { .physical = ML_PQ_INT96, .width = 12 };
    double d = 1e22;
    float f = 0.1f;

    /* 2020-01-01 and one nanosecond: Julian day 2458850. */
    spells(n, "\1\0\0\0\0\0\0\0\xe2\x84\x25\0", 12, "1577836800000000001");
    n = (ml_pq_node){ .physical = ML_PQ_FIXED, .logical = ML_PQ_UUID, .width = 16 };
    spells(n, "\0\x11\x22\x33\x44\x55\x66\x77\x88\x99\xaa\xbb\xcc\xdd\xee\xff", 16,
           "\"00112233-4455-6677-8899-aabbccddeeff\"");
    n = (ml_pq_node){ .physical = ML_PQ_FIXED, .logical = ML_PQ_FLOAT16, .width = 2 };
    spells(n, "\x01\0", 2, "5.960464477539063e-08");
    spells(n, "\0\xc0", 2, "-2.0");
    spells(n, "\0\xfc", 2, "\"-inf\"");
    spells(n, "\0\x7e", 2, "\"nan\"");
    n = (ml_pq_node){ .physical = ML_PQ_FLOAT, .width = 4 };
    spells(n, (const char *)&f, 4, "0.10000000149011612");
    n = (ml_pq_node){ .physical = ML_PQ_DOUBLE, .width = 8 };
    spells(n, (const char *)&d, 8, "1e+22");
    n = (ml_pq_node){ .physical = ML_PQ_INT64, .logical = ML_PQ_UNSIGNED, .width = 8 };
    spells(n, "\xff\xff\xff\xff\xff\xff\xff\xff", 8, "18446744073709551615");
    n = (ml_pq_node){ .physical = ML_PQ_INT64, .width = 8 };
    spells(n, "\0\0\0\0\0\0\0\x80", 8, "-9223372036854775808");
    n = (ml_pq_node){ .physical = ML_PQ_BYTE_ARRAY };
    spells(n, "\xff\0", 2, "{\"b64\": \"/wA=\"}");
}

/* --- files ------------------------------------------------------------------------------- */

enum { REQUIRED, OPTIONAL, REPEATED };
enum { NONE = -1, MAP = 1, LIST = 3 };

typedef struct schema_row {
    const char *name;
    int repetition, n_child, converted;
} schema_row;

typedef struct chunk {
    int64_t offset, n_entry;
    int codec;
} chunk;

typedef struct file {
    writer w;
    chunk chunk[4];
    int n_chunk;
    uint32_t crc; /* of the next page; 0: none */
} file;

/* Levels as runs of one, after their length. */
static void put_levels(ml_text *t, const char *digits) {
    uint32_t n = (uint32_t)strlen(digits) * 2;

    ml_text_add(t, (const char *)&n, 4);
    for (; *digits; digits++) {
        ml_text_add(t, "\2", 1);
        ml_text_add(t, &(char){ (char)(*digits - '0') }, 1);
    }
}

static void start_chunk(file *f) {
    if (!f->w.t.len)
        ml_text_add(&f->w.t, "PAR1", 4);
    f->chunk[f->n_chunk++] = (chunk){ .offset = (int64_t)f->w.t.len };
}

/* A page of version 1 with 32-bit integers; NULL for levels that the column does not have. */
static void put_page(file *f, const char *rep, const char *def, int n_value, int first) {
    writer *w = &f->w;
    ml_text body = { 0 };
    size_t n = rep ? strlen(rep) : def ? strlen(def) : (size_t)n_value;

    if (rep)
        put_levels(&body, rep);
    if (def)
        put_levels(&body, def);
    for (int32_t i = 0; i < n_value; i++) {
        int32_t v = first + i;
        ml_text_add(&body, (const char *)&v, 4);
    }
    begin(w);
    put_i32(w, 1, ML_PQ_PAGE_DATA);
    put_i32(w, 2, (int64_t)body.len);
    put_i32(w, 3, (int64_t)body.len);
    if (f->crc)
        put_i32(w, 4, (int32_t)f->crc);
    begin_field(w, 5);
    put_i32(w, 1, (int64_t)n);
    put_i32(w, 2, ML_PQ_ENC_PLAIN);
    put_i32(w, 3, ML_PQ_ENC_RLE);
    put_i32(w, 4, ML_PQ_ENC_RLE);
    end(w);
    end(w);
    ml_text_add(&w->t, body.ptr ? body.ptr : "", body.len);
    f->chunk[f->n_chunk - 1].n_entry += (int64_t)n;
    ml_text_release(&body);
}

static void put_schema(writer *w, const schema_row *row, int n) {
    put_list(w, 2, n);
    for (int i = 0; i < n; i++) {
        begin(w);
        if (!row[i].n_child)
            put_i32(w, 1, ML_PQ_INT32);
        put_i32(w, 3, row[i].repetition);
        put_string(w, 4, row[i].name);
        if (row[i].n_child)
            put_i32(w, 5, row[i].n_child);
        if (row[i].converted != NONE)
            put_i32(w, 6, row[i].converted);
        end(w);
    }
}

/* The footer; then the file is written. */
static const char *finish(file *f, const schema_row *row, int n, int64_t n_row) {
    const char *path = ml_test_path("x.parquet");
    writer *w = &f->w;
    size_t at = w->t.len;
    uint32_t footer;
    ml_err err;

    begin(w);
    put_i32(w, 1, 2);
    put_schema(w, row, n);
    put_i64(w, 3, n_row);
    put_list(w, 4, 1);
    begin(w);
    put_list(w, 1, f->n_chunk);
    for (int i = 0; i < f->n_chunk; i++) {
        begin(w);
        begin_field(w, 3);
        put_i32(w, 1, ML_PQ_INT32);
        put_i32(w, 4, f->chunk[i].codec);
        put_i64(w, 5, f->chunk[i].n_entry);
        put_i64(w, 9, f->chunk[i].offset);
        end(w);
        end(w);
    }
    put_i64(w, 3, n_row);
    end(w);
    end(w);
    footer = (uint32_t)(w->t.len - at);
    ml_text_add(&w->t, (const char *)&footer, 4);
    ml_text_add(&w->t, "PAR1", 4);
    if (ml_file_replace(path, (ml_str){ w->t.ptr, w->t.len }, &err))
        ml_test_fail(__FILE__, __LINE__, "%s", err.msg);
    ml_text_release(&w->t);
    return path;
}

/* All rows, one per line, or the message of the first error. */
static ml_status read_all(const char *path, ml_text *out) {
    ml_pq_cache cache;
    ml_parquet *f = NULL;
    ml_pq_reader *r = NULL;
    ml_err err = { 0 };
    ml_status st;

    ml_pq_cache_init(&cache, 0);
    st = ml_parquet_open(&f, path, &cache, &err);
    if (!st)
        r = ml_pq_reader_new(f);
    for (int64_t i = 0; !st && i < ml_parquet_n_row(f); i++) {
        st = ml_pq_read_row(r, i, out, &err);
        ml_text_add(out, "\n", 1);
    }
    if (st) {
        out->len = 0;
        ml_text_printf(out, "%s", err.msg);
    }
    ml_pq_reader_free(r);
    ml_parquet_close(f);
    ml_pq_cache_release(&cache);
    return st;
}

static void reads(const char *path, const char *want) {
    ml_text got = { 0 };

    read_all(path, &got);
    if (!got.ptr || strcmp(got.ptr, want) != 0)
        ml_test_fail(__FILE__, __LINE__, "%s, not %s", got.ptr, want);
    ml_text_release(&got);
}

static void refuses(const char *path, const char *why) {
    ml_text got = { 0 };

    CHECK(read_all(path, &got) != ML_OK);
    CHECK_HAS(got.ptr, "x.parquet: ");
    CHECK_HAS(got.ptr, why);
    ml_text_release(&got);
}

#define FINISH(f, schema, n_row)                                                           \
    finish(&(f), schema, (int)(sizeof(schema) / sizeof *(schema)), n_row)

static const schema_row three_levels[] = { { "root", REQUIRED, 1, NONE },
                                           { "a", OPTIONAL, 1, LIST },
                                           { "list", REPEATED, 1, NONE },
                                           { "element", OPTIONAL, 0, NONE } };

/* The first row begins on one page, continues on two more, and ends on the last one. */
static void spanning_rows(void) {
    file f = { 0 };

    start_chunk(&f);
    put_page(&f, "01", "33", 2, 1);
    put_page(&f, "1", "3", 1, 3);
    put_page(&f, "1000", "2103", 1, 4);
    reads(FINISH(f, three_levels, 4), "{\"a\": [1, 2, 3, null]}\n{\"a\": []}\n"
                                      "{\"a\": null}\n{\"a\": [4]}\n");
}

static void old_lists(void) {
    static const schema_row bare[] = { { "root", REQUIRED, 1, NONE },
                                       { "a", REPEATED, 0, NONE } };
    static const schema_row two_levels[] = { { "root", REQUIRED, 1, NONE },
                                             { "a", REQUIRED, 1, LIST },
                                             { "array", REPEATED, 0, NONE } };
    static const schema_row structs[] = { { "root", REQUIRED, 1, NONE },
                                          { "a", REQUIRED, 1, LIST },
                                          { "a_tuple", REPEATED, 1, NONE },
                                          { "x", REQUIRED, 0, NONE } };
    static const schema_row lists[] = { { "root", REQUIRED, 1, NONE },
                                        { "a", REQUIRED, 1, LIST },
                                        { "array", REPEATED, 1, LIST },
                                        { "array", REPEATED, 0, NONE } };
    file f[4] = { 0 };

    for (int i = 0; i < 3; i++) {
        start_chunk(&f[i]);
        put_page(&f[i], "010", "110", 2, 7);
    }
    reads(FINISH(f[0], bare, 2), "{\"a\": [7, 8]}\n{\"a\": []}\n");
    reads(FINISH(f[1], two_levels, 2), "{\"a\": [7, 8]}\n{\"a\": []}\n");
    reads(FINISH(f[2], structs, 2), "{\"a\": [{\"x\": 7}, {\"x\": 8}]}\n{\"a\": []}\n");
    start_chunk(&f[3]);
    put_page(&f[3], "0210", "2210", 2, 7);
    reads(FINISH(f[3], lists, 2), "{\"a\": [[7, 8], []]}\n{\"a\": []}\n");
}

static const schema_row map[] = { { "root", REQUIRED, 1, NONE },
                                  { "m", OPTIONAL, 2, MAP },
                                  { "key_value", REPEATED, 2, NONE },
                                  { "key", REQUIRED, 0, NONE },
                                  { "value", OPTIONAL, 0, NONE } };

static void maps(void) {
    schema_row row[5];
    file f = { 0 };

    memcpy(row, map, sizeof row);
    row[1].n_child = 1;
    start_chunk(&f);
    put_page(&f, "0100", "2210", 2, 1);
    start_chunk(&f);
    put_page(&f, "0100", "3210", 1, 5);
    reads(FINISH(f, row, 3), "{\"m\": [[1, 5], [2, null]]}\n{\"m\": []}\n{\"m\": null}\n");
}

/* Columns below one list must agree on its length. */
static void disagreement(void) {
    static const struct {
        const char *rep, *def;
        int n;
        const char *why;
    } cases[] = {
        { "000", "310", 1, "column m.key_value.value, row 1: its levels end before" },
        { "01100", "33310", 3,
          "column m.key_value.value, row 1: it has more entries than" },
        { "0100", "1110", 0, "column m.key_value.value, row 1: it has no value where" },
        { "0100", "3330", 3, "column m.key_value.value, row 2: it has a value where" },
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        schema_row row[5];
        file f = { 0 };
        memcpy(row, map, sizeof row);
        row[1].n_child = 1;
        row[4].repetition = i == 2 ? REQUIRED : OPTIONAL;
        start_chunk(&f);
        put_page(&f, "0100", "2210", 2, 1);
        start_chunk(&f);
        put_page(&f, cases[i].rep, cases[i].def, cases[i].n, 5);
        refuses(FINISH(f, row, 3), cases[i].why);
    }
}

static const schema_row flat[] = { { "root", REQUIRED, 1, NONE },
                                   { "a", OPTIONAL, 0, NONE } };

static void damaged_pages(void) {
    file f[8] = { 0 };

    for (int i = 0; i < 7; i++) {
        start_chunk(&f[i]);
        f[i].crc = i == 0 ? 12345 : 0;
        put_page(&f[i], NULL, i == 1 ? "1121" : "1101", i == 2 ? 2 : 3, 1);
    }
    refuses(FINISH(f[0], flat, 4), "page at byte 4: its checksum differs");
    refuses(FINISH(f[1], flat, 4), "page at byte 4: a level is larger than the schema");
    refuses(FINISH(f[2], flat, 4),
            "column a of row group 0: page at byte 4: its values are");
    f[3].chunk[0].n_entry = 5;
    refuses(FINISH(f[3], flat, 5), "column a of row group 0: at byte ");
    refuses(FINISH(f[4], flat, 3), "column a: a chunk has 4 values for 3 rows");
    f[5].chunk[0].codec = ML_PQ_LZO;
    refuses(FINISH(f[5], flat, 4), "the compression codec 3 is not supported");
    f[6].chunk[0].codec = ML_PQ_SNAPPY;
    refuses(FINISH(f[6], flat, 4), "are not valid SNAPPY data");
}

/* Page headers that claim more than there is. */
static void false_claims(void) {
    static const struct {
        int64_t stored, plain, n_entry;
        const char *why;
    } cases[] = {
        { 1 << 20, 1 << 20, 4, "a page has 1048576 bytes, but" },
        { 4, INT32_MAX, 4, "a page has 2147483647 uncompressed bytes; expected at most" },
        { 4, 4, INT32_MAX, "a page has 2147483647 values; expected at most 2^26" },
        { 4, 1 << 20, 4, "4 bytes of SNAPPY data cannot hold the 1048576 bytes" },
        { -1, 4, 4, "a page has -1 bytes" },
        { 4, 4, -1, "a page has -1 values" },
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        file f = { 0 };
        start_chunk(&f);
        f.chunk[0].codec = ML_PQ_SNAPPY;
        f.chunk[0].n_entry = 4;
        begin(&f.w);
        put_i32(&f.w, 1, ML_PQ_PAGE_DATA);
        put_i32(&f.w, 2, cases[i].plain);
        put_i32(&f.w, 3, cases[i].stored);
        begin_field(&f.w, 5);
        put_i32(&f.w, 1, cases[i].n_entry);
        end(&f.w);
        end(&f.w);
        ml_text_add(&f.w.t, "abcd", 4);
        refuses(FINISH(f, flat, 4), cases[i].why);
    }
}

static void damaged_files(void) {
    static const schema_row no_leaf[] = { { "root", REQUIRED, 2, NONE },
                                          { "a", OPTIONAL, 0, NONE } };
    static const char *const bad[] = { "",
                                       "PAR1",
                                       "PAR1....PARE",
                                       "abcdefghijklmnop",
                                       "PAR1\xff\xff\xff\x7fPAR1",
                                       "PAR1xxxxxxxxxxxx" };
    static const char *const why[] = { "is not a parquet file",
                                       "is not a parquet file",
                                       "the footer is encrypted",
                                       "is not a parquet file",
                                       "at byte 4: the footer has 2147483647 bytes",
                                       "the file is truncated" };
    const char *path = ml_test_path("x.parquet");
    file f = { 0 };
    ml_err err;

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        CHECK(!ml_file_replace(path, ml_str_of(bad[i]), &err));
        refuses(path, why[i]);
    }
    start_chunk(&f);
    put_page(&f, NULL, "1", 1, 1);
    refuses(FINISH(f, no_leaf, 1), "has 2 children, but 1 nodes follow");
}

/* A page that is not compressed is read in the mapped file, of which the budget counts it. */
static void mapped_pages_count(void) {
    static const schema_row numbers[] = { { "root", REQUIRED, 1, NONE },
                                          { "a", REQUIRED, 0, NONE } };
    enum { N = 5000 };
    file written = { 0 };
    ml_pq_cache cache;
    ml_parquet *f = NULL;
    ml_pq_reader *r;
    ml_text row = { 0 };

    start_chunk(&written);
    put_page(&written, NULL, NULL, N, 0);
    ml_pq_cache_init(&cache, (size_t)1 << 30);
    CHECK(ml_parquet_open(&f, FINISH(written, numbers, N), &cache, NULL) == ML_OK);
    r = ml_pq_reader_new(f);
    CHECK(ml_pq_read_row(r, N - 1, &row, NULL) == ML_OK);
    CHECK(cache.used >= N * sizeof(int32_t));
    ml_pq_reader_free(r);
    ml_parquet_close(f);
    CHECK(cache.used == 0);
    ml_pq_cache_release(&cache);
    ml_text_release(&row);
}

static const ml_test tests[] = {
    { "pages of the mapped file count in the budget of pages", mapped_pages_count },
    { "the Thrift reader returns written values and skips others", thrift_values },
    { "the Thrift reader refuses what is too long or unknown", thrift_refuses },
    { "the Thrift reader limits how deep values are nested", thrift_depth },
    { "runs and bit-packed groups decode", hybrid_runs },
    { "levels packed from the high end decode", old_bit_packing },
    { "DELTA_BINARY_PACKED decodes the examples of the specification", deltas },
    { "differences of 64 bits wrap around", wide_deltas },
    { "byte arrays decode from PLAIN and DELTA_LENGTH_BYTE_ARRAY", byte_arrays },
    { "byte arrays decode from DELTA_BYTE_ARRAY", prefixed_arrays },
    { "BYTE_STREAM_SPLIT decodes", stream_split },
    { "a page cannot claim more than its codec can hold", codec_limits },
    { "LZ4 blocks with and without Hadoop's lengths decode", lz4_of_hadoop },
    { "parquet dates have the calendar's spelling", dates },
    { "parquet decimals have Python's spelling", decimals },
    { "other parquet values have the documented spelling", other_values },
    { "a row that spans pages is assembled", spanning_rows },
    { "lists of older writers are lists", old_lists },
    { "maps are lists of pairs", maps },
    { "columns that disagree on a list's length are refused", disagreement },
    { "damaged pages are refused with file, column and offset", damaged_pages },
    { "page headers that claim too much are refused", false_claims },
    { "damaged parquet files are refused with a reason", damaged_files },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
