/* Filters on sequences.  Those that Jinja writes as generators are lazy here too: an
 * iterator that nobody pulls does nothing, not even fail. */
#include <math.h>
#include <string.h>

#include "text/jinja_priv.h"

static ml_jval list_value(ml_jrun *r, const ml_jitems *l) {
    return ml_jseq_new(r, ML_J_LIST, l->item, l->n);
}

/* --- attributes by dotted name --------------------------------------------------------------------------- */

static bool all_digits(ml_str s) {
    for (size_t i = 0; i < s.len; i++)
        if (s.ptr[i] < '0' || s.ptr[i] > '9')
            return false;
    return s.len > 0 && s.len < 18;
}

static ml_jval part_key(ml_jrun *r, ml_str part) {
    int64_t i = 0;

    if (!all_digits(part))
        return ml_jstr_view(r, part);
    for (size_t k = 0; k < part.len; k++)
        i = i * 10 + (part.ptr[k] - '0');
    return ml_jint(i);
}

/* "a.b.0" or a number; MISSING: the item itself.  dflt replaces what is undefined. */
static ml_jval attribute_of(ml_jrun *r, ml_jval item, ml_jval path, ml_jval dflt) {
    ml_str rest;

    if (path.kind == ML_J_MISSING || path.kind == ML_J_NONE)
        return item;
    if (path.kind != ML_J_STR) {
        item = ml_jval_item(r, item, path);
        return item.kind == ML_J_UNDEFINED && dflt.kind != ML_J_MISSING ? dflt : item;
    }
    rest = ml_jstr_get(path);
    for (;;) {
        size_t dot = ml_jstr_find(rest, ml_str_of("."), 0),
               n = dot == SIZE_MAX ? rest.len : dot;
        item = ml_jval_item(r, item, part_key(r, (ml_str){ rest.ptr, n }));
        if (item.kind == ML_J_UNDEFINED && dflt.kind != ML_J_MISSING)
            item = dflt;
        if (dot == SIZE_MAX)
            return item;
        rest = (ml_str){ rest.ptr + n + 1, rest.len - n - 1 };
    }
}

/* Texts compare without case unless asked otherwise. */
static ml_jval fold(ml_jrun *r, ml_jval v, bool case_sensitive) {
    ml_jbuf b = { 0 };

    if (case_sensitive || v.kind != ML_J_STR)
        return v;
    ml_jbuf_case(r, &b, ml_jstr_get(v), ML_J_LOWER);
    return ml_jbuf_value(r, &b);
}

/* --- map, select and their kin ------------------------------------------------------------------------------ */

typedef struct lazy {
    ml_jval of;    /* what is walked */
    ml_jargs args; /* of the filter */
    bool by_attr;  /* selectattr: the first argument names an attribute */
    bool reject;
    bool ready;
    const ml_jnative *native; /* the filter or test to apply; NULL: truth */
    ml_jargs rest;            /* its arguments */
    ml_jval attribute, dflt;
    ml_jdict *seen;
} lazy;

static lazy *lazy_new(ml_jrun *r, ml_jval of, const ml_jargs *a) {
    lazy *z = ML_JNEW(r, lazy, 1);
    z->of = of;
    z->args = *a;
    return z;
}

static ml_jval lazy_value(ml_jrun *r, lazy *z,
                          bool (*next)(ml_jrun *, ml_jiter *, ml_jval *)) {
    ml_jiter *it = ml_jiter_new(r, next, "generator");
    it->over = z->of;
    it->state = z;
    return ml_jiter_value(it);
}

static lazy *lazy_of(ml_jrun *r, ml_jiter *it) {
    if (!it->inner)
        it->inner = ml_jiter_over(r, it->over);
    return it->state;
}

/* map and select take anything that is false for an empty sequence. */
static ml_jval lazy_or_empty(ml_jrun *r, lazy *z,
                             bool (*next)(ml_jrun *, ml_jiter *, ml_jval *)) {
    if (!ml_jval_truth(r, z->of))
        z->of = ml_jseq_new(r, ML_J_LIST, NULL, 0);
    return lazy_value(r, z, next);
}

