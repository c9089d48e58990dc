#include "text/regex_dialect.h"

#include <stdio.h>
#include <string.h>

#define MAX_GROUPS 200

/* The pattern is read once, and the translation is appended to `out`.  Functions return
 * false after refuse() has written the message. */
typedef struct translator {
    const ml_unicode *unicode;
    const char *p, *end, *begin;
    ml_text out;
    size_t group[MAX_GROUPS]; /* start positions in `out` of the open groups */
    bool outer_caseless[MAX_GROUPS];
    int n_group;
    size_t atom;     /* start position in `out` of the last atom */
    uint32_t before; /* the preceding literal, for case folding; 0: none */
    bool caseless;
    ml_err *err;
} translator;

static bool refuse(translator *t, const char *what) {
    ml_fail(t->err, ML_EUNSUP, "regular expression, at byte %zu of \"%.*s\": %s",
            (size_t)(t->p - t->begin),
            t->end - t->begin > 200 ? 200 : (int)(t->end - t->begin), t->begin, what);
    return false;
}

static void put_range(void *ud, uint32_t first, uint32_t last) {
    ml_text *out = ud;

    ml_text_printf(out, "\\x{%x}", (unsigned)first);
    if (last > first)
        ml_text_printf(out, "-\\x{%x}", (unsigned)last);
}

/* Unicode whitespace; PCRE2's \s would add U+180E. */
static void put_space(ml_text *out) {
    ml_text_printf(out, "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}"
                        "\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}");
}

static void put_not_space(ml_text *out) {
    ml_text_printf(out, "\\x{0}-\\x{8}\\x{e}-\\x{1f}\\x{21}-\\x{84}\\x{86}-\\x{9f}\\x{a1}-"
                        "\\x{167f}\\x{1681}-\\x{1fff}\\x{200b}-\\x{2027}\\x{202a}-\\x{202e}"
                        "\\x{2030}-\\x{205e}\\x{2060}-\\x{2fff}\\x{3001}-\\x{10ffff}");
}

/* A set of categories, with the characters that PCRE2's Unicode version may lack. */
static void put_categories(translator *t, const char *names, uint32_t gcs) {
    ml_text_printf(&t->out, "%s", names);
    ml_unicode_newer(t->unicode, gcs, put_range, &t->out);
}

/* \w as in Oniguruma, including Latin-1 superscripts and fractions. */
static void put_word(translator *t) {
    put_categories(t, "\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}",
                   ML_GCS_L | ML_GCS_M | 1u << ML_GC_ND | 1u << ML_GC_NL | 1u << ML_GC_PC);
    ml_text_printf(&t->out,
                   "\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}\\x{24b6}-\\x{24e9}"
                   "\\x{1f130}-\\x{1f149}\\x{1f150}-\\x{1f169}\\x{1f170}-\\x{1f189}");
}

/* Returns the set of a category name, "L" or "Lu"; 0 if the name is unknown. */
static uint32_t categories_of(ml_str name) {
    static const char two[] =
        "CnCcCfCoCsLlLmLoLtLuMcMeMnNdNlNoPcPdPePfPiPoPsScSkSmSoZlZpZs";
    uint32_t gcs = 0;

    for (unsigned i = 0; i < sizeof two / 2; i++)
        if ((name.len == 2 && memcmp(name.ptr, two + 2 * i, 2) == 0) ||
            (name.len == 1 && name.ptr[0] == two[2 * i]))
            gcs |= 1u << i;
    return gcs & 1u << ML_GC_CN ? 0 : gcs; /* unassigned: depends on the version */
}

static bool put_script(translator *t, ml_str name) {
    static const struct {
        const char *name;
        uint32_t newer[2][2]; /* added in Unicode 15 and 16 */
    } rows[] = {
        { "Han", { { 0x2ebf0, 0x2ee5d }, { 0x31350, 0x323af } } },
        { "Hiragana", { { 0x1b132, 0x1b132 } } },
        { "Katakana", { { 0x1b155, 0x1b155 } } },
        { "Hangul", { { 0 } } },
    };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (!ml_str_is(name, rows[i].name))
            continue;
        ml_text_printf(&t->out, "\\p{sc:%s}", rows[i].name);
        for (int k = 0; k < 2 && rows[i].newer[k][0]; k++)
            put_range(&t->out, rows[i].newer[k][0], rows[i].newer[k][1]);
        return true;
    }
    return false;
}

