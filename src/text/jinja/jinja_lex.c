/* The lexer: divides a template into text and tags.  It also handles whitespace around
 * tags: `-` strips, a tag at the start of a line loses its indentation, one newline after a
 * block tag is dropped. */
#include <string.h>

#include "text/jinja/jinja_priv.h"

typedef struct lexer {
    ml_jtoks *out;
    ml_arena *arena;
    ml_jtrap *trap;
    const char *src;
    size_t n, pos;
    bool line_start; /* the last tag consumed the newline after it (or there was none) */
    char open[ML_JINJA_NESTING + 1]; /* the expected closing brackets */
    int32_t n_open;
} lexer;

static void emit(lexer *l, ml_jtok_type type, ml_str text, size_t at) {
    ml_jtoks *o = l->out;

    if (o->n == o->cap) {
        int64_t cap = o->cap ? o->cap * 2 : 64;
        ml_jtok *tok = ML_NEW(l->arena, ml_jtok, cap);
        if (o->n)
            memcpy(tok, o->tok, (size_t)o->n * sizeof *tok);
        o->tok = tok;
        o->cap = cap;
    }
    o->tok[o->n++] = (ml_jtok){ type, text, (uint32_t)at };
}

static ml_str view(const lexer *l, size_t begin, size_t end) {
    return (ml_str){ l->src + begin, end - begin };
}

static bool looking_at(const lexer *l, size_t pos, const char *s) {
    size_t n = strlen(s);
    return pos <= l->n && l->n - pos >= n && memcmp(l->src + pos, s, n) == 0;
}

static size_t skip_space(const lexer *l, size_t pos) {
    while (pos < l->n) {
        size_t k;
        if (!ml_jchar_is_space(ml_jchar_at(l->src + pos, &k)))
            break;
        pos += k;
    }
    return pos;
}

/* The end of a tag at pos ("%}", "#}") with the whitespace that it consumes; 0 if there is
 * none. */
static size_t match_end(const lexer *l, size_t pos, const char *close, bool drop_newline) {
    if (looking_at(l, pos, close)) {
        pos += 2;
        return drop_newline && looking_at(l, pos, "\n") ? pos + 1 : pos;
    }
    if (pos + 1 > l->n || !looking_at(l, pos + 1, close))
        return 0;
    if (l->src[pos] == '-')
        return skip_space(l, pos + 3);
    return l->src[pos] == '+' && drop_newline ? pos + 3 : 0;
}

/* Continues after a tag that ended at `end`. */
static void tag_done(lexer *l, size_t end) {
    l->line_start = l->src[end - 1] == '\n';
    l->pos = end;
}

/* Text up to a tag with this sign after its opening delimiter. */
static void emit_text(lexer *l, size_t begin, size_t end, char sign, bool is_block) {
    ml_str text = view(l, begin, end);

    if (sign == '-') {
        text = ml_jstr_strip(text, (ml_str){ 0 }, ML_J_RIGHT);
    } else if (sign != '+' && is_block) {
        size_t line = text.len;
        while (line > 0 && text.ptr[line - 1] != '\n')
            line--;
        if ((line > 0 || l->line_start) && skip_space(l, begin + line) >= end)
            text.len = line;
    }
    if (text.len)
        emit(l, ML_JT_DATA, text, begin);
}

static char sign_at(const lexer *l, size_t pos) {
    return pos < l->n && (l->src[pos] == '-' || l->src[pos] == '+') ? l->src[pos] : 0;
}

/* "raw" or "endraw" between pos and its end delimiter; returns the position after the
 * word. */
static size_t match_word(const lexer *l, size_t pos, const char *word) {
    pos = skip_space(l, sign_at(l, pos) ? pos + 1 : pos);
    if (!looking_at(l, pos, word))
        return 0;
    return skip_space(l, pos + strlen(word));
}

/* After "{%": the end of a raw tag, or 0 if it is another tag. */
static size_t match_raw(const lexer *l, size_t pos) {
    size_t end = match_word(l, pos, "raw");

    if (end && looking_at(l, end, "%}"))
        return end + 2;
    return end && looking_at(l, end, "-%}") ? skip_space(l, end + 3) : 0;
}

