/* json_out.h - a JSON writer; it inserts commas.
 *
 *     ml_json_begin(&o, '{');
 *     ml_json_key(&o, "n");
 *     ml_json_int(&o, 3);
 *     ml_json_end(&o, '}');
 *
 * Log-probs are written with nine digits, which parse to the same float.  Non-finite
 * numbers become null, as in SGLang. */
#ifndef ML_BASE_JSON_OUT_H
#define ML_BASE_JSON_OUT_H

#include <stdint.h>

#include "base/json.h"
#include "base/str.h"

typedef struct ml_json_out {
    ml_text *to;
    bool comma; /* a value precedes in the same list or object */
} ml_json_out;

void ml_json_begin(ml_json_out *o, char bracket);
void ml_json_end(ml_json_out *o, char bracket);
void ml_json_key(ml_json_out *o, const char *key);

void ml_json_str(ml_json_out *o, ml_str s);
void ml_json_word(ml_json_out *o, const char *s); /* a string; NULL: null */
void ml_json_int(ml_json_out *o, int64_t v);
void ml_json_unsigned(ml_json_out *o, uint64_t v);
void ml_json_float(ml_json_out *o, float v);
void ml_json_double(ml_json_out *o, double v); /* six digits, for seconds and the like */
void ml_json_exact(ml_json_out *o, double v);  /* seventeen digits: parses to the same
                                                  value */
void ml_json_bool(ml_json_out *o, bool v);
void ml_json_null(ml_json_out *o);
/* Appends text that is already JSON. */
void ml_json_raw(ml_json_out *o, ml_str json);
void ml_json_ids(ml_json_out *o, const int32_t *id, int32_t n);
void ml_json_floats(ml_json_out *o, const float *v, int32_t n);

/* A key and its value. */
void ml_json_put_str(ml_json_out *o, const char *key, ml_str s);
void ml_json_put_word(ml_json_out *o, const char *key, const char *s);
void ml_json_put_int(ml_json_out *o, const char *key, int64_t v);
void ml_json_put_float(ml_json_out *o, const char *key, float v);
void ml_json_put_bool(ml_json_out *o, const char *key, bool v);

/* Appends a parsed value, with ", " and ": " between its parts. */
void ml_json_write(ml_text *t, const ml_json *v);

#endif
