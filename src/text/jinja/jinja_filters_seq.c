/* Filters that make one value of a sequence. */
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

const ml_jnative ml_jfilters_seq[] = {
    { "length", f_length, "", 0, false },
    { "count", f_length, "", 0, false },
    { "join", f_join, "d attribute", 0, false },
    { "list", f_list, "", 0, false },
    { "first", f_first, "", 0, false },
    { "last", f_last, "", 0, false },
    { "sum", f_sum, "attribute start", 0, false },
    { 0 },
};
