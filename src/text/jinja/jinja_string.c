/* String methods that return strings, and maketrans.  A result is marked as safe if the
 * receiver is. */
#include "text/jinja/jinja_priv.h"

ml_jval ml_jstr_like(ml_jrun *r, ml_jval from, ml_str s) {
    return ml_jstr_mark(r, ml_jstr_view(r, s), from.s->markup);
}

/* --- case ------------------------------------------------------------------------------------- */

static ml_jval in_case(ml_jrun *r, ml_jval self, ml_jcase how) {
    ml_jbuf b = { 0 };
    ml_jbuf_case(r, &b, ml_jstr_get(self), how);
    return ml_jbuf_like(r, self, &b);
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
    return ml_jbuf_like(r, self, &b);
}
static ml_jval str_capitalize(ml_jrun *r, ml_jval self, const ml_jargs *a) {
    ml_jbuf b = { 0 };
    (void)a;
    ml_jbuf_capitalize(r, &b, ml_jstr_get(self));
    return ml_jbuf_like(r, self, &b);
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
    return ml_jbuf_like(r, self, &b);
}

/* --- stripping and padding ---------------------------------------------------------------------- */

static ml_jval strip(ml_jrun *r, ml_jval self, const ml_jargs *a, ml_jside sides) {
    ml_str set = { 0 };

    if (ml_jarg_given(a, 0) && a->arg[0].kind != ML_J_NONE)
        set = ml_jarg_str(r, a, 0, set);
    /* Each character may be compared with the whole set. */
    ml_jrun_step(r, (int64_t)(self.s->len / 64 * set.len));
    return ml_jstr_like(r, self, ml_jstr_strip(ml_jstr_get(self), set, sides));
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

static ml_jval str_removeprefix(ml_jrun *r, ml_jval self, const ml_jargs *a) {
    ml_str s = ml_jstr_get(self), prefix = ml_jarg_str(r, a, 0, s);
    size_t n = ml_jstr_begins(s, prefix) ? prefix.len : 0;
    return ml_jstr_like(r, self, (ml_str){ s.ptr + n, s.len - n });
}
static ml_jval str_removesuffix(ml_jrun *r, ml_jval self, const ml_jargs *a) {
    ml_str s = ml_jstr_get(self), suffix = ml_jarg_str(r, a, 0, s);
    return ml_jstr_like(
        r, self, (ml_str){ s.ptr, s.len - (ml_jstr_ends(s, suffix) ? suffix.len : 0) });
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
    return ml_jbuf_like(r, self, &b);
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
/* An odd padding character is placed as in Python. */
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
    return ml_jbuf_like(r, self, &b);
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
    return ml_jbuf_like(r, self, &b);
}

/* --- join, replace, format
 * ------------------------------------------------------------- */

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
    return ml_jbuf_like(r, self, &b);
}

static ml_jval str_replace(ml_jrun *r, ml_jval self, const ml_jargs *a) {
    ml_jval with = a->arg[1];
    ml_jbuf b = { 0 };

    ml_jarg_str(r, a, 1, (ml_str){ 0 });
    if (self.s->markup)
        with = ml_jval_escape(r, with);
    ml_jbuf_replace(r, &b, ml_jstr_get(self), ml_jarg_str(r, a, 0, (ml_str){ 0 }),
                    ml_jstr_get(with), ml_jarg_int(r, a, 2, -1));
    return ml_jbuf_like(r, self, &b);
}

static ml_jval str_format(ml_jrun *r, ml_jval self, const ml_jargs *a) {
    return ml_jformat_braces(r, self, a);
}
static ml_jval str_format_map(ml_jrun *r, ml_jval self, const ml_jargs *a) {
    return ml_jformat_map(r, self, a->arg[0]);
}

/* --- translate ------------------------------------------------------------------- */

/* table[c]; MISSING if Python would raise LookupError. */
static ml_jval look_up(ml_jrun *r, ml_jval table, uint32_t c) {
    const ml_jval *found;

    switch (table.kind) {
    case ML_J_UNDEFINED: ml_jraise_undef(r, table);
    case ML_J_DICT:
        found = ml_jdict_get(r, table.dict, ml_jint((int64_t)c));
        return found ? *found : ml_jmissing();
    case ML_J_STR:
        if ((int64_t)c >= table.s->n_char)
            return ml_jmissing();
        return ml_jval_item(r, table, ml_jint((int64_t)c));
    case ML_J_LIST:
    case ML_J_TUPLE: return (int64_t)c < table.seq->n ? table.seq->item[c] : ml_jmissing();
    case ML_J_RANGE:
        if ((int64_t)c >= table.range->n)
            return ml_jmissing();
        return ml_jint(table.range->start + (int64_t)c * table.range->step);
    default:
        ml_jraise(r, "TypeError", "'%s' object is not subscriptable", ml_jval_type(table));
    }
}

