/* Executes statements. */
#include "text/jinja/jinja_priv.h"

typedef enum flow { FLOW_ON, FLOW_BREAK, FLOW_CONTINUE } flow;

static flow exec_body(ml_jrun *r, const ml_jnodes *body);

/* --- variables ----------------------------------------------------------------------------- */

ml_jval ml_jcontext_get(ml_jrun *r, ml_str name) {
    const ml_jval *v = r->derived ? ml_jdict_name(r, r->derived, name) : NULL;
    const ml_jnative *global;

    if (!v)
        v = ml_jdict_name(r, r->exported, name);
    if (!v)
        v = ml_jdict_name(r, r->context, name);
    if (v)
        return *v;
    global = ml_jnative_find(ml_jglobals, name);
    return global ? (ml_jval){ .kind = ML_J_FUNC, .func = global } : ml_jmissing();
}

void ml_jscope_enter(ml_jrun *r, const ml_jscope *s) {
    for (int32_t i = 0; i < s->n; i++) {
        const ml_jentry *e = &s->entry[i];
        ml_jval *slot = &r->frame->slot[e->slot];
        if (e->load == ML_JL_CONTEXT)
            *slot = ml_jcontext_get(r, e->name);
        else if (e->load == ML_JL_ALIAS)
            *slot = *ml_jslot(r, e->from);
        else if (e->load == ML_JL_UNSET)
            *slot = ml_jmissing();
    }
}

void ml_jscope_leave(ml_jrun *r, const ml_jscope *s) {
    for (int32_t i = 0; i < s->n; i++)
        r->frame->slot[s->entry[i].slot] = ml_jmissing();
}

static void unpack(ml_jrun *r, const ml_jnode *target, ml_jval v) {
    ml_jitems l;

    if (!ml_jval_iterable(v))
        ml_jraise(r, "TypeError", "cannot unpack non-iterable %s object", ml_jval_type(v));
    l = ml_jval_items(r, v);
    if (l.n > target->list.n)
        ml_jraise(r, "ValueError", "too many values to unpack (expected %d)",
                  target->list.n);
    if (l.n < target->list.n)
        ml_jraise(r, "ValueError", "not enough values to unpack (expected %d, got %lld)",
                  target->list.n, (long long)l.n);
    for (int32_t i = 0; i < target->list.n; i++)
        ml_jassign(r, target->list.node[i], l.item[i]);
}

static void export_name(ml_jrun *r, ml_str name, ml_jval v) {
    ml_jdict_set(r, r->exported, ml_jstr_view(r, name), v);
}

void ml_jassign(ml_jrun *r, const ml_jnode *target, ml_jval v) {
    ml_jval of;

    r->at = target->at;
    if (target->kind == ML_JN_TUPLE) {
        unpack(r, target, v);
    } else if (target->kind == ML_JN_NAME) {
        *ml_jslot(r, target->ref) = v;
        if (target->toplevel)
            export_name(r, target->name, v);
    } else {
        of = *ml_jslot(r, target->ref);
        if (of.kind != ML_J_NAMESPACE)
            ml_jraise(r, "TemplateRuntimeError",
                      "cannot assign attribute on non-namespace object");
        ml_jdict_set(r, of.dict, ml_jstr_view(r, target->attr), v);
    }
}

/* --- output --------------------------------------------------------------------------------- */

static void write_value(ml_jrun *r, ml_jval v) {
    ml_jval_print(r, r->out, r->autoescape ? ml_jval_escape(r, v) : v);
}

ml_jval ml_jexec_text(ml_jrun *r, const ml_jnodes *body) {
    ml_jbuf own = { 0 }, *outer = r->out;

    r->out = &own;
    exec_body(r, body);
    r->out = outer;
    return ml_jstr_mark(r, ml_jbuf_value(r, &own), r->autoescape);
}

/* The same; if the body leaves the enclosing loop, there is no text. */
static flow exec_buffered(ml_jrun *r, const ml_jnodes *body, ml_jval *text) {
    ml_jbuf own = { 0 }, *outer = r->out;
    flow f;

    r->out = &own;
    f = exec_body(r, body);
    r->out = outer;
    *text = ml_jstr_mark(r, ml_jbuf_value(r, &own), r->autoescape);
    return f;
}

