/* jinja_ast.h - tokens, and the syntax tree of a template. */
#ifndef ML_TEXT_JINJA_JINJA_AST_H
#define ML_TEXT_JINJA_JINJA_AST_H

#include <setjmp.h>

#include "base/arena.h"
#include "text/jinja/jinja.h"
#include "text/jinja/jinja_value.h"

/* --- faults ------------------------------------------------------------------ */

/* Errors unwind to jinja.c by longjmp: evaluation is a deep recursion in which every step
 * can fail, and all memory is in arenas that jinja.c owns. */
typedef struct ml_jtrap {
    jmp_buf door;
    ml_arena *arena;  /* of the message */
    const char *kind; /* static */
    ml_str message;
    size_t at; /* offset in the source */
} ml_jtrap;

__attribute__((noreturn, format(printf, 4, 5))) void
ml_jtrap_throw(ml_jtrap *t, size_t at, const char *kind, const char *fmt, ...);

/* --- tokens: jinja_lex.c ------------------------------------------------------- */

typedef enum ml_jtok_type {
    ML_JT_END,
    ML_JT_DATA,
    ML_JT_PRINT_BEGIN,
    ML_JT_PRINT_END,
    ML_JT_BLOCK_BEGIN,
    ML_JT_BLOCK_END,
    ML_JT_NAME,
    ML_JT_STRING,
    ML_JT_INTEGER,
    ML_JT_FLOAT,
    ML_JT_OP, /* the text has the operator */
} ml_jtok_type;

typedef struct ml_jtok {
    ml_jtok_type type;
    ml_str text; /* decoded for strings, without underscores for numbers */
    uint32_t at; /* offset in the source */
} ml_jtok;

typedef struct ml_jtoks {
    ml_jtok *tok; /* the last one is END */
    int64_t n, cap;
} ml_jtoks;

/* src: newlines normalised, valid UTF-8. */
void ml_jlex(ml_jtoks *out, ml_arena *a, ml_str src, ml_jtrap *trap);

/* --- tree ---------------------------------------------------------------------- */

typedef struct ml_jnode ml_jnode;
typedef struct ml_jscope ml_jscope;

typedef struct ml_jnodes {
    ml_jnode **node;
    int32_t n, cap;
} ml_jnodes;

/* The comment after each kind lists its children. */
typedef enum ml_jnode_kind {
    /* expressions */
    ML_JN_CONST,    /* value */
    ML_JN_NAME,     /* name, ref; as a target: store */
    ML_JN_NSREF,    /* name, ref, attr: a target */
    ML_JN_ATTR,     /* a . name */
    ML_JN_ITEM,     /* a [b] */
    ML_JN_SLICE,    /* a:b:c, any NULL; only as b of ITEM */
    ML_JN_CALL,     /* a (call) */
    ML_JN_FILTER,   /* a | name (call); a NULL: applied to the text of a block */
    ML_JN_TEST,     /* a is name (call) */
    ML_JN_NOT,      /* a */
    ML_JN_NEG,      /* a */
    ML_JN_POS,      /* a */
    ML_JN_BINARY,   /* a op b */
    ML_JN_AND,      /* a b */
    ML_JN_OR,       /* a b */
    ML_JN_COMPARE,  /* a, then list: COMPARED */
    ML_JN_COMPARED, /* op a */
    ML_JN_CONCAT,   /* list */
    ML_JN_COND,     /* a if b else c; c may be NULL */
    ML_JN_LIST,     /* list */
    ML_JN_TUPLE,    /* list */
    ML_JN_DICT,     /* list: key, value, key, value, ... */
    /* statements */
    ML_JN_DATA,  /* value */
    ML_JN_PRINT, /* list */
    ML_JN_IF,    /* a; list: body, elifs (IF nodes without else), orelse */
    ML_JN_FOR,   /* target, a: iterable, b: test, c: its target; body, orelse; recursive */
    ML_JN_SET,   /* target = a */
    ML_JN_SET_BLOCK,    /* target, a: filter or NULL, body */
    ML_JN_MACRO,        /* name, ref, params, body */
    ML_JN_CALL_BLOCK,   /* a: CALL; params, body */
    ML_JN_GENERATION,   /* body */
    ML_JN_FILTER_BLOCK, /* a: FILTER, body */
    ML_JN_WITH,         /* list: target, value, target, value ...; body */
    ML_JN_BREAK,
    ML_JN_CONTINUE,
    ML_JN_BLOCK,      /* name, body; scoped: local; required */
    ML_JN_AUTOESCAPE, /* a, body */
    ML_JN_LOADER,     /* include, import, extends: there is no loader */
} ml_jnode_kind;

