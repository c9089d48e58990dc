/* Values as text: str(), repr(). */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/pyfloat.h"
#include "text/jinja/jinja_priv.h"

static void repr_char(ml_jrun *r, ml_jbuf *b, uint32_t c, char quote) {
    if (c == (uint32_t)quote || c == '\\')
        ml_jbuf_printf(r, b, "\\%c", (char)c);
    else if (c == '\n')
        ml_jbuf_printf(r, b, "\\n");
    else if (c == '\r')
        ml_jbuf_printf(r, b, "\\r");
    else if (c == '\t')
        ml_jbuf_printf(r, b, "\\t");
    else if (ml_jchar_printable(c))
        ml_jbuf_char(r, b, c);
    else if (c < 0x100)
        ml_jbuf_printf(r, b, "\\x%02x", c);
    else if (c < 0x10000)
        ml_jbuf_printf(r, b, "\\u%04x", c);
    else
        ml_jbuf_printf(r, b, "\\U%08x", c);
}

static void repr_str(ml_jrun *r, ml_jbuf *b, ml_jval v) {
    const char *p = v.s->ptr, *end = p + v.s->len;
    bool single = v.s->len && memchr(p, '\'', v.s->len);
    char quote = single && !memchr(p, '"', v.s->len) ? '"' : '\'';

    if (v.s->markup)
        ml_jbuf_printf(r, b, "Markup(");
    ml_jbuf_char(r, b, (uint32_t)quote);
    while (p < end)
        repr_char(r, b, ml_utf8_next(&p), quote);
    ml_jbuf_char(r, b, (uint32_t)quote);
    if (v.s->markup)
        ml_jbuf_printf(r, b, ")");
}

static void repr_items(ml_jrun *r, ml_jbuf *b, const ml_jval *item, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        if (i)
            ml_jbuf_printf(r, b, ", ");
        ml_jval_repr(r, b, item[i]);
    }
}

static void repr_dict(ml_jrun *r, ml_jbuf *b, const ml_jdict *d) {
    ml_jbuf_printf(r, b, "{");
    for (int64_t i = 0; i < d->n; i++) {
        if (i)
            ml_jbuf_printf(r, b, ", ");
        ml_jval_repr(r, b, d->pair[i].key);
        ml_jbuf_printf(r, b, ": ");
        ml_jval_repr(r, b, d->pair[i].value);
    }
    ml_jbuf_printf(r, b, "}");
}

static void repr_view(ml_jrun *r, ml_jbuf *b, ml_jval v) {
    ml_jitems l = ml_jval_items(r, v);

    ml_jbuf_printf(r, b, "%s([", ml_jval_type(v));
    repr_items(r, b, l.item, l.n);
    ml_jbuf_printf(r, b, "])");
}

static void repr_range(ml_jrun *r, ml_jbuf *b, const ml_jrange *g) {
    ml_jbuf_printf(r, b, "range(%lld, %lld", (long long)g->start, (long long)g->stop);
    if (g->step != 1)
        ml_jbuf_printf(r, b, ", %lld", (long long)g->step);
    ml_jbuf_printf(r, b, ")");
}

/* Values that Python prints with an address are printed without one. */
static void repr_other(ml_jrun *r, ml_jbuf *b, ml_jval v) {
    switch (v.kind) {
    case ML_J_NAMESPACE:
        ml_jbuf_printf(r, b, "<Namespace ");
        repr_dict(r, b, v.dict);
        ml_jbuf_printf(r, b, ">");
        break;
    case ML_J_LOOP:
        ml_jbuf_printf(r, b, "<LoopContext %lld/%lld>", (long long)v.loop->index0 + 1,
                       (long long)ml_jloop_length(r, v.loop));
        break;
    case ML_J_MACRO:
        ml_jbuf_printf(r, b, "<Macro ");
        repr_str(r, b, ml_jstr_view(r, v.macro->name));
        ml_jbuf_printf(r, b, ">");
        break;
    case ML_J_METHOD:
        ml_jbuf_printf(r, b, "<built-in method %s of %s object>", v.method->native->name,
                       ml_jval_type(v.method->self));
        break;
    case ML_J_FUNC: ml_jbuf_printf(r, b, "<function %s>", v.func->name); break;
    case ML_J_SELF: ml_jbuf_printf(r, b, "<TemplateReference None>"); break;
    case ML_J_BLOCK: ml_jbuf_printf(r, b, "<jinja2.runtime.BlockReference object>"); break;
    default: ml_jbuf_printf(r, b, "<%s object>", ml_jval_type(v));
    }
}

static void repr_tuple(ml_jrun *r, ml_jbuf *b, const ml_jseq *s) {
    ml_jbuf_printf(r, b, "(");
    repr_items(r, b, s->item, s->n);
    ml_jbuf_printf(r, b, s->n == 1 ? ",)" : ")");
}

static void repr_list(ml_jrun *r, ml_jbuf *b, const ml_jseq *s) {
    ml_jbuf_printf(r, b, "[");
    repr_items(r, b, s->item, s->n);
    ml_jbuf_printf(r, b, "]");
}

static void repr_float(ml_jrun *r, ml_jbuf *b, double f) {
    char text[ML_PYFLOAT_TEXT];
    ml_pyfloat_text(f, text);
    ml_jbuf_str(r, b, ml_str_of(text));
}

void ml_jval_repr(ml_jrun *r, ml_jbuf *b, ml_jval v) {
    ml_jrun_enter(r);
    switch (v.kind) {
    case ML_J_MISSING:
    case ML_J_UNDEFINED: ml_jbuf_printf(r, b, "Undefined"); break;
    case ML_J_NONE: ml_jbuf_printf(r, b, "None"); break;
    case ML_J_BOOL: ml_jbuf_printf(r, b, v.b ? "True" : "False"); break;
    case ML_J_INT: ml_jbuf_printf(r, b, "%lld", (long long)v.i); break;
    case ML_J_BIGINT: ml_jbuf_str(r, b, ml_jstr_get(v)); break;
    case ML_J_FLOAT: repr_float(r, b, v.f); break;
    case ML_J_STR: repr_str(r, b, v); break;
    case ML_J_LIST: repr_list(r, b, v.seq); break;
    case ML_J_TUPLE: repr_tuple(r, b, v.seq); break;
    case ML_J_DICT: repr_dict(r, b, v.dict); break;
    case ML_J_VIEW: repr_view(r, b, v); break;
    case ML_J_RANGE: repr_range(r, b, v.range); break;
    default: repr_other(r, b, v);
    }
    ml_jrun_leave(r);
}

void ml_jval_print(ml_jrun *r, ml_jbuf *b, ml_jval v) {
    if (v.kind == ML_J_STR)
        ml_jbuf_str(r, b, ml_jstr_get(v));
    else if (v.kind != ML_J_UNDEFINED && v.kind != ML_J_MISSING)
        ml_jval_repr(r, b, v);
}

ml_jval ml_jval_str(ml_jrun *r, ml_jval v) {
    ml_jbuf b = { 0 };

    if (v.kind == ML_J_STR)
        return v;
    ml_jval_print(r, &b, v);
    return ml_jbuf_value(r, &b);
}
