/* "..." % args. */
#include <math.h>
#include <string.h>

#include "text/jinja/jinja_format.h"

typedef struct percent {
    ml_jrun *r;
    const char *p, *end;
    ml_jval args;
    int64_t next; /* index in a tuple of arguments */
    bool markup;  /* arguments are escaped */
    bool by_key;  /* the arguments are a mapping: unused ones are allowed */
} percent;

static ml_jval next_arg(percent *f) {
    bool is_tuple = f->args.kind == ML_J_TUPLE;

    if (f->next >= (is_tuple ? f->args.seq->n : 1))
        ml_jraise(f->r, "TypeError", "not enough arguments for format string");
    f->next++;
    return is_tuple ? f->args.seq->item[f->next - 1] : f->args;
}

static ml_jval keyed_arg(percent *f) {
    const char *key = ++f->p;
    const ml_jval *v;
    int depth = 1;

    for (; f->p < f->end && depth; f->p++)
        depth += *f->p == '(' ? 1 : *f->p == ')' ? -1 : 0;
    if (depth)
        ml_jraise(f->r, "ValueError", "incomplete format key");
    if (f->args.kind != ML_J_DICT)
        ml_jraise(f->r, "TypeError", "format requires a mapping");
    v = ml_jdict_name(f->r, f->args.dict, (ml_str){ key, (size_t)(f->p - 1 - key) });
    if (!v)
        ml_jraise(f->r, "KeyError", "'%.*s'", (int)(f->p - 1 - key), key);
    return *v;
}

static void read_flags(percent *f, ml_jspec *s) {
    for (; f->p < f->end && *f->p && strchr("-+ #0", *f->p); f->p++) {
        if (*f->p == '-')
            s->align = '<';
        else if (*f->p == '+' || (*f->p == ' ' && s->sign != '+'))
            s->sign = *f->p;
        else if (*f->p == '#')
            s->alternate = true;
        else if (*f->p == '0' && s->align != '<')
            s->align = '=';
    }
    s->fill = s->align == '=' ? '0' : ' ';
}

static int64_t read_size(percent *f) {
    int64_t n;

    if (f->p < f->end && *f->p == '*') {
        f->p++;
        if (!ml_jval_i64(next_arg(f), &n))
            ml_jraise(f->r, "TypeError", "* wants int");
        return n;
    }
    f->p = ml_jformat_read(f->r, f->p, f->end, &n);
    return n;
}

static void put_text(percent *f, ml_jbuf *b, const ml_jspec *s, ml_jval v) {
    ml_jbuf repr = { 0 };
    ml_jspec left = *s;

    if (s->type != 's') {
        ml_jval_repr(f->r, &repr, v);
        v = ml_jbuf_value(f->r, &repr);
    }
    v = f->markup ? ml_jval_escape(f->r, v) : ml_jval_str(f->r, v);
    left.fill = ' ';
    if (left.align == '=')
        left.align = '>';
    ml_jformat_pad(f->r, b, &left, ml_jformat_cut(v, s->precision), '>');
}

static void put_char(percent *f, ml_jbuf *b, const ml_jspec *s, ml_jval v) {
    int64_t c;

    if (ml_jval_i64(v, &c)) {
        if (c < 0 || c >= 0x110000 || (c >= 0xd800 && c < 0xe000))
            ml_jraise(f->r, "OverflowError", "%%c arg not in range(0x110000)");
        v = ml_jstr_char(f->r, (uint32_t)c);
    }
    if (v.kind != ML_J_STR || v.s->n_char != 1)
        ml_jraise(f->r, "TypeError", "%%c requires int or char");
    ml_jformat_pad(f->r, b, s, ml_jstr_get(v), '>');
}

static void put_number(percent *f, ml_jbuf *b, ml_jspec *s, ml_jval v) {
    bool is_int = strchr("diuoxX", s->type) != NULL;

    if (v.kind == ML_J_UNDEFINED)
        ml_jraise_undef(f->r, v);
    if (!ml_jval_is_number(v))
        ml_jraise(f->r, "TypeError", "%%%c format: a real number is required, not %s",
                  s->type, ml_jval_type(v));
    if (!is_int) {
        ml_jformat_float(f->r, b, s, ml_jformat_f64(f->r, v));
        return;
    }
    if (v.kind == ML_J_FLOAT && strchr("oxX", s->type))
        ml_jraise(f->r, "TypeError", "%%%c format: an integer is required, not float",
                  s->type);
    if (v.kind == ML_J_FLOAT) {
        if (!(fabs(v.f) < 9223372036854775808.0))
            ml_jraise(f->r, "OverflowError", "the number does not fit into 64 bits");
        v = ml_jint((int64_t)v.f);
    }
    if (strchr("diu", s->type))
        s->type = 'd';
    ml_jformat_int(f->r, b, s, v, true);
}

static void put_percent(percent *f, ml_jbuf *b) {
    ml_jspec s = { .fill = ' ', .precision = -1 };
    bool keyed = f->p < f->end && *f->p == '(';
    ml_jval v = keyed ? keyed_arg(f) : ml_jmissing();

    read_flags(f, &s);
    s.width = read_size(f);
    if (s.width < 0) {
        s.align = '<';
        s.width = -s.width;
    }
    if (f->p < f->end && *f->p == '.') {
        f->p++;
        s.precision = read_size(f);
        if (s.precision < 0)
            s.precision = 0;
    }
    while (f->p < f->end && (*f->p == 'h' || *f->p == 'l' || *f->p == 'L'))
        f->p++;
    if (f->p == f->end)
        ml_jraise(f->r, "ValueError", "incomplete format");
    s.type = *f->p++;
    if (s.type == '%') {
        ml_jbuf_char(f->r, b, '%');
        return;
    }
    if (!s.type || !strchr("diouxXeEfFgGcrsa", s.type))
        ml_jraise(f->r, "ValueError", "unsupported format character '%c' (0x%x)", s.type,
                  (unsigned char)s.type);
    if (!keyed)
        v = next_arg(f);
    if (strchr("rsa", s.type))
        put_text(f, b, &s, v);
    else if (s.type == 'c')
        put_char(f, b, &s, v);
    else
        put_number(f, b, &s, v);
}

ml_jval ml_jformat_percent(ml_jrun *r, ml_jval text, ml_jval args) {
    percent f = { .r = r,
                  .p = text.s->ptr,
                  .end = text.s->ptr + text.s->len,
                  .args = args,
                  .markup = text.s->markup,
                  .by_key = args.kind == ML_J_DICT || args.kind == ML_J_LIST ||
                            args.kind == ML_J_UNDEFINED };
    ml_jbuf b = { 0 };

    while (f.p < f.end) {
        if (*f.p != '%') {
            ml_jbuf_add(r, &b, f.p++, 1);
            continue;
        }
        f.p++;
        if (f.p == f.end)
            ml_jraise(r, "ValueError", "incomplete format");
        put_percent(&f, &b);
    }
    if (!f.by_key && f.next < (args.kind == ML_J_TUPLE ? args.seq->n : 1))
        ml_jraise(r, "TypeError", "not all arguments converted during string formatting");
    return ml_jstr_mark(r, ml_jbuf_value(r, &b), f.markup);
}