static void take_native(ml_jrun *r, lazy *z, int64_t i, bool is_filter) {
    ml_jval name = z->args.pos[i];

    z->native = name.kind != ML_J_STR ? NULL
                : is_filter           ? ml_jfilter_find(ml_jstr_get(name))
                                      : ml_jtest_find(ml_jstr_get(name));
    if (!z->native) {
        ml_jval text = ml_jval_str(r, name);
        ml_jraise(r, "TemplateRuntimeError", "No %s named '%.*s'.",
                  is_filter ? "filter" : "test", (int)text.s->len, text.s->ptr);
    }
    z->rest = z->args;
    z->rest.pos += i + 1;
    z->rest.n -= i + 1;
}

static ml_jval *keyword(const ml_jargs *a, const char *name) {
    for (int64_t i = 0; i < a->n_kw; i++)
        if (ml_str_is(a->kw[i].name, name))
            return &a->kw[i].value;
    return NULL;
}

static void prepare_map(ml_jrun *r, lazy *z) {
    const ml_jval *attribute = keyword(&z->args, "attribute");
    const ml_jval *dflt = keyword(&z->args, "default");

    z->ready = true;
    if (z->args.n == 0 && attribute) {
        z->attribute = *attribute;
        z->dflt = dflt ? *dflt : ml_jmissing();
        for (int64_t i = 0; i < z->args.n_kw; i++)
            if (!ml_str_is(z->args.kw[i].name, "attribute") &&
                !ml_str_is(z->args.kw[i].name, "default"))
                ml_jraise(r, "FilterArgumentError", "Unexpected keyword argument '%.*s'",
                          (int)z->args.kw[i].name.len, z->args.kw[i].name.ptr);
        return;
    }
    if (z->args.n == 0)
        ml_jraise(r, "FilterArgumentError", "map requires a filter argument");
    take_native(r, z, 0, true);
}

static bool next_mapped(ml_jrun *r, ml_jiter *it, ml_jval *out) {
    lazy *z = lazy_of(r, it);
    ml_jargs a;

    if (!ml_jiter_next(r, it->inner, out))
        return false;
    if (!z->ready)
        prepare_map(r, z);
    a = z->rest;
    *out = z->native ? ml_jnative_call(r, z->native, *out, &a)
                     : attribute_of(r, *out, z->attribute, z->dflt);
    return true;
}

static ml_jval f_map(ml_jrun *r, ml_jval v, const ml_jargs *a) {
    return lazy_or_empty(r, lazy_new(r, v, a), next_mapped);
}

static void prepare_select(ml_jrun *r, lazy *z) {
    int64_t first = z->by_attr ? 1 : 0;

    z->ready = true;
    if (z->by_attr) {
        if (z->args.n == 0)
            ml_jraise(r, "FilterArgumentError", "Missing parameter for attribute name");
        z->attribute = z->args.pos[0];
    }
    if (z->args.n > first)
        take_native(r, z, first, false);
}

static bool next_selected(ml_jrun *r, ml_jiter *it, ml_jval *out) {
    lazy *z = lazy_of(r, it);

    while (ml_jiter_next(r, it->inner, out)) {
        ml_jval v;
        ml_jargs a;
        if (!z->ready)
            prepare_select(r, z);
        a = z->rest;
        v = attribute_of(r, *out, z->attribute, ml_jmissing());
        if (z->native)
            v = ml_jnative_call(r, z->native, v, &a);
        if (ml_jval_truth(r, v) != z->reject)
            return true;
    }
    return false;
}

static ml_jval select_by(ml_jrun *r, ml_jval v, const ml_jargs *a, bool by_attr,
                         bool reject) {
    lazy *z = lazy_new(r, v, a);
    z->by_attr = by_attr;
    z->reject = reject;
    return lazy_or_empty(r, z, next_selected);
}

