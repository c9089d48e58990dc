/* a.name, a[key], a[from:to:step], and the methods of containers.
 *
 * The sandbox: names that begin with an underscore, and methods that would modify a list or
 * dict, evaluate to an undefined value, which raises an error only when it is used. */
#include <string.h>

#include "text/jinja/jinja_priv.h"

static ml_jval bound(ml_jrun *r, ml_jval self, const ml_jnative *native) {
    ml_jmethod *m = ML_JNEW(r, ml_jmethod, 1);
    *m = (ml_jmethod){ self, native };
    return (ml_jval){ .kind = ML_J_METHOD, .method = m };
}

static bool is_one_of(ml_str name, const char *const *names) {
    for (; *names; names++)
        if (ml_str_is(name, *names))
            return true;
    return false;
}

#define K(kind) (1U << ML_J_##kind)
#define ALL ~0U

/* Names with a leading underscore, and the types of values that have them. */
static const struct {
    const char *name;
    uint32_t kinds;
} internals[] = {
#include "text/jinja/jinja_internals.inc"
};

#undef K
#undef ALL

static bool is_internal(ml_jval v, ml_str name) {
    for (size_t i = 0;
         name.len && name.ptr[0] == '_' && i < sizeof internals / sizeof *internals; i++)
        if (ml_str_is(name, internals[i].name))
            return (internals[i].kinds >> (v.kind == ML_J_BIGINT ? ML_J_INT : v.kind)) & 1;
    return false;
}

static bool would_change(ml_jval v, ml_str name) {
    static const char *const of_list[] = { "append", "clear",   "extend", "insert", "pop",
                                           "remove", "reverse", "sort",   NULL };
    static const char *const of_dict[] = { "clear",      "pop",    "popitem",
                                           "setdefault", "update", NULL };
    return (v.kind == ML_J_LIST && is_one_of(name, of_list)) ||
           (v.kind == ML_J_DICT && is_one_of(name, of_dict));
}

static const ml_jnative *method_of(ml_jval v, ml_str name) {
    switch (v.kind) {
    case ML_J_STR: return ml_jstr_method_find(name);
    case ML_J_LIST: return ml_jnative_find(ml_jmethods_list, name);
    case ML_J_TUPLE: return ml_jnative_find(ml_jmethods_tuple, name);
    case ML_J_DICT: return ml_jnative_find(ml_jmethods_dict, name);
    case ML_J_BOOL:
    case ML_J_INT: return ml_jnative_find(ml_jmethods_int, name);
    case ML_J_FLOAT: return ml_jnative_find(ml_jmethods_float, name);
    case ML_J_LOOP: return ml_jnative_find(ml_jmethods_loop, name);
    case ML_J_CYCLER: return ml_jnative_find(ml_jmethods_cycler, name);
    case ML_J_FUNC: /* a class method */
        return strcmp(v.func->name, "dict") == 0 && ml_str_is(name, "fromkeys")
                   ? ml_jnative_find(ml_jmethods_dict, name)
                   : NULL;
    default: return NULL;
    }
}

static ml_jval macro_attr(ml_jrun *r, const ml_jmacro *m, ml_str name) {
    const ml_jparams *p = m->node->params;
    ml_jitems l = { 0 };

    if (ml_str_is(name, "name"))
        return ml_jstr_view(r, m->name);
    if (ml_str_is(name, "catch_kwargs"))
        return ml_jbool(p->takes_kwargs);
    if (ml_str_is(name, "catch_varargs"))
        return ml_jbool(p->takes_varargs);
    if (ml_str_is(name, "caller"))
        return ml_jbool(p->takes_caller);
    if (!ml_str_is(name, "arguments"))
        return ml_jmissing();
    for (int32_t i = 0; i < p->n; i++)
        ml_jitems_add(r, &l, ml_jstr_view(r, p->name[i]));
    return ml_jseq_new(r, ML_J_TUPLE, l.item, l.n);
}

static ml_jval number_attr(ml_jval v, ml_str name) {
    if (ml_str_is(name, "real"))
        return v;
    if (ml_str_is(name, "imag"))
        return v.kind == ML_J_FLOAT ? ml_jfloat(0) : ml_jint(0);
    if (ml_str_is(name, "numerator") && v.kind != ML_J_FLOAT)
        return v;
    if (ml_str_is(name, "denominator") && v.kind != ML_J_FLOAT)
        return ml_jint(1);
    return ml_jmissing();
}

