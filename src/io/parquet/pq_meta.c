#include "io/parquet/pq_meta.h"

#include <stdio.h>
#include <string.h>

#include "base/utf8.h"
#include "io/parquet/thrift.h"

/* Field ids are those of parquet.thrift. */

enum { MAX_DEPTH = 64 };

/* What a SchemaElement says. */
typedef struct element {
    int32_t physical, width, repetition, n_child, converted, scale;
    int32_t logical;   /* id in the LogicalType union; 0: none */
    int32_t bit_width; /* of an INTEGER logical type */
    bool is_signed;
    ml_str name;
} element;

enum { REQUIRED, OPTIONAL, REPEATED };
enum {
    LOGICAL_STRING = 1,
    LOGICAL_MAP,
    LOGICAL_LIST,
    LOGICAL_ENUM,
    LOGICAL_DECIMAL,
    LOGICAL_DATE,
    LOGICAL_INTEGER = 10,
    LOGICAL_JSON = 12,
    LOGICAL_UUID = 14,
    LOGICAL_FLOAT16,
};
enum {
    CONVERTED_NONE = -1,
    CONVERTED_UTF8,
    CONVERTED_MAP,
    CONVERTED_MAP_KEY_VALUE,
    CONVERTED_LIST,
    CONVERTED_ENUM,
    CONVERTED_DECIMAL,
    CONVERTED_DATE,
    CONVERTED_UINT_8 = 11,
    CONVERTED_UINT_64 = 14,
    CONVERTED_JSON = 19,
};

/* --- schema -------------------------------------------------------------------- */

static void read_logical_args(ml_thrift *t, element *e) {
    ml_thrift_struct(t);
    for (int16_t id = 0; ml_thrift_next(t, &id);)
        if (e->logical == LOGICAL_DECIMAL && id == 1)
            e->scale = ml_thrift_i32(t);
        else if (e->logical == LOGICAL_INTEGER && id == 1)
            e->bit_width = ml_thrift_i32(t);
        else if (e->logical == LOGICAL_INTEGER && id == 2)
            e->is_signed = ml_thrift_bool(t);
        else
            ml_thrift_skip(t);
}

static void read_logical(ml_thrift *t, element *e) {
    ml_thrift_struct(t);
    for (int16_t id = 0; ml_thrift_next(t, &id);) {
        e->logical = id;
        read_logical_args(t, e);
    }
}

static element read_element(ml_thrift *t) {
    element e = { .physical = -1, .converted = CONVERTED_NONE };

    t->type = ML_THRIFT_STRUCT;
    ml_thrift_struct(t);
    for (int16_t id = 0; ml_thrift_next(t, &id);)
        switch (id) {
        case 1: e.physical = ml_thrift_i32(t); break;
        case 2: e.width = ml_thrift_i32(t); break;
        case 3: e.repetition = ml_thrift_i32(t); break;
        case 4: e.name = ml_thrift_binary(t); break;
        case 5: e.n_child = ml_thrift_i32(t); break;
        case 6: e.converted = ml_thrift_i32(t); break;
        case 7: e.scale = ml_thrift_i32(t); break;
        case 10: read_logical(t, &e); break;
        default: ml_thrift_skip(t);
        }
    return e;
}

static ml_pq_group group_of(const element *e) {
    if (e->logical == LOGICAL_LIST || e->converted == CONVERTED_LIST)
        return ML_PQ_LIST;
    if (e->logical == LOGICAL_MAP || e->converted == CONVERTED_MAP ||
        e->converted == CONVERTED_MAP_KEY_VALUE)
        return ML_PQ_MAP;
    return ML_PQ_STRUCT;
}

static bool is_text(const element *e) {
    return e->logical == LOGICAL_STRING || e->logical == LOGICAL_ENUM ||
           e->logical == LOGICAL_JSON || e->converted == CONVERTED_UTF8 ||
           e->converted == CONVERTED_ENUM || e->converted == CONVERTED_JSON;
}