static ml_jval f_select(ml_jrun *r, ml_jval v, const ml_jargs *a) {
    return select_by(r, v, a, false, false);
}
static ml_jval f_reject(ml_jrun *r, ml_jval v, const ml_jargs *a) {
    return select_by(r, v, a, false, true);
}
static ml_jval f_selectattr(ml_jrun *r, ml_jval v, const ml_jargs *a) {
    return select_by(r, v, a, true, false);
}
static ml_jval f_rejectattr(ml_jrun *r, ml_jval v, const ml_jargs *a) {
    return select_by(r, v, a, true, true);
}

static bool next_unique(ml_jrun *r, ml_jiter *it, ml_jval *out) {
    lazy *z = lazy_of(r, it);
    bool case_sensitive = ml_jarg_bool(r, &z->args, 0, false);

    if (!z->seen)
        z->seen = ml_jdict_new(r, 0);
    while (ml_jiter_next(r, it->inner, out)) {
        ml_jval key = attribute_of(r, *out, z->args.arg[1], ml_jmissing());
        int64_t before = z->seen->n;
        ml_jdict_set(r, z->seen, fold(r, key, case_sensitive), ml_jnone());
        if (z->seen->n > before)
            return true;
    }
    return false;
}

static ml_jval f_unique(ml_jrun *r, ml_jval v, const ml_jargs *a) {
    return lazy_value(r, lazy_new(r, v, a), next_unique);
}

static bool next_batch(ml_jrun *r, ml_jiter *it, ml_jval *out) {
    lazy *z = lazy_of(r, it);
    int64_t n = ml_jarg_int(r, &z->args, 0, 1);
    bool fill = ml_jarg_given(&z->args, 1) && z->args.arg[1].kind != ML_J_NONE;
    ml_jitems l = { 0 };
    ml_jval item;

    while ((l.n < n || l.n == 0) && ml_jiter_next(r, it->inner, &item))
        ml_jitems_add(r, &l, item);
    if (!l.n)
        return false;
    while (fill && l.n < n)
        ml_jitems_add(r, &l, z->args.arg[1]);
    *out = list_value(r, &l);
    return true;
}

static ml_jval f_batch(ml_jrun *r, ml_jval v, const ml_jargs *a) {
    return lazy_value(r, lazy_new(r, v, a), next_batch);
}

static bool next_slice(ml_jrun *r, ml_jiter *it, ml_jval *out) {
    const lazy *z = it->state;
    int64_t slices = ml_jarg_int(r, &z->args, 0, 1), per, extra, begin, n;
    bool fill = ml_jarg_given(&z->args, 1) && z->args.arg[1].kind != ML_J_NONE;
    const ml_jseq *all;
    ml_jitems l = { 0 };

    if (slices <= 0)
        ml_jraise(r, "ZeroDivisionError", "integer division or modulo by zero");
    if (it->pos == 0) {
        ml_jitems items = ml_jval_items(r, it->over);
        it->over = list_value(r, &items);
    }
    all = it->over.seq;
    if (it->pos >= slices)
        return false;
    per = all->n / slices;
    extra = all->n % slices;
    begin = it->pos * per + (it->pos < extra ? it->pos : extra);
    n = per + (it->pos < extra);
    for (int64_t i = 0; i < n; i++)
        ml_jitems_add(r, &l, all->item[begin + i]);
    if (fill && it->pos >= extra)
        ml_jitems_add(r, &l, z->args.arg[1]);
    it->pos++;
    *out = list_value(r, &l);
    return true;
}

static ml_jval f_slice(ml_jrun *r, ml_jval v, const ml_jargs *a) {
    return lazy_value(r, lazy_new(r, v, a), next_slice);
}

static bool next_pair(ml_jrun *r, ml_jiter *it, ml_jval *out) {
    if (it->over.kind == ML_J_UNDEFINED)
        return false;
    if (it->over.kind != ML_J_DICT)
        ml_jraise(r, "TypeError", "Can only get item pairs from a mapping.");
    if (!it->inner)
        it->inner = ml_jiter_over(r, ml_jview_new(r, it->over.dict, ML_J_ITEMS));
    return ml_jiter_next(r, it->inner, out);
}

static ml_jval f_items(ml_jrun *r, ml_jval v, const ml_jargs *a) {
    return lazy_value(r, lazy_new(r, v, a), next_pair);
}

