/* Surveys a scope: which names it reads and writes, and in which order. */
#include <string.h>

#include "text/jinja/jinja_names.h"

enum { N_BRANCH = 3 }; /* branches of an if: body, elifs, else */

void ml_jsurvey_all(ml_jnames *s, const ml_jnodes *l) {
    for (int32_t i = 0; i < l->n; i++)
        ml_jsurvey(s, l->node[i]);
}

void ml_jsurvey_target(ml_jnames *s, const ml_jnode *n, bool as_param) {
    if (n->kind == ML_JN_NSREF)
        ml_jnames_read(s, n->name);
    else if (n->kind == ML_JN_NAME && as_param)
        ml_jnames_declare(s, n->name);
    else if (n->kind == ML_JN_NAME)
        ml_jnames_write(s, n->name);
    for (int32_t i = 0; i < n->list.n; i++)
        ml_jsurvey_target(s, n->list.node[i], as_param);
}

static void survey_call(ml_jnames *s, const ml_jcall_args *c) {
    if (!c)
        return;
    ml_jsurvey_all(s, &c->pos);
    for (int32_t i = 0; i < c->n_kw; i++)
        ml_jsurvey(s, c->kw[i].value);
    ml_jsurvey(s, c->star);
    ml_jsurvey(s, c->star_star);
}

static ml_jknown *copy_of(ml_arena *scratch, const ml_jnames *s) {
    ml_jknown *k = ML_NEW(scratch, ml_jknown, s->n);
    if (s->n)
        memcpy(k, s->now, (size_t)s->n * sizeof *k);
    return k;
}

/* A branch is surveyed with a copy of the state before it. */
static void survey_branch(ml_jnames *s, const ml_jnodes *body, const ml_jknown *before,
                          int32_t n_before) {
    for (int32_t i = 0; i < s->n; i++)
        s->now[i] = i < n_before ? before[i] : (ml_jknown){ 0 };
    ml_jsurvey_all(s, body);
}

/* The state of a name in an if statement: before it, and after each branch. */
typedef struct branches {
    ml_jknown *before, *after[N_BRANCH];
    int32_t n_before, n_after[N_BRANCH];
} branches;

/* In branches that do not write it, a name keeps the value from outside. */
static ml_jknown merged(const ml_jnames *s, const branches *k, int32_t i) {
    ml_jknown was = i < k->n_before ? k->before[i] : (ml_jknown){ 0 }, now = was;
    int writers = 0;

    for (int c = 0; c < N_BRANCH; c++) {
        ml_jknown in = i < k->n_after[c] ? k->after[c][i] : (ml_jknown){ 0 };
        writers += in.written && !was.written;
        if (in.here)
            now = (ml_jknown){ true, now.written || in.written, in.load, in.from };
    }
    if (writers && writers < N_BRANCH)
        now.load = ml_jnames_find(s->outer, s->fn, s->name[i], &now.from) ? ML_JL_ALIAS
                                                                          : ML_JL_CONTEXT;
    return now;
}

static void survey_if(ml_jnames *s, const ml_jnode *n) {
    const ml_jnodes *body[N_BRANCH] = { &n->body, &n->elifs, &n->orelse };
    branches k;
    ml_arena scratch;

    ml_jsurvey(s, n->a);
    ml_arena_init(&scratch, "the branches of a template");
    k.before = copy_of(&scratch, s);
    k.n_before = s->n;
    for (int c = 0; c < N_BRANCH; c++) {
        survey_branch(s, body[c], k.before, k.n_before);
        k.after[c] = copy_of(&scratch, s);
        k.n_after[c] = s->n;
    }
    for (int32_t i = 0; i < s->n; i++)
        s->now[i] = merged(s, &k, i);
    ml_arena_release(&scratch);
}

static void survey_with(ml_jnames *s, const ml_jnode *n) {
    for (int32_t i = 1; i < n->list.n; i += 2)
        ml_jsurvey(s, n->list.node[i]);
}

void ml_jsurvey(ml_jnames *s, const ml_jnode *n) {
    if (!n)
        return;
    switch (n->kind) {
    case ML_JN_NAME: ml_jnames_read(s, n->name); return;
    case ML_JN_IF: survey_if(s, n); return;
    case ML_JN_MACRO: ml_jnames_write(s, n->name); return;
    case ML_JN_WITH: survey_with(s, n); return;
    case ML_JN_SET:
        ml_jsurvey(s, n->a);
        ml_jsurvey_target(s, n->target, false);
        return;
    case ML_JN_SET_BLOCK: ml_jsurvey_target(s, n->target, false); return;
    case ML_JN_FOR: ml_jsurvey(s, n->a); return;
    case ML_JN_BLOCK:
    case ML_JN_AUTOESCAPE: return;
    default: /* expressions, print, call and filter blocks outside of their body */
        ml_jsurvey(s, n->a);
        ml_jsurvey(s, n->b);
        ml_jsurvey(s, n->c);
        ml_jsurvey_all(s, &n->list);
        survey_call(s, n->call);
    }
}

/* --- references to caller, kwargs, varargs, self -------------------------------------- */

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

bool ml_jmentions(const ml_jnodes *body, const char *name) {
    mention m = { .name = name };
    look_in(&m, body);
    return m.found;
}
