/* jinja_priv.h - a rendering: state, limits, calls, and the tables of native functions. */
#ifndef ML_TEXT_JINJA_JINJA_PRIV_H
#define ML_TEXT_JINJA_JINJA_PRIV_H

#include "text/jinja/jinja.h"
#include "text/jinja/jinja_ast.h"
#include "text/unicode.h"

/* The variables of a running function; a macro keeps the frame in which it was defined. */
typedef struct ml_jframe {
    struct ml_jframe *outer;
    ml_jval *slot;
} ml_jframe;

/* A text buffer in the arena. */
typedef struct ml_jbuf {
    char *ptr;
    size_t len, cap;
} ml_jbuf;

typedef struct ml_jspan_list {
    ml_jinja_span *span;
    int64_t n, cap;
} ml_jspan_list;

struct ml_jrun {
    const ml_jinja *t;
    const ml_jinja_opts *opts;
    ml_arena arena;
    ml_jtrap trap;
    size_t at; /* source offset of the node being evaluated */
    int64_t steps, max_steps, max_bytes;
    int32_t depth, max_depth;
    ml_jdict *context;  /* the caller's variables */
    ml_jdict *exported; /* assigned at top level, for blocks */
    ml_jdict *derived;  /* visible in a scoped block and its inner blocks; NULL: none */
    ml_jframe *frame;
    ml_jbuf root, *out; /* out: the current output */
    size_t counted;     /* bytes of root whose code points have been counted */
    int64_t n_counted;
    ml_jspan_list spans;
    bool autoescape;
};

struct ml_jmacro {
    const ml_jnode *node;
    ml_str name;
    ml_jframe *closure;
};

struct ml_jloop {
    const ml_jnode *node;
    ml_jframe *closure; /* of a recursive loop */
    ml_jval iterable;
    ml_jiter *iter;
    int64_t index0, depth0, length; /* length: -1 until it is requested */
    ml_jval before, current, after; /* after: MISSING until it is read ahead */
    ml_jval changed;                /* the last arguments of loop.changed */
};

/* --- limits and faults: jinja_run.c -------------------------------------------- */

__attribute__((noreturn, format(printf, 3, 4))) void ml_jraise(ml_jrun *r, const char *kind,
                                                               const char *fmt, ...);
__attribute__((noreturn)) void ml_jraise_undef(ml_jrun *r, ml_jval undef);
void ml_jrun_step(ml_jrun *r, int64_t n);
void ml_jrun_enter(ml_jrun *r); /* enters a recursion level */
void ml_jrun_leave(ml_jrun *r);
void *ml_jrun_take(ml_jrun *r, size_t n, size_t size);
#define ML_JNEW(run, type, n) ((type *)ml_jrun_take((run), (size_t)(n), sizeof(type)))

void ml_jbuf_add(ml_jrun *r, ml_jbuf *b, const char *s, size_t n);
void ml_jbuf_str(ml_jrun *r, ml_jbuf *b, ml_str s);
void ml_jbuf_char(ml_jrun *r, ml_jbuf *b, uint32_t c);
void ml_jbuf_fill(ml_jrun *r, ml_jbuf *b, uint32_t c, int64_t n);
__attribute__((format(printf, 3, 4))) void ml_jbuf_printf(ml_jrun *r, ml_jbuf *b,
                                                          const char *fmt, ...);
ml_jval ml_jbuf_value(ml_jrun *r, const ml_jbuf *b);
/* A text derived from a value: marked as safe if the value is. */
ml_jval ml_jbuf_like(ml_jrun *r, ml_jval from, const ml_jbuf *b);

/* --- native functions ------------------------------------------------------------ */

typedef struct ml_jkw {
    ml_str name;
    ml_jval value;
} ml_jkw;

#define ML_JARG_MAX 6

typedef struct ml_jargs {
    ml_jval *pos; /* [n] */
    int64_t n;
    ml_jkw *kw; /* [n_kw] */
    int64_t n_kw;
    ml_jval arg[ML_JARG_MAX]; /* in the order of the parameters; MISSING: not given */
} ml_jargs;

/* self: the operand of a filter or test, or the receiver of a method. */
typedef ml_jval ml_jnative_fn(ml_jrun *r, ml_jval self, const ml_jargs *a);

/* A filter, test, method or global function is a row of a table. */
struct ml_jnative {
    const char *name;
    ml_jnative_fn *fn;
    const char *params; /* names, separated by blanks; NULL: any arguments */
    int required;       /* the number of required ones */
    bool is_class;      /* a global that is a class in Python: its type name is "type" */
};

