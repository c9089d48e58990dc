/* Names to slots.
 *
 * Jinja decides statically where a name lives, and templates depend on what follows from
 * that: a `set` in a loop is forgotten after each turn, one in an `if` is not; a macro sees
 * what its surroundings are assigned later.  A scope is first surveyed as a whole (which
 * names it reads and writes, in order, without its inner scopes); a name that it reads first
 * and that no outer scope knows is looked up among the rendering's variables when the scope
 * is entered; one that it writes starts with the outer value.  Then names are bound, and
 * inner scopes follow.
 *
 * Scopes of one function (the template, a macro, a call block, a recursive loop) share its
 * frame of slots. */
#include <string.h>

#include "base/bug.h"
#include "text/jinja_priv.h"

typedef struct function {
    struct function *outer;
    int32_t n_slot;
    int32_t n_loop; /* loops around here that break and continue can mean */
} function;

/* What is known of a name at a point of the survey. */
typedef struct known {
    bool here; /* the scope has it */
    bool written;
    ml_jload load;
    ml_jref from;
} known;

typedef struct scope {
    struct scope *outer;
    function *fn;
    ml_str *name; /* [n] */
    int32_t *slot;
    known *now; /* [n] replaced and merged at branches */
    int32_t n, cap;
} scope;

typedef struct binder {
    ml_jinja *t;
    ml_jtrap *trap;
    scope *root;
    int32_t n_for; /* loops around here, in any function */
} binder;

static void bind(binder *b, scope *s, ml_jnode *n, bool soft);

/* --- the names of a scope ------------------------------------------------------------- */

static void *resized(ml_arena *a, const void *old, int32_t n, int32_t cap, size_t size) {
    void *p = ml_arena_take(a, (size_t)cap, size);
    if (n)
        memcpy(p, old, (size_t)n * size);
    return p;
}

static int32_t index_of(binder *b, scope *s, ml_str name) {
    for (int32_t i = 0; i < s->n; i++)
        if (ml_str_eq(s->name[i], name))
            return i;
    if (s->n == s->cap) {
        ml_arena *a = &b->t->arena;
        s->cap = s->cap ? s->cap * 2 : 8;
        s->name = resized(a, s->name, s->n, s->cap, sizeof *s->name);
        s->slot = resized(a, s->slot, s->n, s->cap, sizeof *s->slot);
        s->now = resized(a, s->now, s->n, s->cap, sizeof *s->now);
    }
    s->name[s->n] = name;
    s->slot[s->n] = s->fn->n_slot++;
    s->now[s->n] = (known){ 0 };
    return s->n++;
}

/* Where the name lives, seen from `from`; false when no scope has it. */
static bool find(const scope *s, const function *from, ml_str name, ml_jref *out) {
    for (; s; s = s->outer)
        for (int32_t i = 0; i < s->n; i++)
            if (s->now[i].here && ml_str_eq(s->name[i], name)) {
                *out = (ml_jref){ 0, s->slot[i] };
                for (; from != s->fn; from = from->outer)
                    out->hops++;
                return true;
            }
    return false;
}

static void define(binder *b, scope *s, ml_str name, ml_jload load, ml_jref from) {
    int32_t i = index_of(b, s, name);
    s->now[i].here = true;
    s->now[i].load = load;
    s->now[i].from = from;
}

static void note_read(binder *b, scope *s, ml_str name) {
    ml_jref ref;
    if (!find(s, s->fn, name, &ref))
        define(b, s, name, ML_JL_CONTEXT, (ml_jref){ 0 });
}

static void note_write(binder *b, scope *s, ml_str name) {
    int32_t i = index_of(b, s, name);
    ml_jref from = { 0 };

    s->now[i].written = true;
    if (s->now[i].here)
        return;
    if (find(s->outer, s->fn, name, &from))
        define(b, s, name, ML_JL_ALIAS, from);
    else
        define(b, s, name, ML_JL_UNSET, from);
}

static ml_jref declare(binder *b, scope *s, ml_str name) {
    int32_t i = index_of(b, s, name);
    s->now[i].written = true;
    define(b, s, name, ML_JL_PARAM, (ml_jref){ 0 });
    return (ml_jref){ 0, s->slot[i] };
}

