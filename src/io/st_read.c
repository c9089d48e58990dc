#include "io/safetensors.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"

/* --- dtypes ------------------------------------------------------------------ */

#define ML_ST_ROW(name, bits) { #name, bits },
static const struct {
    const char *name;
    unsigned bits;
} dtypes[] = { ML_ST_DTYPES(ML_ST_ROW) };
#undef ML_ST_ROW

const char *ml_st_dtype_name(ml_st_dtype t) {
    return dtypes[t].name;
}

static bool dtype_of_name(ml_str name, ml_st_dtype *out) {
    for (int t = 0; t < ML_ST_DTYPE_COUNT; t++)
        if (ml_str_is(name, dtypes[t].name)) {
            *out = (ml_st_dtype)t;
            return true;
        }
    return false;
}

bool ml_st_to_dtype(ml_st_dtype t, ml_dtype *out) {
    for (int d = ML_F32; d <= ML_I32; d++)
        if (ml_st_from_dtype((ml_dtype)d) == t) {
            *out = (ml_dtype)d;
            return true;
        }
    return false;
}

ml_st_dtype ml_st_from_dtype(ml_dtype t) {
    static const ml_st_dtype map[] = { [ML_F32] = ML_ST_F32,
                                       [ML_BF16] = ML_ST_BF16,
                                       [ML_F16] = ML_ST_F16,
                                       [ML_I32] = ML_ST_I32 };
    return map[t];
}

bool ml_st_size(ml_st_dtype t, const int64_t *shape, int32_t n_dim, size_t *bytes) {
    size_t bits = dtypes[t].bits;

    for (int32_t i = 0; i < n_dim; i++)
        if (shape[i] < 0 || __builtin_mul_overflow(bits, (size_t)shape[i], &bits))
            return false;
    *bytes = bits / 8;
    return bits % 8 == 0;
}

/* --- the header -------------------------------------------------------------- */

/* Names come from the file: truncated, so that they do not hide the rest of the message. */
static int shown(ml_str name) {
    return name.len < 200 ? (int)name.len : 200;
}

static ml_status find_header(ml_st_file *f, ml_str image, ml_err *err) {
    static const char lfs[] = "version https://git-lfs";
    uint64_t n = 0;

    if (image.len >= sizeof lfs - 1 && memcmp(image.ptr, lfs, sizeof lfs - 1) == 0)
        return ml_fail(err, ML_EFORMAT,
                       "%s is a Git LFS pointer, not the weights; run git lfs pull there",
                       f->path);
    if (image.len < 8)
        return ml_fail(err, ML_EFORMAT,
                       "%s has %zu bytes; expected a safetensors file, which begins with 8 "
                       "bytes of header length",
                       f->path, image.len);
    for (int i = 7; i >= 0; i--)
        n = n << 8 | (unsigned char)image.ptr[i];
    if (n > ML_ST_HEADER_MAX)
        return ml_fail(err, ML_EFORMAT,
                       "%s: header length %" PRIu64
                       " exceeds the limit of %zu bytes; this is not a safetensors file",
                       f->path, n, ML_ST_HEADER_MAX);
    if (n > image.len - 8)
        return ml_fail(err, ML_EFORMAT,
                       "%s: header length %" PRIu64
                       " exceeds the file size of %zu bytes; the file is truncated",
                       f->path, n, image.len);
    f->header = (ml_str){ image.ptr + 8, (size_t)n };
    if (n == 0 || image.ptr[8] != '{')
        return ml_fail(err, ML_EFORMAT, "%s: the header does not begin with '{'", f->path);
    return ML_OK;
}

