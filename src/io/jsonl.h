/* jsonl.h - files with one JSON value per line, mapped and indexed.
 *
 * Opening scans the file once and keeps 8 bytes for each row; the rows themselves stay in
 * the page cache.  A row is a line that is not blank.  A path may end in a slice of rows,
 * "prompts.jsonl@[a:b]", with Python's semantics: either end may be missing, negative
 * numbers count from the end.
 *
 * thread: immutable except for ml_jsonl_keep; any number of readers. */
#ifndef ML_IO_JSONL_H
#define ML_IO_JSONL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/file.h"
#include "base/json.h"

typedef struct ml_jsonl {
    ml_file file;  /* its path excludes the slice */
    size_t *begin; /* [n] offset of each row's first byte */
    int64_t n;
} ml_jsonl;

/* Rows are located, not parsed: a row may be invalid JSON. */
ml_status ml_jsonl_open(ml_jsonl *out, const char *path, ml_err *err);
void ml_jsonl_close(ml_jsonl *f); /* zero-initialized is allowed */

/* The bytes of row i, without the line break. */
ml_str ml_jsonl_row(const ml_jsonl *f, int64_t i);

/* Parses row i; views point into the file or `a`.  An error begins "path:line:column: ". */
ml_status ml_jsonl_parse(const ml_json **out, const ml_jsonl *f, int64_t i, ml_arena *a,
                         ml_err *err);

/* The line number of row i, from 1.  Scans the file on each call: for messages. */
int64_t ml_jsonl_line(const ml_jsonl *f, int64_t i);
/* The same for many rows in one scan: replaces ascending row numbers by line numbers. */
void ml_jsonl_lines(const ml_jsonl *f, int64_t *row /* [n] */, int64_t n);

/* Drops the rows whose entry is 0 and renumbers the others. */
void ml_jsonl_keep(ml_jsonl *f, const unsigned char *keep /* [f->n] */);

#endif
