/* Filters of single values: strings, JSON. */
#include <stdio.h>
#include <string.h>

#include "text/jinja/jinja_wrap.h"

/* str(v), as a view */
static ml_str text_of(ml_jrun *r, ml_jval v) {
    return ml_jstr_get(ml_jval_str(r, v));
}

/* --- case and white space -------------------------------------------------------------------------- */

static ml_jval f_upper(ml_jrun *r, ml_jval v, const ml_jargs *a) {
    ml_jbuf b = { 0 };
    (void)a;
    ml_jbuf_case(r, &b, text_of(r, v), ML_J_UPPER);
    return ml_jbuf_like(r, v, &b);
}

static ml_jval f_lower(ml_jrun *r, ml_jval v, const ml_jargs *a) {
    ml_jbuf b = { 0 };
    (void)a;
    ml_jbuf_case(r, &b, text_of(r, v), ML_J_LOWER);
    return ml_jbuf_like(r, v, &b);
}

static ml_jval f_capitalize(ml_jrun *r, ml_jval v, const ml_jargs *a) {
    ml_jbuf b = { 0 };
    (void)a;
    ml_jbuf_capitalize(r, &b, text_of(r, v));
    return ml_jbuf_like(r, v, &b);
}

static bool is_word_border(uint32_t c) {
    return ml_jchar_is_space(c) || (c < 0x80 && c && strchr("-({[<", (char)c));
}

/* Unlike str.title(), a word continues after an apostrophe. */
static ml_jval f_title(ml_jrun *r, ml_jval v, const ml_jargs *a) {
    ml_str s = text_of(r, v);
    const char *p = s.ptr, *end = p + s.len;
    ml_jbuf b = { 0 };

    (void)a;
    while (p < end) {
        const char *word = p, *rest, *next;
        bool in_border = is_word_border(ml_utf8_next(&p));
        for (rest = next = p; next < end; p = next)
            if (is_word_border(ml_utf8_next(&next)) != in_border)
                break;
        ml_jbuf_case(r, &b, (ml_str){ word, (size_t)(rest - word) }, ML_J_UPPER);
        ml_jbuf_case(r, &b, (ml_str){ rest, (size_t)(p - rest) }, ML_J_LOWER);
    }
    return ml_jbuf_value(r, &b);
}

static ml_jval f_trim(ml_jrun *r, ml_jval v, const ml_jargs *a) {
    ml_str set = { 0 };
    ml_jval s = ml_jval_str(r, v);

    if (ml_jarg_given(a, 0) && a->arg[0].kind != ML_J_NONE)
        set = ml_jarg_str(r, a, 0, set);
    /* Each character may be compared with the whole set. */
    ml_jrun_step(r, (int64_t)(s.s->len / 64 * set.len));
    return ml_jstr_mark(r, ml_jstr_view(r, ml_jstr_strip(ml_jstr_get(s), set, ML_J_BOTH)),
                        s.s->markup);
}

static ml_jval f_center(ml_jrun *r, ml_jval v, const ml_jargs *a) {
    int64_t width = ml_jarg_int(r, a, 0, 80);
    ml_jval s = ml_jval_str(r, v);
    int64_t n = width > s.s->n_char ? width - s.s->n_char : 0,
            left = n / 2 + (n & width & 1);
    ml_jbuf b = { 0 };

    ml_jbuf_fill(r, &b, ' ', left);
    ml_jbuf_str(r, &b, ml_jstr_get(s));
    ml_jbuf_fill(r, &b, ' ', n - left);
    return ml_jbuf_like(r, v, &b);
}

const char *ml_jline_end(const char *p, const char *end, const char **next) {
    while (p < end) {
        const char *at = p;
        uint32_t c = ml_utf8_next(&p);
        bool ends = (c >= 0x0a && c <= 0x0d) || (c >= 0x1c && c <= 0x1e) || c == 0x85 ||
                    c == 0x2028 || c == 0x2029;
        if (!ends)
            continue;
        *next = c == '\r' && p < end && *p == '\n' ? p + 1 : p;
        return at;
    }
    *next = end;
    return end;
}

