/* The methods of strings.  Those that give text keep the mark of `safe`. */
#include <string.h>

#include "text/jinja_priv.h"

/* Text that comes from self. */
static ml_jval like(ml_jrun *r, ml_jval self, ml_str s) {
    return ml_jstr_mark(r, ml_jstr_view(r, s), self.s->markup);
}

static ml_jval like_buf(ml_jrun *r, ml_jval self, const ml_jbuf *b) {
    return ml_jstr_mark(r, ml_jbuf_value(r, b), self.s->markup);
}

/* --- case ------------------------------------------------------------------------------------- */

static ml_jval in_case(ml_jrun *r, ml_jval self, ml_jcase how) {
    ml_jbuf b = { 0 };
    ml_jbuf_case(r, &b, ml_jstr_get(self), how);
    return like_buf(r, self, &b);
}

static ml_jval str_upper(ml_jrun *r, ml_jval self, const ml_jargs *a) {
    (void)a;
    return in_case(r, self, ML_J_UPPER);
}
static ml_jval str_lower(ml_jrun *r, ml_jval self, const ml_jargs *a) {
    (void)a;
    return in_case(r, self, ML_J_LOWER);
}
static ml_jval str_casefold(ml_jrun *r, ml_jval self, const ml_jargs *a) {
    (void)a;
    return in_case(r, self, ML_J_FOLD);
}
static ml_jval str_title(ml_jrun *r, ml_jval self, const ml_jargs *a) {
    ml_jbuf b = { 0 };
    (void)a;
    ml_jbuf_title(r, &b, ml_jstr_get(self));
    return like_buf(r, self, &b);
}
static ml_jval str_capitalize(ml_jrun *r, ml_jval self, const ml_jargs *a) {
    ml_jbuf b = { 0 };
    (void)a;
    ml_jbuf_capitalize(r, &b, ml_jstr_get(self));
    return like_buf(r, self, &b);
}
static ml_jval str_swapcase(ml_jrun *r, ml_jval self, const ml_jargs *a) {
    const char *p = self.s->ptr, *end = p + self.s->len;
    ml_jbuf b = { 0 };

    (void)a;
    while (p < end) {
        const char *at = p;
        uint32_t c = ml_utf8_next(&p);
        ml_jbuf_case(r, &b, (ml_str){ at, (size_t)(p - at) },
                     ml_jchar_is(c, ML_J_IS_UPPER) ? ML_J_LOWER : ML_J_UPPER);
    }
    return like_buf(r, self, &b);
}

/* --- stripping and padding ---------------------------------------------------------------------- */

static ml_jval strip(ml_jrun *r, ml_jval self, const ml_jargs *a, ml_jside sides) {
    ml_str set = { 0 };

    if (ml_jarg_given(a, 0) && a->arg[0].kind != ML_J_NONE)
        set = ml_jarg_str(r, a, 0, set);
    return like(r, self, ml_jstr_strip(ml_jstr_get(self), set, sides));
}

static ml_jval str_strip(ml_jrun *r, ml_jval self, const ml_jargs *a) {
    return strip(r, self, a, ML_J_BOTH);
}
static ml_jval str_lstrip(ml_jrun *r, ml_jval self, const ml_jargs *a) {
    return strip(r, self, a, ML_J_LEFT);
}
static ml_jval str_rstrip(ml_jrun *r, ml_jval self, const ml_jargs *a) {
    return strip(r, self, a, ML_J_RIGHT);
}

static bool begins(ml_str s, ml_str with) {
    return s.len >= with.len && (with.len == 0 || memcmp(s.ptr, with.ptr, with.len) == 0);
}

static bool finishes(ml_str s, ml_str with) {
    return s.len >= with.len &&
           (with.len == 0 || memcmp(s.ptr + s.len - with.len, with.ptr, with.len) == 0);
}

static ml_jval str_removeprefix(ml_jrun *r, ml_jval self, const ml_jargs *a) {
    ml_str s = ml_jstr_get(self), prefix = ml_jarg_str(r, a, 0, s);
    size_t n = begins(s, prefix) ? prefix.len : 0;
    return like(r, self, (ml_str){ s.ptr + n, s.len - n });
}
static ml_jval str_removesuffix(ml_jrun *r, ml_jval self, const ml_jargs *a) {
    ml_str s = ml_jstr_get(self), suffix = ml_jarg_str(r, a, 0, s);
    return like(r, self, (ml_str){ s.ptr, s.len - (finishes(s, suffix) ? suffix.len : 0) });
}

