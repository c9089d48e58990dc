/* Calls of native functions, macros and loops. */
#include <string.h>

#include "text/jinja/jinja_priv.h"

const ml_jnative *ml_jnative_find(const ml_jnative *table, ml_str name) {
    for (; table->name; table++)
        if (ml_str_is(name, table->name))
            return table;
    return NULL;
}

static const ml_jnative *find_in(const ml_jnative *const *table, size_t n, ml_str name) {
    const ml_jnative *f = NULL;

    for (size_t i = 0; i < n && !f; i++)
        f = ml_jnative_find(table[i], name);
    return f;
}

const ml_jnative *ml_jfilter_find(ml_str name) {
    static const ml_jnative *const tables[] = { ml_jfilters_text, ml_jfilters_number,
                                                ml_jfilters_seq, ml_jfilters_lazy };
    return find_in(tables, sizeof tables / sizeof *tables, name);
}

const ml_jnative *ml_jstr_method_find(ml_str name) {
    static const ml_jnative *const tables[] = { ml_jmethods_str, ml_jmethods_str_search };
    return find_in(tables, sizeof tables / sizeof *tables, name);
}

const ml_jnative *ml_jtest_find(ml_str name) {
    return ml_jnative_find(ml_jtests, name);
}

/* --- arguments of native functions
 * ------------------------------------------------------- */

static int param_index(const char *params, ml_str name) {
    for (int i = 0; *params; i++) {
        size_t n = strcspn(params, " ");
        if (ml_str_eq((ml_str){ params, n }, name))
            return i;
        params += n + strspn(params + n, " ");
    }
    return -1;
}

static int param_count(const char *params) {
    int n = *params != 0;
    for (; *params; params++)
        n += *params == ' ';
    return n;
}

static void bind_arguments(ml_jrun *r, const ml_jnative *f, ml_jargs *a) {
    int n = param_count(f->params);

    for (int i = 0; i < ML_JARG_MAX; i++)
        a->arg[i] = i < a->n && i < n ? a->pos[i] : ml_jmissing();
    if (a->n > n)
        ml_jraise(r, "TypeError", "%s() takes at most %d arguments (%lld given)", f->name,
                  n, (long long)a->n);
    for (int64_t k = 0; k < a->n_kw; k++) {
        ml_str name = a->kw[k].name;
        int i = param_index(f->params, name);
        if (i < 0)
            ml_jraise(r, "TypeError", "%s() got an unexpected keyword argument '%.*s'",
                      f->name, (int)name.len, name.ptr);
        if (a->arg[i].kind != ML_J_MISSING)
            ml_jraise(r, "TypeError", "%s() got multiple values for argument '%.*s'",
                      f->name, (int)name.len, name.ptr);
        a->arg[i] = a->kw[k].value;
    }
    for (int i = 0; i < f->required; i++)
        if (a->arg[i].kind == ML_J_MISSING)
            ml_jraise(r, "TypeError", "%s() is missing required argument %d", f->name,
                      i + 1);
}

/* The steps that a native function is charged for a value: strings and containers count by
 * their length, so that the step limit bounds the time of any template. */
static int64_t weight_of(ml_jval v) {
    switch (v.kind) {
    case ML_J_STR: return (int64_t)v.s->len / 16;
    case ML_J_LIST:
    case ML_J_TUPLE: return v.seq->n / 4;
    case ML_J_DICT: return v.dict->n / 4;
    default: return 0;
    }
}

ml_jval ml_jnative_call(ml_jrun *r, const ml_jnative *f, ml_jval self, ml_jargs *a) {
    ml_jval v;

    ml_jrun_enter(r);
    ml_jrun_step(r, weight_of(self));
    for (int64_t i = 0; i < a->n; i++)
        ml_jrun_step(r, weight_of(a->pos[i]));
    for (int64_t i = 0; i < a->n_kw; i++)
        ml_jrun_step(r, weight_of(a->kw[i].value));
    if (f->params)
        bind_arguments(r, f, a);
    v = f->fn(r, self, a);
    ml_jrun_leave(r);
    return v;
}

int64_t ml_jarg_int(ml_jrun *r, const ml_jargs *a, int i, int64_t dflt) {
    int64_t v = dflt;

    if (ml_jarg_given(a, i) && !ml_jval_i64(a->arg[i], &v))
        ml_jraise(r, "TypeError", "'%s' object cannot be interpreted as an integer",
                  ml_jval_type(a->arg[i]));
    return v;
}

bool ml_jarg_bool(ml_jrun *r, const ml_jargs *a, int i, bool dflt) {
    return ml_jarg_given(a, i) ? ml_jval_truth(r, a->arg[i]) : dflt;
}

ml_str ml_jarg_str(ml_jrun *r, const ml_jargs *a, int i, ml_str dflt) {
    if (!ml_jarg_given(a, i))
        return dflt;
    if (a->arg[i].kind != ML_J_STR)
        ml_jraise(r, "TypeError", "argument must be str, not %s", ml_jval_type(a->arg[i]));
    return ml_jstr_get(a->arg[i]);
}

/* --- macros --------------------------------------------------------------------------------- */

typedef struct macro_call {
    const ml_jmacro *macro;
    const ml_jargs *args;
    bool *used; /* [args->n_kw] */
} macro_call;