static ml_jval f_indent(ml_jrun *r, ml_jval s, const ml_jargs *a) {
    const char *p, *end, *next;
    bool first = ml_jarg_bool(r, a, 1, false), blank = ml_jarg_bool(r, a, 2, false);
    bool ends_in_break = false;
    ml_jbuf indent = { 0 }, b = { 0 };

    if (s.kind == ML_J_UNDEFINED)
        ml_jraise_undef(r, s);
    if (s.kind != ML_J_STR)
        ml_jraise(r, s.kind == ML_J_LIST ? "AttributeError" : "TypeError",
                  "indent takes a text, not '%s'", ml_jval_type(s));
    p = s.s->ptr;
    end = p + s.s->len;
    if (ml_jarg_given(a, 0) && a->arg[0].kind == ML_J_STR)
        ml_jbuf_str(r, &indent, ml_jstr_get(a->arg[0]));
    else
        ml_jbuf_fill(r, &indent, ' ', ml_jarg_int(r, a, 0, 4));
    for (bool is_first = true; p < end || is_first || ends_in_break; is_first = false) {
        const char *stop = ml_jline_end(p, end, &next);
        if (!is_first)
            ml_jbuf_char(r, &b, '\n');
        if (is_first ? first : blank || stop > p)
            ml_jbuf_add(r, &b, indent.ptr, indent.len);
        ml_jbuf_add(r, &b, p, (size_t)(stop - p));
        ends_in_break = stop < end && next == end;
        p = next;
        if (p == end && !ends_in_break)
            break;
    }
    return ml_jstr_mark(r, ml_jbuf_value(r, &b), s.s->markup);
}

static ml_jval f_replace(ml_jrun *r, ml_jval v, const ml_jargs *a) {
    int64_t count =
        ml_jarg_given(a, 2) && a->arg[2].kind != ML_J_NONE ? ml_jarg_int(r, a, 2, -1) : -1;
    ml_jbuf b = { 0 };

    ml_jbuf_replace(r, &b, text_of(r, v), text_of(r, a->arg[0]), text_of(r, a->arg[1]),
                    count);
    return ml_jbuf_value(r, &b);
}

static ml_jval f_truncate(ml_jrun *r, ml_jval s, const ml_jargs *a) {
    int64_t length = ml_jarg_int(r, a, 0, 255), leeway = ml_jarg_int(r, a, 3, 5), keep;
    bool kill_words = ml_jarg_bool(r, a, 1, false);
    ml_jval ending = ml_jarg_given(a, 2) ? a->arg[2] : ml_jstr_of(r, "...");
    ml_str head;
    ml_jbuf b = { 0 };

    ml_jarg_str(r, a, 2, (ml_str){ 0 });
    if (ml_jval_len(s) < 0)
        ml_jraise(r, "TypeError", "object of type '%s' has no len()", ml_jval_type(s));
    if (ml_jval_len(s) <= length + leeway)
        return s;
    if (s.kind != ML_J_STR)
        ml_jraise(r, "TypeError", "truncate takes a text, not '%s'", ml_jval_type(s));
    keep = length - ending.s->n_char;
    if (keep < 0)
        ml_jraise(r, "AssertionError", "expected length >= %lld, got %lld",
                  (long long)ending.s->n_char, (long long)length);
    head = (ml_str){ s.s->ptr, ml_jstr_offset(s, keep) };
    if (!kill_words) {
        size_t space = ml_jstr_rfind(r, head, ml_str_of(" "), head.len);
        head.len = space == SIZE_MAX ? head.len : space;
    }
    ml_jbuf_str(r, &b, head);
    ml_jbuf_str(r, &b, ml_jstr_get(s.s->markup ? ml_jval_escape(r, ending) : ending));
    return ml_jbuf_like(r, s, &b);
}

