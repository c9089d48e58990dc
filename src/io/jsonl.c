#include "io/jsonl.h"

#include <stdlib.h>
#include <string.h>

/* --- slices ------------------------------------------------------------------ */

/* Rows [begin, end), as in a Python slice.  A missing end is INT64_MAX: after the last
 * row. */
typedef struct slice {
    int64_t begin, end;
} slice;

/* Parses "-?[0-9]+", or nothing and returns `missing`; a lone minus sign is not consumed.
 * Numbers that do not fit are clamped, which is equally out of range. */
static const char *bound(const char *p, int64_t missing, int64_t *out) {
    const char *digit = p + (*p == '-');
    bool negative = digit > p;
    int64_t n = 0;

    *out = missing;
    if (*digit < '0' || *digit > '9')
        return p;
    for (p = digit; *p >= '0' && *p <= '9'; p++)
        if (__builtin_mul_overflow(n, 10, &n) || __builtin_add_overflow(n, *p - '0', &n))
            n = INT64_MAX;
    *out = negative ? -n : n;
    return p;
}

/* "[a:b]" and nothing more. */
static bool is_slice(const char *p, slice *out) {
    if (*p++ != '[')
        return false;
    p = bound(p, 0, &out->begin);
    if (*p++ != ':')
        return false;
    p = bound(p, INT64_MAX, &out->end);
    return strcmp(p, "]") == 0;
}

/* "path@[a:b]": the length of path, or of the whole text if it does not end in a slice. */
static size_t split(const char *path, slice *out) {
    const char *at = strrchr(path, '@');

    if (at && is_slice(at + 1, out))
        return (size_t)(at - path);
    *out = (slice){ 0, INT64_MAX };
    return strlen(path);
}

static int64_t clamped(int64_t i, int64_t n) {
    if (i < 0)
        i = i < -n ? 0 : i + n;
    return i < n ? i : n;
}

/* --- the index --------------------------------------------------------------- */

static bool reserve(ml_jsonl *f, int64_t *cap) {
    int64_t more = *cap ? *cap * 2 : 1024;
    size_t *p;

    if (f->n < *cap)
        return true;
    p = realloc(f->begin, (size_t)more * sizeof *p);
    if (!p)
        return false;
    f->begin = p;
    *cap = more;
    return true;
}

static void shrink(ml_jsonl *f) {
    size_t *p = realloc(f->begin, (f->n ? (size_t)f->n : 1) * sizeof *p);
    if (p)
        f->begin = p;
}

static bool blank(const char *p, const char *end) {
    while (p < end && (*p == ' ' || *p == '\t' || *p == '\r'))
        p++;
    return p == end;
}

static const char *end_of_line(const char *p, const char *end) {
    const char *newline = memchr(p, '\n', (size_t)(end - p));
    return newline ? newline : end;
}

/* Finds the first `limit` rows.  Pages already scanned are dropped from resident memory,
 * so that the file may be larger than memory. */
static ml_status find_rows(ml_jsonl *f, int64_t limit, ml_err *err) {
    const char *begin = f->file.bytes.ptr, *end = begin + f->file.bytes.len;
    const char *eol, *next;
    const size_t stretch = (size_t)1 << 26;
    size_t forgotten = 0;
    int64_t cap = 0;

    for (const char *p = begin; p < end && f->n < limit; p = next) {
        eol = end_of_line(p, end);
        next = eol < end ? eol + 1 : end;
        if (blank(p, eol))
            continue;
        if (!reserve(f, &cap))
            return ml_fail(err, ML_ENOMEM,
                           "%s: out of memory for an index of more than %lld rows",
                           f->file.path, (long long)f->n);
        f->begin[f->n++] = (size_t)(p - begin);
        if ((size_t)(p - begin) - forgotten > stretch) {
            ml_file_forget(&f->file, forgotten, (size_t)(p - begin) - forgotten);
            forgotten = (size_t)(p - begin);
        }
    }
    return ML_OK;
}

static void cut(ml_jsonl *f, slice s) {
    int64_t begin = clamped(s.begin, f->n), end = clamped(s.end, f->n);

    f->n = begin < end ? end - begin : 0;
    if (f->n)
        memmove(f->begin, f->begin + begin, (size_t)f->n * sizeof *f->begin);
}

static ml_status check_ending(const char *path, ml_err *err) {
    const char *dot = strrchr(path, '.');

    if (dot && strcmp(dot, ".jsonl") == 0)
        return ML_OK;
    if (dot && strcmp(dot, ".parquet") == 0)
        return ml_fail(err, ML_EUNSUP,
                       "%s: parquet is not supported; write the rows as JSON, one object "
                       "per line, to a .jsonl file",
                       path);
    return ml_fail(err, ML_EUSAGE,
                   "%s: expected a .jsonl file, optionally with a slice of its rows such "
                   "as file.jsonl@[0:100]",
                   path);
}

ml_status ml_jsonl_open(ml_jsonl *out, const char *path, ml_err *err) {
    slice s;
    char *plain = strndup(path, split(path, &s));
    ml_status st;

    *out = (ml_jsonl){ 0 };
    if (!plain)
        return ml_fail(err, ML_ENOMEM, "%s: out of memory for its name", path);
    st = check_ending(plain, err);
    if (!st)
        st = ml_file_map(&out->file, plain, err);
    if (!st)
        st = find_rows(out, s.begin < 0 || s.end < 0 ? INT64_MAX : s.end, err);
    free(plain);
    if (st) {
        ml_jsonl_close(out);
        return st;
    }
    cut(out, s);
    shrink(out);
    return ML_OK;
}

void ml_jsonl_close(ml_jsonl *f) {
    free(f->begin);
    ml_file_unmap(&f->file);
    *f = (ml_jsonl){ 0 };
}

/* --- rows -------------------------------------------------------------------- */

ml_str ml_jsonl_row(const ml_jsonl *f, int64_t i) {
    const char *file = f->file.bytes.ptr, *p = file + f->begin[i];
    return (ml_str){ p, (size_t)(end_of_line(p, file + f->file.bytes.len) - p) };
}

ml_status ml_jsonl_parse(const ml_json **out, const ml_jsonl *f, int64_t i, ml_arena *a,
                         ml_err *err) {
    /* A row is one line, so that without a name a message begins ":1:column: ". */
    static const char first_line[] = ":1:";
    ml_status st = ml_json_parse(out, a, ml_jsonl_row(f, i), "", err);
    size_t skip = st == ML_EFORMAT ? sizeof first_line - 2 : 0;
    ml_err plain;

    if (!st || !err)
        return st;
    plain = *err;
    return ml_fail(err, st, "%s:%lld%s", f->file.path, (long long)ml_jsonl_line(f, i),
                   plain.msg + skip);
}

int64_t ml_jsonl_line(const ml_jsonl *f, int64_t i) {
    ml_jsonl_lines(f, &i, 1);
    return i;
}

void ml_jsonl_lines(const ml_jsonl *f, int64_t *row, int64_t n) {
    const char *file = f->file.bytes.ptr, *p = file, *end = file + f->file.bytes.len;
    int64_t line = 1;

    for (int64_t k = 0; k < n; k++) {
        const char *target = file + f->begin[row[k]];
        for (; p < target; line++)
            p = end_of_line(p, end) + 1;
        row[k] = line;
    }
}

void ml_jsonl_keep(ml_jsonl *f, const unsigned char *keep) {
    int64_t n = 0;

    for (int64_t i = 0; i < f->n; i++)
        if (keep[i])
            f->begin[n++] = f->begin[i];
    f->n = n;
    shrink(f);
}
