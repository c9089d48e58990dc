/* jinja_names.h - what is known of the names of a scope while places are given to them.
 *
 * jinja_scope.c says what for. */
#ifndef ML_TEXT_JINJA_JINJA_NAMES_H
#define ML_TEXT_JINJA_JINJA_NAMES_H

#include "text/jinja/jinja_ast.h"

/* The template, a macro, a call block, a recursive loop: whose scopes share a frame of slots. */
typedef struct ml_jfn {
    struct ml_jfn *outer;
    int32_t n_slot;
    int32_t n_loop; /* loops around here that break and continue can mean */
} ml_jfn;

/* What is known of a name at a point of the survey. */
typedef struct ml_jknown {
    bool here; /* the scope has it */
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

/* The names of a scope within `outer`, none yet. */
ml_jnames *ml_jnames_new(ml_arena *a, ml_jnames *outer, ml_jfn *fn);
/* Where the name lives, seen from `from`; false when no scope has it. */
bool ml_jnames_find(const ml_jnames *s, const ml_jfn *from, ml_str name, ml_jref *out);
/* The name is read, written, or has a value when the scope is entered. */
void ml_jnames_read(ml_jnames *s, ml_str name);
void ml_jnames_write(ml_jnames *s, ml_str name);
ml_jref ml_jnames_declare(ml_jnames *s, ml_str name);
/* What is left of it for renderings. */
const ml_jscope *ml_jnames_sealed(const ml_jnames *s);

/* jinja_survey.c: what is read and written, in order, without inner scopes. */
void ml_jsurvey(ml_jnames *s, const ml_jnode *n); /* NULL: nothing */
void ml_jsurvey_all(ml_jnames *s, const ml_jnodes *l);
void ml_jsurvey_target(ml_jnames *s, const ml_jnode *n, bool as_param);
/* True when the body reads the name, which it has not assigned before. */
bool ml_jmentions(const ml_jnodes *body, const char *name);

#endif
