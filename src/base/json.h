/* json.h - a lossless JSON parser.
 *
 * Numbers keep their source text (1 and 1.0 differ, integers above 2^53 are exact),
 * strings keep their length (NUL is a character), objects keep their order, every value
 * has its line, column and byte span in the source.  Strict RFC 8259: no NaN, no
 * comments, no trailing commas, valid UTF-8 and surrogate pairs only, at most
 * ML_JSON_DEPTH levels.  A file may start with a UTF-8 byte-order mark.
 *
 * thread: a parsed document is immutable. */
#ifndef ML_BASE_JSON_H
#define ML_BASE_JSON_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/err.h"
#include "base/str.h"

#define ML_JSON_DEPTH 256

typedef enum ml_json_type {
    ML_JSON_NULL,
    ML_JSON_FALSE,
    ML_JSON_TRUE,
    ML_JSON_NUMBER,
    ML_JSON_STRING,
    ML_JSON_ARRAY,
    ML_JSON_OBJECT,
} ml_json_type;

typedef struct ml_json {
    ml_json_type type;
    int32_t n;                   /* children of an array or object */
    ml_str key;                  /* decoded; inside an object only */
    ml_str text;                 /* NUMBER: source text; STRING: decoded bytes */
    const struct ml_json *child; /* first child, in source order */
    const struct ml_json *next;  /* next sibling */
    uint32_t line, column;       /* of the value's first byte, from 1 */
    size_t begin, end;           /* byte span of the value in the source */
} ml_json;

/* Parses all of src.  Error messages begin with `name` (a path): "name:line:col: ...".
 * The document is allocated in `a`; strings and numbers are views of `src` or `a`, so src
 * must outlive the document. */
ml_status ml_json_parse(const ml_json **out, ml_arena *a, ml_str src, const char *name,
                        ml_err *err);

/* The same, but accepts Infinity, -Infinity and NaN as (non-finite) numbers: Python
 * writes them, and some config.json contain them. */
ml_status ml_json_parse_python(const ml_json **out, ml_arena *a, ml_str src,
                               const char *name, ml_err *err);

/* The last member with this key (as in Python's json), or NULL, also if obj is not an
 * object. */
const ml_json *ml_json_get(const ml_json *obj, const char *key);

/* Exact: false if the value is not a number, has a fraction or exponent, or does not
 * fit. */
bool ml_json_i64(const ml_json *v, int64_t *out);
/* Correctly rounded; false if the value is not a number or overflows to infinity. */
bool ml_json_f64(const ml_json *v, double *out);

/* "null", "true", "a number", "a string", "an array", "an object": for messages. */
const char *ml_json_what(const ml_json *v);

/* Appends s as a JSON string with quotes; as Python's json.dumps(ensure_ascii=False). */
void ml_json_quote(ml_text *t, ml_str s);
/* A finite number, as the shortest text that parses to the same value. */
void ml_json_number(ml_text *t, double x);

#endif
