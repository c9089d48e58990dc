/* Character properties as in Python: whitespace, words, case; and searching in UTF-8.
 *
 * unicode.h follows the Unicode version and the rules of tokenizers; those of Python differ
 * (whitespace, case mappings), so templates have their own functions. */
#include <string.h>
#include <utf8proc.h>

#include "text/jinja/jinja_priv.h"

static utf8proc_category_t category(uint32_t c) {
    return utf8proc_category((utf8proc_int32_t)c);
}

bool ml_jchar_is_space(uint32_t c) {
    if (c < 0x80)
        return c == ' ' || (c >= 0x09 && c <= 0x0d) || (c >= 0x1c && c <= 0x1f);
    return c == 0x85 || c == 0x2028 || c == 0x2029 || category(c) == UTF8PROC_CATEGORY_ZS;
}

bool ml_jchar_printable(uint32_t c) {
    switch (category(c)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP: return false;
    case UTF8PROC_CATEGORY_ZS: return c == ' ';
    default: return true;
    }
}

bool ml_jchar_is(uint32_t c, ml_jclass what) {
    utf8proc_category_t k = category(c);

    switch (what) {
    case ML_J_ALPHA: return k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO;
    case ML_J_DECIMAL: return k == UTF8PROC_CATEGORY_ND;
    case ML_J_NUMERIC: return k >= UTF8PROC_CATEGORY_ND && k <= UTF8PROC_CATEGORY_NO;
    case ML_J_IS_UPPER: return k == UTF8PROC_CATEGORY_LU;
    case ML_J_IS_LOWER: return k == UTF8PROC_CATEGORY_LL;
    }
    return false;
}

bool ml_jchar_is_word(uint32_t c) {
    utf8proc_category_t k = category(c);
    return c == '_' || (k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_NO) ||
           k == UTF8PROC_CATEGORY_PC;
}

/* Characters that Unicode adds to or removes from the identifier categories:
 * Other_ID_Start, Other_ID_Continue, Pattern_Syntax, and characters that NFKC would
 * decompose. */
static bool is_in(uint32_t c, const uint32_t (*range)[2]) {
    for (; (*range)[1]; range++)
        if (c >= (*range)[0] && c <= (*range)[1])
            return true;
    return false;
}

bool ml_jchar_is_id(uint32_t c, bool first) {
    static const uint32_t starts[][2] = {
        { '_', '_' }, { 0x1885, 0x1886 }, { 0x2118, 0x2118 }, { 0x212e, 0x212e }, { 0, 0 }
    };
    static const uint32_t goes_on[][2] = {
        { 0xb7, 0xb7 }, { 0x387, 0x387 }, { 0x1369, 0x1371 }, { 0x19da, 0x19da }, { 0, 0 }
    };
    static const uint32_t never[][2] = {
        { 0x37a, 0x37a },   { 0x2e2f, 0x2e2f }, { 0x309b, 0x309c }, { 0xfc5e, 0xfc63 },
        { 0xfdfa, 0xfdfb }, { 0xfe70, 0xfe70 }, { 0xfe72, 0xfe72 }, { 0xfe74, 0xfe74 },
        { 0xfe76, 0xfe76 }, { 0xfe78, 0xfe78 }, { 0xfe7a, 0xfe7a }, { 0xfe7c, 0xfe7c },
        { 0xfe7e, 0xfe7e }, { 0, 0 },
    };
    static const uint32_t not_first[][2] = {
        { 0xe33, 0xe33 }, { 0xeb3, 0xeb3 }, { 0xff9e, 0xff9f }, { 0, 0 }
    };
    utf8proc_category_t k = category(c);
    bool letter = (k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO) ||
                  k == UTF8PROC_CATEGORY_NL || is_in(c, starts);

    if (is_in(c, never))
        return false;
    if (first)
        return letter && !is_in(c, not_first);
    return letter || k == UTF8PROC_CATEGORY_MN || k == UTF8PROC_CATEGORY_MC ||
           k == UTF8PROC_CATEGORY_ND || k == UTF8PROC_CATEGORY_PC || is_in(c, goes_on);
}

int64_t ml_jstr_count_chars(ml_str s) {
    int64_t n = 0;
    for (size_t i = 0; i < s.len; i++)
        n += ((unsigned char)s.ptr[i] & 0xc0) != 0x80;
    return n;
}

size_t ml_jstr_offset(ml_jval s, int64_t i) {
    size_t at = 0;

    if ((size_t)s.s->n_char == s.s->len)
        return (size_t)i;
    for (; i > 0; i--) {
        do
            at++;
        while (at < s.s->len && ((unsigned char)s.s->ptr[at] & 0xc0) == 0x80);
    }
    return at;
}

