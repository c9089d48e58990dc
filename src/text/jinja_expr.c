/* Expressions, by recursive descent.  Precedence is Jinja's, not Python's: `~` binds tighter
 * than `+`, `**` associates to the left, a filter applies to a whole unary expression. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/jinja_priv.h"

static ml_jnode *parse_unary(ml_jparser *p, bool with_filter);
static ml_jnode *parse_or(ml_jparser *p);

/* --- nodes ------------------------------------------------------------------------ */

/* A chain of operators is a loop for the parser but a recursion for everybody after it. */
static ml_jnode *grown(ml_jparser *p, ml_jnode *n) {
    const ml_jnode *below[] = { n->a, n->b, n->c };

    for (int i = 0; i < 3; i++)
        if (below[i] && below[i]->height >= n->height)
            n->height = below[i]->height + 1;
    if (n->height > ML_JINJA_HEIGHT)
        ml_jtrap_throw(p->trap, n->at, "RecursionError",
                       "an expression of more than %d chained operations", ML_JINJA_HEIGHT);
    return n;
}

static ml_jnode *binary(ml_jparser *p, ml_jnode_kind kind, ml_jop op, uint32_t at_,
                        ml_jnode *a, ml_jnode *b) {
    ml_jnode *n = ml_jnode_new(p, kind, at_);
    n->op = op;
    n->a = a;
    n->b = b;
    return grown(p, n);
}

static ml_jnode *constant(ml_jparser *p, uint32_t at_, ml_jval v) {
    ml_jnode *n = ml_jnode_new(p, ML_JN_CONST, at_);
    n->value = v;
    return n;
}

static ml_jval string_value(ml_jparser *p, ml_str text) {
    ml_jstr *s = ML_NEW(p->arena, ml_jstr, 1);
    *s = (ml_jstr){ .ptr = text.ptr, .len = text.len, .n_char = ml_jstr_count_chars(text) };
    return (ml_jval){ .kind = ML_J_STR, .s = s };
}

/* --- primaries ------------------------------------------------------------------------ */

static ml_jnode *parse_string(ml_jparser *p) {
    const ml_jtok *first = ml_jparser_next(p);
    ml_str text = first->text;

    while (ml_jparser_at(p, ML_JT_STRING, NULL)) {
        ml_str more = ml_jparser_next(p)->text;
        char *joined = ml_arena_take(p->arena, text.len + more.len + 1, 1);
        memcpy(joined, text.ptr, text.len);
        memcpy(joined + text.len, more.ptr, more.len);
        text = (ml_str){ joined, text.len + more.len };
    }
    return constant(p, first->at, string_value(p, text));
}

static ml_jval integer_value(ml_jparser *p, ml_str text) {
    long long i;

    errno = 0;
    if (text.len > 2 && (text.ptr[1] | 0x20) == 'b')
        i = strtoll(text.ptr + 2, NULL, 2);
    else if (text.len > 2 && (text.ptr[1] | 0x20) == 'o')
        i = strtoll(text.ptr + 2, NULL, 8);
    else
        i = strtoll(text.ptr, NULL, text.len > 2 && (text.ptr[1] | 0x20) == 'x' ? 16 : 10);
    if (!errno)
        return ml_jint(i);
    if (text.ptr[0] == '0')
        ml_jparser_fail(p, p->tok->at, "%s is beyond 64 bits; write it in decimal",
                        text.ptr);
    return (ml_jval){ .kind = ML_J_BIGINT, .s = string_value(p, text).s };
}

static bool constant_name(ml_str name, ml_jval *out) {
    if (ml_str_is(name, "true") || ml_str_is(name, "True"))
        *out = ml_jbool(true);
    else if (ml_str_is(name, "false") || ml_str_is(name, "False"))
        *out = ml_jbool(false);
    else if (ml_str_is(name, "none") || ml_str_is(name, "None"))
        *out = ml_jnone();
    else
        return false;
    return true;
}

static ml_jnode *parse_name(ml_jparser *p, bool namespace) {
    const ml_jtok *t = ml_jparser_next(p);
    ml_jnode *n;
    ml_jval v;

    if (constant_name(t->text, &v))
        return constant(p, t->at, v);
    n = ml_jnode_new(p, ML_JN_NAME, t->at);
    n->name = t->text;
    if (namespace && ml_jparser_skip_op(p, ".")) {
        n->kind = ML_JN_NSREF;
        n->attr = ml_jparser_expect(p, ML_JT_NAME, NULL)->text;
    }
    return n;
}

