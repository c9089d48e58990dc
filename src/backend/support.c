#include "backend/support.h"

#include <stdlib.h>
#include <string.h>

#include "base/oom.h"

enum { LIST = 'L', COMPLEMENT = 'C', BITMAP = 'B' };

static size_t varint_bytes(uint64_t x) {
    size_t n = 1;

    for (; x >= 128; x >>= 7)
        n++;
    return n;
}

static uint8_t *put_varint(uint8_t *p, uint64_t x) {
    for (; x >= 128; x >>= 7)
        *p++ = (uint8_t)(x | 128);
    *p++ = (uint8_t)x;
    return p;
}

/* False: the bytes end within the number, or it is above 2^63 - 1. */
static bool take_varint(const uint8_t **p, const uint8_t *end, int64_t *out) {
    uint64_t x = 0;

    for (int shift = 0; *p < end && shift < 63; shift += 7) {
        uint8_t byte = *(*p)++;
        x |= (uint64_t)(byte & 127) << shift;
        if (byte < 128) {
            *out = (int64_t)x;
            return true;
        }
    }
    return false;
}

static size_t bitmap_bytes(int64_t n_vocab) {
    return (size_t)(n_vocab + 7) / 8;
}

size_t ml_support_max(int64_t n_vocab) {
    return 1 + bitmap_bytes(n_vocab);
}

size_t ml_support_record_max(int64_t n_vocab) {
    return varint_bytes(ml_support_max(n_vocab)) + ml_support_max(n_vocab);
}

/* --- writing ---------------------------------------------------------------------- */

/* Bytes of both lists of ids. */
static void list_bytes(const int32_t *id, int64_t n, int64_t n_vocab, size_t *in,
                       size_t *out) {
    int64_t last = -1, last_out = -1;

    *in = *out = 0;
    for (int64_t i = 0; i <= n; i++) {
        int64_t to = i < n ? id[i] : n_vocab, gap = to - last - 1;
        if (i < n)
            *in += varint_bytes((uint64_t)gap);
        if (gap > 0) {
            *out += varint_bytes((uint64_t)(last - last_out)) + (size_t)(gap - 1);
            last_out = to - 1;
        }
        last = to;
    }
}

static uint8_t *put_list(uint8_t *p, const int32_t *id, int64_t n) {
    int64_t last = -1;

    for (int64_t i = 0; i < n; last = id[i++])
        p = put_varint(p, (uint64_t)(id[i] - last - 1));
    return p;
}

static uint8_t *put_complement(uint8_t *p, const int32_t *id, int64_t n, int64_t n_vocab) {
    int64_t last = -1;

    for (int64_t i = 0, x = 0; x < n_vocab; x++) {
        if (i < n && id[i] == x) {
            i++;
            continue;
        }
        p = put_varint(p, (uint64_t)(x - last - 1));
        last = x;
    }
    return p;
}

size_t ml_support_write(uint8_t *out, const int32_t *id, int64_t n, int64_t n_vocab) {
    size_t in, complement, bitmap = bitmap_bytes(n_vocab);
    uint8_t *p = out + 1;

    if (n == n_vocab)
        return 0;
    list_bytes(id, n, n_vocab, &in, &complement);
    if (in <= complement && in <= bitmap) {
        out[0] = LIST;
        p = put_list(p, id, n);
    } else if (complement <= bitmap) {
        out[0] = COMPLEMENT;
        p = put_complement(p, id, n, n_vocab);
    } else {
        out[0] = BITMAP;
        memset(p, 0, bitmap);
        for (int64_t i = 0; i < n; i++)
            p[id[i] / 8] |= (uint8_t)(1u << id[i] % 8);
        p += bitmap;
    }
    return (size_t)(p - out);
}

/* --- reading ---------------------------------------------------------------------- */

/* Reads the next id of a list. */
static void next_listed(ml_support_reader *r, int64_t last) {
    int64_t gap;

    r->listed =
        take_varint(&r->p, r->end, &gap) && gap < INT32_MAX ? last + 1 + gap : INT64_MAX;
}

ml_support_reader ml_support_read(ml_str support) {
    const uint8_t *p = (const uint8_t *)support.ptr;
    ml_support_reader r = { .form = COMPLEMENT, .listed = INT64_MAX };

    if (support.len == 0)
        return r;
    r.form = p[0];
    r.p = p + 1;
    r.end = p + support.len;
    if (r.form != BITMAP)
        next_listed(&r, -1);
    return r;
}

static bool bit_of(const ml_support_reader *r, int64_t column) {
    return column / 8 < r->end - r->p && r->p[column / 8] >> column % 8 & 1;
}

