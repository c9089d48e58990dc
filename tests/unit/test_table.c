#include "io/table.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/scratch.h"
#include "tests/support/test.h"

#define CHAT "tests/golden/parquet/chat_gzip_plain"

static const char *write_file(const char *name, const char *text) {
    const char *path = ml_test_path(name);
    ml_err err;

    if (ml_file_replace(path, ml_str_of(text), &err))
        ml_test_fail(__FILE__, __LINE__, "%s", err.msg);
    return path;
}

static const char *rows_file(const char *text) {
    return write_file("rows.jsonl", text);
}

/* Row i, valid until the next call. */
static const char *row_of(const ml_table *t, int64_t i) {
    ml_table_reader r = { .table = t };
    static ml_text line;
    ml_err err;

    line.len = 0;
    if (ml_table_read(&r, i, &line, &err))
        ml_test_fail(__FILE__, __LINE__, "%s", err.msg);
    ml_table_reader_release(&r);
    return line.ptr ? line.ptr : "";
}

/* All rows of the table, each after a space; the caller frees it. */
static char *all_rows(const ml_table *t) {
    ml_text out = { 0 };

    for (int64_t i = 0; i < t->n; i++)
        ml_text_printf(&out, " %s", row_of(t, i));
    return out.ptr ? out.ptr : calloc(1, 1);
}

static void has_rows(const char *path, const char *want) {
    ml_table t = { 0 };
    char *got;
    ml_err err;

    if (ml_table_open(&t, path, &err)) {
        ml_test_fail(__FILE__, __LINE__, "%s", err.msg);
        return;
    }
    got = all_rows(&t);
    if (strcmp(got, want) != 0)
        ml_test_fail(__FILE__, __LINE__, "%s:%s, not%s", path, got, want);
    free(got);
    ml_table_close(&t);
}

static void shell(const char *form, const char *dir) {
    char line[4096];

    snprintf(line, sizeof line, form, dir, dir, dir);
    CHECK(system(line) == 0);
}

/* "a:b" and the rows of "0\n1\n...6\n" that it means; Python's list(range(7))[a:b]. */
static void slices(void) {
    static const struct {
        const char *slice, *rows;
    } cases[] = {
        { ":", "0123456" },
        { "2:", "23456" },
        { ":3", "012" },
        { "2:5", "234" },
        { "5:2", "" },
        { "3:3", "" },
        { "0:0", "" },
        { ":-2", "01234" },
        { "-2:", "56" },
        { "-100:2", "01" },
        { "-3:-1", "45" },
        { "1:-1", "12345" },
        { "-1:1", "" },
        { "6:100", "6" },
        { "7:", "" },
        { ":99999999999999999999999999", "0123456" },
        { "-99999999999999999999999999:1", "0" },
        { "-0:2", "01" },
    };
    const char *path = rows_file("0\n1\n2\n3\n4\n5\n6\n");

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char sliced[4096], got[16] = "";
        ml_table f;
        ml_err err;
        snprintf(sliced, sizeof sliced, "%s@[%s]", path, cases[i].slice);
        if (ml_table_open(&f, sliced, &err)) {
            ml_test_fail(__FILE__, __LINE__, "%s: %s", cases[i].slice, err.msg);
            continue;
        }
        for (int64_t k = 0; k < f.n && k < 15; k++)
            got[k] = row_of(&f, k)[0];
        if (strcmp(got, cases[i].rows) != 0)
            ml_test_fail(__FILE__, __LINE__, "[%s]: %s, not %s", cases[i].slice, got,
                         cases[i].rows);
        CHECK(!f.n || ml_table_line(&f, 0) == cases[i].rows[0] - '0' + 1);
        CHECK(strcmp(f.path, path) == 0);
        ml_table_close(&f);
    }
}

/* What is no slice belongs to the name, as with Miles' pattern. */
static void no_slices(void) {
    static const char *const tails[] = { "@[1:2:3]", "@[1]", "@[-:2]",  "@[a:b]", "@1:2]",
                                         "@[1:2",    "@",    "@[1:2] ", "@[+1:]" };
    const char *path = rows_file("0\n");

    for (size_t i = 0; i < sizeof tails / sizeof *tails; i++) {
        char name[4096];
        ml_table f;
        ml_err err;
        snprintf(name, sizeof name, "%s%s", path, tails[i]);
        CHECK(ml_table_open(&f, name, &err) == ML_EUSAGE);
        CHECK_HAS(err.msg, "expected a .jsonl, .json or .parquet file");
    }
}

static void at_in_names(void) {
    const char *path = write_file("a@[0:1].jsonl", "0\n1\n");
    char sliced[4096];
    ml_table f;
    ml_err err;

    CHECK(!ml_table_open(&f, path, &err));
    CHECK(f.n == 2);
    ml_table_close(&f);
    snprintf(sliced, sizeof sliced, "%s@[1:]", path);
    CHECK(!ml_table_open(&f, sliced, &err));
    CHECK(f.n == 1);
    ml_table_close(&f);
}

