#include "rl/reward/answer.h"

#include <string.h>

#define BOX_TRIES 64     /* boxes that are examined, from the last backwards */
#define BOX_BYTES 100000 /* maximum size of a box that can be an answer */

/* --- text --------------------------------------------------------------------- */

static bool is_at(ml_str s, size_t i, const char *needle, size_t n) {
    return s.len - i >= n && memcmp(s.ptr + i, needle, n) == 0;
}

size_t ml_str_last(ml_str s, const char *needle) {
    size_t n = strlen(needle);

    for (size_t i = s.len; i-- > 0;)
        if (is_at(s, i, needle, n))
            return i;
    return s.len;
}

size_t ml_str_first(ml_str s, const char *needle) {
    const char *p = s.len ? memmem(s.ptr, s.len, needle, strlen(needle)) : NULL;

    return p ? (size_t)(p - s.ptr) : s.len;
}

ml_str ml_str_from(ml_str s, size_t at) {
    at = at < s.len ? at : s.len;
    return (ml_str){ s.ptr + at, s.len - at };
}

static bool is_blank(char c) {
    return c == ' ' || (c >= '\t' && c <= '\r');
}

size_t ml_str_blank(ml_str s) {
    static const char *const wide[] = { "\xc2\x85", "\u00a0", "\u1680", "\u2028",
                                        "\u2029",   "\u202f", "\u205f", "\u3000" };

    if (s.len == 0)
        return 0;
    if ((unsigned char)s.ptr[0] < 0x80)
        return is_blank(s.ptr[0]) || (s.ptr[0] >= 0x1c && s.ptr[0] <= 0x1f);
    for (size_t i = 0; i < sizeof wide / sizeof *wide; i++)
        if (s.len >= strlen(wide[i]) && is_at(s, 0, wide[i], strlen(wide[i])))
            return strlen(wide[i]);
    if (s.len >= 3 && is_at(s, 0, "\xe2\x80", 2) && (unsigned char)s.ptr[2] >= 0x80 &&
        (unsigned char)s.ptr[2] <= 0x8a)
        return 3; /* U+2000 to U+200A */
    return 0;
}

ml_str ml_str_trim(ml_str s) {
    size_t n;

    while ((n = ml_str_blank(s)) > 0)
        s = ml_str_from(s, n);
    for (size_t width = 1; width <= 3 && width <= s.len; width++)
        if (ml_str_blank(ml_str_from(s, s.len - width)) == width) {
            s.len -= width;
            width = 0;
        }
    return s;
}

bool ml_str_begins_nocase(ml_str s, const char *lower) {
    for (size_t i = 0; lower[i]; i++) {
        char c = i < s.len ? s.ptr[i] : 0;
        if (c >= 'A' && c <= 'Z')
            c = (char)(c + 'a' - 'A');
        if (c != lower[i])
            return false;
    }
    return true;
}

/* --- boxes -------------------------------------------------------------------- */

/* The text between the brace at `open` and the matching one. */
static bool braced(ml_str s, size_t open, bool escapes, ml_str *out) {
    int depth = 0;

    for (size_t i = open; i < s.len && i - open < BOX_BYTES; i++) {
        if (escapes && s.ptr[i] == '\\')
            i++;
        else if (s.ptr[i] == '{')
            depth++;
        else if (s.ptr[i] == '}' && --depth == 0) {
            *out = (ml_str){ s.ptr + open + 1, i - open - 1 };
            return true;
        }
    }
    return false;
}

bool ml_answer_last_box(ml_str s, ml_str *out) {
    size_t at = ml_str_last(s, "\\boxed");

    return at < s.len && is_at(s, at, "\\boxed{", 7) && braced(s, at + 6, false, out);
}

/* "\boxed 7": the text up to white space. */
static bool unbraced(ml_str s, size_t at, ml_str *out) {
    size_t to = at;

    while (to < s.len && !is_blank(s.ptr[to]) && !strchr("$.,{}[", s.ptr[to]))
        to++;
    *out = (ml_str){ s.ptr + at, to - at };
    return to > at && (to == s.len || !strchr("{[", s.ptr[to]));
}

/* The content of the box whose macro, of n letters, begins at `at`. */
static bool box_at(ml_str s, size_t at, size_t n, ml_str *out) {
    size_t open = at + n;

    while (open < s.len && is_blank(s.ptr[open]))
        open++;
    if (open < s.len && s.ptr[open] == '{')
        return braced(s, open, true, out) || braced(s, open, false, out);
    return open > at + n && unbraced(s, open, out);
}

static bool last_whole_box(ml_str s, const char *macro, ml_str *out) {
    size_t n = strlen(macro);
    ml_str head = s;

    for (int tries = 0; tries < BOX_TRIES; tries++) {
        size_t at = ml_str_last(head, macro);
        if (at == head.len)
            return false;
        if (box_at(s, at, n, out))
            return true;
        head.len = at;
    }
    return false;
}

bool ml_answer_box(ml_str s, ml_str *out) {
    if (ml_str_first(s, "\\boxed") < s.len)
        return last_whole_box(s, "\\boxed", out);
    return last_whole_box(s, "\\fbox", out);
}

bool ml_answer_outer_box(ml_str s, ml_str *out) {
    ml_str head = s, box;

    if (!ml_answer_box(s, out))
        return false;
    for (int tries = 0; tries < BOX_TRIES; tries++) {
        size_t at = ml_str_last(head, "\\boxed");
        if (at == head.len)
            break;
        if (box_at(s, at, 6, &box) && box.ptr < out->ptr &&
            box.ptr + box.len > out->ptr + out->len)
            *out = box;
        head.len = at;
    }
    return true;
}

/* --- lines -------------------------------------------------------------------- */

/* Removes Markdown emphasis at both ends. */
static ml_str without_emphasis(ml_str s) {
    s = ml_str_trim(s);
    while (s.len && (s.ptr[0] == '*' || s.ptr[0] == '_' || s.ptr[0] == '`'))
        s = ml_str_from(s, 1);
    while (s.len && (s.ptr[s.len - 1] == '*' || s.ptr[s.len - 1] == '`'))
        s.len--;
    return ml_str_trim(s);
}

/* The text after "answer:", with emphasis allowed anywhere around the words and the
 * colon. */
static bool after_answer(ml_str s, ml_str *out) {
    static const char *const fronts[] = { "the ", "my ", "final ", "correct ", NULL };

    for (const char *const *front = fronts; *front; front++)
        if (ml_str_begins_nocase(s, *front))
            s = ml_str_trim(ml_str_from(s, strlen(*front)));
    if (!ml_str_begins_nocase(s, "answer"))
        return false;
    s = ml_str_from(s, 6);
    while (s.len && (s.ptr[0] == '*' || s.ptr[0] == '_' || s.ptr[0] == ' '))
        s = ml_str_from(s, 1);
    if (!ml_str_begins_nocase(s, ":") && !ml_str_begins_nocase(s, "："))
        return false;
    *out = without_emphasis(ml_str_from(s, s.ptr[0] == ':' ? 1 : 3));
    return true;
}

bool ml_answer_line(ml_str s, ml_str *out) {
    ml_str last;

    s = ml_str_trim(s);
    last = ml_str_from(s, ml_str_last(s, "\n") + 1);
    if (last.len == 0 || last.len == s.len)
        return false;
    if (ml_str_begins_nocase(last, "####"))
        *out = without_emphasis(ml_str_from(last, 4));
    else if (!after_answer(without_emphasis(last), out))
        return false;
    return out->len > 0;
}