static void lex_raw(lexer *l, size_t begin) {
    l->line_start = l->src[begin - 1] == '\n';
    for (size_t at = begin; at < l->n; at++) {
        size_t word, end;
        if (!looking_at(l, at, "{%"))
            continue;
        word = match_word(l, at + 2, "endraw");
        end = word ? match_end(l, word, "%}", true) : 0;
        if (!end)
            continue;
        emit_text(l, begin, at, sign_at(l, at + 2), true);
        tag_done(l, end);
        return;
    }
    ml_jtrap_throw(l->trap, begin, "TemplateSyntaxError", "Missing end of raw directive");
}

static void lex_comment(lexer *l, size_t begin) {
    for (size_t at = begin; at < l->n; at++) {
        size_t end = match_end(l, at, "#}", true);
        if (end) {
            tag_done(l, end);
            return;
        }
    }
    ml_jtrap_throw(l->trap, begin, "TemplateSyntaxError", "Missing end of comment tag");
}

/* --- inside tags ------------------------------------------------------------------ */

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

static bool is_digit_of(char c, int base) {
    char lower = (char)(c | 0x20);
    if (base == 16 && lower >= 'a' && lower <= 'f')
        return true;
    return is_digit(c) && c - '0' < base;
}

/* Digits with single underscores between them. */
static size_t digits(const lexer *l, size_t pos, int base) {
    for (;;) {
        size_t p = pos + (pos < l->n && l->src[pos] == '_');
        if (p >= l->n || !is_digit_of(l->src[p], base))
            return pos;
        pos = p + 1;
    }
}

static ml_str without_underscores(lexer *l, size_t begin, size_t end) {
    char *s = ml_arena_str(l->arena, l->src + begin, end - begin);
    size_t n = 0;

    for (size_t i = 0; i < end - begin; i++)
        if (s[i] != '_')
            s[n++] = s[i];
    s[n] = 0;
    return (ml_str){ s, n };
}

/* A fraction or exponent makes it a float. */
static size_t match_float(const lexer *l, size_t pos) {
    size_t p = digits(l, pos, 10), q;
    bool is_float = false;

    if (pos > 0 && l->src[pos - 1] == '.')
        return 0;
    if (p + 1 < l->n && l->src[p] == '.' && is_digit(l->src[p + 1])) {
        p = digits(l, p + 1, 10);
        is_float = true;
    }
    if (p < l->n && (l->src[p] | 0x20) == 'e') {
        q = p + 1 + (sign_at(l, p + 1) != 0);
        if (q < l->n && is_digit(l->src[q])) {
            p = digits(l, q, 10);
            is_float = true;
        }
    }
    return is_float ? p : 0;
}

/* 0 may only be followed by zeros, or by a base prefix. */
static size_t match_integer(const lexer *l, size_t pos) {
    static const char letters[] = "box";
    static const int bases[] = { 2, 8, 16 };
    const char *letter;
    size_t end;

    if (l->src[pos] != '0')
        return digits(l, pos, 10);
    letter = pos + 1 < l->n ? strchr(letters, l->src[pos + 1] | 0x20) : NULL;
    if (letter && *letter) {
        end = digits(l, pos + 2, bases[letter - letters]);
        if (end > pos + 2)
            return end;
    }
    end = pos + 1;
    while (end < l->n && (l->src[end] == '0' ||
                          (l->src[end] == '_' && end + 1 < l->n && l->src[end + 1] == '0')))
        end++;
    return end;
}

static void lex_number(lexer *l) {
    size_t end = match_float(l, l->pos);
    ml_jtok_type type = end ? ML_JT_FLOAT : ML_JT_INTEGER;

    if (!end)
        end = match_integer(l, l->pos);
    emit(l, type, without_underscores(l, l->pos, end), l->pos);
    l->pos = end;
}

static size_t match_name(const lexer *l, size_t pos) {
    while (pos < l->n) {
        size_t k;
        if (!ml_jchar_is_word(ml_jchar_at(l->src + pos, &k)))
            break;
        pos += k;
    }
    return pos;
}

static int hex_value(char c) {
    if (is_digit(c))
        return c - '0';
    return is_digit_of(c, 16) ? (c | 0x20) - 'a' + 10 : -1;
}

