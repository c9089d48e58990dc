/* Parses expressions by recursive descent.  Precedence follows Jinja, not Python: `~` binds
 * tighter than `+`, `**` is left-associative, and a filter applies to a whole unary
 * expression. */
#include "text/jinja/jinja_priv.h"

static ml_jnode *binary(ml_jparser *p, ml_jnode_kind kind, ml_jop op, uint32_t at_,
                        ml_jnode *a, ml_jnode *b) {
    ml_jnode *n = ml_jnode_new(p, kind, at_);
    n->op = op;
    n->a = a;
    n->b = b;
    return ml_jnode_grown(p, n);
}

static ml_jnode *parse_unary(ml_jparser *p, bool with_filter) {
    uint32_t begin = p->tok->at;
    ml_jnode *n;

    ml_jparser_enter(p);
    if (ml_jparser_at_op(p, "-") || ml_jparser_at_op(p, "+")) {
        n = ml_jnode_new(p, ml_jparser_at_op(p, "-") ? ML_JN_NEG : ML_JN_POS, begin);
        ml_jparser_next(p);
        n->a = parse_unary(p, false);
        ml_jnode_grown(p, n);
    } else {
        n = ml_jparse_primary(p, false);
    }
    n = ml_jparse_postfix(p, n);
    if (with_filter)
        n = ml_jparse_filters_and_tests(p, n);
    ml_jparser_leave(p);
    return n;
}

typedef struct infix {
    const char *text;
    ml_jop op;
} infix;

static const infix *find_operator(const ml_jparser *p, const infix *table) {
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
    static const infix table[] = { { "*", ML_JO_MUL },
                                   { "/", ML_JO_DIV },
                                   { "//", ML_JO_FLOORDIV },
                                   { "%", ML_JO_MOD },
                                   { 0 } };
    ml_jnode *n = parse_pow(p);
    const infix *o;

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
    static const infix table[] = { { "+", ML_JO_ADD }, { "-", ML_JO_SUB }, { 0 } };
    ml_jnode *n = parse_concat(p);
    const infix *o;

    while ((o = find_operator(p, table)) != NULL) {
        uint32_t op = ml_jparser_next(p)->at;
        n = binary(p, ML_JN_BINARY, o->op, op, n, parse_concat(p));
    }
    return n;
}

/* Consumes a comparison operator, if there is one. */
static bool skip_comparison(ml_jparser *p, ml_jop *op) {
    static const infix table[] = { { "==", ML_JO_EQ },
                                   { "!=", ML_JO_NE },
                                   { "<", ML_JO_LT },
                                   { "<=", ML_JO_LE },
                                   { ">", ML_JO_GT },
                                   { ">=", ML_JO_GE },
                                   { 0 } };
    const infix *o = find_operator(p, table);

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
    return n ? ml_jnode_grown(p, n) : first;
}

static ml_jnode *parse_not(ml_jparser *p) {
    ml_jnode *n;

    if (!ml_jparser_at_name(p, "not"))
        return parse_compare(p);
    ml_jparser_enter(p);
    n = ml_jnode_new(p, ML_JN_NOT, ml_jparser_next(p)->at);
    n->a = parse_not(p);
    ml_jparser_leave(p);
    return ml_jnode_grown(p, n);
}

static ml_jnode *parse_and(ml_jparser *p) {
    ml_jnode *n = parse_not(p);

    while (ml_jparser_at_name(p, "and")) {
        uint32_t op = ml_jparser_next(p)->at;
        n = binary(p, ML_JN_AND, ML_JO_ADD, op, n, parse_not(p));
    }
    return n;
}

ml_jnode *ml_jparse_or(ml_jparser *p) {
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
    n = ml_jparse_or(p);
    while (ml_jparser_at_name(p, "if")) {
        cond = ml_jnode_new(p, ML_JN_COND, ml_jparser_next(p)->at);
        cond->a = n;
        cond->b = ml_jparse_or(p);
        if (ml_jparser_skip_name(p, "else"))
            cond->c = ml_jparse_expr(p);
        n = ml_jnode_grown(p, cond);
    }
    ml_jparser_leave(p);
    return n;
}
