#include "base/utf8.h"

#include <string.h>

int ml_utf8_look(const char *text, size_t n) {
    const unsigned char *p = (const unsigned char *)text;
    int want = p[0] < 0xe0 ? 2 : p[0] < 0xf0 ? 3 : 4;
    unsigned low = 0x80, high = 0xbf; /* bounds of the second byte */

    if (p[0] < 0x80)
        return 1;
    if (p[0] < 0xc2 || p[0] > 0xf4)
        return -1;
    if (p[0] == 0xe0)
        low = 0xa0;
    else if (p[0] == 0xed)
        high = 0x9f;
    else if (p[0] == 0xf0)
        low = 0x90;
    else if (p[0] == 0xf4)
        high = 0x8f;
    for (int i = 1; i < want; i++) {
        if ((size_t)i >= n)
            return 0;
        if (p[i] < low || p[i] > high)
            return -i;
        low = 0x80;
        high = 0xbf;
    }
    return want;
}

size_t ml_utf8_valid(ml_str s) {
    size_t i = 0;

    while (i < s.len) {
        uint64_t word;
        int k;
        for (; s.len - i >= sizeof word; i += sizeof word) { /* most text is ASCII */
            memcpy(&word, s.ptr + i, sizeof word);
            if (word & 0x8080808080808080u)
                break;
        }
        while (i < s.len && !((unsigned char)s.ptr[i] & 0x80))
            i++;
        if (i == s.len)
            break;
        k = ml_utf8_look(s.ptr + i, s.len - i);
        if (k < 1)
            return i;
        i += (size_t)k;
    }
    return i;
}

ml_str ml_utf8_cut(ml_str s, size_t max) {
    size_t begin;

    if (s.len <= max)
        return s;
    for (begin = max; begin > 0 && max - begin < 4; begin--)
        if (((unsigned char)s.ptr[begin] & 0xc0) != 0x80)
            return (ml_str){ s.ptr, begin };
    return (ml_str){ s.ptr, max }; /* not UTF-8 */
}

uint32_t ml_utf8_next(const char **text) {
    const unsigned char *p = (const unsigned char *)*text;
    uint32_t c = p[0];

    if (c < 0x80) {
        *text += 1;
    } else if (c < 0xe0) {
        c = (c & 31) << 6 | (p[1] & 63u);
        *text += 2;
    } else if (c < 0xf0) {
        c = (c & 15) << 12 | (p[1] & 63u) << 6 | (p[2] & 63u);
        *text += 3;
    } else {
        c = (c & 7) << 18 | (p[1] & 63u) << 12 | (p[2] & 63u) << 6 | (p[3] & 63u);
        *text += 4;
    }
    return c;
}

uint32_t ml_utf8_prev(const char **text) {
    const char *p = *text - 1;
    const char *at;

    while (((unsigned char)*p & 0xc0) == 0x80)
        p--;
    *text = at = p;
    return ml_utf8_next(&at);
}

int ml_utf8_put(char out[4], uint32_t c) {
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    if (c < 0x800) {
        out[0] = (char)(0xc0 | c >> 6);
        out[1] = (char)(0x80 | (c & 63));
        return 2;
    }
    if (c < 0x10000) {
        out[0] = (char)(0xe0 | c >> 12);
        out[1] = (char)(0x80 | (c >> 6 & 63));
        out[2] = (char)(0x80 | (c & 63));
        return 3;
    }
    out[0] = (char)(0xf0 | c >> 18);
    out[1] = (char)(0x80 | (c >> 12 & 63));
    out[2] = (char)(0x80 | (c >> 6 & 63));
    out[3] = (char)(0x80 | (c & 63));
    return 4;
}
