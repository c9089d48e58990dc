#include "rl/reward/graders/dapo_text.h"

#include <string.h>

#include "rl/reward/answer.h"

#define WINDOW 300 /* characters at the end of a response that Miles examines */

/* Replaces every `from` by `to`. */
static void replace(ml_text *t, const char *from, const char *to) {
    size_t n = strlen(from), i = 0;
    ml_text out = { 0 };

    ml_text_add(&out, "", 0);
    while (i < t->len) {
        bool found = t->len - i >= n && memcmp(t->ptr + i, from, n) == 0;
        ml_text_add(&out, found ? to : t->ptr + i, found ? strlen(to) : 1);
        i += found ? n : 1;
    }
    ml_text_release(t);
    *t = out;
}

static const char *const substitutions[][2] = {
    { "an ", "" },          { "a ", "" },
    { ".$", "$" },          { "\\$", "" },
    { "\\ ", "" },          { " ", "" },
    { "mbox", "text" },     { ",\\text{and}", "," },
    { "\\text{and}", "," }, { "\\text{m}", "\\text{}" },
};

static const char *const removals[] = {
    "square",
    "ways",
    "integers",
    "dollars",
    "mph",
    "inches",
    "hours",
    "km",
    "units",
    "\\ldots",
    "sue",
    "points",
    "feet",
    "minutes",
    "digits",
    "cents",
    "degrees",
    "cm",
    "gm",
    "pounds",
    "meters",
    "meals",
    "edges",
    "students",
    "childrentickets",
    "multiples",
    "\\text{s}",
    "\\text{.}",
    "\\text{\ns}",
    "\\text{}^2",
    "\\text{}^3",
    "\\text{\n}",
    "\\text{}",
    "\\mathrm{th}",
    "^\\circ",
    "^{\\circ}",
    "\\;",
    ",\\!",
    "{,}",
    "\"",
    "\\dots",
    "<|im_end|>",
    "<|endoftext|>",
};

/* Reduces "a $b$ c $d$ e" to "$b$", the text between the first two dollar signs. */
static void keep_first_dollars(ml_text *t) {
    char *a = t->len ? memchr(t->ptr, '$', t->len) : NULL, *b;
    size_t n;

    b = a ? memchr(a + 1, '$', (size_t)(t->ptr + t->len - a - 1)) : NULL;
    if (!b)
        return;
    n = (size_t)(b - a) + 1;
    memmove(t->ptr, a, n);
    t->len = n;
    t->ptr[n] = 0;
}

/* Replaces every use of a macro by its argument: up to the next closing brace or, if
 * greedy, up to the last. */
static void unwrap(ml_text *t, const char *macro, bool greedy) {
    size_t n = strlen(macro), from = 0;

    for (;;) {
        char *at = t->len > from ? memmem(t->ptr + from, t->len - from, macro, n) : NULL,
             *end;
        size_t inside;
        if (!at)
            return;
        inside = (size_t)(t->ptr + t->len - at) - n;
        end = greedy ? memrchr(at + n, '}', inside) : memchr(at + n, '}', inside);
        if (!end || memchr(at, '\n', (size_t)(end - at)))
            return;
        memmove(at, at + n, (size_t)(end - at) - n);
        memmove(end - n, end + 1, (size_t)(t->ptr + t->len - end));
        from = (size_t)(end - n - t->ptr);
        t->len -= n + 1;
    }
}

/* frac12 becomes frac{1}{2}, sqrt3 becomes sqrt{3}: braces each of the `n` characters
 * after the word. */
