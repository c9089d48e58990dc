/* Reads and writes JSON as Python's json module does. */
#include <math.h>
#include <stdlib.h>

#include "text/jinja/jinja_priv.h"

/* --- in -------------------------------------------------------------------------------------- */

static ml_jval number_from(ml_jrun *r, const ml_json *v) {
    int64_t i;

    if (ml_json_i64(v, &i))
        return ml_jint(i);
    for (size_t k = 0; k < v->text.len; k++)
        if (v->text.ptr[k] == '.' || (v->text.ptr[k] | 0x20) == 'e') {
            ml_jval text =
                ml_jstr_copy(r, v->text); /* copied, with the NUL that strtod needs */
            return ml_jfloat(strtod(text.s->ptr, NULL));
        }
    return (ml_jval){ .kind = ML_J_BIGINT, .s = ml_jstr_view(r, v->text).s };
}

static ml_jval list_from(ml_jrun *r, const ml_json *v) {
    ml_jseq *s = ML_JNEW(r, ml_jseq, 1);

    s->item = ML_JNEW(r, ml_jval, v->n);
    for (const ml_json *c = v->child; c; c = c->next)
        s->item[s->n++] = ml_jval_from_json(r, c);
    return (ml_jval){ .kind = ML_J_LIST, .seq = s };
}

static ml_jval dict_from(ml_jrun *r, const ml_json *v) {
    ml_jdict *d = ml_jdict_new(r, v->n);

    for (const ml_json *c = v->child; c; c = c->next)
        ml_jdict_set(r, d, ml_jstr_view(r, c->key), ml_jval_from_json(r, c));
    return ml_jdict_value(d);
}

ml_jval ml_jval_from_json(ml_jrun *r, const ml_json *v) {
    switch (v->type) {
    case ML_JSON_NULL: return ml_jnone();
    case ML_JSON_FALSE: return ml_jbool(false);
    case ML_JSON_TRUE: return ml_jbool(true);
    case ML_JSON_NUMBER: return number_from(r, v);
    case ML_JSON_STRING: return ml_jstr_view(r, v->text);
    case ML_JSON_ARRAY: return list_from(r, v);
    case ML_JSON_OBJECT: return dict_from(r, v);
    }
    return ml_jnone();
}

/* --- out -------------------------------------------------------------------------------------- */

typedef struct dump {
    ml_jrun *r;
    ml_jbuf *b;
    const ml_jdump *o;
    int64_t level;
} dump;

static void dump_value(dump *d, ml_jval v);

static void dump_char(dump *d, uint32_t c) {
    static const char from[] = "\"\\\n\r\t\f\b", to[] = "\"\\nrtfb";

    for (int i = 0; from[i]; i++)
        if (c == (uint32_t)from[i]) {
            ml_jbuf_printf(d->r, d->b, "\\%c", to[i]);
            return;
        }
    if (c < 0x20 || (d->o->ascii && c >= 0x7f && c < 0x10000)) {
        ml_jbuf_printf(d->r, d->b, "\\u%04x", c);
    } else if (d->o->ascii && c >= 0x10000) {
        c -= 0x10000;
        ml_jbuf_printf(d->r, d->b, "\\u%04x\\u%04x", 0xd800 + (c >> 10),
                       0xdc00 + (c & 0x3ff));
    } else {
        ml_jbuf_char(d->r, d->b, c);
    }
}

static void dump_str(dump *d, ml_str s) {
    const char *p = s.ptr, *end = s.ptr + s.len;

    ml_jbuf_char(d->r, d->b, '"');
    while (p < end)
        dump_char(d, ml_utf8_next(&p));
    ml_jbuf_char(d->r, d->b, '"');
}

static void dump_float(dump *d, double f) {
    char text[ML_JFLOAT_TEXT];

    ml_jfloat_text(f, text);
    if (isnan(f))
        ml_jbuf_printf(d->r, d->b, "NaN");
    else if (isinf(f))
        ml_jbuf_printf(d->r, d->b, f < 0 ? "-Infinity" : "Infinity");
    else
        ml_jbuf_str(d->r, d->b, ml_str_of(text));
}

