#include "cli/wrap.h"

#include <stdbool.h>
#include <string.h>

enum { LEAST = 20, INDENT = 4 };

/* Length of the character at s, and its columns: East Asian and emoji ranges have two. */
static size_t character(const char *s, int *columns) {
    static const uint32_t wide[][2] = { { 0x1100, 0x115F },  { 0x2E80, 0xA4CF },
                                        { 0xAC00, 0xD7A3 },  { 0xF900, 0xFAFF },
                                        { 0xFE30, 0xFE6F },  { 0xFF00, 0xFF60 },
                                        { 0xFFE0, 0xFFE6 },  { 0x1F300, 0x1FAFF },
                                        { 0x20000, 0x3FFFD } };
    unsigned char c = (unsigned char)s[0];
    size_t n = c >= 0xF0 ? 4 : c >= 0xE0 ? 3 : c >= 0xC0 ? 2 : 1;
    uint32_t code = n == 1 ? c : c & (0xFFU >> (n + 1));

    *columns = 1;
    for (size_t i = 1; i < n; i++) {
        if (((unsigned char)s[i] & 0xC0) != 0x80)
            return 1; /* not UTF-8 */
        code = code << 6 | ((unsigned char)s[i] & 0x3F);
    }
    for (size_t i = 0; i < sizeof wide / sizeof *wide; i++)
        if (code >= wide[i][0] && code <= wide[i][1])
            *columns = 2;
    return n;
}

int ml_columns(ml_str s) {
    int sum = 0;

    for (size_t i = 0; i < s.len;) {
        int columns;
        i += character(s.ptr + i, &columns);
        sum += columns;
    }
    return sum;
}

ml_str ml_clip(ml_str s, int columns) {
    size_t at = 0;

    while (at < s.len) {
        int wide;
        size_t n = character(s.ptr + at, &wide);
        if (wide > columns || at + n > s.len)
            break;
        columns -= wide;
        at += n;
    }
    return (ml_str){ s.ptr, at };
}

/* Length of the longest prefix of s that fits: up to a break position or, without one, as
 * much as fits. */
static size_t piece(const char *s, int width, const char *gap) {
    size_t at = 0, best = 0, blank = strspn(s, " ");
    int sum = 0;

    while (s[at]) {
        int columns;
        size_t n = character(s + at, &columns);
        if (at > blank && strncmp(s + at, gap, strlen(gap)) == 0)
            best = at;
        if (sum + columns > width)
            return best ? best : at;
        sum += columns;
        at += n;
    }
    return at;
}

void ml_wrap(ml_text *out, const char *line, int width) {
    const char *gap = strstr(line + strspn(line, " "), "  ") ? "  " : " ";
    int indent = 0;

    width = width < LEAST ? LEAST : width;
    for (;;) {
        size_t n = piece(line, width - indent, gap);
        ml_text_printf(out, "%*s", indent, "");
        ml_text_add(out, line, n);
        line += n;
        if (!*line)
            return;
        line += strspn(line, " ");
        if (!*line)
            return;
        ml_text_add(out, "\n", 1);
        indent = INDENT;
    }
}
