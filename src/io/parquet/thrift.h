/* thrift.h - reads Thrift's compact protocol, in which parquet files write their metadata.
 *
 * A struct is a sequence of fields, each with an id and a type; the caller reads the values
 * it knows and skips the others:
 *
 *     for (int16_t id = 0; ml_thrift_next(t, &id);)
 *         switch (id) {
 *         case 1: n = ml_thrift_i64(t); break;
 *         default: ml_thrift_skip(t);
 *         }
 *
 * The first error is kept in *err; after it every function returns zeros and ends loops.
 *
 * thread: one owner. */
#ifndef ML_IO_PARQUET_THRIFT_H
#define ML_IO_PARQUET_THRIFT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/str.h"

typedef enum ml_thrift_type {
    ML_THRIFT_STOP,
    ML_THRIFT_TRUE,
    ML_THRIFT_FALSE,
    ML_THRIFT_I8,
    ML_THRIFT_I16,
    ML_THRIFT_I32,
    ML_THRIFT_I64,
    ML_THRIFT_F64,
    ML_THRIFT_BINARY,
    ML_THRIFT_LIST,
    ML_THRIFT_SET,
    ML_THRIFT_MAP,
    ML_THRIFT_STRUCT,
    ML_THRIFT_UUID,
} ml_thrift_type;

typedef struct ml_thrift {
    const unsigned char *p, *end;
    const unsigned char *file; /* start of the file, for offsets in messages */
    const char *what;          /* begins messages: the file, and what is being read */
    int type;                  /* ml_thrift_type of the value that follows */
    int depth;
    ml_status st;
    ml_err *err;
} ml_thrift;

/* Reads the next field's id and type; false at the end of the struct.  *id must be 0 before
 * the first field. */
bool ml_thrift_next(ml_thrift *t, int16_t *id);

/* The value that follows.  A value of another type than the function's is an error. */
int64_t ml_thrift_i64(ml_thrift *t); /* of any width */
int32_t ml_thrift_i32(ml_thrift *t); /* an error if it does not fit */
bool ml_thrift_bool(ml_thrift *t);
ml_str ml_thrift_binary(ml_thrift *t); /* a view of the input */
/* The number of elements of a list; t->type becomes their type.  No more than there are
 * bytes left, so that the caller may allocate that many. */
int64_t ml_thrift_list(ml_thrift *t);
/* Enters a struct; the loop over its fields leaves it. */
void ml_thrift_struct(ml_thrift *t);
void ml_thrift_skip(ml_thrift *t);

/* Records an error at the current offset. */
__attribute__((format(printf, 2, 3))) void ml_thrift_fail(ml_thrift *t, const char *fmt,
                                                          ...);

#endif
