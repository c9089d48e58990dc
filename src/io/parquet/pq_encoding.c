#include "io/parquet/pq_encoding.h"

#include <stdlib.h>
#include <string.h>

static bool varint(const uint8_t **p, const uint8_t *end, uint64_t *out) {
    *out = 0;
    for (int shift = 0; shift < 64 && *p < end; shift += 7) {
        uint8_t c = *(*p)++;
        *out |= (uint64_t)(c & 0x7f) << shift;
        if (c < 0x80)
            return true;
    }
    return false;
}

static bool zigzag(const uint8_t **p, const uint8_t *end, uint64_t *out) {
    bool ok = varint(p, end, out);
    *out = (*out >> 1) ^ (0 - (*out & 1));
    return ok;
}

/* Eight little-endian bytes; past the end they are 0. */
static uint64_t load64(const uint8_t *p, const uint8_t *end) {
    uint64_t v = 0;

    if (end - p >= 8) {
        memcpy(&v, p, 8);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
        v = __builtin_bswap64(v);
#endif
        return v;
    }
    for (int i = 0; p + i < end; i++)
        v |= (uint64_t)p[i] << (8 * i);
    return v;
}

/* The value of `width` bits, at most 64, at a bit offset. */
static uint64_t bits_at(const uint8_t *p, const uint8_t *end, uint64_t bit, int width) {
    const uint8_t *at = p + bit / 8;
    int shift = (int)(bit % 8);
    uint64_t v = load64(at, end) >> shift;

    if (shift + width > 64 && at + 8 < end)
        v |= (uint64_t)at[8] << (64 - shift);
    return width == 64 ? v : v & (((uint64_t)1 << width) - 1);
}

/* --- RLE and bit-packing ---------------------------------------------------------- */

typedef struct run {
    bool packed;
    uint32_t value;       /* of an RLE run */
    const uint8_t *bytes; /* of a bit-packed run */
    uint64_t n;
} run;

/* A bit-packed run at the end may be cut short after the last byte that is needed. */
static bool next_run(const uint8_t **p, const uint8_t *end, int width, uint64_t left,
                     run *r) {
    uint64_t head, bytes;

    if (!varint(p, end, &head))
        return false;
    r->packed = head & 1;
    r->bytes = *p;
    if (r->packed) {
        r->n = head >> 1 > left / 8 ? left : (head >> 1) * 8;
        bytes = head >> 1 > (uint64_t)(end - *p) ? (uint64_t)(end - *p) + 1
                                                 : (head >> 1) * (uint64_t)width;
        if (r->n * (uint64_t)width > (uint64_t)(end - *p) * 8)
            return false;
        *p += bytes < (uint64_t)(end - *p) ? bytes : (uint64_t)(end - *p);
        return true;
    }
    bytes = (uint64_t)(width + 7) / 8;
    if (bytes > (uint64_t)(end - *p))
        return false;
    r->n = head >> 1 < left ? head >> 1 : left;
    r->value = (uint32_t)load64(*p, *p + bytes);
    *p += bytes;
    return true;
}

bool ml_pq_hybrid_u8(const uint8_t **p, const uint8_t *end, int width, uint8_t *out,
                     int64_t n) {
    run r;

    if (width > 8)
        return false;
    for (int64_t at = 0; at < n; at += (int64_t)r.n) {
        if (!next_run(p, end, width, (uint64_t)(n - at), &r))
            return false;
        if (!r.packed)
            memset(out + at, (int)r.value, r.n);
        for (uint64_t i = 0; r.packed && i < r.n; i++)
            out[at + (int64_t)i] =
                (uint8_t)bits_at(r.bytes, end, i * (uint64_t)width, width);
    }
    return true;
}

bool ml_pq_hybrid_u32(const uint8_t **p, const uint8_t *end, int width, uint32_t *out,
                      int64_t n) {
    run r;

    if (width > 32)
        return false;
    for (int64_t at = 0; at < n; at += (int64_t)r.n) {
        if (!next_run(p, end, width, (uint64_t)(n - at), &r))
            return false;
        for (uint64_t i = 0; !r.packed && i < r.n; i++)
            out[at + (int64_t)i] = r.value;
        for (uint64_t i = 0; r.packed && i < r.n; i++)
            out[at + (int64_t)i] =
                (uint32_t)bits_at(r.bytes, end, i * (uint64_t)width, width);
    }
    return true;
}

bool ml_pq_bits(const uint8_t **p, const uint8_t *end, uint8_t *out, int64_t n) {
    if ((n + 7) / 8 > end - *p)
        return false;
    for (int64_t i = 0; i < n; i++)
        out[i] = (*p)[i / 8] >> (i % 8) & 1;
    *p += (n + 7) / 8;
    return true;
}

bool ml_pq_bit_packed(const uint8_t **p, const uint8_t *end, int width, uint8_t *out,
                      int64_t n) {
    if (width > 8 || (n * width + 7) / 8 > end - *p)
        return false;
    for (int64_t i = 0; i < n; i++) {
        unsigned v = 0;
        for (int64_t bit = i * width; bit < (i + 1) * width; bit++)
            v = v << 1 | ((*p)[bit / 8] >> (7 - bit % 8) & 1);
        out[i] = (uint8_t)v;
    }
    *p += (n * width + 7) / 8;
    return true;
}