static flow exec_if(ml_jrun *r, const ml_jnode *n) {
    if (ml_jval_truth(r, ml_jeval(r, n->a)))
        return exec_body(r, &n->body);
    for (int32_t i = 0; i < n->elifs.n; i++)
        if (ml_jval_truth(r, ml_jeval(r, n->elifs.node[i]->a)))
            return exec_body(r, &n->elifs.node[i]->body);
    return exec_body(r, &n->orelse);
}

/* --- loops ------------------------------------------------------------------------------------ */

/* Items for which the `if` of the loop holds.  The consumer may be in another function. */
static bool next_passing(ml_jrun *r, ml_jiter *it, ml_jval *out) {
    const ml_jloop *l = it->state;
    ml_jframe *frame = r->frame;
    bool passes = false;

    while (!passes && ml_jiter_next(r, it->inner, out)) {
        r->frame = l->closure;
        ml_jassign(r, l->node->c, *out);
        ml_jscope_enter(r, l->node->test_scope);
        passes = ml_jval_truth(r, ml_jeval(r, l->node->b));
        r->frame = frame;
    }
    return passes;
}

static ml_jloop *loop_new(ml_jrun *r, const ml_jnode *n, ml_jval iterable, int64_t depth0) {
    ml_jloop *l = ML_JNEW(r, ml_jloop, 1);

    *l = (ml_jloop){ .node = n,
                     .closure = r->frame,
                     .iterable = iterable,
                     .iter = ml_jiter_over(r, iterable),
                     .index0 = -1,
                     .depth0 = depth0,
                     .length = -1 };
    if (n->b) {
        ml_jiter *passing = ml_jiter_new(r, next_passing, "generator");
        passing->inner = l->iter;
        passing->state = l;
        l->iter = passing;
        l->iterable = ml_jiter_value(passing);
    }
    return l;
}

/* `else` runs unless an iteration reaches its end. */
static flow run_loop(ml_jrun *r, const ml_jnode *n, ml_jval iterable, int64_t depth0) {
    ml_jloop *l = loop_new(r, n, iterable, depth0);
    bool finished_turn = false;
    flow f = FLOW_ON;
    ml_jval item;

    while (ml_jloop_next(r, l, &item)) {
        ml_jassign(r, n->target, item);
        *ml_jslot(r, n->loop) = (ml_jval){ .kind = ML_J_LOOP, .loop = l };
        ml_jscope_enter(r, n->scope);
        f = exec_body(r, &n->body);
        if (f == FLOW_BREAK)
            break;
        finished_turn = finished_turn || f == FLOW_ON;
    }
    ml_jscope_leave(r, n->scope);
    if (finished_turn || !n->orelse.n)
        return FLOW_ON;
    ml_jscope_enter(r, n->else_scope);
    f = exec_body(r, &n->orelse);
    ml_jscope_leave(r, n->else_scope);
    return f;
}

/* A recursive loop is a function: each call has its own variables and returns a text. */
static ml_jval call_loop(ml_jrun *r, const ml_jnode *n, ml_jframe *outer, ml_jval iterable,
                         int64_t depth0) {
    ml_jframe *frame = ML_JNEW(r, ml_jframe, 1), *caller = r->frame;
    ml_jbuf own = { 0 }, *out = r->out;

    ml_jrun_enter(r);
    *frame = (ml_jframe){ outer, ML_JNEW(r, ml_jval, n->n_slot) };
    r->frame = frame;
    r->out = &own;
    run_loop(r, n, iterable, depth0);
    r->out = out;
    r->frame = caller;
    ml_jrun_leave(r);
    return ml_jstr_mark(r, ml_jbuf_value(r, &own), r->autoescape);
}

ml_jval ml_jloop_call(ml_jrun *r, ml_jloop *l, ml_jval iterable) {
    if (!l->node->recursive)
        ml_jraise(r, "TypeError",
                  "The loop must have the 'recursive' marker to be callable.");
    return call_loop(r, l->node, l->closure->outer, iterable, l->depth0 + 1);
}

static flow exec_for(ml_jrun *r, const ml_jnode *n) {
    ml_jval iterable = ml_jeval(r, n->a);

    r->at = n->a->at;
    if (!n->recursive)
        return run_loop(r, n, iterable, 0);
    write_value(r, call_loop(r, n, r->frame, iterable, 0));
    return FLOW_ON;
}

