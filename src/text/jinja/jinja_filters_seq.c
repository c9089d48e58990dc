/* Filters that reduce or order a sequence. */
#include "text/jinja/jinja_priv.h"

static ml_jval f_list(ml_jrun *r, ml_jval v, const ml_jargs *a) {
    ml_jitems l = ml_jval_items(r, v);
    (void)a;
    return ml_jitems_list(r, &l);
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
        ml_jval_print(r, &b, ml_jval_path(r, item, a->arg[1], ml_jmissing()));
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
                              ml_jval_path(r, item, a->arg[0], ml_jmissing()));
    return total;
}

/* --- order ---------------------------------------------------------------------------- */

static ml_jval sorted(ml_jrun *r, ml_jpair *p, int64_t n, bool reverse) {
    ml_jitems l = { 0 };

    ml_jpairs_sort(r, p, n, reverse);
    for (int64_t i = 0; i < n; i++)
        ml_jitems_add(r, &l, p[i].value);
    return ml_jitems_list(r, &l);
}

/* "a,b": by a, then by b */
static ml_jval sort_key(ml_jrun *r, ml_jval item, ml_jval attribute, bool case_sensitive) {
    ml_jitems l = { 0 };
    ml_str rest;

    if (attribute.kind != ML_J_STR)
        return ml_jval_fold(r, ml_jval_path(r, item, attribute, ml_jmissing()),
                            case_sensitive);
    rest = ml_jstr_get(attribute);
    for (;;) {
        size_t comma = ml_jstr_find(rest, ml_str_of(","), 0);
        size_t n = comma == SIZE_MAX ? rest.len : comma;
        ml_jval path = ml_jstr_view(r, (ml_str){ rest.ptr, n });
        ml_jitems_add(
            r, &l,
            ml_jval_fold(r, ml_jval_path(r, item, path, ml_jmissing()), case_sensitive));
        if (comma == SIZE_MAX)
            return ml_jitems_list(r, &l);
        rest = (ml_str){ rest.ptr + n + 1, rest.len - n - 1 };
    }
}

static ml_jval f_sort(ml_jrun *r, ml_jval v, const ml_jargs *a) {
    ml_jitems l = ml_jval_items(r, v);
    ml_jpair *p = ML_JNEW(r, ml_jpair, l.n);

    for (int64_t i = 0; i < l.n; i++)
        p[i] = (ml_jpair){ sort_key(r, l.item[i], a->arg[2], ml_jarg_bool(r, a, 1, false)),
                           l.item[i] };
    return sorted(r, p, l.n, ml_jarg_bool(r, a, 0, false));
}

static ml_jval f_dictsort(ml_jrun *r, ml_jval v, const ml_jargs *a) {
    ml_str by = ml_jarg_str(r, a, 1, ml_str_of("key"));
    bool by_value = ml_str_is(by, "value");
    ml_jitems l;
    ml_jpair *p;

    if (!by_value && !ml_str_is(by, "key"))
        ml_jraise(r, "FilterArgumentError",
                  "You can only sort by either \"key\" or \"value\"");
    if (v.kind == ML_J_UNDEFINED)
        ml_jraise_undef(r, v);
    if (v.kind != ML_J_DICT)
        ml_jraise(r, "AttributeError", "'%s' object has no attribute 'items'",
                  ml_jval_type(v));
    l = ml_jval_items(r, ml_jview_new(r, v.dict, ML_J_ITEMS));
    p = ML_JNEW(r, ml_jpair, l.n);
    for (int64_t i = 0; i < l.n; i++)
        p[i] = (ml_jpair){ ml_jval_fold(r, l.item[i].seq->item[by_value],
                                        ml_jarg_bool(r, a, 0, false)),
                           l.item[i] };
    return sorted(r, p, l.n, ml_jarg_bool(r, a, 2, false));
}

static ml_jval group_of(ml_jrun *r, ml_jval key, const ml_jitems *members) {
    ml_jseq *s = ML_JNEW(r, ml_jseq, 1);

    s->n = 2;
    s->group = true;
    s->item = ML_JNEW(r, ml_jval, 2);
    s->item[0] = key;
    s->item[1] = ml_jitems_list(r, members);
    return (ml_jval){ .kind = ML_J_TUPLE, .seq = s };
}

static ml_jval f_groupby(ml_jrun *r, ml_jval v, const ml_jargs *a) {
    ml_jval dflt = a->arg[1].kind == ML_J_NONE ? ml_jmissing() : a->arg[1];
    bool case_sensitive = ml_jarg_bool(r, a, 2, false);
    ml_jitems l = ml_jval_items(r, v), groups = { 0 }, members = { 0 };
    ml_jpair *p = ML_JNEW(r, ml_jpair, l.n);

    for (int64_t i = 0; i < l.n; i++)
        p[i] = (ml_jpair){ ml_jval_fold(r, ml_jval_path(r, l.item[i], a->arg[0], dflt),
                                        case_sensitive),
                           l.item[i] };
    ml_jpairs_sort(r, p, l.n, false);
    for (int64_t i = 0; i < l.n; i++) {
        ml_jitems_add(r, &members, p[i].value);
        if (i + 1 < l.n && ml_jval_eq(r, p[i].key, p[i + 1].key))
            continue;
        ml_jitems_add(
            r, &groups,
            group_of(r, ml_jval_path(r, members.item[0], a->arg[0], dflt), &members));
        members = (ml_jitems){ 0 };
    }
    return ml_jitems_list(r, &groups);
}

/* sign: -1 for min, 1 for max */
static ml_jval extreme(ml_jrun *r, ml_jval v, const ml_jargs *a, int sign) {
    bool case_sensitive = ml_jarg_bool(r, a, 0, false);
    ml_jiter *it = ml_jiter_over(r, v);
    ml_jval best, key, item;

    if (!ml_jiter_next(r, it, &best))
        return ml_jundef_hint(r, ml_str_of("No aggregated item, sequence was empty."));
    key = ml_jval_fold(r, ml_jval_path(r, best, a->arg[1], ml_jmissing()), case_sensitive);
    while (ml_jiter_next(r, it, &item)) {
        ml_jval k = ml_jval_fold(r, ml_jval_path(r, item, a->arg[1], ml_jmissing()),
                                 case_sensitive);
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
        return ml_jbuf_like(r, v, &b);
    }
    if (!ml_jval_iterable(v))
        ml_jraise(r, "FilterArgumentError", "argument must be iterable");
    l = ml_jval_items(r, v);
    it = ml_jiter_new(r, next_reversed,
                      v.kind == ML_J_LIST   ? "list_reverseiterator"
                      : v.kind == ML_J_DICT ? "dict_reversekeyiterator"
                                            : "reversed");
    it->over = ml_jitems_list(r, &l);
    it->pos = l.n;
    return ml_jiter_value(it);
}

const ml_jnative ml_jfilters_seq[] = {
    { "length", f_length, "", 0, false },
    { "count", f_length, "", 0, false },
    { "join", f_join, "d attribute", 0, false },
    { "list", f_list, "", 0, false },
    { "first", f_first, "", 0, false },
    { "last", f_last, "", 0, false },
    { "sum", f_sum, "attribute start", 0, false },
    { "sort", f_sort, "reverse case_sensitive attribute", 0, false },
    { "dictsort", f_dictsort, "case_sensitive by reverse", 0, false },
    { "reverse", f_reverse, "", 0, false },
    { "min", f_min, "case_sensitive attribute", 0, false },
    { "max", f_max, "case_sensitive attribute", 0, false },
    { "groupby", f_groupby, "attribute default case_sensitive", 1, false },
    { 0 },
};