/* --- deltas ----------------------------------------------------------------------- */

typedef struct delta_head {
    uint64_t block, n_mini, total, first;
} delta_head;

static bool read_delta_head(const uint8_t **p, const uint8_t *end, delta_head *h) {
    return varint(p, end, &h->block) && varint(p, end, &h->n_mini) &&
           varint(p, end, &h->total) && zigzag(p, end, &h->first) && h->n_mini &&
           h->block && h->block <= 1 << 24 && h->n_mini <= h->block &&
           h->block % h->n_mini == 0 && h->block / h->n_mini % 8 == 0;
}

/* One miniblock: adds up to n deltas to *last.  The bytes of values that are not needed may
 * be missing at the end. */
static bool read_mini(const uint8_t **p, const uint8_t *end, int width, uint64_t per_mini,
                      uint64_t min_delta, uint64_t *last, int64_t *out, size_t stride,
                      uint64_t n) {
    uint64_t have = (uint64_t)(end - *p), bytes = per_mini / 8 * (uint64_t)width;

    if (width > 64 || n * (uint64_t)width > have * 8)
        return false;
    for (uint64_t i = 0; i < n; i++) {
        *last += min_delta + bits_at(*p, end, i * (uint64_t)width, width);
        out[i * stride] = (int64_t)*last;
    }
    *p += bytes < have ? bytes : have;
    return true;
}

bool ml_pq_delta(const uint8_t **p, const uint8_t *end, int64_t *out, size_t stride,
                 int64_t n) {
    delta_head h;
    uint64_t last, left = (uint64_t)n - 1, min_delta;

    if (n == 0)
        return true;
    if (!read_delta_head(p, end, &h) || h.total != (uint64_t)n)
        return false;
    *out = (int64_t)h.first;
    last = h.first;
    while (left) {
        const uint8_t *width;
        if (!zigzag(p, end, &min_delta) || h.n_mini > (uint64_t)(end - *p))
            return false;
        width = *p;
        *p += h.n_mini;
        for (uint64_t m = 0; m < h.n_mini && left; m++) {
            uint64_t per = h.block / h.n_mini, k = left < per ? left : per;
            out += stride;
            if (!read_mini(p, end, width[m], per, min_delta, &last, out, stride, k))
                return false;
            out += (k - 1) * stride;
            left -= k;
        }
    }
    return true;
}

/* --- byte arrays -------------------------------------------------------------------- */

bool ml_pq_plain_bytes(const uint8_t **p, const uint8_t *end, ml_str *out, int64_t n) {
    const uint8_t *at = *p;

    for (int64_t i = 0; i < n; i++) {
        uint32_t len;
        if (end - at < 4)
            return false;
        len = (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 |
              (uint32_t)at[3] << 24;
        at += 4;
        if (len > (size_t)(end - at))
            return false;
        out[i] = (ml_str){ (const char *)at, len };
        at += len;
    }
    *p = at;
    return true;
}

/* The lengths are decoded in place. */
bool ml_pq_delta_length(const uint8_t **p, const uint8_t *end, ml_str *out, int64_t n) {
    _Static_assert(sizeof *out == 2 * sizeof(int64_t), "pointer and length");

    if (!ml_pq_delta(p, end, (int64_t *)(void *)&out->len, 2, n))
        return false;
    for (int64_t i = 0; i < n; i++) {
        out[i].ptr = (const char *)*p;
        if (out[i].len > (size_t)(end - *p))
            return false;
        *p += out[i].len;
    }
    return true;
}

static bool sum_lengths(const int64_t *prefix, const ml_str *suffix, int64_t n,
                        size_t *total, size_t max) {
    size_t before = 0;

    *total = 0;
    for (int64_t i = 0; i < n; i++) {
        if (prefix[i] < 0 || (uint64_t)prefix[i] > before)
            return false;
        before = (size_t)prefix[i] + suffix[i].len;
        if (before > max - *total)
            return false;
        *total += before;
    }
    return true;
}

bool ml_pq_delta_bytes(const uint8_t **p, const uint8_t *end, ml_str *out, int64_t n,
                       char **mem, size_t *mem_len, size_t max) {
    int64_t *prefix = calloc((size_t)n + 1, sizeof *prefix);
    const char *before = "";
    char *to = NULL;
    bool ok = prefix && ml_pq_delta(p, end, prefix, 1, n) &&
              ml_pq_delta_length(p, end, out, n) &&
              sum_lengths(prefix, out, n, mem_len, max);

    *mem = ok ? to = malloc(*mem_len + 1) : NULL;
    for (int64_t i = 0; to && i < n; i++) {
        size_t k = (size_t)prefix[i];
        memcpy(to, before, k);
        memcpy(to + k, out[i].ptr, out[i].len);
        out[i] = (ml_str){ to, k + out[i].len };
        before = to;
        to += out[i].len;
    }
    free(prefix);
    return *mem != NULL;
}

bool ml_pq_stream_split(const uint8_t **p, const uint8_t *end, int32_t width, uint8_t *out,
                        int64_t n) {
    if (width > 0 && n > (end - *p) / width)
        return false;
    for (int32_t k = 0; k < width; k++)
        for (int64_t i = 0; i < n; i++)
            out[i * width + k] = (*p)[k * n + i];
    *p += n * width;
    return true;
}
