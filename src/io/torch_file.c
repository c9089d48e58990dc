#include "io/torch_file.h"

#include <inttypes.h>
#include <string.h>

/* --- little-endian fields --------------------------------------------------------- */

static uint64_t uint_at(ml_str s, size_t at, size_t n) {
    uint64_t v = 0;
    for (size_t i = n; i > 0; i--)
        v = v << 8 | (unsigned char)s.ptr[at + i - 1];
    return v;
}

static ml_str part_of(ml_str s, size_t at, size_t n) {
    return (ml_str){ s.ptr + at, n };
}

/* --- zip ---------------------------------------------------------------------------- */

typedef struct zip_entry {
    ml_str name, bytes;
} zip_entry;

typedef struct zip {
    const ml_torch_file *f;
    uint64_t n, at; /* entries; offset of the central directory */
    zip_entry *entry;
    ml_err *err;
} zip;

static ml_status zip_fail(const zip *z, uint64_t at, const char *what) {
    return ml_fail(z->err, ML_EFORMAT, "%s: byte %" PRIu64 " of the zip archive: %s",
                   z->f->path, at, what);
}

/* The end record is the last with its signature; a comment may follow it. */
static ml_status find_end(const zip *z, size_t *end) {
    ml_str s = z->f->image;
    size_t most = s.len < 22 + 65535 ? s.len : 22 + 65535;

    for (size_t back = 22; back <= most; back++)
        if (uint_at(s, s.len - back, 4) == 0x06054b50) {
            *end = s.len - back;
            return ML_OK;
        }
    return zip_fail(z, s.len, "there is no end record; the file is truncated");
}

static ml_status read_end(zip *z) {
    ml_str s = z->f->image;
    size_t end = 0;
    ml_status st = find_end(z, &end);

    if (st != ML_OK)
        return st;
    z->n = uint_at(s, end + 10, 2);
    z->at = uint_at(s, end + 16, 4);
    if (end >= 20 && uint_at(s, end - 20, 4) == 0x07064b50) { /* zip64 */
        uint64_t at = uint_at(s, end - 20 + 8, 8);
        if (at > s.len || s.len - at < 56 || uint_at(s, at, 4) != 0x06064b50)
            return zip_fail(z, end - 20, "the zip64 end record is not where it should be");
        z->n = uint_at(s, at + 32, 8);
        z->at = uint_at(s, at + 48, 8);
    }
    if (z->at > s.len || z->n > (s.len - z->at) / 46)
        return zip_fail(z, end, "the central directory does not fit into the file");
    return ML_OK;
}

/* Sizes and offsets of more than 32 bits are in an extra field, in this order. */
static bool read_zip64(ml_str extra, uint64_t *size, uint64_t *packed, uint64_t *local) {
    uint64_t *want[3] = { size, packed, local };
    size_t at = 0;

    while (at + 4 <= extra.len) {
        size_t n = uint_at(extra, at + 2, 2), from = at + 4;
        if (n > extra.len - from)
            return false;
        for (int i = 0; uint_at(extra, at, 2) == 1 && i < 3; i++)
            if (*want[i] == UINT32_MAX) {
                if (from + 8 > at + 4 + n)
                    return false;
                *want[i] = uint_at(extra, from, 8);
                from += 8;
            }
        at += 4 + n;
    }
    return true;
}

/* The bytes of an entry, after its local header. */
static ml_status locate(const zip *z, uint64_t at, uint64_t local, uint64_t size,
                        ml_str *out) {
    ml_str s = z->f->image;
    uint64_t begin;

    if (local > s.len || s.len - local < 30 || uint_at(s, local, 4) != 0x04034b50)
        return zip_fail(z, at, "an entry has no local header");
    begin = local + 30 + uint_at(s, local + 26, 2) + uint_at(s, local + 28, 2);
    if (begin > s.len || size > s.len - begin)
        return zip_fail(z, local, "an entry ends after the file; the file is truncated");
    *out = part_of(s, begin, size);
    return ML_OK;
}