/* Tables end with an entry without a name. */
extern const ml_jnative ml_jfilters_text[], ml_jfilters_number[], ml_jfilters_seq[],
    ml_jfilters_lazy[], ml_jtests[], ml_jglobals[];
extern const ml_jnative ml_jmethods_str[], ml_jmethods_str_search[], ml_jmethods_list[],
    ml_jmethods_tuple[], ml_jmethods_dict[], ml_jmethods_float[], ml_jmethods_int[],
    ml_jmethods_loop[], ml_jmethods_cycler[];
const ml_jnative *ml_jnative_find(const ml_jnative *table, ml_str name);
const ml_jnative *ml_jstr_method_find(ml_str name);
const ml_jnative *ml_jfilter_find(ml_str name);
const ml_jnative *ml_jtest_find(ml_str name);

/* jinja_call.c: binds the arguments to the parameters and calls the function. */
ml_jval ml_jnative_call(ml_jrun *r, const ml_jnative *f, ml_jval self, ml_jargs *a);
/* Calls any callable value. */
ml_jval ml_jval_call(ml_jrun *r, ml_jval f, ml_jargs *a);
ml_jval ml_jmacro_call(ml_jrun *r, const ml_jmacro *m, const ml_jargs *a);

/* Arguments of native functions, with their defaults. */
static inline bool ml_jarg_given(const ml_jargs *a, int i) {
    return a->arg[i].kind != ML_J_MISSING;
}
int64_t ml_jarg_int(ml_jrun *r, const ml_jargs *a, int i, int64_t dflt);
bool ml_jarg_bool(ml_jrun *r, const ml_jargs *a, int i, bool dflt);
ml_str ml_jarg_str(ml_jrun *r, const ml_jargs *a, int i, ml_str dflt);

/* --- the interpreter ------------------------------------------------------------- */

/* jinja_eval.c */
ml_jval ml_jeval(ml_jrun *r, const ml_jnode *n);
ml_jval ml_jeval_call(ml_jrun *r, const ml_jnode *n, ml_jval caller); /* MISSING: none */
ml_jval ml_jeval_filter(ml_jrun *r, const ml_jnode *n, ml_jval text); /* text: of a block */
void ml_jexec_root(ml_jrun *r);                                       /* jinja_exec.c */
void ml_jassign(ml_jrun *r, const ml_jnode *target, ml_jval v);       /* jinja_exec.c */
void ml_jscope_enter(ml_jrun *r, const ml_jscope *s);                 /* jinja_exec.c */
void ml_jscope_leave(ml_jrun *r, const ml_jscope *s);
/* Executes the body and returns its output. */
ml_jval ml_jexec_text(ml_jrun *r, const ml_jnodes *body);
/* self.name(); jinja_exec.c. */
ml_jval ml_jblock_call(ml_jrun *r, const ml_jnode *n);
/* A recursive loop called by its body; jinja_exec.c. */
ml_jval ml_jloop_call(ml_jrun *r, ml_jloop *loop, ml_jval iterable);
ml_jval *ml_jslot(ml_jrun *r, ml_jref ref);
ml_jval ml_jcontext_get(ml_jrun *r, ml_str name); /* MISSING: unknown name */

/* jinja_loop.c */
bool ml_jloop_next(ml_jrun *r, ml_jloop *l, ml_jval *out);
ml_jval ml_jloop_attr(ml_jrun *r, ml_jloop *l, ml_str name);
int64_t ml_jloop_length(ml_jrun *r, ml_jloop *l);

/* jinja_ops.c */
ml_jval ml_jop_binary(ml_jrun *r, ml_jop op, ml_jval a, ml_jval b);
bool ml_jop_compare(ml_jrun *r, ml_jop op, ml_jval a, ml_jval b);
ml_jval ml_jop_negate(ml_jrun *r, ml_jval a, bool minus);

/* jinja_attr.c: a.name, a[key], a[b:c:d] */
ml_jval ml_jval_attr(ml_jrun *r, ml_jval a, ml_str name);
ml_jval ml_jval_attr_only(ml_jrun *r, ml_jval a, ml_str name); /* never an item */
ml_jval ml_jval_item(ml_jrun *r, ml_jval a, ml_jval key);
ml_jval ml_jval_slice(ml_jrun *r, ml_jval a, ml_jval start, ml_jval stop, ml_jval step);