static ml_jval range_attr(const ml_jrange *g, ml_str name) {
    if (ml_str_is(name, "start"))
        return ml_jint(g->start);
    if (ml_str_is(name, "stop"))
        return ml_jint(g->stop);
    return ml_str_is(name, "step") ? ml_jint(g->step) : ml_jmissing();
}

static ml_jval cycler_attr(const ml_jcycler *c, ml_str name) {
    return ml_str_is(name, "current") ? c->item[c->pos] : ml_jmissing();
}

static ml_jval group_attr(const ml_jseq *s, ml_str name) {
    if (!s->group)
        return ml_jmissing();
    if (ml_str_is(name, "grouper"))
        return s->item[0];
    return ml_str_is(name, "list") ? s->item[1] : ml_jmissing();
}

/* Data attributes; MISSING if there is none. */
static ml_jval data_attr(ml_jrun *r, ml_jval v, ml_str name) {
    const ml_jval *found;

    switch (v.kind) {
    case ML_J_NAMESPACE:
        found = ml_jdict_name(r, v.dict, name);
        return found ? *found : ml_jmissing();
    case ML_J_BOOL:
    case ML_J_INT:
    case ML_J_FLOAT: return number_attr(v, name);
    case ML_J_RANGE: return range_attr(v.range, name);
    case ML_J_TUPLE: return group_attr(v.seq, name);
    case ML_J_LOOP: return ml_jloop_attr(r, v.loop, name);
    case ML_J_MACRO: return macro_attr(r, v.macro, name);
    case ML_J_CYCLER: return cycler_attr(v.cycler, name);
    default: return ml_jmissing();
    }
}

/* getattr(): MISSING if Python would raise AttributeError. */
static ml_jval get_attr(ml_jrun *r, ml_jval v, ml_str name) {
    const ml_jnative *native;
    ml_jval found;

    if (v.kind == ML_J_UNDEFINED && !(name.len > 1 && memcmp(name.ptr, "__", 2) == 0))
        ml_jraise_undef(r, v);
    if (is_internal(v, name) || would_change(v, name))
        return ml_jundef_unsafe(r, v, name);
    found = data_attr(r, v, name);
    if (found.kind != ML_J_MISSING)
        return found;
    native = method_of(v, name);
    return native ? bound(r, v, native) : ml_jmissing();
}

/* --- items ---------------------------------------------------------------------------------- */

static bool index_of(int64_t n, ml_jval key, int64_t *i) {
    if (!ml_jval_i64(key, i))
        return false;
    if (*i < 0)
        *i += n;
    return *i >= 0 && *i < n;
}

static ml_jval char_at(ml_jrun *r, ml_jval s, int64_t i) {
    size_t at = ml_jstr_offset(s, i), n;
    ml_jval c;

    ml_jrun_step(r, (int64_t)at / 64);
    ml_jchar_at(s.s->ptr + at, &n);
    c = ml_jstr_view(r, (ml_str){ s.s->ptr + at, n });
    return ml_jstr_mark(r, c, s.s->markup);
}

/* self.name: a block of the template. */
static ml_jval block_of(const ml_jrun *r, ml_jval key) {
    const ml_jnodes *l = &r->t->blocks;

    for (int32_t i = 0; key.kind == ML_J_STR && i < l->n; i++)
        if (ml_str_eq(l->node[i]->name, ml_jstr_get(key)))
            return (ml_jval){ .kind = ML_J_BLOCK, .block = l->node[i] };
    return ml_jmissing();
}

/* obj[key]: MISSING if Python would raise TypeError or LookupError. */
static ml_jval get_item(ml_jrun *r, ml_jval v, ml_jval key) {
    const ml_jval *found;
    int64_t i;

    switch (v.kind) {
    case ML_J_UNDEFINED: ml_jraise_undef(r, v);
    case ML_J_DICT:
        found = ml_jdict_get(r, v.dict, key);
        return found ? *found : ml_jmissing();
    case ML_J_LIST:
    case ML_J_TUPLE: return index_of(v.seq->n, key, &i) ? v.seq->item[i] : ml_jmissing();
    case ML_J_STR: return index_of(v.s->n_char, key, &i) ? char_at(r, v, i) : ml_jmissing();
    case ML_J_RANGE:
        return index_of(v.range->n, key, &i) ? ml_jint(v.range->start + i * v.range->step)
                                             : ml_jmissing();
    case ML_J_SELF: return block_of(r, key);
    default: return ml_jmissing();
    }
}