static ml_jnode *parse_list(ml_jparser *p) {
    ml_jnode *n = ml_jnode_new(p, ML_JN_LIST, ml_jparser_next(p)->at);

    while (!ml_jparser_at_op(p, "]")) {
        if (n->list.n)
            ml_jparser_expect(p, ML_JT_OP, ",");
        if (ml_jparser_at_op(p, "]"))
            break;
        ml_jnodes_add(p, &n->list, ml_jparse_expr(p));
    }
    ml_jparser_expect(p, ML_JT_OP, "]");
    return n;
}

static ml_jnode *parse_dict(ml_jparser *p) {
    ml_jnode *n = ml_jnode_new(p, ML_JN_DICT, ml_jparser_next(p)->at);

    while (!ml_jparser_at_op(p, "}")) {
        if (n->list.n)
            ml_jparser_expect(p, ML_JT_OP, ",");
        if (ml_jparser_at_op(p, "}"))
            break;
        ml_jnodes_add(p, &n->list, ml_jparse_expr(p));
        ml_jparser_expect(p, ML_JT_OP, ":");
        ml_jnodes_add(p, &n->list, ml_jparse_expr(p));
    }
    ml_jparser_expect(p, ML_JT_OP, "}");
    return n;
}

static ml_jnode *parse_primary(ml_jparser *p, bool namespace) {
    const ml_jtok *t = p->tok;
    ml_jnode *n;
    ml_str got;

    if (t->type == ML_JT_NAME)
        return parse_name(p, namespace);
    if (t->type == ML_JT_STRING)
        return parse_string(p);
    if (t->type == ML_JT_INTEGER)
        return constant(p, t->at, integer_value(p, ml_jparser_next(p)->text));
    if (t->type == ML_JT_FLOAT)
        return constant(p, t->at, ml_jfloat(strtod(ml_jparser_next(p)->text.ptr, NULL)));
    if (ml_jparser_at_op(p, "["))
        return parse_list(p);
    if (ml_jparser_at_op(p, "{"))
        return parse_dict(p);
    if (ml_jparser_skip_op(p, "(")) {
        n = ml_jparse_tuple(p, (ml_jtuple_rule){ .parens = true });
        ml_jparser_expect(p, ML_JT_OP, ")");
        return n;
    }
    got = ml_jtok_describe(t);
    ml_jparser_fail(p, t->at, "unexpected '%.*s'", (int)got.len, got.ptr);
}

static bool tuple_ends(const ml_jparser *p, const char *end) {
    return ml_jparser_at(p, ML_JT_PRINT_END, NULL) ||
           ml_jparser_at(p, ML_JT_BLOCK_END, NULL) || ml_jparser_at_op(p, ")") ||
           (end && ml_jparser_at_name(p, end));
}

ml_jnode *ml_jparse_tuple(ml_jparser *p, ml_jtuple_rule rule) {
    ml_jnode *n = ml_jnode_new(p, ML_JN_TUPLE, p->tok->at);
    bool is_tuple = false;

    for (;;) {
        if (n->list.n)
            ml_jparser_expect(p, ML_JT_OP, ",");
        if (tuple_ends(p, rule.end))
            break;
        ml_jnodes_add(p, &n->list,
                      rule.simple    ? parse_primary(p, rule.namespace)
                      : rule.no_cond ? parse_or(p)
                                     : ml_jparse_expr(p));
        if (!ml_jparser_at_op(p, ","))
            break;
        is_tuple = true;
    }
    if (!is_tuple && n->list.n)
        return n->list.node[0];
    if (!is_tuple && !rule.parens) {
        ml_str got = ml_jtok_describe(p->tok);
        ml_jparser_fail(p, p->tok->at, "Expected an expression, got '%.*s'", (int)got.len,
                        got.ptr);
    }
    return n;
}

/* --- what follows a primary --------------------------------------------------------------- */

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
    return grown(p, n);
}

static bool slice_part_ends(const ml_jparser *p) {
    return ml_jparser_at_op(p, "]") || ml_jparser_at_op(p, ",") || ml_jparser_at_op(p, ":");
}

