/* jinja_value.h - the values of a template, which behave like Python's.
 *
 * A value is two words, passed by value.  Its data is in the arena of a rendering (or, for
 * literals, of the compiled template) and immutable, except for namespaces and iterators.
 * Functions that fail raise an error (jinja_priv.h) and do not return. */
#ifndef ML_TEXT_JINJA_JINJA_VALUE_H
#define ML_TEXT_JINJA_JINJA_VALUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/str.h"

typedef struct ml_jrun ml_jrun; /* a rendering: jinja_priv.h */
typedef struct ml_jval ml_jval;

typedef enum ml_jkind {
    ML_J_MISSING, /* no value: an unset variable, an argument not given */
    ML_J_UNDEFINED,
    ML_J_NONE,
    ML_J_BOOL,
    ML_J_INT,
    ML_J_BIGINT, /* more than 64 bits: printed and compared by its digits, no arithmetic */
    ML_J_FLOAT,
    ML_J_STR,
    ML_J_LIST,
    ML_J_TUPLE,
    ML_J_DICT,
    ML_J_VIEW, /* dict.keys(), .values(), .items() */
    ML_J_RANGE,
    ML_J_ITER, /* one-shot: the generators of map, select, ... */
    ML_J_NAMESPACE,
    ML_J_MACRO,
    ML_J_METHOD, /* bound to its receiver */
    ML_J_FUNC,
    ML_J_LOOP,
    ML_J_CYCLER,
    ML_J_JOINER,
    ML_J_SELF,
    ML_J_BLOCK, /* self.name */
} ml_jkind;

typedef struct ml_jstr {
    const char *ptr; /* UTF-8 */
    size_t len;
    int64_t n_char;
    bool markup; /* result of `safe` or `escape` */
} ml_jstr;

typedef struct ml_jseq {
    int64_t n;
    ml_jval *item;
    bool group; /* a tuple of groupby, with names for its two items */
} ml_jseq;

typedef struct ml_jdict ml_jdict;
typedef struct ml_jview ml_jview;
typedef struct ml_jrange ml_jrange;
typedef struct ml_jiter ml_jiter;
typedef struct ml_jundef ml_jundef;
typedef struct ml_jmacro ml_jmacro;
typedef struct ml_jmethod ml_jmethod;
typedef struct ml_jnative ml_jnative;
typedef struct ml_jloop ml_jloop;
typedef struct ml_jcycler ml_jcycler;

struct ml_jval {
    ml_jkind kind;
    union {
        bool b;
        int64_t i;
        double f;
        const ml_jstr *s; /* STR, BIGINT */
        const ml_jseq *seq;
        ml_jdict *dict; /* DICT, NAMESPACE */
        const ml_jview *view;
        const ml_jrange *range;
        ml_jiter *iter;
        const ml_jundef *undef;
        const ml_jmacro *macro;
        const ml_jmethod *method;
        const ml_jnative *func;
        ml_jloop *loop;
        ml_jcycler *cycler; /* CYCLER, JOINER */
        const struct ml_jnode *block;
    };
};

typedef struct ml_jpair {
    ml_jval key, value;
    uint64_t hash;
} ml_jpair;

/* In the order of insertion. */
struct ml_jdict {
    int64_t n, cap;
    ml_jpair *pair;
    int32_t *slot; /* [n_slot] 1 + index of a pair; NULL for small dicts */
    int64_t n_slot;
};

typedef enum ml_jview_part { ML_J_KEYS, ML_J_VALUES, ML_J_ITEMS } ml_jview_part;

struct ml_jview {
    const ml_jdict *dict;
    ml_jview_part part;
};

struct ml_jrange {
    int64_t start, stop, step, n;
};

/* The reason why a value is undefined; the message is composed only when it is raised. */
struct ml_jundef {
    const char *error; /* class: UndefinedError or SecurityError */
    ml_str hint;       /* the whole message, if not empty */
    ml_jval obj;       /* MISSING: a variable */
    ml_jval name;
};

/* next() returns false at the end and from then on. */
struct ml_jiter {
    bool (*next)(ml_jrun *r, ml_jiter *it, ml_jval *out);
    const char *type; /* its type name in Python: "generator", ... */
    ml_jval over;     /* the source */
    int64_t pos;      /* how far */
    ml_jiter *inner;  /* an iterator that this one filters */
    void *state;      /* the state of the filter */
    bool done;
};

struct ml_jmethod {
    ml_jval self;
    const ml_jnative *native;
};

struct ml_jcycler {
    int64_t n, pos;
    const ml_jval *item;
};

/* --- construction: jinja_value.c ---------------------------------------------- */

