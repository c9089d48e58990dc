/* The methods of strings that ask: where something is, and what kind of characters they are. */
#include "text/jinja/jinja_priv.h"

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

const ml_jnative ml_jmethods_str_ask[] = {
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
    { 0 },
};