static void brace(ml_text *t, const char *word, int n) {
    size_t len = strlen(word), i = 0;
    ml_text out = { 0 };

    ml_text_add(&out, "", 0);
    while (i < t->len) {
        ml_str rest = { t->ptr + i, t->len - i };
        size_t at = 0;
        ml_text_add(&out, t->ptr + i, 1);
        i++;
        if (rest.len <= len || memcmp(rest.ptr, word, len) != 0 || rest.ptr[len] == '{')
            continue;
        ml_text_add(&out, rest.ptr + 1, len - 1);
        i += len - 1;
        rest = ml_str_from(rest, len);
        for (int k = 0; k < n && at < rest.len; k++) {
            size_t width = 1;
            while (at + width < rest.len &&
                   ((unsigned char)rest.ptr[at + width] & 0xc0) == 0x80)
                width++;
            ml_text_printf(&out, "{%.*s}", (int)width, rest.ptr + at);
            at += width;
        }
        i += at;
    }
    ml_text_release(t);
    *t = out;
}

/* Removes commas if only digits are left without them. */
static void drop_commas(ml_text *t) {
    bool digit = false;

    for (size_t i = 0; i < t->len; i++) {
        if (t->ptr[i] != ',' && (t->ptr[i] < '0' || t->ptr[i] > '9'))
            return;
        digit = digit || t->ptr[i] != ',';
    }
    if (digit)
        replace(t, ",", "");
}

void ml_dapo_normalize(ml_text *out, ml_str answer) {
    size_t equals = ml_str_last(answer, "=");
    ml_text t = { 0 };
    ml_str s = equals < answer.len ? ml_str_from(answer, equals + 1) : answer;

    ml_text_add(&t, s.ptr, s.len);
    for (size_t i = 0; i < sizeof substitutions / sizeof *substitutions; i++)
        replace(&t, substitutions[i][0], substitutions[i][1]);
    for (size_t i = 0; i < sizeof removals / sizeof *removals; i++)
        replace(&t, removals[i], "");
    keep_first_dollars(&t);
    unwrap(&t, "\\text{", false);
    unwrap(&t, "\\textbf{", false);
    unwrap(&t, "\\overline{", false);
    unwrap(&t, "\\boxed{", true);
    brace(&t, "frac", 2);
    brace(&t, "sqrt", 1);
    replace(&t, "$", "");
    drop_commas(&t);
    s = ml_str_trim((ml_str){ t.ptr, t.len });
    ml_text_add(out, s.ptr, s.len);
    ml_text_release(&t);
}

/* The last WINDOW characters. */
static ml_str window(ml_str s) {
    size_t at = s.len;

    for (int n = 0; n < WINDOW && at > 0; n++) {
        at--;
        while (at > 0 && ((unsigned char)s.ptr[at] & 0xc0) == 0x80)
            at--;
    }
    return ml_str_from(s, at);
}

static ml_str skip_blanks(ml_str s) {
    size_t n;

    while ((n = ml_str_blank(s)) > 0)
        s = ml_str_from(s, n);
    return s;
}

/* The first "answer", white space, colon, white space and a line, from `from` on; 0:
 * none. */
static size_t next_line(ml_str s, size_t from, ml_str *out) {
    for (size_t i = from; i + 6 < s.len; i++) {
        ml_str rest = ml_str_from(s, i);
        if (!ml_str_begins_nocase(rest, "answer"))
            continue;
        rest = skip_blanks(ml_str_from(rest, 6));
        if (rest.len < 2 || rest.ptr[0] != ':')
            continue;
        *out = skip_blanks(ml_str_from(rest, 1));
        if (out->len == 0) /* only white space: its last character is the answer */
            *out = ml_str_from(rest, rest.len - 1);
        if (out->ptr[0] == '\n')
            continue;
        out->len = ml_str_first(*out, "\n");
        return (size_t)(out->ptr + out->len - s.ptr);
    }
    return 0;
}

ml_str ml_dapo_pred(ml_text *room, ml_str response) {
    ml_str s = window(response), line = { 0 };
    size_t at = 0, next;

    while ((next = next_line(s, at, &line)) > 0)
        at = next;
    if (at == 0)
        return ml_str_of("[INVALID]");
    ml_text_add(room, "", 0);
    ml_dapo_normalize(room, line);
    return (ml_str){ room->ptr, room->len };
}
