#include "io/torch_write.h"

#include <string.h>
#include <zlib.h>

#include "base/file.h"

/* --- opcodes of protocol 2 ---------------------------------------------------------- */

static void put(ml_text *to, const char *bytes, size_t n) {
    ml_text_add(to, bytes, n);
}

static void op(ml_text *to, char c) {
    put(to, &c, 1);
}

static void little(ml_text *to, uint64_t x, int n_byte) {
    for (int i = 0; i < n_byte; i++)
        op(to, (char)(x >> 8 * i));
}

void ml_pickle_begin(ml_text *to) {
    put(to, "\x80\x02", 2);
}

void ml_pickle_end(ml_text *to) {
    op(to, '.');
}

void ml_pickle_put_none(ml_text *to) {
    op(to, 'N');
}

void ml_pickle_put_bool(ml_text *to, bool x) {
    op(to, x ? '\x88' : '\x89');
}

void ml_pickle_put_int(ml_text *to, int64_t x) {
    if (x >= INT32_MIN && x <= INT32_MAX) {
        op(to, 'J');
        little(to, (uint64_t)x, 4);
    } else {
        put(to, "\x8a\x08", 2); /* LONG1 of 8 bytes */
        little(to, (uint64_t)x, 8);
    }
}

void ml_pickle_put_float(ml_text *to, double x) {
    uint64_t bits;

    memcpy(&bits, &x, sizeof bits);
    op(to, 'G');
    for (int i = 7; i >= 0; i--)
        op(to, (char)(bits >> 8 * i));
}

void ml_pickle_put_str(ml_text *to, ml_str s) {
    op(to, 'X');
    little(to, s.len, 4);
    put(to, s.ptr, s.len);
}

void ml_pickle_dict(ml_text *to) {
    put(to, "}(", 2);
}

void ml_pickle_dict_end(ml_text *to) {
    op(to, 'u');
}

void ml_pickle_list(ml_text *to) {
    put(to, "](", 2);
}

void ml_pickle_list_end(ml_text *to) {
    op(to, 'e');
}

/* --- values ------------------------------------------------------------------------- */

void ml_pickle_put_json(ml_text *to, const ml_json *v) {
    double f = 0;
    int64_t i;

    switch (v->type) {
    case ML_JSON_NULL: ml_pickle_put_none(to); break;
    case ML_JSON_TRUE: ml_pickle_put_bool(to, true); break;
    case ML_JSON_FALSE: ml_pickle_put_bool(to, false); break;
    case ML_JSON_STRING: ml_pickle_put_str(to, v->text); break;
    case ML_JSON_NUMBER:
        if (!memchr(v->text.ptr, '.', v->text.len) && ml_json_i64(v, &i))
            ml_pickle_put_int(to, i);
        else if (ml_json_f64(v, &f))
            ml_pickle_put_float(to, f);
        else
            ml_pickle_put_str(to, v->text);
        break;
    case ML_JSON_ARRAY:
        ml_pickle_list(to);
        for (const ml_json *e = v->child; e; e = e->next)
            ml_pickle_put_json(to, e);
        ml_pickle_list_end(to);
        break;
    case ML_JSON_OBJECT:
        ml_pickle_dict(to);
        for (const ml_json *e = v->child; e; e = e->next) {
            ml_pickle_put_str(to, e->key);
            ml_pickle_put_json(to, e);
        }
        ml_pickle_dict_end(to);
        break;
    }
}

#define TEXT(to, s) put(to, s, sizeof s - 1)

/* _codecs.encode(TEXT, "latin1"), which is how protocol 2 has bytes. */
static void put_bytes(ml_text *to, const unsigned char *b, size_t n) {
    size_t len = n;

    for (size_t i = 0; i < n; i++)
        len += b[i] > 127;
    TEXT(to, "c_codecs\nencode\nX");
    little(to, len, 4);
    for (size_t i = 0; i < n; i++)
        if (b[i] > 127) {
            op(to, (char)(0xc0 | b[i] >> 6));
            op(to, (char)(0x80 | (b[i] & 0x3f)));
        } else {
            op(to, (char)b[i]);
        }
    ml_pickle_put_str(to, ml_str_of("latin1"));
    TEXT(to, "\x86R");
}