static void refuses_other_files(void) {
    ml_table f;
    ml_err err;

    CHECK(ml_table_open(&f, "prompts.csv@[0:5]", &err) == ML_EUSAGE);
    CHECK_HAS(err.msg, "prompts.csv: expected a .jsonl, .json or .parquet file");
    CHECK(ml_table_open(&f, "none.parquet", &err) == ML_EIO);
    CHECK_HAS(err.msg, "none.parquet: cannot open");
    CHECK(ml_table_open(&f, ml_test_path("none*.jsonl"), &err) == ML_EIO);
    CHECK_HAS(err.msg, "none*.jsonl: no file matches this pattern");
    CHECK(ml_table_open(&f, ml_test_dir(), &err) == ML_EUSAGE);
    CHECK_HAS(err.msg, "the directory has no .parquet and no .jsonl file");
}

static void several_files(void) {
    char path[4096];
    const char *dir = ml_test_dir();

    write_file("a1.jsonl", "1\n2\n3\n");
    write_file("a2.jsonl", "");
    write_file("a3.jsonl", "4\n5\n");
    write_file("b,c.jsonl", "6\n");
    write_file("info.json", "[7]");
    write_file("README.md", "8");
    has_rows(dir, " 1 2 3 4 5 6");
    snprintf(path, sizeof path, "%s/a*.jsonl", dir);
    has_rows(path, " 1 2 3 4 5");
    snprintf(path, sizeof path, "%s/a[13].jsonl@[2:-1]", dir);
    has_rows(path, " 3 4");
    snprintf(path, sizeof path, "%s/a3.jsonl@[1:],%s/info.json,%s/a1.jsonl@[:-2]", dir, dir,
             dir);
    has_rows(path, " 5 7 1");
    snprintf(path, sizeof path, "%s/b,c.jsonl@[0:9]", dir);
    has_rows(path, " 6");
    snprintf(path, sizeof path, "%s@[-2:]", dir);
    has_rows(path, " 5 6");
}

static void places(void) {
    static const unsigned char keep[] = { 0, 1, 1, 0, 1, 1 };
    int64_t rows[] = { 0, 1, 2, 3 };
    char path[4096];
    ml_table t;
    ml_err err;

    write_file("a.jsonl", "\n1\n2\n\n3\n");
    snprintf(path, sizeof path, "%s,%s.parquet@[4:7]", ml_test_path("a.jsonl"), CHAT);
    CHECK(!ml_table_open(&t, path, &err) && t.n == 6);
    CHECK(strcmp(t.path, path) == 0);
    ml_table_keep(&t, keep);
    CHECK(t.n == 4);
    CHECK_HAS(ml_table_path(&t, 1), "a.jsonl");
    CHECK_HAS(ml_table_path(&t, 2), "chat_gzip_plain.parquet");
    CHECK(ml_table_line(&t, 1) == 5 && ml_table_line(&t, 3) == 7);
    ml_table_lines(&t, rows, 4);
    CHECK(rows[0] == 3 && rows[1] == 5 && rows[2] == 6 && rows[3] == 7);
    CHECK(strcmp(row_of(&t, 0), "2") == 0);
    ml_table_keep(&t, (const unsigned char[]){ 1, 1, 0, 1 });
    CHECK(t.n == 3 && ml_table_line(&t, 2) == 7);
    ml_table_forget(&t, 0, 3);
    CHECK(strcmp(row_of(&t, 1), "3") == 0);
    ml_table_close(&t);
}

/* A slice of a parquet file has the rows of the same slice of lines, in any order. */
static void parquet_slices(void) {
    static const char *const slice[] = { "", "@[3:11]", "@[-4:]", "@[100:]", "@[:-28]" };
    ml_arena a;

    ml_arena_init(&a, "test");
    for (size_t i = 0; i < sizeof slice / sizeof *slice; i++) {
        char lines[256], columns[256];
        ml_table x, y;
        ml_err err;
        snprintf(lines, sizeof lines, CHAT ".jsonl%s", slice[i]);
        snprintf(columns, sizeof columns, CHAT ".parquet%s", slice[i]);
        CHECK(!ml_table_open(&x, lines, &err) && !ml_table_open(&y, columns, &err));
        CHECK(x.n == y.n);
        for (int64_t k = x.n; k-- > 0;) {
            const ml_json *v, *w;
            ml_str s, t;
            CHECK(!ml_table_parse(&v, &s, &x, k, &a, &err));
            CHECK(!ml_table_parse(&w, &t, &y, k, &a, &err));
            CHECK(ml_str_eq(s, t));
        }
        ml_table_close(&x);
        ml_table_close(&y);
    }
    ml_arena_release(&a);
}