/* --- macros and blocks ------------------------------------------------------------------------ */

static ml_jval macro_here(ml_jrun *r, const ml_jnode *n, ml_str name) {
    ml_jmacro *m = ML_JNEW(r, ml_jmacro, 1);
    *m = (ml_jmacro){ n, name, r->frame };
    return (ml_jval){ .kind = ML_J_MACRO, .macro = m };
}

static void exec_macro(ml_jrun *r, const ml_jnode *n) {
    ml_jval m = macro_here(r, n, n->name);

    *ml_jslot(r, n->ref) = m;
    if (n->toplevel)
        export_name(r, n->name, m);
}

static int64_t root_chars(ml_jrun *r) {
    r->n_counted +=
        ml_jstr_count_chars((ml_str){ r->root.ptr + r->counted, r->root.len - r->counted });
    r->counted = r->root.len;
    return r->n_counted;
}

static void add_span(ml_jrun *r, ml_jval text) {
    ml_jspan_list *l = &r->spans;
    int64_t begin = r->root.len ? root_chars(r) : 0, begin_byte = (int64_t)r->root.len;

    if (l->n == l->cap) {
        int64_t cap = l->cap ? l->cap * 2 : 8;
        ml_jinja_span *span = ML_JNEW(r, ml_jinja_span, cap);
        for (int64_t i = 0; i < l->n; i++)
            span[i] = l->span[i];
        l->span = span;
        l->cap = cap;
    }
    l->span[l->n++] = (ml_jinja_span){ begin, begin + text.s->n_char, begin_byte,
                                       begin_byte + (int64_t)text.s->len };
}

static void exec_generation(ml_jrun *r, const ml_jnode *n) {
    ml_jval caller = macro_here(r, n, ml_str_of("caller"));
    ml_jval text = ml_jmacro_call(r, caller.macro, &(ml_jargs){ 0 });

    add_span(r, text);
    write_value(r, text);
}

static ml_jval no_parent(ml_jrun *r, const ml_jnode *n) {
    ml_jbuf b = { 0 };

    ml_jbuf_printf(r, &b, "there is no parent block called '%.*s'.", (int)n->name.len,
                   n->name.ptr);
    return ml_jundef_hint(r, (ml_str){ b.ptr, b.len });
}

static void run_block(ml_jrun *r, const ml_jnode *n) {
    ml_jframe frame = { NULL, ML_JNEW(r, ml_jval, n->n_slot) };
    ml_jframe *kept = ML_JNEW(r, ml_jframe, 1), *outer = r->frame;

    *kept = frame;
    r->frame = kept;
    ml_jscope_enter(r, n->scope);
    if (n->takes_self)
        *ml_jslot(r, n->self) = (ml_jval){ .kind = ML_J_SELF };
    if (n->takes_super)
        *ml_jslot(r, n->super) = no_parent(r, n);
    exec_body(r, &n->body);
    r->frame = outer;
}

/* The first scope of a scoped block: the current values of the surrounding variables. */
static ml_jdict *derive(ml_jrun *r, const ml_jnode *n) {
    ml_jdict *d = ml_jdict_new(r, n->n_local), *outer = r->derived;

    for (int64_t i = 0; outer && i < outer->n; i++)
        ml_jdict_set(r, d, outer->pair[i].key, outer->pair[i].value);
    for (int32_t i = 0; i < n->n_local; i++) {
        ml_jval v = *ml_jslot(r, n->local[i].ref);
        if (v.kind != ML_J_MISSING)
            ml_jdict_set(r, d, ml_jstr_view(r, n->local[i].name), v);
    }
    return d;
}

/* A block can access the variables of the rendering and of the top level; a scoped block
 * also the surrounding ones. */
static void exec_block(ml_jrun *r, const ml_jnode *n) {
    ml_jdict *outer = r->derived;

    if (n->required)
        ml_jraise(r, "TemplateRuntimeError", "Required block '%.*s' not found",
                  (int)n->name.len, n->name.ptr);
    if (n->scoped)
        r->derived = derive(r, n);
    run_block(r, n);
    r->derived = outer;
}

