/* jinja.h - templates in the Jinja language, as Hugging Face chat templates use it.
 *
 * A template is compiled once and rendered any number of times, each time with variables
 * given as JSON.  Semantics and error messages are those of Jinja2 3.1 in the environment
 * that transformers configures: immutable sandbox, trim_blocks, lstrip_blocks, loop
 * controls, the `generation` tag, `tojson` without HTML escapes, raise_exception and
 * strftime_now.  docs/TEXT.md lists the omissions.
 *
 * Templates are untrusted input: steps, memory and recursion depth of a rendering are
 * limited.
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

/* An error as Python would name it, for callers that distinguish errors.  `kind` is a class
 * (TemplateSyntaxError, UndefinedError, TypeError, ...) or LimitError, which is our own. */
typedef struct ml_jinja_fault {
    const char *kind; /* static; NULL: no error */
    ml_text message;
    uint32_t line, column; /* in the template, counted from 1; columns count code points */
} ml_jinja_fault;

void ml_jinja_fault_release(ml_jinja_fault *f); /* zeros are allowed */

#define ML_JINJA_SOURCE (1 << 18) /* size limit of a template in bytes */

/* Compiles a template.  On an error, sets err to "line L, column C: Class: message" and,
 * unless NULL, fills the zeroed *fault. */
ml_status ml_jinja_compile(ml_jinja **out, ml_str source, ml_jinja_fault *fault,
                           ml_err *err);
void ml_jinja_free(ml_jinja *t);

typedef struct ml_jinja_var {
    ml_str name;
    const ml_json *value;
} ml_jinja_var;

typedef struct ml_jinja_opts {
    const ml_jinja_var *var; /* [n_var]; the last of several with the same name is used */
    int64_t n_var;
    const struct tm *now; /* the time of strftime_now; NULL: local time */
    int64_t max_steps;    /* 0: ML_JINJA_STEPS, and likewise for the others */
    int64_t max_bytes;
    int32_t max_depth;
} ml_jinja_opts;

#define ML_JINJA_STEPS (int64_t)50000000 /* a few seconds at most */
#define ML_JINJA_BYTES (int64_t)(1 << 28)
#define ML_JINJA_DEPTH 2500

/* The text of a {% generation %} block, [begin, end), counted as in transformers, in the
 * order in which the blocks end. */
typedef struct ml_jinja_span {
    int64_t begin, end; /* code points */
    int64_t begin_byte, end_byte;
} ml_jinja_span;

typedef struct ml_jinja_text {
    ml_str text;
    const ml_jinja_span *span; /* [n_span] */
    int64_t n_span;
} ml_jinja_text;

/* The text is allocated in `a`.  ML_EFORMAT: the template raised an error. */
ml_status ml_jinja_render(ml_jinja_text *out, ml_arena *a, const ml_jinja *t,
                          const ml_jinja_opts *opts, ml_jinja_fault *fault, ml_err *err);

#endif
