/* Parses statements. */
#include <string.h>

#include "text/jinja/jinja_priv.h"

static void parse_until(ml_jparser *p, ml_jnodes *out, const char *closing);

/* True if word is one of the words of list, which are separated by blanks. */
static bool in_words(const char *list, ml_str word) {
    while (*list) {
        size_t n = strcspn(list, " ");
        if (ml_str_eq((ml_str){ list, n }, word))
            return true;
        list += n + strspn(list + n, " ");
    }
    return false;
}

/* 'a' or 'b' or 'c' */
static void describe_words(ml_text *t, const char *list) {
    while (*list) {
        size_t n = strcspn(list, " ");
        ml_text_printf(t, "'%.*s'", (int)n, list);
        list += n + strspn(list + n, " ");
        if (*list)
            ml_text_printf(t, " or ");
    }
}

static _Noreturn void fail_text(ml_jparser *p, uint32_t at, ml_text *t) {
    const char *message = ml_arena_str(p->arena, t->ptr, t->len);
    ml_text_release(t);
    ml_jparser_fail(p, at, "%s", message);
}

/* name NULL: the template ended unexpectedly. */
static _Noreturn void fail_tag(ml_jparser *p, uint32_t at, const ml_str *name) {
    ml_text t = { 0 };
    bool misplaced = false;

    if (name)
        ml_text_printf(&t, "Encountered unknown tag '%.*s'.", (int)name->len, name->ptr);
    else
        ml_text_printf(&t, "Unexpected end of template.");
    for (int32_t i = 0; i < p->n_closing && name; i++)
        misplaced = misplaced || in_words(p->closing[i], *name);
    if (p->n_closing) {
        ml_text_printf(&t, misplaced ? " You probably made a nesting mistake. Jinja is "
                                       "expecting this tag, but currently looking for "
                                     : " Jinja was looking for the following tags: ");
        describe_words(&t, p->closing[p->n_closing - 1]);
        ml_text_printf(&t, ".");
    }
    if (p->n_tag)
        ml_text_printf(&t, " The innermost block that needs to be closed is '%s'.",
                       p->tag[p->n_tag - 1]);
    fail_text(p, at, &t);
}

/* Parses the body after a tag, up to one of the closing tags, which becomes the current
 * token. */
static void parse_body(ml_jparser *p, ml_jnodes *out, const char *closing) {
    ml_jparser_skip_op(p, ":");
    ml_jparser_expect(p, ML_JT_BLOCK_END, NULL);
    parse_until(p, out, closing);
    if (p->tok->type == ML_JT_END) {
        p->closing[p->n_closing++] = closing;
        fail_tag(p, p->tok->at, NULL);
    }
}

/* The same, and skips the closing tag, of which there is one kind. */
static void parse_block_body(ml_jparser *p, ml_jnodes *out, const char *closing) {
    parse_body(p, out, closing);
    ml_jparser_next(p);
}

static ml_jnode *parse_for(ml_jparser *p, uint32_t at) {
    ml_jnode *n = ml_jnode_new(p, ML_JN_FOR, at);

    n->target = ml_jparse_target(p, false, "in");
    ml_jparser_expect(p, ML_JT_NAME, "in");
    n->a = ml_jparse_tuple(p, (ml_jtuple_rule){ .no_cond = true, .end = "recursive" });
    if (ml_jparser_skip_name(p, "if"))
        n->b = ml_jparse_expr(p);
    n->recursive = ml_jparser_skip_name(p, "recursive");
    parse_body(p, &n->body, "endfor else");
    if (ml_str_is(ml_jparser_next(p)->text, "else"))
        parse_block_body(p, &n->orelse, "endfor");
    return n;
}

static ml_jnode *parse_if(ml_jparser *p, uint32_t at) {
    ml_jnode *first = ml_jnode_new(p, ML_JN_IF, at), *n = first;

    for (;;) {
        ml_str word;
        n->a = ml_jparse_tuple(p, (ml_jtuple_rule){ .no_cond = true });
        parse_body(p, &n->body, "elif else endif");
        word = p->tok->text;
        at = ml_jparser_next(p)->at;
        if (ml_str_is(word, "elif")) {
            n = ml_jnode_new(p, ML_JN_IF, at);
            ml_jnodes_add(p, &first->elifs, n);
            continue;
        }
        if (ml_str_is(word, "else"))
            parse_block_body(p, &first->orelse, "endif");
        return first;
    }
}

static ml_jnode *parse_set(ml_jparser *p, uint32_t at) {
    ml_jnode *n = ml_jnode_new(p, ML_JN_SET, at);

    n->target = ml_jparse_target(p, true, NULL);
    if (ml_jparser_skip_op(p, "=")) {
        n->a = ml_jparse_tuple(p, (ml_jtuple_rule){ 0 });
        return n;
    }
    n->kind = ML_JN_SET_BLOCK;
    n->a = ml_jparse_filters(p, NULL, false);
    parse_block_body(p, &n->body, "endset");
    return n;
}

