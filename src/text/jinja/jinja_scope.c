/* Assigns names to slots.
 *
 * Jinja resolves names statically, and templates depend on the consequences: a `set` in a
 * loop is lost after each iteration, one in an `if` is not; a macro sees variables that are
 * assigned later around it.  A scope is first surveyed as a whole (which names it reads and
 * writes, in order, without its inner scopes).  A name that it reads first and that no
 * outer scope has is looked up in the variables of the rendering when the scope is entered;
 * a name that it writes is initialized with the outer value.  Then the names are bound, and
 * inner scopes follow.
 *
 * The scopes of one function (the template, a macro, a call block, a recursive loop) share
 * its frame of slots. */
#include "base/bug.h"
#include "text/jinja/jinja_names.h"
#include "text/jinja/jinja_priv.h"

typedef struct binder {
    ml_jinja *t;
    ml_jtrap *trap;
    ml_jnames *root;
    int32_t n_for; /* enclosing loops, in any function */
} binder;

static void bind(binder *b, ml_jnames *s, ml_jnode *n, bool soft);

static void bind_all(binder *b, ml_jnames *s, const ml_jnodes *l, bool soft) {
    for (int32_t i = 0; i < l->n; i++)
        bind(b, s, l->node[i], soft);
}

static ml_jref place_of(const ml_jnames *s, ml_str name) {
    ml_jref ref = { 0 };
    bool found = ml_jnames_find(s, s->fn, name, &ref);
    ML_BUG_IF(!found);
    return ref;
}

static void bind_target(binder *b, ml_jnames *s, ml_jnode *n) {
    if (n->kind == ML_JN_NAME || n->kind == ML_JN_NSREF)
        n->ref = place_of(s, n->name);
    if (n->kind == ML_JN_NAME) {
        n->toplevel = s == b->root;
        if (b->n_for && ml_str_is(n->name, "loop"))
            ml_jtrap_throw(b->trap, n->at, "TemplateAssertionError",
                           "Can't assign to special loop variable in for-loop target");
    }
    for (int32_t i = 0; i < n->list.n; i++)
        bind_target(b, s, n->list.node[i]);
}

static void bind_call(binder *b, ml_jnames *s, ml_jcall_args *c, bool soft) {
    if (!c)
        return;
    bind_all(b, s, &c->pos, soft);
    for (int32_t i = 0; i < c->n_kw; i++)
        bind(b, s, c->kw[i].value, soft);
    bind(b, s, c->star, soft);
    bind(b, s, c->star_star, soft);
}

/* In a conditional branch, an unknown filter or test is an error only when it is
 * executed. */
static void bind_native(binder *b, ml_jnode *n, bool soft) {
    bool is_filter = n->kind == ML_JN_FILTER;

    n->native = is_filter ? ml_jfilter_find(n->name) : ml_jtest_find(n->name);
    if (!n->native && !soft)
        ml_jtrap_throw(b->trap, n->at, "TemplateAssertionError", "No %s named '%.*s'.",
                       is_filter ? "filter" : "test", (int)n->name.len, n->name.ptr);
}

/* The target in the loop's test, with places of its own. */
static ml_jnode *copy_target(binder *b, const ml_jnode *n) {
    ml_jnode *c = ML_NEW(&b->t->arena, ml_jnode, 1);

    *c = *n;
    c->list.node = ML_NEW(&b->t->arena, ml_jnode *, n->list.n);
    for (int32_t i = 0; i < n->list.n; i++)
        c->list.node[i] = copy_target(b, n->list.node[i]);
    return c;
}

static void bind_for(binder *b, ml_jnames *s, ml_jnode *n, bool soft) {
    ml_jfn own = { .outer = s->fn }, *fn = n->recursive ? &own : s->fn;
    ml_jnames *body = ml_jnames_new(&b->t->arena, s, fn),
              *test = ml_jnames_new(&b->t->arena, s, fn),
              *els = ml_jnames_new(&b->t->arena, s, fn);

    bind(b, s, n->a, soft);
    b->n_for++;
    ml_jsurvey_target(test, n->target, true);
    ml_jsurvey(test, n->b);
    n->loop = ml_jnames_declare(body, ml_str_of("loop"));
    ml_jsurvey_target(body, n->target, true);
    ml_jsurvey_all(body, &n->body);
    ml_jsurvey_all(els, &n->orelse);
    n->test_scope = ml_jnames_sealed(test);
    n->scope = ml_jnames_sealed(body);
    n->else_scope = ml_jnames_sealed(els);
    if (n->b) {
        bind_target(b, test, n->target);
        n->c = copy_target(b, n->target);
        bind(b, test, n->b, false);
    }
    bind_target(b, body, n->target);
    fn->n_loop++;
    bind_all(b, body, &n->body, false);
    fn->n_loop--;
    bind_all(b, els, &n->orelse, false);
    b->n_for--;
    n->n_slot = own.n_slot;
}