static uint32_t fill_char(ml_jrun *r, const ml_jargs *a) {
    size_t n;

    if (!ml_jarg_given(a, 1))
        return ' ';
    if (a->arg[1].kind != ML_J_STR || a->arg[1].s->n_char != 1)
        ml_jraise(r, "TypeError", "The fill character must be exactly one character long");
    return ml_jchar_at(a->arg[1].s->ptr, &n);
}

static ml_jval padded(ml_jrun *r, ml_jval self, uint32_t fill, int64_t left,
                      int64_t right) {
    ml_jbuf b = { 0 };

    ml_jbuf_fill(r, &b, fill, left);
    ml_jbuf_str(r, &b, ml_jstr_get(self));
    ml_jbuf_fill(r, &b, fill, right);
    return like_buf(r, self, &b);
}

static int64_t lacking(ml_jrun *r, ml_jval self, const ml_jargs *a) {
    int64_t width = ml_jarg_int(r, a, 0, 0);
    return width > self.s->n_char ? width - self.s->n_char : 0;
}

static ml_jval str_ljust(ml_jrun *r, ml_jval self, const ml_jargs *a) {
    return padded(r, self, fill_char(r, a), 0, lacking(r, self, a));
}
static ml_jval str_rjust(ml_jrun *r, ml_jval self, const ml_jargs *a) {
    return padded(r, self, fill_char(r, a), lacking(r, self, a), 0);
}
/* An odd one out goes where Python puts it. */
static ml_jval str_center(ml_jrun *r, ml_jval self, const ml_jargs *a) {
    int64_t n = lacking(r, self, a), width = self.s->n_char + n;
    int64_t left = n / 2 + (n & width & 1);
    return padded(r, self, fill_char(r, a), left, n - left);
}
static ml_jval str_zfill(ml_jrun *r, ml_jval self, const ml_jargs *a) {
    int64_t n = lacking(r, self, a);
    ml_str s = ml_jstr_get(self);
    size_t sign = s.len && (s.ptr[0] == '-' || s.ptr[0] == '+');
    ml_jbuf b = { 0 };

    ml_jbuf_add(r, &b, s.ptr, sign);
    ml_jbuf_fill(r, &b, '0', n);
    ml_jbuf_add(r, &b, s.ptr + sign, s.len - sign);
    return like_buf(r, self, &b);
}
static ml_jval str_expandtabs(ml_jrun *r, ml_jval self, const ml_jargs *a) {
    int64_t size = ml_jarg_int(r, a, 0, 8), column = 0;
    const char *p = self.s->ptr, *end = p + self.s->len;
    ml_jbuf b = { 0 };

    while (p < end) {
        uint32_t c = ml_utf8_next(&p);
        if (c == '\t') {
            int64_t n = size > 0 ? size - column % size : 0;
            ml_jbuf_fill(r, &b, ' ', n);
            column += n;
        } else {
            ml_jbuf_char(r, &b, c);
            column = c == '\n' || c == '\r' ? 0 : column + 1;
        }
    }
    return like_buf(r, self, &b);
}

/* --- searching ------------------------------------------------------------------------------------ */

/* start and end of a search, in bytes; false when start lies behind the end. */
static bool search_range(ml_jrun *r, ml_jval self, const ml_jargs *a, ml_str *out,
                         size_t *offset) {
    int64_t n = self.s->n_char, start = 0, end = n;
    size_t from, to;

    if (ml_jarg_given(a, 1) && a->arg[1].kind != ML_J_NONE)
        start = ml_jarg_int(r, a, 1, 0);
    if (ml_jarg_given(a, 2) && a->arg[2].kind != ML_J_NONE)
        end = ml_jarg_int(r, a, 2, 0);
    start = start < 0 ? (start + n < 0 ? 0 : start + n) : start;
    end = end < 0 ? (end + n < 0 ? 0 : end + n) : end > n ? n : end;
    if (start > end)
        return false;
    from = ml_jstr_offset(self, start);
    to = ml_jstr_offset(self, end);
    *out = (ml_str){ self.s->ptr + from, to - from };
    *offset = from;
    return true;
}