static ml_status read_meta(ml_st_file *f, const ml_json *obj, ml_err *err) {
    ml_st_meta *meta;

    if (obj->type != ML_JSON_OBJECT)
        return ml_fail(err, ML_EFORMAT, "%s: __metadata__ is %s; expected an object",
                       f->path, ml_json_what(obj));
    f->meta = meta = ML_NEW(&f->arena, ml_st_meta, obj->n);
    for (const ml_json *m = obj->child; m; m = m->next) {
        if (m->type != ML_JSON_STRING)
            return ml_fail(err, ML_EFORMAT,
                           "%s: __metadata__ entry \"%.*s\" is %s; expected a string",
                           f->path, shown(m->key), m->key.ptr, ml_json_what(m));
        meta[f->n_meta++] = (ml_st_meta){
            { ml_arena_str(&f->arena, m->key.ptr, m->key.len), m->key.len },
            { ml_arena_str(&f->arena, m->text.ptr, m->text.len), m->text.len },
        };
    }
    return ML_OK;
}

/* Reports an error in one tensor's entry, with a common prefix. */
__attribute__((format(printf, 4, 5))) static ml_status
bad_tensor(const ml_st_file *f, ml_str name, ml_err *err, const char *fmt, ...) {
    char what[500];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    return ml_fail(err, ML_EFORMAT, "%s: tensor \"%.*s\": %s", f->path, shown(name),
                   name.ptr, what);
}

static ml_status read_dtype(const ml_st_file *f, ml_st_tensor *t, const ml_json *v,
                            ml_err *err) {
    if (v->type != ML_JSON_STRING)
        return bad_tensor(f, t->name, err, "dtype is %s; expected a string",
                          ml_json_what(v));
    if (!dtype_of_name(v->text, &t->dtype))
        return bad_tensor(f, t->name, err, "unknown dtype \"%.*s\"", shown(v->text),
                          v->text.ptr);
    return ML_OK;
}

static ml_status read_shape(const ml_st_file *f, ml_st_tensor *t, const ml_json *v,
                            ml_err *err) {
    if (v->type != ML_JSON_ARRAY)
        return bad_tensor(f, t->name, err, "shape is %s; expected an array",
                          ml_json_what(v));
    if (v->n > ML_ST_DIMS)
        return bad_tensor(f, t->name, err, "shape has %d dimensions; expected at most %d",
                          (int)v->n, ML_ST_DIMS);
    for (const ml_json *d = v->child; d; d = d->next) {
        int64_t n;
        if (!ml_json_i64(d, &n) || n < 0)
            return bad_tensor(f, t->name, err,
                              "dimension %d of its shape is not a non-negative integer",
                              (int)t->n_dim);
        t->shape[t->n_dim++] = n;
    }
    return ML_OK;
}

/* Sets the offset relative to the data section; place_tensors makes it relative to the
 * file. */
static ml_status read_offsets(const ml_st_file *f, ml_st_tensor *t, const ml_json *v,
                              ml_err *err) {
    int64_t begin, end;

    if (v->type != ML_JSON_ARRAY || v->n != 2 || !ml_json_i64(v->child, &begin) ||
        !ml_json_i64(v->child->next, &end) || begin < 0 || end < 0)
        return bad_tensor(f, t->name, err,
                          "data_offsets must be two non-negative integers");
    if (end < begin)
        return bad_tensor(f, t->name, err,
                          "data_offsets [%" PRId64 ",%" PRId64 "] end before they begin",
                          begin, end);
    t->offset = (size_t)begin;
    t->bytes = (size_t)(end - begin);
    return ML_OK;
}

static ml_status check_size(const ml_st_file *f, const ml_st_tensor *t, ml_err *err) {
    size_t need;

    if (!ml_st_size(t->dtype, t->shape, t->n_dim, &need))
        return bad_tensor(f, t->name, err, "its shape times %s overflows 64 bits",
                          ml_st_dtype_name(t->dtype));
    if (need != t->bytes)
        return bad_tensor(f, t->name, err,
                          "its shape needs %zu bytes of %s, but data_offsets span %zu",
                          need, ml_st_dtype_name(t->dtype), t->bytes);
    return ML_OK;
}

