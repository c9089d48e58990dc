/* Parses primary expressions: literals, names, lists, dicts, parentheses; and assignment
 * targets. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "text/jinja/jinja_priv.h"

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

ml_jnode *ml_jparse_primary(ml_jparser *p, bool namespace) {
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
                      rule.simple    ? ml_jparse_primary(p, rule.namespace)
                      : rule.no_cond ? ml_jparse_or(p)
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