static ml_status read_entry(zip *z, uint64_t *at, zip_entry *e) {
    ml_str s = z->f->image;
    uint64_t packed, size, local, head = *at;
    size_t n_name, n_extra;

    if (head > s.len || s.len - head < 46 || uint_at(s, head, 4) != 0x02014b50)
        return zip_fail(z, head, "an entry of the central directory was expected");
    packed = uint_at(s, head + 20, 4);
    size = uint_at(s, head + 24, 4);
    local = uint_at(s, head + 42, 4);
    n_name = uint_at(s, head + 28, 2);
    n_extra = uint_at(s, head + 30, 2);
    *at = head + 46 + n_name + n_extra + uint_at(s, head + 32, 2);
    if (*at > s.len)
        return zip_fail(z, head, "an entry of the central directory ends after the file");
    if (!read_zip64(part_of(s, head + 46 + n_name, n_extra), &size, &packed, &local))
        return zip_fail(z, head, "an entry has an invalid zip64 field");
    if (uint_at(s, head + 10, 2) != 0 || packed != size)
        return zip_fail(z, head,
                        "an entry is compressed; torch.save stores entries as they "
                        "are");
    e->name = part_of(s, head + 46, n_name);
    return locate(z, head, local, size, &e->bytes);
}

static ml_status read_entries(zip *z, ml_arena *a) {
    uint64_t at;
    ml_status st = read_end(z);

    if (st != ML_OK)
        return st;
    at = z->at;
    z->entry = ML_NEW(a, zip_entry, z->n);
    for (uint64_t i = 0; i < z->n && st == ML_OK; i++)
        st = read_entry(z, &at, &z->entry[i]);
    return st;
}

/* The name inside the archive's one folder. */
static ml_str inner_name(ml_str name) {
    const char *slash = memchr(name.ptr, '/', name.len);
    size_t n = slash ? (size_t)(slash - name.ptr) + 1 : 0;
    return part_of(name, n, name.len - n);
}

static const zip_entry *find_entry(const zip *z, const char *name) {
    for (uint64_t i = 0; i < z->n; i++)
        if (ml_str_is(inner_name(z->entry[i].name), name))
            return &z->entry[i];
    return NULL;
}

static void add_storage(ml_torch_file *f, ml_str key, ml_str bytes) {
    f->storage[f->n_storage] = (ml_torch_storage){ key, bytes, true };
    ml_map_add(&f->by_key, key, f->n_storage++);
}

static void list_storages(ml_torch_file *f, const zip *z) {
    static const char data[] = "data/";
    size_t n = sizeof data - 1;

    f->storage = ML_NEW(&f->arena, ml_torch_storage, z->n);
    ml_map_init(&f->by_key, &f->arena, (int64_t)z->n);
    for (uint64_t i = 0; i < z->n; i++) {
        ml_str name = inner_name(z->entry[i].name);
        if (name.len > n && memcmp(name.ptr, data, n) == 0)
            add_storage(f, part_of(name, n, name.len - n), z->entry[i].bytes);
    }
}

static ml_status open_zip(ml_torch_file *f, ml_err *err) {
    zip z = { .f = f, .err = err };
    const zip_entry *pickle, *order;
    ml_pickle_doc doc;
    ml_status st = read_entries(&z, &f->arena);

    if (st != ML_OK)
        return st;
    pickle = find_entry(&z, "data.pkl");
    order = find_entry(&z, "byteorder");
    if (!pickle)
        return ml_fail(err, ML_EFORMAT,
                       "%s is a zip archive without data.pkl; a file of torch.save was "
                       "expected",
                       f->path);
    if (order && !ml_str_is(order->bytes, "little"))
        return ml_fail(err, ML_EUNSUP, "%s was written on a big-endian machine", f->path);
    list_storages(f, &z);
    st = ml_pickle_parse(&doc, &f->arena, pickle->bytes,
                         (size_t)(pickle->bytes.ptr - f->image.ptr), f->path, err);
    f->root = st == ML_OK ? doc.root : NULL;
    return st;
}

/* --- dtypes ------------------------------------------------------------------------- */