/* --- order ----------------------------------------------------------------------------------------------------- */

typedef struct keyed {
    ml_jval key, item;
} keyed;

/* Stable.  As in Python, the question is whether the later one is smaller, and the first two
 * are compared first. */
static void sort(ml_jrun *r, keyed *p, keyed *scratch, int64_t n, bool reverse) {
    int64_t half = (n + 1) / 2, i = 0, k = half, at = 0;

    if (n < 2)
        return;
    sort(r, p, scratch, half, reverse);
    sort(r, p + half, scratch, n - half, reverse);
    while (i < half && k < n) {
        bool later_first = reverse ? ml_jval_cmp(r, p[i].key, p[k].key, "<") == -1
                                   : ml_jval_cmp(r, p[k].key, p[i].key, "<") == -1;
        scratch[at++] = later_first ? p[k++] : p[i++];
    }
    while (i < half)
        scratch[at++] = p[i++];
    while (k < n)
        scratch[at++] = p[k++];
    for (i = 0; i < n; i++)
        p[i] = scratch[i];
}

static ml_jval sorted(ml_jrun *r, keyed *p, int64_t n, bool reverse) {
    ml_jitems l = { 0 };

    sort(r, p, ML_JNEW(r, keyed, n), n, reverse);
    for (int64_t i = 0; i < n; i++)
        ml_jitems_add(r, &l, p[i].item);
    return list_value(r, &l);
}

/* "a,b": by a, then by b */
static ml_jval sort_key(ml_jrun *r, ml_jval item, ml_jval attribute, bool case_sensitive) {
    ml_jitems l = { 0 };
    ml_str rest;

    if (attribute.kind != ML_J_STR)
        return fold(r, attribute_of(r, item, attribute, ml_jmissing()), case_sensitive);
    rest = ml_jstr_get(attribute);
    for (;;) {
        size_t comma = ml_jstr_find(rest, ml_str_of(","), 0);
        size_t n = comma == SIZE_MAX ? rest.len : comma;
        ml_jval path = ml_jstr_view(r, (ml_str){ rest.ptr, n });
        ml_jitems_add(r, &l,
                      fold(r, attribute_of(r, item, path, ml_jmissing()), case_sensitive));
        if (comma == SIZE_MAX)
            return ml_jseq_new(r, ML_J_LIST, l.item, l.n);
        rest = (ml_str){ rest.ptr + n + 1, rest.len - n - 1 };
    }
}

static ml_jval f_sort(ml_jrun *r, ml_jval v, const ml_jargs *a) {
    ml_jitems l = ml_jval_items(r, v);
    keyed *p = ML_JNEW(r, keyed, l.n);

    for (int64_t i = 0; i < l.n; i++)
        p[i] = (keyed){ sort_key(r, l.item[i], a->arg[2], ml_jarg_bool(r, a, 1, false)),
                        l.item[i] };
    return sorted(r, p, l.n, ml_jarg_bool(r, a, 0, false));
}

static ml_jval f_dictsort(ml_jrun *r, ml_jval v, const ml_jargs *a) {
    ml_str by = ml_jarg_str(r, a, 1, ml_str_of("key"));
    bool by_value = ml_str_is(by, "value");
    ml_jitems l;
    keyed *p;

    if (!by_value && !ml_str_is(by, "key"))
        ml_jraise(r, "FilterArgumentError",
                  "You can only sort by either \"key\" or \"value\"");
    if (v.kind == ML_J_UNDEFINED)
        ml_jraise_undef(r, v);
    if (v.kind != ML_J_DICT)
        ml_jraise(r, "AttributeError", "'%s' object has no attribute 'items'",
                  ml_jval_type(v));
    l = ml_jval_items(r, ml_jview_new(r, v.dict, ML_J_ITEMS));
    p = ML_JNEW(r, keyed, l.n);
    for (int64_t i = 0; i < l.n; i++)
        p[i] =
            (keyed){ fold(r, l.item[i].seq->item[by_value], ml_jarg_bool(r, a, 0, false)),
                     l.item[i] };
    return sorted(r, p, l.n, ml_jarg_bool(r, a, 2, false));
}