static ml_pq_logical logical_of(const element *e) {
    bool bytes = e->physical == ML_PQ_BYTE_ARRAY;
    bool whole = e->physical == ML_PQ_INT32 || e->physical == ML_PQ_INT64;
    bool fixed = e->physical == ML_PQ_FIXED;

    if (bytes && is_text(e))
        return ML_PQ_TEXT;
    if ((whole || bytes || fixed) &&
        (e->logical == LOGICAL_DECIMAL || e->converted == CONVERTED_DECIMAL))
        return ML_PQ_DECIMAL;
    if (e->physical == ML_PQ_INT32 &&
        (e->logical == LOGICAL_DATE || e->converted == CONVERTED_DATE))
        return ML_PQ_DATE;
    if (whole && ((e->logical == LOGICAL_INTEGER && !e->is_signed) ||
                  (e->converted >= CONVERTED_UINT_8 && e->converted <= CONVERTED_UINT_64)))
        return ML_PQ_UNSIGNED;
    if (fixed && e->logical == LOGICAL_FLOAT16 && e->width == 2)
        return ML_PQ_FLOAT16;
    if (fixed && e->logical == LOGICAL_UUID && e->width == 16)
        return ML_PQ_UUID;
    return ML_PQ_PLAIN;
}

static int32_t width_of(const element *e) {
    static const int32_t width[] = { 1, 4, 8, 12, 4, 8, 0, 0 };
    return e->physical == ML_PQ_FIXED ? e->width : width[e->physical];
}

typedef struct schema {
    ml_pq_meta *m;
    ml_thrift *t;
    ml_arena *arena;
    int64_t n_element; /* of the file's list */
} schema;

static bool check_element(schema *s, const element *e, bool root) {
    if (ml_utf8_valid(e->name) != e->name.len)
        ml_thrift_fail(s->t, "the name of a column is not valid UTF-8");
    else if (e->repetition < REQUIRED || e->repetition > REPEATED)
        ml_thrift_fail(s->t, "column \"%.*s\" has the repetition type %d; expected 0 to 2",
                       (int)e->name.len, e->name.ptr, e->repetition);
    else if (e->n_child < 0 || e->n_child > s->n_element - s->m->n_node)
        ml_thrift_fail(s->t, "group \"%.*s\" has %d children, but %lld nodes follow",
                       (int)e->name.len, e->name.ptr, e->n_child,
                       (long long)(s->n_element - s->m->n_node));
    else if (!root && e->n_child == 0 &&
             (e->physical < ML_PQ_BOOLEAN || e->physical > ML_PQ_FIXED))
        ml_thrift_fail(s->t, "column \"%.*s\" has the physical type %d; expected 0 to 7",
                       (int)e->name.len, e->name.ptr, e->physical);
    else if (e->physical == ML_PQ_FIXED && (e->width < 0 || e->width > 1 << 20))
        ml_thrift_fail(s->t, "column \"%.*s\" has values of %d bytes; expected 0 to 2^20",
                       (int)e->name.len, e->name.ptr, e->width);
    else if (e->scale < -1000 || e->scale > 1000)
        ml_thrift_fail(s->t, "column \"%.*s\" has the decimal scale %d", (int)e->name.len,
                       e->name.ptr, e->scale);
    return !s->t->st;
}

static void set_levels(ml_pq_node *n, const ml_pq_node *parent, const element *e) {
    bool repeated = e->repetition == REPEATED;

    n->optional = e->repetition == OPTIONAL;
    n->repeated = repeated;
    if (!parent)
        return;
    n->max_def = (uint8_t)(parent->max_def + (n->optional || repeated));
    n->max_rep = (uint8_t)(parent->max_rep + repeated);
}

