/* "...".format(args). */
#include <string.h>

#include "text/jinja/jinja_format.h"

static bool is_align(uint32_t c) {
    return c == '<' || c == '>' || c == '^' || c == '=';
}

static ml_jspec read_spec(ml_jrun *r, ml_str text) {
    const char *p = text.ptr, *end = p + text.len;
    ml_jspec s = { .fill = ' ', .precision = -1 };
    size_t n = 0;

    if (p < end)
        ml_jchar_at(p, &n);
    if (p < end && p + n < end && is_align((uint32_t)p[n])) {
        s.fill = ml_jchar_at(p, &n);
        s.align = p[n];
        p += n + 1;
    } else if (p < end && is_align((uint32_t)*p)) {
        s.align = *p++;
    }
    if (p < end && (*p == '+' || *p == '-' || *p == ' '))
        s.sign = *p++;
    if (p < end && *p == '#') {
        s.alternate = true;
        p++;
    }
    if (p < end && *p == '0') {
        if (!s.align) {
            s.fill = '0';
            s.align = '=';
        }
        p++;
    }
    p = ml_jformat_read(r, p, end, &s.width);
    if (p < end && (*p == ',' || *p == '_'))
        s.group = *p++;
    if (p < end && *p == '.') {
        if (!ml_jformat_is_digit(p + 1, end))
            ml_jraise(r, "ValueError", "Format specifier missing precision");
        p = ml_jformat_read(r, p + 1, end, &s.precision);
    }
    if (p < end)
        s.type = *p++;
    if (p < end)
        ml_jraise(r, "ValueError", "Invalid format specifier '%.*s'", (int)text.len,
                  text.ptr);
    return s;
}

static _Noreturn void fail_code(ml_jrun *r, const ml_jspec *s, ml_jval v) {
    ml_jraise(r, "ValueError", "Unknown format code '%c' for object of type '%s'", s->type,
              ml_jval_type(v));
}

static void format_str(ml_jrun *r, ml_jbuf *b, ml_jspec *s, ml_jval v) {
    if (s->type && s->type != 's')
        fail_code(r, s, v);
    if (s->sign || s->group || s->align == '=') {
        if (s->align != '=' || s->fill != '0')
            ml_jraise(r, "ValueError", "option not allowed in string format specifier");
        s->align = '<';
    }
    ml_jformat_pad(r, b, s, ml_jformat_cut(v, s->precision), '<');
}

static void format_number(ml_jrun *r, ml_jbuf *b, ml_jspec *s, ml_jval v) {
    bool is_int = v.kind != ML_J_FLOAT;

    if (s->type == 'n')
        s->type = is_int ? 'd' : 'g';
    if (is_int && s->type == 'c') {
        ml_jval c = v.kind == ML_J_INT && v.i >= 0 && v.i < 0xd800
                        ? ml_jstr_char(r, (uint32_t)v.i)
                        : ml_jstr_of(r, "?");
        ml_jformat_pad(r, b, s, ml_jstr_get(c), '<');
    } else if (is_int && (!s->type || strchr("dboxX", s->type))) {
        if (!s->type)
            s->type = 'd';
        ml_jformat_int(r, b, s, v, false);
    } else if (!s->type || strchr("eEfFgG%", s->type)) {
        ml_jformat_float(r, b, s, ml_jformat_f64(r, v));
    } else {
        fail_code(r, s, v);
    }
}

static void format_value(ml_jrun *r, ml_jbuf *b, ml_jval v, ml_str text, bool markup) {
    ml_jspec s;

    if (!text.len) {
        ml_jval_print(r, b, markup ? ml_jval_escape(r, v) : v);
        return;
    }
    s = read_spec(r, text);
    if (v.kind == ML_J_STR)
        format_str(r, b, &s, markup ? ml_jval_escape(r, v) : v);
    else if (ml_jval_is_number(v))
        format_number(r, b, &s, v);
    else
        ml_jraise(r, "TypeError", "unsupported format string passed to %s.__format__",
                  ml_jval_type(v));
}

typedef struct braces {
    ml_jrun *r;
    const ml_jargs *args;
    ml_jval map;  /* the mapping of format_map; MISSING: names are keyword arguments */
    int64_t next; /* the next automatic index; -1 after an explicit one */
    bool markup;
    int depth;
} braces;

static ml_jval positional(const braces *f, int64_t i) {
    if (i >= f->args->n)
        ml_jraise(f->r, "IndexError",
                  "Replacement index %lld out of range for positional args tuple",
                  (long long)i);
    return f->args->pos[i];
}

static ml_jval from_map(const braces *f, ml_str name) {
    const ml_jval *found;

    if (f->map.kind == ML_J_UNDEFINED)
        ml_jraise_undef(f->r, f->map);
    if (f->map.kind != ML_J_DICT)
        ml_jraise(f->r, "TypeError", "'%s' object is not subscriptable by a text",
                  ml_jval_type(f->map));
    found = ml_jdict_name(f->r, f->map.dict, name);
    if (!found)
        ml_jraise(f->r, "KeyError", "'%.*s'", (int)name.len, name.ptr);
    return *found;
}