static const struct {
    const char *name, *storage;
    ml_st_dtype dtype;
} dtypes[] = {
    { "torch.float32", "torch.FloatStorage", ML_ST_F32 },
    { "torch.bfloat16", "torch.BFloat16Storage", ML_ST_BF16 },
    { "torch.float16", "torch.HalfStorage", ML_ST_F16 },
    { "torch.float64", "torch.DoubleStorage", ML_ST_F64 },
    { "torch.int64", "torch.LongStorage", ML_ST_I64 },
    { "torch.int32", "torch.IntStorage", ML_ST_I32 },
    { "torch.int16", "torch.ShortStorage", ML_ST_I16 },
    { "torch.int8", "torch.CharStorage", ML_ST_I8 },
    { "torch.uint8", "torch.ByteStorage", ML_ST_U8 },
    { "torch.bool", "torch.BoolStorage", ML_ST_BOOL },
    { "torch.complex64", "torch.ComplexFloatStorage", ML_ST_C64 },
    { "torch.uint16", NULL, ML_ST_U16 },
    { "torch.uint32", NULL, ML_ST_U32 },
    { "torch.uint64", NULL, ML_ST_U64 },
    { "torch.float8_e4m3fn", NULL, ML_ST_F8_E4M3 },
    { "torch.float8_e5m2", NULL, ML_ST_F8_E5M2 },
    { "torch.float8_e8m0fnu", NULL, ML_ST_F8_E8M0 },
};

bool ml_torch_dtype(ml_str name, ml_st_dtype *out) {
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++)
        if (ml_str_is(name, dtypes[i].name) ||
            (dtypes[i].storage && ml_str_is(name, dtypes[i].storage))) {
            *out = dtypes[i].dtype;
            return true;
        }
    return false;
}

static size_t size_of(ml_st_dtype t) {
    size_t n = 0;
    ml_st_size(t, NULL, 0, &n);
    return n;
}

/* --- storages ----------------------------------------------------------------------- */

/* ('storage', class, key, device, count[, view]): what a persistent id says. */
typedef struct storage_id {
    ml_st_dtype dtype;
    bool untyped;
    ml_str key;
    int64_t count;
    const ml_pickle *view; /* NULL, or (key, offset, count) in the legacy format */
} storage_id;

static ml_status fail_value(const ml_torch_file *f, const ml_pickle *v, const char *want,
                            ml_err *err) {
    return ml_fail(err, ML_EFORMAT, "%s: byte %zu of the pickle: %s was expected, found %s",
                   f->path, v ? v->at : 0, want, ml_pickle_what(v));
}

static ml_status read_id(storage_id *out, const ml_torch_file *f, const ml_pickle *v,
                         ml_err *err) {
    const ml_pickle *t = v && v->type == ML_PICKLE_PERSISTENT ? v->item[0] : NULL;

    *out = (storage_id){ 0 };
    if (!t || t->type != ML_PICKLE_TUPLE || t->n < 5 ||
        !ml_pickle_is_str(t->item[0], "storage") || t->item[2]->type != ML_PICKLE_STR ||
        t->item[4]->type != ML_PICKLE_INT || t->item[4]->i < 0)
        return fail_value(f, v, "a storage", err);
    if (t->item[1]->type != ML_PICKLE_GLOBAL)
        return fail_value(f, t->item[1], "the class of a storage", err);
    out->untyped = ml_str_is(t->item[1]->text, "torch.storage.UntypedStorage");
    out->dtype = ML_ST_U8;
    if (!out->untyped && !ml_torch_dtype(t->item[1]->text, &out->dtype))
        return ml_fail(err, ML_EUNSUP,
                       "%s: byte %zu of the pickle: a storage has the class %s, which is "
                       "not one of torch's dense storages",
                       f->path, v->at, t->item[1]->text.ptr);
    out->key = t->item[2]->text;
    out->count = t->item[4]->i;
    out->view = t->n > 5 && t->item[5]->type != ML_PICKLE_NONE ? t->item[5] : NULL;
    return ML_OK;
}

static ml_status find_storage(ml_str *out, const ml_torch_file *f, const storage_id *id,
                              const ml_pickle *v, ml_err *err) {
    int64_t i = ml_map_get(&f->by_key, id->key, -1), at = 0;
    size_t size = size_of(id->dtype);

    if (i < 0 || !f->storage[i].known)
        return ml_fail(
            err, ML_EFORMAT, "%s: byte %zu of the pickle: storage %.*s is not in the file",
            f->path, v->at, (int)(id->key.len < 100 ? id->key.len : 100), id->key.ptr);
    if (id->view) {
        const ml_pickle *w = id->view;
        if (w->type != ML_PICKLE_TUPLE || w->n != 3 || w->item[1]->type != ML_PICKLE_INT ||
            w->item[1]->i < 0)
            return fail_value(f, w, "a view of a storage", err);
        at = w->item[1]->i;
    }
    *out = f->storage[i].bytes;
    if ((uint64_t)at > out->len / size)
        return fail_value(f, id->view, "a view inside its storage", err);
    *out = part_of(*out, (size_t)at * size, out->len - (size_t)at * size);
    if (!id->view && (uint64_t)id->count > out->len / size)
        return ml_fail(err, ML_EFORMAT,
                       "%s: byte %zu of the pickle: storage %.*s has %zu bytes; %" PRId64
                       " elements of %s need more",
                       f->path, v->at, (int)(id->key.len < 100 ? id->key.len : 100),
                       id->key.ptr, out->len, id->count, ml_st_dtype_name(id->dtype));
    return ML_OK;
}