/* Reads the node and its subtree; recursion is bounded by MAX_DEPTH. */
static void read_node(schema *s, int32_t parent, int depth) {
    ml_pq_meta *m = s->m;
    int32_t at = m->n_node;
    ml_pq_node *n = &m->node[at];
    element e;

    if (at >= s->n_element) {
        ml_thrift_fail(s->t, "the schema ends inside a group");
        return;
    }
    e = read_element(s->t);
    m->n_node++;
    if (!check_element(s, &e, parent < 0))
        return;
    if (depth > MAX_DEPTH) {
        ml_thrift_fail(s->t, "the schema is nested more than %d deep", MAX_DEPTH);
        return;
    }
    *n = (ml_pq_node){ .name = { ml_arena_str(s->arena, e.name.ptr, e.name.len),
                                 e.name.len },
                       .parent = parent,
                       .leaf = m->n_leaf,
                       .scale = e.scale,
                       .bit_width = e.logical == LOGICAL_INTEGER ? e.bit_width : 0,
                       .group = group_of(&e) };
    if (parent >= 0)
        set_levels(n, &m->node[parent], &e);
    if (e.n_child == 0 && parent >= 0) {
        n->physical = (ml_pq_physical)e.physical;
        n->logical = logical_of(&e);
        n->width = width_of(&e);
        m->leaf[m->n_leaf++] = at;
    }
    for (int32_t i = 0; i < e.n_child && !s->t->st; i++)
        read_node(s, at, depth + 1);
    n->end = m->n_node;
    n->leaf_end = m->n_leaf;
}

static bool has_one_child(const ml_pq_meta *m, int32_t at) {
    return m->node[at].end > at + 1 && m->node[at + 1].end == m->node[at].end;
}

/* The backward-compatibility rules of the format: older writers have lists in which the
 * repeated node itself is the element. */
static bool is_element_itself(const ml_pq_meta *m, int32_t at) {
    const ml_pq_node *n = &m->node[at], *list = &m->node[n->parent];
    size_t k = list->name.len;

    if (list->group != ML_PQ_LIST || !has_one_child(m, at))
        return true;
    if (n->group != ML_PQ_STRUCT || m->node[at + 1].repeated)
        return true;
    return ml_str_is(n->name, "array") ||
           (n->name.len == k + 6 && memcmp(n->name.ptr, list->name.ptr, k) == 0 &&
            memcmp(n->name.ptr + k, "_tuple", 6) == 0);
}

/* A LIST or MAP must have the repeated child that the format prescribes; otherwise it is
 * read as the struct that it is. */
static void set_groups(ml_pq_meta *m) {
    for (int32_t i = 0; i < m->n_node; i++) {
        ml_pq_node *n = &m->node[i];
        bool one = has_one_child(m, i) && m->node[i + 1].repeated;

        if (!one || i == 0)
            n->group = ML_PQ_STRUCT;
        if (n->group == ML_PQ_MAP) {
            int32_t pair = i + 1, key = pair + 1;
            if (m->node[pair].end == key || m->node[key].end == m->node[pair].end ||
                m->node[m->node[key].end].end != m->node[pair].end)
                n->group = ML_PQ_LIST; /* a set of keys, or not a pair */
        }
    }
    for (int32_t i = 1; i < m->n_node; i++)
        if (m->node[i].repeated)
            m->node[i].element = is_element_itself(m, i) ? i : i + 1;
}

static void read_schema(schema *s) {
    s->n_element = ml_thrift_list(s->t);
    if (s->n_element < 1 || s->n_element > 1 << 20) {
        ml_thrift_fail(s->t, "the schema has %lld nodes; expected 1 to 2^20",
                       (long long)s->n_element);
        return;
    }
    s->m->node = ML_NEW(s->arena, ml_pq_node, s->n_element);
    s->m->leaf = ML_NEW(s->arena, int32_t, s->n_element);
    s->m->n_node = s->m->n_leaf = 0;
    read_node(s, -1, 0);
    if (s->t->st)
        return;
    if (s->m->n_node != s->n_element)
        ml_thrift_fail(s->t, "the schema has %lld nodes, but its groups contain %d",
                       (long long)s->n_element, s->m->n_node);
    else
        set_groups(s->m);
}

/* --- row groups ----------------------------------------------------------------- */

typedef struct chunk_read {
    int32_t physical, codec;
    int64_t n_entry, data, dictionary;
} chunk_read;

static void read_column_meta(ml_thrift *t, chunk_read *c) {
    ml_thrift_struct(t);
    for (int16_t id = 0; ml_thrift_next(t, &id);)
        switch (id) {
        case 1: c->physical = ml_thrift_i32(t); break;
        case 4: c->codec = ml_thrift_i32(t); break;
        case 5: c->n_entry = ml_thrift_i64(t); break;
        case 9: c->data = ml_thrift_i64(t); break;
        case 11: c->dictionary = ml_thrift_i64(t); break;
        default: ml_thrift_skip(t);
        }
}

