/* Evaluates expressions. */
#include "text/jinja/jinja_priv.h"

ml_jval *ml_jslot(ml_jrun *r, ml_jref ref) {
    ml_jframe *f = r->frame;
    for (int32_t i = 0; i < ref.hops; i++)
        f = f->outer;
    return &f->slot[ref.slot];
}

static ml_jval eval_name(ml_jrun *r, const ml_jnode *n) {
    ml_jval v = *ml_jslot(r, n->ref);
    return v.kind == ML_J_MISSING ? ml_jundef_name(r, n->name) : v;
}

static ml_jval eval_or_none(ml_jrun *r, const ml_jnode *n) {
    return n ? ml_jeval(r, n) : ml_jnone();
}

static ml_jval eval_item(ml_jrun *r, const ml_jnode *n) {
    ml_jval of = ml_jeval(r, n->a), from, to, step, key;

    if (n->b->kind == ML_JN_SLICE) {
        from = eval_or_none(r, n->b->a);
        to = eval_or_none(r, n->b->b);
        step = eval_or_none(r, n->b->c);
        r->at = n->at;
        return ml_jval_slice(r, of, from, to, step);
    }
    key = ml_jeval(r, n->b);
    r->at = n->at;
    return ml_jval_item(r, of, key);
}

static void add_star_star(ml_jrun *r, ml_jargs *a, int64_t *cap, ml_jval v) {
    if (v.kind != ML_J_DICT)
        ml_jraise(r, "TypeError", "argument after ** must be a mapping, not %s",
                  ml_jval_type(v));
    for (int64_t i = 0; i < v.dict->n; i++) {
        if (v.dict->pair[i].key.kind != ML_J_STR)
            ml_jraise(r, "TypeError", "keywords must be strings");
        if (a->n_kw == *cap) {
            ml_jkw *kw = ML_JNEW(r, ml_jkw, *cap * 2 + 4);
            for (int64_t k = 0; k < a->n_kw; k++)
                kw[k] = a->kw[k];
            a->kw = kw;
            *cap = *cap * 2 + 4;
        }
        a->kw[a->n_kw++] =
            (ml_jkw){ ml_jstr_get(v.dict->pair[i].key), v.dict->pair[i].value };
    }
}

/* extra: a keyword argument of a call block, `caller`; MISSING: none */
static ml_jargs eval_args(ml_jrun *r, const ml_jcall_args *c, ml_jval extra) {
    ml_jargs a = { 0 };
    ml_jitems pos = { 0 };
    int64_t cap = (c ? c->n_kw : 0) + 1;

    a.kw = ML_JNEW(r, ml_jkw, cap);
    for (int32_t i = 0; c && i < c->pos.n; i++)
        ml_jitems_add(r, &pos, ml_jeval(r, c->pos.node[i]));
    if (c && c->star) {
        ml_jitems more = ml_jval_items(r, ml_jeval(r, c->star));
        for (int64_t i = 0; i < more.n; i++)
            ml_jitems_add(r, &pos, more.item[i]);
    }
    for (int32_t i = 0; c && i < c->n_kw; i++)
        a.kw[a.n_kw++] = (ml_jkw){ c->kw[i].name, ml_jeval(r, c->kw[i].value) };
    if (extra.kind != ML_J_MISSING)
        a.kw[a.n_kw++] = (ml_jkw){ ml_str_of("caller"), extra };
    if (c && c->star_star)
        add_star_star(r, &a, &cap, ml_jeval(r, c->star_star));
    a.pos = pos.item;
    a.n = pos.n;
    return a;
}

ml_jval ml_jeval_call(ml_jrun *r, const ml_jnode *n, ml_jval caller) {
    ml_jval f = ml_jeval(r, n->a);
    ml_jargs a = eval_args(r, n->call, caller);

    r->at = n->at;
    return ml_jval_call(r, f, &a);
}

/* For filters and tests. */
static ml_jval eval_native(ml_jrun *r, const ml_jnode *n, ml_jval self) {
    ml_jargs a = eval_args(r, n->call, ml_jmissing());

    r->at = n->at;
    if (!n->native)
        ml_jraise(r, "TemplateRuntimeError", "No %s named '%.*s' found.",
                  n->kind == ML_JN_FILTER ? "filter" : "test", (int)n->name.len,
                  n->name.ptr);
    return ml_jnative_call(r, n->native, self, &a);
}

ml_jval ml_jeval_filter(ml_jrun *r, const ml_jnode *n, ml_jval text) {
    ml_jval of;

    ml_jrun_enter(r);
    of = !n->a                        ? text
         : n->a->kind == ML_JN_FILTER ? ml_jeval_filter(r, n->a, text)
                                      : ml_jeval(r, n->a);
    of = eval_native(r, n, of);
    ml_jrun_leave(r);
    return of;
}

static ml_jval eval_binary(ml_jrun *r, const ml_jnode *n) {
    ml_jval a = ml_jeval(r, n->a), b = ml_jeval(r, n->b);

    r->at = n->at;
    return ml_jop_binary(r, n->op, a, b);
}