/* Translates the content of \p{...} to class items; p points after the 'p'. */
static bool put_property(translator *t) {
    const char *close =
        t->p < t->end && *t->p == '{' ? memchr(t->p, '}', (size_t)(t->end - t->p)) : NULL;
    ml_str name;
    uint32_t gcs;
    char own[16];

    if (!close)
        return refuse(t, "\\p needs a name in braces");
    name = (ml_str){ t->p + 1, (size_t)(close - t->p) - 1 };
    gcs = categories_of(name);
    if (gcs) {
        snprintf(own, sizeof own, "\\p{%.*s}", (int)name.len, name.ptr);
        put_categories(t, own, gcs);
    } else if (!put_script(t, name)) {
        return refuse(t, "of the properties \\p{...}, general categories and the scripts "
                         "Han, Hiragana, Katakana and Hangul are supported");
    }
    t->p = close + 1;
    return true;
}

static int hex_of(int c) {
    if (c >= '0' && c <= '9')
        return c - '0';
    c |= 32;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Reads up to `most` hexadecimal digits; *n receives their number. */
static uint32_t read_hex(translator *t, int most, int *n) {
    uint32_t v = 0;

    for (*n = 0; *n < most && t->p < t->end && hex_of(*t->p) >= 0; ++*n, t->p++)
        v = v * 16 + (uint32_t)hex_of(*t->p);
    return v;
}

/* \x{...}, \xHH, \uHHHH; p points after the letter. */
static bool read_code(translator *t, char letter, uint32_t *c) {
    bool braces = letter == 'x' && t->p < t->end && *t->p == '{';
    int n;

    t->p += braces;
    *c = read_hex(t, braces ? 6 : letter == 'u' ? 4 : 2, &n);
    if (n == 0 || (letter == 'u' && n != 4))
        return refuse(t, "expected hexadecimal digits");
    if (braces && (t->p == t->end || *t->p++ != '}'))
        return refuse(t, "expected '}'");
    if (*c >= ML_CODE_POINTS || (*c >= 0xd800 && *c <= 0xdfff))
        return refuse(t, "not a character");
    if (!braces && letter == 'x' && *c >= 0x80)
        return refuse(t, "\\xHH above 7f is a byte, not a character");
    return true;
}

/* Reads an escape for a single character; p points to the letter.  Returns false without a
 * message if it is not such an escape; *ok is false if a message was written. */
static bool read_single(translator *t, uint32_t *c, bool *ok) {
    static const char from[] = "rntfvae", to[] = "\r\n\t\f\v\a\033";
    char letter = *t->p;
    const char *hit = letter ? strchr(from, letter) : NULL;

    *ok = true;
    if (hit) {
        *c = (unsigned char)to[hit - from];
        t->p++;
        return true;
    }
    if (letter == 'x' || letter == 'u') {
        t->p++;
        *ok = read_code(t, letter, c);
        return *ok;
    }
    if (letter > 0x20 && letter < 0x7f && hex_of(letter) < 0 &&
        ((letter | 32) < 'a' || (letter | 32) > 'z')) {
        *c = (unsigned char)letter;
        t->p++;
        return true;
    }
    return false;
}

/* Translates an escape for a set to class items; p points to the letter.  For a capital
 * letter it writes the excluded set, except for \S inside a class. */
static bool put_set(translator *t, bool in_class) {
    switch (*t->p | 32) {
    case 's':
        if (in_class && *t->p == 'S')
            put_not_space(&t->out);
        else
            put_space(&t->out);
        break;
    case 'd': put_categories(t, "\\p{Nd}", 1u << ML_GC_ND); break;
    case 'w': put_word(t); break;
    case 'p': t->p++; return put_property(t);
    default: return refuse(t, "unsupported escape");
    }
    t->p++;
    return true;
}

static bool put_escape(translator *t) {
    bool ok, negated;
    uint32_t c;

    if (++t->p == t->end)
        return refuse(t, "the pattern ends in a backslash");
    t->atom = t->out.len;
    if (read_single(t, &c, &ok)) {
        t->before = c;
        put_range(&t->out, c, c);
        return true;
    }
    if (!ok)
        return false;
    negated = *t->p >= 'A' && *t->p <= 'Z';
    t->before = 0;
    ml_text_printf(&t->out, negated ? "[^" : "[");
    if (!put_set(t, false))
        return false;
    ml_text_printf(&t->out, "]");
    return true;
}

/* Reads one end of a range, or a set.  *c is the character, or UINT32_MAX for a set, which
 * has been written already. */
static bool read_class_item(translator *t, uint32_t *c) {
    bool ok;

    *c = UINT32_MAX;
    if (*t->p == '[')
        return refuse(t,
                      "a set inside a set is not supported; a plain '[' needs a backslash");
    if (*t->p == '&' && t->p + 1 < t->end && t->p[1] == '&')
        return refuse(t, "intersections of sets (&&) are not supported");
    if (*t->p != '\\') {
        *c = ml_utf8_next(&t->p);
        return true;
    }
    if (++t->p == t->end)
        return refuse(t, "the pattern ends in a backslash");
    if (read_single(t, c, &ok))
        return true;
    if (!ok)
        return false;
    if (*t->p == 'P' || *t->p == 'W' || *t->p == 'D')
        return refuse(t, "a negated set inside a set is not supported");
    return put_set(t, true);
}

static bool put_class(translator *t) {
    uint32_t first, last;

    t->atom = t->out.len;
    t->before = 0;
    t->p++;
    ml_text_printf(&t->out, "[");
    if (t->p < t->end && *t->p == '^') {
        ml_text_printf(&t->out, "^");
        t->p++;
    }
    if (t->p < t->end && *t->p == ']')
        return refuse(t, "an empty set is not supported; a plain ']' needs a backslash");
    while (t->p < t->end && *t->p != ']') {
        if (!read_class_item(t, &first))
            return false;
        last = first;
        if (t->end - t->p >= 2 && *t->p == '-' && t->p[1] != ']') {
            t->p++;
            if (first == UINT32_MAX || !read_class_item(t, &last) || last == UINT32_MAX)
                return first == UINT32_MAX || last == UINT32_MAX
                           ? refuse(t, "a range needs a character at both ends")
                           : false;
        }
        if (last != UINT32_MAX && last < first)
            return refuse(t, "this range is empty");
        if (t->caseless && last != UINT32_MAX && last >= 0x80)
            return refuse(t, "case folding is supported for ASCII only");
        if (last != UINT32_MAX)
            put_range(&t->out, first, last);
    }
    if (t->p == t->end)
        return refuse(t, "']' is missing");
    t->p++;
    ml_text_printf(&t->out, "]");
    return true;
}

static bool put_group(translator *t) {
    static const char *const heads[] = { "(?:",  "(?=", "(?!",  "(?<=",
                                         "(?<!", "(?>", "(?i:", "(" };
    size_t left = (size_t)(t->end - t->p);

    if (left >= 4 && memcmp(t->p, "(?i)", 4) == 0 && t->p == t->begin) {
        /* At the beginning only: elsewhere, the dialects differ in where it ends. */
        t->caseless = true;
        t->p += 4;
        ml_text_printf(&t->out, "(?i)");
        t->atom = t->out.len;
        return true;
    }
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++) {
        size_t n = strlen(heads[i]);
        if (left < n || memcmp(t->p, heads[i], n) != 0)
            continue;
        if (n == 1 && left > 1 && (t->p[1] == '?' || t->p[1] == '*'))
            break;
        if (t->n_group == MAX_GROUPS)
            return refuse(t, "groups are nested too deeply");
        t->group[t->n_group] = t->out.len;
        t->outer_caseless[t->n_group++] = t->caseless;
        t->caseless = t->caseless || (n == 4 && heads[i][2] == 'i');
        t->before = 0;
        ml_text_printf(&t->out, "%s", n == 1 ? "(?:" : heads[i]);
        t->p += n;
        t->atom = t->out.len;
        return true;
    }
    return refuse(t, "this kind of group is not supported");
}