static ml_jval take_keyword(macro_call *c, ml_str name) {
    for (int64_t i = 0; i < c->args->n_kw; i++)
        if (!c->used[i] && ml_str_eq(c->args->kw[i].name, name)) {
            c->used[i] = true;
            return c->args->kw[i].value;
        }
    return ml_jmissing();
}

static ml_jval rest_of_keywords(ml_jrun *r, const macro_call *c) {
    ml_jdict *d = ml_jdict_new(r, 0);

    for (int64_t i = 0; i < c->args->n_kw; i++)
        if (!c->used[i])
            ml_jdict_set(r, d, ml_jstr_view(r, c->args->kw[i].name), c->args->kw[i].value);
    return ml_jdict_value(d);
}

static void refuse_keywords(ml_jrun *r, const macro_call *c) {
    const ml_jmacro *m = c->macro;
    const ml_str *first = NULL;

    for (int64_t i = c->args->n_kw; i-- > 0;) {
        if (c->used[i])
            continue;
        first = &c->args->kw[i].name;
        if (ml_str_is(*first, "caller"))
            ml_jraise(r, "TypeError",
                      "macro '%.*s' was invoked with two values for the special caller "
                      "argument. This is most likely a bug.",
                      (int)m->name.len, m->name.ptr);
    }
    if (first)
        ml_jraise(r, "TypeError", "macro '%.*s' takes no keyword argument '%.*s'",
                  (int)m->name.len, m->name.ptr, (int)first->len, first->ptr);
}

static void give_specials(ml_jrun *r, macro_call *c) {
    const ml_jparams *p = c->macro->node->params;
    ml_jval caller;

    if (p->takes_caller && !p->explicit_caller) {
        caller = take_keyword(c, ml_str_of("caller"));
        if (caller.kind == ML_J_MISSING)
            caller = ml_jundef_hint(r, ml_str_of("No caller defined"));
        *ml_jslot(r, p->caller) = caller;
    }
    if (p->takes_kwargs)
        *ml_jslot(r, p->kwargs) = rest_of_keywords(r, c);
    else
        refuse_keywords(r, c);
    if (p->takes_varargs) {
        int64_t n = c->args->n > p->n ? c->args->n - p->n : 0;
        *ml_jslot(r, p->varargs) =
            ml_jseq_new(r, ML_J_TUPLE, n ? c->args->pos + p->n : NULL, n);
    } else if (c->args->n > p->n) {
        ml_jraise(r, "TypeError", "macro '%.*s' takes not more than %d argument(s)",
                  (int)c->macro->name.len, c->macro->name.ptr, p->n);
    }
}

static ml_jval not_provided(ml_jrun *r, ml_str name) {
    ml_jbuf b = { 0 };

    ml_jbuf_printf(r, &b, "parameter '%.*s' was not provided", (int)name.len, name.ptr);
    return ml_jundef_hint(r, (ml_str){ b.ptr, b.len });
}

/* Default values may refer to preceding parameters. */
static void give_defaults(ml_jrun *r, const ml_jparams *p) {
    for (int32_t i = 0; i < p->n; i++) {
        ml_jval *slot = ml_jslot(r, p->ref[i]);
        if (slot->kind != ML_J_MISSING)
            continue;
        *slot = p->dflt[i] ? ml_jeval(r, p->dflt[i]) : not_provided(r, p->name[i]);
    }
}

ml_jval ml_jmacro_call(ml_jrun *r, const ml_jmacro *m, const ml_jargs *a) {
    const ml_jnode *n = m->node;
    macro_call c = { m, a, ML_JNEW(r, bool, a->n_kw) };
    ml_jframe frame = { m->closure, ML_JNEW(r, ml_jval, n->n_slot) };
    ml_jframe *kept = ML_JNEW(r, ml_jframe, 1), *caller = r->frame;
    size_t at = r->at;
    ml_jval text;

    ml_jrun_enter(r);
    *kept = frame;
    r->frame = kept;
    for (int32_t i = 0; i < n->params->n; i++)
        *ml_jslot(r, n->params->ref[i]) =
            i < a->n ? a->pos[i] : take_keyword(&c, n->params->name[i]);
    give_specials(r, &c);
    ml_jscope_enter(r, n->scope);
    give_defaults(r, n->params);
    text = ml_jexec_text(r, &n->body);
    r->frame = caller;
    r->at = at;
    ml_jrun_leave(r);
    return text;
}

ml_jval ml_jval_call(ml_jrun *r, ml_jval f, ml_jargs *a) {
    switch (f.kind) {
    case ML_J_UNDEFINED: ml_jraise_undef(r, f);
    case ML_J_FUNC: return ml_jnative_call(r, f.func, ml_jmissing(), a);
    case ML_J_METHOD: return ml_jnative_call(r, f.method->native, f.method->self, a);
    case ML_J_MACRO: return ml_jmacro_call(r, f.macro, a);
    case ML_J_LOOP:
        if (a->n != 1 || a->n_kw)
            ml_jraise(r, "TypeError", "loop() takes exactly one argument");
        return ml_jloop_call(r, f.loop, a->pos[0]);
    case ML_J_BLOCK:
        if (a->n || a->n_kw)
            ml_jraise(r, "TypeError", "a block takes no arguments");
        return ml_jblock_call(r, f.block);
    case ML_J_JOINER: return f.cycler->pos++ ? f.cycler->item[0] : ml_jstr_of(r, "");
    default: ml_jraise(r, "TypeError", "'%s' object is not callable", ml_jval_type(f));
    }
}