static ml_jval eval_compare(ml_jrun *r, const ml_jnode *n) {
    ml_jval left = ml_jeval(r, n->a);

    for (int32_t i = 0; i < n->list.n; i++) {
        const ml_jnode *c = n->list.node[i];
        ml_jval right = ml_jeval(r, c->a);
        r->at = c->at;
        if (!ml_jop_compare(r, c->op, left, right))
            return ml_jbool(false);
        left = right;
    }
    return ml_jbool(true);
}

static ml_jval eval_concat(ml_jrun *r, const ml_jnode *n) {
    ml_jbuf b = { 0 };

    for (int32_t i = 0; i < n->list.n; i++) {
        ml_jval v = ml_jeval(r, n->list.node[i]);
        ml_jval_print(r, &b, r->autoescape ? ml_jval_escape(r, v) : v);
    }
    return ml_jstr_mark(r, ml_jbuf_value(r, &b), r->autoescape);
}

static ml_jval eval_cond(ml_jrun *r, const ml_jnode *n) {
    ml_jbuf b = { 0 };
    unsigned line = 1;

    if (ml_jval_truth(r, ml_jeval(r, n->b)))
        return ml_jeval(r, n->a);
    if (n->c)
        return ml_jeval(r, n->c);
    for (uint32_t i = 0; i < n->at; i++)
        line += r->t->src.ptr[i] == '\n';
    ml_jbuf_printf(r, &b,
                   "the inline if-expression on line %u evaluated to false and no else "
                   "section was defined.",
                   line);
    return ml_jundef_hint(r, (ml_str){ b.ptr, b.len });
}

static ml_jval eval_list(ml_jrun *r, const ml_jnode *n) {
    ml_jseq *s = ML_JNEW(r, ml_jseq, 1);

    s->item = ML_JNEW(r, ml_jval, n->list.n);
    for (int32_t i = 0; i < n->list.n; i++)
        s->item[s->n++] = ml_jeval(r, n->list.node[i]);
    return (ml_jval){ .kind = n->kind == ML_JN_LIST ? ML_J_LIST : ML_J_TUPLE, .seq = s };
}

static ml_jval eval_dict(ml_jrun *r, const ml_jnode *n) {
    ml_jdict *d = ml_jdict_new(r, n->list.n / 2);

    for (int32_t i = 0; i + 1 < n->list.n; i += 2) {
        ml_jval key = ml_jeval(r, n->list.node[i]);
        ml_jdict_set(r, d, key, ml_jeval(r, n->list.node[i + 1]));
    }
    return ml_jdict_value(d);
}

static ml_jval eval_logic(ml_jrun *r, const ml_jnode *n) {
    ml_jval a = ml_jeval(r, n->a);
    return ml_jval_truth(r, a) == (n->kind == ML_JN_AND) ? ml_jeval(r, n->b) : a;
}

static ml_jval eval_attr(ml_jrun *r, const ml_jnode *n) {
    ml_jval of = ml_jeval(r, n->a);
    r->at = n->at;
    return ml_jval_attr(r, of, n->name);
}

static ml_jval eval_sign(ml_jrun *r, const ml_jnode *n) {
    ml_jval of = ml_jeval(r, n->a);
    r->at = n->at;
    return ml_jop_negate(r, of, n->kind == ML_JN_NEG);
}

static ml_jval eval_test(ml_jrun *r, const ml_jnode *n) {
    ml_jval of = ml_jeval(r, n->a);
    return eval_native(r, n, of);
}

static ml_jval eval(ml_jrun *r, const ml_jnode *n) {
    switch (n->kind) {
    case ML_JN_CONST: return n->value;
    case ML_JN_NAME: return eval_name(r, n);
    case ML_JN_ATTR: return eval_attr(r, n);
    case ML_JN_ITEM: return eval_item(r, n);
    case ML_JN_CALL: return ml_jeval_call(r, n, ml_jmissing());
    case ML_JN_FILTER: return ml_jeval_filter(r, n, ml_jmissing());
    case ML_JN_TEST: return eval_test(r, n);
    case ML_JN_NOT: return ml_jbool(!ml_jval_truth(r, ml_jeval(r, n->a)));
    case ML_JN_NEG:
    case ML_JN_POS: return eval_sign(r, n);
    case ML_JN_BINARY: return eval_binary(r, n);
    case ML_JN_AND:
    case ML_JN_OR: return eval_logic(r, n);
    case ML_JN_COMPARE: return eval_compare(r, n);
    case ML_JN_CONCAT: return eval_concat(r, n);
    case ML_JN_COND: return eval_cond(r, n);
    case ML_JN_LIST:
    case ML_JN_TUPLE: return eval_list(r, n);
    case ML_JN_DICT: return eval_dict(r, n);
    default: /* a slice in a tuple of indices */
        ml_jraise(r, "TypeError", "a slice cannot be used as a value");
    }
}

ml_jval ml_jeval(ml_jrun *r, const ml_jnode *n) {
    ml_jval v;

    ml_jrun_enter(r);
    r->at = n->at;
    v = eval(r, n);
    ml_jrun_leave(r);
    return v;
}