/* \xXX, \uXXXX, \UXXXXXXXX; p points after the letter. */
static const char *unescape_hex(lexer *l, const char *p, const char *end, int n, char *out,
                                size_t *len) {
    uint32_t c = 0;
    char letter = p[-1];

    for (int i = 0; i < n; i++, p++) {
        if (p == end || hex_value(*p) < 0)
            ml_jtrap_throw(l->trap, l->pos, "TemplateSyntaxError",
                           "truncated \\%c%.*s escape", letter, n, "XXXXXXXX");
        c = c * 16 + (uint32_t)hex_value(*p);
    }
    if (c > 0x10ffff)
        ml_jtrap_throw(l->trap, l->pos, "TemplateSyntaxError", "illegal Unicode character");
    if (c >= 0xd800 && c < 0xe000)
        ml_jtrap_throw(l->trap, l->pos, "TemplateSyntaxError",
                       "\\u%04x is half of a surrogate pair; write \\U and the code point",
                       c);
    *len += (size_t)ml_utf8_put(out + *len, c);
    return p;
}

static const char *unescape_octal(const char *p, const char *end, char *out, size_t *len) {
    uint32_t c = 0;

    for (int i = 0; i < 3 && p < end && is_digit_of(*p, 8); i++)
        c = c * 8 + (uint32_t)(*p++ - '0');
    *len += (size_t)ml_utf8_put(out + *len, c);
    return p;
}

/* Decodes one escape; p points after the backslash.  Unknown escapes are kept unchanged. */
static const char *unescape(lexer *l, const char *p, const char *end, char *out,
                            size_t *len) {
    static const char from[] = "\\'\"abfnrtv", to[] = "\\'\"\a\b\f\n\r\t\v";
    char c = *p++;
    const char *known = strchr(from, c);

    if (c == '\n')
        return p;
    if (c && known) {
        out[(*len)++] = to[known - from];
        return p;
    }
    if (is_digit_of(c, 8))
        return unescape_octal(p - 1, end, out, len);
    if (c == 'x' || c == 'u' || c == 'U')
        return unescape_hex(l, p, end, c == 'x' ? 2 : c == 'u' ? 4 : 8, out, len);
    if (c == 'N')
        ml_jtrap_throw(l->trap, l->pos, "TemplateSyntaxError",
                       "characters by name (\\N) are not supported; write \\u or \\U");
    out[(*len)++] = '\\';
    out[(*len)++] = c;
    return p;
}

static _Noreturn void fail_char(lexer *l) {
    size_t k;
    ml_jchar_at(l->src + l->pos, &k);
    ml_jtrap_throw(l->trap, l->pos, "TemplateSyntaxError",
                   "unexpected char %s%.*s%s at %lld", l->src[l->pos] == '\'' ? "\"" : "'",
                   (int)k, l->src + l->pos, l->src[l->pos] == '\'' ? "\"" : "'",
                   (long long)ml_jstr_count_chars(view(l, 0, l->pos)));
}

static void lex_string(lexer *l) {
    char quote = l->src[l->pos], *out;
    size_t end = l->pos + 1, len = 0;
    const char *p, *stop;

    while (end < l->n && l->src[end] != quote)
        end += l->src[end] == '\\' ? 2 : 1;
    if (end >= l->n)
        fail_char(l);
    /* An escape never grows: \q and the like are kept; octal \1 gives 1 byte, \377 gives 2
     * bytes for 4. */
    out = ml_arena_take(l->arena, end - l->pos + 1, 1);
    stop = l->src + end;
    for (p = l->src + l->pos + 1; p < stop;) {
        if (*p == '\\')
            p = unescape(l, p + 1, stop, out, &len);
        else
            out[len++] = *p++;
    }
    emit(l, ML_JT_STRING, (ml_str){ out, len }, l->pos);
    l->pos = end + 1;
}

