#include "io/jsonl.h"

#include <stdio.h>
#include <string.h>

#include "base/arena.h"
#include "tests/support/scratch.h"
#include "tests/support/test.h"

static const char *write_file(const char *name, const char *bytes, size_t n) {
    const char *path = ml_test_path(name);
    ml_err err;

    if (ml_file_replace(path, (ml_str){ bytes, n }, &err))
        ml_test_fail(__FILE__, __LINE__, "%s", err.msg);
    return path;
}

static const char *rows_file(const char *text) {
    return write_file("rows.jsonl", text, strlen(text));
}

static void finds_rows(void) {
    static const char text[] = "\n{\"a\": 1}\r\n  \t\r\n\n  [2]  \n3";
    static const char *const want[] = { "{\"a\": 1}\r", "  [2]  ", "3" };
    static const int64_t line[] = { 2, 5, 6 };
    ml_jsonl f;
    ml_err err;

    CHECK(!ml_jsonl_open(&f, rows_file(text), &err));
    CHECK(f.n == 3);
    for (int64_t i = 0; i < f.n; i++) {
        CHECK(ml_str_is(ml_jsonl_row(&f, i), want[i]));
        CHECK(ml_jsonl_line(&f, i) == line[i]);
    }
    ml_jsonl_close(&f);
}

static void finds_nothing(void) {
    static const char *const empty[] = { "", "\n", "\n\n \t\r\n", " " };

    for (size_t i = 0; i < sizeof empty / sizeof *empty; i++) {
        ml_jsonl f;
        ml_err err;
        CHECK(!ml_jsonl_open(&f, rows_file(empty[i]), &err));
        CHECK(f.n == 0);
        ml_jsonl_close(&f);
    }
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
        ml_jsonl f;
        ml_err err;
        snprintf(sliced, sizeof sliced, "%s@[%s]", path, cases[i].slice);
        if (ml_jsonl_open(&f, sliced, &err)) {
            ml_test_fail(__FILE__, __LINE__, "%s: %s", cases[i].slice, err.msg);
            continue;
        }
        for (int64_t k = 0; k < f.n && k < 15; k++)
            got[k] = ml_jsonl_row(&f, k).ptr[0];
        if (strcmp(got, cases[i].rows) != 0)
            ml_test_fail(__FILE__, __LINE__, "[%s]: %s, not %s", cases[i].slice, got,
                         cases[i].rows);
        CHECK(!f.n || ml_jsonl_line(&f, 0) == cases[i].rows[0] - '0' + 1);
        CHECK(strcmp(f.file.path, path) == 0);
        ml_jsonl_close(&f);
    }
}

/* What is no slice belongs to the name, as with Miles' pattern. */
static void no_slices(void) {
    static const char *const tails[] = { "@[1:2:3]", "@[1]", "@[-:2]",  "@[a:b]", "@1:2]",
                                         "@[1:2",    "@",    "@[1:2] ", "@[+1:]" };
    const char *path = rows_file("0\n");

    for (size_t i = 0; i < sizeof tails / sizeof *tails; i++) {
        char name[4096];
        ml_jsonl f;
        ml_err err;
        snprintf(name, sizeof name, "%s%s", path, tails[i]);
        CHECK(ml_jsonl_open(&f, name, &err) == ML_EUSAGE);
        CHECK_HAS(err.msg, "expected a .jsonl file");
    }
}

static void at_in_names(void) {
    const char *path = write_file("a@[0:1].jsonl", "0\n1\n", 4);
    char sliced[4096];
    ml_jsonl f;
    ml_err err;

    CHECK(!ml_jsonl_open(&f, path, &err));
    CHECK(f.n == 2);
    ml_jsonl_close(&f);
    snprintf(sliced, sizeof sliced, "%s@[1:]", path);
    CHECK(!ml_jsonl_open(&f, sliced, &err));
    CHECK(f.n == 1);
    ml_jsonl_close(&f);
}

static void refuses_other_files(void) {
    ml_jsonl f;
    ml_err err;

    CHECK(ml_jsonl_open(&f, "prompts.parquet@[0:5]", &err) == ML_EUNSUP);
    CHECK_HAS(err.msg, "prompts.parquet: parquet is not supported");
    CHECK(ml_jsonl_open(&f, "prompts.json", &err) == ML_EUSAGE);
    CHECK(ml_jsonl_open(&f, "prompts", &err) == ML_EUSAGE);
    CHECK(ml_jsonl_open(&f, ml_test_path("none.jsonl"), &err) == ML_EIO);
    CHECK_HAS(err.msg, "none.jsonl: cannot open");
    ml_jsonl_close(&f);
}

static void parses(void) {
    const char *path = rows_file("\xef\xbb\xbf{\"a\": [1]}\n\n\n{\"a\" 2}\n{} {}\n");
    const ml_json *v = NULL;
    char want[4096];
    ml_arena a;
    ml_jsonl f;
    ml_err err;

    ml_arena_init(&a, "test");
    CHECK(!ml_jsonl_open(&f, path, &err) && f.n == 3);
    CHECK(!ml_jsonl_parse(&v, &f, 0, &a, &err));
    CHECK(ml_json_get(v, "a") != NULL);
    CHECK(ml_jsonl_parse(&v, &f, 1, &a, &err) == ML_EFORMAT);
    snprintf(want, sizeof want, "%s:4:6: ", path);
    CHECK(strncmp(err.msg, want, strlen(want)) == 0);
    CHECK_HAS(err.msg, "':' after the member name");
    CHECK(ml_jsonl_parse(&v, &f, 2, &a, NULL) == ML_EFORMAT);
    ml_jsonl_close(&f);
    ml_arena_release(&a);
}

static void keeps(void) {
    static const unsigned char keep[] = { 0, 1, 1, 0, 1 };
    int64_t rows[] = { 0, 2 };
    ml_jsonl f;
    ml_err err;

    CHECK(!ml_jsonl_open(&f, rows_file("0\n\n1\n2\n3\n4\n"), &err) && f.n == 5);
    ml_jsonl_keep(&f, keep);
    CHECK(f.n == 3);
    CHECK(ml_str_is(ml_jsonl_row(&f, 0), "1") && ml_str_is(ml_jsonl_row(&f, 2), "4"));
    ml_jsonl_lines(&f, rows, 2);
    CHECK(rows[0] == 3 && rows[1] == 6);
    ml_jsonl_keep(&f, (const unsigned char[]){ 0, 0, 0 });
    CHECK(f.n == 0);
    ml_jsonl_close(&f);
}

static const ml_test tests[] = {
    { "rows are found between blank lines", finds_rows },
    { "a file without rows has none", finds_nothing },
    { "@[a:b] selects the rows of Python's slice", slices },
    { "what is no slice belongs to the file's name", no_slices },
    { "a file whose name ends like a slice opens", at_in_names },
    { "files that are not .jsonl are refused", refuses_other_files },
    { "a row's JSON error has file, line and column", parses },
    { "rows that are not kept are dropped with their line numbers", keeps },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