/* An index, or start:stop:step with any of them left out. */
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
    return grown(p, slice);
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
    return grown(p, n);
}

static ml_jnode *parse_dot(ml_jparser *p, ml_jnode *of) {
    ml_jnode *n = ml_jnode_new(p, ML_JN_ATTR, ml_jparser_next(p)->at);
    const ml_jtok *t = ml_jparser_next(p);

    n->a = of;
    if (t->type == ML_JT_NAME) {
        n->name = t->text;
    } else if (t->type == ML_JT_INTEGER) {
        n->kind = ML_JN_ITEM;
        n->b = constant(p, t->at, integer_value(p, t->text));
    } else {
        ml_jparser_fail(p, t->at, "expected name or number");
    }
    return grown(p, n);
}

static ml_jnode *parse_postfix(ml_jparser *p, ml_jnode *n) {
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
        of = grown(p, n);
    }
    return of;
}

/* An argument without brackets: `x is divisibleby 3`. */
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
        ml_jnodes_add(p, &n->call->pos, parse_postfix(p, parse_primary(p, false)));
    }
    grown(p, n);
    if (!is_not)
        return n;
    negated = ml_jnode_new(p, ML_JN_NOT, n->at);
    negated->a = n;
    return grown(p, negated);
}

static ml_jnode *parse_filters_and_tests(ml_jparser *p, ml_jnode *n) {
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

/* --- operators -------------------------------------------------------------------------- */

static ml_jnode *parse_unary(ml_jparser *p, bool with_filter) {
    uint32_t begin = p->tok->at;
    ml_jnode *n;

    ml_jparser_enter(p);
    if (ml_jparser_at_op(p, "-") || ml_jparser_at_op(p, "+")) {
        n = ml_jnode_new(p, ml_jparser_at_op(p, "-") ? ML_JN_NEG : ML_JN_POS, begin);
        ml_jparser_next(p);
        n->a = parse_unary(p, false);
        grown(p, n);
    } else {
        n = parse_primary(p, false);
    }
    n = parse_postfix(p, n);
    if (with_filter)
        n = parse_filters_and_tests(p, n);
    ml_jparser_leave(p);
    return n;
}

typedef struct operator{
    const char *text;
    ml_jop op;
}
operator;

static const operator* find_operator(const ml_jparser *p, const operator* table) {
    for (; table->text; table++)
        if (ml_jparser_at_op(p, table->text))
            return table;
    return NULL;
}

static ml_jnode *parse_pow(ml_jparser *p) {
    ml_jnode *n = parse_unary(p, true);

    while (ml_jparser_at_op(p, "**")) {
        uint32_t op = ml_jparser_next(p)->at;
        n = binary(p, ML_JN_BINARY, ML_JO_POW, op, n, parse_unary(p, true));
    }
    return n;
}

static ml_jnode *parse_product(ml_jparser *p) {
    static const operator table[] = { { "*", ML_JO_MUL },
                                      { "/", ML_JO_DIV },
                                      { "//", ML_JO_FLOORDIV },
                                      { "%", ML_JO_MOD },
                                      { 0 } };
    ml_jnode *n = parse_pow(p);
    const operator* o;

    while ((o = find_operator(p, table)) != NULL) {
        uint32_t op = ml_jparser_next(p)->at;
        n = binary(p, ML_JN_BINARY, o->op, op, n, parse_pow(p));
    }
    return n;
}

static ml_jnode *parse_concat(ml_jparser *p) {
    ml_jnode *first = parse_product(p), *n;

    if (!ml_jparser_at_op(p, "~"))
        return first;
    n = ml_jnode_new(p, ML_JN_CONCAT, first->at);
    ml_jnodes_add(p, &n->list, first);
    while (ml_jparser_skip_op(p, "~"))
        ml_jnodes_add(p, &n->list, parse_product(p));
    return n;
}

static ml_jnode *parse_sum(ml_jparser *p) {
    static const operator table[] = { { "+", ML_JO_ADD }, { "-", ML_JO_SUB }, { 0 } };
    ml_jnode *n = parse_concat(p);
    const operator* o;

    while ((o = find_operator(p, table)) != NULL) {
        uint32_t op = ml_jparser_next(p)->at;
        n = binary(p, ML_JN_BINARY, o->op, op, n, parse_concat(p));
    }
    return n;
}

/* A comparison operator, if there is one; moves past it. */
static bool skip_comparison(ml_jparser *p, ml_jop *op) {
    static const operator table[] = { { "==", ML_JO_EQ },
                                      { "!=", ML_JO_NE },
                                      { "<", ML_JO_LT },
                                      { "<=", ML_JO_LE },
                                      { ">", ML_JO_GT },
                                      { ">=", ML_JO_GE },
                                      { 0 } };
    const operator* o = find_operator(p, table);

    if (o) {
        *op = o->op;
        ml_jparser_next(p);
        return true;
    }
    if (ml_jparser_skip_name(p, "in")) {
        *op = ML_JO_IN;
        return true;
    }
    if (!ml_jparser_at_name(p, "not") || p->tok[1].type != ML_JT_NAME ||
        !ml_str_is(p->tok[1].text, "in"))
        return false;
    p->tok += 2;
    *op = ML_JO_NOT_IN;
    return true;
}

static ml_jnode *parse_compare(ml_jparser *p) {
    ml_jnode *first = parse_sum(p), *n = NULL;
    uint32_t begin = p->tok->at;
    ml_jop op;

    while (skip_comparison(p, &op)) {
        ml_jnode *c = ml_jnode_new(p, ML_JN_COMPARED, begin);
        if (!n) {
            n = ml_jnode_new(p, ML_JN_COMPARE, begin);
            n->a = first;
        }
        c->op = op;
        c->a = parse_sum(p);
        ml_jnodes_add(p, &n->list, c);
        begin = p->tok->at;
    }
    return n ? grown(p, n) : first;
}

static ml_jnode *parse_not(ml_jparser *p) {
    ml_jnode *n;

    if (!ml_jparser_at_name(p, "not"))
        return parse_compare(p);
    ml_jparser_enter(p);
    n = ml_jnode_new(p, ML_JN_NOT, ml_jparser_next(p)->at);
    n->a = parse_not(p);
    ml_jparser_leave(p);
    return grown(p, n);
}

static ml_jnode *parse_and(ml_jparser *p) {
    ml_jnode *n = parse_not(p);

    while (ml_jparser_at_name(p, "and")) {
        uint32_t op = ml_jparser_next(p)->at;
        n = binary(p, ML_JN_AND, ML_JO_ADD, op, n, parse_not(p));
    }
    return n;
}

static ml_jnode *parse_or(ml_jparser *p) {
    ml_jnode *n = parse_and(p);

    while (ml_jparser_at_name(p, "or")) {
        uint32_t op = ml_jparser_next(p)->at;
        n = binary(p, ML_JN_OR, ML_JO_ADD, op, n, parse_and(p));
    }
    return n;
}

ml_jnode *ml_jparse_expr(ml_jparser *p) {
    ml_jnode *n, *cond;

    ml_jparser_enter(p);
    n = parse_or(p);
    while (ml_jparser_at_name(p, "if")) {
        cond = ml_jnode_new(p, ML_JN_COND, ml_jparser_next(p)->at);
        cond->a = n;
        cond->b = parse_or(p);
        if (ml_jparser_skip_name(p, "else"))
            cond->c = ml_jparse_expr(p);
        n = grown(p, cond);
    }
    ml_jparser_leave(p);
    return n;
}

/* --- targets of assignments ------------------------------------------------------------- */

static void check_target(ml_jparser *p, ml_jnode *n) {
    static const char *const names[] = {
        [ML_JN_CONST] = "const", [ML_JN_LIST] = "list", [ML_JN_DICT] = "dict"
    };

    if (n->kind == ML_JN_NAME || n->kind == ML_JN_NSREF) {
        n->store = true;
    } else if (n->kind == ML_JN_TUPLE) {
        for (int32_t i = 0; i < n->list.n; i++)
            check_target(p, n->list.node[i]);
    } else {
        ml_jparser_fail(p, n->at, "can't assign to '%s'", names[n->kind]);
    }
}

ml_jnode *ml_jparse_target(ml_jparser *p, bool namespace, const char *end) {
    ml_jnode *n = ml_jparse_tuple(
        p, (ml_jtuple_rule){ .simple = true, .namespace = namespace, .end = end });
    check_target(p, n);
    return n;
}