int64_t ml_support_next(ml_support_reader *r, uint32_t *mask, int64_t n) {
    int64_t end = r->column + n, found = 0;

    memset(mask, r->form == COMPLEMENT ? 0xff : 0, (size_t)(n + 31) / 32 * sizeof *mask);
    if (r->form == BITMAP)
        for (int64_t i = 0; i < n; i++)
            if (bit_of(r, r->column + i)) {
                mask[i / 32] |= 1u << i % 32;
                found++;
            }
    for (; r->form != BITMAP && r->listed < end; next_listed(r, r->listed)) {
        int64_t i = r->listed - r->column;
        mask[i / 32] ^= 1u << i % 32;
        found++;
    }
    r->column = end;
    return r->form == COMPLEMENT ? n - found : found;
}

int64_t ml_support_ids(int32_t *out, ml_str support, int64_t n_vocab) {
    ml_support_reader r = ml_support_read(support);
    int64_t n = 0;

    for (int64_t x = 0; x < n_vocab; x += 32) {
        int64_t left = n_vocab - x < 32 ? n_vocab - x : 32;
        uint32_t word;
        ml_support_next(&r, &word, left);
        for (int64_t i = 0; i < left; i++)
            if (word >> i & 1)
                out[n++] = (int32_t)(x + i);
    }
    return n;
}

/* --- records ---------------------------------------------------------------------- */

bool ml_support_take(ml_str *records, ml_str *support) {
    const uint8_t *p = (const uint8_t *)records->ptr, *end;
    int64_t n;

    if (!records->len)
        return false;
    end = p + records->len;
    if (!take_varint(&p, end, &n) || n > end - p)
        return false;
    *support = (ml_str){ (const char *)p, (size_t)n };
    *records = (ml_str){ (const char *)p + n, (size_t)(end - p - n) };
    return true;
}

size_t ml_support_record(uint8_t *support, size_t n) {
    size_t head = varint_bytes(n);

    memmove(support + head, support, n);
    put_varint(support, n);
    return head + n;
}

void ml_support_add(ml_text *records, ml_str support) {
    uint8_t len[10];
    size_t n = (size_t)(put_varint(len, support.len) - len);

    ml_text_add(records, (const char *)len, n);
    if (support.len)
        ml_text_add(records, support.ptr, support.len);
}

static int by_id(const void *a, const void *b) {
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

void ml_support_add_ids(ml_text *records, int32_t *id, int64_t n) {
    int64_t kept = 0;
    uint8_t *bytes;

    qsort(id, (size_t)n, sizeof *id, by_id);
    for (int64_t i = 0; i < n; i++)
        if (i == 0 || id[i] != id[i - 1])
            id[kept++] = id[i];
    bytes = ml_memory_grow(NULL, 1 + 5 * (size_t)kept, "a sampling mask");
    bytes[0] = LIST;
    ml_support_add(records, (ml_str){ (const char *)bytes,
                                      (size_t)(put_list(bytes + 1, id, kept) - bytes) });
    free(bytes);
}

ml_str ml_support_first(ml_str records, int32_t n) {
    ml_str left = records, support;

    while (n-- > 0 && ml_support_take(&left, &support))
        ;
    return (ml_str){ records.ptr, records.len - left.len };
}

/* Whether the bytes are a support of the vocabulary that has the token. */
static bool is_support_of(ml_str s, int32_t token, int64_t n_vocab) {
    ml_support_reader r = ml_support_read(s);
    int64_t last = -1;
    bool has = r.form != LIST;

    if (s.len == 0)
        return true;
    if (r.form == BITMAP)
        return s.len == ml_support_max(n_vocab) && bit_of(&r, token) &&
               (n_vocab % 8 == 0 || (uint8_t)s.ptr[s.len - 1] >> n_vocab % 8 == 0);
    if (r.form != LIST && r.form != COMPLEMENT)
        return false;
    for (; r.listed < n_vocab; next_listed(&r, last)) {
        last = r.listed;
        has = last == token ? r.form == LIST : has;
    }
    return has && r.listed == INT64_MAX && r.p == r.end && last >= 0;
}

ml_status ml_support_check(ml_str records, const int32_t *token, int32_t n, int64_t n_vocab,
                           ml_err *err) {
    for (int32_t i = 0; i < n; i++) {
        ml_str support;
        if (!ml_support_take(&records, &support))
            return ml_fail(err, ML_EFORMAT,
                           "the sampling masks end before that of token %d of %d", i, n);
        if (!is_support_of(support, token[i], n_vocab))
            return ml_fail(err, ML_EFORMAT,
                           "the sampling mask of token %d is not a set of ids below %lld "
                           "with the id %d of the token: was it drawn with another model?",
                           i, (long long)n_vocab, token[i]);
    }
    return records.len ? ml_fail(err, ML_EFORMAT,
                                 "there are more sampling masks than the %d tokens", n)
                       : ML_OK;
}
