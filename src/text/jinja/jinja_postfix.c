/* Parses postfix operators: calls, subscripts, attributes; then filters and tests. */
#include <string.h>

#include "text/jinja/jinja_priv.h"

static void ensure(const ml_jparser *p, bool holds, uint32_t at_) {
    if (!holds)
        ml_jparser_fail(p, at_, "invalid syntax for function call expression");
}

static void add_keyword(ml_jparser *p, ml_jcall_args *c, ml_str name, ml_jnode *value) {
    ml_jkeyword *kw = ML_NEW(p->arena, ml_jkeyword, c->n_kw + 1);

    if (c->n_kw)
        memcpy(kw, c->kw, (size_t)c->n_kw * sizeof *kw);
    kw[c->n_kw++] = (ml_jkeyword){ name, value };
    c->kw = kw;
}

static void parse_arg(ml_jparser *p, ml_jcall_args *c, uint32_t open) {
    bool is_keyword = p->tok->type == ML_JT_NAME && p->tok[1].type == ML_JT_OP &&
                      ml_str_is(p->tok[1].text, "=");

    if (ml_jparser_at_op(p, "*")) {
        ensure(p, !c->star && !c->star_star, open);
        ml_jparser_next(p);
        c->star = ml_jparse_expr(p);
    } else if (ml_jparser_at_op(p, "**")) {
        ensure(p, !c->star_star, open);
        ml_jparser_next(p);
        c->star_star = ml_jparse_expr(p);
    } else if (is_keyword) {
        ml_str name = p->tok->text;
        ensure(p, !c->star_star, open);
        p->tok += 2;
        add_keyword(p, c, name, ml_jparse_expr(p));
    } else {
        ensure(p, !c->star && !c->star_star && !c->n_kw, open);
        ml_jnodes_add(p, &c->pos, ml_jparse_expr(p));
    }
}

static ml_jcall_args *parse_args(ml_jparser *p) {
    ml_jcall_args *c = ML_NEW(p->arena, ml_jcall_args, 1);
    uint32_t open = ml_jparser_expect(p, ML_JT_OP, "(")->at;
    bool first = true;

    while (!ml_jparser_at_op(p, ")")) {
        if (!first)
            ml_jparser_expect(p, ML_JT_OP, ",");
        if (!first && ml_jparser_at_op(p, ")"))
            break;
        parse_arg(p, c, open);
        first = false;
    }
    ml_jparser_expect(p, ML_JT_OP, ")");
    return c;
}

static ml_jnode *parse_call(ml_jparser *p, ml_jnode *of) {
    ml_jnode *n = ml_jnode_new(p, ML_JN_CALL, of->at);
    n->a = of;
    n->call = parse_args(p);
    return ml_jnode_grown(p, n);
}

static bool slice_part_ends(const ml_jparser *p) {
    return ml_jparser_at_op(p, "]") || ml_jparser_at_op(p, ",") || ml_jparser_at_op(p, ":");
}

/* An index, or start:stop:step with any part omitted. */
static ml_jnode *parse_index(ml_jparser *p) {
    ml_jnode *start = NULL, *slice;
    uint32_t begin = p->tok->at;

    if (!ml_jparser_at_op(p, ":")) {
        start = ml_jparse_expr(p);
        if (!ml_jparser_at_op(p, ":"))
            return start;
    }
    ml_jparser_next(p);
    slice = ml_jnode_new(p, ML_JN_SLICE, begin);
    slice->a = start;
    if (!slice_part_ends(p))
        slice->b = ml_jparse_expr(p);
    if (ml_jparser_skip_op(p, ":") && !slice_part_ends(p))
        slice->c = ml_jparse_expr(p);
    return ml_jnode_grown(p, slice);
}

static ml_jnode *parse_subscript(ml_jparser *p, ml_jnode *of) {
    ml_jnode *n = ml_jnode_new(p, ML_JN_ITEM, ml_jparser_next(p)->at), *index;

    n->a = of;
    while (!ml_jparser_at_op(p, "]")) {
        if (n->list.n)
            ml_jparser_expect(p, ML_JT_OP, ",");
        ml_jnodes_add(p, &n->list, parse_index(p));
    }
    ml_jparser_expect(p, ML_JT_OP, "]");
    if (n->list.n == 1) {
        n->b = n->list.node[0];
    } else {
        index = ml_jnode_new(p, ML_JN_TUPLE, n->at);
        index->list = n->list;
        n->b = index;
    }
    n->list = (ml_jnodes){ 0 };
    return ml_jnode_grown(p, n);
}