static int64_t find(ml_jrun *r, ml_jval self, const ml_jargs *a, bool from_right) {
    ml_str in, needle = ml_jarg_str(r, a, 0, (ml_str){ 0 });
    size_t offset, at;

    if (!search_range(r, self, a, &in, &offset))
        return -1;
    ml_jrun_step(r, (int64_t)in.len / 64);
    at = from_right ? ml_jstr_rfind(in, needle, in.len) : ml_jstr_find(in, needle, 0);
    if (at == SIZE_MAX)
        return -1;
    return ml_jstr_count_chars((ml_str){ self.s->ptr, offset + at });
}

static ml_jval str_find(ml_jrun *r, ml_jval self, const ml_jargs *a) {
    return ml_jint(find(r, self, a, false));
}
static ml_jval str_rfind(ml_jrun *r, ml_jval self, const ml_jargs *a) {
    return ml_jint(find(r, self, a, true));
}

static ml_jval found_or_raise(ml_jrun *r, int64_t i) {
    if (i < 0)
        ml_jraise(r, "ValueError", "substring not found");
    return ml_jint(i);
}

static ml_jval str_index(ml_jrun *r, ml_jval self, const ml_jargs *a) {
    return found_or_raise(r, find(r, self, a, false));
}
static ml_jval str_rindex(ml_jrun *r, ml_jval self, const ml_jargs *a) {
    return found_or_raise(r, find(r, self, a, true));
}

static ml_jval str_count(ml_jrun *r, ml_jval self, const ml_jargs *a) {
    ml_str in, needle = ml_jarg_str(r, a, 0, (ml_str){ 0 });
    size_t offset, at = 0;
    int64_t n = 0;

    if (!search_range(r, self, a, &in, &offset))
        return ml_jint(0);
    if (!needle.len)
        return ml_jint(ml_jstr_count_chars(in) + 1);
    while ((at = ml_jstr_find(in, needle, at)) != SIZE_MAX) {
        at += needle.len;
        n++;
    }
    return ml_jint(n);
}

static ml_jval affix(ml_jrun *r, ml_jval self, const ml_jargs *a, const char *name,
                     bool (*has)(ml_str, ml_str)) {
    ml_jval with = a->arg[0];
    ml_str in;
    size_t offset;

    if (!search_range(r, self, a, &in, &offset))
        return ml_jbool(false);
    if (with.kind == ML_J_STR)
        return ml_jbool(has(in, ml_jstr_get(with)));
    if (with.kind != ML_J_TUPLE)
        ml_jraise(r, "TypeError", "%s first arg must be str or a tuple of str, not %s",
                  name, ml_jval_type(with));
    for (int64_t i = 0; i < with.seq->n; i++) {
        if (with.seq->item[i].kind != ML_J_STR)
            ml_jraise(r, "TypeError", "tuple for %s must only contain str, not %s", name,
                      ml_jval_type(with.seq->item[i]));
        if (has(in, ml_jstr_get(with.seq->item[i])))
            return ml_jbool(true);
    }
    return ml_jbool(false);
}

static ml_jval str_startswith(ml_jrun *r, ml_jval self, const ml_jargs *a) {
    return affix(r, self, a, "startswith", begins);
}
static ml_jval str_endswith(ml_jrun *r, ml_jval self, const ml_jargs *a) {
    return affix(r, self, a, "endswith", finishes);
}

/* --- splitting and joining --------------------------------------------------------------------- */

static ml_jval list_of(ml_jrun *r, const ml_jitems *l) {
    return ml_jseq_new(r, ML_J_LIST, l->item, l->n);
}

/* At runs of white space; what is left after `max` cuts keeps its end. */
static ml_jval split_space(ml_jrun *r, ml_jval self, int64_t max) {
    ml_str rest = ml_jstr_strip(ml_jstr_get(self), (ml_str){ 0 }, ML_J_LEFT);
    ml_jitems l = { 0 };

    while (rest.len) {
        const char *p = rest.ptr, *end = rest.ptr + rest.len, *stop = end;
        if (max >= 0 && l.n == max) {
            ml_jitems_add(r, &l, like(r, self, rest));
            break;
        }
        while (p < end) {
            const char *at = p;
            if (ml_jchar_is_space(ml_utf8_next(&p))) {
                stop = at;
                break;
            }
        }
        ml_jitems_add(r, &l,
                      like(r, self, (ml_str){ rest.ptr, (size_t)(stop - rest.ptr) }));
        rest =
            ml_jstr_strip((ml_str){ stop, (size_t)(end - stop) }, (ml_str){ 0 }, ML_J_LEFT);
    }
    return list_of(r, &l);
}