static bool close_group(translator *t) {
    if (!t->n_group)
        return refuse(t, "')' without '('");
    t->atom = t->group[--t->n_group];
    t->caseless = t->outer_caseless[t->n_group];
    t->before = 0;
    t->p++;
    ml_text_printf(&t->out, ")");
    return true;
}

/* Inserts text before the last atom. */
static void wrap_atom(translator *t) {
    ml_text_add(&t->out, "(?:", 3);
    memmove(t->out.ptr + t->atom + 3, t->out.ptr + t->atom, t->out.len - 3 - t->atom);
    memcpy(t->out.ptr + t->atom, "(?:", 3);
    ml_text_printf(&t->out, ")");
}

/* {n}, {n,}, {n,m}, {,m}; any other brace is a literal character. */
static bool put_interval(translator *t) {
    const char *p = t->p + 1;
    unsigned low = 0, high = 0;
    int n_low = 0, n_high = 0;
    bool comma;

    for (; p < t->end && *p >= '0' && *p <= '9' && n_low < 6; p++, n_low++)
        low = low * 10 + (unsigned)(*p - '0');
    comma = p < t->end && *p == ',';
    for (p += comma; p < t->end && *p >= '0' && *p <= '9' && n_high < 6; p++, n_high++)
        high = high * 10 + (unsigned)(*p - '0');
    if (p == t->end || *p != '}' || (n_low == 0 && n_high == 0)) {
        t->atom = t->out.len;
        put_range(&t->out, '{', '{');
        t->p++;
        return true;
    }
    if (low > 1000 || high > 1000 || (n_high && high < low))
        return refuse(t, "the bounds of a repetition go from 0 to 1000, in order");
    t->p = p + 1;
    if (!comma)
        ml_text_printf(&t->out, "{%u}", low);
    else if (n_high)
        ml_text_printf(&t->out, "{%u,%u}", low, high);
    else
        ml_text_printf(&t->out, "{%u,}", low);
    if (t->p < t->end && *t->p == '?' && !comma)
        return refuse(t, "{n}? means something else in other dialects");
    if (t->p < t->end && *t->p == '+') /* not possessive: repeats the whole */
        wrap_atom(t);
    return true;
}

