#include "rl/reward/math_plain.h"

#include <stdint.h>
#include <string.h>

#include "text/unicode.h"

typedef struct plain_row {
    uint32_t c;
    const char *is;
} plain_row;

static const plain_row rows[] = {
    { 0x200b, "" },
    { 0x200c, "" },
    { 0x200d, "" },
    { 0x2060, "" },
    { 0xfeff, "" },
    { 0x00a0, " " },
    { 0x2009, " " },
    { 0x202f, " " },
    { 0x3000, " " },
    { 0x2212, "-" },
    { 0x2013, "-" },
    { 0x2010, "-" },
    { 0x2011, "-" },
    { 0xff0d, "-" },
    { 0x00d7, "*" },
    { 0x00b7, "*" },
    { 0x22c5, "*" },
    { 0x2219, "*" },
    { 0x00f7, "/" },
    { 0x2044, "/" },
    { 0x2215, "/" },
    { 0x00b1, "\\pm " },
    { 0x221e, "\\infty " },
    { 0x221a, " sqrt " },
    { 0x222a, "\\cup " },
    { 0x2205, "\\emptyset " },
    { 0x2264, "<=" },
    { 0x2265, ">=" },
    { 0x2260, "!=" },
    { 0x2208, "\\in " },
    { 0x00b0, "\\circ " },
    { 0x00ba, "\\circ " },
    { 0x27e8, "\\langle " },
    { 0x27e9, "\\rangle " },
    { 0x00bd, "\\frac{1}{2}" },
    { 0x00bc, "\\frac{1}{4}" },
    { 0x00be, "\\frac{3}{4}" },
    { 0x2153, "\\frac{1}{3}" },
    { 0x2154, "\\frac{2}{3}" },
    { 0x2155, "\\frac{1}{5}" },
    { 0x2156, "\\frac{2}{5}" },
    { 0x2157, "\\frac{3}{5}" },
    { 0x2158, "\\frac{4}{5}" },
    { 0x2159, "\\frac{1}{6}" },
    { 0x215a, "\\frac{5}{6}" },
    { 0x215b, "\\frac{1}{8}" },
    { 0x215c, "\\frac{3}{8}" },
    { 0x215d, "\\frac{5}{8}" },
    { 0x215e, "\\frac{7}{8}" },
    { 0x03b1, "\\alpha " },
    { 0x03b2, "\\beta " },
    { 0x03b3, "\\gamma " },
    { 0x03b4, "\\delta " },
    { 0x03b5, "\\epsilon " },
    { 0x03b8, "\\theta " },
    { 0x03bb, "\\lambda " },
    { 0x03bc, "\\mu " },
    { 0x03c0, "\\pi " },
    { 0x03c1, "\\rho " },
    { 0x03c3, "\\sigma " },
    { 0x03c4, "\\tau " },
    { 0x03c6, "\\phi " },
    { 0x03c8, "\\psi " },
    { 0x03c9, "\\omega " },
};

/* The first of each ten digits. */
static const uint32_t zeros[] = { 0x0660, 0x06f0, 0x07c0, 0x0966, 0x09e6, 0x0a66,
                                  0x0ae6, 0x0b66, 0x0be6, 0x0c66, 0x0ce6, 0x0d66,
                                  0x0e50, 0x0ed0, 0x0f20, 0xff10 };

static const uint32_t raised[10] = { 0x2070, 0x00b9, 0x00b2, 0x00b3, 0x2074,
                                     0x2075, 0x2076, 0x2077, 0x2078, 0x2079 };

static int raised_digit(uint32_t c) {
    for (int d = 0; d < 10; d++)
        if (raised[d] == c)
            return d;
    return -1;
}

static bool add_digit(ml_text *out, uint32_t c) {
    for (size_t i = 0; i < sizeof zeros / sizeof *zeros; i++)
        if (c >= zeros[i] && c < zeros[i] + 10) {
            ml_text_printf(out, "%d", (int)(c - zeros[i]));
            return true;
        }
    return false;
}

/* Raised digits that follow each other are one exponent. */
static bool add_raised(ml_text *out, uint32_t c, const char **p, const char *end) {
    int d = raised_digit(c);

    if (d < 0)
        return false;
    ml_text_printf(out, "^{");
    while (d >= 0) {
        const char *next = *p;
        ml_text_printf(out, "%d", d);
        d = next < end ? raised_digit(ml_utf8_next(&next)) : -1;
        if (d >= 0)
            *p = next;
    }
    ml_text_printf(out, "}");
    return true;
}

static void add_other(ml_text *out, uint32_t c) {
    char bytes[4];

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].c == c) {
            ml_text_add(out, rows[i].is, strlen(rows[i].is));
            return;
        }
    ml_text_add(out, bytes, (size_t)ml_utf8_put(bytes, c));
}

void ml_math_plain(ml_text *out, ml_str src) {
    const char *p = src.ptr, *end;
    bool whole = ml_utf8_valid(src) == src.len;

    ml_text_add(out, "", 0);
    if (src.len == 0)
        return;
    for (end = p + src.len; p < end;) {
        uint32_t c;
        if ((unsigned char)*p < 0x80 || !whole) {
            ml_text_add(out, (unsigned char)*p < 0x80 ? p : "?", 1);
            p++;
            continue;
        }
        c = ml_utf8_next(&p);
        if (!add_digit(out, c) && !add_raised(out, c, &p, end))
            add_other(out, c);
    }
}