static ml_jval first_of(braces *f, ml_str name) {
    int64_t i;

    if (!name.len) {
        if (f->next < 0)
            ml_jraise(f->r, "ValueError",
                      "cannot switch from manual field specification to "
                      "automatic field numbering");
        return positional(f, f->next++);
    }
    if (ml_jformat_is_digit(name.ptr, name.ptr + name.len)) {
        if (f->next > 0)
            ml_jraise(f->r, "ValueError",
                      "cannot switch from automatic field numbering to "
                      "manual field specification");
        f->next = -1;
        ml_jformat_read(f->r, name.ptr, name.ptr + name.len, &i);
        return positional(f, i);
    }
    if (f->map.kind != ML_J_MISSING)
        return from_map(f, name);
    for (int64_t k = 0; k < f->args->n_kw; k++)
        if (ml_str_eq(f->args->kw[k].name, name))
            return f->args->kw[k].value;
    ml_jraise(f->r, "KeyError", "'%.*s'", (int)name.len, name.ptr);
}

static size_t until(const char *p, const char *end, const char *stop) {
    size_t n = 0;
    while (p + n < end && !(p[n] && strchr(stop, p[n])))
        n++;
    return n;
}

/* name.attr[key]... */
static ml_jval field_value(braces *f, ml_str name) {
    const char *p = name.ptr, *end = p + name.len;
    size_t n = until(p, end, ".[");
    ml_jval v = first_of(f, (ml_str){ p, n });

    for (p += n; p < end; p += n) {
        bool is_attr = *p++ == '.';
        ml_str key;
        int64_t i;
        n = until(p, end, is_attr ? ".[" : "]");
        key = (ml_str){ p, n };
        if (!n)
            ml_jraise(f->r, "ValueError", "Empty attribute in format string");
        if (is_attr)
            v = ml_jval_attr(f->r, v, key);
        else if (ml_jformat_read(f->r, p, p + n, &i) == p + n)
            v = ml_jval_item(f->r, v, ml_jint(i));
        else
            v = ml_jval_item(f->r, v, ml_jstr_view(f->r, key));
        n += !is_attr && p + n < end;
    }
    return v;
}

static void expand(braces *f, ml_jbuf *b, ml_str text);

/* The content of {...}: name, !conversion, :spec; the spec may contain fields. */
static void put_field(braces *f, ml_jbuf *b, ml_str field) {
    const char *p = field.ptr, *end = p + field.len;
    size_t n = until(p, end, "!:");
    ml_jval v;
    ml_jbuf spec_text = { 0 }, repr = { 0 };

    v = field_value(f, (ml_str){ p, n });
    p += n;
    if (p < end && *p == '!') {
        if (p + 1 == end || !strchr("rsa", p[1]) || (p + 2 < end && p[2] != ':'))
            ml_jraise(f->r, "ValueError", "expected ':' after conversion specifier");
        if (p[1] == 's') {
            v = ml_jval_str(f->r, v);
        } else {
            ml_jval_repr(f->r, &repr, v);
            v = ml_jbuf_value(f->r, &repr);
        }
        p += 2;
    }
    if (p < end) {
        if (++f->depth > 2)
            ml_jraise(f->r, "ValueError", "Max string recursion exceeded");
        expand(f, &spec_text, (ml_str){ p + 1, (size_t)(end - p - 1) });
        f->depth--;
    }
    format_value(f->r, b, v, (ml_str){ spec_text.ptr, spec_text.len }, f->markup);
}

/* The length of a field from its opening brace to the closing one. */
static size_t field_length(ml_jrun *r, const char *p, const char *end) {
    int depth = 1;

    for (const char *q = p; q < end; q++) {
        depth += *q == '{' ? 1 : *q == '}' ? -1 : 0;
        if (!depth)
            return (size_t)(q - p);
    }
    ml_jraise(r, "ValueError",
              p == end ? "Single '{' encountered in format string"
                       : "expected '}' before end of string");
}

static void expand(braces *f, ml_jbuf *b, ml_str text) {
    const char *p = text.ptr, *end = p + text.len;

    while (p < end) {
        char c = *p++;
        size_t n;
        if (c != '{' && c != '}') {
            ml_jbuf_add(f->r, b, p - 1, 1);
        } else if (p < end && *p == c) {
            ml_jbuf_add(f->r, b, p++, 1);
        } else if (c == '}') {
            ml_jraise(f->r, "ValueError", "Single '}' encountered in format string");
        } else {
            n = field_length(f->r, p, end);
            put_field(f, b, (ml_str){ p, n });
            p += n + 1;
        }
    }
}

ml_jval ml_jformat_braces(ml_jrun *r, ml_jval text, const ml_jargs *a) {
    braces f = { .r = r, .args = a, .map = ml_jmissing(), .markup = text.s->markup };
    ml_jbuf b = { 0 };

    expand(&f, &b, ml_jstr_get(text));
    return ml_jstr_mark(r, ml_jbuf_value(r, &b), f.markup);
}

ml_jval ml_jformat_map(ml_jrun *r, ml_jval text, ml_jval map) {
    braces f = { .r = r, .args = &(ml_jargs){ 0 }, .map = map, .markup = text.s->markup };
    ml_jbuf b = { 0 };

    expand(&f, &b, ml_jstr_get(text));
    return ml_jstr_mark(r, ml_jbuf_value(r, &b), f.markup);
}
