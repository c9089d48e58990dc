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

static void refuses_other_files(void) {
    ml_jsonl f;
    ml_err err;

    CHECK(ml_jsonl_open(&f, "prompts.parquet", &err) == ML_EUSAGE);
    CHECK_HAS(err.msg, "prompts.parquet: expected a .jsonl or .json file");
    CHECK(ml_jsonl_open(&f, "prompts", &err) == ML_EUSAGE);
    CHECK(ml_jsonl_open(&f, ml_test_path("none.jsonl"), &err) == ML_EIO);
    CHECK_HAS(err.msg, "none.jsonl: cannot open");
    ml_jsonl_close(&f);
}

static const char *array_file(const char *text) {
    return write_file("rows.json", text, strlen(text));
}

static void arrays(void) {
    static const char text[] = "\xef\xbb\xbf [\n  {\"a\": \"]},\\\"\"},\n"
                               "  [1, {\"b\": []}] , 3 \n]\n";
    static const char *const want[] = { "{\"a\": \"]},\\\"\"}", "[1, {\"b\": []}]", "3" };
    static const int64_t line[] = { 2, 3, 3 };
    ml_jsonl f;
    ml_err err;

    CHECK(!ml_jsonl_open(&f, array_file(text), &err));
    CHECK(f.array && f.n == 3);
    for (int64_t i = 0; i < f.n && i < 3; i++) {
        CHECK(ml_str_is(ml_jsonl_row(&f, i), want[i]));
        CHECK(ml_jsonl_line(&f, i) == line[i]);
    }
    ml_jsonl_close(&f);
    CHECK(!ml_jsonl_open_first(&f, array_file(text), 1, &err) && f.n == 1);
    ml_jsonl_close(&f);
    CHECK(!ml_jsonl_open(&f, array_file("[ ]\n"), &err) && f.n == 0);
    ml_jsonl_close(&f);
    CHECK(!ml_jsonl_open(&f, array_file("{}\n{}\n"), &err) && f.n == 2 && !f.array);
    ml_jsonl_close(&f);
}

static void bad_arrays(void) {
    static const struct {
        const char *text, *says;
    } cases[] = { { "[1, 2", "rows.json: at byte 5, after 2 rows: expected ',' or ']'" },
                  { "[1}", "at byte 2, after 1 rows: expected ',' or ']'" },
                  { "[1] 2", "at byte 3, after 1 rows: expected the end of the file" },
                  { "[] 2", "at byte 2, after 0 rows: expected the end of the file" },
                  { "[\"a", "at byte 3, after 1 rows: expected ',' or ']'" } };
    ml_jsonl f;
    ml_err err;

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        CHECK(ml_jsonl_open(&f, array_file(cases[i].text), &err) == ML_EFORMAT);
        CHECK_HAS(err.msg, cases[i].says);
    }
}

static void parses_elements(void) {
    const char *path = array_file("[1,\n  {\"a\": x}, {\n\"b\" 2}]");
    const ml_json *v = NULL;
    ml_arena a;
    ml_jsonl f;
    ml_err err;

    ml_arena_init(&a, "test");
    CHECK(!ml_jsonl_open(&f, path, &err) && f.n == 3);
    CHECK(!ml_jsonl_parse(&v, &f, 0, &a, &err));
    CHECK(ml_jsonl_parse(&v, &f, 1, &a, &err) == ML_EFORMAT);
    CHECK_HAS(err.msg, "rows.json:2:9: ");
    CHECK(ml_jsonl_parse(&v, &f, 2, &a, &err) == ML_EFORMAT);
    CHECK_HAS(err.msg, "rows.json:3:5: ");
    ml_jsonl_close(&f);
    ml_arena_release(&a);
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
    { "files that are not .jsonl are refused", refuses_other_files },
    { "elements of an array are rows", arrays },
    { "arrays that do not end are refused", bad_arrays },
    { "an element's JSON error has file, line and column", parses_elements },
    { "a row's JSON error has file, line and column", parses },
    { "rows that are not kept are dropped with their line numbers", keeps },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