static void new_line(dump *d) {
    if (!d->o->pretty)
        return;
    ml_jbuf_char(d->r, d->b, '\n');
    for (int64_t i = 0; i < d->level; i++)
        ml_jbuf_str(d->r, d->b, d->o->indent);
}

static void begin(dump *d, char open) {
    ml_jbuf_char(d->r, d->b, (uint32_t)open);
    d->level++;
    new_line(d);
}

static void separate(dump *d) {
    ml_jbuf_str(d->r, d->b, d->o->item_separator);
    new_line(d);
}

static void end(dump *d, char close) {
    d->level--;
    new_line(d);
    ml_jbuf_char(d->r, d->b, (uint32_t)close);
}

static void dump_list(dump *d, const ml_jseq *s) {
    if (!s->n) {
        ml_jbuf_printf(d->r, d->b, "[]");
        return;
    }
    begin(d, '[');
    for (int64_t i = 0; i < s->n; i++) {
        if (i)
            separate(d);
        dump_value(d, s->item[i]);
    }
    end(d, ']');
}

/* Keys are converted to strings as in Python. */
static void dump_key(dump *d, ml_jval key) {
    if (key.kind == ML_J_STR) {
        dump_str(d, ml_jstr_get(key));
        return;
    }
    if (key.kind != ML_J_NONE && !ml_jval_is_number(key))
        ml_jraise(d->r, "TypeError", "keys must be str, int, float, bool or None, not %s",
                  ml_jval_type(key));
    ml_jbuf_char(d->r, d->b, '"');
    dump_value(d, key);
    ml_jbuf_char(d->r, d->b, '"');
}

static const ml_jpair *ordered_pairs(dump *d, const ml_jdict *dict) {
    ml_jpair *p;

    if (!d->o->sort_keys)
        return dict->pair;
    p = ML_JNEW(d->r, ml_jpair, dict->n);
    for (int64_t i = 0; i < dict->n; i++)
        p[i] = dict->pair[i];
    ml_jpairs_sort(d->r, p, dict->n, false);
    return p;
}

static void dump_dict(dump *d, const ml_jdict *dict) {
    const ml_jpair *p = ordered_pairs(d, dict);

    if (!dict->n) {
        ml_jbuf_printf(d->r, d->b, "{}");
        return;
    }
    begin(d, '{');
    for (int64_t i = 0; i < dict->n; i++) {
        if (i)
            separate(d);
        dump_key(d, p[i].key);
        ml_jbuf_str(d->r, d->b, d->o->key_separator);
        dump_value(d, p[i].value);
    }
    end(d, '}');
}

static void dump_value(dump *d, ml_jval v) {
    ml_jrun_enter(d->r);
    switch (v.kind) {
    case ML_J_NONE: ml_jbuf_printf(d->r, d->b, "null"); break;
    case ML_J_BOOL: ml_jbuf_printf(d->r, d->b, v.b ? "true" : "false"); break;
    case ML_J_INT: ml_jbuf_printf(d->r, d->b, "%lld", (long long)v.i); break;
    case ML_J_BIGINT: ml_jbuf_str(d->r, d->b, ml_jstr_get(v)); break;
    case ML_J_FLOAT: dump_float(d, v.f); break;
    case ML_J_STR: dump_str(d, ml_jstr_get(v)); break;
    case ML_J_LIST:
    case ML_J_TUPLE: dump_list(d, v.seq); break;
    case ML_J_DICT: dump_dict(d, v.dict); break;
    default:
        ml_jraise(d->r, "TypeError", "Object of type %s is not JSON serializable",
                  ml_jval_type(v));
    }
    ml_jrun_leave(d->r);
}

void ml_jval_dump(ml_jrun *r, ml_jbuf *b, ml_jval v, const ml_jdump *o) {
    dump d = { r, b, o, 0 };
    dump_value(&d, v);
}