static ml_status read_tensor(const ml_st_file *f, ml_st_tensor *t, const ml_json *entry,
                             ml_err *err) {
    static const struct {
        const char *key;
        ml_status (*read)(const ml_st_file *, ml_st_tensor *, const ml_json *, ml_err *);
    } fields[] = { { "dtype", read_dtype },
                   { "shape", read_shape },
                   { "data_offsets", read_offsets } };
    enum { N_FIELD = sizeof fields / sizeof fields[0] };

    if (entry->type != ML_JSON_OBJECT)
        return bad_tensor(f, t->name, err, "its entry is %s; expected an object",
                          ml_json_what(entry));
    for (int i = 0; i < N_FIELD; i++) {
        const ml_json *v = ml_json_get(entry, fields[i].key);
        ml_status st;
        if (!v)
            return bad_tensor(f, t->name, err, "its entry has no %s", fields[i].key);
        st = fields[i].read(f, t, v, err);
        if (st)
            return st;
    }
    if (entry->n != N_FIELD)
        return bad_tensor(
            f, t->name, err,
            "its entry has %d fields; expected dtype, shape and data_offsets, once each",
            (int)entry->n);
    return check_size(f, t, err);
}

/* Fills tensor[] in the order of the header. */
static ml_status read_entries(ml_st_file *f, ml_st_tensor *tensor, const ml_json *top,
                              ml_err *err) {
    bool has_meta = false;

    for (const ml_json *m = top->child; m; m = m->next) {
        ml_status st;
        if (ml_str_is(m->key, "__metadata__")) {
            if (has_meta)
                return ml_fail(err, ML_EFORMAT, "%s: the header has two __metadata__",
                               f->path);
            has_meta = true;
            st = read_meta(f, m, err);
        } else {
            ml_st_tensor *t = &tensor[f->n++];
            t->name =
                (ml_str){ ml_arena_str(&f->arena, m->key.ptr, m->key.len), m->key.len };
            st = read_tensor(f, t, m, err);
        }
        if (st)
            return st;
    }
    return ML_OK;
}

/* --- the order of the data --------------------------------------------------- */

/* By begin, then end; empty tensors at the same offset keep the order of the header. */
static int by_offset(const void *a, const void *b) {
    const ml_st_tensor *x = *(const ml_st_tensor *const *)a;
    const ml_st_tensor *y = *(const ml_st_tensor *const *)b;

    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    if (x->bytes != y->bytes)
        return x->bytes < y->bytes ? -1 : 1;
    return x < y ? -1 : x > y;
}

static ml_st_tensor *sort_by_offset(ml_st_file *f, const ml_st_tensor *in_header_order) {
    const ml_st_tensor **order = ML_NEW(&f->arena, const ml_st_tensor *, f->n);
    ml_st_tensor *sorted = ML_NEW(&f->arena, ml_st_tensor, f->n);

    for (int32_t i = 0; i < f->n; i++)
        order[i] = &in_header_order[i];
    qsort(order, (size_t)f->n, sizeof *order, by_offset);
    for (int32_t i = 0; i < f->n; i++)
        sorted[i] = *order[i];
    return sorted;
}

static ml_status index_names(ml_st_file *f, ml_err *err) {
    ml_map_init(&f->by_name, &f->arena, f->n);
    for (int32_t i = 0; i < f->n; i++)
        if (!ml_map_add(&f->by_name, f->tensor[i].name, i))
            return bad_tensor(f, f->tensor[i].name, err, "duplicate tensor in the header");
    return ML_OK;
}

/* Checks that the data section consists of the tensors, one after the other, and nothing
 * else. */
