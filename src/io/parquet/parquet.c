#include "io/parquet/parquet.h"

#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/oom.h"
#include "io/parquet/pq_value.h"

struct ml_parquet {
    ml_file file;
    ml_arena arena;
    ml_pq_meta meta;
    ml_pq_cache *cache;
    ml_pq_chunk **chunk; /* [n_group][n_leaf]; NULL: nothing of the row group was read */
    ml_str *key;         /* [n_node] its name and a colon, as JSON */
    bool *unwanted;      /* [n_node] columns that rows do not have */
};

/* --- files --------------------------------------------------------------------------- */

static void write_keys(ml_parquet *f) {
    ml_text t = { 0 };

    f->key = ML_NEW(&f->arena, ml_str, f->meta.n_node);
    f->unwanted = ML_NEW(&f->arena, bool, f->meta.n_node);
    for (int32_t i = 0; i < f->meta.n_node; i++) {
        t.len = 0;
        ml_json_quote(&t, f->meta.node[i].name);
        ml_text_add(&t, ": ", 2);
        f->key[i] = (ml_str){ ml_arena_str(&f->arena, t.ptr, t.len), t.len };
    }
    ml_text_release(&t);
}

ml_status ml_parquet_open(ml_parquet **out, const char *path, ml_pq_cache *cache,
                          ml_err *err) {
    ml_parquet *f = ml_memory_grow(NULL, sizeof *f, "a parquet file");
    ml_status st;

    *out = NULL;
    *f = (ml_parquet){ .cache = cache };
    ml_arena_init(&f->arena, "metadata of a parquet file");
    st = ml_file_map(&f->file, path, err);
    if (!st)
        st = ml_pq_meta_read(&f->meta, &f->file, &f->arena, err);
    if (st) {
        ml_parquet_close(f);
        return st;
    }
    ml_file_forget(&f->file, f->meta.data_end, f->file.bytes.len - f->meta.data_end);
    f->chunk = ML_NEW(&f->arena, ml_pq_chunk *, f->meta.n_group);
    write_keys(f);
    *out = f;
    return ML_OK;
}

void ml_parquet_close(ml_parquet *f) {
    if (!f)
        return;
    for (int32_t g = 0; f->chunk && g < f->meta.n_group; g++) {
        for (int32_t i = 0; f->chunk[g] && i < f->meta.n_leaf; i++)
            ml_pq_chunk_release(f->cache, &f->chunk[g][i]);
        free(f->chunk[g]);
    }
    ml_arena_release(&f->arena);
    ml_file_unmap(&f->file);
    free(f);
}

int64_t ml_parquet_n_row(const ml_parquet *f) {
    return f->meta.n_row;
}

const char *ml_parquet_path(const ml_parquet *f) {
    return f->file.path;
}

/* The node of a column, a child of the root; 0: there is none. */
static int32_t column_of(const ml_parquet *f, const char *name) {
    for (int32_t i = 1; i < f->meta.n_node; i = f->meta.node[i].end)
        if (ml_str_is(f->meta.node[i].name, name))
            return i;
    return 0;
}

static ml_status no_column(const ml_parquet *f, const char *name, ml_err *err) {
    ml_text all = { 0 };

    for (int32_t i = 1; i < f->meta.n_node; i = f->meta.node[i].end)
        ml_text_printf(&all, "%s%.*s", i > 1 ? ", " : "", (int)f->meta.node[i].name.len,
                       f->meta.node[i].name.ptr);
    ml_fail(err, ML_EUSAGE, "%s: has no column \"%s\"; its columns are %s", f->file.path,
            name, all.ptr ? all.ptr : "none");
    ml_text_release(&all);
    return ML_EUSAGE;
}

ml_status ml_parquet_select(ml_parquet *f, const char *const *column, int n, ml_err *err) {
    for (int32_t i = 1; i < f->meta.n_node; i = f->meta.node[i].end)
        f->unwanted[i] = true;
    for (int k = 0; k < n; k++) {
        int32_t at = column_of(f, column[k]);
        if (!at)
            return no_column(f, column[k], err);
        f->unwanted[at] = false;
    }
    return ML_OK;
}

static ml_pq_chunk *chunks_of(ml_parquet *f, int32_t group) {
    pthread_mutex_lock(&f->cache->lock);
    if (!f->chunk[group])
        f->chunk[group] = calloc((size_t)f->meta.n_leaf + 1, sizeof **f->chunk);
    pthread_mutex_unlock(&f->cache->lock);
    return f->chunk[group];
}

static ml_pq_where where(const ml_parquet *f, int32_t group, int32_t leaf) {
    return (ml_pq_where){ f->cache, &f->file, &f->meta, group, leaf };
}

/* --- readers ------------------------------------------------------------------------- */

/* The entries of a leaf in the row being read. */
typedef struct cursor {
    ml_pq_page *page;
    int32_t entry;
    bool begun; /* the row's first entry was read */
} cursor;

