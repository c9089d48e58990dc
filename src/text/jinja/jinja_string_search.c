/* String methods that search, classify characters, or split. */
#include "text/jinja/jinja_priv.h"

/* The start and end of a search, in bytes; false if start is after the end. */
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
    at = from_right ? ml_jstr_rfind(r, in, needle, in.len) : ml_jstr_find(in, needle, 0);
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
    return affix(r, self, a, "startswith", ml_jstr_begins);
}
static ml_jval str_endswith(ml_jrun *r, ml_jval self, const ml_jargs *a) {
    return affix(r, self, a, "endswith", ml_jstr_ends);
}

/* --- classes of characters
 * -------------------------------------------------------------- */

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
static ml_jval str_isidentifier(ml_jrun *r, ml_jval self, const ml_jargs *a) {
    const char *p = self.s->ptr, *end = p + self.s->len;
    bool ok = p < end;

    (void)r, (void)a;
    for (bool first = true; ok && p < end; first = false)
        ok = ml_jchar_is_id(ml_utf8_next(&p), first);
    return ml_jbool(ok);
}

/* --- splitting ------------------------------------------------------------------------ */

/* Splits at runs of whitespace; after `max` cuts, the rest keeps its trailing
 * whitespace. */
static ml_jval split_space(ml_jrun *r, ml_jval self, int64_t max) {
    ml_str rest = ml_jstr_strip(ml_jstr_get(self), (ml_str){ 0 }, ML_J_LEFT);
    ml_jitems l = { 0 };

    while (rest.len) {
        const char *p = rest.ptr, *end = rest.ptr + rest.len, *stop = end;
        if (max >= 0 && l.n == max) {
            ml_jitems_add(r, &l, ml_jstr_like(r, self, rest));
            break;
        }
        while (p < end) {
            const char *at = p;
            if (ml_jchar_is_space(ml_utf8_next(&p))) {
                stop = at;
                break;
            }
        }
        ml_jitems_add(
            r, &l, ml_jstr_like(r, self, (ml_str){ rest.ptr, (size_t)(stop - rest.ptr) }));
        rest =
            ml_jstr_strip((ml_str){ stop, (size_t)(end - stop) }, (ml_str){ 0 }, ML_J_LEFT);
    }
    return ml_jitems_list(r, &l);
}

static ml_jval split_at(ml_jrun *r, ml_jval self, ml_str sep, int64_t max) {
    ml_str s = ml_jstr_get(self);
    size_t at = 0, found;
    ml_jitems l = { 0 };

    while ((max < 0 || l.n < max) && (found = ml_jstr_find(s, sep, at)) != SIZE_MAX) {
        ml_jitems_add(r, &l, ml_jstr_like(r, self, (ml_str){ s.ptr + at, found - at }));
        at = found + sep.len;
    }
    ml_jitems_add(r, &l, ml_jstr_like(r, self, (ml_str){ s.ptr + at, s.len - at }));
    return ml_jitems_list(r, &l);
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
            r, &l,
            ml_jstr_like(r, self, (ml_str){ stop, (size_t)(rest.ptr + rest.len - stop) }));
        rest = ml_jstr_strip((ml_str){ rest.ptr, (size_t)(stop - rest.ptr) }, (ml_str){ 0 },
                             ML_J_RIGHT);
    }
    if (rest.len)
        ml_jitems_add(r, &l, ml_jstr_like(r, self, rest));
    reverse(&l);
    return ml_jitems_list(r, &l);
}

static ml_jval rsplit_at(ml_jrun *r, ml_jval self, ml_str sep, int64_t max) {
    ml_str s = ml_jstr_get(self);
    size_t end = s.len, found;
    ml_jitems l = { 0 };

    while (l.n < max && (found = ml_jstr_rfind(r, s, sep, end)) != SIZE_MAX) {
        size_t begin = found + sep.len;
        ml_jitems_add(r, &l, ml_jstr_like(r, self, (ml_str){ s.ptr + begin, end - begin }));
        end = found;
    }
    ml_jitems_add(r, &l, ml_jstr_like(r, self, (ml_str){ s.ptr, end }));
    reverse(&l);
    return ml_jitems_list(r, &l);
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
        ml_jitems_add(
            r, &l,
            ml_jstr_like(r, self, (ml_str){ line, (size_t)((keep ? p : at) - line) }));
        line = p;
    }
    if (line < end)
        ml_jitems_add(r, &l, ml_jstr_like(r, self, (ml_str){ line, (size_t)(end - line) }));
    return ml_jitems_list(r, &l);
}

static ml_jval three(ml_jrun *r, ml_jval self, ml_str s, size_t at, size_t sep) {
    ml_jval part[] = { ml_jstr_like(r, self, (ml_str){ s.ptr, at }),
                       ml_jstr_like(r, self, (ml_str){ s.ptr + at, sep }),
                       ml_jstr_like(r, self,
                                    (ml_str){ s.ptr + at + sep, s.len - at - sep }) };
    return ml_jseq_new(r, ML_J_TUPLE, part, 3);
}

static ml_jval str_partition(ml_jrun *r, ml_jval self, const ml_jargs *a) {
    ml_str s = ml_jstr_get(self), sep = separator(r, a);
    size_t at = ml_jstr_find(s, sep, 0);
    return at == SIZE_MAX ? three(r, self, s, s.len, 0) : three(r, self, s, at, sep.len);
}
static ml_jval str_rpartition(ml_jrun *r, ml_jval self, const ml_jargs *a) {
    ml_str s = ml_jstr_get(self), sep = separator(r, a);
    size_t at = ml_jstr_rfind(r, s, sep, s.len);
    return at == SIZE_MAX ? three(r, self, s, 0, 0) : three(r, self, s, at, sep.len);
}

const ml_jnative ml_jmethods_str_search[] = {
    { "startswith", str_startswith, "prefix start end", 1, false },
    { "endswith", str_endswith, "suffix start end", 1, false },
    { "find", str_find, "sub start end", 1, false },
    { "rfind", str_rfind, "sub start end", 1, false },
    { "index", str_index, "sub start end", 1, false },
    { "rindex", str_rindex, "sub start end", 1, false },
    { "count", str_count, "sub start end", 1, false },
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
    { "isidentifier", str_isidentifier, "", 0, false },
    { "split", str_split, "sep maxsplit", 0, false },
    { "rsplit", str_rsplit, "sep maxsplit", 0, false },
    { "splitlines", str_splitlines, "keepends", 0, false },
    { "partition", str_partition, "sep", 1, false },
    { "rpartition", str_rpartition, "sep", 1, false },
    { 0 },
};