ml_jval ml_jval_attr(ml_jrun *r, ml_jval v, ml_str name) {
    ml_jval found = get_attr(r, v, name), key;

    if (found.kind != ML_J_MISSING)
        return found;
    key = ml_jstr_view(r, name);
    found = get_item(r, v, key);
    return found.kind == ML_J_MISSING ? ml_jundef_attr(r, v, key) : found;
}

ml_jval ml_jval_attr_only(ml_jrun *r, ml_jval v, ml_str name) {
    ml_jval found = get_attr(r, v, name);
    return found.kind == ML_J_MISSING ? ml_jundef_attr(r, v, ml_jstr_view(r, name)) : found;
}

ml_jval ml_jval_item(ml_jrun *r, ml_jval v, ml_jval key) {
    ml_jval found = get_item(r, v, key);

    if (found.kind == ML_J_MISSING && key.kind == ML_J_STR)
        found = get_attr(r, v, ml_jstr_get(key));
    return found.kind == ML_J_MISSING ? ml_jundef_attr(r, v, key) : found;
}

/* --- slices ----------------------------------------------------------------------------------- */

static bool slice_part(ml_jrun *r, ml_jval v, int64_t *out) {
    if (v.kind == ML_J_NONE)
        return false;
    if (!ml_jval_i64(v, out))
        ml_jraise(r, "TypeError",
                  "slice indices must be integers or None or have an __index__ method");
    return true;
}

static int64_t clamp(int64_t i, int64_t low, int64_t high) {
    return i < low ? low : i > high ? high : i;
}

/* first, step and count of the indices, as Python's slice.indices() */
static ml_jrange slice_of(ml_jrun *r, int64_t n, ml_jval start, ml_jval stop,
                          ml_jval step) {
    ml_jrange g = { .step = 1 };
    int64_t low, high;

    if (slice_part(r, step, &g.step) && g.step == 0)
        ml_jraise(r, "ValueError", "slice step cannot be zero");
    g.step = clamp(g.step, -INT64_MAX, INT64_MAX);
    low = g.step < 0 ? -1 : 0;
    high = g.step < 0 ? n - 1 : n;
    if (!slice_part(r, start, &g.start))
        g.start = g.step < 0 ? high : low;
    else
        g.start = clamp(g.start < 0 ? g.start + n : g.start, low, high);
    if (!slice_part(r, stop, &g.stop))
        g.stop = g.step < 0 ? low : high;
    else
        g.stop = clamp(g.stop < 0 ? g.stop + n : g.stop, low, high);
    if (g.step > 0 && g.start < g.stop)
        g.n = (g.stop - g.start - 1) / g.step + 1;
    else if (g.step < 0 && g.stop < g.start)
        g.n = (g.start - g.stop - 1) / -g.step + 1;
    return g;
}

static ml_jval slice_str(ml_jrun *r, ml_jval v, ml_jrange g) {
    size_t from, to;
    ml_jbuf b = { 0 };
    ml_jval s;

    if (g.step == 1 || g.n == 0) {
        from = g.n ? ml_jstr_offset(v, g.start) : 0;
        to = g.n ? ml_jstr_offset(v, g.start + g.n) : 0;
        ml_jrun_step(r, (int64_t)to / 64);
        s = ml_jstr_view(r, (ml_str){ v.s->ptr + from, to - from });
    } else {
        for (int64_t i = 0; i < g.n; i++)
            ml_jbuf_str(r, &b, ml_jstr_get(char_at(r, v, g.start + i * g.step)));
        s = ml_jbuf_value(r, &b);
    }
    return ml_jstr_mark(r, s, v.s->markup);
}

static ml_jval slice_range(ml_jrun *r, const ml_jrange *of, ml_jrange g) {
    ml_jrange *out = ML_JNEW(r, ml_jrange, 1);

    *out = (ml_jrange){ .start = of->start + g.start * of->step,
                        .step = of->step * g.step,
                        .n = g.n };
    out->stop = of->start + g.stop * of->step;
    return (ml_jval){ .kind = ML_J_RANGE, .range = out };
}

