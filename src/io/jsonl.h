/* jsonl.h - files of JSON values, mapped and indexed: one per line, or one array of all.
 *
 * Opening scans the file once and keeps 8 bytes for each row; the rows themselves stay in
 * the page cache.  In a .jsonl file, a row is a line that is not blank.  A .json file whose
 * first character is '[' is an array, whose elements are the rows; another one is read like
 * a .jsonl file.  Either may be compressed (.gz, .zst): see unpacked.h.
 *
 * thread: immutable except for cut and keep; any number of readers. */
#ifndef ML_IO_JSONL_H
#define ML_IO_JSONL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/file.h"
#include "base/json.h"

typedef struct ml_jsonl {
    ml_file file;
    size_t *begin; /* [n] offset of each row's first byte */
    int64_t n;
    bool array; /* rows are elements of an array and may have several lines */
} ml_jsonl;

/* Whether the name ends in .jsonl or .json, also followed by .gz or .zst. */
bool ml_jsonl_is_name(const char *path);

/* Rows are located, not parsed: a row may be invalid JSON. */
ml_status ml_jsonl_open(ml_jsonl *out, const char *path, ml_err *err);
/* Finds at most the first `most` rows. */
ml_status ml_jsonl_open_first(ml_jsonl *out, const char *path, int64_t most, ml_err *err);
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

/* Keeps rows [begin, end) and renumbers them. */
void ml_jsonl_cut(ml_jsonl *f, int64_t begin, int64_t end);
/* Drops the rows whose entry is 0 and renumbers the others. */
void ml_jsonl_keep(ml_jsonl *f, const unsigned char *keep /* [f->n] */);

#endif
