#include "rl/reward/graders/gpqa_words.h"

#include <string.h>

#include "base/bug.h"
#include "base/utf8.h"

typedef struct reader {
    ml_gpqa_word *w; /* [cap] */
    char *low;
    int32_t n, cap;
    bool spaced, breaks;
} reader;

/* The canonical equivalent of a non-ASCII character: full width, bold, circled,
 * look-alikes.  An invisible character becomes a space. */
static uint32_t folded(uint32_t c) {
    static const uint32_t rows[][2] = {
        { 0x17f, 's' },  { 0x2019, '\'' }, { 0x2018, '\'' }, { 0x201c, '"' },
        { 0x201d, '"' }, { 0x3002, '.' },  { 0x3001, ',' },  { 0x2192, ':' },
        { 0x2013, '-' }, { 0x2014, ',' },  { 0x2212, '-' },  { 0xa0, ' ' },
        { 0x200b, ' ' }, { 0x200c, ' ' },  { 0x200d, ' ' },  { 0x2060, ' ' },
        { 0xfeff, ' ' }, { 0x3000, ' ' },  { 0x202f, ' ' },  { 0x2009, ' ' },
        { 0x410, 'A' },  { 0x412, 'B' },   { 0x421, 'C' },   { 0x415, 'E' },
        { 0x41d, 'H' },  { 0x300c, '(' },  { 0x300d, ')' },  { 0x3010, '(' },
        { 0x3011, ')' },
    };

    if (c >= 0xff01 && c <= 0xff5e)
        return c - 0xfee0;
    if (c >= 0x24b6 && c <= 0x24cf)
        return 'A' + c - 0x24b6;
    if (c >= 0x1d400 && c <= 0x1d6a3)
        return (c - 0x1d400) % 52 < 26 ? 'A' + (c - 0x1d400) % 52
                                       : 'a' + (c - 0x1d400) % 52 - 26;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i][0] == c)
            return rows[i][1];
    return c;
}

static bool is_ascii_letter(uint32_t c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/* Letters of alphabets that separate words by spaces. */
static bool is_word_char(uint32_t c) {
    return is_ascii_letter(c) || (c >= '0' && c <= '9') ||
           (c >= 0xaa && c < 0x2000 && c != 0xb0 && c != 0xb7 && c != 0xd7 && c != 0xf7);
}

static ml_gpqa_word *push(reader *r) {
    ml_gpqa_word *w;

    ML_BUG_IF(r->n == r->cap); /* a word is at least a byte */
    w = &r->w[r->n++];
    *w = (ml_gpqa_word){ .spaced = r->spaced, .breaks = r->breaks };
    r->spaced = r->breaks = false;
    return w;
}

/* Returns the next character.  A Cyrillic look-alike is folded only if no letter follows
 * it. */
static uint32_t next_char(const char **p, const char *end) {
    uint32_t raw = ml_utf8_next(p), c = folded(raw);
    const char *q = *p;

    if (raw >= 0x400 && raw < 0x500 && q < end && is_word_char(ml_utf8_next(&q)))
        return raw;
    return c;
}

static void read_word(reader *r, const char **p, const char *end) {
    const char *from = r->low;
    uint32_t first = 0;
    int count = 0;
    ml_gpqa_word *w;

    while (*p < end) {
        const char *q = *p, *after;
        uint32_t c = next_char(&q, end);
        after = q;
        if (c == '\'' && count > 0 && after < end && is_word_char(next_char(&after, end)))
            ; /* isn't */
        else if (!is_word_char(c))
            break;
        first = count++ ? first : c;
        if (c >= 'A' && c <= 'Z')
            *r->low++ = (char)(c + 'a' - 'A');
        else
            r->low += ml_utf8_put(r->low, c);
        *p = q;
    }
    w = push(r);
    w->text = (ml_str){ from, (size_t)(r->low - from) };
    w->capital = first >= 'A' && first <= 'Z';
    if (count == 1 && is_ascii_letter(first))
        w->letter = (char)(w->capital ? first : first - 'a' + 'A');
}

/* \boxed is kept; other macros are treated as fonts. */
static void read_macro(reader *r, const char **p, const char *end) {
    const char *from = ++*p;

    while (*p < end && is_ascii_letter((unsigned char)**p))
        ++*p;
    if (*p - from == 5 && memcmp(from, "boxed", 5) == 0)
        push(r)->text = ml_str_of("\\boxed");
    else if (*p == from && *p < end)
        r->spaced = true, ++*p;
}

/* Length in bytes of a tag at p, such as <b> or </b>; 0: not a tag. */
static size_t tag_at(const char *p, const char *end) {
    const char *q = p + 1;

    while (q < end && q - p < 12 && (is_ascii_letter((unsigned char)*q) || *q == '/'))
        q++;
    return q < end && *q == '>' && q > p + 1 ? (size_t)(q + 1 - p) : 0;
}

/* A sign that attaches the letter before it to the following text. */
static void tie(reader *r, const char *after, const char *end) {
    ml_gpqa_word *last = r->n ? &r->w[r->n - 1] : NULL;

    if (last && last->letter && !r->spaced && after < end && *after != ' ' &&
        *after != '*' && *after != '\n')
        last->tied = true;
}

static void push_sign(reader *r, uint32_t c) {
    ml_gpqa_word *w = push(r);

    w->sign = c < 0x80 || c == 0xb0;
    w->text = (ml_str){ r->low, (size_t)ml_utf8_put(r->low, c) };
    r->low += w->text.len;
}

static void read_char(reader *r, const char **p, const char *end) {
    const char *from = *p;
    uint32_t c = next_char(p, end);

    if ((c == '-' || c == '=') && *p < end && **p == '>') { /* an arrow */
        c = ':';
        ++*p;
    }
    if (c == '-' || c == '_' || c == '^')
        tie(r, *p, end);
    if (c == '\\' || is_word_char(c)) {
        *p = from;
        (c == '\\' ? read_macro : read_word)(r, p, end);
    } else if (c == '<' && tag_at(from, end) > 0)
        *p = from + tag_at(from, end);
    else if (c == '\n')
        r->breaks = r->spaced = true;
    else if (c < 0x80 && c && strchr(" \t\r_^", (int)c))
        r->spaced = true;
    else if (c >= 0x80 || !c || !strchr("*`${}\"'~#>", (int)c))
        push_sign(r, c);
}

void ml_gpqa_words_init(ml_gpqa_words *out, ml_arena *a, ml_str s) {
    reader r = { .cap = (int32_t)s.len + 1, .breaks = true };
    const char *p, *end;
    char *bytes = ml_arena_str(a, s.ptr, s.len);

    if (ml_utf8_valid(s) < s.len)
        for (size_t i = 0; i < s.len; i++)
            bytes[i] = (unsigned char)bytes[i] < 0x80 ? bytes[i] : ' ';
    r.w = ML_NEW(a, ml_gpqa_word, s.len + 1);
    r.low = ML_NEW(a, char, s.len + 4);
    for (p = bytes, end = p + s.len; p < end;)
        read_char(&r, &p, end);
    *out = (ml_gpqa_words){ r.w, r.n };
}