static void compressed(void) {
    const char *dir = ml_test_dir();
    ml_table t;
    ml_err err;

    write_file("x.jsonl", "{\"a\": 1}\n\n{\"a\": 2}\n");
    write_file("y.json", "[1,\n 2]");
    shell(
        "cd %s && gzip -k x.jsonl && zstd -q x.jsonl && zstd -q y.json && "
        "cat x.jsonl.gz x.jsonl.gz > two.jsonl.gz && head -c 20 x.jsonl.gz > cut.jsonl.gz "
        "&& head -c 20 x.jsonl.zst > cut.jsonl.zst",
        dir);
    has_rows(ml_test_path("x.jsonl.gz@[1:]"), " {\"a\": 2}");
    has_rows(ml_test_path("x.jsonl.zst"), " {\"a\": 1} {\"a\": 2}");
    has_rows(ml_test_path("y.json.zst"), " 1 2");
    has_rows(ml_test_path("two.jsonl.gz@[1:3]"), " {\"a\": 2} {\"a\": 1}");
    CHECK(ml_table_open(&t, ml_test_path("cut.jsonl.gz"), &err) == ML_EFORMAT);
    CHECK_HAS(err.msg, "cut.jsonl.gz: the gzip file is truncated");
    CHECK(ml_table_open(&t, ml_test_path("cut.jsonl.zst"), &err) == ML_EFORMAT);
    CHECK_HAS(err.msg, "cut.jsonl.zst");
    CHECK(ml_table_open(&t, write_file("bad.jsonl.gz", "no gzip at all"), &err) ==
          ML_EFORMAT);
    CHECK_HAS(err.msg, "bad.jsonl.gz: not a valid gzip file");
    setenv("TMPDIR", ml_test_path("nowhere"), 1);
    CHECK(ml_table_open(&t, ml_test_path("x.jsonl.gz"), &err) == ML_EIO);
    CHECK_HAS(err.msg, "set TMPDIR to a directory with enough room");
}

static void selects(void) {
    static const char *const names[] = { "b", "c" };
    ml_table t;
    ml_err err;

    CHECK(!ml_table_open(&t, rows_file("{\"a\":1,\"b\":[1,2],\"c\":\" ,\"}\n{\"b\":{}}\n"),
                         &err));
    CHECK(strcmp(row_of(&t, 0), "{\"a\": 1, \"b\": [1, 2], \"c\": \" ,\"}") == 0);
    CHECK(!ml_table_select(&t, names, 2, &err));
    CHECK(strcmp(row_of(&t, 0), "{\"b\": [1, 2], \"c\": \" ,\"}") == 0);
    CHECK(strcmp(row_of(&t, 1), "{\"b\": {}}") == 0);
    ml_table_close(&t);
}

typedef struct thread_rows {
    const ml_table *columns, *lines;
    int64_t step;
    int n_wrong;
} thread_rows;

/* Reads all rows, in an order of its own. */
static void *read_in_thread(void *ud) {
    thread_rows *x = ud;

    for (int64_t k = 0; k < x->lines->n; k++) {
        int64_t i = k * x->step % x->lines->n;
        const ml_json *v;
        ml_str a, b;
        ml_arena arena;
        ml_arena_init(&arena, "test");
        x->n_wrong += ml_table_parse(&v, &a, x->lines, i, &arena, NULL) ||
                      ml_table_parse(&v, &b, x->columns, i, &arena, NULL) ||
                      !ml_str_eq(a, b);
        ml_arena_release(&arena);
    }
    return NULL;
}

static void threads(void) {
    static const int64_t step[] = { 1, 7, 11, 13 }; /* coprime to 60 rows */
    ml_table columns, lines;
    thread_rows x[4];
    pthread_t id[4];
    ml_err err;

    CHECK(!ml_table_open(&columns, "tests/golden/parquet/pages.parquet", &err));
    CHECK(!ml_table_open(&lines, "tests/golden/parquet/pages.jsonl", &err));
    CHECK(lines.n == 60);
    columns.cache->max = 4096; /* pages come and go */
    for (int i = 0; i < 4; i++) {
        x[i] = (thread_rows){ &columns, &lines, step[i], 0 };
        CHECK(pthread_create(&id[i], NULL, read_in_thread, &x[i]) == 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(id[i], NULL);
        CHECK(x[i].n_wrong == 0);
    }
    CHECK(columns.cache->used <= columns.cache->max);
    ml_table_close(&columns);
    ml_table_close(&lines);
}

static const ml_test tests[] = {
    { "@[a:b] selects the rows of Python's slice", slices },
    { "what is no slice belongs to the file's name", no_slices },
    { "a file whose name ends like a slice opens", at_in_names },
    { "files that are not data files are refused", refuses_other_files },
    { "lists of files, directories and patterns are one table", several_files },
    { "rows of several files know their file and line", places },
    { "slices of a parquet file are those of its lines", parquet_slices },
    { "compressed files have the rows of their content", compressed },
    { "rows have the selected columns alone", selects },
    { "threads that read one parquet file do not disturb each other", threads },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
