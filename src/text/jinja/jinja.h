/* jinja.h - templates in the Jinja language, as Hugging Face chat templates use it.
 *
 * A template is compiled once and rendered any number of times, each time with variables
 * given as JSON.  Meaning and error texts are those of Jinja2 3.1 in the environment that
 * transformers sets up: immutable sandbox, trim_blocks, lstrip_blocks, loop controls, the
 * `generation` tag, `tojson` without HTML escapes, raise_exception and strftime_now.
 * docs/TEXT.md lists what is left out.
 *
 * Templates come from strangers: steps, memory and depth of a rendering are bounded.
 *
 * thread: a compiled template is immutable; any number of threads may render it. */
#ifndef ML_TEXT_JINJA_JINJA_H
#define ML_TEXT_JINJA_JINJA_H

#include <stdint.h>
#include <time.h>

#include "base/arena.h"
#include "base/err.h"
#include "base/json.h"
#include "base/str.h"

typedef struct ml_jinja ml_jinja;

/* What went wrong, as Python would name it; for callers that tell errors apart.  `kind` is a
 * class (TemplateSyntaxError, UndefinedError, TypeError, ...) or LimitError, which is ours. */
typedef struct ml_jinja_fault {
    const char *kind; /* static; NULL: nothing went wrong */
    ml_text message;
    uint32_t line, column; /* in the template, from 1; columns count code points */
} ml_jinja_fault;

void ml_jinja_fault_release(ml_jinja_fault *f); /* zeros are fine */

#define ML_JINJA_SOURCE (1 << 18) /* bytes of a template */

/* Fills err with "line L, column C: Class: message" and, unless NULL, the zeroed *fault. */
ml_status ml_jinja_compile(ml_jinja **out, ml_str source, ml_jinja_fault *fault,
                           ml_err *err);
void ml_jinja_free(ml_jinja *t);

typedef struct ml_jinja_var {
    ml_str name;
    const ml_json *value;
} ml_jinja_var;

typedef struct ml_jinja_opts {
    const ml_jinja_var *var; /* [n_var]; of two with the same name the later one counts */
    int64_t n_var;
    const struct tm *now; /* what strftime_now sees; NULL: local time */
    int64_t max_steps;    /* 0: ML_JINJA_STEPS; and so on */
    int64_t max_bytes;
    int32_t max_depth;
} ml_jinja_opts;

#define ML_JINJA_STEPS (int64_t)50000000 /* seconds, at worst */
#define ML_JINJA_BYTES (int64_t)(1 << 28)
#define ML_JINJA_DEPTH 2500

/* A {% generation %} block: the text it gave, [begin, end), counted as transformers does, in
 * the order in which the blocks finish. */
typedef struct ml_jinja_span {
    int64_t begin, end; /* code points */
    int64_t begin_byte, end_byte;
} ml_jinja_span;

typedef struct ml_jinja_text {
    ml_str text;
    const ml_jinja_span *span; /* [n_span] */
    int64_t n_span;
} ml_jinja_text;

/* The text lives in `a`.  ML_EFORMAT: the template raised an error. */
ml_status ml_jinja_render(ml_jinja_text *out, ml_arena *a, const ml_jinja *t,
                          const ml_jinja_opts *opts, ml_jinja_fault *fault, ml_err *err);

#endif
