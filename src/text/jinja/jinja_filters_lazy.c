/* Filters that are generators in Jinja: map, select and the like.  They are lazy here too:
 * an iterator that is not consumed has no effect and raises no error. */
#include "text/jinja/jinja_priv.h"

typedef struct lazy {
    ml_jval of;    /* the source */
    ml_jargs args; /* the arguments of the filter */
    bool by_attr;  /* selectattr: the first argument is the name of an attribute */
    bool reject;
    bool ready;
    const ml_jnative *native; /* the filter or test to apply; NULL: truth value */
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

/* map and select treat any false value as an empty sequence. */
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
                     : ml_jval_path(r, *out, z->attribute, z->dflt);
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
        v = ml_jval_path(r, *out, z->attribute, ml_jmissing());
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
        ml_jval key = ml_jval_path(r, *out, z->args.arg[1], ml_jmissing());
        int64_t before = z->seen->n;
        ml_jdict_set(r, z->seen, ml_jval_fold(r, key, case_sensitive), ml_jnone());
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
    *out = ml_jitems_list(r, &l);
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
        it->over = ml_jitems_list(r, &items);
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
    *out = ml_jitems_list(r, &l);
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

const ml_jnative ml_jfilters_lazy[] = {
    { "items", f_items, "", 0, false },
    { "map", f_map, NULL, 0, false },
    { "select", f_select, NULL, 0, false },
    { "reject", f_reject, NULL, 0, false },
    { "selectattr", f_selectattr, NULL, 0, false },
    { "rejectattr", f_rejectattr, NULL, 0, false },
    { "unique", f_unique, "case_sensitive attribute", 0, false },
    { "batch", f_batch, "linecount fill_with", 1, false },
    { "slice", f_slice, "slices fill_with", 1, false },
    { 0 },
};
