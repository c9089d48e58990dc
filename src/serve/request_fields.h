/* request_fields.h - reads the members of a JSON object into a struct, driven by a table.
 *
 * A member without a row in the table is an error that names it: no request field is
 * ignored silently.  null is the same as absent.  A field that other servers have and this
 * one does not has a row with the reason; empty values (false, 0, "", [], {}) pass. */
#ifndef ML_SERVE_REQUEST_FIELDS_H
#define ML_SERVE_REQUEST_FIELDS_H

/* Bytes of a string in a list such as "stop". */
#define ML_MAX_STRING 4096

#include "base/json.h"

typedef enum ml_field_type {
    ML_FIELD_BOOL,   /* bool */
    ML_FIELD_I32,    /* int32_t */
    ML_FIELD_F32,    /* float */
    ML_FIELD_STR,    /* ml_str */
    ML_FIELD_JSON,   /* const ml_json *: the caller interprets it */
    ML_FIELD_IGNORE, /* accepted, no effect */
    ML_FIELD_REFUSE, /* rejected, see why */
    ML_FIELD_MORE,   /* not a field: includes the rows of more */
} ml_field_type;

typedef struct ml_field {
    const char *name;
    ml_field_type type;
    size_t at;       /* offset in the struct */
    double min, max; /* bounds of numbers, when min < max */
    const char *why; /* REFUSE: the reason, a sentence without its period */
    const struct ml_field *more;
} ml_field;

/* A row without a name ends the table.  Error messages begin with `where`, for example
 * "sampling_params". */
ml_status ml_fields_read(void *out, const ml_field *rows, const ml_json *object,
                         const char *where, ml_err *err);

/* Rejects a list of more than `max` elements; the error has its name and both numbers. */
ml_status ml_count_check(const ml_json *v, int32_t max, const char *where, ml_err *err);

/* One string or a list of at most `max`, none empty; v NULL: no strings.  Copied to `a`. */
ml_status ml_strings_read(const ml_str **out, int32_t *n, const ml_json *v, int32_t max,
                          const char *where, ml_arena *a, ml_err *err);
/* A list of at most `max` token ids in [0, n_vocab). */
ml_status ml_ids_read(const int32_t **out, int32_t *n, const ml_json *v, int32_t n_vocab,
                      int32_t max, const char *where, ml_arena *a, ml_err *err);

/* A copy in `a`. */
ml_str ml_str_keep(ml_arena *a, ml_str s);

bool ml_json_is_bool(const ml_json *v);

#endif
