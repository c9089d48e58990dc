/* json_out.h - JSON written piece by piece; commas come by themselves.
 *
 *     ml_json_begin(&o, '{');
 *     ml_json_key(&o, "n");
 *     ml_json_int(&o, 3);
 *     ml_json_end(&o, '}');
 *
 * Numbers of log-probabilities have nine digits, which read back as the same float; what is
 * not finite becomes null, which is what SGLang's writer does with it. */
#ifndef ML_BASE_JSON_OUT_H
#define ML_BASE_JSON_OUT_H

#include <stdint.h>

#include "base/str.h"

typedef struct ml_json_out {
    ml_text *to;
    bool comma; /* a value stands right before, in the same list or object */
} ml_json_out;

void ml_json_begin(ml_json_out *o, char bracket);
void ml_json_end(ml_json_out *o, char bracket);
void ml_json_key(ml_json_out *o, const char *key);

void ml_json_str(ml_json_out *o, ml_str s);
void ml_json_word(ml_json_out *o, const char *s); /* a string; NULL: null */
void ml_json_int(ml_json_out *o, int64_t v);
void ml_json_unsigned(ml_json_out *o, uint64_t v);
void ml_json_float(ml_json_out *o, float v);
void ml_json_double(ml_json_out *o, double v); /* seconds and the like: six digits */
void ml_json_exact(ml_json_out *o, double v);  /* seventeen: reads back as the same */
void ml_json_bool(ml_json_out *o, bool v);
void ml_json_null(ml_json_out *o);
/* Text that is JSON already. */
void ml_json_raw(ml_json_out *o, ml_str json);
void ml_json_ids(ml_json_out *o, const int32_t *id, int32_t n);
void ml_json_floats(ml_json_out *o, const float *v, int32_t n);

/* A key and its value. */
void ml_json_put_str(ml_json_out *o, const char *key, ml_str s);
void ml_json_put_word(ml_json_out *o, const char *key, const char *s);
void ml_json_put_int(ml_json_out *o, const char *key, int64_t v);
void ml_json_put_float(ml_json_out *o, const char *key, float v);
void ml_json_put_bool(ml_json_out *o, const char *key, bool v);

#endif