/* --- the legacy format -------------------------------------------------------------- */

/* Registers the storages that the pickle refers to, with the sizes of their elements. */
static ml_status list_ids(ml_torch_file *f, const ml_pickle_doc *doc, size_t *size,
                          ml_err *err) {
    ml_status st = ML_OK;

    ml_map_init(&f->by_key, &f->arena, doc->n_external);
    for (int32_t i = 0; i < doc->n_external && st == ML_OK; i++) {
        storage_id id;
        st = read_id(&id, f, doc->external[i], err);
        if (st == ML_OK && ml_map_add(&f->by_key, id.key, f->n_storage)) {
            size[f->n_storage] = size_of(id.dtype);
            f->storage[f->n_storage++].key = id.key;
        }
    }
    return st;
}

static ml_status read_storages(ml_torch_file *f, const ml_pickle *keys, const size_t *size,
                               size_t at, ml_err *err) {
    for (int32_t i = 0; i < keys->n; i++) {
        int64_t k = keys->item[i]->type == ML_PICKLE_STR
                        ? ml_map_get(&f->by_key, keys->item[i]->text, -1)
                        : -1;
        uint64_t n;
        if (k < 0)
            return fail_value(f, keys->item[i], "the key of a storage in the pickle", err);
        if (f->image.len - at < 8)
            return ml_fail(err, ML_EFORMAT,
                           "%s: storage %d begins at byte %zu, after the end of the file; "
                           "the file is truncated",
                           f->path, (int)i, at);
        n = uint_at(f->image, at, 8);
        at += 8;
        if (n > (f->image.len - at) / size[k])
            return ml_fail(err, ML_EFORMAT,
                           "%s: byte %zu: a storage of %" PRIu64
                           " elements of %zu bytes ends after the file; the file is "
                           "truncated",
                           f->path, at, n, size[k]);
        f->storage[k].bytes = part_of(f->image, at, (size_t)n * size[k]);
        f->storage[k].known = true;
        at += (size_t)n * size[k];
    }
    return ML_OK;
}

static bool is_magic(const ml_pickle *v) {
    static const unsigned char magic[] = { 0x6c, 0xfc, 0x9c, 0x46, 0xf9,
                                           0x20, 0x6a, 0xa8, 0x50, 0x19 };
    return v->type == ML_PICKLE_LONG && v->text.len == sizeof magic &&
           memcmp(v->text.ptr, magic, sizeof magic) == 0;
}

enum { MAGIC, VERSION, SYSTEM, OBJECT, KEYS, N_PICKLE };

static ml_status check_system(const ml_torch_file *f, const ml_pickle_doc *doc,
                              ml_err *err) {
    const ml_pickle *little = ml_pickle_get(doc[SYSTEM].root, "little_endian");

    if (doc[VERSION].root->type != ML_PICKLE_INT || doc[VERSION].root->i != 1001)
        return fail_value(f, doc[VERSION].root, "version 1001 of the legacy format", err);
    if (little && little->type == ML_PICKLE_BOOL && !little->i)
        return ml_fail(err, ML_EUNSUP, "%s was written on a big-endian machine", f->path);
    return ML_OK;
}

static ml_status open_legacy(ml_torch_file *f, ml_err *err) {
    ml_pickle_doc doc[N_PICKLE];
    size_t at = 0, *size;
    ml_status st = ML_OK;

    for (int i = 0; i < N_PICKLE && st == ML_OK; i++) {
        st = ml_pickle_parse(&doc[i], &f->arena, part_of(f->image, at, f->image.len - at),
                             at, f->path, err);
        if (st == ML_OK && i == MAGIC && !is_magic(doc[i].root))
            return ml_fail(err, ML_EFORMAT,
                           "%s: the first pickle is not torch.save's magic number",
                           f->path);
        at += st == ML_OK ? doc[i].end : 0;
    }
    if (st == ML_OK)
        st = check_system(f, doc, err);
    if (st != ML_OK)
        return st;
    if (doc[KEYS].root->type != ML_PICKLE_LIST)
        return fail_value(f, doc[KEYS].root, "a list of storage keys", err);
    f->root = doc[OBJECT].root;
    f->storage = ML_NEW(&f->arena, ml_torch_storage, doc[OBJECT].n_external);
    size = ML_NEW(&f->arena, size_t, doc[OBJECT].n_external);
    st = list_ids(f, &doc[OBJECT], size, err);
    return st == ML_OK ? read_storages(f, doc[KEYS].root, size, at, err) : st;
}