static void balance(lexer *l, char c) {
    static const char opening[] = "([{", closing[] = ")]}";
    const char *o = strchr(opening, c), *k = strchr(closing, c);

    if (o) {
        if (l->n_open == ML_JINJA_NESTING)
            ml_jtrap_throw(l->trap, l->pos, "RecursionError",
                           "more than %d nested brackets", ML_JINJA_NESTING);
        l->open[l->n_open++] = closing[o - opening];
    } else if (k) {
        if (!l->n_open)
            ml_jtrap_throw(l->trap, l->pos, "TemplateSyntaxError", "unexpected '%c'", c);
        if (l->open[--l->n_open] != c)
            ml_jtrap_throw(l->trap, l->pos, "TemplateSyntaxError",
                           "unexpected '%c', expected '%c'", c, l->open[l->n_open]);
    }
}

static void lex_operator(lexer *l) {
    static const char *const operators[] = { "//", "**", "==", "!=", ">=", "<=", "+",
                                             "-",  "/",  "*",  "%",  "~",  "[",  "]",
                                             "(",  ")",  "{",  "}",  ">",  "<",  "=",
                                             ".",  ":",  "|",  ",",  ";",  NULL };
    for (int i = 0; operators[i]; i++) {
        if (!looking_at(l, l->pos, operators[i]))
            continue;
        balance(l, operators[i][0]);
        emit(l, ML_JT_OP, ml_str_of(operators[i]), l->pos);
        l->pos += strlen(operators[i]);
        return;
    }
    fail_char(l);
}

static void lex_token(lexer *l) {
    char c = l->src[l->pos];
    size_t end;

    if (is_digit(c)) {
        lex_number(l);
        return;
    }
    if (c == '\'' || c == '"') {
        lex_string(l);
        return;
    }
    end = match_name(l, l->pos);
    if (end == l->pos) {
        lex_operator(l);
        return;
    }
    emit(l, ML_JT_NAME, view(l, l->pos, end), l->pos);
    l->pos = end;
}

/* Reads tokens up to the end of the tag or of the template. */
static void lex_tag(lexer *l, bool is_block) {
    while (l->pos < l->n) {
        size_t end = l->n_open ? 0 : match_end(l, l->pos, is_block ? "%}" : "}}", is_block);
        if (end) {
            emit(l, is_block ? ML_JT_BLOCK_END : ML_JT_PRINT_END, view(l, l->pos, end),
                 l->pos);
            tag_done(l, end);
            return;
        }
        end = skip_space(l, l->pos);
        if (end > l->pos)
            l->pos = end;
        else
            lex_token(l);
    }
}

/* Finds the next "{{", "{%" or "{#"; the length of the source if there is none. */
static size_t find_tag(const lexer *l, size_t pos) {
    for (; pos + 1 < l->n; pos++) {
        const char *brace = memchr(l->src + pos, '{', l->n - pos - 1);
        if (!brace)
            break;
        pos = (size_t)(brace - l->src);
        if (strchr("{%#", brace[1]) && brace[1])
            return pos;
    }
    return l->n;
}

static void lex_next(lexer *l) {
    size_t tag = find_tag(l, l->pos), raw;
    char kind, sign;

    if (tag == l->n) {
        if (tag > l->pos)
            emit(l, ML_JT_DATA, view(l, l->pos, tag), l->pos);
        l->pos = tag;
        return;
    }
    kind = l->src[tag + 1];
    sign = sign_at(l, tag + 2);
    emit_text(l, l->pos, tag, sign, kind != '{');
    l->pos = tag + 2 + (sign != 0);
    raw = kind == '%' ? match_raw(l, tag + 2) : 0;
    if (raw) {
        lex_raw(l, raw);
    } else if (kind == '#') {
        lex_comment(l, l->pos);
    } else {
        emit(l, kind == '%' ? ML_JT_BLOCK_BEGIN : ML_JT_PRINT_BEGIN, view(l, tag, l->pos),
             tag);
        l->n_open = 0;
        lex_tag(l, kind == '%');
    }
}

void ml_jlex(ml_jtoks *out, ml_arena *a, ml_str src, ml_jtrap *trap) {
    lexer l = { .out = out,
                .arena = a,
                .trap = trap,
                .src = src.ptr,
                .n = src.len,
                .line_start = true };

    *out = (ml_jtoks){ 0 };
    while (l.pos < l.n)
        lex_next(&l);
    emit(&l, ML_JT_END, (ml_str){ "", 0 }, out->n ? out->tok[out->n - 1].at : 0);
}