/* numpy's own pickle: an empty array, then its state (version, shape, dtype, order,
 * bytes). */
void ml_pickle_put_rows(ml_text *to, const int32_t *row, int64_t n, int64_t width) {
    TEXT(to, "cnumpy.core.multiarray\n_reconstruct\n");
    TEXT(to, "cnumpy\nndarray\n(K\0tX\1\0\0\0b\x87R");
    TEXT(to, "(K\1");
    ml_pickle_put_int(to, n);
    ml_pickle_put_int(to, width);
    TEXT(to, "\x86" /* (n, width) */ "cnumpy\ndtype\nX\2\0\0\0i4\x89\x88\x87R");
    TEXT(to, "(K\3X\1\0\0\0<NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\0tb\x89");
    put_bytes(to, (const unsigned char *)row, (size_t)(n * width) * sizeof *row);
    TEXT(to, "tb");
}

/* --- the file: a zip archive without compression ------------------------------------- */

typedef struct member {
    const char *name;
    ml_str bytes;
    size_t at;
    uint32_t crc;
} member;

/* What the two headers of a member have in common: versions to sizes. */
static void put_member(ml_text *to, const member *m) {
    little(to, 0, 2);      /* flags */
    little(to, 0, 2);      /* stored */
    little(to, 0, 2);      /* time */
    little(to, 0x0021, 2); /* 1 January 1980: the same bytes for the same values */
    little(to, m->crc, 4);
    little(to, m->bytes.len, 4);
    little(to, m->bytes.len, 4);
    little(to, strlen(m->name), 2);
    little(to, 0, 2); /* extra fields */
}

static void put_local(ml_text *to, member *m) {
    m->at = to->len;
    m->crc = (uint32_t)crc32_z(0, (const unsigned char *)m->bytes.ptr, m->bytes.len);
    TEXT(to, "PK\3\4\24\0");
    put_member(to, m);
    ml_text_printf(to, "%s", m->name);
    put(to, m->bytes.ptr, m->bytes.len);
}

static void put_central(ml_text *to, const member *m) {
    TEXT(to, "PK\1\2\24\0\24\0");
    put_member(to, m);
    little(to, 0, 2); /* comment */
    little(to, 0, 2); /* disk */
    little(to, 0, 6); /* attributes */
    little(to, m->at, 4);
    ml_text_printf(to, "%s", m->name);
}

static void put_end(ml_text *to, size_t central, int n) {
    size_t size = to->len - central;

    TEXT(to, "PK\5\6\0\0\0\0");
    little(to, (uint64_t)n, 2);
    little(to, (uint64_t)n, 2);
    little(to, size, 4);
    little(to, central, 4);
    little(to, 0, 2); /* comment */
}

ml_status ml_torch_write(const char *path, ml_str pickle, ml_err *err) {
    member all[] = { { .name = "archive/data.pkl", .bytes = pickle },
                     { .name = "archive/byteorder", .bytes = ml_str_of("little") },
                     { .name = "archive/version", .bytes = ml_str_of("3\n") } };
    int n = sizeof all / sizeof *all;
    ml_text zip = { 0 };
    size_t central;
    ml_status st;

    if (pickle.len > (size_t)4000 << 20)
        return ml_fail(err, ML_EUNSUP,
                       "%s: %zu bytes are more than a zip file of torch holds here; record "
                       "to .jsonl.zst",
                       path, pickle.len);
    for (int i = 0; i < n; i++)
        put_local(&zip, &all[i]);
    central = zip.len;
    for (int i = 0; i < n; i++)
        put_central(&zip, &all[i]);
    put_end(&zip, central, n);
    st = ml_file_replace(path, (ml_str){ zip.ptr, zip.len }, err);
    ml_text_release(&zip);
    return st;
}