enum { N_BRANCH = 3 }; /* of an if: body, elifs, else */

/* --- survey ------------------------------------------------------------------------------ */

static void survey(binder *b, scope *s, const ml_jnode *n);

static void survey_all(binder *b, scope *s, const ml_jnodes *l) {
    for (int32_t i = 0; i < l->n; i++)
        survey(b, s, l->node[i]);
}

static void survey_target(binder *b, scope *s, const ml_jnode *n, bool as_param) {
    if (n->kind == ML_JN_NSREF)
        note_read(b, s, n->name);
    else if (n->kind == ML_JN_NAME && as_param)
        declare(b, s, n->name);
    else if (n->kind == ML_JN_NAME)
        note_write(b, s, n->name);
    for (int32_t i = 0; i < n->list.n; i++)
        survey_target(b, s, n->list.node[i], as_param);
}

static void survey_call(binder *b, scope *s, const ml_jcall_args *c) {
    if (!c)
        return;
    survey_all(b, s, &c->pos);
    for (int32_t i = 0; i < c->n_kw; i++)
        survey(b, s, c->kw[i].value);
    survey(b, s, c->star);
    survey(b, s, c->star_star);
}

static known *copy_of(ml_arena *scratch, const scope *s) {
    return resized(scratch, s->now, s->n, s->n, sizeof *s->now);
}

/* A branch is surveyed on a copy of what was known before it. */
static void survey_branch(binder *b, scope *s, const ml_jnodes *body, const known *before,
                          int32_t n_before) {
    for (int32_t i = 0; i < s->n; i++)
        s->now[i] = i < n_before ? before[i] : (known){ 0 };
    survey_all(b, s, body);
}

/* What an if statement knows of a name: before it, and after each branch. */
typedef struct branches {
    known *before, *after[N_BRANCH];
    int32_t n_before, n_after[N_BRANCH];
} branches;

/* A name written in some branches only keeps, in the others, the value it had outside. */
static known merged(const scope *s, const branches *k, int32_t i) {
    known was = i < k->n_before ? k->before[i] : (known){ 0 }, now = was;
    int writers = 0;

    for (int c = 0; c < N_BRANCH; c++) {
        known in = i < k->n_after[c] ? k->after[c][i] : (known){ 0 };
        writers += in.written && !was.written;
        if (in.here)
            now = (known){ true, now.written || in.written, in.load, in.from };
    }
    if (writers && writers < N_BRANCH)
        now.load =
            find(s->outer, s->fn, s->name[i], &now.from) ? ML_JL_ALIAS : ML_JL_CONTEXT;
    return now;
}

static void survey_if(binder *b, scope *s, const ml_jnode *n) {
    const ml_jnodes *body[N_BRANCH] = { &n->body, &n->elifs, &n->orelse };
    branches k;
    ml_arena scratch;

    survey(b, s, n->a);
    ml_arena_init(&scratch, "the branches of a template");
    k.before = copy_of(&scratch, s);
    k.n_before = s->n;
    for (int c = 0; c < N_BRANCH; c++) {
        survey_branch(b, s, body[c], k.before, k.n_before);
        k.after[c] = copy_of(&scratch, s);
        k.n_after[c] = s->n;
    }
    for (int32_t i = 0; i < s->n; i++)
        s->now[i] = merged(s, &k, i);
    ml_arena_release(&scratch);
}

static void survey_with(binder *b, scope *s, const ml_jnode *n) {
    for (int32_t i = 1; i < n->list.n; i += 2)
        survey(b, s, n->list.node[i]);
}