ml_jval ml_jval_slice(ml_jrun *r, ml_jval v, ml_jval start, ml_jval stop, ml_jval step) {
    ml_jitems l = { 0 };
    ml_jrange g;

    if (v.kind == ML_J_UNDEFINED)
        ml_jraise_undef(r, v);
    if (v.kind == ML_J_DICT)
        ml_jraise(r, "TypeError", "unhashable type: 'slice'");
    if (v.kind != ML_J_STR && v.kind != ML_J_LIST && v.kind != ML_J_TUPLE &&
        v.kind != ML_J_RANGE)
        ml_jraise(r, "TypeError", "'%s' object is not subscriptable", ml_jval_type(v));
    g = slice_of(r, ml_jval_len(v), start, stop, step);
    if (v.kind == ML_J_STR)
        return slice_str(r, v, g);
    if (v.kind == ML_J_RANGE)
        return slice_range(r, v.range, g);
    for (int64_t i = 0; i < g.n; i++)
        ml_jitems_add(r, &l, v.seq->item[g.start + i * g.step]);
    return ml_jseq_new(r, v.kind, l.item, l.n);
}

/* --- methods of containers ----------------------------------------------------- */

static ml_jval seq_index(ml_jrun *r, ml_jval self, const ml_jargs *a) {
    for (int64_t i = 0; i < self.seq->n; i++)
        if (ml_jval_eq(r, self.seq->item[i], a->arg[0]))
            return ml_jint(i);
    if (self.kind == ML_J_TUPLE)
        ml_jraise(r, "ValueError", "tuple.index(x): x not in tuple");
    ml_jraise(r, "ValueError", "%s is not in list", ml_jval_str(r, a->arg[0]).s->ptr);
}

static ml_jval seq_count(ml_jrun *r, ml_jval self, const ml_jargs *a) {
    int64_t n = 0;
    for (int64_t i = 0; i < self.seq->n; i++)
        n += ml_jval_eq(r, self.seq->item[i], a->arg[0]);
    return ml_jint(n);
}

static ml_jval list_copy(ml_jrun *r, ml_jval self, const ml_jargs *a) {
    (void)a;
    return ml_jseq_new(r, self.kind, self.seq->item, self.seq->n);
}

const ml_jnative ml_jmethods_list[] = {
    { "index", seq_index, "value", 1, false },
    { "count", seq_count, "value", 1, false },
    { "copy", list_copy, "", 0, false },
    { 0 },
};

const ml_jnative ml_jmethods_tuple[] = {
    { "index", seq_index, "value", 1, false },
    { "count", seq_count, "value", 1, false },
    { 0 },
};

static ml_jval dict_get(ml_jrun *r, ml_jval self, const ml_jargs *a) {
    const ml_jval *found = ml_jdict_get(r, self.dict, a->arg[0]);
    uint64_t hash;

    if (found)
        return *found;
    if (!ml_jval_hash(r, a->arg[0], &hash))
        ml_jraise(r, "TypeError", "unhashable type: '%s'", ml_jval_type(a->arg[0]));
    return ml_jarg_given(a, 1) ? a->arg[1] : ml_jnone();
}

static ml_jval dict_keys(ml_jrun *r, ml_jval self, const ml_jargs *a) {
    (void)a;
    return ml_jview_new(r, self.dict, ML_J_KEYS);
}

static ml_jval dict_values(ml_jrun *r, ml_jval self, const ml_jargs *a) {
    (void)a;
    return ml_jview_new(r, self.dict, ML_J_VALUES);
}

static ml_jval dict_items(ml_jrun *r, ml_jval self, const ml_jargs *a) {
    (void)a;
    return ml_jview_new(r, self.dict, ML_J_ITEMS);
}

static ml_jval dict_copy(ml_jrun *r, ml_jval self, const ml_jargs *a) {
    ml_jdict *d = ml_jdict_new(r, self.dict->n);

    (void)a;
    for (int64_t i = 0; i < self.dict->n; i++)
        ml_jdict_set(r, d, self.dict->pair[i].key, self.dict->pair[i].value);
    return ml_jdict_value(d);
}

static ml_jval dict_fromkeys(ml_jrun *r, ml_jval self, const ml_jargs *a) {
    ml_jitems l = ml_jval_items(r, a->arg[0]);
    ml_jdict *d = ml_jdict_new(r, l.n);

    (void)self;
    for (int64_t i = 0; i < l.n; i++)
        ml_jdict_set(r, d, l.item[i], ml_jarg_given(a, 1) ? a->arg[1] : ml_jnone());
    return ml_jdict_value(d);
}

const ml_jnative ml_jmethods_dict[] = {
    { "get", dict_get, "key default", 1, false },
    { "keys", dict_keys, "", 0, false },
    { "values", dict_values, "", 0, false },
    { "items", dict_items, "", 0, false },
    { "copy", dict_copy, "", 0, false },
    { "fromkeys", dict_fromkeys, "iterable value", 1, false },
    { 0 },
};
