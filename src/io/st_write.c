#include "io/safetensors.h"

#include <stdlib.h>
#include <string.h>

#include "base/bug.h"
#include "base/json.h"

/* A tensor's position in the file and how many of its bytes are written. */
typedef struct extent {
    ml_str name;
    size_t offset, bytes, written;
} extent;

struct ml_st_writer {
    ml_out out;
    int32_t n;
    extent *tensor; /* [n] */
    ml_arena arena;
};

static int like_hf(const void *a, const void *b) {
    const ml_st_tensor *x = a, *y = b;
    size_t n = x->name.len < y->name.len ? x->name.len : y->name.len;
    int d;

    if (x->dtype != y->dtype)
        return x->dtype > y->dtype ? -1 : 1;
    d = n ? memcmp(x->name.ptr, y->name.ptr, n) : 0;
    if (d)
        return d;
    return x->name.len < y->name.len ? -1 : x->name.len > y->name.len;
}

void ml_st_sort_like_hf(ml_st_tensor *tensor, int32_t n) {
    if (n)
        qsort(tensor, (size_t)n, sizeof *tensor, like_hf);
}

/* --- the header -------------------------------------------------------------- */

static void add_meta(ml_text *h, const ml_st_layout *layout) {
    ml_text_printf(h, "\"__metadata__\":{");
    for (int32_t i = 0; i < layout->n_meta; i++) {
        if (i)
            ml_text_add(h, ",", 1);
        ml_json_quote(h, layout->meta[i].key);
        ml_text_add(h, ":", 1);
        ml_json_quote(h, layout->meta[i].value);
    }
    ml_text_add(h, "}", 1);
}

static void add_tensor(ml_text *h, const ml_st_tensor *t, const extent *e) {
    ml_json_quote(h, t->name);
    ml_text_printf(h, ":{\"dtype\":\"%s\",\"shape\":[", ml_st_dtype_name(t->dtype));
    for (int32_t i = 0; i < t->n_dim; i++)
        ml_text_printf(h, "%s%lld", i ? "," : "", (long long)t->shape[i]);
    ml_text_printf(h, "],\"data_offsets\":[%zu,%zu]}", e->offset, e->offset + e->bytes);
}

/* Compact JSON, metadata first, padded with spaces so that data begins at a multiple of
 * 8. */
static void build_header(ml_text *h, const ml_st_layout *layout, const extent *tensor) {
    ml_text_add(h, "{", 1);
    if (layout->n_meta)
        add_meta(h, layout);
    for (int32_t i = 0; i < layout->n; i++) {
        if (i || layout->n_meta)
            ml_text_add(h, ",", 1);
        add_tensor(h, &layout->tensor[i], &tensor[i]);
    }
    ml_text_add(h, "}", 1);
    while (h->len % 8)
        ml_text_add(h, " ", 1);
}

/* --- the layout -------------------------------------------------------------- */

static ml_st_writer *new_writer(int32_t n) {
    ml_arena a;
    ml_st_writer *w;

    ml_arena_init(&a, "a safetensors writer");
    w = ML_NEW(&a, ml_st_writer, 1);
    w->tensor = ML_NEW(&a, extent, n);
    w->n = n;
    w->arena = a; /* the writer lives in its own arena */
    return w;
}

static void free_writer(ml_st_writer *w) {
    ml_arena a = w->arena;
    ml_arena_release(&a);
}

/* Offsets are relative to the data section until the header's length is known. */
static ml_status lay_out(ml_st_writer *w, const char *path, const ml_st_layout *layout,
                         ml_err *err) {
    size_t end = 0;
    ml_map names;

    ml_map_init(&names, &w->arena, w->n);
    for (int32_t i = 0; i < w->n; i++) {
        const ml_st_tensor *t = &layout->tensor[i];
        extent *e = &w->tensor[i];
        ML_BUG_IF(t->n_dim < 0 || t->n_dim > ML_ST_DIMS);
        e->name =
            (ml_str){ ml_arena_str(&w->arena, t->name.ptr, t->name.len), t->name.len };
        e->offset = end;
        if (!ml_map_add(&names, e->name, i) || ml_str_is(e->name, "__metadata__"))
            return ml_fail(err, ML_EFORMAT, "%s: duplicate tensor name \"%s\"", path,
                           e->name.ptr);
        if (!ml_st_size(t->dtype, t->shape, t->n_dim, &e->bytes) ||
            __builtin_add_overflow(end, e->bytes, &end))
            return ml_fail(err, ML_EFORMAT, "%s: the size of tensor \"%s\" overflows", path,
                           e->name.ptr);
    }
    return ML_OK;
}

/* Takes ownership of the writer: on failure it is freed. */
static ml_status begin_file(ml_st_writer **out, ml_st_writer *w, const char *path,
                            ml_str header, ml_err *err) {
    char length[8];
    ml_status st = ml_out_open(&w->out, path, err);

    for (int i = 0; i < 8; i++)
        length[i] = (char)(header.len >> 8 * i & 255);
    if (!st)
        st = ml_out_write(&w->out, 0, (ml_str){ length, 8 }, err);
    if (!st)
        st = ml_out_write(&w->out, 8, header, err);
    if (st)
        ml_st_abort(w);
    else
        *out = w;
    return st;
}

ml_status ml_st_create(ml_st_writer **out, const char *path, const ml_st_layout *layout,
                       ml_err *err) {
    ml_st_writer *w = new_writer(layout->n);
    ml_text header = { 0 };
    ml_status st = lay_out(w, path, layout, err);

    if (st) {
        free_writer(w);
        return st;
    }
    build_header(&header, layout, w->tensor);
    for (int32_t i = 0; i < w->n; i++)
        w->tensor[i].offset += 8 + header.len;
    st = begin_file(out, w, path, (ml_str){ header.ptr, header.len }, err);
    ml_text_release(&header);
    return st;
}

ml_status ml_st_create_like(ml_st_writer **out, const char *path, const ml_st_file *f,
                            ml_err *err) {
    ml_st_writer *w = new_writer(f->n);

    for (int32_t i = 0; i < f->n; i++) {
        const ml_st_tensor *t = &f->tensor[i];
        w->tensor[i] = (extent){
            .name = { ml_arena_str(&w->arena, t->name.ptr, t->name.len), t->name.len },
            .offset = t->offset,
            .bytes = t->bytes,
        };
    }
    return begin_file(out, w, path, f->header, err);
}

/* --- the data ---------------------------------------------------------------- */

ml_status ml_st_write(ml_st_writer *w, int32_t i, size_t offset, const void *bytes,
                      size_t n, ml_err *err) {
    extent *e;

    ML_BUG_IF(i < 0 || i >= w->n);
    e = &w->tensor[i];
    ML_BUG_IF(offset > e->bytes || n > e->bytes - offset);
    e->written += n;
    return ml_out_write(&w->out, e->offset + offset, (ml_str){ bytes, n }, err);
}

ml_status ml_st_commit(ml_st_writer *w, ml_err *err) {
    ml_status st = ML_OK;

    for (int32_t i = 0; i < w->n && !st; i++) {
        const extent *e = &w->tensor[i];
        if (e->written != e->bytes)
            st = ml_fail(err, ML_EFORMAT,
                         "%s: wrote %zu bytes of tensor \"%s\", which has %zu", w->out.path,
                         e->written, e->name.ptr, e->bytes);
    }
    if (!st)
        st = ml_out_commit(&w->out, err);
    ml_st_abort(w);
    return st;
}

void ml_st_abort(ml_st_writer *w) {
    if (!w)
        return;
    ml_out_abort(&w->out);
    free_writer(w);
}