static void check_chunk(ml_thrift *t, const ml_pq_meta *m, int32_t leaf,
                        const chunk_read *c, int64_t start, int64_t n_row) {
    const ml_pq_node *n = &m->node[m->leaf[leaf]];
    char name[256];

    ml_pq_leaf_name(m, leaf, name);
    if (c->physical != (int32_t)n->physical)
        ml_thrift_fail(t, "column %s: a chunk has the physical type %d; the schema says %d",
                       name, c->physical, (int)n->physical);
    else if (start < 4 || (uint64_t)start >= m->data_end)
        ml_thrift_fail(t, "column %s: a chunk starts at byte %lld; expected 4 to %zu", name,
                       (long long)start, m->data_end);
    else if (n->max_rep ? c->n_entry < n_row : c->n_entry != n_row)
        ml_thrift_fail(t, "column %s: a chunk has %lld values for %lld rows", name,
                       (long long)c->n_entry, (long long)n_row);
    else if ((uint64_t)c->n_entry / ML_PQ_PAGE_ENTRIES > m->data_end - (uint64_t)start)
        ml_thrift_fail(t,
                       "column %s: a chunk has %lld values, more than its %zu bytes hold",
                       name, (long long)c->n_entry, m->data_end - (size_t)start);
}

static void refuse_other_file(ml_thrift *t, ml_str path) {
    if (path.len)
        ml_thrift_fail(t,
                       "a column chunk is in the file \"%.*s\"; expected all chunks in "
                       "this one",
                       (int)(path.len < 200 ? path.len : 200), path.ptr);
}

static void read_chunk(ml_thrift *t, const ml_pq_meta *m, int32_t leaf,
                       ml_pq_chunk_meta *out, int64_t n_row) {
    chunk_read c = { .physical = -1 };
    int64_t start;

    t->type = ML_THRIFT_STRUCT;
    ml_thrift_struct(t);
    for (int16_t id = 0; ml_thrift_next(t, &id);)
        switch (id) {
        case 1: refuse_other_file(t, ml_thrift_binary(t)); break;
        case 3: read_column_meta(t, &c); break;
        case 8:
            ml_thrift_fail(t, "a column chunk is encrypted; expected a file without "
                              "encryption");
            break;
        default: ml_thrift_skip(t);
        }
    if (t->st)
        return;
    start = c.dictionary > 0 && c.dictionary < c.data ? c.dictionary : c.data;
    if (n_row)
        check_chunk(t, m, leaf, &c, start, n_row);
    *out = (ml_pq_chunk_meta){ .offset = (size_t)start,
                               .n_entry = c.n_entry,
                               .codec = c.codec };
}

/* The columns of a row group come before its number of rows, which says whether there is
 * anything to check. */
static void read_group(ml_thrift *t, const ml_pq_meta *m, ml_pq_row_group *g, ml_arena *a) {
    ml_thrift columns = { 0 };
    int64_t n;

    t->type = ML_THRIFT_STRUCT;
    ml_thrift_struct(t);
    for (int16_t id = 0; ml_thrift_next(t, &id);)
        if (id == 3) {
            g->n_row = ml_thrift_i64(t);
        } else {
            if (id == 1)
                columns = *t;
            ml_thrift_skip(t);
        }
    if (t->st)
        return;
    if (g->n_row < 0 || g->n_row > INT64_MAX - g->first_row) {
        ml_thrift_fail(t, "a row group has %lld rows", (long long)g->n_row);
        return;
    }
    n = columns.p ? ml_thrift_list(&columns) : 0;
    if (n != m->n_leaf)
        ml_thrift_fail(t,
                       "a row group has %lld column chunks; expected %d, one for each "
                       "column of the schema",
                       (long long)n, m->n_leaf);
    if (t->st)
        return;
    g->chunk = ML_NEW(a, ml_pq_chunk_meta, n);
    for (int32_t i = 0; i < n && !columns.st; i++)
        read_chunk(&columns, m, i, &g->chunk[i], g->n_row);
    t->st = columns.st;
}