size_t ml_jstr_find(ml_str hay, ml_str needle, size_t from) {
    const char *p;

    if (needle.len == 0)
        return from;
    if (from >= hay.len)
        return SIZE_MAX;
    p = memmem(hay.ptr + from, hay.len - from, needle.ptr, needle.len);
    return p ? (size_t)(p - hay.ptr) : SIZE_MAX;
}

size_t ml_jstr_rfind(ml_jrun *r, ml_str hay, ml_str needle, size_t before) {
    if (needle.len > before)
        return SIZE_MAX;
    for (size_t i = before - needle.len + 1; i-- > 0;) {
        if (needle.len == 0)
            return i;
        if (hay.ptr[i] != needle.ptr[0])
            continue;
        ml_jrun_step(r, (int64_t)needle.len / 64);
        if (memcmp(hay.ptr + i, needle.ptr, needle.len) == 0)
            return i;
    }
    return SIZE_MAX;
}

bool ml_jstr_begins(ml_str s, ml_str with) {
    return s.len >= with.len && (with.len == 0 || memcmp(s.ptr, with.ptr, with.len) == 0);
}

bool ml_jstr_ends(ml_str s, ml_str with) {
    return s.len >= with.len &&
           (with.len == 0 || memcmp(s.ptr + s.len - with.len, with.ptr, with.len) == 0);
}

static bool in_set(uint32_t c, ml_str set) {
    if (!set.ptr)
        return ml_jchar_is_space(c);
    for (const char *p = set.ptr, *end = p + set.len; p < end;)
        if (ml_utf8_next(&p) == c)
            return true;
    return false;
}

ml_str ml_jstr_strip(ml_str s, ml_str set, ml_jside sides) {
    const char *begin = s.ptr, *end = s.ptr + s.len;

    while ((sides & ML_J_LEFT) && begin < end) {
        const char *p = begin;
        if (!in_set(ml_utf8_next(&p), set))
            break;
        begin = p;
    }
    while ((sides & ML_J_RIGHT) && begin < end) {
        const char *p = end;
        if (!in_set(ml_utf8_prev(&p), set))
            break;
        end = p;
    }
    return (ml_str){ begin, (size_t)(end - begin) };
}

/* --- case ------------------------------------------------------------------------------- */

static const struct special {
    uint32_t c, upper[3], title[3];
} specials[] = {
#include "text/jinja/jinja_casing.inc"
};

static const struct special *special_of(uint32_t c) {
    size_t low = 0, high = sizeof specials / sizeof *specials;

    while (low < high) {
        size_t mid = (low + high) / 2;
        if (specials[mid].c == c)
            return &specials[mid];
        if (specials[mid].c < c)
            low = mid + 1;
        else
            high = mid;
    }
    return NULL;
}

static void add_special(ml_jrun *r, ml_jbuf *b, const uint32_t c[3]) {
    for (int i = 0; i < 3 && c[i]; i++)
        ml_jbuf_char(r, b, c[i]);
}

static bool is_cased(uint32_t c) {
    utf8proc_category_t k = category(c);
    return k == UTF8PROC_CATEGORY_LU || k == UTF8PROC_CATEGORY_LL ||
           k == UTF8PROC_CATEGORY_LT;
}

static bool is_case_ignorable(uint32_t c) {
    utf8proc_category_t k = category(c);
    return c == '\'' || c == '.' || c == ':' || c == 0xb7 || c == 0x2019 ||
           k == UTF8PROC_CATEGORY_MN || k == UTF8PROC_CATEGORY_ME ||
           k == UTF8PROC_CATEGORY_CF || k == UTF8PROC_CATEGORY_LM ||
           k == UTF8PROC_CATEGORY_SK;
}

/* True if the capital sigma at `at` ends a word. */
static bool is_final_sigma(ml_str s, const char *at) {
    const char *p = at, *end = s.ptr + s.len;
    uint32_t c = 0;

    while (p > s.ptr) {
        c = ml_utf8_prev(&p);
        if (!is_case_ignorable(c))
            break;
    }
    if (!is_cased(c))
        return false;
    for (p = at + 2; p < end;) {
        c = ml_utf8_next(&p);
        if (!is_case_ignorable(c))
            return !is_cased(c);
    }
    return true;
}

static void add_lower(ml_jrun *r, ml_jbuf *b, uint32_t c, ml_str s, const char *at) {
    if (c == 0x3a3) {
        ml_jbuf_char(r, b, is_final_sigma(s, at) ? 0x3c2 : 0x3c3);
    } else if (c == 0x130) {
        ml_jbuf_char(r, b, 'i');
        ml_jbuf_char(r, b, 0x307);
    } else {
        ml_jbuf_char(r, b, (uint32_t)utf8proc_tolower((utf8proc_int32_t)c));
    }
}