static ml_jval split_at(ml_jrun *r, ml_jval self, ml_str sep, int64_t max) {
    ml_str s = ml_jstr_get(self);
    size_t at = 0, found;
    ml_jitems l = { 0 };

    while ((max < 0 || l.n < max) && (found = ml_jstr_find(s, sep, at)) != SIZE_MAX) {
        ml_jitems_add(r, &l, like(r, self, (ml_str){ s.ptr + at, found - at }));
        at = found + sep.len;
    }
    ml_jitems_add(r, &l, like(r, self, (ml_str){ s.ptr + at, s.len - at }));
    return list_of(r, &l);
}

static bool wants_space(const ml_jargs *a) {
    return !ml_jarg_given(a, 0) || a->arg[0].kind == ML_J_NONE;
}

static ml_str separator(ml_jrun *r, const ml_jargs *a) {
    ml_str sep = ml_jarg_str(r, a, 0, (ml_str){ 0 });
    if (!sep.len)
        ml_jraise(r, "ValueError", "empty separator");
    return sep;
}

static ml_jval str_split(ml_jrun *r, ml_jval self, const ml_jargs *a) {
    int64_t max = ml_jarg_int(r, a, 1, -1);
    return wants_space(a) ? split_space(r, self, max)
                          : split_at(r, self, separator(r, a), max);
}

static void reverse(ml_jitems *l) {
    for (int64_t i = 0; i < l->n / 2; i++) {
        ml_jval t = l->item[i];
        l->item[i] = l->item[l->n - 1 - i];
        l->item[l->n - 1 - i] = t;
    }
}

static ml_jval rsplit_space(ml_jrun *r, ml_jval self, int64_t max) {
    ml_str rest = ml_jstr_strip(ml_jstr_get(self), (ml_str){ 0 }, ML_J_RIGHT);
    ml_jitems l = { 0 };

    while (rest.len && l.n < max) {
        const char *p = rest.ptr + rest.len, *stop = rest.ptr;
        while (p > rest.ptr) {
            const char *behind = p;
            if (ml_jchar_is_space(ml_utf8_prev(&p))) {
                stop = behind;
                break;
            }
        }
        ml_jitems_add(
            r, &l, like(r, self, (ml_str){ stop, (size_t)(rest.ptr + rest.len - stop) }));
        rest = ml_jstr_strip((ml_str){ rest.ptr, (size_t)(stop - rest.ptr) }, (ml_str){ 0 },
                             ML_J_RIGHT);
    }
    if (rest.len)
        ml_jitems_add(r, &l, like(r, self, rest));
    reverse(&l);
    return list_of(r, &l);
}

static ml_jval rsplit_at(ml_jrun *r, ml_jval self, ml_str sep, int64_t max) {
    ml_str s = ml_jstr_get(self);
    size_t end = s.len, found;
    ml_jitems l = { 0 };

    while (l.n < max && (found = ml_jstr_rfind(s, sep, end)) != SIZE_MAX) {
        size_t begin = found + sep.len;
        ml_jitems_add(r, &l, like(r, self, (ml_str){ s.ptr + begin, end - begin }));
        end = found;
    }
    ml_jitems_add(r, &l, like(r, self, (ml_str){ s.ptr, end }));
    reverse(&l);
    return list_of(r, &l);
}

static ml_jval str_rsplit(ml_jrun *r, ml_jval self, const ml_jargs *a) {
    int64_t max = ml_jarg_int(r, a, 1, -1);

    if (max < 0)
        return str_split(r, self, a);
    return wants_space(a) ? rsplit_space(r, self, max)
                          : rsplit_at(r, self, separator(r, a), max);
}

static bool is_line_end(uint32_t c) {
    return (c >= 0x0a && c <= 0x0d) || (c >= 0x1c && c <= 0x1e) || c == 0x85 ||
           c == 0x2028 || c == 0x2029;
}

static ml_jval str_splitlines(ml_jrun *r, ml_jval self, const ml_jargs *a) {
    const char *p = self.s->ptr, *end = p + self.s->len, *line = p;
    bool keep = ml_jarg_bool(r, a, 0, false);
    ml_jitems l = { 0 };

    while (p < end) {
        const char *at = p;
        uint32_t c = ml_utf8_next(&p);
        if (!is_line_end(c))
            continue;
        if (c == '\r' && p < end && *p == '\n')
            p++;
        ml_jitems_add(r, &l,
                      like(r, self, (ml_str){ line, (size_t)((keep ? p : at) - line) }));
        line = p;
    }
    if (line < end)
        ml_jitems_add(r, &l, like(r, self, (ml_str){ line, (size_t)(end - line) }));
    return list_of(r, &l);
}