static ml_jval group_of(ml_jrun *r, ml_jval key, const ml_jitems *members) {
    ml_jseq *s = ML_JNEW(r, ml_jseq, 1);

    s->n = 2;
    s->group = true;
    s->item = ML_JNEW(r, ml_jval, 2);
    s->item[0] = key;
    s->item[1] = list_value(r, members);
    return (ml_jval){ .kind = ML_J_TUPLE, .seq = s };
}

static ml_jval f_groupby(ml_jrun *r, ml_jval v, const ml_jargs *a) {
    ml_jval dflt = a->arg[1].kind == ML_J_NONE ? ml_jmissing() : a->arg[1];
    bool case_sensitive = ml_jarg_bool(r, a, 2, false);
    ml_jitems l = ml_jval_items(r, v), groups = { 0 }, members = { 0 };
    keyed *p = ML_JNEW(r, keyed, l.n);

    for (int64_t i = 0; i < l.n; i++)
        p[i] =
            (keyed){ fold(r, attribute_of(r, l.item[i], a->arg[0], dflt), case_sensitive),
                     l.item[i] };
    sort(r, p, ML_JNEW(r, keyed, l.n), l.n, false);
    for (int64_t i = 0; i < l.n; i++) {
        ml_jitems_add(r, &members, p[i].item);
        if (i + 1 < l.n && ml_jval_eq(r, p[i].key, p[i + 1].key))
            continue;
        ml_jitems_add(
            r, &groups,
            group_of(r, attribute_of(r, members.item[0], a->arg[0], dflt), &members));
        members = (ml_jitems){ 0 };
    }
    return list_value(r, &groups);
}

/* sign: -1 for min, 1 for max */
static ml_jval extreme(ml_jrun *r, ml_jval v, const ml_jargs *a, int sign) {
    bool case_sensitive = ml_jarg_bool(r, a, 0, false);
    ml_jiter *it = ml_jiter_over(r, v);
    ml_jval best, key, item;

    if (!ml_jiter_next(r, it, &best))
        return ml_jundef_hint(r, ml_str_of("No aggregated item, sequence was empty."));
    key = fold(r, attribute_of(r, best, a->arg[1], ml_jmissing()), case_sensitive);
    while (ml_jiter_next(r, it, &item)) {
        ml_jval k =
            fold(r, attribute_of(r, item, a->arg[1], ml_jmissing()), case_sensitive);
        if (ml_jval_cmp(r, k, key, sign < 0 ? "<" : ">") == sign) {
            best = item;
            key = k;
        }
    }
    return best;
}

static ml_jval f_min(ml_jrun *r, ml_jval v, const ml_jargs *a) {
    return extreme(r, v, a, -1);
}
static ml_jval f_max(ml_jrun *r, ml_jval v, const ml_jargs *a) {
    return extreme(r, v, a, 1);
}

static bool next_reversed(ml_jrun *r, ml_jiter *it, ml_jval *out) {
    (void)r;
    if (it->pos == 0)
        return false;
    *out = it->over.seq->item[--it->pos];
    return true;
}

static ml_jval f_reverse(ml_jrun *r, ml_jval v, const ml_jargs *a) {
    ml_jiter *it;
    ml_jitems l;
    ml_jbuf b = { 0 };

    (void)a;
    if (v.kind == ML_J_STR) {
        const char *p = v.s->ptr + v.s->len;
        while (p > v.s->ptr)
            ml_jbuf_char(r, &b, ml_utf8_prev(&p));
        return ml_jstr_mark(r, ml_jbuf_value(r, &b), v.s->markup);
    }
    if (!ml_jval_iterable(v))
        ml_jraise(r, "FilterArgumentError", "argument must be iterable");
    l = ml_jval_items(r, v);
    it = ml_jiter_new(r, next_reversed,
                      v.kind == ML_J_LIST   ? "list_reverseiterator"
                      : v.kind == ML_J_DICT ? "dict_reversekeyiterator"
                                            : "reversed");
    it->over = list_value(r, &l);
    it->pos = l.n;
    return ml_jiter_value(it);
}

