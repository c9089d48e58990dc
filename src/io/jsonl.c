#include "io/jsonl.h"

#include <stdlib.h>
#include <string.h>

#include "io/unpacked.h"

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

static ml_status add_row(ml_jsonl *f, int64_t *cap, const char *p, ml_err *err) {
    if (!reserve(f, cap))
        return ml_fail(err, ML_ENOMEM,
                       "%s: out of memory for an index of more than %lld rows",
                       f->file.path, (long long)f->n);
    f->begin[f->n++] = (size_t)(p - f->file.bytes.ptr);
    return ML_OK;
}

/* Drops pages already scanned from resident memory, so that the file may be larger than
 * memory. */
static void forget_scanned(const ml_jsonl *f, const char *p, size_t *forgotten) {
    const size_t stretch = (size_t)1 << 26;
    size_t at = (size_t)(p - f->file.bytes.ptr);

    if (at - *forgotten <= stretch)
        return;
    ml_file_forget(&f->file, *forgotten, at - *forgotten);
    *forgotten = at;
}

static ml_status find_lines(ml_jsonl *f, int64_t limit, ml_err *err) {
    const char *begin = f->file.bytes.ptr, *end = begin + f->file.bytes.len;
    const char *eol, *next;
    size_t forgotten = 0;
    int64_t cap = 0;

    for (const char *p = begin; p < end && f->n < limit; p = next) {
        ml_status st;
        eol = end_of_line(p, end);
        next = eol < end ? eol + 1 : end;
        if (blank(p, eol))
            continue;
        st = add_row(f, &cap, p, err);
        if (st)
            return st;
        forget_scanned(f, p, &forgotten);
    }
    return ML_OK;
}

/* --- arrays ------------------------------------------------------------------ */

static const char *skip_space(const char *p, const char *end) {
    while (p < end && ml_is_blank(*p))
        p++;
    return p;
}

/* After the closing quote of the string at p. */
static const char *end_of_string(const char *p, const char *end) {
    for (p++; p < end && *p != '"'; p++)
        p += *p == '\\';
    return p < end ? p + 1 : end;
}

/* The comma or bracket after the value at p, or the end. */
static const char *end_of_value(const char *p, const char *end) {
    int64_t depth = 0;

    while (p < end) {
        char c = *p;
        if (depth == 0 && (c == ',' || c == ']' || c == '}'))
            break;
        if (c == '"') {
            p = end_of_string(p, end);
            continue;
        }
        depth += (c == '[' || c == '{') - (c == ']' || c == '}');
        p++;
    }
    return p;
}

static ml_status bad_array(const ml_jsonl *f, const char *p, const char *expected,
                           ml_err *err) {
    return ml_fail(err, ML_EFORMAT, "%s: at byte %zu, after %lld rows: expected %s",
                   f->file.path, (size_t)(p - f->file.bytes.ptr), (long long)f->n,
                   expected);
}

/* p is at the opening bracket. */
static ml_status find_elements(ml_jsonl *f, const char *p, int64_t limit, ml_err *err) {
    const char *end = f->file.bytes.ptr + f->file.bytes.len;
    size_t forgotten = 0;
    int64_t cap = 0;
    ml_status st;

    p = skip_space(p + 1, end);
    if (p < end && *p == ']')
        return skip_space(p + 1, end) == end
                   ? ML_OK
                   : bad_array(f, p + 1, "the end of the file", err);
    while (f->n < limit) {
        st = add_row(f, &cap, p, err);
        if (st)
            return st;
        p = end_of_value(p, end);
        if (p == end || *p == '}')
            return bad_array(f, p, "',' or ']'", err);
        if (*p == ']')
            return skip_space(p + 1, end) == end
                       ? ML_OK
                       : bad_array(f, p + 1, "the end of the file", err);
        p = skip_space(p + 1, end);
        forget_scanned(f, p, &forgotten);
    }
    return ML_OK;
}

/* --- files ------------------------------------------------------------------- */

static bool ends_in(const char *path, size_t n, const char *tail) {
    size_t k = strlen(tail);
    return n >= k && strncmp(path + n - k, tail, k) == 0;
}

/* The length of the name without .gz or .zst. */
static size_t plain_length(const char *path) {
    size_t n = strlen(path);
    return ends_in(path, n, ".gz") ? n - 3 : ends_in(path, n, ".zst") ? n - 4 : n;
}

bool ml_jsonl_is_name(const char *path) {
    size_t n = plain_length(path);
    return ends_in(path, n, ".jsonl") || ends_in(path, n, ".json");
}