static ml_jval f_wordcount(ml_jrun *r, ml_jval v, const ml_jargs *a) {
    ml_str s = text_of(r, v);
    const char *p = s.ptr, *end = p + s.len;
    bool in_word = false;
    int64_t n = 0;

    (void)a;
    while (p < end) {
        bool is = ml_jchar_is_word(ml_utf8_next(&p));
        n += is && !in_word;
        in_word = is;
    }
    return ml_jint(n);
}

static ml_jval f_wordwrap(ml_jrun *r, ml_jval v, const ml_jargs *a) {
    ml_jwrap how = { .width = ml_jarg_int(r, a, 0, 79),
                     .cut = ml_jarg_bool(r, a, 1, true),
                     .hyphens = ml_jarg_bool(r, a, 3, true),
                     .newline = ml_str_of("\n") };
    const char *p, *end, *next;
    ml_jbuf b = { 0 };

    if (v.kind == ML_J_UNDEFINED)
        ml_jraise_undef(r, v);
    if (v.kind != ML_J_STR)
        ml_jraise(r, "AttributeError", "'%s' object has no attribute 'splitlines'",
                  ml_jval_type(v));
    p = v.s->ptr;
    end = p + v.s->len;
    if (ml_jarg_given(a, 2) && a->arg[2].kind != ML_J_NONE)
        how.newline = ml_jarg_str(r, a, 2, how.newline);
    for (bool first = true; p < end; first = false) {
        const char *stop = ml_jline_end(p, end, &next);
        if (!first)
            ml_jbuf_str(r, &b, how.newline);
        ml_jbuf_wrap(r, &b, (ml_str){ p, (size_t)(stop - p) }, &how);
        p = next;
    }
    return ml_jbuf_value(r, &b);
}

/* --- HTML and URLs ------------------------------------------------------------------------------------ */

static ml_jval f_escape(ml_jrun *r, ml_jval v, const ml_jargs *a) {
    (void)a;
    return ml_jval_escape(r, v);
}

static ml_jval f_forceescape(ml_jrun *r, ml_jval v, const ml_jargs *a) {
    (void)a;
    return ml_jval_escape(r, ml_jstr_mark(r, ml_jval_str(r, v), false));
}

static ml_jval f_safe(ml_jrun *r, ml_jval v, const ml_jargs *a) {
    (void)a;
    return ml_jstr_mark(r, ml_jval_str(r, v), true);
}

static ml_jval f_string(ml_jrun *r, ml_jval v, const ml_jargs *a) {
    (void)a;
    return ml_jval_str(r, v);
}

/* Removes tags and comments, collapses whitespace, and decodes the five escapes. */
static ml_jval f_striptags(ml_jrun *r, ml_jval v, const ml_jargs *a) {
    static const char *const escapes[][2] = { { "&lt;", "<" },   { "&gt;", ">" },
                                              { "&#34;", "\"" }, { "&quot;", "\"" },
                                              { "&#39;", "'" },  { "&amp;", "&" } };
    ml_str s = text_of(r, v);
    size_t at = 0;
    ml_jbuf b = { 0 }, out = { 0 };
    ml_jval words, joined;

    (void)a;
    while (at < s.len) {
        bool comment = s.len - at >= 4 && memcmp(s.ptr + at, "<!--", 4) == 0;
        size_t end = s.ptr[at] != '<'
                         ? SIZE_MAX
                         : ml_jstr_find(s, ml_str_of(comment ? "-->" : ">"), at);
        if (end != SIZE_MAX)
            at = end + (comment ? 3 : 1);
        else
            ml_jbuf_add(r, &b, s.ptr + at++, 1);
    }
    words = ml_jval_call(r, ml_jval_attr(r, ml_jbuf_value(r, &b), ml_str_of("split")),
                         &(ml_jargs){ 0 });
    for (int64_t i = 0; i < words.seq->n; i++) {
        if (i)
            ml_jbuf_char(r, &out, ' ');
        ml_jbuf_str(r, &out, ml_jstr_get(words.seq->item[i]));
    }
    joined = ml_jbuf_value(r, &out);
    for (size_t i = 0; i < sizeof escapes / sizeof *escapes; i++) {
        ml_jbuf undone = { 0 };
        ml_jbuf_replace(r, &undone, ml_jstr_get(joined), ml_str_of(escapes[i][0]),
                        ml_str_of(escapes[i][1]), -1);
        joined = ml_jbuf_value(r, &undone);
    }
    return joined;
}