static ml_status place_tensors(const ml_st_file *f, ml_st_tensor *tensor, ml_str image,
                               ml_err *err) {
    size_t begin = 8 + f->header.len, n_data = image.len - begin, end = 0;

    for (int32_t i = 0; i < f->n; i++) {
        ml_st_tensor *t = &tensor[i];
        if (t->offset + t->bytes > n_data)
            return bad_tensor(f, t->name, err,
                              "it ends at byte %zu of the data, but the file has %zu; the "
                              "file is truncated",
                              t->offset + t->bytes, n_data);
        if (t->offset != end)
            return bad_tensor(f, t->name, err,
                              "it begins at byte %zu of the data, but the tensor before it "
                              "ends at %zu: %s",
                              t->offset, end,
                              t->offset < end ? "they overlap" : "there is a gap");
        end = t->offset + t->bytes;
        t->offset += begin;
        t->data = image.ptr + t->offset;
    }
    if (end != n_data)
        return ml_fail(
            err, ML_EFORMAT,
            "%s: the last tensor ends at byte %zu of the data, but there are %zu bytes",
            f->path, end, n_data);
    return ML_OK;
}

/* --- open and close ---------------------------------------------------------- */

static ml_st_file *new_file(const char *path) {
    ml_arena a;
    ml_st_file *f;

    ml_arena_init(&a, "a safetensors header");
    f = ML_NEW(&a, ml_st_file, 1);
    f->path = ml_arena_str(&a, path, strlen(path));
    f->arena = a; /* the file lives in its own arena */
    return f;
}

ml_st_file *ml_st_new(const char *path, int64_t n, ml_st_tensor **tensor) {
    ml_st_file *f = new_file(path);

    f->tensor = *tensor = ML_NEW(&f->arena, ml_st_tensor, n);
    ml_map_init(&f->by_name, &f->arena, n);
    return f;
}

static ml_status read_header(ml_st_file *f, ml_str image, ml_arena *scratch, ml_err *err) {
    const char *name = ml_arena_printf(scratch, "%s (header)", f->path);
    const ml_json *top;
    ml_st_tensor *tensor;
    ml_status st = ml_json_parse(&top, scratch, f->header, name, err);

    if (st)
        return st;
    tensor = ML_NEW(scratch, ml_st_tensor, top->n);
    st = read_entries(f, tensor, top, err);
    if (st)
        return st;
    f->tensor = tensor = sort_by_offset(f, tensor);
    st = index_names(f, err);
    return st ? st : place_tensors(f, tensor, image, err);
}

static ml_status read_image(ml_st_file *f, ml_str image, ml_err *err) {
    ml_arena scratch;
    ml_status st = find_header(f, image, err);

    if (st)
        return st;
    ml_arena_init(&scratch, "the JSON of a safetensors header");
    st = read_header(f, image, &scratch, err);
    ml_arena_release(&scratch);
    return st;
}

ml_status ml_st_open_image(ml_st_file **out, ml_str image, const char *name, ml_err *err) {
    ml_st_file *f = new_file(name);
    ml_status st = read_image(f, image, err);

    if (st)
        ml_st_close(f);
    else
        *out = f;
    return st;
}

ml_status ml_st_open(ml_st_file **out, const char *path, ml_err *err) {
    ml_st_file *f = new_file(path);
    ml_status st = ml_file_map(&f->file, path, err);

    if (!st)
        st = read_image(f, f->file.bytes, err);
    if (st)
        ml_st_close(f);
    else
        *out = f;
    return st;
}

void ml_st_close(ml_st_file *f) {
    ml_arena a;

    if (!f)
        return;
    if (f->release)
        f->release(f->held);
    ml_file_unmap(&f->file);
    a = f->arena;
    ml_arena_release(&a);
}

const ml_st_tensor *ml_st_find(const ml_st_file *f, ml_str name) {
    int64_t i = ml_map_get(&f->by_name, name, -1);
    return i < 0 ? NULL : &f->tensor[i];
}

void ml_st_forget(const ml_st_file *f, const ml_st_tensor *t) {
    if (f->file.path) /* the caller owns bytes in memory */
        ml_file_forget(&f->file, t->offset, t->bytes);
}