typedef enum ml_jop {
    ML_JO_ADD,
    ML_JO_SUB,
    ML_JO_MUL,
    ML_JO_DIV,
    ML_JO_FLOORDIV,
    ML_JO_MOD,
    ML_JO_POW,
    ML_JO_EQ,
    ML_JO_NE,
    ML_JO_LT,
    ML_JO_LE,
    ML_JO_GT,
    ML_JO_GE,
    ML_JO_IN,
    ML_JO_NOT_IN,
} ml_jop;

/* The place of a variable: `hops` functions outwards, in this slot. */
typedef struct ml_jref {
    int32_t hops, slot;
} ml_jref;

/* A variable that is visible at a scoped block. */
typedef struct ml_jlocal {
    ml_str name;
    ml_jref ref;
} ml_jlocal;

typedef struct ml_jkeyword {
    ml_str name;
    ml_jnode *value;
} ml_jkeyword;

typedef struct ml_jcall_args {
    ml_jnodes pos;
    ml_jkeyword *kw; /* [n_kw] */
    int32_t n_kw;
    ml_jnode *star, *star_star; /* *a, **b */
} ml_jcall_args;

/* The parameters of a macro or call block, and the results of the scope pass for it. */
typedef struct ml_jparams {
    ml_str *name;    /* [n] */
    ml_jnode **dflt; /* [n] NULL: none */
    ml_jref *ref;    /* [n] */
    int32_t n;
    bool takes_caller, takes_kwargs, takes_varargs; /* the body refers to them */
    bool explicit_caller;                           /* it has a parameter named caller */
    ml_jref caller, kwargs, varargs;
} ml_jparams;

struct ml_jnode {
    ml_jnode_kind kind;
    ml_jop op;
    uint32_t at;
    int32_t height; /* height of the subtree, which limits recursion over it */
    ml_str name, attr;
    ml_jref ref;
    ml_jval value;
    ml_jnode *a, *b, *c, *target;
    ml_jnodes list, body, elifs, orelse;
    ml_jcall_args *call;
    ml_jparams *params;
    const ml_jnative *native;        /* FILTER, TEST; NULL: unknown name */
    bool store, recursive, toplevel; /* toplevel: visible in blocks */
    bool scoped, required;           /* BLOCK */
    bool takes_self, takes_super;    /* BLOCK: the body refers to them */
    ml_jref self, super;
    const ml_jlocal *local; /* [n_local] of a scoped block */
    int32_t n_local;
    const ml_jscope *scope, *test_scope, *else_scope; /* scopes of body, b, orelse */
    ml_jref loop;                                     /* FOR: the place of `loop` */
    int32_t n_slot; /* of a node that is a function: MACRO, BLOCK, recursive FOR */
};

/* The initialization of a variable when its scope is entered. */
typedef enum ml_jload {
    ML_JL_PARAM,   /* none: it is already assigned */
    ML_JL_CONTEXT, /* looked up in the variables of the rendering */
    ML_JL_ALIAS,   /* initialized with the value of an outer variable */
    ML_JL_UNSET,
} ml_jload;

typedef struct ml_jentry {
    ml_str name;
    int32_t slot;
    ml_jload load;
    ml_jref from; /* ALIAS */
} ml_jentry;