/* --- open and close ----------------------------------------------------------------- */

static ml_torch_file *new_file(const char *path) {
    ml_arena a;
    ml_torch_file *f;

    ml_arena_init(&a, "a file of torch.save");
    f = ML_NEW(&a, ml_torch_file, 1);
    f->path = ml_arena_str(&a, path, strlen(path));
    f->arena = a; /* the file lives in its own arena */
    return f;
}

static ml_status read_image(ml_torch_file *f, ml_str image, ml_err *err) {
    static const char lfs[] = "version https://git-lfs";

    f->image = image;
    if (image.len >= sizeof lfs - 1 && memcmp(image.ptr, lfs, sizeof lfs - 1) == 0)
        return ml_fail(err, ML_EFORMAT,
                       "%s is a Git LFS pointer, not the weights; run git lfs pull there",
                       f->path);
    if (image.len >= 4 && memcmp(image.ptr, "PK\3\4", 4) == 0)
        return open_zip(f, err);
    return open_legacy(f, err);
}

static ml_status finish(ml_torch_file **out, ml_torch_file *f, ml_status st) {
    if (st == ML_OK)
        *out = f;
    else
        ml_torch_close(f);
    return st;
}

ml_status ml_torch_open_image(ml_torch_file **out, ml_str image, const char *name,
                              ml_err *err) {
    ml_torch_file *f = new_file(name);
    return finish(out, f, read_image(f, image, err));
}

ml_status ml_torch_open(ml_torch_file **out, const char *path, ml_err *err) {
    ml_torch_file *f = new_file(path);
    ml_status st = ml_file_map(&f->file, path, err);
    return finish(out, f, st == ML_OK ? read_image(f, f->file.bytes, err) : st);
}

void ml_torch_close(ml_torch_file *f) {
    ml_arena a;

    if (!f)
        return;
    ml_file_unmap(&f->file);
    a = f->arena;
    ml_arena_release(&a);
}

/* --- tensors ------------------------------------------------------------------------ */

/* What the functions below rebuild their tensor from. */
static const char *const wrappers[] = { "torch._utils._rebuild_parameter",
                                        "torch._utils._rebuild_parameter_with_state" };

/* The call of _rebuild_tensor* inside parameters; NULL: not a tensor.  Subclasses of Tensor
 * are (function, class, arguments, state). */
static const ml_pickle *rebuild_of(const ml_pickle *v, const ml_pickle **args, bool *v3) {
    const ml_pickle *fn;

    for (size_t i = 0; i < sizeof wrappers / sizeof *wrappers; i++)
        if (ml_pickle_is_call(v, wrappers[i]))
            v = ml_pickle_arg(v, 0);
    if (!v || v->type != ML_PICKLE_CALL)
        return NULL;
    fn = v->call->fn;
    *args = v->call->args;
    if (ml_pickle_is_call(v, "torch._tensor._rebuild_from_type_v2")) {
        if ((*args)->n < 3 || (*args)->item[2]->type != ML_PICKLE_TUPLE)
            return NULL;
        fn = (*args)->item[0];
        *args = (*args)->item[2];
    }
    if (fn->type != ML_PICKLE_GLOBAL)
        return NULL;
    *v3 = ml_str_is(fn->text, "torch._utils._rebuild_tensor_v3");
    return *v3 || ml_str_is(fn->text, "torch._utils._rebuild_tensor_v2") ||
                   ml_str_is(fn->text, "torch._utils._rebuild_tensor")
               ? v
               : NULL;
}

bool ml_torch_is_tensor(const ml_pickle *v) {
    const ml_pickle *args;
    bool v3;
    return rebuild_of(v, &args, &v3) != NULL;
}