/* With case-insensitive matching in Oniguruma, one character can match two: U+00DF and
 * "ss". */
static bool folds_with(uint32_t a, uint32_t b) {
    a |= 32;
    b |= 32;
    return (a == 's' && (b == 's' || b == 't')) ||
           (a == 'f' && (b == 'f' || b == 'i' || b == 'l'));
}

static bool put_literal(translator *t) {
    uint32_t c;

    t->atom = t->out.len;
    c = ml_utf8_next(&t->p);
    if (t->caseless && (c >= 0x80 || folds_with(t->before, c)))
        return refuse(t, "case folding is supported for ASCII without ligatures only");
    t->before = c;
    put_range(&t->out, c, c);
    return true;
}

static bool translate(translator *t) {
    while (t->p < t->end) {
        bool ok = true;
        switch (*t->p) {
        case '\\': ok = put_escape(t); break;
        case '[': ok = put_class(t); break;
        case '(': ok = put_group(t); break;
        case ')': ok = close_group(t); break;
        case '{': ok = put_interval(t); break;
        case '^':
        case '$': ok = refuse(t, "anchors are not supported"); break;
        case '.': t->atom = t->out.len; /* fall through */
        case '|':
        case '?':
        case '*':
        case '+':
            t->before = 0;
            ml_text_add(&t->out, t->p++, 1);
            break;
        default: ok = put_literal(t);
        }
        if (!ok)
            return false;
    }
    return t->n_group == 0 || refuse(t, "')' is missing");
}

ml_status ml_regex_translate(ml_text *out, const ml_unicode *u, ml_str pattern,
                             ml_err *err) {
    translator t = { .unicode = u,
                     .p = pattern.ptr,
                     .begin = pattern.ptr,
                     .end = pattern.ptr + pattern.len,
                     .err = err };
    ml_status st = translate(&t) ? ML_OK : ML_EUNSUP;

    *out = t.out;
    return st;
}