static void survey(binder *b, scope *s, const ml_jnode *n) {
    if (!n)
        return;
    switch (n->kind) {
    case ML_JN_NAME: note_read(b, s, n->name); return;
    case ML_JN_IF: survey_if(b, s, n); return;
    case ML_JN_MACRO: note_write(b, s, n->name); return;
    case ML_JN_WITH: survey_with(b, s, n); return;
    case ML_JN_SET:
        survey(b, s, n->a);
        survey_target(b, s, n->target, false);
        return;
    case ML_JN_SET_BLOCK: survey_target(b, s, n->target, false); return;
    case ML_JN_FOR: survey(b, s, n->a); return;
    case ML_JN_BLOCK:
    case ML_JN_AUTOESCAPE: return;
    default: /* expressions, print, call block and filter block: what is outside the body */
        survey(b, s, n->a);
        survey(b, s, n->b);
        survey(b, s, n->c);
        survey_all(b, s, &n->list);
        survey_call(b, s, n->call);
    }
}

/* --- does a body mention caller, kwargs, varargs, self? ------------------------------- */

typedef struct mention {
    const char *name;
    bool found, hidden; /* hidden: assigned before it was read */
} mention;

static void look_for(mention *m, const ml_jnode *n);

static void look_in(mention *m, const ml_jnodes *l) {
    for (int32_t i = 0; i < l->n; i++)
        look_for(m, l->node[i]);
}

static void look_in_call(mention *m, const ml_jcall_args *c) {
    if (!c)
        return;
    look_in(m, &c->pos);
    for (int32_t i = 0; i < c->n_kw; i++)
        look_for(m, c->kw[i].value);
    look_for(m, c->star);
    look_for(m, c->star_star);
}

static void look_in_params(mention *m, const ml_jparams *p) {
    for (int32_t i = 0; p && i < p->n; i++) {
        m->hidden = m->hidden || ml_str_is(p->name[i], m->name);
        look_for(m, p->dflt[i]);
    }
}

static void look_for(mention *m, const ml_jnode *n) {
    if (!n || m->found || m->hidden || n->kind == ML_JN_BLOCK)
        return;
    if (n->kind == ML_JN_NAME && ml_str_is(n->name, m->name)) {
        m->found = !n->store;
        m->hidden = n->store;
        return;
    }
    look_for(m, n->target);
    look_for(m, n->a);
    look_for(m, n->b);
    look_for(m, n->c);
    look_in(m, &n->list);
    look_in_call(m, n->call);
    look_in_params(m, n->params);
    look_in(m, &n->body);
    look_in(m, &n->elifs);
    look_in(m, &n->orelse);
}

static bool mentions(const ml_jnodes *body, const char *name) {
    mention m = { .name = name };
    look_in(&m, body);
    return m.found;
}

/* --- binding ------------------------------------------------------------------------------ */

static scope *scope_in(binder *b, scope *outer, function *fn) {
    scope *s = ML_NEW(&b->t->arena, scope, 1);
    s->outer = outer;
    s->fn = fn;
    return s;
}

static const ml_jscope *sealed(binder *b, const scope *s) {
    ml_jscope *out = ML_NEW(&b->t->arena, ml_jscope, 1);
    ml_jentry *entry = ML_NEW(&b->t->arena, ml_jentry, s->n);

    for (int32_t i = 0; i < s->n; i++)
        if (s->now[i].here)
            entry[out->n++] =
                (ml_jentry){ s->name[i], s->slot[i], s->now[i].load, s->now[i].from };
    out->entry = entry;
    return out;
}

static void bind_all(binder *b, scope *s, const ml_jnodes *l, bool soft) {
    for (int32_t i = 0; i < l->n; i++)
        bind(b, s, l->node[i], soft);
}

static ml_jref place_of(binder *b, const scope *s, ml_str name) {
    ml_jref ref = { 0 };
    bool found = find(s, s->fn, name, &ref);
    (void)b;
    ML_BUG_IF(!found);
    return ref;
}

static void bind_target(binder *b, scope *s, ml_jnode *n) {
    if (n->kind == ML_JN_NAME || n->kind == ML_JN_NSREF)
        n->ref = place_of(b, s, n->name);
    if (n->kind == ML_JN_NAME) {
        n->toplevel = s == b->root;
        if (b->n_for && ml_str_is(n->name, "loop"))
            ml_jtrap_throw(b->trap, n->at, "TemplateAssertionError",
                           "Can't assign to special loop variable in for-loop target");
    }
    for (int32_t i = 0; i < n->list.n; i++)
        bind_target(b, s, n->list.node[i]);
}