static ml_status read_sizes(int64_t *out, int32_t *n, const ml_torch_file *f,
                            const ml_pickle *v, ml_err *err) {
    if (ml_pickle_is_call(v, "torch.Size"))
        v = ml_pickle_arg(v, 0);
    if (!v || v->type != ML_PICKLE_TUPLE)
        return fail_value(f, v, "a tuple of sizes or strides", err);
    if (v->n > ML_ST_DIMS)
        return ml_fail(
            err, ML_EUNSUP,
            "%s: byte %zu of the pickle: a tensor has %d dimensions; the maximum "
            "is %d",
            f->path, v->at, (int)v->n, ML_ST_DIMS);
    for (int32_t i = 0; i < v->n; i++) {
        if (v->item[i]->type != ML_PICKLE_INT || v->item[i]->i < 0)
            return fail_value(f, v->item[i], "a size or stride of at least 0", err);
        out[i] = v->item[i]->i;
    }
    *n = v->n;
    return ML_OK;
}

/* Sets contiguous and the size; the last element must be inside the storage. */
static bool measure(ml_torch_tensor *t, ml_str storage) {
    size_t last = 0, size = size_of(t->dtype), run = 1;

    if (!ml_st_size(t->dtype, t->shape, t->n_dim, &t->bytes))
        return false;
    t->contiguous = true;
    for (int32_t i = t->n_dim - 1; i >= 0; i--) {
        size_t n = (size_t)t->shape[i], step;
        if (n > 1 && (size_t)t->stride[i] != run)
            t->contiguous = false;
        run *= n; /* no overflow: the size of all elements fits */
        if (n > 1 && (__builtin_mul_overflow(n - 1, (size_t)t->stride[i], &step) ||
                      __builtin_add_overflow(last, step, &last)))
            return false;
    }
    if (t->bytes == 0)
        return t->contiguous = true;
    return last < storage.len / size;
}

ml_status ml_torch_tensor_of(ml_torch_tensor *out, const ml_torch_file *f,
                             const ml_pickle *v, ml_err *err) {
    const ml_pickle *args = NULL;
    bool v3 = false;
    storage_id id;
    ml_str storage = { 0 };
    int32_t n_stride = 0;
    ml_status st;

    *out = (ml_torch_tensor){ 0 };
    if (!rebuild_of(v, &args, &v3))
        return fail_value(f, v, "a tensor", err);
    if (args->n < (v3 ? 7 : 4) || args->item[1]->type != ML_PICKLE_INT ||
        args->item[1]->i < 0)
        return fail_value(f, args, "storage, offset, sizes and strides of a tensor", err);
    st = read_id(&id, f, args->item[0], err);
    if (st == ML_OK)
        st = find_storage(&storage, f, &id, args->item[0], err);
    out->dtype = id.dtype;
    if (st == ML_OK && v3 &&
        (args->item[6]->type != ML_PICKLE_GLOBAL ||
         !ml_torch_dtype(args->item[6]->text, &out->dtype)))
        return fail_value(f, args->item[6], "a dtype of torch", err);
    if (st == ML_OK)
        st = read_sizes(out->shape, &out->n_dim, f, args->item[2], err);
    if (st == ML_OK)
        st = read_sizes(out->stride, &n_stride, f, args->item[3], err);
    if (st != ML_OK)
        return st;
    if (n_stride != out->n_dim ||
        (uint64_t)args->item[1]->i > storage.len / size_of(out->dtype))
        return fail_value(f, args, "strides and an offset inside the storage", err);
    storage.ptr += (size_t)args->item[1]->i * size_of(out->dtype);
    storage.len -= (size_t)args->item[1]->i * size_of(out->dtype);
    if (!measure(out, storage))
        return fail_value(f, args, "a tensor that ends inside its storage", err);
    out->data = (const unsigned char *)storage.ptr;
    return ML_OK;
}

void ml_torch_read(const ml_torch_tensor *t, int64_t at, int64_t n, void *out) {
    size_t size = size_of(t->dtype);
    unsigned char *o = out;

    if (t->contiguous) {
        memcpy(out, t->data + (size_t)at * size, (size_t)n * size);
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        int64_t rest = at + i, from = 0;
        for (int32_t d = t->n_dim - 1; d >= 0; d--) {
            from += rest % t->shape[d] * t->stride[d];
            rest /= t->shape[d];
        }
        memcpy(o + (size_t)i * size, t->data + (size_t)from * size, size);
    }
}
