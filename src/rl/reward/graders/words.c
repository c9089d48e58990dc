#include "rl/reward/graders/words.h"

#include <string.h>

#include "text/unicode.h"

#define SIGMA 0x3a3
#define FINAL_SIGMA 0x3c2

/* Non-ASCII signs, accents and spaces, by Unicode block; all other characters are part of
 * words. */
static bool is_word_char(uint32_t c) {
    if (c < 0x80)
        return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || c == '_';
    if (c < 0xc0)
        return c == 0xaa || c == 0xb2 || c == 0xb3 || c == 0xb5 || c == 0xb9 || c == 0xba ||
               (c >= 0xbc && c <= 0xbe);
    return c != 0xd7 && c != 0xf7 && (c < 0x300 || c > 0x36f) &&
           (c < 0x2000 || c > 0x206f) && (c < 0x2190 || c > 0x2bff) &&
           (c < 0x3000 || c > 0x3004) && (c < 0x3008 || c > 0x3020) &&
           (c < 0xff00 || c > 0xff0f) && (c < 0xff1a || c > 0xff20) && c < 0x1f000;
}

/* A capital sigma at the end of a word has a separate lower-case form. */
static bool is_word_char_before(const ml_text *t) {
    const char *p = t->ptr + t->len;
    return is_word_char(ml_utf8_prev(&p));
}

static bool ends_word(const char *p, const char *end) {
    uint32_t lower[2];

    if (p == end)
        return true;
    ml_char_lower(ml_utf8_next(&p), lower);
    return !is_word_char(lower[0]);
}

void ml_text_lower(ml_text *out, ml_str s) {
    const char *p = s.ptr ? s.ptr : "", *end = p + s.len;
    bool whole = ml_utf8_valid(s) == s.len;

    ml_text_add(out, "", 0);
    while (p < end) {
        uint32_t lower[2], c;
        char bytes[4];
        int n;
        if (!whole || (unsigned char)*p < 0x80) {
            bytes[0] = *p >= 'A' && *p <= 'Z' ? (char)(*p + 32) : *p;
            p++;
            ml_text_add(out, bytes, 1);
            continue;
        }
        c = ml_utf8_next(&p);
        n = ml_char_lower(c, lower);
        if (c == SIGMA && out->len > 0 && is_word_char_before(out) && ends_word(p, end))
            lower[0] = FINAL_SIGMA;
        for (int i = 0; i < n; i++)
            ml_text_add(out, bytes, (size_t)ml_utf8_put(bytes, lower[i]));
    }
}

static void drop_punctuation(ml_text *t) {
    static const char marks[] = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~";
    size_t n = 0;

    for (size_t i = 0; i < t->len; i++)
        if (t->ptr[i] == 0 || !strchr(marks, t->ptr[i]))
            t->ptr[n++] = t->ptr[i];
    t->len = n;
    if (t->ptr)
        t->ptr[n] = 0;
}

/* As Python's str.split() does. */
static bool is_space(uint32_t c) {
    return ml_char_is_space(c) || (c >= 0x1c && c <= 0x1f);
}

static bool is_article(ml_str s) {
    return ml_str_is(s, "a") || ml_str_is(s, "an") || ml_str_is(s, "the");
}

/* Splits the bytes between two spaces into words: an article delimited by signs is
 * removed, and the text on its two sides becomes two words. */
static void add_run(ml_words *w, const char *from, const char *end) {
    const char *p = from;

    while (p < end) {
        const char *begin = p, *q = p;
        if (!is_word_char(ml_utf8_next(&q))) {
            p = q;
            continue;
        }
        while (p < end) {
            q = p;
            if (!is_word_char(ml_utf8_next(&q)))
                break;
            p = q;
        }
        if (!is_article((ml_str){ begin, (size_t)(p - begin) }))
            continue;
        if (begin > from)
            w->word[w->n++] = (ml_str){ from, (size_t)(begin - from) };
        from = p;
    }
    if (end > from)
        w->word[w->n++] = (ml_str){ from, (size_t)(end - from) };
}

void ml_words_init(ml_words *w, ml_arena *a, ml_str text) {
    ml_text lower = { 0 };
    const char *p, *end;

    ml_text_lower(&lower, text);
    drop_punctuation(&lower);
    /* Two words are separated by at least one byte. */
    *w = (ml_words){ .word = ML_NEW(a, ml_str, lower.len / 2 + 2) };
    p = ml_arena_str(a, lower.ptr, lower.len);
    end = p + lower.len;
    if (ml_utf8_valid((ml_str){ p, lower.len }) < lower.len)
        end = p; /* not text: no words */
    ml_text_release(&lower);
    while (p < end) {
        const char *from = p, *q = p;
        while (p < end) {
            q = p;
            if (is_space(ml_utf8_next(&q)))
                break;
            p = q;
        }
        add_run(w, from, p);
        p = q;
    }
}