static void bind_call(binder *b, scope *s, ml_jcall_args *c, bool soft) {
    if (!c)
        return;
    bind_all(b, s, &c->pos, soft);
    for (int32_t i = 0; i < c->n_kw; i++)
        bind(b, s, c->kw[i].value, soft);
    bind(b, s, c->star, soft);
    bind(b, s, c->star_star, soft);
}

/* In a branch that may never be taken, an unknown filter or test is an error only when it
 * is reached. */
static void bind_native(binder *b, ml_jnode *n, bool soft) {
    bool is_filter = n->kind == ML_JN_FILTER;

    n->native = is_filter ? ml_jfilter_find(n->name) : ml_jtest_find(n->name);
    if (!n->native && !soft)
        ml_jtrap_throw(b->trap, n->at, "TemplateAssertionError", "No %s named '%.*s'.",
                       is_filter ? "filter" : "test", (int)n->name.len, n->name.ptr);
}

/* The target as the loop's test sees it, with places of its own. */
static ml_jnode *copy_target(binder *b, const ml_jnode *n) {
    ml_jnode *c = ML_NEW(&b->t->arena, ml_jnode, 1);

    *c = *n;
    c->list.node = ML_NEW(&b->t->arena, ml_jnode *, n->list.n);
    for (int32_t i = 0; i < n->list.n; i++)
        c->list.node[i] = copy_target(b, n->list.node[i]);
    return c;
}

