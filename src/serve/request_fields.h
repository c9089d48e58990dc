/* request_fields.h - the members of a JSON object, read into a struct by rows.
 *
 * A member without a row is refused with its name: nothing that a client asks for is passed
 * over in silence.  null is the same as absent.  What is known elsewhere and not offered here
 * has a row with the reason; asking for nothing (false, 0, "", [], {}) is fine even there. */
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
    ML_FIELD_JSON,   /* const ml_json *: looked at by the caller */
    ML_FIELD_IGNORE, /* changes nothing here */
    ML_FIELD_REFUSE, /* see why */
    ML_FIELD_MORE,   /* no field: further rows, see more */
} ml_field_type;

typedef struct ml_field {
    const char *name;
    ml_field_type type;
    size_t at;       /* offset in the struct */
    double min, max; /* bounds of numbers, when min < max */
    const char *why; /* REFUSE: the reason, a sentence without its period */
    const struct ml_field *more;
} ml_field;

/* Rows end in one without a name.  `where` opens messages: "sampling_params". */
ml_status ml_fields_read(void *out, const ml_field *rows, const ml_json *object,
                         const char *where, ml_err *err);

/* A list of more than `max` elements is refused with its name and both numbers. */
ml_status ml_count_check(const ml_json *v, int32_t max, const char *where, ml_err *err);

/* One string or a list of at most `max` of them, none empty; v NULL: none.  Copies, in `a`. */
ml_status ml_strings_read(const ml_str **out, int32_t *n, const ml_json *v, int32_t max,
                          const char *where, ml_arena *a, ml_err *err);
/* A list of at most `max` token ids in [0, n_vocab). */
ml_status ml_ids_read(const int32_t **out, int32_t *n, const ml_json *v, int32_t n_vocab,
                      int32_t max, const char *where, ml_arena *a, ml_err *err);

/* A copy in `a`. */
ml_str ml_str_keep(ml_arena *a, ml_str s);

bool ml_json_is_bool(const ml_json *v);

#endif