struct ml_pq_reader {
    ml_parquet *f;
    int32_t group; /* -1: none yet */
    int64_t row;   /* in the file */
    ml_pq_chunk *chunk;
    cursor *at; /* [n_leaf] */
    ml_text *out;
    ml_status st; /* the first error ends the row */
    ml_err *err;
};

ml_pq_reader *ml_pq_reader_new(ml_parquet *f) {
    ml_pq_reader *r = ml_memory_grow(NULL, sizeof *r, "a reader of a parquet file");

    *r = (ml_pq_reader){ .f = f, .group = -1 };
    r->at = calloc((size_t)f->meta.n_leaf + 1, sizeof *r->at);
    if (!r->at)
        ml_memory_out((size_t)f->meta.n_leaf * sizeof *r->at, "a reader of a parquet file");
    return r;
}

static void let_go(ml_pq_reader *r) {
    for (int32_t i = 0; i < r->f->meta.n_leaf; i++) {
        ml_pq_page_done(r->f->cache, r->at[i].page);
        r->at[i] = (cursor){ 0 };
    }
}

void ml_pq_reader_free(ml_pq_reader *r) {
    if (!r)
        return;
    let_go(r);
    free(r->at);
    free(r);
}

static void fail(ml_pq_reader *r, int32_t leaf, const char *why) {
    char name[256];

    if (r->st)
        return;
    ml_pq_leaf_name(&r->f->meta, leaf, name);
    r->st = ml_fail(r->err, ML_EFORMAT, "%s: column %s, row %lld: %s", r->f->file.path,
                    name, (long long)r->row + 1, why);
}

static const ml_pq_node *leaf_node(const ml_pq_reader *r, int32_t leaf) {
    return &r->f->meta.node[r->f->meta.leaf[leaf]];
}

/* Moves to the first entry of row `row` of the row group. */
static void seek(ml_pq_reader *r, int32_t leaf, int64_t row) {
    ml_pq_where at = where(r->f, r->group, leaf);
    cursor *c = &r->at[leaf];
    ml_pq_page *page = NULL;

    c->begun = false;
    if (!c->page || row < c->page->first_row ||
        row - c->page->first_row >= c->page->n_row) {
        r->st = ml_pq_page_of_row(&page, &at, &r->chunk[leaf], row, r->err);
        if (r->st)
            return;
        ml_pq_page_done(r->f->cache, c->page);
        c->page = page;
        if (row - page->first_row >= page->n_row) {
            fail(r, leaf, "the page in which it should begin has fewer rows");
            return;
        }
    }
    c->entry = (int32_t)(row - c->page->first_row);
    if (c->page->row)
        c->entry = c->page->row[c->entry];
}

/* A row may continue on the next page. */
static bool next_page(ml_pq_reader *r, int32_t leaf) {
    ml_pq_where at = where(r->f, r->group, leaf);
    cursor *c = &r->at[leaf];
    ml_pq_page *page = NULL;

    r->st = ml_pq_page_number(&page, &at, &r->chunk[leaf], c->page->number + 1, r->err);
    if (r->st || !page)
        return false;
    ml_pq_page_done(r->f->cache, c->page);
    c->page = page;
    c->entry = 0;
    return true;
}

/* Whether the leaf has another entry in this row. */
static bool has_entry(ml_pq_reader *r, int32_t leaf) {
    cursor *c = &r->at[leaf];

    if (r->st)
        return false;
    if (!c->begun)
        return true;
    if (!c->page->rep)
        return false;
    while (c->entry == c->page->n_entry)
        if (!next_page(r, leaf))
            return false;
    return c->page->rep[c->entry] != 0;
}

/* The definition level of the current entry, which must exist. */
static int level(ml_pq_reader *r, int32_t leaf) {
    const cursor *c = &r->at[leaf];

    if (!has_entry(r, leaf)) {
        fail(r, leaf, "its levels end before those of other columns");
        return 0;
    }
    return c->page->def ? c->page->def[c->entry] : 0;
}

static void advance(ml_pq_reader *r, int32_t leaf) {
    r->at[leaf].entry++;
    r->at[leaf].begun = true;
}

/* --- assembly of a row ---------------------------------------------------------------- */

static void add(ml_pq_reader *r, const char *text, size_t n) {
    ml_text_add(r->out, text, n);
}

/* Passes one entry of each leaf below a node that is null or an empty list. */
static void pass(ml_pq_reader *r, const ml_pq_node *n) {
    for (int32_t leaf = n->leaf; leaf < n->leaf_end && !r->st; leaf++)
        if (level(r, leaf) >= n->max_def)
            fail(r, leaf, "it has a value where another column has none");
        else
            advance(r, leaf);
}

static void put_value(ml_pq_reader *r, int32_t leaf) {
    const ml_pq_node *n = leaf_node(r, leaf);
    const cursor *c = &r->at[leaf];
    int32_t k;

    if (level(r, leaf) != n->max_def)
        fail(r, leaf, "it has no value where another column has one");
    if (r->st)
        return;
    k = c->page->value_at ? c->page->value_at[c->entry] : c->entry;
    if (!ml_pq_value_put(r->out, n, ml_pq_value(c->page, n->width, k)))
        fail(r, leaf, "the text is not valid UTF-8");
    advance(r, leaf);
}