static ml_str parse_plain_name(ml_jparser *p) {
    static const char constants[] = "true false none True False None";
    const ml_jtok *t = ml_jparser_expect(p, ML_JT_NAME, NULL);

    if (in_words(constants, t->text))
        ml_jparser_fail(p, t->at, "can't assign to 'name'");
    return t->text;
}

static ml_jparams *parse_params(ml_jparser *p) {
    ml_jparams *m = ML_NEW(p->arena, ml_jparams, 1);
    bool had_default = false;

    ml_jparser_expect(p, ML_JT_OP, "(");
    while (!ml_jparser_at_op(p, ")")) {
        ml_str *name = ML_NEW(p->arena, ml_str, m->n + 1);
        ml_jnode **dflt = ML_NEW(p->arena, ml_jnode *, m->n + 1);
        if (m->n) {
            ml_jparser_expect(p, ML_JT_OP, ",");
            memcpy(name, m->name, (size_t)m->n * sizeof *name);
            memcpy(dflt, m->dflt, (size_t)m->n * sizeof *dflt);
        }
        name[m->n] = parse_plain_name(p);
        if (ml_jparser_skip_op(p, "=")) {
            dflt[m->n] = ml_jparse_expr(p);
            had_default = true;
        } else if (had_default) {
            ml_jparser_fail(p, p->tok->at, "non-default argument follows default argument");
        }
        m->name = name;
        m->dflt = dflt;
        m->n++;
    }
    ml_jparser_expect(p, ML_JT_OP, ")");
    m->ref = ML_NEW(p->arena, ml_jref, m->n);
    return m;
}

static ml_jnode *parse_macro(ml_jparser *p, uint32_t at) {
    ml_jnode *n = ml_jnode_new(p, ML_JN_MACRO, at);

    n->name = parse_plain_name(p);
    n->params = parse_params(p);
    parse_block_body(p, &n->body, "endmacro");
    return n;
}

static ml_jnode *parse_call_block(ml_jparser *p, uint32_t at) {
    ml_jnode *n = ml_jnode_new(p, ML_JN_CALL_BLOCK, at);

    n->params =
        ml_jparser_at_op(p, "(") ? parse_params(p) : ML_NEW(p->arena, ml_jparams, 1);
    n->a = ml_jparse_expr(p);
    if (n->a->kind != ML_JN_CALL)
        ml_jparser_fail(p, at, "expected call");
    parse_block_body(p, &n->body, "endcall");
    return n;
}

static ml_jnode *parse_generation(ml_jparser *p, uint32_t at) {
    ml_jnode *n = ml_jnode_new(p, ML_JN_GENERATION, at);

    n->params = ML_NEW(p->arena, ml_jparams, 1);
    parse_block_body(p, &n->body, "endgeneration");
    return n;
}

static ml_jnode *parse_filter_block(ml_jparser *p, uint32_t at) {
    ml_jnode *n = ml_jnode_new(p, ML_JN_FILTER_BLOCK, at);

    n->a = ml_jparse_filters(p, NULL, true);
    parse_block_body(p, &n->body, "endfilter");
    return n;
}

static ml_jnode *parse_with(ml_jparser *p, uint32_t at) {
    ml_jnode *n = ml_jnode_new(p, ML_JN_WITH, at);

    while (p->tok->type != ML_JT_BLOCK_END) {
        if (n->list.n)
            ml_jparser_expect(p, ML_JT_OP, ",");
        ml_jnodes_add(p, &n->list, ml_jparse_target(p, false, NULL));
        ml_jparser_expect(p, ML_JT_OP, "=");
        ml_jnodes_add(p, &n->list, ml_jparse_expr(p));
    }
    parse_block_body(p, &n->body, "endwith");
    return n;
}

static bool is_blank(ml_str s) {
    const char *p = s.ptr, *end = p + s.len;

    while (p < end)
        if (!ml_jchar_is_space(ml_utf8_next(&p)))
            return false;
    return true;
}

static bool is_white(const ml_jnodes *body) {
    for (int32_t i = 0; i < body->n; i++) {
        const ml_jnode *n = body->node[i];
        if (n->kind != ML_JN_DATA || !is_blank(ml_jstr_get(n->value)))
            return false;
    }
    return true;
}

static ml_jnode *parse_block(ml_jparser *p, uint32_t at) {
    ml_jnode *n = ml_jnode_new(p, ML_JN_BLOCK, at);

    n->name = ml_jparser_expect(p, ML_JT_NAME, NULL)->text;
    n->scoped = ml_jparser_skip_name(p, "scoped");
    n->required = ml_jparser_skip_name(p, "required");
    if (ml_jparser_at_op(p, "-"))
        ml_jparser_fail(
            p, p->tok->at,
            "Block names in Jinja have to be valid Python identifiers and may not "
            "contain hyphens, use an underscore instead.");
    parse_block_body(p, &n->body, "endblock");
    if (n->required && !is_white(&n->body))
        ml_jparser_fail(p, p->tok->at,
                        "Required blocks can only contain comments or whitespace");
    if (p->tok->type == ML_JT_NAME && ml_str_eq(p->tok->text, n->name))
        ml_jparser_next(p);
    return n;
}

