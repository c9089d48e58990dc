/* parquet.h - rows of a parquet file as JSON, read on demand.
 *
 * The file is mapped.  Opening reads the footer; a row reads the pages that contain it, of
 * which a cache keeps the last ones.  Nested columns become arrays and objects, maps arrays
 * of [key, value]; pq_value.h has the spelling of values.
 *
 * thread: a file is immutable after open and select; any number of readers, each with one
 * owner. */
#ifndef ML_IO_PARQUET_PARQUET_H
#define ML_IO_PARQUET_PARQUET_H

#include "io/parquet/pq_cache.h"

typedef struct ml_parquet ml_parquet;
typedef struct ml_pq_reader ml_pq_reader;

/* The cache must outlive the file. */
ml_status ml_parquet_open(ml_parquet **out, const char *path, ml_pq_cache *cache,
                          ml_err *err);
void ml_parquet_close(ml_parquet *f); /* NULL is allowed */

int64_t ml_parquet_n_row(const ml_parquet *f);
const char *ml_parquet_path(const ml_parquet *f);
/* Rows have only these columns from now on, in the file's order; others are not read. */
ml_status ml_parquet_select(ml_parquet *f, const char *const *column, int n, ml_err *err);

/* A reader keeps the pages of its last row, so that reading rows in order decodes each page
 * once. */
ml_pq_reader *ml_pq_reader_new(ml_parquet *f);
void ml_pq_reader_free(ml_pq_reader *r); /* NULL is allowed */

/* Appends row `row` as a JSON object on one line.  Messages name the file, the column and
 * the byte offset or the row. */
ml_status ml_pq_read_row(ml_pq_reader *r, int64_t row, ml_text *out, ml_err *err);

#endif
