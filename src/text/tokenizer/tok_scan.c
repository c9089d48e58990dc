/* Hand-written scanners for the split patterns of most byte-level tokenizers.
 *
 * A scanner finds exactly the matches that PCRE2 finds for its pattern (tests compare the
 * two), several times faster and always in linear time. */
#include "text/tokenizer/tok_priv.h"

const char ml_scan_gpt2[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

/* --- pieces ----------------------------------------------------------------- */

/* The character at p, and the start of the next one; 0 at the end, which is in no class. */
typedef struct glyph {
    uint32_t c;
    const char *next;
} glyph;

static inline glyph look(const char *p, const char *end) {
    glyph g = { 0, p };
    if (p < end)
        g.c = ml_utf8_next(&g.next);
    return g;
}

static const char *skip_gcs(const ml_unicode *u, const char *p, const char *end,
                            uint32_t gcs) {
    while (p < end) {
        glyph g = look(p, end);
        if (!ml_char_in(u, g.c, gcs))
            break;
        p = g.next;
    }
    return p;
}

static bool is_newline(uint32_t c) {
    return c == '\r' || c == '\n';
}

static const char *skip_newlines(const char *p, const char *end) {
    while (p < end && is_newline((unsigned char)*p))
        p++;
    return p;
}

/* 's 't 're 've 'm 'll 'd at p, or NULL.  Case-insensitive, U+017F (long s) matches s. */
static const char *contraction(const char *p, const char *end, bool any_case) {
    glyph a = look(p + 1, end), b = look(a.next, end);
    uint32_t fold = any_case ? 32 : 0;
    uint32_t c = a.c < 0x80 ? a.c | fold : a.c, d = b.c < 0x80 ? b.c | fold : b.c;

    if (p + 1 == end)
        return NULL;
    if (c == 's' || c == 't' || c == 'm' || c == 'd' || (any_case && c == 0x17f))
        return a.next;
    if (((c == 'r' || c == 'v') && d == 'e') || (c == 'l' && d == 'l'))
        return b.next;
    return NULL;
}

/* \s*[\r\n]+|\s+(?!\S)|\s+ at p, which is whitespace: up to the last line end of the run;
 * without a line end, all but the last space if something follows, otherwise all. */
static const char *spaces(const char *p, const char *end, bool newlines) {
    const char *line_end = NULL, *last = p, *begin = p;

    while (p < end) {
        glyph g = look(p, end);
        if (!ml_char_is_space(g.c))
            break;
        if (newlines && is_newline(g.c))
            line_end = g.next;
        last = p;
        p = g.next;
    }
    if (line_end)
        return line_end;
    return p == end || last == begin ? p : last;
}

/* --- GPT-2 ------------------------------------------------------------------ */

/* Letters, digits, or neither nor whitespace: the class of c, as categories to skip. */
static const char *skip_others(const ml_unicode *u, const char *p, const char *end,
                               uint32_t not_gcs) {
    while (p < end) {
        glyph g = look(p, end);
        if (ml_char_in(u, g.c, not_gcs) || ml_char_is_space(g.c))
            break;
        p = g.next;
    }
    return p;
}

static bool scan_gpt2(const ml_pattern *pat, ml_str text, size_t from, size_t *begin,
                      size_t *end_at) {
    const ml_unicode *u = pat->unicode;
    const char *p = text.ptr + from, *end = text.ptr + text.len, *q = NULL, *body;
    glyph g = look(p, end);

    if (p == end)
        return false;
    if (g.c == '\'')
        q = contraction(p, end, false);
    if (!q) {
        body = g.c == ' ' && g.next < end ? g.next : p;
        g = look(body, end);
        if (ml_char_in(u, g.c, ML_GCS_L))
            q = skip_gcs(u, body, end, ML_GCS_L);
        else if (ml_char_in(u, g.c, ML_GCS_N))
            q = skip_gcs(u, body, end, ML_GCS_N);
        else if (!ml_char_is_space(g.c))
            q = skip_others(u, body, end, ML_GCS_L | ML_GCS_N);
        else
            q = spaces(p, end, false);
    }
    *begin = from;
    *end_at = (size_t)(q - text.ptr);
    return true;
}

/* --- GPT-4, Llama 3, Qwen --------------------------------------------------- */

static const char *digits(const ml_unicode *u, const char *p, const char *end, int most) {
    for (int i = 0; i < most && p < end; i++) {
        glyph g = look(p, end);
        if (!ml_char_in(u, g.c, ML_GCS_N))
            break;
        p = g.next;
    }
    return p;
}

static const char *gpt4_at(const ml_pattern *pat, const char *p, const char *end) {
    const ml_unicode *u = pat->unicode;
    uint32_t letters = pat->letters;
    glyph g = look(p, end), next;
    const char *q, *body;

    if (ml_char_in(u, g.c, letters))
        return skip_gcs(u, g.next, end, letters);
    if (g.c == '\'') {
        q = contraction(p, end, true);
        if (q)
            return q;
    }
    if (ml_char_in(u, g.c, ML_GCS_N))
        return digits(u, p, end, pat->digits);
    next = look(g.next, end);
    if (g.next < end && !is_newline(g.c) && ml_char_in(u, next.c, letters))
        return skip_gcs(u, next.next, end, letters);
    body = g.c == ' ' && g.next < end && !ml_char_is_space(next.c) &&
                   !ml_char_in(u, next.c, letters | ML_GCS_N)
               ? g.next
               : p;
    if (body != p || !ml_char_is_space(g.c))
        return skip_newlines(skip_others(u, body, end, letters | ML_GCS_N), end);
    return spaces(p, end, true);
}

static bool scan_gpt4(const ml_pattern *pat, ml_str text, size_t from, size_t *begin,
                      size_t *end_at) {
    if (from == text.len)
        return false;
    *begin = from;
    *end_at = (size_t)(gpt4_at(pat, text.ptr + from, text.ptr + text.len) - text.ptr);
    return true;
}

/* --- DeepSeek --------------------------------------------------------------- */

static bool scan_digits(const ml_pattern *pat, ml_str text, size_t from, size_t *begin,
                        size_t *end_at) {
    const char *p = text.ptr + from, *end = text.ptr + text.len;

    while (p < end) {
        glyph g = look(p, end);
        if (ml_char_in(pat->unicode, g.c, ML_GCS_N)) {
            *begin = (size_t)(p - text.ptr);
            *end_at = (size_t)(digits(pat->unicode, p, end, pat->digits) - text.ptr);
            return true;
        }
        p = g.next;
    }
    return false;
}

static bool is_cjk(uint32_t c) {
    return (c >= 0x4e00 && c <= 0x9fa5) || (c >= 0x3040 && c <= 0x30ff);
}

static bool scan_cjk(const ml_pattern *pat, ml_str text, size_t from, size_t *begin,
                     size_t *end_at) {
    const char *p = text.ptr + from, *end = text.ptr + text.len, *first = NULL;

    (void)pat;
    while (p < end) {
        glyph g = look(p, end);
        if (is_cjk(g.c)) {
            first = first ? first : p;
        } else if (first) {
            break;
        }
        p = g.next;
    }
    if (!first)
        return false;
    *begin = (size_t)(first - text.ptr);
    *end_at = (size_t)(p - text.ptr);
    return true;
}

static bool is_ascii_letter(uint32_t c) {
    return (c | 32) >= 'a' && (c | 32) <= 'z';
}

static bool is_ascii_punct(uint32_t c) {
    return c > 0x20 && c < 0x7f && !is_ascii_letter(c) && !(c >= '0' && c <= '9');
}

/* The match that begins at p, or NULL: digits and control characters have none. */
static const char *deepseek_at(const ml_unicode *u, const char *p, const char *end) {
    const uint32_t letters = ML_GCS_L | ML_GCS_M, marks = ML_GCS_P | ML_GCS_S;
    glyph g = look(p, end), next = look(g.next, end);
    bool more = g.next < end;
    const char *q = g.next;

    if (is_ascii_punct(g.c) && more && is_ascii_letter(next.c)) {
        while (q < end && is_ascii_letter((unsigned char)*q))
            q++;
        return q;
    }
    if (more && !is_newline(g.c) && !ml_char_in(u, g.c, ML_GCS_L | marks) &&
        ml_char_in(u, next.c, letters))
        return skip_gcs(u, next.next, end, letters);
    if (ml_char_in(u, g.c, letters))
        return skip_gcs(u, g.next, end, letters);
    if (ml_char_in(u, g.c, marks))
        return skip_newlines(skip_gcs(u, p, end, marks), end);
    if (g.c == ' ' && more && ml_char_in(u, next.c, marks))
        return skip_newlines(skip_gcs(u, g.next, end, marks), end);
    return ml_char_is_space(g.c) ? spaces(p, end, true) : NULL;
}

static bool scan_deepseek(const ml_pattern *pat, ml_str text, size_t from, size_t *begin,
                          size_t *end_at) {
    const char *p = text.ptr + from, *end = text.ptr + text.len;

    while (p < end) {
        const char *q = deepseek_at(pat->unicode, p, end);
        if (q) {
            *begin = (size_t)(p - text.ptr);
            *end_at = (size_t)(q - text.ptr);
            return true;
        }
        ml_utf8_next(&p);
    }
    return false;
}

/* --- which pattern is which ------------------------------------------------- */

#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)|"
#define GPT4(number)                                                                       \
    CONTRACTIONS "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" number                                   \
                 "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

void ml_scan_choose(ml_pattern *pat, ml_str source, const ml_unicode *u) {
    static const struct {
        const char *source;
        ml_scan_fn *scan;
        uint32_t letters;
        int digits;
    } rows[] = {
        { ml_scan_gpt2, scan_gpt2, ML_GCS_L, 0 },
        { GPT4("\\p{N}"), scan_gpt4, ML_GCS_L, 1 },
        { GPT4("\\p{N}{1,3}"), scan_gpt4, ML_GCS_L, 3 },
        { CONTRACTIONS
          "[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}"
          "| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
          scan_gpt4, ML_GCS_L | ML_GCS_M, 1 },
        { "\\p{N}{1,3}", scan_digits, 0, 3 },
        { "[一-龥぀-ゟ゠-ヿ]+", scan_cjk, 0, 0 },
        { "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?"
          "[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
          scan_deepseek, 0, 0 },
    };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (ml_str_is(source, rows[i].source)) {
            pat->scan = rows[i].scan;
            pat->letters = rows[i].letters;
            pat->digits = rows[i].digits;
        }
    pat->unicode = u;
}