static void read_groups(ml_thrift *t, ml_pq_meta *m, ml_arena *a) {
    int64_t n = ml_thrift_list(t), first = 0;

    m->group = ML_NEW(a, ml_pq_row_group, n);
    for (m->n_group = 0; m->n_group < n && !t->st; m->n_group++) {
        m->group[m->n_group].first_row = first;
        read_group(t, m, &m->group[m->n_group], a);
        first += m->group[m->n_group].n_row;
    }
    if (m->n_row != first)
        ml_thrift_fail(t, "the file has %lld rows, but its row groups have %lld",
                       (long long)m->n_row, (long long)first);
}

/* --- the footer ----------------------------------------------------------------- */

static ml_status read_file_meta(ml_pq_meta *m, ml_thrift *t, ml_arena *a) {
    schema s = { .m = m, .t = t, .arena = a };
    ml_thrift groups = { 0 };

    ml_thrift_struct(t);
    for (int16_t id = 0; ml_thrift_next(t, &id);)
        switch (id) {
        case 2: read_schema(&s); break;
        case 3: m->n_row = ml_thrift_i64(t); break;
        case 4:
            groups = *t;
            ml_thrift_skip(t);
            break;
        default: ml_thrift_skip(t);
        }
    if (t->st)
        return t->st;
    if (!m->n_node || m->n_row < 0 || (m->n_row && !m->n_leaf))
        ml_thrift_fail(t, "there is no schema, or it has no columns");
    else if (groups.p)
        read_groups(&groups, m, a);
    else if (m->n_row)
        ml_thrift_fail(t, "the file has %lld rows, but no row groups", (long long)m->n_row);
    return t->st ? t->st : groups.st;
}

static uint32_t le32(const char *p) {
    const unsigned char *b = (const unsigned char *)p;
    return b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
}

ml_status ml_pq_meta_read(ml_pq_meta *out, const ml_file *file, ml_arena *a, ml_err *err) {
    const char *bytes = file->bytes.ptr;
    size_t n = file->bytes.len;
    ml_thrift t = { .what = file->path, .type = ML_THRIFT_STRUCT, .err = err };
    uint32_t footer;

    *out = (ml_pq_meta){ 0 };
    if (n < 12 || memcmp(bytes, "PAR", 3) != 0)
        return ml_fail(err, ML_EFORMAT,
                       "%s: is not a parquet file: at byte 0: expected \"PAR1\"",
                       file->path);
    if (memcmp(bytes + n - 4, "PARE", 4) == 0)
        return ml_fail(err, ML_EUNSUP,
                       "%s: the footer is encrypted; expected a file without encryption",
                       file->path);
    if (memcmp(bytes, "PAR1", 4) != 0 || memcmp(bytes + n - 4, "PAR1", 4) != 0)
        return ml_fail(err, ML_EFORMAT,
                       "%s: at byte %zu: expected \"PAR1\" at the end: the file is "
                       "truncated",
                       file->path, n - 4);
    footer = le32(bytes + n - 8);
    if (footer > n - 12)
        return ml_fail(err, ML_EFORMAT,
                       "%s: at byte %zu: the footer has %u bytes; expected at most %zu",
                       file->path, n - 8, footer, n - 12);
    out->data_end = n - 8 - footer;
    t.file = (const unsigned char *)bytes;
    t.p = t.file + out->data_end;
    t.end = t.p + footer;
    return read_file_meta(out, &t, a);
}

void ml_pq_leaf_name(const ml_pq_meta *m, int32_t leaf, char out[256]) {
    int32_t path[MAX_DEPTH + 2], n = 0;
    size_t at = 0;

    for (int32_t i = m->leaf[leaf]; i > 0; i = m->node[i].parent)
        path[n++] = i;
    out[0] = 0;
    while (n-- > 0 && at < 255) {
        char part[256];
        ml_str_copy(part, sizeof part, m->node[path[n]].name);
        at += (size_t)snprintf(out + at, 256 - at, "%s%s", at ? "." : "", part);
    }
}

/* --- page headers --------------------------------------------------------------- */