static void add_fold(ml_jrun *r, ml_jbuf *b, uint32_t c) {
    utf8proc_int32_t out[4];
    int boundary = 0;
    utf8proc_ssize_t n =
        utf8proc_decompose_char((utf8proc_int32_t)c, out, 4, UTF8PROC_CASEFOLD, &boundary);

    for (utf8proc_ssize_t i = 0; i < n && i < 4; i++)
        ml_jbuf_char(r, b, (uint32_t)out[i]);
}

/* at: the position of c in s */
static void add_case(ml_jrun *r, ml_jbuf *b, uint32_t c, ml_jcase how, ml_str s,
                     const char *at) {
    const struct special *special = special_of(c);

    if (how == ML_J_LOWER)
        add_lower(r, b, c, s, at);
    else if (how == ML_J_FOLD)
        add_fold(r, b, c);
    else if (special)
        add_special(r, b, how == ML_J_UPPER ? special->upper : special->title);
    else if (how == ML_J_UPPER)
        ml_jbuf_char(r, b, (uint32_t)utf8proc_toupper((utf8proc_int32_t)c));
    else
        ml_jbuf_char(r, b, (uint32_t)utf8proc_totitle((utf8proc_int32_t)c));
}

void ml_jbuf_case(ml_jrun *r, ml_jbuf *b, ml_str s, ml_jcase how) {
    const char *p = s.ptr, *end = s.ptr + s.len;

    while (p < end) {
        const char *at = p;
        uint32_t c = ml_utf8_next(&p);
        add_case(r, b, c, how, s, at);
    }
}

void ml_jbuf_title(ml_jrun *r, ml_jbuf *b, ml_str s) {
    const char *p = s.ptr, *end = s.ptr + s.len;
    bool in_word = false;

    while (p < end) {
        const char *at = p;
        uint32_t c = ml_utf8_next(&p);
        add_case(r, b, c, in_word ? ML_J_LOWER : ML_J_TITLE, s, at);
        in_word = is_cased(c);
    }
}

void ml_jbuf_capitalize(ml_jrun *r, ml_jbuf *b, ml_str s) {
    const char *p = s.ptr, *end = s.ptr + s.len;

    while (p < end) {
        const char *at = p;
        uint32_t c = ml_utf8_next(&p);
        add_case(r, b, c, at == s.ptr ? ML_J_TITLE : ML_J_LOWER, s, at);
    }
}

/* --- replacing ----------------------------------------------------------------------------- */

/* Inserts between all characters and at both ends. */
static void insert_everywhere(ml_jrun *r, ml_jbuf *b, ml_str s, ml_str with,
                              int64_t count) {
    const char *p = s.ptr, *end = s.ptr + s.len;

    while (p < end) {
        const char *at = p;
        if (count != 0) {
            ml_jbuf_str(r, b, with);
            count--;
        }
        ml_utf8_next(&p);
        ml_jbuf_add(r, b, at, (size_t)(p - at));
    }
    if (count != 0)
        ml_jbuf_str(r, b, with);
}

void ml_jbuf_replace(ml_jrun *r, ml_jbuf *b, ml_str s, ml_str old, ml_str with,
                     int64_t count) {
    size_t at = 0, found;

    if (old.len == 0) {
        insert_everywhere(r, b, s, with, count);
        return;
    }
    while (count-- != 0 && (found = ml_jstr_find(s, old, at)) != SIZE_MAX) {
        ml_jbuf_add(r, b, s.ptr + at, found - at);
        ml_jbuf_str(r, b, with);
        at = found + old.len;
    }
    ml_jbuf_add(r, b, s.ptr + at, s.len - at);
}

void ml_jbuf_escape(ml_jrun *r, ml_jbuf *b, ml_str s) {
    for (size_t i = 0; i < s.len; i++) {
        switch (s.ptr[i]) {
        case '&': ml_jbuf_str(r, b, ml_str_of("&amp;")); break;
        case '<': ml_jbuf_str(r, b, ml_str_of("&lt;")); break;
        case '>': ml_jbuf_str(r, b, ml_str_of("&gt;")); break;
        case '\'': ml_jbuf_str(r, b, ml_str_of("&#39;")); break;
        case '"': ml_jbuf_str(r, b, ml_str_of("&#34;")); break;
        default: ml_jbuf_add(r, b, s.ptr + i, 1);
        }
    }
}

ml_jval ml_jval_escape(ml_jrun *r, ml_jval v) {
    ml_jbuf b = { 0 };

    v = ml_jval_str(r, v);
    if (v.s->markup)
        return v;
    ml_jbuf_escape(r, &b, ml_jstr_get(v));
    return ml_jstr_mark(r, ml_jbuf_value(r, &b), true);
}