static ml_jval three(ml_jrun *r, ml_jval self, ml_str s, size_t at, size_t sep) {
    ml_jval part[] = { like(r, self, (ml_str){ s.ptr, at }),
                       like(r, self, (ml_str){ s.ptr + at, sep }),
                       like(r, self, (ml_str){ s.ptr + at + sep, s.len - at - sep }) };
    return ml_jseq_new(r, ML_J_TUPLE, part, 3);
}

static ml_jval str_partition(ml_jrun *r, ml_jval self, const ml_jargs *a) {
    ml_str s = ml_jstr_get(self), sep = separator(r, a);
    size_t at = ml_jstr_find(s, sep, 0);
    return at == SIZE_MAX ? three(r, self, s, s.len, 0) : three(r, self, s, at, sep.len);
}
static ml_jval str_rpartition(ml_jrun *r, ml_jval self, const ml_jargs *a) {
    ml_str s = ml_jstr_get(self), sep = separator(r, a);
    size_t at = ml_jstr_rfind(s, sep, s.len);
    return at == SIZE_MAX ? three(r, self, s, 0, 0) : three(r, self, s, at, sep.len);
}

static ml_jval str_join(ml_jrun *r, ml_jval self, const ml_jargs *a) {
    ml_jiter *it;
    ml_jval item;
    ml_jbuf b = { 0 };

    if (!ml_jval_iterable(a->arg[0]))
        ml_jraise(r, "TypeError", "can only join an iterable");
    it = ml_jiter_over(r, a->arg[0]);
    for (int64_t i = 0; ml_jiter_next(r, it, &item); i++) {
        if (item.kind != ML_J_STR && !self.s->markup)
            ml_jraise(r, "TypeError", "sequence item %lld: expected str instance, %s found",
                      (long long)i, ml_jval_type(item));
        if (i)
            ml_jbuf_str(r, &b, ml_jstr_get(self));
        ml_jval_print(r, &b, self.s->markup ? ml_jval_escape(r, item) : item);
    }
    return like_buf(r, self, &b);
}

static ml_jval str_replace(ml_jrun *r, ml_jval self, const ml_jargs *a) {
    ml_jval with = a->arg[1];
    ml_jbuf b = { 0 };

    ml_jarg_str(r, a, 1, (ml_str){ 0 });
    if (self.s->markup)
        with = ml_jval_escape(r, with);
    ml_jbuf_replace(r, &b, ml_jstr_get(self), ml_jarg_str(r, a, 0, (ml_str){ 0 }),
                    ml_jstr_get(with), ml_jarg_int(r, a, 2, -1));
    return like_buf(r, self, &b);
}

static ml_jval str_format(ml_jrun *r, ml_jval self, const ml_jargs *a) {
    return ml_jformat_braces(r, self, a);
}

/* --- what kind of characters ----------------------------------------------------------------------- */

static ml_jval all_are(ml_jval self, bool (*is)(uint32_t)) {
    const char *p = self.s->ptr, *end = p + self.s->len;

    if (p == end)
        return ml_jbool(false);
    while (p < end)
        if (!is(ml_utf8_next(&p)))
            return ml_jbool(false);
    return ml_jbool(true);
}

static bool alpha(uint32_t c) {
    return ml_jchar_is(c, ML_J_ALPHA);
}
static bool decimal(uint32_t c) {
    return ml_jchar_is(c, ML_J_DECIMAL);
}
static bool digit(uint32_t c) {
    return decimal(c) || c == 0xb2 || c == 0xb3 || c == 0xb9 ||
           (c >= 0x2070 && c <= 0x2089);
}
static bool numeric(uint32_t c) {
    return ml_jchar_is(c, ML_J_NUMERIC);
}
static bool alnum(uint32_t c) {
    return alpha(c) || numeric(c);
}
static bool ascii(uint32_t c) {
    return c < 0x80;
}