static ml_jnode *parse_dot(ml_jparser *p, ml_jnode *of) {
    ml_jnode *n = ml_jnode_new(p, ML_JN_ATTR, ml_jparser_next(p)->at);

    n->a = of;
    if (ml_jparser_at(p, ML_JT_NAME, NULL)) {
        n->name = ml_jparser_next(p)->text;
    } else if (ml_jparser_at(p, ML_JT_INTEGER, NULL)) {
        n->kind = ML_JN_ITEM;
        n->b = ml_jparse_primary(p, false);
    } else {
        ml_jparser_fail(p, p->tok->at, "expected name or number");
    }
    return ml_jnode_grown(p, n);
}

ml_jnode *ml_jparse_postfix(ml_jparser *p, ml_jnode *n) {
    for (;;) {
        if (ml_jparser_at_op(p, "."))
            n = parse_dot(p, n);
        else if (ml_jparser_at_op(p, "["))
            n = parse_subscript(p, n);
        else if (ml_jparser_at_op(p, "("))
            n = parse_call(p, n);
        else
            return n;
    }
}

/* --- filters and tests -------------------------------------------------------------------- */

/* a.b.c, as one name */
static ml_str parse_dotted(ml_jparser *p) {
    ml_str name = ml_jparser_expect(p, ML_JT_NAME, NULL)->text;

    while (ml_jparser_skip_op(p, ".")) {
        ml_str more = ml_jparser_expect(p, ML_JT_NAME, NULL)->text;
        name = ml_str_of(ml_arena_printf(p->arena, "%.*s.%.*s", (int)name.len, name.ptr,
                                         (int)more.len, more.ptr));
    }
    return name;
}

ml_jnode *ml_jparse_filters(ml_jparser *p, ml_jnode *of, bool first_without_pipe) {
    while (first_without_pipe || ml_jparser_at_op(p, "|")) {
        ml_jnode *n;
        if (!first_without_pipe)
            ml_jparser_next(p);
        first_without_pipe = false;
        n = ml_jnode_new(p, ML_JN_FILTER, p->tok->at);
        n->a = of;
        n->name = parse_dotted(p);
        if (ml_jparser_at_op(p, "("))
            n->call = parse_args(p);
        of = ml_jnode_grown(p, n);
    }
    return of;
}

/* An argument without parentheses: `x is divisibleby 3`. */
static bool test_arg_follows(const ml_jparser *p) {
    const ml_jtok *t = p->tok;

    if (t->type == ML_JT_NAME)
        return !ml_str_is(t->text, "else") && !ml_str_is(t->text, "or") &&
               !ml_str_is(t->text, "and");
    return t->type == ML_JT_STRING || t->type == ML_JT_INTEGER || t->type == ML_JT_FLOAT ||
           ml_jparser_at_op(p, "[") || ml_jparser_at_op(p, "{");
}

static ml_jnode *parse_test(ml_jparser *p, ml_jnode *of) {
    ml_jnode *n = ml_jnode_new(p, ML_JN_TEST, ml_jparser_next(p)->at), *negated;
    bool is_not = ml_jparser_skip_name(p, "not");

    n->a = of;
    n->name = parse_dotted(p);
    if (ml_jparser_at_op(p, "(")) {
        n->call = parse_args(p);
    } else if (test_arg_follows(p)) {
        if (ml_jparser_at_name(p, "is"))
            ml_jparser_fail(p, p->tok->at, "You cannot chain multiple tests with is");
        n->call = ML_NEW(p->arena, ml_jcall_args, 1);
        ml_jnodes_add(p, &n->call->pos, ml_jparse_postfix(p, ml_jparse_primary(p, false)));
    }
    ml_jnode_grown(p, n);
    if (!is_not)
        return n;
    negated = ml_jnode_new(p, ML_JN_NOT, n->at);
    negated->a = n;
    return ml_jnode_grown(p, negated);
}

ml_jnode *ml_jparse_filters_and_tests(ml_jparser *p, ml_jnode *n) {
    for (;;) {
        if (ml_jparser_at_op(p, "|"))
            n = ml_jparse_filters(p, n, false);
        else if (ml_jparser_at_name(p, "is"))
            n = parse_test(p, n);
        else if (ml_jparser_at_op(p, "("))
            n = parse_call(p, n);
        else
            return n;
    }
}