static void quote_url(ml_jrun *r, ml_jbuf *b, ml_str s, bool in_query) {
    for (size_t i = 0; i < s.len; i++) {
        unsigned char c = (unsigned char)s.ptr[i];
        bool plain = (c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z') ||
                     (c && strchr("_.-~", c)) || (c == '/' && !in_query);
        if (plain)
            ml_jbuf_add(r, b, s.ptr + i, 1);
        else if (c == ' ' && in_query)
            ml_jbuf_char(r, b, '+');
        else
            ml_jbuf_printf(r, b, "%%%02X", c);
    }
}

static ml_jval f_urlencode(ml_jrun *r, ml_jval v, const ml_jargs *a) {
    ml_jiter *it;
    ml_jval pair;
    ml_jbuf b = { 0 };

    (void)a;
    if (v.kind == ML_J_STR || !ml_jval_iterable(v)) {
        quote_url(r, &b, text_of(r, v), false);
        return ml_jbuf_value(r, &b);
    }
    it = ml_jiter_over(r, v.kind == ML_J_DICT ? ml_jview_new(r, v.dict, ML_J_ITEMS) : v);
    while (ml_jiter_next(r, it, &pair)) {
        ml_jitems l = ml_jval_items(r, pair);
        if (l.n != 2)
            ml_jraise(r, "ValueError", "urlencode takes pairs");
        if (b.len)
            ml_jbuf_char(r, &b, '&');
        quote_url(r, &b, text_of(r, l.item[0]), true);
        ml_jbuf_char(r, &b, '=');
        quote_url(r, &b, text_of(r, l.item[1]), true);
    }
    return ml_jbuf_value(r, &b);
}

static ml_jval f_xmlattr(ml_jrun *r, ml_jval v, const ml_jargs *a) {
    bool space = ml_jarg_bool(r, a, 0, true);
    ml_jbuf b = { 0 };

    if (v.kind != ML_J_DICT)
        ml_jraise(r, "TypeError", "xmlattr takes a mapping");
    for (int64_t i = 0; i < v.dict->n; i++) {
        ml_jval value = v.dict->pair[i].value;
        if (value.kind == ML_J_NONE || value.kind == ML_J_UNDEFINED)
            continue;
        if (space || b.len)
            ml_jbuf_char(r, &b, ' ');
        ml_jval_print(r, &b, ml_jval_escape(r, v.dict->pair[i].key));
        ml_jbuf_printf(r, &b, "=\"");
        ml_jval_print(r, &b, ml_jval_escape(r, value));
        ml_jbuf_char(r, &b, '"');
    }
    return ml_jbuf_value(r, &b);
}

/* --- others
 * ---------------------------------------------------------------------------- */

static ml_jval f_default(ml_jrun *r, ml_jval v, const ml_jargs *a) {
    bool falsy_too = ml_jarg_bool(r, a, 1, false);

    if (v.kind == ML_J_UNDEFINED || (falsy_too && !ml_jval_truth(r, v)))
        return ml_jarg_given(a, 0) ? a->arg[0] : ml_jstr_of(r, "");
    return v;
}

static ml_jval f_format(ml_jrun *r, ml_jval v, const ml_jargs *a) {
    ml_jdict *d;

    if (a->n && a->n_kw)
        ml_jraise(r, "FilterArgumentError",
                  "can't handle positional and keyword arguments at the same time");
    if (!a->n_kw)
        return ml_jformat_percent(r, ml_jval_str(r, v),
                                  ml_jseq_new(r, ML_J_TUPLE, a->pos, a->n));
    d = ml_jdict_new(r, a->n_kw);
    for (int64_t i = 0; i < a->n_kw; i++)
        ml_jdict_set(r, d, ml_jstr_view(r, a->kw[i].name), a->kw[i].value);
    return ml_jformat_percent(r, ml_jval_str(r, v), ml_jdict_value(d));
}

static ml_jval f_attr(ml_jrun *r, ml_jval v, const ml_jargs *a) {
    return ml_jval_attr_only(r, v, text_of(r, a->arg[0]));
}

static ml_jval f_pprint(ml_jrun *r, ml_jval v, const ml_jargs *a) {
    ml_jbuf b = { 0 };
    (void)a;
    ml_jval_pprint(r, &b, v);
    return ml_jbuf_value(r, &b);
}

static void read_separators(ml_jrun *r, ml_jval v, ml_jdump *o) {
    ml_jitems l;

    if (v.kind == ML_J_MISSING || v.kind == ML_J_NONE)
        return;
    l = ml_jval_items(r, v);
    if (l.n != 2)
        ml_jraise(r, "ValueError", "separators must be two texts, got %lld",
                  (long long)l.n);
    if (l.item[0].kind != ML_J_STR || l.item[1].kind != ML_J_STR)
        ml_jraise(r, "TypeError", "separators must be texts");
    o->item_separator = ml_jstr_get(l.item[0]);
    o->key_separator = ml_jstr_get(l.item[1]);
}

static ml_jval f_tojson(ml_jrun *r, ml_jval v, const ml_jargs *a) {
    bool pretty = ml_jarg_given(a, 1) && a->arg[1].kind != ML_J_NONE;
    ml_jdump o = { .ascii = ml_jarg_bool(r, a, 0, false),
                   .pretty = pretty,
                   .sort_keys = ml_jarg_bool(r, a, 3, false),
                   .item_separator = ml_str_of(pretty ? "," : ", "),
                   .key_separator = ml_str_of(": ") };
    ml_jbuf indent = { 0 }, b = { 0 };

    if (pretty && a->arg[1].kind == ML_J_STR)
        ml_jbuf_str(r, &indent, ml_jstr_get(a->arg[1]));
    else if (pretty)
        ml_jbuf_fill(r, &indent, ' ', ml_jarg_int(r, a, 1, 0));
    o.indent = (ml_str){ indent.ptr, indent.len };
    read_separators(r, a->arg[2], &o);
    ml_jval_dump(r, &b, v, &o);
    return ml_jbuf_value(r, &b);
}

const ml_jnative ml_jfilters_text[] = {
    { "tojson", f_tojson, "ensure_ascii indent separators sort_keys", 0, false },
    { "trim", f_trim, "chars", 0, false },
    { "string", f_string, "", 0, false },
    { "default", f_default, "default_value boolean", 0, false },
    { "d", f_default, "default_value boolean", 0, false },
    { "lower", f_lower, "", 0, false },
    { "upper", f_upper, "", 0, false },
    { "title", f_title, "", 0, false },
    { "capitalize", f_capitalize, "", 0, false },
    { "safe", f_safe, "", 0, false },
    { "replace", f_replace, "old new count", 2, false },
    { "format", f_format, NULL, 0, false },
    { "indent", f_indent, "width first blank", 0, false },
    { "attr", f_attr, "name", 1, false },
    { "center", f_center, "width", 0, false },
    { "truncate", f_truncate, "length killwords end leeway", 0, false },
    { "wordcount", f_wordcount, "", 0, false },
    { "wordwrap", f_wordwrap, "width break_long_words wrapstring break_on_hyphens", 0,
      false },
    { "escape", f_escape, "", 0, false },
    { "e", f_escape, "", 0, false },
    { "forceescape", f_forceescape, "", 0, false },
    { "striptags", f_striptags, "", 0, false },
    { "urlencode", f_urlencode, "", 0, false },
    { "xmlattr", f_xmlattr, "autospace", 0, false },
    { "pprint", f_pprint, "", 0, false },
    { 0 },
};
