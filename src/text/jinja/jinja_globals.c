/* Global functions of templates. */
#include <string.h>
#include <time.h>

#include "text/jinja/jinja_priv.h"

#define MAX_RANGE 100000

static ml_jval make_range(ml_jrun *r, ml_jval self, const ml_jargs *a) {
    ml_jrange *g = ML_JNEW(r, ml_jrange, 1);
    bool one = !ml_jarg_given(a, 1);
    uint64_t span, step;

    (void)self;
    g->start = one ? 0 : ml_jarg_int(r, a, 0, 0);
    g->stop = ml_jarg_int(r, a, one ? 0 : 1, 0);
    g->step = ml_jarg_int(r, a, 2, 1);
    if (g->step == 0)
        ml_jraise(r, "ValueError", "range() arg 3 must not be zero");
    if (g->step > 0 ? g->start < g->stop : g->start > g->stop) {
        span = g->step > 0 ? (uint64_t)g->stop - (uint64_t)g->start
                           : (uint64_t)g->start - (uint64_t)g->stop;
        step = g->step > 0 ? (uint64_t)g->step : -(uint64_t)g->step;
        if ((span - 1) / step >= MAX_RANGE)
            ml_jraise(
                r, "OverflowError",
                "Range too big. The sandbox blocks ranges larger than MAX_RANGE (%d).",
                MAX_RANGE);
        g->n = (int64_t)((span - 1) / step) + 1;
    }
    return (ml_jval){ .kind = ML_J_RANGE, .range = g };
}

static void add_pairs(ml_jrun *r, ml_jdict *d, ml_jval from) {
    ml_jiter *it;
    ml_jval item;

    if (from.kind == ML_J_DICT || from.kind == ML_J_NAMESPACE) {
        for (int64_t i = 0; i < from.dict->n; i++)
            ml_jdict_set(r, d, from.dict->pair[i].key, from.dict->pair[i].value);
        return;
    }
    it = ml_jiter_over(r, from);
    while (ml_jiter_next(r, it, &item)) {
        ml_jitems l;
        if (!ml_jval_iterable(item))
            ml_jraise(r, "TypeError",
                      "cannot convert dictionary update sequence element to a sequence");
        l = ml_jval_items(r, item);
        if (l.n != 2)
            ml_jraise(r, "ValueError",
                      "dictionary update sequence element has length %lld; 2 is required",
                      (long long)l.n);
        ml_jdict_set(r, d, l.item[0], l.item[1]);
    }
}

static ml_jdict *dict_of_args(ml_jrun *r, const ml_jargs *a) {
    ml_jdict *d = ml_jdict_new(r, a->n_kw);

    if (a->n > 1)
        ml_jraise(r, "TypeError", "dict expected at most 1 argument, got %lld",
                  (long long)a->n);
    if (a->n)
        add_pairs(r, d, a->pos[0]);
    for (int64_t i = 0; i < a->n_kw; i++)
        ml_jdict_set(r, d, ml_jstr_view(r, a->kw[i].name), a->kw[i].value);
    return d;
}

static ml_jval make_dict(ml_jrun *r, ml_jval self, const ml_jargs *a) {
    (void)self;
    return ml_jdict_value(dict_of_args(r, a));
}

static ml_jval make_namespace(ml_jrun *r, ml_jval self, const ml_jargs *a) {
    (void)self;
    return (ml_jval){ .kind = ML_J_NAMESPACE, .dict = dict_of_args(r, a) };
}

static ml_jval make_cycler(ml_jrun *r, ml_jval self, const ml_jargs *a) {
    ml_jcycler *c = ML_JNEW(r, ml_jcycler, 1);

    (void)self;
    if (!a->n)
        ml_jraise(r, "RuntimeError", "at least one item has to be provided");
    *c = (ml_jcycler){ .n = a->n, .item = a->pos };
    return (ml_jval){ .kind = ML_J_CYCLER, .cycler = c };
}

static ml_jval make_joiner(ml_jrun *r, ml_jval self, const ml_jargs *a) {
    ml_jcycler *c = ML_JNEW(r, ml_jcycler, 1);
    ml_jval *sep = ML_JNEW(r, ml_jval, 1);

    (void)self;
    *sep = ml_jarg_given(a, 0) ? a->arg[0] : ml_jstr_of(r, ", ");
    *c = (ml_jcycler){ .n = 1, .item = sep };
    return (ml_jval){ .kind = ML_J_JOINER, .cycler = c };
}

static ml_jval lipsum(ml_jrun *r, ml_jval self, const ml_jargs *a) {
    (void)self, (void)a;
    ml_jraise(r, "NotImplementedError",
              "lipsum() is not supported: it returns random text");
}

static ml_jval raise_exception(ml_jrun *r, ml_jval self, const ml_jargs *a) {
    ml_jval message = ml_jval_str(r, a->arg[0]);

    (void)self;
    ml_jraise(r, "TemplateError", "%.*s", (int)message.s->len, message.s->ptr);
}

/* One conversion at *p, which is advanced.  A naive time has no time zone, and here no
 * fraction of a second. */
static void add_time(ml_jrun *r, ml_jbuf *b, const struct tm *now, const char **p,
                     const char *end) {
    char code[8] = "%", text[256];
    size_t n = 1;

    while (*p < end && n < 5 && strchr("-_0^#EO", **p) && **p)
        code[n++] = *(*p)++;
    if (*p == end) {
        ml_jbuf_add(r, b, code, n);
        return;
    }
    code[n++] = *(*p)++;
    code[n] = 0;
    if (code[n - 1] == 'z' || code[n - 1] == 'Z')
        return;
    if (code[n - 1] == 'f')
        ml_jbuf_printf(r, b, "000000");
    else
        ml_jbuf_add(r, b, text, strftime(text, sizeof text, code, now));
}

static ml_jval strftime_now(ml_jrun *r, ml_jval self, const ml_jargs *a) {
    ml_str format = ml_jarg_str(r, a, 0, (ml_str){ 0 });
    const char *p = format.ptr, *end = p + format.len;
    time_t clock = time(NULL);
    struct tm now;
    ml_jbuf b = { 0 };

    (void)self;
    if (r->opts->now)
        now = *r->opts->now;
    else
        localtime_r(&clock, &now);
    while (p < end) {
        if (*p != '%')
            ml_jbuf_add(r, &b, p++, 1);
        else {
            p++;
            add_time(r, &b, &now, &p, end);
        }
    }
    return ml_jbuf_value(r, &b);
}

const ml_jnative ml_jglobals[] = {
    { "range", make_range, "start stop step", 1, false },
    { "dict", make_dict, NULL, 0, true },
    { "namespace", make_namespace, NULL, 0, true },
    { "cycler", make_cycler, NULL, 0, true },
    { "joiner", make_joiner, "sep", 0, true },
    { "lipsum", lipsum, NULL, 0, false },
    { "raise_exception", raise_exception, "message", 1, false },
    { "strftime_now", strftime_now, "format", 1, false },
    { 0 },
};
