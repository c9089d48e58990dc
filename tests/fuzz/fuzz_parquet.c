/* Any bytes as a parquet file: refused with a sentence that names the file, or its rows are
 * JSON.  Rows read again, out of order and without a cache, are the same. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/bug.h"
#include "io/table.h"
#include "tests/fuzz/memory_dir.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MOST_ROWS = 64 };

static struct { char dir[64], file[96]; } at;

static void remove_all(void) {
    unlink(at.file);
    rmdir(at.dir);
}

static void prepare(void) {
    make_memory_dir(at.dir);
    snprintf(at.file, sizeof at.file, "%s/rows.parquet", at.dir);
    atexit(remove_all);
}

static bool read_row(ml_table_reader *r, int64_t i, ml_text *out) {
    ml_err err = { 0 };

    out->len = 0;
    if (ml_table_read(r, i, out, &err) == ML_OK)
        return true;
    ML_BUG_IF(!strstr(err.msg, "rows.parquet"));
    return false;
}

static void check_json(ml_str row) {
    const ml_json *v = NULL;
    ml_arena a;

    ml_arena_init(&a, "fuzz");
    ML_BUG_IF(ml_json_parse(&v, &a, row, "row", NULL) || v->type != ML_JSON_OBJECT);
    ML_BUG_IF(memchr(row.ptr, '\n', row.len));
    ml_arena_release(&a);
}

static void read_rows(ml_table *t) {
    ml_table_reader r = { .table = t }, again = { .table = t };
    ml_text row = { 0 }, other = { 0 };
    int64_t n = t->n < MOST_ROWS ? t->n : MOST_ROWS;

    for (int64_t i = 0; i < n; i++) {
        bool ok = read_row(&r, i, &row);
        if (!ok)
            continue;
        check_json((ml_str){ row.ptr, row.len });
        t->cache->max = 0;
        read_row(&again, n - 1 - i, &other);
        ML_BUG_IF(!read_row(&again, i, &other));
        ML_BUG_IF(row.len != other.len || memcmp(row.ptr, other.ptr, row.len));
    }
    ml_text_release(&row);
    ml_text_release(&other);
    ml_table_reader_release(&r);
    ml_table_reader_release(&again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    ml_table t = { 0 };
    ml_err err = { 0 };

    if (!at.dir[0])
        prepare();
    put_file(at.file, data, size);
    if (ml_table_open(&t, at.file, &err)) {
        ML_BUG_IF(!strstr(err.msg, "rows.parquet"));
        return 0;
    }
    read_rows(&t);
    ml_table_close(&t);
    return 0;
}
