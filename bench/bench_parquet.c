/* CPU time to read a string column of a parquet file on one thread: as views of its values, and
 * as rows of JSON.
 *
 *     bench_parquet FILE COLUMN
 *
 * bench/bench_parquet.py runs it next to pyarrow and prints ratios. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "io/table.h"

#define ROUNDS 5
#define N_VALUE 1024
#define CACHE ((size_t)16 << 20)

static void die(const ml_err *err) {
    fprintf(stderr, "bench_parquet: %s\n", err->msg);
    exit(1);
}

/* CPU time, which other work on the machine does not change. */
static double cpu_s(void) {
    return (double)clock() / CLOCKS_PER_SEC;
}

typedef struct column {
    ml_file file;
    ml_arena arena;
    ml_pq_meta meta;
    int32_t leaf;
    ml_str value[N_VALUE]; /* the last ones */
    size_t bytes;
} column;

static void open_column(column *c, const char *path, const char *name) {
    char leaf[256] = "";
    ml_err err;

    ml_arena_init(&c->arena, "bench");
    if (ml_file_map(&c->file, path, &err) ||
        ml_pq_meta_read(&c->meta, &c->file, &c->arena, &err))
        die(&err);
    while (c->leaf < c->meta.n_leaf) {
        ml_pq_leaf_name(&c->meta, c->leaf, leaf);
        if (strcmp(leaf, name) == 0)
            break;
        c->leaf++;
    }
    if (c->leaf == c->meta.n_leaf || c->meta.node[c->meta.leaf[c->leaf]].max_rep) {
        ml_fail(&err, ML_EUSAGE, "%s: has no column %s outside of lists", path, name);
        die(&err);
    }
}

/* The page's values; those of nulls are empty. */
static void take_page(column *c, const ml_pq_page *p) {
    const ml_pq_node *leaf = &c->meta.node[c->meta.leaf[c->leaf]];

    for (int32_t i = 0; i < p->n_entry; i++) {
        bool null = p->def && p->def[i] != leaf->max_def;
        ml_str v = null ? (ml_str){ 0 }
                        : ml_pq_value(p, leaf->width, p->value_at ? p->value_at[i] : i);
        c->value[i % N_VALUE] = v;
        c->bytes += v.len;
    }
}

/* Pages are dropped soon after their use, as when rows are read in order. */
static double read_values(column *c) {
    double start = cpu_s();
    ml_pq_chunk *chunk = calloc((size_t)c->meta.n_group, sizeof *chunk);
    ml_pq_cache cache;
    ml_err err;

    ml_pq_cache_init(&cache, CACHE);
    c->bytes = 0;
    for (int32_t g = 0; g < c->meta.n_group; g++) {
        ml_pq_where where = { &cache, &c->file, &c->meta, g, c->leaf };
        ml_pq_page *p = NULL;
        for (int32_t i = 0;; i++) {
            if (ml_pq_page_number(&p, &where, &chunk[g], i, &err))
                die(&err);
            if (!p)
                break;
            take_page(c, p);
            ml_pq_page_done(&cache, p);
        }
    }
    start = cpu_s() - start;
    for (int32_t g = 0; g < c->meta.n_group; g++)
        ml_pq_chunk_release(&cache, &chunk[g]);
    ml_pq_cache_release(&cache);
    free(chunk);
    return start;
}

static double read_rows(const char *path, const char *name) {
    double start = cpu_s();
    ml_table t;
    ml_table_reader r = { .table = &t };
    ml_text row = { 0 };
    ml_err err;

    if (ml_table_open(&t, path, &err) || ml_table_select(&t, &name, 1, &err))
        die(&err);
    for (int64_t i = 0; i < t.n; i++) {
        row.len = 0;
        if (ml_table_read(&r, i, &row, &err))
            die(&err);
    }
    ml_table_reader_release(&r);
    ml_table_close(&t);
    ml_text_release(&row);
    return cpu_s() - start;
}

int main(int argc, char **argv) {
    double values = 1e9, rows = 1e9, s;
    column c = { 0 };

    if (argc != 3) {
        fprintf(stderr, "usage: bench_parquet FILE COLUMN\n");
        return 2;
    }
    open_column(&c, argv[1], argv[2]);
    for (int i = 0; i < ROUNDS; i++) {
        s = read_values(&c);
        values = s < values ? s : values;
        s = read_rows(argv[1], argv[2]);
        rows = s < rows ? s : rows;
    }
    printf("{\"bytes\": %zu, \"values_s\": %.6f, \"rows_s\": %.6f}\n", c.bytes, values,
           rows);
    ml_arena_release(&c.arena);
    ml_file_unmap(&c.file);
    return 0;
}