static ml_jref declare_special(ml_jnames *s, const char *name, bool *takes,
                               const ml_jnodes *body) {
    *takes = ml_jmentions(body, name);
    return *takes ? ml_jnames_declare(s, ml_str_of(name)) : (ml_jref){ 0 };
}

static bool has_param(const ml_jparams *p, const char *name, int32_t *i) {
    for (*i = 0; *i < p->n; (*i)++)
        if (ml_str_is(p->name[*i], name))
            return true;
    return false;
}

static void declare_specials(binder *b, ml_jnames *s, ml_jnode *n) {
    ml_jparams *p = n->params;
    int32_t i;

    p->explicit_caller = has_param(p, "caller", &i);
    if (!p->explicit_caller) {
        p->caller = declare_special(s, "caller", &p->takes_caller, &n->body);
    } else if (ml_jmentions(&n->body, "caller")) {
        p->takes_caller = true;
        if (!p->dflt[i])
            ml_jtrap_throw(b->trap, n->at, "TemplateAssertionError",
                           "When defining macros or call blocks the special \"caller\" "
                           "argument must be omitted or be given a default.");
    }
    if (!has_param(p, "kwargs", &i))
        p->kwargs = declare_special(s, "kwargs", &p->takes_kwargs, &n->body);
    if (!has_param(p, "varargs", &i))
        p->varargs = declare_special(s, "varargs", &p->takes_varargs, &n->body);
}

/* A macro, a call block or a generation block. */
static void bind_function(binder *b, ml_jnames *outer, ml_jnode *n) {
    ml_jfn fn = { .outer = outer ? outer->fn : NULL };
    ml_jnames *s = ml_jnames_new(&b->t->arena, outer, &fn);
    ml_jparams *p = n->params;

    for (int32_t i = 0; p && i < p->n; i++)
        p->ref[i] = ml_jnames_declare(s, p->name[i]);
    for (int32_t i = 0; p && i < p->n; i++)
        ml_jsurvey(s, p->dflt[i]);
    ml_jsurvey_all(s, &n->body);
    if (p)
        declare_specials(b, s, n);
    if (n->kind == ML_JN_BLOCK) {
        n->self = declare_special(s, "self", &n->takes_self, &n->body);
        n->super = declare_special(s, "super", &n->takes_super, &n->body);
    }
    n->scope = ml_jnames_sealed(s);
    for (int32_t i = 0; p && i < p->n; i++)
        bind(b, s, p->dflt[i], false);
    bind_all(b, s, &n->body, false);
    n->n_slot = fn.n_slot;
}

/* All variables visible from s; inner ones hide outer ones of the same name. */
static void list_locals(binder *b, const ml_jnames *s, ml_jnode *n) {
    int32_t most = 0;
    ml_jlocal *local;

    for (const ml_jnames *o = s; o; o = o->outer)
        most += o->n;
    local = ML_NEW(&b->t->arena, ml_jlocal, most + 1);
    n->local = local;
    for (const ml_jnames *o = s; o; o = o->outer)
        for (int32_t i = 0; i < o->n; i++) {
            bool hidden = !o->now[i].here;
            for (int32_t k = 0; k < n->n_local && !hidden; k++)
                hidden = ml_str_eq(local[k].name, o->name[i]);
            if (!hidden)
                local[n->n_local++] = (ml_jlocal){ o->name[i], place_of(s, o->name[i]) };
        }
}

static void bind_block(binder *b, const ml_jnames *around, ml_jnode *n) {
    for (int32_t i = 0; i < b->t->blocks.n; i++)
        if (ml_str_eq(b->t->blocks.node[i]->name, n->name))
            ml_jtrap_throw(b->trap, n->at, "TemplateAssertionError",
                           "block '%.*s' defined twice", (int)n->name.len, n->name.ptr);
    ml_jnodes_add(&(ml_jparser){ .arena = &b->t->arena }, &b->t->blocks, n);
    if (n->scoped)
        list_locals(b, around, n);
    bind_function(b, NULL, n);
}