static void put_node(ml_pq_reader *r, int32_t at);

static void put_struct(ml_pq_reader *r, int32_t at) {
    const ml_pq_node *node = r->f->meta.node;
    size_t separator = 0;

    add(r, "{", 1);
    for (int32_t i = at + 1; i < node[at].end && !r->st; i = node[i].end) {
        if (r->f->unwanted[i])
            continue;
        add(r, ", ", separator);
        add(r, r->f->key[i].ptr, r->f->key[i].len);
        put_node(r, i);
        separator = 2;
    }
    add(r, "}", 1);
}

/* A map's entry: [key, value]. */
static void put_pair(ml_pq_reader *r, int32_t at) {
    const ml_pq_node *node = r->f->meta.node;

    add(r, "[", 1);
    put_node(r, at + 1);
    add(r, ", ", 2);
    put_node(r, node[at + 1].end);
    add(r, "]", 1);
}

static void put_list(ml_pq_reader *r, int32_t at);

/* The node's value, when it is present. */
static void put_body(ml_pq_reader *r, int32_t at) {
    const ml_pq_node *n = &r->f->meta.node[at];

    if (n->end == at + 1 && n->leaf < n->leaf_end)
        put_value(r, n->leaf);
    else if (n->group == ML_PQ_STRUCT)
        put_struct(r, at);
    else
        put_list(r, at + 1);
}

static void put_element(ml_pq_reader *r, int32_t at) {
    const ml_pq_node *n = &r->f->meta.node[at];

    if (r->f->meta.node[n->parent].group == ML_PQ_MAP)
        put_pair(r, at);
    else if (n->element == at)
        put_body(r, at);
    else
        put_node(r, n->element);
}

/* The elements of a repeated node: as long as the next entry repeats at its level. */
static void put_list(ml_pq_reader *r, int32_t at) {
    const ml_pq_node *n = &r->f->meta.node[at];
    size_t separator = 0;

    add(r, "[", 1);
    if (level(r, n->leaf) < n->max_def) {
        pass(r, n);
    } else {
        do {
            const cursor *c = &r->at[n->leaf];
            add(r, ", ", separator);
            separator = 2;
            put_element(r, at);
            if (!has_entry(r, n->leaf) || c->page->rep[c->entry] != n->max_rep)
                break;
        } while (!r->st);
    }
    add(r, "]", 1);
}

static void put_node(ml_pq_reader *r, int32_t at) {
    const ml_pq_node *n = &r->f->meta.node[at];

    if (r->st)
        return;
    if (n->leaf == n->leaf_end)
        add(r, "{}", 2); /* a group without columns */
    else if (n->repeated)
        put_list(r, at);
    else if (n->optional && level(r, n->leaf) < n->max_def) {
        add(r, "null", 4);
        pass(r, n);
    } else {
        put_body(r, at);
    }
}

/* --- rows ------------------------------------------------------------------------------ */

static int32_t group_of(const ml_pq_meta *m, int64_t row) {
    int32_t low = 0, high = m->n_group;

    while (high - low > 1) {
        int32_t middle = low + (high - low) / 2;
        *(m->group[middle].first_row <= row ? &low : &high) = middle;
    }
    return low;
}

static void enter_group(ml_pq_reader *r, int64_t row) {
    const ml_pq_row_group *g = r->group < 0 ? NULL : &r->f->meta.group[r->group];

    if (g && row >= g->first_row && row - g->first_row < g->n_row)
        return;
    let_go(r);
    r->group = group_of(&r->f->meta, row);
    r->chunk = chunks_of(r->f, r->group);
    if (!r->chunk) {
        r->group = -1;
        r->st = ml_fail(r->err, ML_ENOMEM, "%s: out of memory for an index of pages",
                        r->f->file.path);
    }
}

/* Columns that are not wanted are not read. */
static void for_each_wanted(ml_pq_reader *r, void (*fn)(ml_pq_reader *, int32_t, int64_t),
                            int64_t row) {
    const ml_pq_node *node = r->f->meta.node;

    for (int32_t i = 1; i < r->f->meta.n_node; i = node[i].end)
        for (int32_t k = node[i].leaf; k < node[i].leaf_end; k++)
            if (!r->f->unwanted[i] && !r->st)
                fn(r, k, row);
}

static void check_row_end(ml_pq_reader *r, int32_t leaf, int64_t row) {
    (void)row;
    if (has_entry(r, leaf))
        fail(r, leaf, "it has more entries than other columns");
}

ml_status ml_pq_read_row(ml_pq_reader *r, int64_t row, ml_text *out, ml_err *err) {
    size_t before = out->len;

    r->row = row;
    r->out = out;
    r->st = ML_OK;
    r->err = err;
    enter_group(r, row);
    if (!r->st)
        for_each_wanted(r, seek, row - r->f->meta.group[r->group].first_row);
    if (!r->st)
        put_struct(r, 0);
    if (!r->st)
        for_each_wanted(r, check_row_end, 0);
    if (r->st)
        out->len = before;
    return r->st;
}