ml_jval ml_jblock_call(ml_jrun *r, const ml_jnode *n) {
    ml_jbuf own = { 0 }, *outer = r->out;

    ml_jrun_enter(r);
    r->out = &own;
    run_block(r, n);
    r->out = outer;
    ml_jrun_leave(r);
    return ml_jstr_mark(r, ml_jbuf_value(r, &own), r->autoescape);
}

static flow exec_set_block(ml_jrun *r, const ml_jnode *n) {
    ml_jval text;
    flow f;

    ml_jscope_enter(r, n->scope);
    f = exec_buffered(r, &n->body, &text);
    if (f != FLOW_ON)
        return f;
    if (n->a)
        text = ml_jeval_filter(r, n->a, text);
    ml_jscope_leave(r, n->scope);
    ml_jassign(r, n->target, text);
    return FLOW_ON;
}

static flow exec_filter_block(ml_jrun *r, const ml_jnode *n) {
    ml_jval text;
    flow f;

    ml_jscope_enter(r, n->scope);
    f = exec_buffered(r, &n->body, &text);
    if (f == FLOW_ON)
        write_value(r, ml_jeval_filter(r, n->a, text));
    ml_jscope_leave(r, n->scope);
    return f;
}

static flow exec_with(ml_jrun *r, const ml_jnode *n) {
    flow f;

    ml_jscope_enter(r, n->scope);
    for (int32_t i = 0; i + 1 < n->list.n; i += 2)
        ml_jassign(r, n->list.node[i], ml_jeval(r, n->list.node[i + 1]));
    f = exec_body(r, &n->body);
    ml_jscope_leave(r, n->scope);
    return f;
}

static flow exec_autoescape(ml_jrun *r, const ml_jnode *n) {
    bool outer = r->autoescape;
    flow f;

    ml_jscope_enter(r, n->scope);
    r->autoescape = ml_jval_truth(r, ml_jeval(r, n->a));
    f = exec_body(r, &n->body);
    r->autoescape = outer;
    ml_jscope_leave(r, n->scope);
    return f;
}

static flow exec(ml_jrun *r, const ml_jnode *n) {
    switch (n->kind) {
    case ML_JN_DATA: ml_jbuf_str(r, r->out, ml_jstr_get(n->value)); break;
    case ML_JN_PRINT:
        for (int32_t i = 0; i < n->list.n; i++)
            write_value(r, ml_jeval(r, n->list.node[i]));
        break;
    case ML_JN_IF: return exec_if(r, n);
    case ML_JN_FOR: return exec_for(r, n);
    case ML_JN_SET: ml_jassign(r, n->target, ml_jeval(r, n->a)); break;
    case ML_JN_SET_BLOCK: return exec_set_block(r, n);
    case ML_JN_MACRO: exec_macro(r, n); break;
    case ML_JN_CALL_BLOCK:
        write_value(r, ml_jeval_call(r, n->a, macro_here(r, n, ml_str_of("caller"))));
        break;
    case ML_JN_GENERATION: exec_generation(r, n); break;
    case ML_JN_FILTER_BLOCK: return exec_filter_block(r, n);
    case ML_JN_WITH: return exec_with(r, n);
    case ML_JN_BREAK: return FLOW_BREAK;
    case ML_JN_CONTINUE: return FLOW_CONTINUE;
    case ML_JN_BLOCK: exec_block(r, n); break;
    case ML_JN_AUTOESCAPE: return exec_autoescape(r, n);
    default: ml_jraise(r, "TypeError", "no loader for this environment specified");
    }
    return FLOW_ON;
}

static flow exec_body(ml_jrun *r, const ml_jnodes *body) {
    flow f = FLOW_ON;

    ml_jrun_enter(r);
    for (int32_t i = 0; i < body->n && f == FLOW_ON; i++) {
        ml_jrun_step(r, 1);
        r->at = body->node[i]->at;
        f = exec(r, body->node[i]);
    }
    ml_jrun_leave(r);
    return f;
}

void ml_jexec_root(ml_jrun *r) {
    ml_jframe *frame = ML_JNEW(r, ml_jframe, 1);

    frame->slot = ML_JNEW(r, ml_jval, r->t->n_slot);
    r->frame = frame;
    r->out = &r->root;
    ml_jscope_enter(r, r->t->scope);
    if (r->t->uses_self)
        *ml_jslot(r, r->t->self) = (ml_jval){ .kind = ML_J_SELF };
    exec_body(r, &r->t->body);
}
