/* Parquet files of pyarrow, polars and duckdb, whose rows must be the lines of a JSON file,
 * byte for byte: read in order, in any order, and with a cache that holds nothing. */
#include <stdio.h>
#include <string.h>

#include "base/dir.h"
#include "io/table.h"
#include "tests/support/test.h"

#define ROOT "tests/golden/parquet"

static bool same(const char *path, int64_t i, const ml_text *got, ml_str want) {
    if (ml_str_eq((ml_str){ got->ptr, got->len }, want))
        return true;
    ml_test_fail(__FILE__, __LINE__, "%s, row %lld: %.*s, not %.*s", path, (long long)i,
                 (int)got->len, got->ptr, (int)want.len, want.ptr);
    return false;
}

/* step 1: in order; other steps, coprime to the number of rows, visit all of them, too. */
static void compare_rows(const ml_table *t, const ml_jsonl *want, int64_t step) {
    ml_table_reader r = { .table = t };
    ml_text line = { 0 };
    ml_err err;

    for (int64_t k = 0; k < t->n; k++) {
        int64_t i = k * step % t->n;
        line.len = 0;
        if (ml_table_read(&r, i, &line, &err)) {
            ml_test_fail(__FILE__, __LINE__, "%s", err.msg);
            break;
        }
        if (!same(t->path, i, &line, ml_jsonl_row(want, i)))
            break;
    }
    ml_text_release(&line);
    ml_table_reader_release(&r);
}

static void compare_file(const char *dir, const char *name) {
    char path[1024], json[1024];
    ml_jsonl want = { 0 };
    ml_table t = { 0 };
    ml_err err = { 0 };

    snprintf(path, sizeof path, "%s/%s", dir, name);
    snprintf(json, sizeof json, "%s/%.*s.jsonl", dir, (int)(strlen(name) - 8), name);
    if (ml_jsonl_open(&want, json, &err) || ml_table_open(&t, path, &err)) {
        ml_test_fail(__FILE__, __LINE__, "%s", err.msg);
    } else if (want.n != t.n) {
        ml_test_fail(__FILE__, __LINE__, "%s: %lld rows, not %lld", path, (long long)t.n,
                     (long long)want.n);
    } else {
        compare_rows(&t, &want, 1);
        t.cache->max = 0;
        compare_rows(&t, &want, 1);
        compare_rows(&t, &want, 101);
        CHECK(t.cache->used == 0);
    }
    ml_jsonl_close(&want);
    ml_table_close(&t);
}

static void compare_all(const char *dir) {
    ml_names names = { 0 };
    ml_arena a;
    ml_err err;
    int n = 0;

    ml_arena_init(&a, "test");
    CHECK(ml_dir_list(&names, dir, &a, &err) == ML_OK);
    for (int32_t i = 0; i < names.n; i++)
        if (strstr(names.name[i], ".parquet")) {
            compare_file(dir, names.name[i]);
            n++;
        }
    CHECK(n >= 10);
    ml_arena_release(&a);
}

static void repository(void) {
    compare_all(ROOT);
}

static void fixtures(void) {
    char dir[1024];

    snprintf(dir, sizeof dir, "%s/formats/parquet", ml_test_fixtures());
    compare_all(dir);
}

static void shown(void) {
    static char got[1 << 16];
    ml_file want = { 0 };
    ml_err err;

    CHECK(ml_test_miles(got, sizeof got, "data show " ROOT "/nested_zstd.parquet") == 0);
    CHECK(ml_file_map(&want, ROOT "/nested_zstd.jsonl", &err) == ML_OK);
    CHECK(ml_str_is(want.bytes, got));
    ml_file_unmap(&want);
    CHECK(ml_test_miles(got, sizeof got,
                        "data show '" ROOT "/verl_*.parquet," ROOT
                        "/chat_gzip_plain.parquet@[2:3]' --columns label id") == 1);
    CHECK_HAS(got, "no file matches");
    CHECK(ml_test_miles(got, sizeof got,
                        "data show " ROOT "/chat_gzip_plain.parquet@[2:3] "
                        "--columns id label") == 0);
    CHECK_HAS(got, "{\"label\": ");
    CHECK(!strstr(got, "messages"));
    CHECK(ml_test_miles(got, sizeof got,
                        "data show " ROOT "/lz4.parquet --columns label") == 2);
    CHECK_HAS(got, "has no column \"label\"; its columns are seq, jump,");
}

static const ml_test tests[] = {
    { "parquet rows equal those of the JSON files", repository },
    { "parquet rows of the fixtures equal those of their JSON files", fixtures, 0,
      "formats" },
    { "miles data show prints parquet rows as JSON lines", shown },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
