#include "rl/reward/math/math_plain.h"

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
    { 0x2062, "*" },
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
    { 0x00b0, "\\degree " },
    { 0x00ba, "\\degree " },
    { 0x27e8, "\\langle " },
    { 0x27e9, "\\rangle " },
    { 0x2192, "\\to " },
    { 0x2190, "\\leftarrow " },
    { 0x21d2, "\\implies " },
    { 0x21d4, "\\iff " },
    { 0x21a6, "\\mapsto " },
    { 0x2248, "\\approx " },
    { 0x2261, "\\equiv " },
    { 0x2282, "\\subset " },
    { 0x2286, "\\subseteq " },
    { 0x2229, "\\cap " },
    { 0x2216, "\\setminus " },
    { 0x22a5, "\\perp " },
    { 0x2225, "\\parallel " },
    { 0x2220, "\\angle " },
    { 0x25b3, "\\triangle " },
    { 0x2032, "'" },
    { 0x2026, "\\ldots " },
    { 0x3001, "," },
    { 0x3002, "." },
    { 0x210e, "h" },
    { 0x1d70b, "\\pi " },
    { 0x1d6d1, "\\pi " },
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
};

/* Greek letters from alpha on; NULL: none, or the two without a name. */
static const char *const greek[] = { "alpha",   "beta", "gamma", "delta", "epsilon",
                                     "zeta",    "eta",  "theta", "iota",  "kappa",
                                     "lambda",  "mu",   "nu",    "xi",    NULL,
                                     "pi",      "rho",  NULL,    "sigma", "tau",
                                     "upsilon", "phi",  "chi",   "psi",   "omega" };

/* The zero of each script's ten digits. */
static const uint32_t zeros[] = { 0x0660, 0x06f0, 0x07c0, 0x0966, 0x09e6, 0x0a66,
                                  0x0ae6, 0x0b66, 0x0be6, 0x0c66, 0x0ce6, 0x0d66,
                                  0x0e50, 0x0ed0, 0x0f20, 0xff10 };

static const uint32_t raised[10] = { 0x2070, 0x00b9, 0x00b2, 0x00b3, 0x2074,
                                     0x2075, 0x2076, 0x2077, 0x2078, 0x2079 };

/* The plain form of a superscript or subscript character; 0: it is neither. */
static char raised_char(uint32_t c) {
    static const uint32_t signs[][2] = {
        { 0x207a, '+' }, { 0x207b, '-' }, { 0x207f, 'n' }, { 0x2071, 'i' }, { 0x02e3, 'x' }
    };

    for (int d = 0; d < 10; d++)
        if (raised[d] == c)
            return (char)('0' + d);
    for (size_t i = 0; i < sizeof signs / sizeof *signs; i++)
        if (signs[i][0] == c)
            return (char)signs[i][1];
    return 0;
}

static char lowered_char(uint32_t c) {
    return c >= 0x2080 && c <= 0x2089 ? (char)('0' + c - 0x2080) : 0;
}

static bool add_digit(ml_text *out, uint32_t c) {
    for (size_t i = 0; i < sizeof zeros / sizeof *zeros; i++)
        if (c >= zeros[i] && c < zeros[i] + 10) {
            ml_text_printf(out, "%d", (int)(c - zeros[i]));
            return true;
        }
    return false;
}

/* Consecutive superscripts are one exponent, consecutive subscripts one index. */
static bool add_script(ml_text *out, uint32_t c, const char **p, const char *end,
                       char (*of)(uint32_t), const char *mark) {
    char d = of(c);

    if (!d)
        return false;
    ml_text_printf(out, "%s{", mark);
    while (d) {
        const char *next = *p;
        ml_text_add(out, &d, 1);
        d = next < end ? of(ml_utf8_next(&next)) : 0;
        if (d)
            *p = next;
    }
    ml_text_printf(out, "}");
    return true;
}

/* Converts a capital, full-width, bold or italic letter to a plain lower-case one. */
static uint32_t plain_letter(uint32_t c) {
    uint32_t low[2];

    if (c >= 0xff01 && c <= 0xff5e)
        return c - 0xfee0;
    if (c >= 0x1d400 && c <= 0x1d6a3)
        return 'a' + (c - 0x1d400) % 26;
    if (c >= 0x1d7ce && c <= 0x1d7ff)
        return '0' + (c - 0x1d7ce) % 10;
    if (ml_char_lower(c, low) != 1)
        return c;
    return low[0] == 0x3c2 ? 0x3c3 : low[0]; /* the sigma at the end of words */
}

static bool is_greek(uint32_t c) {
    return c >= 0x3b1 && c <= 0x3c9;
}

/* Number of consecutive Greek letters at p. */
static int greek_run(const char *p, const char *end) {
    int n = 0;

    while (p < end && n < 3 && is_greek(plain_letter(ml_utf8_next(&p))))
        n++;
    return n;
}

static void add_other(ml_text *out, uint32_t c) {
    char bytes[4];

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].c == c) {
            ml_text_add(out, rows[i].is, strlen(rows[i].is));
            return;
        }
    ml_text_add(out, bytes, (size_t)ml_utf8_put(bytes, plain_letter(c)));
}

/* Greek letters are symbols; three or more of them are a word. */
static bool add_greek(ml_text *out, uint32_t c, const char **p, const char *end) {
    uint32_t low = plain_letter(c);
    char bytes[4];
    int run;

    if (!is_greek(low))
        return false;
    run = 1 + greek_run(*p, end);
    if (run < 3 && greek[low - 0x3b1])
        ml_text_printf(out, "\\%s ", greek[low - 0x3b1]);
    else
        ml_text_add(out, bytes, (size_t)ml_utf8_put(bytes, low));
    while (run >= 3 && *p < end) { /* the rest of the word */
        const char *next = *p;
        low = plain_letter(ml_utf8_next(&next));
        if (!is_greek(low))
            break;
        ml_text_add(out, bytes, (size_t)ml_utf8_put(bytes, low));
        *p = next;
    }
    return true;
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
        if (!add_digit(out, c) && !add_script(out, c, &p, end, raised_char, "^") &&
            !add_script(out, c, &p, end, lowered_char, "_") && !add_greek(out, c, &p, end))
            add_other(out, c);
    }
}