static ml_jval str_isalpha(ml_jrun *r, ml_jval self, const ml_jargs *a) {
    (void)r, (void)a;
    return all_are(self, alpha);
}
static ml_jval str_isalnum(ml_jrun *r, ml_jval self, const ml_jargs *a) {
    (void)r, (void)a;
    return all_are(self, alnum);
}
static ml_jval str_isdecimal(ml_jrun *r, ml_jval self, const ml_jargs *a) {
    (void)r, (void)a;
    return all_are(self, decimal);
}
static ml_jval str_isdigit(ml_jrun *r, ml_jval self, const ml_jargs *a) {
    (void)r, (void)a;
    return all_are(self, digit);
}
static ml_jval str_isnumeric(ml_jrun *r, ml_jval self, const ml_jargs *a) {
    (void)r, (void)a;
    return all_are(self, numeric);
}
static ml_jval str_isspace(ml_jrun *r, ml_jval self, const ml_jargs *a) {
    (void)r, (void)a;
    return all_are(self, ml_jchar_is_space);
}
static ml_jval str_isascii(ml_jrun *r, ml_jval self, const ml_jargs *a) {
    (void)r, (void)a;
    return self.s->len ? all_are(self, ascii) : ml_jbool(true);
}
static ml_jval str_isupper(ml_jrun *r, ml_jval self, const ml_jargs *a) {
    return ml_jtest_find(ml_str_of("upper"))->fn(r, self, a);
}
static ml_jval str_islower(ml_jrun *r, ml_jval self, const ml_jargs *a) {
    return ml_jtest_find(ml_str_of("lower"))->fn(r, self, a);
}
static ml_jval str_istitle(ml_jrun *r, ml_jval self, const ml_jargs *a) {
    ml_jbuf b = { 0 };
    bool cased = false;

    (void)a;
    for (const char *p = self.s->ptr, *end = p + self.s->len; p < end;) {
        uint32_t c = ml_utf8_next(&p);
        cased = cased || ml_jchar_is(c, ML_J_IS_UPPER) || ml_jchar_is(c, ML_J_IS_LOWER);
    }
    ml_jbuf_title(r, &b, ml_jstr_get(self));
    return ml_jbool(cased && ml_str_eq((ml_str){ b.ptr, b.len }, ml_jstr_get(self)));
}

const ml_jnative ml_jmethods_str[] = {
    { "strip", str_strip, "chars", 0, false },
    { "lstrip", str_lstrip, "chars", 0, false },
    { "rstrip", str_rstrip, "chars", 0, false },
    { "split", str_split, "sep maxsplit", 0, false },
    { "rsplit", str_rsplit, "sep maxsplit", 0, false },
    { "splitlines", str_splitlines, "keepends", 0, false },
    { "startswith", str_startswith, "prefix start end", 1, false },
    { "endswith", str_endswith, "suffix start end", 1, false },
    { "replace", str_replace, "old new count", 2, false },
    { "upper", str_upper, "", 0, false },
    { "lower", str_lower, "", 0, false },
    { "title", str_title, "", 0, false },
    { "capitalize", str_capitalize, "", 0, false },
    { "swapcase", str_swapcase, "", 0, false },
    { "casefold", str_casefold, "", 0, false },
    { "join", str_join, "iterable", 1, false },
    { "format", str_format, NULL, 0, false },
    { "find", str_find, "sub start end", 1, false },
    { "rfind", str_rfind, "sub start end", 1, false },
    { "index", str_index, "sub start end", 1, false },
    { "rindex", str_rindex, "sub start end", 1, false },
    { "count", str_count, "sub start end", 1, false },
    { "partition", str_partition, "sep", 1, false },
    { "rpartition", str_rpartition, "sep", 1, false },
    { "removeprefix", str_removeprefix, "prefix", 1, false },
    { "removesuffix", str_removesuffix, "suffix", 1, false },
    { "ljust", str_ljust, "width fillchar", 1, false },
    { "rjust", str_rjust, "width fillchar", 1, false },
    { "center", str_center, "width fillchar", 1, false },
    { "zfill", str_zfill, "width", 1, false },
    { "expandtabs", str_expandtabs, "tabsize", 0, false },
    { "isalpha", str_isalpha, "", 0, false },
    { "isalnum", str_isalnum, "", 0, false },
    { "isascii", str_isascii, "", 0, false },
    { "isdecimal", str_isdecimal, "", 0, false },
    { "isdigit", str_isdigit, "", 0, false },
    { "isnumeric", str_isnumeric, "", 0, false },
    { "isspace", str_isspace, "", 0, false },
    { "isupper", str_isupper, "", 0, false },
    { "islower", str_islower, "", 0, false },
    { "istitle", str_istitle, "", 0, false },
    { 0 },
};