static void bind_for(binder *b, scope *s, ml_jnode *n, bool soft) {
    function own = { .outer = s->fn }, *fn = n->recursive ? &own : s->fn;
    scope *body = scope_in(b, s, fn), *test = scope_in(b, s, fn), *els = scope_in(b, s, fn);

    bind(b, s, n->a, soft);
    b->n_for++;
    survey_target(b, test, n->target, true);
    survey(b, test, n->b);
    n->loop = declare(b, body, ml_str_of("loop"));
    survey_target(b, body, n->target, true);
    survey_all(b, body, &n->body);
    survey_all(b, els, &n->orelse);
    n->test_scope = sealed(b, test);
    n->scope = sealed(b, body);
    n->else_scope = sealed(b, els);
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

static ml_jref declare_special(binder *b, scope *s, const char *name, bool *takes,
                               const ml_jnodes *body) {
    *takes = mentions(body, name);
    return *takes ? declare(b, s, ml_str_of(name)) : (ml_jref){ 0 };
}

static bool has_param(const ml_jparams *p, const char *name, int32_t *i) {
    for (*i = 0; *i < p->n; (*i)++)
        if (ml_str_is(p->name[*i], name))
            return true;
    return false;
}

static void declare_specials(binder *b, scope *s, ml_jnode *n) {
    ml_jparams *p = n->params;
    int32_t i;

    p->explicit_caller = has_param(p, "caller", &i);
    if (!p->explicit_caller) {
        p->caller = declare_special(b, s, "caller", &p->takes_caller, &n->body);
    } else if (mentions(&n->body, "caller")) {
        p->takes_caller = true;
        if (!p->dflt[i])
            ml_jtrap_throw(b->trap, n->at, "TemplateAssertionError",
                           "When defining macros or call blocks the special \"caller\" "
                           "argument must be omitted or be given a default.");
    }
    if (!has_param(p, "kwargs", &i))
        p->kwargs = declare_special(b, s, "kwargs", &p->takes_kwargs, &n->body);
    if (!has_param(p, "varargs", &i))
        p->varargs = declare_special(b, s, "varargs", &p->takes_varargs, &n->body);
}

/* A macro, a call block or a generation block. */
static void bind_function(binder *b, scope *outer, ml_jnode *n) {
    function fn = { .outer = outer ? outer->fn : NULL };
    scope *s = scope_in(b, outer, &fn);
    ml_jparams *p = n->params;

    for (int32_t i = 0; p && i < p->n; i++)
        p->ref[i] = declare(b, s, p->name[i]);
    for (int32_t i = 0; p && i < p->n; i++)
        survey(b, s, p->dflt[i]);
    survey_all(b, s, &n->body);
    if (p)
        declare_specials(b, s, n);
    n->scope = sealed(b, s);
    for (int32_t i = 0; p && i < p->n; i++)
        bind(b, s, p->dflt[i], false);
    bind_all(b, s, &n->body, false);
    n->n_slot = fn.n_slot;
}

static void bind_block(binder *b, ml_jnode *n) {
    for (int32_t i = 0; i < b->t->blocks.n; i++)
        if (ml_str_eq(b->t->blocks.node[i]->name, n->name))
            ml_jtrap_throw(b->trap, n->at, "TemplateAssertionError",
                           "block '%.*s' defined twice", (int)n->name.len, n->name.ptr);
    ml_jnodes_add(&(ml_jparser){ .arena = &b->t->arena }, &b->t->blocks, n);
    bind_function(b, NULL, n);
}

/* A body with a scope of its own in the same function. */
static void bind_inner(binder *b, scope *outer, ml_jnode *n) {
    scope *s = scope_in(b, outer, outer->fn);
    bool own_a = n->kind == ML_JN_FILTER_BLOCK || n->kind == ML_JN_SET_BLOCK ||
                 n->kind == ML_JN_AUTOESCAPE;

    for (int32_t i = 0; i < n->list.n; i += 2) /* with */
        survey_target(b, s, n->list.node[i], true);
    survey_all(b, s, &n->body);
    if (own_a)
        survey(b, s, n->a);
    n->scope = sealed(b, s);
    for (int32_t i = 0; i < n->list.n; i += 2) {
        bind_target(b, s, n->list.node[i]);
        bind(b, outer, n->list.node[i + 1], false);
    }
    bind_all(b, s, &n->body, false);
    if (own_a)
        bind(b, s, n->a, false);
}

static void bind_flow(binder *b, const scope *s, const ml_jnode *n) {
    if (s->fn->n_loop)
        return;
    if (n->kind == ML_JN_BREAK)
        ml_jtrap_throw(b->trap, n->at, "SyntaxError", "'break' outside loop");
    ml_jtrap_throw(b->trap, n->at, "SyntaxError", "'continue' not properly in loop");
}

static void bind_children(binder *b, scope *s, ml_jnode *n, bool soft) {
    bind(b, s, n->a, soft);
    bind(b, s, n->b, soft);
    bind(b, s, n->c, soft);
    bind_all(b, s, &n->list, soft);
    bind_call(b, s, n->call, soft);
    bind_all(b, s, &n->body, soft);
    bind_all(b, s, &n->elifs, soft);
    bind_all(b, s, &n->orelse, soft);
}

static void bind(binder *b, scope *s, ml_jnode *n, bool soft) {
    if (!n)
        return;
    switch (n->kind) {
    case ML_JN_NAME: n->ref = place_of(b, s, n->name); break;
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
        n->ref = place_of(b, s, n->name);
        n->toplevel = s == b->root;
        bind_function(b, s, n);
        break;
    case ML_JN_CALL_BLOCK:
        bind(b, s, n->a, soft);
        bind_function(b, s, n);
        break;
    case ML_JN_GENERATION: bind_function(b, s, n); break;
    case ML_JN_BLOCK: bind_block(b, n); break;
    case ML_JN_BREAK:
    case ML_JN_CONTINUE: bind_flow(b, s, n); break;
    default: bind_children(b, s, n, soft);
    }
}

void ml_jscope_bind(ml_jinja *t, ml_jtrap *trap) {
    function fn = { 0 };
    binder b = { .t = t, .trap = trap };

    b.root = scope_in(&b, NULL, &fn);
    survey_all(&b, b.root, &t->body);
    t->uses_self = mentions(&t->body, "self");
    if (t->uses_self)
        t->self = declare(&b, b.root, ml_str_of("self"));
    t->scope = sealed(&b, b.root);
    bind_all(&b, b.root, &t->body, false);
    t->n_slot = fn.n_slot;
}
