/* The methods of strings that go through a table: translate, maketrans, format_map; and
 * isidentifier. */
#include "text/jinja/jinja_priv.h"

static ml_jval str_format_map(ml_jrun *r, ml_jval self, const ml_jargs *a) {
    return ml_jformat_map(r, self, a->arg[0]);
}

static ml_jval str_isidentifier(ml_jrun *r, ml_jval self, const ml_jargs *a) {
    const char *p = self.s->ptr, *end = p + self.s->len;
    bool ok = p < end;

    (void)r, (void)a;
    for (bool first = true; ok && p < end; first = false)
        ok = ml_jchar_is_id(ml_utf8_next(&p), first);
    return ml_jbool(ok);
}

/* --- translate ------------------------------------------------------------------- */

/* table[c]; MISSING where Python would raise LookupError. */
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

const ml_jnative ml_jmethods_str_map[] = {
    { "format_map", str_format_map, "mapping", 1, false },
    { "translate", str_translate, "table", 1, false },
    { "maketrans", str_maketrans, "x y z", 1, false },
    { "isidentifier", str_isidentifier, "", 0, false },
    { 0 },
};
