#include "base/base64.h"

static const char letters[] =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

void ml_base64_write(ml_text *out, const void *bytes, size_t n) {
    const unsigned char *p = bytes;

    for (size_t i = 0; i < n; i += 3) {
        size_t left = n - i;
        uint32_t bits = (uint32_t)p[i] << 16;
        char four[4] = { 0, 0, '=', '=' };

        bits |= left > 1 ? (uint32_t)p[i + 1] << 8 : 0;
        bits |= left > 2 ? p[i + 2] : 0;
        four[0] = letters[bits >> 18];
        four[1] = letters[bits >> 12 & 63];
        if (left > 1)
            four[2] = letters[bits >> 6 & 63];
        if (left > 2)
            four[3] = letters[bits & 63];
        ml_text_add(out, four, sizeof four);
    }
}

static int digit_of(char c) {
    if (c >= 'A' && c <= 'Z')
        return c - 'A';
    if (c >= 'a' && c <= 'z')
        return c - 'a' + 26;
    if (c >= '0' && c <= '9')
        return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

int64_t ml_base64_read(void *out, ml_str text) {
    unsigned char *to = out;
    uint32_t bits = 0;
    int n_bit = 0;
    int64_t n = 0;

    while (text.len && text.ptr[text.len - 1] == '=')
        text.len--;
    for (size_t i = 0; i < text.len; i++) {
        int digit = digit_of(text.ptr[i]);
        if (digit < 0)
            return -1;
        bits = bits << 6 | (uint32_t)digit;
        n_bit += 6;
        if (n_bit >= 8) {
            n_bit -= 8;
            to[n++] = (unsigned char)(bits >> n_bit & 255);
        }
    }
    return n;
}