/* jinja_path.c */
/* path: "a.b.0" or a number; MISSING: the item itself.  dflt replaces undefined values. */
ml_jval ml_jval_path(ml_jrun *r, ml_jval item, ml_jval path, ml_jval dflt);
/* Strings compare without case unless requested otherwise. */
ml_jval ml_jval_fold(ml_jrun *r, ml_jval v, bool case_sensitive);

/* --- text ------------------------------------------------------------------------ */

/* jinja_repr.c: str(), repr() */
ml_jval ml_jval_str(ml_jrun *r, ml_jval v);            /* returns a STR; keeps its mark */
void ml_jval_print(ml_jrun *r, ml_jbuf *b, ml_jval v); /* str() */
void ml_jval_repr(ml_jrun *r, ml_jbuf *b, ml_jval v);

/* jinja_json.c */
typedef struct ml_jdump {
    bool ascii, sort_keys, pretty;
    ml_str indent; /* if pretty: the indentation of one level */
    ml_str item_separator, key_separator;
} ml_jdump;
void ml_jval_dump(ml_jrun *r, ml_jbuf *b, ml_jval v, const ml_jdump *o);
/* Converts a value of the caller; strings are not copied. */
ml_jval ml_jval_from_json(ml_jrun *r, const ml_json *v);

/* jinja_string.c: part of a string, with its mark. */
ml_jval ml_jstr_like(ml_jrun *r, ml_jval from, ml_str s);

/* jinja_format.c: text % args, text.format(args) */
ml_jval ml_jformat_percent(ml_jrun *r, ml_jval text, ml_jval args);
ml_jval ml_jformat_braces(ml_jrun *r, ml_jval text, const ml_jargs *a);
ml_jval ml_jformat_map(ml_jrun *r, ml_jval text, ml_jval map); /* text.format_map(map) */

/* jinja_chars.c: characters and searches. */
static inline uint32_t ml_jchar_at(const char *p, size_t *n_byte) {
    const char *q = p;
    uint32_t c = ml_utf8_next(&q);
    *n_byte = (size_t)(q - p);
    return c;
}
bool ml_jchar_is_space(uint32_t c);
bool ml_jchar_is_word(uint32_t c); /* \w */
bool ml_jchar_printable(uint32_t c);
bool ml_jchar_is_id(uint32_t c, bool first); /* in Python identifiers */
/* Python's isalpha(), isdecimal(), isupper(), ... of one character. */
typedef enum ml_jclass {
    ML_J_ALPHA,
    ML_J_DECIMAL,
    ML_J_NUMERIC,
    ML_J_IS_UPPER,
    ML_J_IS_LOWER,
} ml_jclass;
bool ml_jchar_is(uint32_t c, ml_jclass what);
int64_t ml_jstr_count_chars(ml_str s);
/* The byte offset of a code point; 0 <= i <= n_char. */
size_t ml_jstr_offset(ml_jval s, int64_t i);
/* Searches from byte `from` on; SIZE_MAX: not found.  Searches from the end cost steps. */
size_t ml_jstr_find(ml_str hay, ml_str needle, size_t from);
size_t ml_jstr_rfind(ml_jrun *r, ml_str hay, ml_str needle, size_t before);
bool ml_jstr_begins(ml_str s, ml_str with);
bool ml_jstr_ends(ml_str s, ml_str with);
typedef enum ml_jside { ML_J_LEFT = 1, ML_J_RIGHT = 2, ML_J_BOTH = 3 } ml_jside;
/* Strips characters of `set`; set.ptr NULL: whitespace. */
ml_str ml_jstr_strip(ml_str s, ml_str set, ml_jside sides);
typedef enum ml_jcase { ML_J_UPPER, ML_J_LOWER, ML_J_TITLE, ML_J_FOLD } ml_jcase;
void ml_jbuf_case(ml_jrun *r, ml_jbuf *b, ml_str s, ml_jcase how);
void ml_jbuf_title(ml_jrun *r, ml_jbuf *b, ml_str s);      /* str.title() */
void ml_jbuf_capitalize(ml_jrun *r, ml_jbuf *b, ml_str s); /* str.capitalize() */
void ml_jbuf_replace(ml_jrun *r, ml_jbuf *b, ml_str s, ml_str old, ml_str with,
                     int64_t count);                   /* count < 0: all */
void ml_jbuf_escape(ml_jrun *r, ml_jbuf *b, ml_str s); /* HTML */
ml_jval ml_jval_escape(ml_jrun *r, ml_jval v);         /* marked */

#endif
