#include "base/crc64.h"

/* Slicing-by-8: eight bytes per iteration; table k is the effect of a byte followed by k
 * more bytes.  The tables are rebuilt on each call, which costs as much as a few
 * kilobytes of data. */
typedef struct tables {
    uint64_t t[8][256];
} tables;

static void make_tables(tables *x) {
    for (int i = 0; i < 256; i++) {
        uint64_t c = (uint64_t)i;
        for (int bit = 0; bit < 8; bit++)
            c = c & 1 ? (c >> 1) ^ 0xC96C5795D7870F42u : c >> 1;
        x->t[0][i] = c;
    }
    for (int k = 1; k < 8; k++)
        for (int i = 0; i < 256; i++)
            x->t[k][i] = (x->t[k - 1][i] >> 8) ^ x->t[0][x->t[k - 1][i] & 255];
}

uint64_t ml_crc64(uint64_t crc, const void *bytes, size_t n) {
    const unsigned char *p = bytes;
    tables x;

    make_tables(&x);
    crc = ~crc;
    for (; n >= 8; n -= 8, p += 8) {
        uint64_t next = 0;
        for (int k = 0; k < 8; k++)
            next ^= x.t[7 - k][(p[k] ^ (crc >> 8 * k)) & 255];
        crc = next;
    }
    for (; n; n--, p++)
        crc = (crc >> 8) ^ x.t[0][(crc ^ *p) & 255];
    return ~crc;
}
