/* table.h - the rows of data files, as JSON, read on demand.
 *
 * A path names one or several files, separated by commas: each part is a file, a directory
 * (its .parquet and .jsonl files, by name) or a pattern with * ? [ ], and may end in a slice
 * of its rows, "data/train-*.parquet@[a:b]", with Python's semantics: either end may be
 * missing, negative numbers count from the end.  Files are .jsonl, .json (an array, or
 * lines), these compressed (.gz, .zst), and .parquet.
 *
 * Memory: 8 bytes for each row of a JSON file; for parquet files, their footers, an index of
 * pages and a cache of decoded pages (ML_TABLE_CACHE).
 *
 * thread: immutable except for keep and select; any number of readers. */
#ifndef ML_IO_TABLE_H
#define ML_IO_TABLE_H

#include "io/jsonl.h"
#include "io/parquet/parquet.h"

#define ML_TABLE_CACHE ((size_t)64 << 20) /* bytes */

typedef struct ml_table_file {
    ml_parquet *parquet; /* NULL: a JSON file */
    ml_jsonl json;
    int64_t begin; /* the first of its rows in the table */
    int64_t n;
    int64_t first; /* parquet: row `first` of the file is the first of the n... */
    int64_t *kept; /* [n] ...unless these rows of the file are */
} ml_table_file;

typedef struct ml_table {
    ml_table_file *file; /* [n_file] */
    int32_t n_file;
    int64_t n;
    char *path; /* for messages: the only file's path, or as given */
    ml_pq_cache *cache;
    const char *const *column; /* [n_column] the only ones that rows have; NULL: all */
    int n_column;
} ml_table;

ml_status ml_table_open(ml_table *out, const char *path, ml_err *err);
void ml_table_close(ml_table *t); /* zero-initialized is allowed */

/* Rows have only these columns from now on; the names must outlive the table.  A parquet
 * file must have them. */
ml_status ml_table_select(ml_table *t, const char *const *column, int n, ml_err *err);

/* Row i as JSON, and parsed; both are valid as long as the table and `a`. */
ml_status ml_table_parse(const ml_json **out, ml_str *text, const ml_table *t, int64_t i,
                         ml_arena *a, ml_err *err);

/* Reads rows, best in order.  Zero-initialized but for the table; one owner. */
typedef struct ml_table_reader {
    const ml_table *table;
    const ml_table_file *of; /* whose reader it is */
    ml_pq_reader *reader;
} ml_table_reader;

/* Appends row i as JSON on one line. */
ml_status ml_table_read(ml_table_reader *r, int64_t i, ml_text *out, ml_err *err);
void ml_table_reader_release(ml_table_reader *r);

/* Where row i comes from, for messages: the file, and the line or, of a parquet file, the
 * row, from 1. */
const char *ml_table_file_path(const ml_table_file *f);
const char *ml_table_path(const ml_table *t, int64_t i);
int64_t ml_table_line(const ml_table *t, int64_t i);
/* The same for many rows: replaces ascending row numbers. */
void ml_table_lines(const ml_table *t, int64_t *row /* [n] */, int64_t n);

/* Drops the rows whose entry is 0 and renumbers the others. */
void ml_table_keep(ml_table *t, const unsigned char *keep /* [t->n] */);
/* Drops the mapped pages of rows [begin, end) of JSON files from resident memory. */
void ml_table_forget(const ml_table *t, int64_t begin, int64_t end);

#endif
