/* jinja_names.h - the names of a scope while their places are assigned; see
 * jinja_scope.c. */
#ifndef ML_TEXT_JINJA_JINJA_NAMES_H
#define ML_TEXT_JINJA_JINJA_NAMES_H

#include "text/jinja/jinja_ast.h"

/* A function: the template, a macro, a call block, a recursive loop.  Its scopes share a
 * frame of slots. */
typedef struct ml_jfn {
    struct ml_jfn *outer;
    int32_t n_slot;
    int32_t n_loop; /* enclosing loops that break and continue can refer to */
} ml_jfn;

/* What is known about a name at a point of the survey. */
typedef struct ml_jknown {
    bool here; /* the scope defines it */
    bool written;
    ml_jload load;
    ml_jref from;
} ml_jknown;

typedef struct ml_jnames {
    ml_arena *arena;
    struct ml_jnames *outer;
    ml_jfn *fn;
    ml_str *name; /* [n] */
    int32_t *slot;
    ml_jknown *now; /* [n] replaced and merged at branches */
    int32_t n, cap;
} ml_jnames;

/* Begins a scope within `outer`, without names. */
ml_jnames *ml_jnames_new(ml_arena *a, ml_jnames *outer, ml_jfn *fn);
/* Finds the place of the name, seen from `from`; false if no scope has it. */
bool ml_jnames_find(const ml_jnames *s, const ml_jfn *from, ml_str name, ml_jref *out);
/* Records that the name is read, is written, or has a value when the scope is entered. */
void ml_jnames_read(ml_jnames *s, ml_str name);
void ml_jnames_write(ml_jnames *s, ml_str name);
ml_jref ml_jnames_declare(ml_jnames *s, ml_str name);
/* The part of it that renderings need. */
const ml_jscope *ml_jnames_sealed(const ml_jnames *s);

/* jinja_survey.c: records the names that are read and written, in order, without inner
 * scopes. */
void ml_jsurvey(ml_jnames *s, const ml_jnode *n); /* NULL: nothing */
void ml_jsurvey_all(ml_jnames *s, const ml_jnodes *l);
void ml_jsurvey_target(ml_jnames *s, const ml_jnode *n, bool as_param);
/* True if the body reads the name before it assigns it. */
bool ml_jmentions(const ml_jnodes *body, const char *name);

#endif