/* A body with its own scope in the same function. */
static void bind_inner(binder *b, ml_jnames *outer, ml_jnode *n) {
    ml_jnames *s = ml_jnames_new(&b->t->arena, outer, outer->fn);
    bool own_a = n->kind == ML_JN_FILTER_BLOCK || n->kind == ML_JN_SET_BLOCK ||
                 n->kind == ML_JN_AUTOESCAPE;

    for (int32_t i = 0; i < n->list.n; i += 2) /* with */
        ml_jsurvey_target(s, n->list.node[i], true);
    ml_jsurvey_all(s, &n->body);
    if (own_a)
        ml_jsurvey(s, n->a);
    n->scope = ml_jnames_sealed(s);
    for (int32_t i = 0; i < n->list.n; i += 2) {
        bind_target(b, s, n->list.node[i]);
        bind(b, outer, n->list.node[i + 1], false);
    }
    bind_all(b, s, &n->body, false);
    if (own_a)
        bind(b, s, n->a, false);
}

static void bind_flow(binder *b, const ml_jnames *s, const ml_jnode *n) {
    if (s->fn->n_loop)
        return;
    if (n->kind == ML_JN_BREAK)
        ml_jtrap_throw(b->trap, n->at, "SyntaxError", "'break' outside loop");
    ml_jtrap_throw(b->trap, n->at, "SyntaxError", "'continue' not properly in loop");
}

static void bind_children(binder *b, ml_jnames *s, ml_jnode *n, bool soft) {
    bind(b, s, n->a, soft);
    bind(b, s, n->b, soft);
    bind(b, s, n->c, soft);
    bind_all(b, s, &n->list, soft);
    bind_call(b, s, n->call, soft);
    bind_all(b, s, &n->body, soft);
    bind_all(b, s, &n->elifs, soft);
    bind_all(b, s, &n->orelse, soft);
}

static void bind(binder *b, ml_jnames *s, ml_jnode *n, bool soft) {
    if (!n)
        return;
    switch (n->kind) {
    case ML_JN_NAME: n->ref = place_of(s, n->name); break;
    case ML_JN_FILTER:
    case ML_JN_TEST:
        bind_native(b, n, soft);
        bind_children(b, s, n, soft);
        break;
    case ML_JN_IF:
    case ML_JN_COND: bind_children(b, s, n, true); break;
    case ML_JN_FOR: bind_for(b, s, n, soft); break;
    case ML_JN_SET:
        bind(b, s, n->a, soft);
        bind_target(b, s, n->target);
        break;
    case ML_JN_SET_BLOCK:
        bind_inner(b, s, n);
        bind_target(b, s, n->target);
        break;
    case ML_JN_WITH:
    case ML_JN_AUTOESCAPE:
    case ML_JN_FILTER_BLOCK: bind_inner(b, s, n); break;
    case ML_JN_MACRO:
        n->ref = place_of(s, n->name);
        n->toplevel = s == b->root;
        bind_function(b, s, n);
        break;
    case ML_JN_CALL_BLOCK:
        bind(b, s, n->a, soft);
        bind_function(b, s, n);
        break;
    case ML_JN_GENERATION: bind_function(b, s, n); break;
    case ML_JN_BLOCK: bind_block(b, s, n); break;
    case ML_JN_BREAK:
    case ML_JN_CONTINUE: bind_flow(b, s, n); break;
    default: bind_children(b, s, n, soft);
    }
}

void ml_jscope_bind(ml_jinja *t, ml_jtrap *trap) {
    ml_jfn fn = { 0 };
    binder b = { .t = t, .trap = trap };

    b.root = ml_jnames_new(&t->arena, NULL, &fn);
    ml_jsurvey_all(b.root, &t->body);
    t->uses_self = ml_jmentions(&t->body, "self");
    if (t->uses_self)
        t->self = ml_jnames_declare(b.root, ml_str_of("self"));
    t->scope = ml_jnames_sealed(b.root);
    bind_all(&b, b.root, &t->body, false);
    t->n_slot = fn.n_slot;
}