static ml_jnode *parse_autoescape(ml_jparser *p, uint32_t at) {
    ml_jnode *n = ml_jnode_new(p, ML_JN_AUTOESCAPE, at);

    n->a = ml_jparse_expr(p);
    parse_block_body(p, &n->body, "endautoescape");
    return n;
}

/* {{ a, b }} prints a tuple; */
static ml_jnode *parse_output(ml_jparser *p, uint32_t at) {
    ml_jnode *n = ml_jnode_new(p, ML_JN_PRINT, at);
    ml_jnodes_add(p, &n->list, ml_jparse_tuple(p, (ml_jtuple_rule){ 0 }));
    return n;
}

/* {% print a, b %} prints a, then b. */
static ml_jnode *parse_print(ml_jparser *p, uint32_t at) {
    ml_jnode *n = ml_jnode_new(p, ML_JN_PRINT, at);

    while (p->tok->type != ML_JT_BLOCK_END) {
        if (n->list.n)
            ml_jparser_expect(p, ML_JT_OP, ",");
        ml_jnodes_add(p, &n->list, ml_jparse_expr(p));
    }
    return n;
}

static ml_jnode *parse_break(ml_jparser *p, uint32_t at) {
    return ml_jnode_new(p, ML_JN_BREAK, at);
}

static ml_jnode *parse_continue(ml_jparser *p, uint32_t at) {
    return ml_jnode_new(p, ML_JN_CONTINUE, at);
}

/* There is no loader for other templates; as in Jinja, the tag fails when it is
 * executed. */
static ml_jnode *parse_loader(ml_jparser *p, uint32_t at) {
    ml_jnode *n = ml_jnode_new(p, ML_JN_LOADER, at);
    while (p->tok->type != ML_JT_BLOCK_END && p->tok->type != ML_JT_END)
        ml_jparser_next(p);
    return n;
}

static const struct {
    const char *name;
    ml_jnode *(*parse)(ml_jparser *p, uint32_t at);
} tags[] = {
    { "for", parse_for },
    { "if", parse_if },
    { "set", parse_set },
    { "macro", parse_macro },
    { "call", parse_call_block },
    { "generation", parse_generation },
    { "filter", parse_filter_block },
    { "with", parse_with },
    { "block", parse_block },
    { "autoescape", parse_autoescape },
    { "print", parse_print },
    { "break", parse_break },
    { "continue", parse_continue },
    { "include", parse_loader },
    { "import", parse_loader },
    { "from", parse_loader },
    { "extends", parse_loader },
};

static ml_jnode *parse_statement(ml_jparser *p) {
    const ml_jtok *t = p->tok;
    ml_jnode *n = NULL;

    if (t->type != ML_JT_NAME)
        ml_jparser_fail(p, t->at, "tag name expected");
    ml_jparser_enter(p);
    for (size_t i = 0; i < sizeof tags / sizeof *tags && !n; i++) {
        if (!ml_str_is(t->text, tags[i].name))
            continue;
        p->tag[p->n_tag++] = tags[i].name;
        ml_jparser_next(p);
        n = tags[i].parse(p, t->at);
        p->n_tag--;
    }
    if (!n)
        fail_tag(p, t->at, &t->text);
    ml_jparser_leave(p);
    return n;
}

static ml_jnode *parse_data(ml_jparser *p) {
    const ml_jtok *t = ml_jparser_next(p);
    ml_jnode *n = ml_jnode_new(p, ML_JN_DATA, t->at);
    ml_jstr *s = ML_NEW(p->arena, ml_jstr, 1);

    *s = (ml_jstr){ .ptr = t->text.ptr, .len = t->text.len };
    n->value = (ml_jval){ .kind = ML_J_STR, .s = s };
    return n;
}

/* closing NULL: to the end of the template. */
static void parse_until(ml_jparser *p, ml_jnodes *out, const char *closing) {
    if (closing)
        p->closing[p->n_closing++] = closing;
    while (p->tok->type != ML_JT_END) {
        if (p->tok->type == ML_JT_DATA) {
            ml_jnodes_add(p, out, parse_data(p));
        } else if (p->tok->type == ML_JT_PRINT_BEGIN) {
            ml_jnodes_add(p, out, parse_output(p, ml_jparser_next(p)->at));
            ml_jparser_expect(p, ML_JT_PRINT_END, NULL);
        } else {
            ml_jparser_expect(p, ML_JT_BLOCK_BEGIN, NULL);
            if (closing && p->tok->type == ML_JT_NAME && in_words(closing, p->tok->text))
                break;
            ml_jnodes_add(p, out, parse_statement(p));
            ml_jparser_expect(p, ML_JT_BLOCK_END, NULL);
        }
    }
    if (closing)
        p->n_closing--;
}

void ml_jparse(ml_jnodes *out, ml_jparser *p) {
    parse_until(p, out, NULL);
}