static ml_status find_rows(ml_jsonl *f, int64_t limit, ml_err *err) {
    const char *begin = f->file.bytes.ptr, *end = begin + f->file.bytes.len;
    const char *p =
        end - begin >= 3 && memcmp(begin, "\xef\xbb\xbf", 3) == 0 ? begin + 3 : begin;

    p = skip_space(p, end);
    f->array =
        ends_in(f->file.path, plain_length(f->file.path), ".json") && p < end && *p == '[';
    return f->array ? find_elements(f, p, limit, err) : find_lines(f, limit, err);
}

ml_status ml_jsonl_open_first(ml_jsonl *out, const char *path, int64_t most, ml_err *err) {
    ml_status st;

    *out = (ml_jsonl){ 0 };
    if (!ml_jsonl_is_name(path))
        return ml_fail(err, ML_EUSAGE, "%s: expected a .jsonl or .json file", path);
    st = ml_file_map_unpacked(&out->file, path, err);
    if (!st)
        st = find_rows(out, most, err);
    if (st) {
        ml_jsonl_close(out);
        return st;
    }
    shrink(out);
    return ML_OK;
}

ml_status ml_jsonl_open(ml_jsonl *out, const char *path, ml_err *err) {
    return ml_jsonl_open_first(out, path, INT64_MAX, err);
}

void ml_jsonl_close(ml_jsonl *f) {
    free(f->begin);
    ml_file_unmap(&f->file);
    *f = (ml_jsonl){ 0 };
}

/* --- rows -------------------------------------------------------------------- */

ml_str ml_jsonl_row(const ml_jsonl *f, int64_t i) {
    const char *file = f->file.bytes.ptr, *p = file + f->begin[i];
    const char *end = file + f->file.bytes.len;

    end = f->array ? end_of_value(p, end) : end_of_line(p, end);
    while (f->array && end > p && skip_space(end - 1, end) == end)
        end--;
    return (ml_str){ p, (size_t)(end - p) };
}

/* A message begins ":line:column: ", counted from the row's first byte. */
static ml_status fail_at(const ml_jsonl *f, int64_t i, const ml_err *in_row, ml_err *err) {
    const char *file = f->file.bytes.ptr, *row = file + f->begin[i];
    const char *newline = memrchr(file, '\n', f->begin[i]);
    char *rest = NULL;
    long long line = strtoll(in_row->msg + 1, &rest, 10);
    long long column = strtoll(rest + 1, &rest, 10);

    if (line == 1)
        column += row - (newline ? newline + 1 : file);
    return ml_fail(err, ML_EFORMAT, "%s:%lld:%lld%s", f->file.path,
                   (long long)ml_jsonl_line(f, i) + line - 1, column, rest);
}

ml_status ml_jsonl_parse(const ml_json **out, const ml_jsonl *f, int64_t i, ml_arena *a,
                         ml_err *err) {
    ml_status st = ml_json_parse(out, a, ml_jsonl_row(f, i), "", err);
    ml_err in_row;

    if (!st || !err)
        return st;
    in_row = *err;
    if (st == ML_EFORMAT)
        return fail_at(f, i, &in_row, err);
    return ml_fail(err, st, "%s:%lld%s", f->file.path, (long long)ml_jsonl_line(f, i),
                   in_row.msg);
}

int64_t ml_jsonl_line(const ml_jsonl *f, int64_t i) {
    ml_jsonl_lines(f, &i, 1);
    return i;
}

void ml_jsonl_lines(const ml_jsonl *f, int64_t *row, int64_t n) {
    const char *file = f->file.bytes.ptr, *p = file, *newline;
    int64_t line = 1;

    for (int64_t k = 0; k < n; k++) {
        const char *target = file + f->begin[row[k]];
        for (; (newline = memchr(p, '\n', (size_t)(target - p))); line++)
            p = newline + 1;
        row[k] = line;
    }
}

void ml_jsonl_cut(ml_jsonl *f, int64_t begin, int64_t end) {
    f->n = end - begin;
    if (f->n)
        memmove(f->begin, f->begin + begin, (size_t)f->n * sizeof *f->begin);
    shrink(f);
}

void ml_jsonl_keep(ml_jsonl *f, const unsigned char *keep) {
    int64_t n = 0;

    for (int64_t i = 0; i < f->n; i++)
        if (keep[i])
            f->begin[n++] = f->begin[i];
    f->n = n;
    shrink(f);
}
