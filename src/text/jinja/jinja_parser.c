/* Functions for parsing statements and expressions: access to tokens, and new nodes. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "text/jinja/jinja_priv.h"

void ml_jparser_fail(const ml_jparser *p, uint32_t at, const char *fmt, ...) {
    char message[600];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(message, sizeof message, fmt, ap);
    va_end(ap);
    ml_jtrap_throw(p->trap, at, "TemplateSyntaxError", "%s", message);
}

void ml_jparser_enter(ml_jparser *p) {
    if (++p->nesting > ML_JINJA_NESTING)
        ml_jtrap_throw(p->trap, p->tok->at, "RecursionError", "more than %d nested levels",
                       ML_JINJA_NESTING);
}

void ml_jparser_leave(ml_jparser *p) {
    p->nesting--;
}

const ml_jtok *ml_jparser_next(ml_jparser *p) {
    const ml_jtok *t = p->tok;
    if (t->type != ML_JT_END)
        p->tok++;
    return t;
}

bool ml_jparser_at(const ml_jparser *p, ml_jtok_type type, const char *text) {
    return p->tok->type == type && (!text || ml_str_is(p->tok->text, text));
}

bool ml_jparser_at_name(const ml_jparser *p, const char *name) {
    return ml_jparser_at(p, ML_JT_NAME, name);
}

bool ml_jparser_at_op(const ml_jparser *p, const char *op) {
    return ml_jparser_at(p, ML_JT_OP, op);
}

bool ml_jparser_skip_name(ml_jparser *p, const char *name) {
    bool is = ml_jparser_at_name(p, name);
    if (is)
        ml_jparser_next(p);
    return is;
}

bool ml_jparser_skip_op(ml_jparser *p, const char *op) {
    bool is = ml_jparser_at_op(p, op);
    if (is)
        ml_jparser_next(p);
    return is;
}

static const char *type_name(ml_jtok_type type) {
    static const char *const names[] = {
        [ML_JT_END] = "end of template",
        [ML_JT_DATA] = "template data / text",
        [ML_JT_PRINT_BEGIN] = "begin of print statement",
        [ML_JT_PRINT_END] = "end of print statement",
        [ML_JT_BLOCK_BEGIN] = "begin of statement block",
        [ML_JT_BLOCK_END] = "end of statement block",
        [ML_JT_NAME] = "name",
        [ML_JT_STRING] = "string",
        [ML_JT_INTEGER] = "integer",
        [ML_JT_FLOAT] = "float",
        [ML_JT_OP] = "operator",
    };
    return names[type];
}

ml_str ml_jtok_describe(const ml_jtok *t) {
    if (t->type == ML_JT_NAME || t->type == ML_JT_OP)
        return t->text;
    return ml_str_of(type_name(t->type));
}

const ml_jtok *ml_jparser_expect(ml_jparser *p, ml_jtok_type type, const char *text) {
    const char *wanted = text ? text : type_name(type);
    ml_str got;

    if (ml_jparser_at(p, type, text))
        return ml_jparser_next(p);
    if (p->tok->type == ML_JT_END)
        ml_jparser_fail(p, p->tok->at, "unexpected end of template, expected '%s'.",
                        wanted);
    got = ml_jtok_describe(p->tok);
    ml_jparser_fail(p, p->tok->at, "expected token '%s', got '%.*s'", wanted, (int)got.len,
                    got.ptr);
}

ml_jnode *ml_jnode_new(ml_jparser *p, ml_jnode_kind kind, uint32_t at_) {
    ml_jnode *n = ML_NEW(p->arena, ml_jnode, 1);
    n->kind = kind;
    n->at = at_;
    n->height = 1;
    return n;
}

/* A chain of operators is parsed by a loop, but later passes recurse over it. */
ml_jnode *ml_jnode_grown(ml_jparser *p, ml_jnode *n) {
    const ml_jnode *below[] = { n->a, n->b, n->c };

    for (int i = 0; i < 3; i++)
        if (below[i] && below[i]->height >= n->height)
            n->height = below[i]->height + 1;
    if (n->height > ML_JINJA_HEIGHT)
        ml_jtrap_throw(p->trap, n->at, "RecursionError",
                       "an expression of more than %d chained operations", ML_JINJA_HEIGHT);
    return n;
}

void ml_jnodes_add(ml_jparser *p, ml_jnodes *l, ml_jnode *n) {
    if (l->n == l->cap) {
        int32_t cap = l->cap ? l->cap * 2 : 4;
        ml_jnode **node = ML_NEW(p->arena, ml_jnode *, cap);
        if (l->n)
            memcpy(node, l->node, (size_t)l->n * sizeof *node);
        l->node = node;
        l->cap = cap;
    }
    l->node[l->n++] = n;
}
