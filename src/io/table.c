#include "io/table.h"

#include <glob.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/dir.h"
#include "base/oom.h"

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

static void cut_file(ml_table_file *f, int64_t begin, int64_t end) {
    if (f->parquet)
        f->first += begin;
    else
        ml_jsonl_cut(&f->json, begin, end);
    f->n = end - begin;
}

/* Keeps rows [begin, end) of files `from` and after, counted together. */
static void cut(ml_table *t, int32_t from, slice s) {
    int64_t n = 0, begin, end;

    for (int32_t i = from; i < t->n_file; i++)
        n += t->file[i].n;
    begin = clamped(s.begin, n);
    end = clamped(s.end, n);
    for (int32_t i = from; i < t->n_file; i++) {
        int64_t has = t->file[i].n;
        int64_t a = begin < 0 ? 0 : begin < has ? begin : has;
        int64_t b = end < 0 ? 0 : end < has ? end : has;
        cut_file(&t->file[i], a, a < b ? b : a);
        begin -= has;
        end -= has;
    }
}

/* --- files -------------------------------------------------------------------- */

static bool ends_in(const char *name, const char *tail) {
    size_t n = strlen(name), k = strlen(tail);
    return n > k && strcmp(name + n - k, tail) == 0;
}

static bool is_data_name(const char *name) {
    return ends_in(name, ".parquet") || ml_jsonl_is_name(name);
}

typedef struct opening {
    ml_table *t;
    ml_arena arena;
    int64_t most; /* rows that are needed of the files that follow */
    ml_err *err;
} opening;

static ml_status open_parquet(opening *o, ml_table_file *f, const char *path) {
    ml_table *t = o->t;
    ml_status st;

    if (!t->cache) {
        t->cache = ml_memory_grow(NULL, sizeof *t->cache, "a cache of pages");
        ml_pq_cache_init(t->cache, ML_TABLE_CACHE);
    }
    st = ml_parquet_open(&f->parquet, path, t->cache, o->err);
    f->n = st ? 0 : ml_parquet_n_row(f->parquet);
    return st;
}

static ml_status open_file(opening *o, const char *path) {
    ml_table_file f = { 0 };
    ml_status st;

    if (!is_data_name(path))
        return ml_fail(o->err, ML_EUSAGE,
                       "%s: expected a .jsonl, .json or .parquet file, .jsonl.gz or "
                       ".jsonl.zst, or a directory of them, optionally with a slice of the "
                       "rows such as file.jsonl@[0:100]",
                       path);
    if (ends_in(path, ".parquet")) {
        st = open_parquet(o, &f, path);
    } else {
        st = ml_jsonl_open_first(&f.json, path, o->most, o->err);
        f.n = f.json.n;
    }
    if (st)
        return st;
    o->most -= f.n < o->most ? f.n : o->most;
    o->t->file = ml_memory_grow(o->t->file, (size_t)(o->t->n_file + 1) * sizeof f,
                                "a list of data files");
    o->t->file[o->t->n_file++] = f;
    return ML_OK;
}

static ml_status open_path(opening *o, const char *path);

/* Other files, such as a README, are not data.  A .json file may be one, but in a directory
 * it describes the data more often than not. */
static ml_status open_dir(opening *o, const char *dir) {
    ml_names names = { 0 };
    ml_status st = ml_dir_list(&names, dir, &o->arena, o->err);
    int n = 0;

    for (int32_t i = 0; i < names.n && !st; i++) {
        const char *name = names.name[i];
        if (!is_data_name(name) || ends_in(name, ".json") || ends_in(name, ".json.gz") ||
            ends_in(name, ".json.zst"))
            continue;
        st = open_path(o, ml_arena_printf(&o->arena, "%s/%s", dir, name));
        n++;
    }
    if (!st && !n)
        st = ml_fail(o->err, ML_EUSAGE,
                     "%s: the directory has no .parquet and no .jsonl file", dir);
    return st;
}