static void read_data_head(ml_thrift *t, ml_pq_page_head *h) {
    ml_thrift_struct(t);
    for (int16_t id = 0; ml_thrift_next(t, &id);)
        switch (id) {
        case 1: h->n_entry = ml_thrift_i32(t); break;
        case 2: h->encoding = ml_thrift_i32(t); break;
        case 3: h->def_encoding = ml_thrift_i32(t); break;
        case 4: h->rep_encoding = ml_thrift_i32(t); break;
        default: ml_thrift_skip(t);
        }
}

static void read_dictionary_head(ml_thrift *t, ml_pq_page_head *h) {
    ml_thrift_struct(t);
    for (int16_t id = 0; ml_thrift_next(t, &id);)
        switch (id) {
        case 1: h->n_entry = ml_thrift_i32(t); break;
        case 2: h->encoding = ml_thrift_i32(t); break;
        default: ml_thrift_skip(t);
        }
}

static void read_data_head_v2(ml_thrift *t, ml_pq_page_head *h) {
    ml_thrift_struct(t);
    for (int16_t id = 0; ml_thrift_next(t, &id);)
        switch (id) {
        case 1: h->n_entry = ml_thrift_i32(t); break;
        case 3: h->n_row = ml_thrift_i32(t); break;
        case 4: h->encoding = ml_thrift_i32(t); break;
        case 5: h->def_bytes = ml_thrift_i32(t); break;
        case 6: h->rep_bytes = ml_thrift_i32(t); break;
        case 7: h->compressed = ml_thrift_bool(t); break;
        default: ml_thrift_skip(t);
        }
}

static void check_head(ml_thrift *t, const ml_pq_page_head *h, int64_t stored) {
    if (stored < 0 || stored > t->end - t->p)
        ml_thrift_fail(t, "a page has %lld bytes, but %lld follow", (long long)stored,
                       (long long)(t->end - t->p));
    else if (h->n_byte < 0 || h->n_byte > ML_PQ_PAGE_BYTES)
        ml_thrift_fail(t, "a page has %d uncompressed bytes; expected at most 2^30",
                       h->n_byte);
    else if (h->n_entry < 0 || h->n_entry > ML_PQ_PAGE_ENTRIES)
        ml_thrift_fail(t, "a page has %d values; expected at most 2^26", h->n_entry);
    else if (h->n_row < 0 || h->n_row > h->n_entry)
        ml_thrift_fail(t, "a page with %d values has %d rows", h->n_entry, h->n_row);
    else if (h->rep_bytes < 0 || h->def_bytes < 0 ||
             (int64_t)h->rep_bytes + h->def_bytes > stored ||
             (int64_t)h->rep_bytes + h->def_bytes > h->n_byte)
        ml_thrift_fail(t,
                       "a page of %lld bytes has %d bytes of repetition and %d of "
                       "definition levels",
                       (long long)stored, h->rep_bytes, h->def_bytes);
}

ml_status ml_pq_page_head_read(ml_pq_page_head *out, const ml_file *file, size_t offset,
                               size_t data_end, const char *what, ml_err *err) {
    const unsigned char *bytes = (const unsigned char *)file->bytes.ptr;
    ml_thrift t = { .p = bytes + offset,
                    .end = bytes + data_end,
                    .file = bytes,
                    .what = what,
                    .type = ML_THRIFT_STRUCT,
                    .err = err };
    int64_t stored = -1;

    *out = (ml_pq_page_head){ .type = -1, .compressed = true };
    ml_thrift_struct(&t);
    for (int16_t id = 0; ml_thrift_next(&t, &id);)
        switch (id) {
        case 1: out->type = ml_thrift_i32(&t); break;
        case 2: out->n_byte = ml_thrift_i32(&t); break;
        case 3: stored = ml_thrift_i32(&t); break;
        case 4:
            out->crc = (uint32_t)ml_thrift_i32(&t);
            out->has_crc = true;
            break;
        case 5: read_data_head(&t, out); break;
        case 7: read_dictionary_head(&t, out); break;
        case 8: read_data_head_v2(&t, out); break;
        default: ml_thrift_skip(&t);
        }
    if (!t.st)
        check_head(&t, out, stored);
    if (t.st)
        return t.st;
    out->data = (size_t)(t.p - bytes);
    out->end = out->data + (size_t)stored;
    return ML_OK;
}