static inline ml_jval ml_jnone(void) {
    return (ml_jval){ .kind = ML_J_NONE };
}
static inline ml_jval ml_jmissing(void) {
    return (ml_jval){ .kind = ML_J_MISSING };
}
static inline ml_jval ml_jbool(bool b) {
    return (ml_jval){ .kind = ML_J_BOOL, .b = b };
}
static inline ml_jval ml_jint(int64_t i) {
    return (ml_jval){ .kind = ML_J_INT, .i = i };
}
static inline ml_jval ml_jfloat(double f) {
    return (ml_jval){ .kind = ML_J_FLOAT, .f = f };
}

ml_jval ml_jstr_view(ml_jrun *r, ml_str s);    /* the bytes must outlive the rendering */
ml_jval ml_jstr_copy(ml_jrun *r, ml_str s);    /* copies */
ml_jval ml_jstr_of(ml_jrun *r, const char *s); /* a string that outlives the rendering */
ml_jval ml_jstr_char(ml_jrun *r, uint32_t c);  /* one code point */
/* The same string, marked as safe or not. */
ml_jval ml_jstr_mark(ml_jrun *r, ml_jval s, bool markup);
static inline ml_str ml_jstr_get(ml_jval s) {
    return (ml_str){ s.s->ptr, s.s->len };
}

ml_jval ml_jseq_new(ml_jrun *r, ml_jkind kind, const ml_jval *item, int64_t n);
ml_jval ml_jview_new(ml_jrun *r, const ml_jdict *d, ml_jview_part part);

/* Items collected one by one. */
typedef struct ml_jitems {
    ml_jval *item;
    int64_t n, cap;
} ml_jitems;
void ml_jitems_add(ml_jrun *r, ml_jitems *l, ml_jval v);
ml_jval ml_jitems_list(ml_jrun *r, const ml_jitems *l);

ml_jdict *ml_jdict_new(ml_jrun *r, int64_t n_expected);
ml_jval ml_jdict_value(ml_jdict *d);
/* TypeError if the key is not hashable. */
void ml_jdict_set(ml_jrun *r, ml_jdict *d, ml_jval key, ml_jval value);
/* NULL: no such key, or an unhashable one. */
const ml_jval *ml_jdict_get(ml_jrun *r, const ml_jdict *d, ml_jval key);
const ml_jval *ml_jdict_name(ml_jrun *r, const ml_jdict *d, ml_str key);

ml_jval ml_jundef_hint(ml_jrun *r, ml_str hint);
ml_jval ml_jundef_name(ml_jrun *r, ml_str name);
ml_jval ml_jundef_attr(ml_jrun *r, ml_jval obj, ml_jval name);
ml_jval ml_jundef_unsafe(ml_jrun *r, ml_jval obj, ml_str name);

/* --- predicates and comparisons: jinja_value.c --------------------------------- */

bool ml_jval_truth(ml_jrun *r, ml_jval v);
bool ml_jval_eq(ml_jrun *r, ml_jval a, ml_jval b);
/* -1, 0, 1; TypeError with the operator if they are not comparable.  NaN compares as 2. */
int ml_jval_cmp(ml_jrun *r, ml_jval a, ml_jval b, const char *op);
/* Sorts by key; equal keys keep their order, also when reversed. */
void ml_jpairs_sort(ml_jrun *r, ml_jpair *p, int64_t n, bool reverse);
/* False: unhashable in Python. */
bool ml_jval_hash(ml_jrun *r, ml_jval v, uint64_t *out);
/* -1: no len(). */
int64_t ml_jval_len(ml_jval v);
const char *ml_jval_type(ml_jval v);
static inline bool ml_jval_is_number(ml_jval v) {
    return v.kind >= ML_J_BOOL && v.kind <= ML_J_FLOAT;
}
/* BOOL or INT as an integer. */
static inline bool ml_jval_i64(ml_jval v, int64_t *out) {
    if (v.kind != ML_J_BOOL && v.kind != ML_J_INT)
        return false;
    *out = v.kind == ML_J_BOOL ? v.b : v.i;
    return true;
}
/* Any number as a double. */
double ml_jval_f64(ml_jval v);

/* --- iteration: jinja_iter.c --------------------------------------------------- */

bool ml_jval_iterable(ml_jval v);
/* TypeError if it is not iterable. */
ml_jiter *ml_jiter_over(ml_jrun *r, ml_jval v);
ml_jiter *ml_jiter_new(ml_jrun *r, bool (*next)(ml_jrun *, ml_jiter *, ml_jval *),
                       const char *type);
ml_jval ml_jiter_value(ml_jiter *it);
bool ml_jiter_next(ml_jrun *r, ml_jiter *it, ml_jval *out);
/* All items, as Python's list(). */
ml_jitems ml_jval_items(ml_jrun *r, ml_jval v);
bool ml_jval_contains(ml_jrun *r, ml_jval box, ml_jval item);

#endif