struct ml_jscope {
    const ml_jentry *entry; /* [n] */
    int32_t n;
};

struct ml_jinja {
    ml_arena arena;
    ml_str src;
    ml_jnodes body;
    const ml_jscope *scope;
    int32_t n_slot;
    ml_jnodes blocks;
    bool uses_self;
    ml_jref self;
};

/* --- making the tree ----------------------------------------------------------- */

#define ML_JINJA_HEIGHT 400  /* height limit of an expression tree */
#define ML_JINJA_NESTING 150 /* nesting limit of brackets and blocks in the source */

typedef struct ml_jparser {
    ml_arena *arena;
    ml_jtrap *trap;
    const ml_jtok *tok; /* the current token */
    int32_t nesting;
    const char *closing[ML_JINJA_NESTING + 1]; /* expected end tags: "a b c" */
    const char *tag[ML_JINJA_NESTING + 1];     /* open blocks */
    int32_t n_closing, n_tag;
} ml_jparser;

/* jinja_parse.c */
void ml_jparse(ml_jnodes *out, ml_jparser *p);

/* jinja_expr.c */
ml_jnode *ml_jparse_expr(ml_jparser *p);
ml_jnode *ml_jparse_or(ml_jparser *p); /* without an inline if */

/* jinja_primary.c */
ml_jnode *ml_jparse_primary(ml_jparser *p, bool namespace);
typedef struct ml_jtuple_rule {
    bool simple;     /* items are primaries: an assignment target */
    bool no_cond;    /* items without inline if */
    bool parens;     /* () is the empty tuple */
    bool namespace;  /* items may be a.b */
    const char *end; /* a keyword that ends the tuple */
} ml_jtuple_rule;
ml_jnode *ml_jparse_tuple(ml_jparser *p, ml_jtuple_rule rule);
ml_jnode *ml_jparse_target(ml_jparser *p, bool namespace, const char *end);

/* jinja_postfix.c: returns the node with its postfix operators, or the node itself. */
ml_jnode *ml_jparse_postfix(ml_jparser *p, ml_jnode *n);
ml_jnode *ml_jparse_filters(ml_jparser *p, ml_jnode *of, bool first_without_pipe);
ml_jnode *ml_jparse_filters_and_tests(ml_jparser *p, ml_jnode *n);

/* jinja_parser.c */
ml_jnode *ml_jnode_new(ml_jparser *p, ml_jnode_kind kind, uint32_t at);
/* Sets the height of n from a, b and c, up to ML_JINJA_HEIGHT; returns n. */
ml_jnode *ml_jnode_grown(ml_jparser *p, ml_jnode *n);
void ml_jnodes_add(ml_jparser *p, ml_jnodes *l, ml_jnode *n);
bool ml_jparser_at(const ml_jparser *p, ml_jtok_type type,
                   const char *text); /* NULL: any */
bool ml_jparser_at_name(const ml_jparser *p, const char *name);
bool ml_jparser_at_op(const ml_jparser *p, const char *op);
bool ml_jparser_skip_name(ml_jparser *p, const char *name);
bool ml_jparser_skip_op(ml_jparser *p, const char *op);
/* Returns the current token, which must have this type (and text, unless NULL), and
 * advances. */
const ml_jtok *ml_jparser_expect(ml_jparser *p, ml_jtok_type type, const char *text);
const ml_jtok *ml_jparser_next(ml_jparser *p);
/* The name of a token in the messages of Jinja. */
ml_str ml_jtok_describe(const ml_jtok *t);
__attribute__((noreturn, format(printf, 3, 4))) void
ml_jparser_fail(const ml_jparser *p, uint32_t at, const char *fmt, ...);
void ml_jparser_enter(ml_jparser *p); /* enters a nesting level, up to ML_JINJA_NESTING */
void ml_jparser_leave(ml_jparser *p);

/* jinja_scope.c: assigns a place to every name; resolves filters and tests. */
void ml_jscope_bind(ml_jinja *t, ml_jtrap *trap);

#endif