/* --- the rest ---------------------------------------------------------------------------------------------------- */

static ml_jval f_list(ml_jrun *r, ml_jval v, const ml_jargs *a) {
    ml_jitems l = ml_jval_items(r, v);
    (void)a;
    return list_value(r, &l);
}

static ml_jval f_length(ml_jrun *r, ml_jval v, const ml_jargs *a) {
    int64_t n = v.kind == ML_J_LOOP ? ml_jloop_length(r, v.loop) : ml_jval_len(v);

    (void)a;
    if (n < 0)
        ml_jraise(r, "TypeError", "object of type '%s' has no len()", ml_jval_type(v));
    return ml_jint(n);
}

static ml_jval f_first(ml_jrun *r, ml_jval v, const ml_jargs *a) {
    ml_jval item;

    (void)a;
    if (!ml_jiter_next(r, ml_jiter_over(r, v), &item))
        return ml_jundef_hint(r, ml_str_of("No first item, sequence was empty."));
    return item;
}

static ml_jval f_last(ml_jrun *r, ml_jval v, const ml_jargs *a) {
    ml_jitems l;

    (void)a;
    if (v.kind == ML_J_ITER)
        ml_jraise(r, "TypeError", "'%s' object is not reversible", ml_jval_type(v));
    l = ml_jval_items(r, v);
    if (!l.n)
        return ml_jundef_hint(r, ml_str_of("No last item, sequence was empty."));
    return l.item[l.n - 1];
}

static ml_jval f_join(ml_jrun *r, ml_jval v, const ml_jargs *a) {
    ml_jval sep = ml_jarg_given(a, 0) ? ml_jval_str(r, a->arg[0]) : ml_jstr_of(r, "");
    ml_jiter *it = ml_jiter_over(r, v);
    ml_jbuf b = { 0 };
    ml_jval item;

    for (bool first = true; ml_jiter_next(r, it, &item); first = false) {
        if (!first)
            ml_jbuf_str(r, &b, ml_jstr_get(sep));
        ml_jval_print(r, &b, attribute_of(r, item, a->arg[1], ml_jmissing()));
    }
    return ml_jbuf_value(r, &b);
}

static ml_jval f_sum(ml_jrun *r, ml_jval v, const ml_jargs *a) {
    ml_jval total = ml_jarg_given(a, 1) ? a->arg[1] : ml_jint(0), item;
    ml_jiter *it = ml_jiter_over(r, v);

    if (total.kind == ML_J_STR)
        ml_jraise(r, "TypeError", "sum() can't sum strings [use ''.join(seq) instead]");
    while (ml_jiter_next(r, it, &item))
        total = ml_jop_binary(r, ML_JO_ADD, total,
                              attribute_of(r, item, a->arg[0], ml_jmissing()));
    return total;
}

const ml_jnative ml_jfilters_seq[] = {
    { "length", f_length, "", 0, false },
    { "count", f_length, "", 0, false },
    { "items", f_items, "", 0, false },
    { "join", f_join, "d attribute", 0, false },
    { "list", f_list, "", 0, false },
    { "map", f_map, NULL, 0, false },
    { "select", f_select, NULL, 0, false },
    { "reject", f_reject, NULL, 0, false },
    { "selectattr", f_selectattr, NULL, 0, false },
    { "rejectattr", f_rejectattr, NULL, 0, false },
    { "first", f_first, "", 0, false },
    { "last", f_last, "", 0, false },
    { "sort", f_sort, "reverse case_sensitive attribute", 0, false },
    { "dictsort", f_dictsort, "case_sensitive by reverse", 0, false },
    { "unique", f_unique, "case_sensitive attribute", 0, false },
    { "reverse", f_reverse, "", 0, false },
    { "min", f_min, "case_sensitive attribute", 0, false },
    { "max", f_max, "case_sensitive attribute", 0, false },
    { "sum", f_sum, "attribute start", 0, false },
    { "groupby", f_groupby, "attribute default case_sensitive", 1, false },
    { "batch", f_batch, "linecount fill_with", 1, false },
    { "slice", f_slice, "slices fill_with", 1, false },
    { 0 },
};