static int by_bytes(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static ml_status open_pattern(opening *o, const char *pattern) {
    glob_t g = { 0 };
    ml_status st = ML_OK;

    if (glob(pattern, GLOB_NOSORT, NULL, &g) != 0 || !g.gl_pathc)
        st = ml_fail(o->err, ML_EIO, "%s: no file matches this pattern", pattern);
    else
        qsort(g.gl_pathv, g.gl_pathc, sizeof *g.gl_pathv, by_bytes);
    for (size_t i = 0; i < g.gl_pathc && !st; i++)
        st = open_path(o, g.gl_pathv[i]);
    globfree(&g);
    return st;
}

static ml_status open_path(opening *o, const char *path) {
    struct stat is;

    if (stat(path, &is) == 0)
        return S_ISDIR(is.st_mode) ? open_dir(o, path) : open_file(o, path);
    return strpbrk(path, "*?[") && is_data_name(path) ? open_pattern(o, path)
           : strpbrk(path, "*?")                      ? open_pattern(o, path)
                                                      : open_file(o, path);
}

/* A part of the path, with its slice. */
static ml_status open_part(opening *o, const char *part, size_t n) {
    char *text = ml_arena_str(&o->arena, part, n);
    int32_t from = o->t->n_file;
    slice s;
    ml_status st;

    text[split(text, &s)] = 0;
    o->most = s.begin < 0 || s.end < 0 ? INT64_MAX : s.end;
    st = open_path(o, text);
    if (!st)
        cut(o->t, from, s);
    return st;
}

/* A path with a comma that exists is one file. */
static bool is_one(opening *o, const char *path) {
    char *text = ml_arena_str(&o->arena, path, strlen(path));
    slice s;

    text[split(text, &s)] = 0;
    return !strchr(text, ',') || access(text, F_OK) == 0;
}

static ml_status open_all(opening *o, const char *path) {
    ml_status st = ML_OK;

    if (is_one(o, path))
        return open_part(o, path, strlen(path));
    while (!st) {
        size_t n = strcspn(path, ",");
        st = open_part(o, path, n);
        if (!path[n])
            break;
        path += n + 1;
    }
    return st;
}

static void number_rows(ml_table *t) {
    t->n = 0;
    for (int32_t i = 0; i < t->n_file; i++) {
        t->file[i].begin = t->n;
        t->n += t->file[i].n;
    }
}

ml_status ml_table_open(ml_table *out, const char *path, ml_err *err) {
    opening o = { .t = out, .err = err };
    ml_status st;

    *out = (ml_table){ 0 };
    ml_arena_init(&o.arena, "names of data files");
    st = open_all(&o, path);
    ml_arena_release(&o.arena);
    if (st) {
        ml_table_close(out);
        return st;
    }
    number_rows(out);
    out->path = strdup(out->n_file == 1 ? ml_table_file_path(out->file) : path);
    if (!out->path)
        ml_memory_out(strlen(path), "the path of data files");
    return ML_OK;
}

void ml_table_close(ml_table *t) {
    for (int32_t i = 0; i < t->n_file; i++) {
        ml_parquet_close(t->file[i].parquet);
        ml_jsonl_close(&t->file[i].json);
        free(t->file[i].kept);
    }
    if (t->cache)
        ml_pq_cache_release(t->cache);
    free(t->cache);
    free(t->file);
    free(t->path);
    *t = (ml_table){ 0 };
}

ml_status ml_table_select(ml_table *t, const char *const *column, int n, ml_err *err) {
    ml_status st = ML_OK;

    t->column = column;
    t->n_column = n;
    for (int32_t i = 0; i < t->n_file && !st; i++)
        if (t->file[i].parquet)
            st = ml_parquet_select(t->file[i].parquet, column, n, err);
    return st;
}

/* --- rows ---------------------------------------------------------------------- */

static const ml_table_file *file_of(const ml_table *t, int64_t i) {
    int32_t low = 0, high = t->n_file;

    while (high - low > 1) {
        int32_t middle = low + (high - low) / 2;
        *(t->file[middle].begin <= i ? &low : &high) = middle;
    }
    return &t->file[low];
}

/* The row's number in its parquet file. */
static int64_t row_in(const ml_table_file *f, int64_t i) {
    i -= f->begin;
    return f->kept ? f->kept[i] : f->first + i;
}

/* Appends JSON without line breaks, with one space after each comma and colon. */
static void add_compact(ml_text *out, ml_str s) {
    bool quoted = false;
    size_t run = 0;

    for (size_t i = 0; i < s.len; i++) {
        char c = s.ptr[i];
        bool space = ml_is_blank(c);
        if (quoted && c == '\\') {
            i++;
        } else if (c == '"') {
            quoted = !quoted;
        } else if (!quoted && (space || c == ',' || c == ':')) {
            ml_text_add(out, s.ptr + run, i - run + !space);
            ml_text_add(out, " ", !space);
            run = i + 1;
        }
    }
    ml_text_add(out, s.ptr + run, s.len - run);
}

static bool is_wanted(const ml_table *t, ml_str key) {
    for (int i = 0; i < t->n_column; i++)
        if (ml_str_is(key, t->column[i]))
            return true;
    return t->n_column == 0;
}

static void add_members(ml_text *out, const ml_table *t, ml_str row, const ml_json *v) {
    bool any = false;

    ml_text_add(out, "{", 1);
    for (const ml_json *c = v->child; c; c = c->next) {
        if (!is_wanted(t, c->key))
            continue;
        ml_text_add(out, ", ", any ? 2 : 0);
        ml_json_quote(out, c->key);
        ml_text_add(out, ": ", 2);
        add_compact(out, (ml_str){ row.ptr + c->begin, c->end - c->begin });
        any = true;
    }
    ml_text_add(out, "}", 1);
}

static ml_status read_json(ml_text *out, const ml_table *t, const ml_table_file *f,
                           int64_t i, ml_err *err) {
    ml_str row = ml_jsonl_row(&f->json, i);
    const ml_json *v = NULL;
    ml_arena a;
    ml_status st;

    ml_arena_init(&a, "a row");
    st = ml_jsonl_parse(&v, &f->json, i, &a, err);
    if (!st && t->n_column && v->type == ML_JSON_OBJECT)
        add_members(out, t, row, v);
    else if (!st)
        add_compact(out, (ml_str){ row.ptr + v->begin, v->end - v->begin });
    ml_arena_release(&a);
    return st;
}

ml_status ml_table_read(ml_table_reader *r, int64_t i, ml_text *out, ml_err *err) {
    const ml_table_file *f = file_of(r->table, i);

    if (!f->parquet)
        return read_json(out, r->table, f, i - f->begin, err);
    if (r->of != f) {
        ml_table_reader_release(r);
        r->reader = ml_pq_reader_new(f->parquet);
        r->of = f;
    }
    return ml_pq_read_row(r->reader, row_in(f, i), out, err);
}

void ml_table_reader_release(ml_table_reader *r) {
    ml_pq_reader_free(r->reader);
    r->reader = NULL;
    r->of = NULL;
}

static ml_status parse_text(const ml_json **out, ml_str *text, const ml_table *t, int64_t i,
                            ml_arena *a, ml_err *err) {
    ml_table_reader r = { .table = t };
    ml_text line = { 0 };
    ml_status st = ml_table_read(&r, i, &line, err);

    if (!st)
        *text = (ml_str){ ml_arena_str(a, line.ptr, line.len), line.len };
    ml_text_release(&line);
    ml_table_reader_release(&r);
    return st ? st : ml_json_parse(out, a, *text, ml_table_path(t, i), err);
}

ml_status ml_table_parse(const ml_json **out, ml_str *text, const ml_table *t, int64_t i,
                         ml_arena *a, ml_err *err) {
    const ml_table_file *f = file_of(t, i);

    if (f->parquet || f->json.array || t->n_column)
        return parse_text(out, text, t, i, a, err);
    *text = ml_jsonl_row(&f->json, i - f->begin);
    return ml_jsonl_parse(out, &f->json, i - f->begin, a, err);
}

/* --- places ---------------------------------------------------------------------- */

const char *ml_table_file_path(const ml_table_file *f) {
    return f->parquet ? ml_parquet_path(f->parquet) : f->json.file.path;
}

const char *ml_table_path(const ml_table *t, int64_t i) {
    return ml_table_file_path(file_of(t, i));
}

int64_t ml_table_line(const ml_table *t, int64_t i) {
    ml_table_lines(t, &i, 1);
    return i;
}

void ml_table_lines(const ml_table *t, int64_t *row, int64_t n) {
    for (int64_t k = 0; k < n;) {
        const ml_table_file *f = file_of(t, row[k]);
        int64_t first = k;
        for (; k < n && row[k] < f->begin + f->n; k++)
            row[k] = f->parquet ? row_in(f, row[k]) + 1 : row[k] - f->begin;
        if (!f->parquet)
            ml_jsonl_lines(&f->json, row + first, k - first);
    }
}

/* --- selections ------------------------------------------------------------------ */

static void keep_parquet(ml_table_file *f, const unsigned char *keep, int64_t n) {
    int64_t *kept =
        ml_memory_grow(NULL, ((size_t)n + 1) * sizeof *kept, "an index of rows");

    for (int64_t i = 0, k = 0; i < f->n; i++)
        if (keep[i])
            kept[k++] = row_in(f, f->begin + i);
    free(f->kept);
    f->kept = kept;
    f->n = n;
}

void ml_table_keep(ml_table *t, const unsigned char *keep) {
    for (int32_t i = 0; i < t->n_file; i++) {
        ml_table_file *f = &t->file[i];
        int64_t n = 0;
        for (int64_t k = 0; k < f->n; k++)
            n += keep[f->begin + k] != 0;
        if (n == f->n)
            continue;
        if (f->parquet)
            keep_parquet(f, keep + f->begin, n);
        else
            ml_jsonl_keep(&f->json, keep + f->begin);
        f->n = n;
    }
    number_rows(t);
}

void ml_table_forget(const ml_table *t, int64_t begin, int64_t end) {
    for (int32_t i = 0; i < t->n_file; i++) {
        const ml_table_file *f = &t->file[i];
        int64_t a = begin > f->begin ? begin - f->begin : 0, b = end - f->begin;
        size_t from, to;
        if (f->parquet || a >= f->n || b <= a)
            continue;
        from = f->json.begin[a];
        to = b < f->n ? f->json.begin[b] : f->json.file.bytes.len;
        ml_file_forget(&f->json.file, from, to - from);
    }
}
