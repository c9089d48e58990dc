/* The methods of strings that cut them: at white space, separators, ends of lines. */
#include "text/jinja/jinja_priv.h"

/* At runs of white space; what is left after `max` cuts keeps its end. */
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

const ml_jnative ml_jmethods_str_split[] = {
    { "split", str_split, "sep maxsplit", 0, false },
    { "rsplit", str_rsplit, "sep maxsplit", 0, false },
    { "splitlines", str_splitlines, "keepends", 0, false },
    { "partition", str_partition, "sep", 1, false },
    { "rpartition", str_rpartition, "sep", 1, false },
    { 0 },
};