static void put_mapped(ml_jrun *r, ml_jbuf *b, ml_jval to) {
    int64_t i;

    if (to.kind == ML_J_NONE)
        return;
    if (to.kind == ML_J_STR) {
        ml_jbuf_str(r, b, ml_jstr_get(to));
        return;
    }
    if (!ml_jval_i64(to, &i))
        ml_jraise(r, "TypeError", "character mapping must return integer, None or str");
    if (i < 0 || i > 0x10ffff)
        ml_jraise(r, "ValueError", "character mapping must be in range(0x110000)");
    if (i >= 0xd800 && i < 0xe000)
        ml_jraise(r, "ValueError", "lone surrogates are not supported");
    ml_jbuf_char(r, b, (uint32_t)i);
}

static ml_jval str_translate(ml_jrun *r, ml_jval self, const ml_jargs *a) {
    const char *p = self.s->ptr, *end = p + self.s->len;
    ml_jbuf b = { 0 };

    while (p < end) {
        uint32_t c = ml_utf8_next(&p);
        ml_jval to = look_up(r, a->arg[0], c);
        ml_jrun_step(r, 1);
        if (to.kind == ML_J_MISSING)
            ml_jbuf_char(r, &b, c);
        else
            put_mapped(r, &b, to);
    }
    return ml_jbuf_like(r, self, &b);
}

/* --- maketrans ------------------------------------------------------------------- */

static ml_jval code_of(ml_jrun *r, ml_jval key) {
    const char *p;

    if (key.kind == ML_J_INT || key.kind == ML_J_BOOL)
        return key;
    if (key.kind != ML_J_STR)
        ml_jraise(r, "TypeError", "keys in translate table must be strings or integers");
    if (key.s->n_char != 1)
        ml_jraise(r, "ValueError", "string keys in translate table must be of length 1");
    p = key.s->ptr;
    return ml_jint((int64_t)ml_utf8_next(&p));
}

static ml_jval table_of_dict(ml_jrun *r, ml_jval from) {
    ml_jdict *d = ml_jdict_new(r, 0);

    if (from.kind != ML_J_DICT)
        ml_jraise(r, "TypeError",
                  "if you give only one argument to maketrans it must be a dict");
    for (int64_t i = 0; i < from.dict->n; i++)
        ml_jdict_set(r, d, code_of(r, from.dict->pair[i].key), from.dict->pair[i].value);
    return ml_jdict_value(d);
}

static ml_jval str_maketrans(ml_jrun *r, ml_jval self, const ml_jargs *a) {
    const char *p, *q, *end;
    ml_str from, to, gone;
    ml_jdict *d;

    (void)self;
    if (!ml_jarg_given(a, 1))
        return table_of_dict(r, a->arg[0]);
    from = ml_jarg_str(r, a, 0, (ml_str){ 0 });
    to = ml_jarg_str(r, a, 1, (ml_str){ 0 });
    gone = ml_jarg_str(r, a, 2, (ml_str){ "", 0 });
    if (ml_jstr_count_chars(from) != ml_jstr_count_chars(to))
        ml_jraise(r, "ValueError",
                  "the first two maketrans arguments must have equal length");
    d = ml_jdict_new(r, 0);
    for (p = from.ptr, q = to.ptr, end = p + from.len; p < end;) {
        uint32_t key = ml_utf8_next(&p), value = ml_utf8_next(&q);
        ml_jdict_set(r, d, ml_jint((int64_t)key), ml_jint((int64_t)value));
    }
    for (p = gone.ptr, end = p + gone.len; p < end;)
        ml_jdict_set(r, d, ml_jint((int64_t)ml_utf8_next(&p)), ml_jnone());
    return ml_jdict_value(d);
}

const ml_jnative ml_jmethods_str[] = {
    { "strip", str_strip, "chars", 0, false },
    { "lstrip", str_lstrip, "chars", 0, false },
    { "rstrip", str_rstrip, "chars", 0, false },
    { "replace", str_replace, "old new count", 2, false },
    { "upper", str_upper, "", 0, false },
    { "lower", str_lower, "", 0, false },
    { "title", str_title, "", 0, false },
    { "capitalize", str_capitalize, "", 0, false },
    { "swapcase", str_swapcase, "", 0, false },
    { "casefold", str_casefold, "", 0, false },
    { "join", str_join, "iterable", 1, false },
    { "format", str_format, NULL, 0, false },
    { "removeprefix", str_removeprefix, "prefix", 1, false },
    { "removesuffix", str_removesuffix, "suffix", 1, false },
    { "ljust", str_ljust, "width fillchar", 1, false },
    { "rjust", str_rjust, "width fillchar", 1, false },
    { "center", str_center, "width fillchar", 1, false },
    { "zfill", str_zfill, "width", 1, false },
    { "expandtabs", str_expandtabs, "tabsize", 0, false },
    { "format_map", str_format_map, "mapping", 1, false },
    { "translate", str_translate, "table", 1, false },
    { "maketrans", str_maketrans, "x y z", 1, false },
    { 0 },
};
